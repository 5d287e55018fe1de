// html_plots.c - the curves of a report over steps; see html.h.
//
// A single run is drawn in detail: every step, or the band between the least and the greatest of a
// few steps, with the smoothed curve over it. Several runs share each plot, with one colour per run
// and less detail.
#include "report/html.h"
#include "report/html_text.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

// Above this ratio of greatest to least, an axis is logarithmic: a linear one would show little but
// the greatest.
static const double LOG_RATIO = 50;
// More dots than this touch each other. The line alone is clearer then.
enum { DOTS_MOST = 60 };

// ---------------------------------------------------------------- curves from columns

struct curve {
    struct svg_point mid[COLUMNS_MOST], lo[COLUMNS_MOST], hi[COLUMNS_MOST];
    size_t n;
};

static double middle(const struct column *c) {
    return 0.5 * ((double)c->from + (double)c->to);
}

static void curve_of_value(struct curve *v, const struct columns *c, enum column_value which) {
    v->n = 0;
    for (int i = 0; i < c->n; i++) {
        const struct column *at = &c->column[i];
        const struct column_stat *s = &at->value[which];
        if (at->steps == 0)
            continue;
        double x = middle(at);
        v->mid[v->n] = (struct svg_point){x, column_mean(s)};
        v->lo[v->n] = (struct svg_point){x, s->n > 0 ? s->least : NAN};
        v->hi[v->n] = (struct svg_point){x, s->n > 0 ? s->most : NAN};
        v->n++;
    }
}

// The smoothed loss (true) or the learning rate, at the last step of each column.
static void curve_of_last(struct curve *v, const struct columns *c, bool smooth) {
    v->n = 0;
    for (int i = 0; i < c->n; i++)
        if (c->column[i].steps > 0)
            v->mid[v->n++] =
                (struct svg_point){smooth ? middle(&c->column[i]) : (double)c->column[i].to,
                                   smooth ? c->column[i].smooth : c->column[i].lr};
}

static void curve_of_evals(struct curve *v, const struct columns *c) {
    v->n = 0;
    for (int i = 0; i < c->n; i++)
        if (c->column[i].eval_step > 0)
            v->mid[v->n++] =
                (struct svg_point){(double)c->column[i].eval_step, c->column[i].eval_loss};
}

// ---------------------------------------------------------------- ranges

struct range {
    double lo, hi; // lo > hi: nothing yet
};
static const struct range NOTHING = {INFINITY, -INFINITY};

static void widen(struct range *r, double value) {
    if (!isfinite(value))
        return;
    r->lo = fmin(r->lo, value);
    r->hi = fmax(r->hi, value);
}

static void widen_by(struct range *r, const struct svg_point *v, size_t n) {
    for (size_t i = 0; i < n; i++)
        widen(r, v[i].y);
}

static struct svg_scale scale_of(struct range r, bool from_zero) {
    if (r.lo > r.hi)
        return svg_scale_exact(0, 1);
    if (r.lo > 0 && r.hi / r.lo > LOG_RATIO && !from_zero)
        return svg_scale_log(r.lo, r.hi);
    return svg_scale_round(from_zero ? fmin(r.lo, 0) : r.lo, r.hi, 5);
}

struct svg_scale html_step_scale(const struct html_page *p) {
    struct range r = NOTHING;
    for (size_t i = 0; i < p->n; i++)
        if (p->runs[i].log.steps > 0) {
            widen(&r, (double)p->runs[i].log.first_step);
            widen(&r, (double)p->runs[i].log.last_step);
        }
    // From 0 when the log begins near 0, so that ticks are round and the origin is where expected.
    if (r.lo < 0.1 * r.hi)
        r.lo = 0;
    return r.lo > r.hi ? svg_scale_exact(0, 1) : svg_scale_exact(r.lo, r.hi);
}

// ---------------------------------------------------------------- keys and marks

const char *html_colour(char out[HTML_COLOUR_BYTES], size_t run) {
    snprintf(out, HTML_COLOUR_BYTES, "c%zu%s", run % HTML_COLOURS,
             run >= HTML_COLOURS ? " dash" : "");
    return out;
}

bool html_draws_raw(const struct html_page *p) {
    return p->n <= 3;
}

static void put_key(struct html_page *p, const char *css, const char *text) {
    fprintf(p->f, "<span><i class=\"%s\"></i>", css);
    html_put_between(p->f, "", text, "</span> ");
}

void html_put_legend(struct html_page *p) {
    char css[HTML_COLOUR_BYTES];
    if (p->n < 2)
        return;
    fputs("<p class=\"key\">", p->f);
    for (size_t i = 0; i < p->n; i++)
        put_key(p, html_colour(css, i), p->runs[i].name);
    fputs("</p>", p->f);
}

static void put_title(struct html_page *p, const struct svg_plot *plot) {
    svg_caption(p->f, plot, plot->y.log ? ", logarithmic" : "");
    fputc('\n', p->f);
    html_put_legend(p);
}

static void end_plot(struct html_page *p, const struct svg_plot *plot) {
    svg_labels(p->f);
    svg_end(p->f, plot);
    fputs("</figure>\n", p->f);
}

static void put_mark_keys(struct html_page *p) {
    bool resumed = false, skipped = false;
    for (size_t i = 0; i < p->n; i++) {
        resumed |= p->runs[i].log.resumed.n > 0;
        skipped |= p->runs[i].log.skipped.n > 0;
    }
    if (resumed)
        put_key(p, "resume", "resumed");
    if (skipped)
        put_key(p, "skip", "skipped: gradients not finite");
}

static void put_marks(struct html_page *p, const struct svg_plot *plot) {
    for (size_t i = 0; i < p->n; i++) {
        const struct run_marks *resumed = &p->runs[i].log.resumed,
                               *skipped = &p->runs[i].log.skipped;
        for (uint64_t k = 0; k < resumed->n && k < RUN_MARKS_MOST; k++)
            svg_vertical(p->f, plot, "resume", (double)resumed->step[k], 0, 1);
        for (uint64_t k = 0; k < skipped->n && k < RUN_MARKS_MOST; k++)
            svg_vertical(p->f, plot, "skip", (double)skipped->step[k], 0, 0.06);
    }
}

// The line of means, over the band between least and greatest.
static void put_curve(struct html_page *p, const struct svg_plot *plot, const char *css,
                      const struct curve *v, bool band) {
    if (band)
        svg_band(p->f, plot, css, v->lo, v->hi, v->n);
    svg_line(p->f, plot, css, v->mid, v->n);
}

// ---------------------------------------------------------------- loss

static struct svg_scale loss_scale(const struct html_page *p, struct curve *v) {
    struct range r = NOTHING;
    for (size_t i = 0; i < p->n; i++) {
        const struct columns *c = p->runs[i].log.columns;
        if (html_draws_raw(p)) {
            curve_of_value(v, c, COLUMN_LOSS);
            widen_by(&r, v->lo, v->n);
            widen_by(&r, v->hi, v->n);
        }
        curve_of_last(v, c, true);
        widen_by(&r, v->mid, v->n);
        curve_of_evals(v, c);
        widen_by(&r, v->mid, v->n);
    }
    return scale_of(r, false);
}

static void put_loss_run(struct html_page *p, const struct svg_plot *plot, size_t i,
                         struct curve *v) {
    const struct columns *c = p->runs[i].log.columns;
    char css[HTML_COLOUR_BYTES], full[48];
    html_colour(css, i);
    if (html_draws_raw(p)) {
        curve_of_value(v, c, COLUMN_LOSS);
        snprintf(full, sizeof full, "%s faint", css);
        if (c->width > 1)
            svg_band(p->f, plot, css, v->lo, v->hi, v->n);
        else
            svg_line(p->f, plot, full, v->mid, v->n);
    }
    snprintf(full, sizeof full, "%s strong", css);
    curve_of_last(v, c, true);
    svg_line(p->f, plot, full, v->mid, v->n);
    curve_of_evals(v, c);
    if (p->n == 1)
        snprintf(css, sizeof css, "c1");
    snprintf(full, sizeof full, "%s eval", css);
    svg_line(p->f, plot, full, v->mid, v->n);
    if (v->n <= DOTS_MOST)
        svg_dots(p->f, plot, css, v->mid, v->n);
}

static void put_loss_keys(struct html_page *p) {
    const struct run_log *g = &p->runs[0].log;
    char text[96];
    fputs("<p class=\"key\">", p->f);
    if (p->n == 1) {
        put_key(p, "c0 thin",
                g->columns->width > 1 ? "least and greatest of a few steps" : "each step");
        snprintf(text, sizeof text, "smoothed over ±%lld steps", (long long)g->smooth_steps);
        put_key(p, "c0", text);
        if (g->evals > 0)
            put_key(p, "c1", "validation");
    } else {
        put_key(p, "fg", "smoothed over ±2 % of the run");
        put_key(p, "fg eval", "validation");
    }
    put_mark_keys(p);
    fputs("</p>", p->f);
}

static void put_loss(struct html_page *p, const struct svg_scale *x, struct curve *v) {
    const struct run_log *g = &p->runs[0].log;
    char text[160] = "Loss over steps.";
    if (!isnan(g->loss_first))
        snprintf(text, sizeof text, "Loss over steps, from %.4g to %.4g%s.", g->loss_first,
                 g->loss_last, p->n > 1 ? " in the first run" : "");
    struct svg_plot plot = {.id = "loss",
                            .title = "Loss",
                            .unit = "nats per token",
                            .x_unit = "step",
                            .describe = text,
                            .x = *x,
                            .y = loss_scale(p, v)};
    put_title(p, &plot);
    put_loss_keys(p);
    svg_begin(p->f, &plot);
    put_marks(p, &plot);
    for (size_t i = 0; i < p->n; i++)
        put_loss_run(p, &plot, i, v);
    end_plot(p, &plot);
}

// ---------------------------------------------------------------- learning rate, gradient norm

static void low_curve(struct curve *v, const struct columns *c, bool norm) {
    if (norm)
        curve_of_value(v, c, COLUMN_GRAD_NORM);
    else
        curve_of_last(v, c, false);
}

// A low plot: the norm of the gradient (true) or the learning rate.
static void put_low(struct html_page *p, const struct svg_scale *x, struct curve *v, bool norm) {
    struct range r = NOTHING;
    bool bands = norm && html_draws_raw(p);
    char css[HTML_COLOUR_BYTES];
    for (size_t i = 0; i < p->n; i++) {
        low_curve(v, p->runs[i].log.columns, norm);
        widen_by(&r, bands ? v->lo : v->mid, v->n);
        widen_by(&r, bands ? v->hi : v->mid, v->n);
    }
    struct svg_plot plot = {.id = norm ? "norm" : "lr",
                            .title = norm ? "Gradient norm" : "Learning rate",
                            .unit = norm ? "before clipping" : "",
                            .x_unit = "step",
                            .describe = norm ? "Norm of the gradient over steps."
                                             : "Learning rate over steps.",
                            .x = *x,
                            .y = scale_of(r, !norm || r.hi / r.lo <= LOG_RATIO),
                            .low = true};
    put_title(p, &plot);
    svg_begin(p->f, &plot);
    if (norm)
        put_marks(p, &plot);
    for (size_t i = 0; i < p->n; i++) {
        low_curve(v, p->runs[i].log.columns, norm);
        put_curve(p, &plot, html_colour(css, i), v, bands && p->runs[i].log.columns->width > 1);
    }
    end_plot(p, &plot);
}

void html_put_curves(struct html_page *p) {
    struct svg_scale x = html_step_scale(p);
    struct curve v;
    put_loss(p, &x, &v);
    fputs("<div class=\"pair\">", p->f);
    put_low(p, &x, &v, false);
    put_low(p, &x, &v, true);
    fputs("</div>", p->f);
}

// ---------------------------------------------------------------- step time over steps

struct slowest {
    double steady, warm, median; // ms, over all runs
};

static struct slowest find_slowest(const struct html_page *p) {
    struct slowest s = {0};
    for (size_t i = 0; i < p->n; i++) {
        const struct run_log *g = &p->runs[i].log;
        for (int k = 0; k < g->columns->n; k++) {
            s.steady = fmax(s.steady, g->columns->column[k].steady_most);
            s.warm = fmax(s.warm, g->columns->column[k].warm_most);
        }
        if (g->p50.n > 0)
            s.median = fmax(s.median, 1e-6 * g->p50.value);
    }
    if (s.steady == 0)
        s.steady = s.warm;
    return s;
}

static void put_warmup(struct html_page *p, const struct svg_plot *plot) {
    const struct columns *c = p->runs[0].log.columns;
    for (int i = 0; p->n == 1 && i < c->n; i++)
        if (c->column[i].warmup)
            svg_bar(p->f, plot, "warm", (double)c->column[i].from - 0.5,
                    (double)c->column[i].to + 0.5, plot->y.hi);
}

static void put_time_keys(struct html_page *p, const struct slowest *s, double top) {
    const struct run_log *g = &p->runs[0].log;
    char text[128], ms[TEXT_UNIT_BYTES];
    fputs("<p class=\"key\">", p->f);
    if (p->n == 1) {
        put_key(p, "c0",
                g->columns->width > 1 ? "step: mean, least and greatest of a few steps" : "step");
        put_key(p, "c1", "waiting for data, part of the step");
    } else {
        put_key(p, "fg", "step, mean of a few steps");
        if (html_draws_raw(p))
            put_key(p, "fg eval", "waiting for data");
    }
    if (p->n == 1 && g->warmup > 0)
        put_key(p, "warm", "warm-up, not in the percentiles");
    put_mark_keys(p);
    if (s->warm > top) {
        snprintf(text, sizeof text, "warm-up steps are cut off; the slowest took %s",
                 text_duration(ms, 1e-3 * s->warm));
        put_key(p, "none", text);
    }
    fputs("</p>", p->f);
}

static void put_time_run(struct html_page *p, const struct svg_plot *plot, size_t i,
                         struct curve *v) {
    const struct columns *c = p->runs[i].log.columns;
    char css[HTML_COLOUR_BYTES], wait[48];
    html_colour(css, i);
    snprintf(wait, sizeof wait, "%s%s", p->n == 1 ? "c1" : css, p->n == 1 ? "" : " eval");
    curve_of_value(v, c, COLUMN_STEP_MS);
    put_curve(p, plot, css, v, html_draws_raw(p) && c->width > 1);
    if (!html_draws_raw(p))
        return;
    curve_of_value(v, c, COLUMN_WAIT_MS);
    put_curve(p, plot, wait, v, c->width > 1);
}

void html_put_times(struct html_page *p) {
    struct svg_scale x = html_step_scale(p);
    struct slowest s = find_slowest(p);
    struct curve v;
    // A stall must be visible without flattening the other steps: the axis becomes logarithmic.
    bool log = s.median > 0 && s.steady > 20 * s.median;
    struct svg_plot plot = {.id = "times",
                            .title = "Step time over steps",
                            .unit = "ms",
                            .x_unit = "step",
                            .describe =
                                "Time of each step, and the part of it spent waiting for data.",
                            .x = x,
                            .y = log ? svg_scale_log(s.median / 10, s.steady)
                                     : svg_scale_round(0, s.steady > 0 ? s.steady : 1, 5)};
    put_title(p, &plot);
    put_time_keys(p, &s, plot.y.hi);
    svg_begin(p->f, &plot);
    put_warmup(p, &plot);
    put_marks(p, &plot);
    for (size_t i = 0; i < p->n; i++)
        put_time_run(p, &plot, i, &v);
    end_plot(p, &plot);
}

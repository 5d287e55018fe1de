// tune_page_plots.c - plots with a mark per setting: tokens/s against latency, memory and energy,
// and predicted against measured step times; see tune_page.h.
#include "report/html_text.h"
#include "report/svg.h"
#include "report/tune_page.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>

// At most this many settings that were not measured are drawn. The tables list all of them.
enum { REFUSED_DRAWN_MOST = 60 };

// ---------------------------------------------------------------- marks

// The style decides which shapes are filled.
static const struct {
    const char *css, *path, *name; // path: in a square from -8 to 8
} marks[MARK_COUNT] = {
    [MARK_CHOSEN] = {"chosen",
                     "M0-8 2-2.6 7.6-2.5 3.2.9 4.7 6.5 0 3.2-4.7 6.5-3.2.9-7.6-2.5-2-2.6Z",
                     "chosen"},
    [MARK_GIVEN] = {"given", "M-5-5H5V5H-5Z", "as given"},
    [MARK_FRONTIER] = {"frontier", "M-5 0A5 5 0 1 1 5 0 5 5 0 1 1-5 0Z", "on the frontier"},
    [MARK_MEASURED] = {"measured", "M-4 0A4 4 0 1 1 4 0 4 4 0 1 1-4 0Z",
                       "another is as good in all"},
    [MARK_OVER] = {"over", "M-5-5 5 5M-5 5 5-5", "over budget"},
    [MARK_REFUSED] = {"refused", "M0-5.5 5.5 4.5H-5.5Z", "refused or failed"},
    [MARK_PLANNED] = {"planned", "M-2 0H2", "predicted only"},
};

const char *tune_mark_name(enum tune_mark m) {
    return marks[m].name;
}

void tune_put_mark(FILE *f, enum tune_mark m) {
    fprintf(
        f,
        "<svg class=\"m %s\" viewBox=\"-9 -9 18 18\" aria-hidden=\"true\"><path d=\"%s\"/></svg>",
        marks[m].css, marks[m].path);
}

enum tune_mark tune_mark_of(const struct tune *t, int i) {
    const struct tune_setting *s = &t->settings[i];
    if (i == t->chosen)
        return MARK_CHOSEN;
    if (i == 0)
        return MARK_GIVEN;
    if (s->outcome == TUNE_OVER)
        return MARK_OVER;
    if (s->outcome == TUNE_REFUSED || s->outcome == TUNE_FAILED)
        return MARK_REFUSED;
    return s->n == 0 ? MARK_PLANNED : s->frontier ? MARK_FRONTIER : MARK_MEASURED;
}

// How sure the speed of a setting is.
static void put_range(const struct tune_view *v, int i) {
    const struct tune_figures *g = &v->figures[i];
    char a[TEXT_UNIT_BYTES], text[TUNE_WORDS_BYTES];
    FILE *f = v->f;
    if (tune_against(text, v->t, i)[0])
        fprintf(f, "&#10;%s against as given, %d rounds in turns", text,
                v->t->settings[i].turns.rounds);
    else if (!tune_is_glance(v->t, i))
        return;
    else if (isfinite(g->range.low))
        fprintf(f, "&#10;a glance of %s, n=%zu: %.0f to %.0f tokens/s by its steps",
                text_duration(a, g->range.seconds), g->range.steps, g->range.low, g->range.high);
    else
        fprintf(f, "&#10;a glance of %s, n=%zu: no interval", text_duration(a, g->range.seconds),
                g->range.steps);
}

// What the cursor shows about a setting, as the value of a title attribute.
static void put_title(const struct tune_view *v, int i) {
    const struct tune_setting *s = &v->t->settings[i];
    const struct tune_figures *g = &v->figures[i];
    char a[TEXT_UNIT_BYTES], q[QUANTILE_TEXT_BYTES], why[TUNE_WORDS_BYTES];
    FILE *f = v->f;
    html_put_text(f, s->name);
    if (i == v->t->chosen)
        fputs("&#10;the choice", f);
    if (isfinite(g->tokens_per_s))
        fprintf(f, "&#10;%.0f tokens/s, latency of a sample %.4g ms", g->tokens_per_s,
                g->ms_per_sample);
    put_range(v, i);
    if (s->n > 0) {
        html_put_between(f, "&#10;", quantile_text(q, &g->q[TUNE_P50]), "");
        html_put_between(f, "&#10;", quantile_text(q, &g->q[TUNE_P99]), "");
    }
    if (isfinite(s->predicted_s))
        fprintf(f, "&#10;predicted %s a step", text_duration(a, s->predicted_s));
    if (s->need_bytes > 0)
        fprintf(f, "&#10;needs %s", text_bytes(a, s->need_bytes));
    if (isfinite(g->joules_per_token))
        fprintf(f, "&#10;%.3g J per token", g->joules_per_token);
    if (tune_reason(why, v->t, i)[0])
        html_put_between(f, "&#10;", why, "");
}

static void put_at(const struct tune_view *v, const struct svg_plot *p, int i) {
    enum tune_mark m = tune_mark_of(v->t, i);
    const struct svg_point *at = &v->figures[i].at;
    if (!isfinite(at->x) || !isfinite(at->y))
        return;
    fprintf(v->f, "<span class=\"mark %s%s\" style=\"left:%.2f%%;top:%.2f%%\" title=\"",
            marks[m].css, tune_is_glance(v->t, i) ? " glance" : "", 100 * svg_place(&p->x, at->x),
            100 * (1 - svg_place(&p->y, at->y)));
    put_title(v, i);
    fputs("\">", v->f);
    tune_put_mark(v->f, m);
    fputs("</span>\n", v->f);
}

static void put_key(const struct tune_view *v, const bool shown[MARK_COUNT], bool glances) {
    fputs("<div class=\"key marks\">", v->f);
    for (int m = 0; m < MARK_COUNT; m++)
        if (shown[m]) {
            fputs("<span>", v->f);
            tune_put_mark(v->f, (enum tune_mark)m);
            fprintf(v->f, "%s</span>",
                    m == MARK_CHOSEN && v->t->chosen == 0 ? "as given, kept" : marks[m].name);
        }
    if (glances) {
        fputs("<span class=\"glance\">", v->f);
        tune_put_mark(v->f, MARK_MEASURED);
        fputs("small and pale: a glance, not run in turns</span>", v->f);
    }
    fputs("</div>", v->f);
}

// ---------------------------------------------------------------- extents

struct extent {
    double lo, hi;
};

static void extend(struct extent *e, double x) {
    if (isfinite(x)) {
        e->lo = fmin(e->lo, x);
        e->hi = fmax(e->hi, x);
    }
}

// Has a margin, so that no mark lies on the edge. Logarithmic when values are far apart.
static struct svg_scale scale_of(const struct extent *e) {
    if (!(e->hi >= e->lo))
        return svg_scale_exact(0, 1);
    double pad = e->hi > e->lo ? 0.06 * (e->hi - e->lo) : 0.1 * fabs(e->hi);
    if (e->lo > 0 && e->hi / e->lo > 20)
        return svg_scale_log(e->lo / 1.1, e->hi * 1.1);
    return svg_scale_round(e->lo - pad > 0 ? e->lo - pad : 0, e->hi + pad, 5);
}

static const struct extent NOTHING = {INFINITY, -INFINITY};

// ---------------------------------------------------------------- a plot of marks

void tune_put_note(const struct tune_view *v, const struct svg_plot *p, double x, double height,
                   const char *text) {
    double left = svg_place(&p->x, x);
    fprintf(v->f, "<span class=\"note%s\" style=\"left:%.2f%%;top:%.2f%%\">",
            left > 0.5 ? " before" : "", 100 * left, 100 * (1 - height));
    html_put_between(v->f, "", text, "</span>");
}

// The note on a limit stands in one of these rows of the plot: the lowest of those with the fewest
// marks under the note.
enum { NOTE_ROWS = 8 };
static const double NOTE_WIDTH = 0.45; // as a share of the plot, on a phone
static const double MARK_WIDTH = 0.03;

static void put_limit_note(const struct tune_view *v, const struct svg_plot *p, double limit,
                           const char *text) {
    int crowd[NOTE_ROWS] = {0}, best = 0; // marks in each row, on the note's side of the limit
    const double from = svg_place(&p->x, limit);
    for (int i = 0; i < v->t->n; i++) {
        const struct svg_point *at = &v->figures[i].at;
        const double to = svg_place(&p->x, at->x), beside = from > 0.5 ? from - to : to - from;
        const int row = (int)(NOTE_ROWS * svg_place(&p->y, at->y));
        if (isfinite(at->x) && isfinite(at->y) && beside > -MARK_WIDTH && beside < NOTE_WIDTH)
            crowd[row < NOTE_ROWS ? row : NOTE_ROWS - 1]++;
    }
    for (int i = 1; i < NOTE_ROWS; i++)
        best = crowd[i] < crowd[best] ? i : best;
    tune_put_note(v, p, limit, (best + 0.75) / NOTE_ROWS, text); // the text hangs down from there
}

struct marked { // a plot with a mark for each setting that has a place in it (tune_figures.at)
    struct svg_plot plot;
    double limit; // on the x axis; 0: none
    double reach; // the axis includes a limit below this many times the greatest x
    const char *limit_name;
    char limit_text[48]; // the limit with its unit
    bool diagonal;       // x and y have the same scale, and a line marks x = y
};

// The 95 % interval of the speed, as a line through the mark.
static void put_interval(const struct tune_view *v, const struct svg_plot *p, int i) {
    const struct tune_figures *g = &v->figures[i];
    if (isfinite(g->at.x) && isfinite(g->range.low) && isfinite(g->range.high))
        svg_vertical(v->f, p, tune_is_glance(v->t, i) ? "interval glance" : "interval", g->at.x,
                     svg_place(&p->y, g->range.low), svg_place(&p->y, g->range.high));
}

// Fills the scales of the plot and writes it as a <figure>, without a newline at its end.
static void put_marked(const struct tune_view *v, struct marked *m) {
    struct svg_plot *p = &m->plot;
    struct extent x = NOTHING, y = NOTHING;
    bool shown[MARK_COUNT] = {false}, glances = false;
    char note[64];
    for (int i = 0; i < v->t->n; i++) {
        const struct svg_point *at = &v->figures[i].at;
        // A step time of 0 has no ratio to the predicted one and does not stretch the axes.
        if (isfinite(m->diagonal ? at->x / at->y : at->x)) {
            extend(&x, at->x);
            extend(m->diagonal ? &x : &y, at->y);
            shown[tune_mark_of(v->t, i)] = true;
            glances |= tune_is_glance(v->t, i);
        }
    }
    if (m->limit > 0 && m->limit < m->reach * x.hi)
        extend(&x, m->limit);
    p->x = scale_of(&x);
    p->y = m->diagonal ? p->x : scale_of(&y);
    bool limited = m->limit > p->x.lo && m->limit < p->x.hi;
    const struct svg_point diagonal[2] = {{p->x.lo, p->x.lo}, {p->x.hi, p->x.hi}};
    svg_caption(v->f, p, "");
    put_key(v, shown, glances && !m->diagonal);
    svg_begin(v->f, p);
    for (int i = 0; i < v->t->n && !m->diagonal; i++)
        put_interval(v, p, i);
    if (limited)
        svg_vertical(v->f, p, "limit", m->limit, 0, 1);
    if (m->diagonal)
        svg_line(v->f, p, "diagonal", diagonal, 2);
    svg_labels(v->f);
    snprintf(note, sizeof note, "%s %s", m->limit_name, m->limit_text);
    if (limited)
        put_limit_note(v, p, m->limit, note);
    for (int order = MARK_COUNT - 1; order >= 0; order--) // the choice lies on top
        for (int i = 0; i < v->t->n; i++)
            if ((int)tune_mark_of(v->t, i) == order)
                put_at(v, p, i);
    svg_end(v->f, p);
    if (m->limit > 0 && m->limit >= p->x.hi)
        fprintf(v->f, "<p class=\"small\">The %s of %s lies to the right of the plot.</p>",
                m->limit_name, m->limit_text);
    fputs("</figure>", v->f);
}

// ---------------------------------------------------------------- the frontier

int tune_shown_percentile(const struct tune_request *r) {
    if (r->limit_ns[TUNE_P99] || !tune_has_limits(r))
        return TUNE_P99;
    return r->limit_ns[TUNE_P95] ? TUNE_P95 : TUNE_P50;
}

// The latency is that of a sample where the goal is that.
static void put_latency(const struct tune_view *v) {
    const int p = tune_shown_percentile(&v->t->request);
    const bool sample = tune_by_sample(&v->t->request);
    const double limit_s = 1e-9 * (double)v->t->request.limit_ns[p];
    char unit[64], text[TEXT_UNIT_BYTES];
    struct marked m = {.plot = {.id = "frontier",
                                .title = "Speed against latency",
                                .unit = "tokens/s; up and left is better",
                                .x_unit = unit,
                                .describe = "Each measured setting: tokens per second over "
                                            "latency. Arrow keys go from one to the next."},
                       .limit = limit_s / 1e-3,
                       .reach = 2,
                       .limit_name = "budget"};
    for (int i = 0; i < v->t->n; i++) {
        struct tune_figures *g = &v->figures[i];
        double ms = v->t->settings[i].n == 0 ? NAN
                    : sample                 ? g->ms_per_sample
                                             : 1e-9 * g->q[p].value / 1e-3;
        g->at = (struct svg_point){ms, g->tokens_per_s};
    }
    snprintf(unit, sizeof unit,
             sample ? "latency of a sample (its micro-batch's time), ms" : "p%.0f of a step, ms",
             100 * tune_percentile_of(p));
    snprintf(m.limit_text, sizeof m.limit_text, "%s", text_duration(text, limit_s));
    put_marked(v, &m);
    fputc('\n', v->f);
}

static double joules_of(const struct tune_view *v, int i) {
    return v->t->settings[i].n > 0 ? v->figures[i].joules_per_token : NAN;
}

static void put_energy(const struct tune_view *v) {
    const double limit = v->t->request.joules_per_token;
    char axis[64];
    double most = 0;
    for (int i = 0; i < v->t->n; i++)
        most = fmax(most, joules_of(v, i));
    // A token of a small model takes microjoules.
    const double unit = most < 1e-4 ? 1e-6 : most < 0.1 ? 1e-3 : 1;
    const char *name = most < 1e-4 ? "\xc2\xb5J" : most < 0.1 ? "mJ" : "J";
    struct marked m = {.plot = {.id = "energy",
                                .title = "Speed against energy",
                                .unit = "tokens/s; up and left is better",
                                .x_unit = axis,
                                .describe = "Each metered setting: tokens per second over joules "
                                            "per token. Arrow keys go from one to the next."},
                       .limit = limit / unit,
                       .reach = 2,
                       .limit_name = "budget"};
    for (int i = 0; i < v->t->n; i++)
        v->figures[i].at = (struct svg_point){joules_of(v, i) / unit, v->figures[i].tokens_per_s};
    snprintf(axis, sizeof axis, "energy, %s per token", name);
    snprintf(m.limit_text, sizeof m.limit_text, "%.3g %s per token", limit / unit, name);
    put_marked(v, &m);
    fputc('\n', v->f);
}

// Settings that do not fit have only a predicted speed. A setting is drawn if it needs at most four
// times the memory of the smallest refused one. At most REFUSED_DRAWN_MOST are drawn.
static bool is_drawn(const struct tune_view *v, int i, double least_refused, int *drawn) {
    const struct tune_setting *s = &v->t->settings[i];
    if (s->n > 0)
        return s->need_bytes > 0;
    if (tune_mark_of(v->t, i) != MARK_REFUSED && tune_mark_of(v->t, i) != MARK_GIVEN)
        return false;
    if (s->need_bytes == 0 || !isfinite(s->predicted_s) ||
        (double)s->need_bytes > 4 * least_refused)
        return false;
    return (*drawn)++ < REFUSED_DRAWN_MOST;
}

// Tokens per second are measured or, for settings that do not fit, predicted.
static void put_memory_plot(const struct tune_view *v) {
    const struct tune *t = v->t;
    bool predicted = false, whole;
    const uint64_t limit = tune_memory_limit(v, &whole);
    double least = INFINITY, most = 0, have = (double)limit;
    int drawn = 0;
    char text[TEXT_UNIT_BYTES];
    for (int i = 0; i < t->n; i++)
        if (t->settings[i].need_bytes > 0 && t->settings[i].outcome == TUNE_REFUSED)
            least = fmin(least, (double)t->settings[i].need_bytes);
    for (int i = 0; i < t->n; i++) {
        const struct tune_setting *s = &t->settings[i];
        const struct knobs *k = &s->knobs;
        double tokens = (double)(k->batch_micro * k->batch_accum * k->seq);
        struct svg_point *at = &v->figures[i].at;
        at->x = is_drawn(v, i, least, &drawn) ? (double)s->need_bytes : NAN;
        at->y = s->n > 0 ? v->figures[i].tokens_per_s : tokens / s->predicted_s;
        most = fmax(most, at->x); // in bytes until the unit is known
        predicted |= isfinite(at->x) && s->n == 0;
    }
    if (have < 2.5 * most)
        most = fmax(most, have);
    bool giga = most >= 4.0 * (1 << 30);
    double unit = giga ? (double)(1 << 30) : (double)(1 << 20);
    for (int i = 0; i < t->n; i++)
        v->figures[i].at.x /= unit;
    struct marked m = {.plot = {.id = "memory-plot",
                                .title = "Speed against memory",
                                .unit = predicted ? "tokens/s; triangles: predicted, would not fit"
                                                  : "tokens/s; up and left is better",
                                .x_unit = giga ? "memory it needs, GiB" : "memory it needs, MiB",
                                .describe = "Each measured setting: tokens per second over the "
                                            "memory it needs. Arrow keys go from one to the next."},
                       .limit = have / unit,
                       .reach = 2.5,
                       .limit_name = whole ? "budget" : "limit"};
    snprintf(m.limit_text, sizeof m.limit_text, "%s", text_bytes(text, limit));
    put_marked(v, &m);
    fputc('\n', v->f);
}

static bool any_measured(const struct tune *t) {
    for (int i = 0; i < t->n; i++)
        if (t->settings[i].n > 0)
            return true;
    return false;
}

void tune_put_frontier(const struct tune_view *v) {
    if (!any_measured(v->t)) {
        fputs("<p class=\"small\">Nothing was measured.</p>\n", v->f);
        return;
    }
    char line[TUNE_WORDS_BYTES];
    if (tune_better_line(line, v->t)[0])
        html_put_between(v->f, "<p class=\"better\">", line,
                         ". Each mark and the last table say why.</p>\n");
    fprintf(
        v->f,
        "<p class=\"small\">Full marks ran in turns with as given and can be compared; pale ones "
        "are of other times. Lines are 95&thinsp;%% intervals. Point at a mark, tap it, or use "
        "the arrow keys. On the frontier: no other is at least as good in speed, latency%s.</p>\n"
        "<div class=\"pair\">",
        v->metered ? ", memory and energy" : " and memory");
    put_latency(v);
    put_memory_plot(v);
    if (v->metered)
        put_energy(v);
    fputs("</div>\n", v->f);
}

// ---------------------------------------------------------------- predicted against measured

static double measured_s(const struct tune_view *v, int i) {
    return 1e-9 * v->figures[i].q[TUNE_P50].value;
}

// The median of |predicted / measured - 1| over *n settings. NaN when there are none.
static double median_error(const struct tune_view *v, int *n) {
    double *errors = calloc((size_t)v->t->n + 1, sizeof *errors), median = NAN;
    *n = 0;
    for (int i = 0; errors && i < v->t->n; i++) {
        double x = fabs(v->t->settings[i].predicted_s / measured_s(v, i) - 1);
        if (isfinite(x))
            errors[(*n)++] = x;
    }
    if (errors)
        median = sample_median(errors, (size_t)*n);
    free(errors);
    return median;
}

void tune_put_predicted(const struct tune_view *v) {
    int n;
    double error = median_error(v, &n);
    if (n == 0) {
        fputs("<p class=\"small\">No setting has both a predicted and a measured step time.</p>\n",
              v->f);
        return;
    }
    for (int i = 0; i < v->t->n; i++)
        v->figures[i].at =
            (struct svg_point){1e3 * v->t->settings[i].predicted_s, 1e3 * measured_s(v, i)};
    struct marked m = {.plot = {.id = "predicted",
                                .title = "Step times",
                                .unit = "measured p50, ms; on the line: as predicted",
                                .x_unit = "predicted when it was planned, ms",
                                .describe = "Measured over predicted step time of each setting."},
                       .limit_name = "",
                       .diagonal = true};
    fprintf(v->f,
            "<p>Half of the predictions were off by less than <b>%.1f&thinsp;%%</b> <small>(median "
            "error of %d settings)</small>.</p>\n<div class=\"pair\">",
            100 * error, n);
    put_marked(v, &m);
    fputs("</div>\n", v->f);
}

// tune_page_steps.c - the step times of the choice, of the recipe as given, and of the other
// settings with the most measured steps; see tune_page.h.
#include "report/html_text.h"
#include "report/svg.h"
#include "report/tune_page.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_MOST = 5, LINE_POINTS = 201, BINS = 40, STEPS_LEAST = 5 };

static const char *const line_css[LINES_MOST] = {"c1 strong", "c0 dash", "c2", "c3 dots2",
                                                 "c4 dash2"};

struct lines { // the settings that are drawn
    int n, at[LINES_MOST];
    double *ms[LINES_MOST]; // the step times of each, ascending
};

static bool is_in(const struct lines *l, int i) {
    for (int k = 0; k < l->n; k++)
        if (l->at[k] == i)
            return true;
    return false;
}

static void add(const struct tune_view *v, struct lines *l, int i) {
    const struct tune_setting *s = i >= 0 && i < v->t->n ? &v->t->settings[i] : NULL;
    if (!s || s->n == 0 || is_in(l, i) || l->n == LINES_MOST)
        return;
    double *ms = malloc(s->n * sizeof *ms);
    if (!ms)
        return;
    for (size_t k = 0; k < s->n; k++)
        ms[k] = 1e-6 * s->step_ns[k];
    sample_sort(ms, s->n);
    l->ms[l->n] = ms;
    l->at[l->n++] = i;
}

// The next setting to draw. Finalists were measured in turns, so they have the most steps.
static int next_finalist(const struct tune_view *v, const struct lines *l) {
    int best = -1;
    for (int i = 0; i < v->t->n; i++) {
        const struct tune_setting *s = &v->t->settings[i];
        if (s->n >= STEPS_LEAST && s->outcome != TUNE_FAILED && !is_in(l, i) && s->n_blocks > 1 &&
            (best < 0 || s->n > v->t->settings[best].n))
            best = i;
    }
    return best;
}

static size_t steps_of(const struct tune_view *v, const struct lines *l, int k) {
    return v->t->settings[l->at[k]].n;
}

// The axis ends where the slowest steps are rare. Otherwise one stall would squeeze all others.
static struct svg_scale times_scale(const struct tune_view *v, const struct lines *l) {
    double lo = INFINITY, hi = 0;
    for (int k = 0; k < l->n; k++) {
        const struct tune_figures *g = &v->figures[l->at[k]];
        double most = l->ms[k][steps_of(v, l, k) - 1];
        lo = fmin(lo, l->ms[k][0]);
        hi = fmax(hi,
                  fmin(most, fmax(1.5e-6 * g->q[TUNE_P95].value, 1.1e-6 * g->q[TUNE_P99].value)));
    }
    for (int p = 0; p < TUNE_PERCENTILES; p++) {
        double limit = 1e-6 * (double)v->t->request.limit_ns[p];
        if (limit > hi && limit < 1.5 * hi)
            hi = 1.02 * limit;
    }
    return svg_scale_round(lo, hi, 6);
}

static void put_key(const struct tune_view *v, const struct lines *l) {
    fputs("<div class=\"key\">", v->f);
    for (int k = 0; k < l->n; k++) {
        fprintf(v->f,
                "<span><svg class=\"sample\" viewBox=\"0 0 24 8\" aria-hidden=\"true\"><path "
                "class=\"line %s\" d=\"M1 4H23\"/></svg>%s",
                line_css[k], l->at[k] == v->t->chosen && l->at[k] != 0 ? "chosen: " : "");
        html_put_text(v->f, v->t->settings[l->at[k]].name);
        fprintf(v->f, " <small>n=%zu</small></span>", steps_of(v, l, k));
    }
    fputs("</div>", v->f);
}

static void put_limits(const struct tune_view *v, const struct svg_plot *p, bool notes) {
    for (int k = 0; k < TUNE_PERCENTILES; k++) {
        double limit = 1e-6 * (double)v->t->request.limit_ns[k];
        char text[64], ms[TEXT_UNIT_BYTES];
        if (!(limit > p->x.lo && limit < p->x.hi))
            continue;
        snprintf(text, sizeof text, "p%.0f budget %s",
                 100 * tune_percentile_of((enum tune_percentile)k),
                 text_duration(ms, 1e-3 * limit));
        if (notes)
            tune_put_note(v, p, limit, 0.12 + 0.12 * k, text);
        else
            svg_vertical(v->f, p, "limit", limit, 0, 1);
    }
}

// ---------------------------------------------------------------- histogram

static double fill_bins(const struct tune_view *v, const struct lines *l, int k,
                        const struct svg_scale *x, double share[BINS]) {
    size_t n = steps_of(v, l, k);
    double most = 0;
    memset(share, 0, BINS * sizeof *share);
    for (size_t i = 0; i < n && l->ms[k][i] <= x->hi; i++) {
        int bin = (int)(BINS * (l->ms[k][i] - x->lo) / (x->hi - x->lo));
        share[bin < 0 ? 0 : bin < BINS ? bin : BINS - 1] += 1.0 / (double)n;
    }
    for (int b = 0; b < BINS; b++)
        most = fmax(most, share[b]);
    return most;
}

// The first setting has filled bars, the second an outline. More than two would hide each other.
static void put_histogram(const struct tune_view *v, const struct lines *l,
                          const struct svg_scale *x) {
    double share[2][BINS], most = 0;
    int n = l->n < 2 ? l->n : 2;
    for (int k = 0; k < n; k++)
        most = fmax(most, fill_bins(v, l, k, x, share[k]));
    struct svg_plot p = {.id = "histogram",
                         .title = "Step times",
                         .unit = n > 1
                                     ? "share of steps; filled: the first setting, line: the second"
                                     : "share of steps",
                         .x_unit = "ms",
                         .describe = "Histogram of step times.",
                         .x = *x,
                         .y = svg_scale_round(0, most, 4),
                         .percent = true};
    svg_caption(v->f, &p, "");
    struct lines shown = *l;
    shown.n = n;
    put_key(v, &shown);
    svg_begin(v->f, &p);
    double width = (x->hi - x->lo) / BINS;
    for (int b = 0; b < BINS; b++)
        if (share[0][b] > 0)
            svg_bar(v->f, &p, "bin c1", x->lo + b * width, x->lo + (b + 1) * width, share[0][b]);
    if (n > 1)
        svg_outline(v->f, &p, line_css[1], share[1], BINS);
    put_limits(v, &p, false);
    svg_labels(v->f);
    put_limits(v, &p, true);
    svg_end(v->f, &p);
    fputs("</figure>\n", v->f);
}

// ---------------------------------------------------------------- CDF

static void put_curve(const struct tune_view *v, const struct svg_plot *p, const struct lines *l,
                      int k) {
    struct svg_point line[LINE_POINTS];
    size_t n = steps_of(v, l, k), points = 0;
    for (int i = 0; i < LINE_POINTS; i++) {
        double share = (double)(i + 1) / LINE_POINTS;
        size_t rank = (size_t)ceil(share * (double)n);
        double ms = l->ms[k][rank > 0 ? rank - 1 : 0];
        if (ms <= p->x.hi)
            line[points++] = (struct svg_point){ms, share};
    }
    svg_line(v->f, p, line_css[k], line, points);
}

static void put_quantile_marks(const struct tune_view *v, const struct svg_plot *p,
                               const struct lines *l, int k) {
    const struct tune_setting *s = &v->t->settings[l->at[k]];
    for (int q = 0; q < TUNE_PERCENTILES; q++) {
        const struct quantile *x = &v->figures[l->at[k]].q[q];
        char text[QUANTILE_TEXT_BYTES];
        if (1e-6 * x->value > p->x.hi)
            continue;
        fprintf(v->f, "<span class=\"mark point %s\" style=\"left:%.2f%%;top:%.2f%%\" title=\"",
                line_css[k], 100 * svg_place(&p->x, 1e-6 * x->value),
                100 * (1 - svg_place(&p->y, x->p)));
        html_put_text(v->f, s->name);
        html_put_between(v->f, "&#10;", quantile_text(text, x), "\"></span>\n");
    }
}

static void put_shares(const struct tune_view *v, const struct lines *l,
                       const struct svg_scale *x) {
    struct svg_plot p = {.id = "cdf",
                         .title = "Share of steps that took at most this time",
                         .unit = "dots: p50, p95, p99",
                         .x_unit = "ms",
                         .describe =
                             "Cumulative distribution of step times. Arrow keys go from one "
                             "percentile to the next.",
                         .x = *x,
                         .y = svg_scale_exact(0, 1),
                         .percent = true};
    svg_caption(v->f, &p, "");
    put_key(v, l);
    svg_begin(v->f, &p);
    for (int k = l->n - 1; k >= 0; k--)
        put_curve(v, &p, l, k);
    put_limits(v, &p, false);
    svg_labels(v->f);
    put_limits(v, &p, true);
    for (int k = l->n - 1; k >= 0; k--)
        put_quantile_marks(v, &p, l, k);
    svg_end(v->f, &p);
    fputs("</figure>\n", v->f);
}

static void put_beyond(const struct tune_view *v, const struct lines *l,
                       const struct svg_scale *x) {
    for (int k = 0; k < l->n; k++) {
        size_t n = steps_of(v, l, k), beyond = 0;
        char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
        while (beyond < n && l->ms[k][n - 1 - beyond] > x->hi)
            beyond++;
        if (beyond == 0)
            continue;
        html_put_between(v->f, "<p class=\"small\">", v->t->settings[l->at[k]].name, "");
        fprintf(v->f, ": %zu step%s took longer than %s, the slowest %s.</p>", beyond,
                beyond == 1 ? "" : "s", text_duration(a, 1e-3 * x->hi),
                text_duration(b, 1e-3 * l->ms[k][n - 1]));
    }
}

void tune_put_steps(const struct tune_view *v) {
    struct lines l = {.n = 0};
    add(v, &l, v->t->chosen);
    add(v, &l, 0);
    for (int i = next_finalist(v, &l); i >= 0 && l.n < LINES_MOST; i = next_finalist(v, &l)) {
        int before = l.n;
        add(v, &l, i);
        if (l.n == before)
            break;
    }
    if (l.n == 0) {
        fputs("<p class=\"small\">No steps were measured.</p>\n", v->f);
        return;
    }
    struct svg_scale x = times_scale(v, &l);
    fputs("<div class=\"pair\">", v->f);
    put_histogram(v, &l, &x);
    put_shares(v, &l, &x);
    fputs("</div>\n", v->f);
    put_beyond(v, &l, &x);
    for (int k = 0; k < l.n; k++)
        free(l.ms[k]);
}

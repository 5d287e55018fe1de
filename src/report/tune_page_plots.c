// tune_page_plots.c - settings as marks: tokens/s against latency, memory and energy, and predicted against
// measured step times; see tune_page.h.
#include "report/html_text.h"
#include "report/svg.h"
#include "report/tune_page.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>

// Beyond this many, settings that were not measured say nothing more in a plot; the tables have them.
enum { REFUSED_DRAWN_MOST = 60 };

// ---------------------------------------------------------------- marks

// enum, CSS class, path in a square from -8 to 8, name. Filled or not is the style's.
#define MARK_LIST(X)                                                                               \
    X(MARK_CHOSEN, "chosen",                                                                       \
      "M0-8 2-2.6 7.6-2.5 3.2.9 4.7 6.5 0 3.2-4.7 6.5-3.2.9-7.6-2.5-2-2.6Z", "chosen")             \
    X(MARK_GIVEN, "given", "M-5-5H5V5H-5Z", "as given")                                            \
    X(MARK_FRONTIER, "frontier", "M-5 0A5 5 0 1 1 5 0 5 5 0 1 1-5 0Z", "on the frontier")          \
    X(MARK_MEASURED, "measured", "M-4 0A4 4 0 1 1 4 0 4 4 0 1 1-4 0Z", "another is better")        \
    X(MARK_OVER, "over", "M-5-5 5 5M-5 5 5-5", "over budget")                                      \
    X(MARK_REFUSED, "refused", "M0-5.5 5.5 4.5H-5.5Z", "refused or failed")                        \
    X(MARK_PLANNED, "planned", "M-2 0H2", "predicted only")

static const char *mark_css(enum tune_mark m) {
    static const char *const css[MARK_COUNT] = {
#define X(mark, css, path, text) css,
        MARK_LIST(X)
#undef X
    };
    return css[m];
}

const char *tune_mark_name(enum tune_mark m) {
    static const char *const names[MARK_COUNT] = {
#define X(mark, css, path, text) text,
        MARK_LIST(X)
#undef X
    };
    return names[m];
}

void tune_put_mark(FILE *f, enum tune_mark m) {
    static const char *const paths[MARK_COUNT] = {
#define X(mark, css, path, text) path,
        MARK_LIST(X)
#undef X
    };
    fprintf(
        f,
        "<svg class=\"m %s\" viewBox=\"-9 -9 18 18\" aria-hidden=\"true\"><path d=\"%s\"/></svg>",
        mark_css(m), paths[m]);
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

// What the cursor shows of a setting, as the value of a title attribute.
static void put_title(const struct tune_view *v, int i) {
    const struct tune_setting *s = &v->t->settings[i];
    const struct tune_figures *g = &v->figures[i];
    char a[TEXT_UNIT_BYTES], q[QUANTILE_TEXT_BYTES];
    enum tune_mark m = tune_mark_of(v->t, i);
    FILE *f = v->f;
    html_put_text(f, s->name);
    if (m == MARK_CHOSEN)
        fputs("&#10;the choice", f);
    if (isfinite(g->tokens_per_s))
        fprintf(f, "&#10;%.0f tokens/s, %.4g ms per sample", g->tokens_per_s, g->ms_per_sample);
    if (s->n > 0) {
        fputs("&#10;", f);
        html_put_text(f, quantile_text(q, &g->q[TUNE_P50]));
        fputs("&#10;", f);
        html_put_text(f, quantile_text(q, &g->q[TUNE_P99]));
    }
    if (isfinite(s->predicted_s))
        fprintf(f, "&#10;predicted %s a step", text_duration(a, s->predicted_s));
    if (s->need_bytes > 0)
        fprintf(f, "&#10;needs %s", text_bytes(a, s->need_bytes));
    if (isfinite(g->joules_per_token))
        fprintf(f, "&#10;%.3g J per token", g->joules_per_token);
    if (s->reason[0] && m != MARK_CHOSEN) {
        fprintf(f, "&#10;%s: ", tune_outcome_name(s->outcome));
        html_put_text(f, s->reason);
    }
}

static void put_at(const struct tune_view *v, const struct svg_plot *p, int i, double x, double y) {
    enum tune_mark m = tune_mark_of(v->t, i);
    if (!isfinite(x) || !isfinite(y))
        return;
    fprintf(v->f, "<span class=\"mark %s\" style=\"left:%.2f%%;top:%.2f%%\" title=\"", mark_css(m),
            100 * svg_place(&p->x, x), 100 * (1 - svg_place(&p->y, y)));
    put_title(v, i);
    fputs("\">", v->f);
    tune_put_mark(v->f, m);
    fputs("</span>\n", v->f);
}

static void put_key(const struct tune_view *v, const bool shown[MARK_COUNT]) {
    fputs("<div class=\"key marks\">", v->f);
    for (int m = 0; m < MARK_COUNT; m++)
        if (shown[m]) {
            fputs("<span>", v->f);
            tune_put_mark(v->f, (enum tune_mark)m);
            fprintf(v->f, "%s</span>", tune_mark_name((enum tune_mark)m));
        }
    fputs("</div>", v->f);
}

static void begin_figure(const struct tune_view *v, const struct svg_plot *p) {
    fprintf(v->f, "<figure id=\"%s\"><figcaption>%s <small>%s</small></figcaption>", p->id,
            p->title, p->unit);
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

// With a margin, so that no mark lies on the edge; logarithmic when values are far apart.
static struct svg_scale scale_of(const struct extent *e) {
    if (!(e->hi >= e->lo))
        return svg_scale_exact(0, 1);
    double pad = e->hi > e->lo ? 0.06 * (e->hi - e->lo) : 0.1 * fabs(e->hi);
    if (e->lo > 0 && e->hi / e->lo > 20)
        return svg_scale_log(e->lo / 1.1, e->hi * 1.1);
    return svg_scale_round(e->lo - pad > 0 ? e->lo - pad : 0, e->hi + pad, 5);
}

static const struct extent NOTHING = {INFINITY, -INFINITY};

// ---------------------------------------------------------------- the frontier

static double predicted_speed(const struct tune_setting *s) {
    const struct knobs *k = &s->knobs;
    return (double)(k->batch_micro * k->batch_accum * k->seq) / s->predicted_s;
}

// The percentile on the axis: p99, unless the only budget is of another.
static int axis_percentile(const struct tune_request *r) {
    if (r->limit_ns[TUNE_P99] || !tune_has_limits(r))
        return TUNE_P99;
    return r->limit_ns[TUNE_P95] ? TUNE_P95 : TUNE_P50;
}

void tune_put_note(const struct tune_view *v, const struct svg_plot *p, double x, double height,
                   const char *text) {
    double left = svg_place(&p->x, x);
    fprintf(v->f, "<span class=\"note%s\" style=\"left:%.2f%%;top:%.2f%%\">",
            left > 0.5 ? " before" : "", 100 * left, 100 * (1 - height));
    html_put_text(v->f, text);
    fputs("</span>", v->f);
}

static void put_limit(const struct tune_view *v, const struct svg_plot *p, double x) {
    if (x > p->x.lo && x < p->x.hi)
        svg_vertical(v->f, p, "limit", x, 0, 1);
}

// Rows of a plot in which the note of a limit may stand, and how many marks lie there, on the note's side of it.
enum { NOTE_ROWS = 8 };
static const double NOTE_WIDTH = 0.45; // of a plot, at a phone's width; and a mark is not a point:
static const double MARK_WIDTH = 0.03;

struct crowd {
    int at[NOTE_ROWS];
};

static void crowd_add(struct crowd *c, const struct svg_plot *p, double limit, double x, double y) {
    if (!isfinite(x) || !isfinite(y))
        return;
    const double from = svg_place(&p->x, limit), to = svg_place(&p->x, x);
    const double beside = from > 0.5 ? from - to : to - from;
    const int row = (int)(NOTE_ROWS * svg_place(&p->y, y));
    if (beside > -MARK_WIDTH && beside < NOTE_WIDTH)
        c->at[row < 0 ? 0 : row < NOTE_ROWS ? row : NOTE_ROWS - 1]++;
}

// In the lowest of the rows with the fewest marks.
static void note_limit(const struct tune_view *v, const struct svg_plot *p, const struct crowd *c,
                       double x, const char *text) {
    int row = 0;
    for (int i = 1; i < NOTE_ROWS; i++)
        row = c->at[i] < c->at[row] ? i : row;
    if (x > p->x.lo && x < p->x.hi)
        tune_put_note(v, p, x, (row + 0.75) / NOTE_ROWS, text); // it hangs from there
}

// A plot of what was measured: tokens/s over another figure.
struct against {
    const char *id, *title, *x_unit, *describe;
    double (*figure)(const struct tune_view *v, int i); // NaN: it has none
    double unit, limit;                                 // of the axis; 0: no budget
    char budget[32];                                    // the limit in words
};

static bool has_figure(const struct tune_view *v, const struct against *a, int i) {
    return v->t->settings[i].n > 0 && isfinite(a->figure(v, i));
}

static void put_against(const struct tune_view *v, const struct against *a) {
    const struct tune *t = v->t;
    const double limit = a->limit / a->unit;
    char note[64];
    struct extent x = NOTHING, y = NOTHING;
    bool shown[MARK_COUNT] = {false};
    struct crowd crowd = {{0}};
    for (int i = 0; i < t->n; i++)
        if (has_figure(v, a, i)) {
            extend(&x, a->figure(v, i) / a->unit);
            extend(&y, v->figures[i].tokens_per_s);
            shown[tune_mark_of(t, i)] = true;
        }
    if (limit > 0 && limit < 2 * x.hi)
        extend(&x, limit);
    struct svg_plot p = {.id = a->id,
                         .title = a->title,
                         .unit = "tokens/s; up and left is better",
                         .x_unit = a->x_unit,
                         .describe = a->describe,
                         .x = scale_of(&x),
                         .y = scale_of(&y)};
    begin_figure(v, &p);
    put_key(v, shown);
    svg_begin(v->f, &p);
    put_limit(v, &p, limit);
    svg_labels(v->f);
    snprintf(note, sizeof note, "budget %s", a->budget);
    for (int i = 0; i < t->n; i++)
        if (has_figure(v, a, i))
            crowd_add(&crowd, &p, limit, a->figure(v, i) / a->unit, v->figures[i].tokens_per_s);
    note_limit(v, &p, &crowd, limit, note);
    for (int order = MARK_COUNT - 1; order >= 0; order--) // the choice lies on top
        for (int i = 0; i < t->n; i++)
            if (has_figure(v, a, i) && (int)tune_mark_of(t, i) == order)
                put_at(v, &p, i, a->figure(v, i) / a->unit, v->figures[i].tokens_per_s);
    svg_end(v->f, &p);
    if (limit > 0 && limit >= p.x.hi)
        fprintf(v->f, "<p class=\"small\">The budget of %s lies to the right of the plot.</p>",
                a->budget);
    fputs("</figure>\n", v->f);
}

static double latency_of(const struct tune_view *v, int i) {
    return 1e-9 * v->figures[i].q[axis_percentile(&v->t->request)].value;
}

static void put_latency(const struct tune_view *v) {
    const int at = axis_percentile(&v->t->request);
    char unit[64], text[TEXT_UNIT_BYTES];
    struct against a = {.id = "frontier",
                        .title = "Speed against latency",
                        .x_unit = unit,
                        .describe = "Each measured setting: tokens per second over step latency. "
                                    "Arrow keys go from one to the next.",
                        .figure = latency_of,
                        .unit = 1e-3,
                        .limit = 1e-9 * (double)v->t->request.limit_ns[at]};
    snprintf(unit, sizeof unit, "p%.0f of a step, ms", 100 * tune_percentile_of(at));
    snprintf(a.budget, sizeof a.budget, "%s", text_duration(text, a.limit));
    put_against(v, &a);
}

static double energy_of(const struct tune_view *v, int i) {
    return v->figures[i].joules_per_token;
}

// A small model's token takes microjoules.
static void put_energy(const struct tune_view *v) {
    char axis[64];
    double most = 0;
    struct against a = {.id = "energy",
                        .title = "Speed against energy",
                        .x_unit = axis,
                        .describe = "Each metered setting: tokens per second over joules per "
                                    "token. Arrow keys go from one to the next.",
                        .figure = energy_of,
                        .limit = v->t->request.joules_per_token};
    for (int i = 0; i < v->t->n; i++)
        if (has_figure(v, &a, i))
            most = fmax(most, energy_of(v, i));
    a.unit = most < 1e-4 ? 1e-6 : most < 0.1 ? 1e-3 : 1;
    const char *unit = most < 1e-4 ? "\xc2\xb5J" : most < 0.1 ? "mJ" : "J";
    snprintf(axis, sizeof axis, "energy, %s per token", unit);
    snprintf(a.budget, sizeof a.budget, "%.3g %s per token", a.limit / a.unit, unit);
    put_against(v, &a);
}

// Settings that do not fit have no speed but a predicted one: the least of them that need the least.
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

static double speed_or_predicted(const struct tune_view *v, int i) {
    const struct tune_setting *s = &v->t->settings[i];
    return s->n > 0 ? v->figures[i].tokens_per_s : predicted_speed(s);
}

static void put_memory_marks(const struct tune_view *v, const struct svg_plot *p, double unit,
                             double least) {
    for (int order = MARK_COUNT - 1; order >= 0; order--)
        for (int i = 0, drawn = 0; i < v->t->n; i++)
            if (is_drawn(v, i, least, &drawn) && (int)tune_mark_of(v->t, i) == order)
                put_at(v, p, i, (double)v->t->settings[i].need_bytes / unit,
                       speed_or_predicted(v, i));
}

static void put_memory_plot(const struct tune_view *v) {
    const struct tune *t = v->t;
    struct extent x = NOTHING, y = NOTHING;
    bool shown[MARK_COUNT] = {false}, predicted = false, whole;
    struct crowd crowd = {{0}};
    const uint64_t limit = tune_memory_limit(v, &whole);
    double least = INFINITY, have = (double)limit;
    int drawn = 0;
    char note[64], text[TEXT_UNIT_BYTES];
    for (int i = 0; i < t->n; i++)
        if (t->settings[i].need_bytes > 0 && t->settings[i].outcome == TUNE_REFUSED)
            least = fmin(least, (double)t->settings[i].need_bytes);
    for (int i = 0; i < t->n; i++)
        if (is_drawn(v, i, least, &drawn)) {
            extend(&x, (double)t->settings[i].need_bytes);
            extend(&y, speed_or_predicted(v, i));
            shown[tune_mark_of(t, i)] = true;
            predicted |= t->settings[i].n == 0;
        }
    if (have > 0 && have < 2.5 * x.hi)
        extend(&x, have);
    bool giga = x.hi >= 4.0 * (1 << 30);
    double unit = giga ? (double)(1 << 30) : (double)(1 << 20);
    x.lo /= unit, x.hi /= unit;
    struct svg_plot p = {.id = "memory-plot",
                         .title = "Speed against memory",
                         .unit = predicted ? "tokens/s; triangles: predicted, would not fit"
                                           : "tokens/s; up and left is better",
                         .x_unit = giga ? "memory it needs, GiB" : "memory it needs, MiB",
                         .describe = "Each measured setting: tokens per second over the memory it "
                                     "needs. Arrow keys go from one to the next.",
                         .x = scale_of(&x),
                         .y = scale_of(&y)};
    begin_figure(v, &p);
    put_key(v, shown);
    svg_begin(v->f, &p);
    put_limit(v, &p, have / unit);
    svg_labels(v->f);
    snprintf(note, sizeof note, "%s %s", whole ? "budget" : "may need", text_bytes(text, limit));
    drawn = 0;
    for (int i = 0; i < t->n; i++)
        if (is_drawn(v, i, least, &drawn))
            crowd_add(&crowd, &p, have / unit, (double)t->settings[i].need_bytes / unit,
                      speed_or_predicted(v, i));
    note_limit(v, &p, &crowd, have / unit, note);
    put_memory_marks(v, &p, unit, least);
    svg_end(v->f, &p);
    if (have > 0 && have / unit >= p.x.hi)
        fprintf(v->f, "<p class=\"small\">%s, %s, lies to the right of the plot.</p>",
                whole ? "The budget" : "What it may need", text_bytes(text, limit));
    fputs("</figure>\n", v->f);
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
    fprintf(v->f,
            "<p class=\"small\">A setting is on the frontier when no other is at least as fast, as "
            "steady%s. Point at a mark, tap it, or use the arrow keys. Settings were measured at "
            "different times, most of them briefly; the choice rests on the finalists, which ran "
            "in turns.</p>\n<div class=\"pair\">",
            v->metered ? ", as lean and as sparing with energy" : " and as lean");
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

// Median of |predicted / measured - 1|; NaN without any.
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
    const struct tune *t = v->t;
    struct extent both = NOTHING;
    bool shown[MARK_COUNT] = {false};
    int n;
    double error = median_error(v, &n);
    if (n == 0) {
        fputs("<p class=\"small\">No setting has both figures.</p>\n", v->f);
        return;
    }
    for (int i = 0; i < t->n; i++)
        if (isfinite(t->settings[i].predicted_s / measured_s(v, i))) {
            extend(&both, 1e3 * t->settings[i].predicted_s);
            extend(&both, 1e3 * measured_s(v, i));
            shown[tune_mark_of(t, i)] = true;
        }
    struct svg_plot p = {.id = "predicted",
                         .title = "Step times",
                         .unit = "measured p50, ms; on the line: as predicted",
                         .x_unit = "predicted when it was planned, ms",
                         .describe = "Measured over predicted step time of each setting.",
                         .x = scale_of(&both),
                         .y = scale_of(&both)};
    const struct svg_point diagonal[2] = {{p.x.lo, p.x.lo}, {p.x.hi, p.x.hi}};
    fprintf(v->f,
            "<p>Half of the predictions were off by less than <b>%.1f&thinsp;%%</b> <small>(median "
            "error of %d settings)</small>.</p>\n",
            100 * error, n);
    fputs("<div class=\"pair\">", v->f);
    begin_figure(v, &p);
    put_key(v, shown);
    svg_begin(v->f, &p);
    svg_line(v->f, &p, "diagonal", diagonal, 2);
    svg_labels(v->f);
    for (int order = MARK_COUNT - 1; order >= 0; order--)
        for (int i = 0; i < t->n; i++)
            if (t->settings[i].n > 0 && (int)tune_mark_of(t, i) == order)
                put_at(v, &p, i, 1e3 * t->settings[i].predicted_s, 1e3 * measured_s(v, i));
    svg_end(v->f, &p);
    fputs("</figure></div>\n", v->f);
}

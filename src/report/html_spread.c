// html_spread.c - the distribution of step times: a histogram and the cumulative distribution
// (CDF), with the same time axis; see html.h.
#include "report/html.h"
#include "report/html_figures.h"
#include "report/html_text.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

// The axis ends where the slowest steps are rare. Otherwise one stall would squeeze all other steps
// into one bar. put_beyond says how many steps lie past the end.
static double upper_edge(const struct run_log *g) {
    double p95 = 1e-6 * g->p95.value, p99 = 1e-6 * g->p99.value, most = 1e-6 * g->spread.max;
    return fmin(most, fmax(1.5 * p95, 1.1 * p99));
}

struct svg_scale html_duration_scale(const struct html_page *p) {
    double lo = INFINITY, hi = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct run_log *g = &p->runs[i].log;
        if (g->p50.n == 0)
            continue;
        lo = fmin(lo, 1e-6 * g->spread.min);
        hi = fmax(hi, upper_edge(g));
    }
    return hi > 0 ? svg_scale_round(lo, hi, 6) : svg_scale_exact(0, 1);
}

void html_bins_fill(struct html_bins *b, const struct run_read *r, const struct svg_scale *x) {
    const struct samples *s = &r->log.step_ns;
    size_t n = samples_count(s);
    *b = (struct html_bins){.most = 0};
    for (int i = 0; i <= HTML_BINS; i++)
        b->edge[i] = x->lo + (x->hi - x->lo) * i / HTML_BINS;
    for (size_t i = 0; i < n; i++) {
        double ms = 1e-6 * s->values[i];
        b->most = fmax(b->most, ms);
        if (ms > x->hi) {
            b->beyond++;
            continue;
        }
        int bin = (int)(HTML_BINS * (ms - x->lo) / (x->hi - x->lo));
        b->share[bin < 0 ? 0 : bin < HTML_BINS ? bin : HTML_BINS - 1] += 1.0 / (double)n;
    }
}

// Points are 1 % apart up to 90 %, then closer, because the tail matters most.
void html_cdf_fill(struct svg_point out[HTML_CDF_POINTS], struct run_read *r) {
    double p[HTML_CDF_POINTS];
    struct quantile q[HTML_CDF_POINTS];
    for (int i = 0; i < HTML_CDF_POINTS; i++)
        p[i] = i <= 90 ? 0.01 * i : fmin(0.90 + 0.10 * (i - 90) / (HTML_CDF_POINTS - 91), 1);
    samples_quantiles(&r->log.step_ns, 0, p, HTML_CDF_POINTS, q);
    for (int i = 0; i < HTML_CDF_POINTS; i++)
        out[i] = (struct svg_point){1e-6 * q[i].value, p[i]};
}

// ---------------------------------------------------------------- histogram

static double highest_share(const struct html_page *p, const struct svg_scale *x) {
    double most = 0;
    for (size_t i = 0; i < p->n; i++) {
        struct html_bins b;
        html_bins_fill(&b, &p->runs[i], x);
        for (int k = 0; k < HTML_BINS; k++)
            most = fmax(most, b.share[k]);
    }
    return most > 0 ? most : 1;
}

// A single run gets bars, several runs get outlines.
static void put_bins(struct html_page *p, const struct svg_plot *plot, size_t i) {
    struct html_bins b;
    char css[HTML_COLOUR_BYTES];
    html_bins_fill(&b, &p->runs[i], &plot->x);
    if (p->n > 1)
        svg_outline(p->f, plot, html_colour(css, i), b.share, HTML_BINS);
    for (int k = 0; p->n == 1 && k < HTML_BINS; k++)
        if (b.share[k] > 0)
            svg_bar(p->f, plot, "bin c0", b.edge[k], b.edge[k + 1], b.share[k]);
}

// Where the note on a percentile of a single run stands: beside the bar that holds it, to the left
// near the right edge of the plot as svg_note does. `under` is the highest bar below the note.
struct note_place {
    double at, under;
};

static struct note_place note_place(const struct html_bins *b, const struct svg_scale *x,
                                    double ms) {
    const double width = 0.27 * (x->hi - x->lo); // of the longest note
    const bool before = svg_place(x, ms) > SVG_NOTE_BEFORE;
    struct note_place n = {.at = ms};
    for (int k = 0; k < HTML_BINS; k++)
        if (b->edge[k] <= ms && ms < b->edge[k + 1] && b->share[k] > 0)
            n.at = before ? b->edge[k] : b->edge[k + 1];
    if ((svg_place(x, n.at) > SVG_NOTE_BEFORE) != before)
        n.at = ms; // beyond the edge of its bar it would change sides
    for (int k = 0; k < HTML_BINS; k++)
        if (before ? b->edge[k] < n.at && b->edge[k + 1] > n.at - width
                   : b->edge[k + 1] > n.at && b->edge[k] < n.at + width)
            n.under = fmax(n.under, b->share[k]);
    return n;
}

// Notes stand at three heights, because p95 and p99 are often close.
enum { PERCENTILES = 3 };
static const double NOTE_TOP[PERCENTILES] = {1, 0.89, 0.78}, NOTE_HEIGHT = 0.11;

// The percentiles of a single run: lines in the drawing, or later the notes on them.
static void put_quantiles(struct html_page *p, const struct svg_plot *plot, bool notes) {
    const struct run_log *g = &p->runs[0].log;
    const struct quantile *q[PERCENTILES] = {&g->p50, &g->p95, &g->p99};
    struct html_bins b;
    html_bins_fill(&b, &p->runs[0], &plot->x);
    for (int k = 0; p->n == 1 && k < PERCENTILES; k++) {
        char text[64], ms[TEXT_UNIT_BYTES];
        if (q[k]->n == 0)
            continue;
        snprintf(text, sizeof text, "p%.0f %s", 100 * q[k]->p,
                 text_duration(ms, 1e-9 * q[k]->value));
        if (notes)
            svg_note(p->f, plot, note_place(&b, &plot->x, 1e-6 * q[k]->value).at,
                     plot->y.hi * NOTE_TOP[k], text);
        else
            svg_vertical(p->f, plot, "quantile", 1e-6 * q[k]->value, 0, 1);
    }
}

// The upper end of the shares: so high that no note lies on a bar.
static double top_share(const struct html_page *p, const struct svg_scale *x) {
    double top = highest_share(p, x);
    const struct run_log *g = &p->runs[0].log;
    const double ms[PERCENTILES] = {1e-6 * g->p50.value, 1e-6 * g->p95.value, 1e-6 * g->p99.value};
    struct html_bins b;
    if (p->n > 1 || g->p50.n == 0)
        return top;
    html_bins_fill(&b, &p->runs[0], x);
    for (int k = 0; k < PERCENTILES; k++)
        top = fmax(top, note_place(&b, x, ms[k]).under / (NOTE_TOP[k] - NOTE_HEIGHT));
    return fmin(top, 1);
}

static void put_beyond(struct html_page *p, const struct svg_scale *x) {
    for (size_t i = 0; i < p->n; i++) {
        struct html_bins b;
        char a[TEXT_UNIT_BYTES], c[TEXT_UNIT_BYTES];
        html_bins_fill(&b, &p->runs[i], x);
        if (b.beyond == 0)
            continue;
        fputs("<p class=\"small\">", p->f);
        if (p->n > 1)
            html_put_between(p->f, "", p->runs[i].name, ": ");
        fprintf(p->f, "%llu step%s took longer than %s, the slowest %s.</p>",
                (unsigned long long)b.beyond, b.beyond == 1 ? "" : "s",
                text_duration(a, 1e-3 * x->hi), text_duration(c, 1e-3 * b.most));
    }
}

static void put_histogram(struct html_page *p, const struct svg_scale *x) {
    const struct run_log *g = &p->runs[0].log;
    char over[FIGURE_TEXT_BYTES];
    struct svg_plot plot = {.id = "histogram",
                            .title = "Step times",
                            .unit = "share of steps",
                            .x_unit = "ms",
                            .describe = "Histogram of step times.",
                            .x = *x,
                            .y = svg_scale_round(0, top_share(p, x), 4),
                            .percent = true};
    svg_caption(p->f, &plot, "");
    html_put_legend(p);
    svg_begin(p->f, &plot);
    for (size_t i = 0; i < p->n; i++)
        put_bins(p, &plot, i);
    put_quantiles(p, &plot, false);
    svg_labels(p->f);
    put_quantiles(p, &plot, true);
    svg_end(p->f, &plot);
    if (p->n == 1)
        fprintf(p->f, "<p class=\"small\">n=%zu, %s; %llu warm-up step%s left out.</p>", g->p50.n,
                figure_steps(over, g), (unsigned long long)g->warmup,
                g->warmup == 1 ? " is" : "s are");
    else
        fputs("<p class=\"small\">Warm-up steps are left out.</p>", p->f);
    put_beyond(p, x);
    fputs("</figure>\n", p->f);
}

// ---------------------------------------------------------------- CDF

// Names the dots of a single run. The curve lies to the left and above, so the notes are below.
static void put_cdf_notes(struct html_page *p, const struct svg_plot *plot) {
    const struct run_log *g = &p->runs[0].log;
    const struct quantile *q[PERCENTILES] = {&g->p50, &g->p95, &g->p99};
    static const double at[PERCENTILES] = {0.5, 0.8, 0.9};
    for (int k = 0; g->p50.n > 0 && k < PERCENTILES; k++) {
        char text[16];
        snprintf(text, sizeof text, "p%.0f", 100 * q[k]->p);
        if (1e-6 * q[k]->value <= plot->x.hi)
            svg_note(p->f, plot, 1e-6 * q[k]->value, at[k], text);
    }
}

static void put_cdf(struct html_page *p, const struct svg_scale *x) {
    char css[HTML_COLOUR_BYTES], full[48];
    struct svg_plot plot = {.id = "cdf",
                            .title = "Share of steps that took at most this time",
                            .unit = "dots: p50, p95, p99",
                            .x_unit = "ms",
                            .describe = "Cumulative distribution of step times.",
                            .x = *x,
                            .y = svg_scale_exact(0, 1),
                            .percent = true};
    svg_caption(p->f, &plot, "");
    html_put_legend(p);
    svg_begin(p->f, &plot);
    for (size_t i = 0; i < p->n; i++) {
        struct svg_point v[HTML_CDF_POINTS];
        const struct run_log *g = &p->runs[i].log;
        const struct svg_point dots[3] = {
            {1e-6 * g->p50.value, 0.50}, {1e-6 * g->p95.value, 0.95}, {1e-6 * g->p99.value, 0.99}};
        if (g->p50.n == 0)
            continue;
        html_cdf_fill(v, &p->runs[i]);
        snprintf(full, sizeof full, "%s strong", html_colour(css, i));
        svg_line(p->f, &plot, full, v, HTML_CDF_POINTS);
        for (int k = 0; k < 3; k++)
            if (dots[k].x <= x->hi)
                svg_dots(p->f, &plot, css, &dots[k], 1);
    }
    svg_labels(p->f);
    if (p->n == 1)
        put_cdf_notes(p, &plot);
    svg_end(p->f, &plot);
    fputs("</figure>\n", p->f);
}

void html_put_distribution(struct html_page *p) {
    struct svg_scale x = html_duration_scale(p);
    char sentence[RUN_SENTENCE_BYTES];
    fputs("<div class=\"pair\">", p->f);
    put_histogram(p, &x);
    put_cdf(p, &x);
    fputs("</div>", p->f);
    for (size_t i = 1; i < p->n; i++)
        html_put_between(p->f, "<p class=\"small\">",
                         figure_compare(sentence, &p->runs[0], &p->runs[i]), "</p>");
}

// html_data.c - the numbers behind the curves, as JSON for the page's script; see html.h.
//
// Each plot has the range of its x axis and its series. A series has the index of its array of x
// and the value of each point. Where a point stands for several steps, the series also has the
// least and the greatest value of each point. The series of a run share their arrays of x.
#include "report/html.h"
#include "report/html_text.h"

#include <math.h>

// Digits of a value: one part in ten thousand is less than a pixel. Steps are written exactly.
enum { VALUE_DIGITS = 5, SHARE_DIGITS = 4, STEP_DIGITS = 17 };

// An element of an array.
static void put_number(FILE *f, bool first, int digits, double x) {
    fputs(first ? "" : ",", f);
    if (!isfinite(x))
        fputs("null", f);
    else
        fprintf(f, "%.*g", digits, x);
}

static void put_scale(FILE *f, const char *id, const struct svg_scale *x, const char *unit) {
    fprintf(f, "\"%s\":{\"lo\":%.17g,\"hi\":%.17g,\"unit\":\"%s\",\"series\":[", id, x->lo, x->hi,
            unit);
}

struct series {
    const char *label; // a literal
    const char *css;   // colour beside the name
    size_t run;
    int x; // index of the array of x
};

static void begin_series(struct html_page *p, const struct series *s, bool first) {
    fputs(first ? "\n{\"name\":" : ",\n{\"name\":", p->f);
    html_put_json_string(p->f, p->n > 1 ? p->runs[s->run].name : "");
    fprintf(p->f, ",\"label\":\"%s\",\"css\":\"%s\",\"x\":%d,\"v\":[", s->label, s->css, s->x);
}

// ---------------------------------------------------------------- from columns

// What to take from a column. The last two are of validations, the others of steps.
enum pick {
    PICK_MEAN,
    PICK_LEAST,
    PICK_MOST,
    PICK_LR,
    PICK_SMOOTH,
    PICK_STEP,
    PICK_EVAL,
    PICK_EVAL_STEP
};

static double picked(const struct column *c, enum column_value which, enum pick pick) {
    const struct column_stat *s = &c->value[which];
    switch (pick) {
    case PICK_LR:
        return c->lr;
    case PICK_SMOOTH:
        return c->smooth;
    case PICK_STEP:
        return (double)c->from;
    case PICK_EVAL:
        return c->eval_loss;
    case PICK_EVAL_STEP:
        return (double)c->eval_step;
    case PICK_LEAST:
        return s->n > 0 ? s->least : NAN;
    case PICK_MOST:
        return s->n > 0 ? s->most : NAN;
    default:
        return column_mean(s);
    }
}

static void put_values(FILE *f, const struct columns *c, enum column_value which, enum pick pick) {
    bool first = true, is_step = pick == PICK_STEP || pick == PICK_EVAL_STEP;
    for (int i = 0; i < c->n; i++) {
        const struct column *at = &c->column[i];
        if (pick >= PICK_EVAL ? at->eval_step == 0 : at->steps == 0)
            continue;
        put_number(f, first, is_step ? STEP_DIGITS : VALUE_DIGITS, picked(at, which, pick));
        first = false;
    }
}

static void put_column_series(struct html_page *p, const struct series *s, enum column_value which,
                              enum pick pick, bool first) {
    const struct columns *c = p->runs[s->run].log.columns;
    begin_series(p, s, first);
    put_values(p->f, c, which, pick);
    if (pick == PICK_MEAN && c->width > 1) {
        fputs("],\"lo\":[", p->f);
        put_values(p->f, c, which, PICK_LEAST);
        fputs("],\"hi\":[", p->f);
        put_values(p->f, c, which, PICK_MOST);
    }
    fputs("]}", p->f);
}

static void put_plot(struct html_page *p, const char *id, const char *unit, enum column_value which,
                     enum pick pick, const char *label) {
    struct svg_scale x = html_step_scale(p);
    char css[HTML_COLOUR_BYTES];
    put_scale(p->f, id, &x, unit);
    for (size_t i = 0; i < p->n; i++) {
        struct series s = {label, html_colour(css, i), i, (int)(2 * i)};
        if (which == COLUMN_LOSS) {
            s.label = "smoothed";
            put_column_series(p, &s, which, PICK_SMOOTH, i == 0);
            s.label = label;
            if (html_draws_raw(p))
                put_column_series(p, &s, which, pick, false);
            s = (struct series){"validation", p->n == 1 ? "c1" : css, i, (int)(2 * i + 1)};
            put_column_series(p, &s, which, PICK_EVAL, false);
            continue;
        }
        put_column_series(p, &s, which, pick, i == 0);
        if (which == COLUMN_STEP_MS && html_draws_raw(p)) {
            s = (struct series){"data wait", p->n == 1 ? "c1" : css, i, (int)(2 * i)};
            put_column_series(p, &s, COLUMN_WAIT_MS, PICK_MEAN, false);
        }
    }
    fputs("]},\n", p->f);
}

// ---------------------------------------------------------------- distributions

static void put_distribution(struct html_page *p) {
    struct svg_scale x = html_duration_scale(p);
    char css[HTML_COLOUR_BYTES];
    put_scale(p->f, "histogram", &x, "%");
    for (size_t i = 0; i < p->n; i++) {
        struct html_bins b;
        struct series s = {"steps", html_colour(css, i), i, (int)(2 * p->n)};
        html_bins_fill(&b, &p->runs[i], &x);
        begin_series(p, &s, i == 0);
        for (int k = 0; k < HTML_BINS; k++)
            put_number(p->f, k == 0, SHARE_DIGITS, 100 * b.share[k]);
        fputs("]}", p->f);
    }
    fputs("]},\n", p->f);
    put_scale(p->f, "cdf", &x, "%");
    for (size_t i = 0, seen = 0; i < p->n; i++) {
        struct svg_point v[HTML_CDF_POINTS];
        struct series s = {"steps this fast or faster", html_colour(css, i), i,
                           (int)(2 * p->n + 1 + i)};
        if (p->runs[i].log.p50.n == 0)
            continue;
        html_cdf_fill(v, &p->runs[i]);
        begin_series(p, &s, seen++ == 0);
        for (int k = 0; k < HTML_CDF_POINTS; k++)
            put_number(p->f, k == 0, SHARE_DIGITS, 100 * v[k].y);
        fputs("]}", p->f);
    }
    fputs("]}},\n", p->f);
}

// The arrays of x. Run i has array 2i, the first step of each column, and 2i + 1, its validations.
// The edges of the histogram follow, then the times of each run's CDF.
static void put_arrays(struct html_page *p) {
    struct svg_scale x = html_duration_scale(p);
    fputs("\"x\":[", p->f);
    for (size_t i = 0; i < p->n; i++) {
        fputc('[', p->f);
        put_values(p->f, p->runs[i].log.columns, COLUMN_LOSS, PICK_STEP);
        fputs("],[", p->f);
        put_values(p->f, p->runs[i].log.columns, COLUMN_LOSS, PICK_EVAL_STEP);
        fputs("],\n", p->f);
    }
    fputc('[', p->f);
    for (int k = 0; k < HTML_BINS; k++)
        put_number(p->f, k == 0, VALUE_DIGITS, x.lo + (x.hi - x.lo) * k / HTML_BINS);
    fputc(']', p->f);
    for (size_t i = 0; i < p->n; i++) {
        struct svg_point v[HTML_CDF_POINTS];
        fputs(",\n[", p->f);
        html_cdf_fill(v, &p->runs[i]);
        for (int k = 0; k < HTML_CDF_POINTS && p->runs[i].log.p50.n > 0; k++)
            put_number(p->f, k == 0, VALUE_DIGITS, v[k].x);
        fputc(']', p->f);
    }
    fputs("],\n\"width\":[", p->f); // steps per point, for each array of x
    for (size_t i = 0; i < p->n; i++)
        fprintf(p->f, "%s%lld,1", i ? "," : "", (long long)p->runs[i].log.columns->width);
    fprintf(p->f, ",%.5g]", (x.hi - x.lo) / HTML_BINS);
}

void html_put_data(struct html_page *p) {
    fputs("<script type=\"application/json\" id=\"data\">{\"plots\":{\n", p->f);
    put_plot(p, "loss", "", COLUMN_LOSS, PICK_MEAN, "loss");
    put_plot(p, "lr", "", COLUMN_GRAD_NORM, PICK_LR, "learning rate");
    put_plot(p, "norm", "", COLUMN_GRAD_NORM, PICK_MEAN, "gradient norm");
    put_plot(p, "times", "ms", COLUMN_STEP_MS, PICK_MEAN, "step");
    put_distribution(p);
    put_arrays(p);
    fputs("}</script>\n", p->f);
}

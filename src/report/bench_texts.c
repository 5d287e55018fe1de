// bench_texts.c - see bench_texts.h.
#include "report/bench_texts.h"

#include "report/texts_print.h"

struct figures {
    double prefill, prefill_spread, decode, decode_spread;
    struct quantile first, p50, p95, p99;
};

static struct figures figures_of(const struct texts_bench *b, struct texts_row *r) {
    static const double p[] = {0.5, 0.95, 0.99};
    struct quantile q[3];
    struct figures f = {.prefill = texts_bench_median(r->prefill, b->rounds),
                        .prefill_spread = texts_bench_spread(r->prefill, b->rounds),
                        .decode = texts_bench_median(r->decode, b->rounds),
                        .decode_spread = texts_bench_spread(r->decode, b->rounds)};
    samples_quantiles(&r->first, 0, p, 1, &f.first);
    samples_quantiles(&r->between, 0, p, 3, q);
    f.p50 = q[0], f.p95 = q[1], f.p99 = q[2];
    return f;
}

static void put_quantile(struct table *t, const struct quantile *q) {
    table_percentile(t, q->value / 1e6, quantile_has_bound(q));
}

static const char *precision_of(const struct texts_row *r, char out[KNOB_VALUE_BYTES]) {
    return knobs_value(&r->knobs, KNOB_precision, out);
}

// The columns behind the knobs of the grid.
#define POINT(X)                                                                                   \
    X("prompt", "prompt_tokens", RIGHT, table_i64(t, r->prompt))                                   \
    X("output", "output_tokens", RIGHT, table_i64(t, r->output))                                   \
    X("batch", "batch", RIGHT, table_i64(t, r->batch))
#define FIGURES(X)                                                                                 \
    X("threads", "threads", RIGHT, table_opt(t, r->threads))                                       \
    X("precision", "precision", LEFT, table_text(t, precision_of(r, text)))                        \
    X("prefill tok/s", "prefill_tokens_per_s", RIGHT, table_real(t, g.prefill, 1))                 \
    X("spread", "prefill_spread", RIGHT, table_share(t, g.prefill_spread, 1))                      \
    X("decode tok/s", "decode_tokens_per_s", RIGHT, table_real(t, g.decode, 1))                    \
    X("spread", "decode_spread", RIGHT, table_share(t, g.decode_spread, 1))                        \
    X("first ms", "first_token_ms_p50", RIGHT, table_real(t, g.first.value / 1e6, 2))              \
    X("between p50 ms", "between_ms_p50", RIGHT, put_quantile(t, &g.p50))                          \
    X("p95", "between_ms_p95", RIGHT, put_quantile(t, &g.p95))                                     \
    X("p99", "between_ms_p99", RIGHT, put_quantile(t, &g.p99))                                     \
    X("n", "n", RIGHT, table_i64(t, (int64_t)g.p50.n))                                             \
    X("cache", "cache_bytes", RIGHT, table_bytes(t, r->cache_bytes))                               \
    X("planned", "memory_planned_bytes", RIGHT, table_bytes(t, r->planned_bytes))                  \
    X("measured", "memory_measured_bytes", RIGHT, table_bytes(t, r->measured_bytes))               \
    X(NULL, "reason", LEFT, table_text(t, r->reason))

static const struct table_column points[] = {POINT(TABLE_COLUMN)};
static const struct table_column figures[] = {FIGURES(TABLE_COLUMN)};
enum {
    N_POINTS = sizeof points / sizeof *points,
    N_FIGURES = sizeof figures / sizeof *figures,
    COLUMNS_MOST = GRID_AXES_MOST + 1 + N_POINTS + N_FIGURES
};

static bool has_model(const struct grid *g) {
    for (int i = 0; i < g->n_axes; i++)
        if (g->axes[i].knob == KNOB_model)
            return true;
    return false;
}

static int list_columns(const struct grid *g, struct table_column out[COLUMNS_MOST]) {
    int n = 0;
    if (!has_model(g))
        out[n++] = (struct table_column){"model", "model", TABLE_LEFT};
    for (int i = 0; i < g->n_axes; i++) {
        const char *name = knob_info(g->axes[i].knob)->name;
        // Threads and precision have columns of their own, with what was used.
        const bool twice = g->axes[i].knob == KNOB_threads || g->axes[i].knob == KNOB_precision;
        const bool shown = (g->axes[i].n > 1 && !twice) || g->axes[i].knob == KNOB_model;
        out[n++] = (struct table_column){shown ? name : NULL, twice ? NULL : name,
                                         g->axes[i].knob == KNOB_model ? TABLE_LEFT : TABLE_RIGHT};
    }
    for (int i = 0; i < N_POINTS; i++)
        out[n++] = points[i];
    for (int i = 0; i < N_FIGURES; i++)
        out[n++] = figures[i];
    return n;
}

static void put_row(const struct texts_bench *b, struct texts_row *r, struct table *t) {
    const struct grid *grid = b->grid;
    char text[KNOB_VALUE_BYTES];
    table_row(t);
    if (!has_model(grid))
        table_text(t, r->knobs.model);
    for (int a = 0; a < grid->n_axes; a++)
        table_text(t, grid_value(grid, r->config, a));
    POINT(TABLE_CELL)
    if (r->rc != 0)
        return;
    const struct figures g = figures_of(b, r);
    FIGURES(TABLE_CELL)
}

static int print_table(const struct texts_bench *b, enum table_format format, FILE *f,
                       struct err *e) {
    struct table_column columns[COLUMNS_MOST];
    struct table t;
    const int n = list_columns(b->grid, columns);
    bool unbounded = false;
    table_init(&t, columns, n, format,
               (struct table_style){.unknown = "-", .digits = 9, .whole = true});
    for (size_t i = 0; i < b->n; i++) {
        struct texts_row *r = &b->rows[i];
        put_row(b, r, &t);
        if (r->rc != 0 && t.people)
            table_rest(&t, "not measured: %s", r->reason);
        else if (r->rc != 0)
            table_set(&t, i, n - 1, r->reason);
        else
            unbounded |= samples_count(&r->between) < sample_bound_needs(0.99);
    }
    const int rc = table_print(&t, f, e);
    if (t.people)
        fprintf(f,
                "\nprefill: all prompts of the batch; decode: all texts of the batch; first: from "
                "the prompts to a text's first token; medians of %d rounds\n",
                b->rounds);
    if (unbounded && t.people)
        fprintf(f, "? too few tokens for a 95 %% bound: p95 needs %zu, p99 needs %zu\n",
                sample_bound_needs(0.95), sample_bound_needs(0.99));
    table_free(&t);
    return rc;
}

// ---------------------------------------------------------------- JSON

static void put_rates(const char *key, const double *rates, double median, double spread,
                      int rounds, struct json_writer *w) {
    json_member_object(w, key);
    json_member_double(w, "median", median);
    json_member_double(w, "spread", spread);
    json_member_array(w, "rounds");
    for (int i = 0; i < rounds; i++)
        json_put_double(w, rates[i]);
    json_put_array_end(w);
    json_put_object_end(w);
}

static void put_figures(const struct texts_bench *b, struct texts_row *r, struct json_writer *w) {
    const struct figures g = figures_of(b, r);
    json_member_i64(w, "threads", r->threads);
    put_rates("prefill_tokens_per_s", r->prefill, g.prefill, g.prefill_spread, b->rounds, w);
    put_rates("decode_tokens_per_s", r->decode, g.decode, g.decode_spread, b->rounds, w);
    texts_put_quantile(&g.first, "first_token", w);
    texts_put_quantile(&g.p50, "between_p50", w);
    texts_put_quantile(&g.p95, "between_p95", w);
    texts_put_quantile(&g.p99, "between_p99", w);
    json_member_i64(w, "cache_bytes", (int64_t)r->cache_bytes);
    json_member_i64(w, "memory_planned_bytes", (int64_t)r->planned_bytes);
    table_member_opt(w, "memory_measured_bytes", (int64_t)r->measured_bytes);
}

static void put_object(const void *arg, size_t i, struct json_writer *w) {
    const struct texts_bench *b = arg;
    struct texts_row *r = &b->rows[i];
    char text[KNOB_VALUE_BYTES];
    json_put_object_begin(w);
    json_member_object(w, "knobs");
    for (int a = 0; a < b->grid->n_axes; a++)
        json_member_string(w, knob_info(b->grid->axes[a].knob)->name,
                           grid_value(b->grid, r->config, a));
    json_put_object_end(w);
    json_member_string(w, "model", r->knobs.model);
    json_member_string(w, "precision", precision_of(r, text));
    json_member_i64(w, "prompt_tokens", r->prompt);
    json_member_i64(w, "output_tokens", r->output);
    json_member_i64(w, "batch", r->batch);
    json_member_bool(w, "measured", r->rc == 0);
    if (r->rc != 0) {
        json_member_string(w, "code", err_name(r->rc));
        json_member_string(w, "reason", r->reason);
    } else {
        put_figures(b, r, w);
    }
    json_put_object_end(w);
}

void bench_texts_put_json(const struct texts_bench *b, struct json_writer *w) {
    table_put_array(w, b->n, put_object, b);
}

int bench_texts_print(const struct texts_bench *b, enum table_format format, FILE *f,
                      struct err *e) {
    return format == TABLE_JSON || format == TABLE_JSONL
               ? table_print_json(format, b->n, put_object, b, f, e)
               : print_table(b, format, f, e);
}

// bench_print.c - see bench_print.h.
#include "report/bench_print.h"

#include <math.h>

static void put_quantile(struct table *t, const struct quantile *q) {
    table_percentile(t, 1e-6 * q->value, quantile_has_bound(q));
}

static void put_joules(struct table *t, const struct run_metrics *m) {
    if (isnan(m->joules_per_token) && t->people)
        table_text(t, m->energy.meter[0] ? "too short" : "no meter");
    else
        table_significant(t, m->joules_per_token, 3);
}

// The columns after the knobs of the grid.
#define FIGURES(X)                                                                                 \
    X("tokens/s", "tokens_per_s", RIGHT, table_real(t, m->tokens_per_s, 0))                        \
    X(NULL, "trained_tokens_per_s", RIGHT, table_real(t, m->trained_tokens_per_s, 0))              \
    X("step p50 ms", "step_ms_p50", RIGHT, table_real(t, m->step_p50.value / 1e6, 2))              \
    X("p95", "step_ms_p95", RIGHT, put_quantile(t, &m->step_p95))                                  \
    X("p99", "step_ms_p99", RIGHT, put_quantile(t, &m->step_p99))                                  \
    X("n", "n", RIGHT, table_i64(t, (int64_t)m->step_p50.n))                                       \
    X("ms/sample", "ms_per_sample", RIGHT, table_real(t, m->ms_per_sample, 2))                     \
    X("predicted", "memory_predicted_bytes", RIGHT, table_bytes(t, r->sum.memory_predicted_bytes)) \
    X("measured", "memory_measured_bytes", RIGHT, table_bytes(t, r->sum.memory_measured_bytes))    \
    X("loss", "loss", RIGHT, table_real(t, r->loss_last, 4))                                       \
    X("busy", "utilization", RIGHT, table_share(t, r->utilization, 0))                             \
    X(NULL, "mfu", RIGHT, table_real(t, m->mfu, 2))                                                \
    X(NULL, "hfu", RIGHT, table_real(t, m->hfu, 2))                                                \
    X("spread", "spread", RIGHT, table_share(t, r->spread, 1))                                     \
    X("J/token", "joules_per_token", RIGHT, put_joules(t, m))                                      \
    X(NULL, "reason", LEFT, table_text(t, r->reason))

static const struct table_column figures[] = {FIGURES(TABLE_COLUMN)};
enum { N_FIGURES = sizeof figures / sizeof *figures };

static void put_figures(struct table *t, const struct bench_row *r) {
    const struct run_metrics *m = &r->metrics;
    FIGURES(TABLE_CELL)
}

// A knob that does not vary is a column for programs only.
static int list_columns(const struct grid *g, struct table_column out[GRID_AXES_MOST + N_FIGURES]) {
    int n = 0;
    for (; n < g->n_axes; n++) {
        const char *name = knob_info(g->axes[n].knob)->name;
        out[n] = (struct table_column){g->axes[n].n > 1 ? name : NULL, name, TABLE_RIGHT};
    }
    for (int i = 0; i < N_FIGURES; i++)
        out[n++] = figures[i];
    return n;
}

static int print_table(const struct bench *b, enum table_format format, FILE *f, struct err *e) {
    struct table_column columns[GRID_AXES_MOST + N_FIGURES];
    struct table t;
    bool unbounded = false;
    int n = list_columns(b->grid, columns);
    table_init(&t, columns, n, format,
               (struct table_style){.unknown = "-", .digits = 9, .whole = true});
    for (size_t i = 0; i < b->grid->n; i++) {
        const struct bench_row *r = &b->rows[i];
        table_row(&t);
        for (int a = 0; a < b->grid->n_axes; a++)
            table_text(&t, grid_value(b->grid, i, a));
        if (r->n_rounds > 0)
            put_figures(&t, r);
        else if (t.people)
            table_rest(&t, "not measured: %s", r->reason);
        else
            table_set(&t, i, n - 1, r->reason);
        unbounded = unbounded || (r->n_rounds > 0 && !quantile_has_bound(&r->metrics.step_p99));
    }
    int rc = table_print(&t, f, e);
    if (t.people)
        fprintf(
            f, "\nms/sample: latency of a sample, which is its micro-batch's time (by step p50)\n");
    if (unbounded && t.people)
        fprintf(f,
                "? too few steps for a 95 %% bound: p95 needs %zu, p99 needs %zu (n = steps x "
                "rounds)\n",
                sample_bound_needs(0.95), sample_bound_needs(0.99));
    table_free(&t);
    return rc;
}

// ---------------------------------------------------------------- JSON

void bench_put_ratio(const struct ratio *r, const char *key, struct json_writer *w) {
    json_member_object(w, key);
    json_member_double(w, "median", r->median);
    json_member_double(w, "low", r->low);
    json_member_double(w, "high", r->high);
    json_put_object_end(w);
}

void bench_put_members(const struct bench_row *row, struct json_writer *w) {
    json_member_bool(w, "measured", row->n_rounds > 0);
    if (row->rc != 0) {
        json_member_string(w, "code", err_name(row->rc));
        json_member_string(w, "reason", row->reason);
    }
    if (row->n_rounds > 0) {
        metrics_put_members(&row->metrics, w);
        json_member_double(w, "spread", row->spread);
        json_member_double(w, "others_share", others_share(&row->sum.others));
        apart_put_member(&row->sum.cpus, w);
        json_member_array(w, "rounds");
        for (int r = 0; r < row->n_rounds; r++) {
            json_put_object_begin(w);
            json_member_double(w, "tokens_per_s", row->rounds[r].tokens_per_s);
            json_member_double(w, "step_ms_p50", row->rounds[r].step_p50_ms);
            json_put_object_end(w);
        }
        json_put_array_end(w);
    }
}

static void put_row(const void *arg, size_t i, struct json_writer *w) {
    const struct bench *b = arg;
    json_put_object_begin(w);
    json_member_object(w, "knobs"); // of the grid only; "config" next to the rows has all
    for (int a = 0; a < b->grid->n_axes; a++)
        json_member_string(w, knob_info(b->grid->axes[a].knob)->name, grid_value(b->grid, i, a));
    json_put_object_end(w);
    bench_put_members(&b->rows[i], w);
    json_put_object_end(w);
}

void bench_put_json(const struct bench *b, struct json_writer *w) {
    table_put_array(w, b->grid->n, put_row, b);
}

int bench_print(const struct bench *b, enum table_format format, FILE *f, struct err *e) {
    return format == TABLE_JSON || format == TABLE_JSONL
               ? table_print_json(format, b->grid->n, put_row, b, f, e)
               : print_table(b, format, f, e);
}

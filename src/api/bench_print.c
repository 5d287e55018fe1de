// bench_print.c - rows of a benchmark as Markdown, CSV, JSON and JSON lines, from one table of
// columns.
#include "api/bench.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CELL_BYTES = 96 };

// A column: heading for people, heading for CSV, the cell of a row both ways. Raw cells are plain
// numbers in the unit of the heading; an empty cell is "not known". Without a title: CSV only.
struct column {
    const char *title, *raw_title;
    void (*put)(const struct bench_row *row, bool raw, char out[CELL_BYTES]);
};

static void put_number(char out[CELL_BYTES], bool raw, const char *format, double x) {
    if (isnan(x))
        snprintf(out, CELL_BYTES, "%s", raw ? "" : "-");
    else if (raw)
        snprintf(out, CELL_BYTES, "%.9g", x);
    else {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(out, CELL_BYTES, format, x);
#pragma GCC diagnostic pop
    }
}

static void put_speed(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    put_number(out, raw, "%.0f", r->metrics.tokens_per_s);
}
static void put_trained(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    put_number(out, raw, "%.0f", r->metrics.trained_tokens_per_s);
}
static void put_p50(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    put_number(out, raw, "%.2f", 1e-6 * r->metrics.step_p50.value);
}
// A percentile that n cannot bound is marked: its value is one that was seen, no more.
static void put_quantile(const struct quantile *q, bool raw, char out[CELL_BYTES]) {
    put_number(out, raw, quantile_has_bound(q) ? "%.2f" : "%.2f?", 1e-6 * q->value);
}
static void put_p95(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    put_quantile(&r->metrics.step_p95, raw, out);
}
static void put_p99(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    put_quantile(&r->metrics.step_p99, raw, out);
}
static void put_n(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    (void)raw;
    snprintf(out, CELL_BYTES, "%zu", r->metrics.step_p50.n);
}
static void put_sample(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    put_number(out, raw, "%.2f", r->metrics.ms_per_sample);
}
static void put_bytes(uint64_t bytes, bool raw, char out[CELL_BYTES]) {
    char text[TEXT_UNIT_BYTES];
    if (raw)
        snprintf(out, CELL_BYTES, bytes ? "%llu" : "", (unsigned long long)bytes);
    else
        snprintf(out, CELL_BYTES, "%s", bytes ? text_bytes(text, bytes) : "-");
}
static void put_predicted(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    put_bytes(r->sum.memory_predicted_bytes, raw, out);
}
static void put_measured(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    put_bytes(r->sum.memory_measured_bytes, raw, out);
}
static void put_loss(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    put_number(out, raw, "%.4f", r->loss_last);
}
static void put_busy(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    put_number(out, raw, "%.0f %%", raw ? r->utilization : 100 * r->utilization);
}
static void put_mfu(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    put_number(out, raw, "%.2f", r->metrics.mfu);
}
static void put_hfu(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    put_number(out, raw, "%.2f", r->metrics.hfu);
}
static void put_spread(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    put_number(out, raw, "%.1f %%", raw ? r->spread : 100 * r->spread);
}

static void put_joules(const struct bench_row *r, bool raw, char out[CELL_BYTES]) {
    if (isnan(r->metrics.joules_per_token) && !raw)
        snprintf(out, CELL_BYTES, r->metrics.energy.meter[0] ? "too short" : "no meter");
    else
        put_number(out, raw, "%.3g", r->metrics.joules_per_token);
}

static const struct column columns[] = {
    {"tokens/s", "tokens_per_s", put_speed},
    {NULL, "trained_tokens_per_s", put_trained},
    {"step p50 ms", "step_ms_p50", put_p50},
    {"p95", "step_ms_p95", put_p95},
    {"p99", "step_ms_p99", put_p99},
    {"n", "n", put_n},
    {"ms/sample", "ms_per_sample", put_sample},
    {"predicted", "memory_predicted_bytes", put_predicted},
    {"measured", "memory_measured_bytes", put_measured},
    {"loss", "loss", put_loss},
    {"busy", "utilization", put_busy},
    {NULL, "mfu", put_mfu},
    {NULL, "hfu", put_hfu},
    {"spread", "spread", put_spread},
    {"J/token", "joules_per_token", put_joules},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

static bool varies(const struct grid *g, int axis) {
    return g->axes[axis].n > 1;
}

// Markdown cannot hold a bar or a line break inside a cell.
void bench_put_markdown(const char *reason, FILE *f) {
    for (; *reason; reason++)
        fputc(*reason == '|' || *reason == '\n' ? ' ' : *reason, f);
}

// ---------------------------------------------------------------- Markdown

typedef char cell[CELL_BYTES];

static void print_markdown(const struct bench *b, FILE *f) {
    const struct grid *g = b->grid;
    cell(*cells)[N_COLUMNS] = calloc(g->n, sizeof *cells);
    int width[N_COLUMNS], axis_width[GRID_AXES_MOST];
    for (int c = 0; c < N_COLUMNS; c++)
        width[c] = columns[c].title ? (int)strlen(columns[c].title) : 0;
    for (size_t i = 0; cells && i < g->n; i++)
        for (int c = 0; b->rows[i].n_rounds > 0 && c < N_COLUMNS; c++) {
            columns[c].put(&b->rows[i], false, cells[i][c]);
            int w = (int)strlen(cells[i][c]);
            width[c] = w > width[c] ? w : width[c];
        }
    for (int a = 0; a < g->n_axes; a++) {
        axis_width[a] = (int)strlen(knob_info(g->axes[a].knob)->name);
        for (size_t v = 0; v < g->axes[a].n; v++) {
            int w = (int)strlen(g->axes[a].values[v]);
            axis_width[a] = w > axis_width[a] ? w : axis_width[a];
        }
    }

    for (int a = 0; a < g->n_axes; a++)
        if (varies(g, a))
            fprintf(f, "| %*s ", axis_width[a], knob_info(g->axes[a].knob)->name);
    for (int c = 0; c < N_COLUMNS; c++)
        if (columns[c].title)
            fprintf(f, "| %*s ", width[c], columns[c].title);
    fprintf(f, "|\n");
    static const char dashes[] = "----------------------------------------------------------------";
    for (int a = 0; a < g->n_axes; a++)
        if (varies(g, a))
            fprintf(f, "|%.*s:", axis_width[a] + 1, dashes);
    for (int c = 0; c < N_COLUMNS; c++)
        if (columns[c].title)
            fprintf(f, "|%.*s:", width[c] + 1, dashes);
    fprintf(f, "|\n");
    for (size_t i = 0; cells && i < g->n; i++) {
        for (int a = 0; a < g->n_axes; a++)
            if (varies(g, a))
                fprintf(f, "| %*s ", axis_width[a], grid_value(g, i, a));
        if (b->rows[i].n_rounds == 0) {
            fprintf(f, "| not measured: ");
            bench_put_markdown(b->rows[i].reason, f);
            fprintf(f, " |\n");
            continue;
        }
        for (int c = 0; c < N_COLUMNS; c++)
            if (columns[c].title)
                fprintf(f, "| %*s ", width[c], cells[i][c]);
        fprintf(f, "|\n");
    }
    bool unbounded = false;
    for (size_t i = 0; i < g->n; i++)
        unbounded = unbounded ||
                    (b->rows[i].n_rounds > 0 && !quantile_has_bound(&b->rows[i].metrics.step_p99));
    if (unbounded)
        fprintf(f,
                "\n? too few steps for a 95 %% bound: p95 needs %zu, p99 needs %zu (n = steps x "
                "rounds)\n",
                sample_bound_needs(0.95), sample_bound_needs(0.99));
    free(cells);
}

// ---------------------------------------------------------------- CSV

void bench_put_csv(const char *text, FILE *f) {
    if (!strpbrk(text, ",\"\n")) {
        fputs(text, f);
        return;
    }
    fputc('"', f);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', f);
        fputc(*text, f);
    }
    fputc('"', f);
}

static void print_csv(const struct bench *b, FILE *f) {
    const struct grid *g = b->grid;
    for (int a = 0; a < g->n_axes; a++)
        fprintf(f, "%s,", knob_info(g->axes[a].knob)->name);
    for (int c = 0; c < N_COLUMNS; c++)
        fprintf(f, "%s,", columns[c].raw_title);
    fprintf(f, "reason\n");
    for (size_t i = 0; i < g->n; i++) {
        for (int a = 0; a < g->n_axes; a++) {
            bench_put_csv(grid_value(g, i, a), f);
            fputc(',', f);
        }
        for (int c = 0; c < N_COLUMNS; c++) {
            char text[CELL_BYTES] = "";
            if (b->rows[i].n_rounds > 0)
                columns[c].put(&b->rows[i], true, text);
            bench_put_csv(text, f);
            fputc(',', f);
        }
        bench_put_csv(b->rows[i].reason, f);
        fputc('\n', f);
    }
}

// ---------------------------------------------------------------- JSON

static void put_row(const struct bench *b, size_t i, struct json_writer *w) {
    const struct bench_row *row = &b->rows[i];
    json_put_object_begin(w);
    json_put_key(w, "knobs"); // the grid's; the rest is in "config" beside the rows
    json_put_object_begin(w);
    for (int a = 0; a < b->grid->n_axes; a++)
        json_member_string(w, knob_info(b->grid->axes[a].knob)->name, grid_value(b->grid, i, a));
    json_put_object_end(w);
    bench_put_members(row, w);
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
        json_put_key(w, "rounds");
        json_put_array_begin(w);
        for (int r = 0; r < row->n_rounds; r++) {
            json_put_object_begin(w);
            json_member_double(w, "tokens_per_s", row->rounds[r].tokens_per_s);
            json_member_double(w, "step_ms_p50", row->rounds[r].step_p50_ms);
            json_put_object_end(w);
        }
        json_put_array_end(w);
    }
}

void bench_put_json(const struct bench *b, struct json_writer *w) {
    json_put_array_begin(w);
    for (size_t i = 0; i < b->grid->n; i++)
        put_row(b, i, w);
    json_put_array_end(w);
}

int bench_print(const struct bench *b, enum haggle_format format, FILE *f, struct err *e) {
    struct json_writer w;
    switch (format) {
    case HAGGLE_CSV:
        print_csv(b, f);
        break;
    case HAGGLE_JSON:
        json_writer_to_file(&w, f, 2);
        bench_put_json(b, &w);
        TRY(json_writer_finish(&w, e));
        fputc('\n', f);
        break;
    case HAGGLE_JSONL:
        for (size_t i = 0; i < b->grid->n; i++) {
            json_writer_to_file(&w, f, 0);
            put_row(b, i, &w);
            TRY(json_writer_finish(&w, e));
            fputc('\n', f);
        }
        break;
    default:
        print_markdown(b, f);
    }
    return ferror(f) ? err_set(e, ERR_IO, "the table could not be written") : 0;
}

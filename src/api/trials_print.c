// trials_print.c - tunings and trials as Markdown, CSV and JSON. CSV and JSON have every column of the
// store, by its name; the table for people has what they compare.
#include "api/trials.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CELL_BYTES = 96 };

const char *trials_time(char out[TRIALS_TIME_BYTES], double at) {
    time_t seconds = (time_t)at;
    struct tm t;
    out[0] = '\0';
    // Numbers of a file: years that have four digits.
    if (at > 0 && at < 2e11 && localtime_r(&seconds, &t))
        strftime(out, TRIALS_TIME_BYTES, "%Y-%m-%d %H:%M", &t);
    return out;
}

const char *trials_state(const struct store_tuning *t) {
    return t->state == TUNING_RUNNING && !t->held ? "interrupted" : store_state_name(t->state);
}

// ---------------------------------------------------------------- columns

static const struct table_column tuning_columns[] = {
    {"tuning", false}, {"started", true}, {"goal", true},      {"budgets", true}, {"model", true},
    {"state", true},   {"trials", false}, {"measured", false}, {"chosen", false},
};
static const struct table_column tuning_raw[] = {
    {"tuning", false}, {"started_at", false}, {"ended_at", false}, {"goal", true},
    {"budgets", true}, {"key", true},         {"model", true},     {"state", true},
    {"trials", false}, {"measured", false},   {"chosen", false},   {"verdict", true},
};

enum people { // columns of trial_columns
    COLUMN_TRIAL,
    COLUMN_TUNING,
    COLUMN_STAGE,
    COLUMN_KNOBS,
    COLUMN_SPEED,
    COLUMN_P50,
    COLUMN_P95,
    COLUMN_P99,
    COLUMN_N,
    COLUMN_SAMPLE,
    COLUMN_FORETOLD,
    COLUMN_PREDICTED,
    COLUMN_MEASURED,
    COLUMN_LOSS,
    COLUMN_BUSY,
    COLUMN_JOULES,
    COLUMN_OUTCOME,
    N_PEOPLE
};
static const struct table_column trial_columns[N_PEOPLE] = {
    {"trial", false},    {"tuning", false},    {"stage", true},         {"knobs", true},
    {"tokens/s", false}, {"p50 ms", false},    {"p95", false},          {"p99", false},
    {"n", false},        {"ms/sample", false}, {"predicted ms", false}, {"planned", false},
    {"measured", false}, {"loss", false},      {"busy", false},         {"J/token", false},
    {"outcome", true},
};
static const struct table_column trial_raw[] = {{"trial", false},
#define X(kind, type, name) {#name, false},
                                                STORE_TRIAL_COLUMNS(X)
#undef X
};
enum { N_RAW = sizeof trial_raw / sizeof *trial_raw };

void trials_rows_init(struct trials_rows *r, enum trials_kind kind, bool table, bool raw) {
    *r = (struct trials_rows){.has_table = table, .raw = raw};
    if (kind == TRIALS_TUNINGS && raw)
        table_init(&r->table, tuning_raw, sizeof tuning_raw / sizeof *tuning_raw);
    else if (kind == TRIALS_TUNINGS)
        table_init(&r->table, tuning_columns, sizeof tuning_columns / sizeof *tuning_columns);
    else
        table_init(&r->table, raw ? trial_raw : trial_columns, raw ? N_RAW : N_PEOPLE);
}

void trials_rows_free(struct trials_rows *r) {
    table_free(&r->table);
}

// ---------------------------------------------------------------- cells

static void put(struct trials_rows *r, int column, const char *text) {
    r->failed = !table_put(&r->table, column, text) || r->failed;
}

static void put_i64(struct trials_rows *r, int column, int64_t x) {
    char text[CELL_BYTES];
    snprintf(text, sizeof text, "%lld", (long long)x);
    put(r, column, text);
}

static void put_opt(struct trials_rows *r, int column, int64_t x) {
    if (x != 0)
        put_i64(r, column, x);
}

static void put_raw(struct trials_rows *r, int column, double x) {
    char text[CELL_BYTES];
    snprintf(text, sizeof text, "%.12g", x);
    if (isfinite(x))
        put(r, column, text);
}

static void put_decimals(struct trials_rows *r, int column, double x, int decimals,
                         const char *after) {
    char text[CELL_BYTES];
    if (!isfinite(x))
        return;
    if (fabs(x) < 1e12) // of a file that is no one's: 300 digits would be a column of their own
        snprintf(text, sizeof text, "%.*f%s", decimals, x, after);
    else
        snprintf(text, sizeof text, "%.3g%s", x, after);
    put(r, column, text);
}

static void put_bytes(struct trials_rows *r, int column, int64_t bytes) {
    char text[TEXT_UNIT_BYTES];
    if (bytes > 0)
        put(r, column, text_bytes(text, (uint64_t)bytes));
}

// ---------------------------------------------------------------- tunings

static void put_tuning_cells(struct trials_rows *r, const struct store_tuning *t) {
    char time[TRIALS_TIME_BYTES];
    int c = 0;
    put_i64(r, c++, t->id);
    if (r->raw) {
        put_raw(r, c++, t->started_at);
        put_raw(r, c++, t->ended_at);
    } else {
        put(r, c++, trials_time(time, t->started_at));
    }
    put(r, c++, t->goal);
    put(r, c++, t->budgets);
    if (r->raw)
        put(r, c++, t->key);
    put(r, c++, t->model);
    put(r, c++, trials_state(t));
    put_i64(r, c++, t->trials);
    put_i64(r, c++, t->measured);
    put_opt(r, c++, t->chosen);
    if (r->raw)
        put(r, c++, t->verdict);
}

static void member_opt(struct json_writer *w, const char *key, int64_t x) {
    json_put_key(w, key);
    if (x == 0)
        json_put_null(w);
    else
        json_put_i64(w, x);
}

void trials_put_tuning(struct json_writer *w, const struct store_tuning *t) {
    json_member_i64(w, "tuning", t->id);
    json_member_double(w, "started_at", t->started_at);
    json_member_double(w, "ended_at", t->ended_at);
    json_member_string(w, "goal", t->goal);
    json_member_string(w, "budgets", t->budgets); // JSON, as it was written
    json_member_string(w, "key", t->key);
    json_member_string(w, "model", t->model);
    json_member_string(w, "recipe", t->recipe);
    json_member_string(w, "state", trials_state(t));
    json_member_i64(w, "trials", t->trials);
    json_member_i64(w, "measured", t->measured);
    member_opt(w, "chosen", t->chosen);
    json_member_string(w, "verdict", t->verdict);
}

// ---------------------------------------------------------------- trials for people

// A percentile that n cannot bound is marked: its value is one that was seen, no more.
static void put_quantile(struct trials_rows *r, int column, double value, double upper) {
    bool bounded = isfinite(upper);
    put_decimals(r, column, value, 2, bounded ? "" : "?");
    r->unbounded = r->unbounded || (isfinite(value) && !bounded);
}

static void put_outcome(struct trials_rows *r, const struct store_trial *t) {
    char text[CELL_BYTES + ERR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s%s%s", store_outcome_name(t->outcome), t->reason[0] ? ": " : "",
             t->reason);
    put(r, COLUMN_OUTCOME, text);
}

static void put_trial_cells(struct trials_rows *r, const struct store_trial *t) {
    put_i64(r, COLUMN_TRIAL, t->id);
    put_opt(r, COLUMN_TUNING, t->tuning);
    put(r, COLUMN_STAGE, t->stage);
    put_decimals(r, COLUMN_SPEED, t->tokens_per_s, 0, "");
    put_decimals(r, COLUMN_P50, t->step_p50_ms, 2, "");
    put_quantile(r, COLUMN_P95, t->step_p95_ms, t->step_p95_upper95_ms);
    put_quantile(r, COLUMN_P99, t->step_p99_ms, t->step_p99_upper95_ms);
    put_opt(r, COLUMN_N, t->steps);
    put_decimals(r, COLUMN_SAMPLE, t->ms_per_sample, 2, "");
    put_decimals(r, COLUMN_FORETOLD, t->predicted_step_ms, 2, "");
    put_bytes(r, COLUMN_PREDICTED, t->memory_predicted_bytes);
    put_bytes(r, COLUMN_MEASURED, t->memory_measured_bytes);
    put_decimals(r, COLUMN_LOSS, t->loss_last, 4, "");
    put_decimals(r, COLUMN_BUSY, 100 * t->utilization, 0, " %");
    put_decimals(r, COLUMN_JOULES, t->joules_per_token, 4, "");
    put_outcome(r, t);
    const char **knobs =
        region_grow(&r->table.region, r->knobs, r->table.n - 1, &r->knobs_capacity, sizeof *knobs);
    const char *copy = region_copy(&r->table.region, t->knobs);
    if (!knobs || !copy) {
        r->failed = true;
        return;
    }
    r->knobs = knobs;
    r->knobs[r->table.n - 1] = copy;
}

// The line that begins at `at`: its bytes, and where the next one is.
static size_t line_at(const char *at, const char **next) {
    const char *end = strchrnul(at, '\n');
    *next = *end ? end + 1 : end;
    return (size_t)(end - at);
}

static bool has_line(const char *text, const char *line, size_t bytes) {
    for (const char *at = text, *next; *at; at = next)
        if (line_at(at, &next) == bytes && memcmp(at, line, bytes) == 0)
            return true;
    return false;
}

// The lines that all rows have: some of the first row's.
static char *common_lines(const struct trials_rows *r) {
    char *out = malloc(strlen(r->knobs[0]) + 1), *to = out;
    for (const char *at = r->knobs[0], *next; out && *at; at = next) {
        size_t bytes = line_at(at, &next);
        bool common = bytes > 0;
        for (size_t i = 1; i < r->table.n && common; i++)
            common = has_line(r->knobs[i], at, bytes);
        if (common && to > out)
            *to++ = '\n';
        if (common)
            to = mempcpy(to, at, bytes);
    }
    if (out)
        *to = '\0';
    return out;
}

// The knob that a line sets; -1 for one that this version does not have.
static int knob_of(const char *line, size_t bytes) {
    char name[64];
    const char *equals = memchr(line, '=', bytes);
    if (!equals || (size_t)(equals - line) >= sizeof name)
        return -1;
    memcpy(name, line, (size_t)(equals - line));
    name[equals - line] = '\0';
    return knob_find(name);
}

// What distinguishes a row: the knobs that not all have alike, in their usual order, with the default
// where others set one and it does not; then lines that this version has no knob for.
static char *own_lines(const char *knobs, const char *common, const bool varies[KNOB_COUNT]) {
    char *out = NULL, value[KNOB_VALUE_BYTES];
    const char *lines[KNOB_COUNT] = {NULL}, *rest;
    size_t n;
    FILE *f = open_memstream(&out, &n);
    if (!f)
        return NULL;
    for (const char *at = knobs, *next; *at; at = next) {
        int id = knob_of(at, line_at(at, &next));
        if (id >= 0)
            lines[id] = at;
    }
    for (int i = 0; i < KNOB_COUNT; i++)
        if (varies[i] && lines[i])
            fprintf(f, " %.*s", (int)line_at(lines[i], &rest), lines[i]);
        else if (varies[i])
            fprintf(f, " %s=%s", knob_info(i)->name, knob_default(i, value));
    for (const char *at = knobs, *next; *at; at = next) {
        size_t bytes = line_at(at, &next);
        if (knob_of(at, bytes) < 0 && !has_line(common, at, bytes))
            fprintf(f, " %.*s", (int)bytes, at);
    }
    if (fclose(f) == 0)
        return out;
    free(out);
    return NULL;
}

static void put_knobs(struct trials_rows *r, const char *common) {
    bool varies[KNOB_COUNT] = {false};
    for (size_t i = 0; i < r->table.n; i++)
        for (const char *at = r->knobs[i], *next; *at; at = next) {
            size_t bytes = line_at(at, &next);
            int id = knob_of(at, bytes);
            if (id >= 0 && !has_line(common, at, bytes))
                varies[id] = true;
        }
    for (size_t i = 0; i < r->table.n; i++) {
        char *own = own_lines(r->knobs[i], common, varies);
        r->failed =
            !own || !table_put_at(&r->table, i, COLUMN_KNOBS, own + (own[0] == ' ')) || r->failed;
        free(own);
    }
}

static void print_people(struct trials_rows *r, FILE *f) {
    if (r->knobs && r->table.n > 0) {
        char *common = r->table.n > 1 ? common_lines(r) : strdup("");
        if (common)
            put_knobs(r, common);
        if (common && common[0]) {
            fputs("all with ", f);
            table_print_text(common, f);
            fputs("\n\n", f);
        }
        r->failed = !common || r->failed;
        free(common);
    }
    table_print_markdown(&r->table, f);
    if (r->unbounded)
        fprintf(f, "\n? too few steps for a 95 %% bound: p95 needs %zu, p99 needs %zu\n",
                sample_bound_needs(0.95), sample_bound_needs(0.99));
}

void trials_print(struct trials_rows *r, FILE *f) {
    if (!r->has_table || r->failed)
        return;
    if (r->raw)
        table_print_csv(&r->table, f);
    else
        print_people(r, f);
}

// ---------------------------------------------------------------- trials for programs

static void put_split(struct json_writer *w, const struct store_split *s) {
    json_put_object_begin(w);
    for (int i = 0; i < TIME_COUNT; i++)
        json_member_double(w, time_part_name((enum time_part)i), s->ms[i]);
    json_put_object_end(w);
}

// name=value lines as an object; a line without a name is nobody's.
static void put_lines(struct json_writer *w, const char *text) {
    char name[64];
    json_put_object_begin(w);
    for (const char *at = text, *next; *at; at = next) {
        size_t bytes = line_at(at, &next);
        const char *equals = memchr(at, '=', bytes);
        if (!equals || (size_t)(equals - at) >= sizeof name)
            continue;
        memcpy(name, at, (size_t)(equals - at));
        name[equals - at] = '\0';
        json_put_key(w, name);
        json_put_string_n(w, equals + 1, bytes - (size_t)(equals + 1 - at));
    }
    json_put_object_end(w);
}

static void put_classes(struct json_writer *w, const struct store_classes *s) {
    json_put_object_begin(w);
    for (int i = 0; i < CLASS_COUNT; i++)
        json_member_i64(w, tensor_class_name((enum tensor_class)i), (int64_t)s->bytes[i]);
    json_put_object_end(w);
}

#define MEMBER_int(w, name, x)     json_member_i64(w, name, x)
#define MEMBER_opt(w, name, x)     member_opt(w, name, x)
#define MEMBER_real(w, name, x)    json_member_double(w, name, x)
#define MEMBER_text(w, name, x)    json_member_string(w, name, x)
#define MEMBER_lines(w, name, x)   (json_put_key(w, name), put_lines(w, x))
#define MEMBER_outcome(w, name, x) json_member_string(w, name, store_outcome_name(x))
#define MEMBER_split(w, name, x)   (json_put_key(w, name), put_split(w, &(x)))
#define MEMBER_classes(w, name, x) (json_put_key(w, name), put_classes(w, &(x)))

static void put_trial(struct json_writer *w, const struct store_trial *t) {
    json_put_object_begin(w);
    json_member_i64(w, "trial", t->id);
#define X(kind, type, name) MEMBER_##kind(w, #name, t->name);
    STORE_TRIAL_COLUMNS(X)
#undef X
    json_put_object_end(w);
}

// An object as one cell.
#define OBJECT_CELL(r, c, put_object, x)                                                           \
    do {                                                                                           \
        struct json_writer w_;                                                                     \
        json_writer_to_buffer(&w_, 0);                                                             \
        put_object(&w_, x);                                                                        \
        if (json_writer_finish(&w_, NULL) == 0)                                                    \
            put(r, c, w_.buffer);                                                                  \
        free(w_.buffer);                                                                           \
    } while (0)

#define CELL_int(r, c, x)     put_i64(r, c, x)
#define CELL_opt(r, c, x)     put_opt(r, c, x)
#define CELL_real(r, c, x)    put_raw(r, c, x)
#define CELL_text(r, c, x)    put(r, c, x)
#define CELL_lines(r, c, x)   put(r, c, x)
#define CELL_outcome(r, c, x) put(r, c, store_outcome_name(x))
#define CELL_split(r, c, x)   OBJECT_CELL(r, c, put_split, &(x))
#define CELL_classes(r, c, x) OBJECT_CELL(r, c, put_classes, &(x))

static void put_raw_cells(struct trials_rows *r, const struct store_trial *t) {
    int c = 0;
    put_i64(r, c, t->id);
#define X(kind, type, name)                                                                        \
    c++;                                                                                           \
    CELL_##kind(r, c, t->name);
    STORE_TRIAL_COLUMNS(X)
#undef X
}

// ---------------------------------------------------------------- rows as they come

// One line for each row, as its own object.
static void put_line(struct trials_rows *r, struct json_writer *w) {
    r->failed = json_writer_finish(w, NULL) != 0 || r->failed;
    fputc('\n', r->lines);
}

int trials_add_tuning(void *arg, const struct store_tuning *t) {
    struct trials_rows *r = arg;
    struct json_writer line;
    r->n++;
    if (r->has_table && (r->failed = !table_add_row(&r->table)) == false)
        put_tuning_cells(r, t);
    if (r->json) {
        json_put_object_begin(r->json);
        trials_put_tuning(r->json, t);
        json_put_object_end(r->json);
    }
    if (r->lines) {
        json_writer_to_file(&line, r->lines, 0);
        json_put_object_begin(&line);
        trials_put_tuning(&line, t);
        json_put_object_end(&line);
        put_line(r, &line);
    }
    return r->failed ? ERR_MEMORY : 0;
}

int trials_add_trial(void *arg, const struct store_trial *t) {
    struct trials_rows *r = arg;
    struct json_writer line;
    r->n++;
    if (r->has_table && (r->failed = !table_add_row(&r->table)) == false) {
        if (r->raw)
            put_raw_cells(r, t);
        else
            put_trial_cells(r, t);
    }
    if (r->json)
        put_trial(r->json, t);
    if (r->lines) {
        json_writer_to_file(&line, r->lines, 0);
        put_trial(&line, t);
        put_line(r, &line);
    }
    return r->failed ? ERR_MEMORY : 0;
}

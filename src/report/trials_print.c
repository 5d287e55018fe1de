// trials_print.c - tunings and trials as Markdown, CSV and JSON. CSV and JSON have every column of
// the store under its name. The table for people has the figures to compare.
#include "report/trials_print.h"

#include "base/sentences.h"
#include "base/text.h"
#include "measure/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TIME_BYTES = 32 };
static const char *time_text(char out[TIME_BYTES], double at) { // "2026-11-15 19:40"
    time_t seconds = (time_t)at;
    struct tm t;
    out[0] = '\0';
    // The number comes from a file: keep the year within four digits.
    if (at > 0 && at < 2e11 && localtime_r(&seconds, &t))
        strftime(out, TIME_BYTES, "%Y-%m-%d %H:%M", &t);
    return out;
}

// A running tuning whose process has died is "interrupted".
static const char *state_text(const struct store_tuning *t) {
    return t->state == TUNING_RUNNING && !t->held ? "interrupted" : store_state_name(t->state);
}

// ---------------------------------------------------------------- columns

#define TUNING_ROW(X)                                                                              \
    X("tuning", "tuning", RIGHT, table_i64(to, t->id))                                             \
    X("started", NULL, LEFT, table_text(to, time_text(time, t->started_at)))                       \
    X(NULL, "started_at", RIGHT, table_real(to, t->started_at, 0))                                 \
    X(NULL, "ended_at", RIGHT, table_real(to, t->ended_at, 0))                                     \
    X("goal", "goal", LEFT, table_text(to, t->goal))                                               \
    X("budgets", "budgets", LEFT, table_text(to, t->budgets))                                      \
    X(NULL, "key", LEFT, table_text(to, t->key))                                                   \
    X("model", "model", LEFT, table_text(to, t->model))                                            \
    X("state", "state", LEFT, table_text(to, state_text(t)))                                       \
    X("trials", "trials", RIGHT, table_i64(to, t->trials))                                         \
    X("measured", "measured", RIGHT, table_i64(to, t->measured))                                   \
    X("chosen", "chosen", RIGHT, table_opt(to, t->chosen))                                         \
    X(NULL, "verdict", LEFT, table_text(to, t->verdict))

static const struct table_column tuning_columns[] = {TUNING_ROW(TABLE_COLUMN)};

// The columns for people. Knobs are filled in last.
#define TRIAL_ROW(X)                                                                               \
    X("trial", NULL, RIGHT, table_i64(to, t->id))                                                  \
    X("tuning", NULL, RIGHT, table_opt(to, t->tuning))                                             \
    X("stage", NULL, LEFT, table_text(to, t->stage))                                               \
    X("knobs", NULL, LEFT, table_text(to, ""))                                                     \
    X("tokens/s", NULL, RIGHT, table_real(to, t->tokens_per_s, 0))                                 \
    X("p50 ms", NULL, RIGHT, table_real(to, t->step_p50_ms, 2))                                    \
    X("p95", NULL, RIGHT, put_quantile(r, t->step_p95_ms, t->step_p95_upper95_ms))                 \
    X("p99", NULL, RIGHT, put_quantile(r, t->step_p99_ms, t->step_p99_upper95_ms))                 \
    X("n", NULL, RIGHT, table_opt(to, t->steps))                                                   \
    X("ms/sample", NULL, RIGHT, table_real(to, t->ms_per_sample, 2))                               \
    X("predicted ms", NULL, RIGHT, table_real(to, t->predicted_step_ms, 2))                        \
    X("planned", NULL, RIGHT, put_bytes(to, t->memory_predicted_bytes))                            \
    X("measured", NULL, RIGHT, put_bytes(to, t->memory_measured_bytes))                            \
    X("loss", NULL, RIGHT, table_real(to, t->loss_last, 4))                                        \
    X("busy", NULL, RIGHT, table_share(to, t->utilization, 0))                                     \
    X("J/token", NULL, RIGHT, table_real(to, t->joules_per_token, 4))                              \
    X("outcome", NULL, LEFT, put_outcome(to, t))

static const struct table_column people_columns[] = {TRIAL_ROW(TABLE_COLUMN)};
enum { COLUMN_KNOBS = 3 };
static const struct table_column trial_columns[] = {{NULL, "trial", TABLE_RIGHT},
#define X(kind, type, name) {NULL, #name, TABLE_RIGHT},
                                                    STORE_TRIAL_COLUMNS(X)
#undef X
};

#define INIT(r, columns, format, style)                                                            \
    table_init(&(r)->table, columns, sizeof(columns) / sizeof *(columns), format, style)

void trials_rows_init(struct trials_rows *r, enum trials_kind kind, enum table_format format) {
    const struct table_style style = {.digits = 12};
    *r = (struct trials_rows){.has_table = format == TABLE_MARKDOWN || format == TABLE_CSV};
    if (kind == TRIALS_TUNINGS)
        INIT(r, tuning_columns, format, style);
    else if (format == TABLE_CSV)
        INIT(r, trial_columns, format, style);
    else
        INIT(r, people_columns, format, style);
}

void trials_rows_free(struct trials_rows *r) {
    table_free(&r->table);
}

// ---------------------------------------------------------------- tunings

static void put_tuning_cells(struct trials_rows *r, const void *row) {
    const struct store_tuning *t = row;
    struct table *to = &r->table;
    char time[TIME_BYTES];
    TUNING_ROW(TABLE_CELL)
}

static void put_tuning_members(struct json_writer *w, const struct store_tuning *t) {
    json_member_i64(w, "tuning", t->id);
    json_member_double(w, "started_at", t->started_at);
    json_member_double(w, "ended_at", t->ended_at);
    json_member_string(w, "goal", t->goal);
    json_member_string(w, "budgets", t->budgets); // JSON, as it was written
    json_member_string(w, "key", t->key);
    json_member_string(w, "model", t->model);
    json_member_string(w, "recipe", t->recipe);
    json_member_string(w, "state", state_text(t));
    json_member_i64(w, "trials", t->trials);
    json_member_i64(w, "measured", t->measured);
    table_member_opt(w, "chosen", t->chosen);
    sentences_put_json(t->verdict, "verdict", w);
}

static void put_tuning(struct json_writer *w, const void *row) {
    json_put_object_begin(w);
    put_tuning_members(w, row);
    json_put_object_end(w);
}

struct head {
    FILE *f;
    struct json_writer *w;
    bool found;
};

static void print_text(const char *before, const char *text, FILE *f) {
    fputs(before, f);
    table_print_text(text, f);
}

// A line for each sentence.
static void print_verdict(const char *lines, FILE *f) {
    const char *sentence;
    char text[SENTENCES_BYTES];
    size_t n;
    for (const char *title = "verdict   "; sentences_next(&lines, &sentence, &n);
         title = "          ") {
        snprintf(text, sizeof text, "%.*s", (int)n, sentence);
        print_text(title, text, f);
        fputc('\n', f);
    }
}

static int show_tuning(void *arg, const struct store_tuning *t) {
    struct head *h = arg;
    h->found = true;
    if (h->f) {
        char time[TIME_BYTES];
        fprintf(h->f, "tuning    %lld: ", (long long)t->id);
        print_text("", t->goal, h->f);
        print_text(" of ", t->model, h->f);
        print_text(", budgets ", t->budgets, h->f);
        fprintf(h->f, ", %s, begun %s\n", state_text(t), time_text(time, t->started_at));
        if (t->chosen)
            fprintf(h->f, "chosen    trial %lld\n", (long long)t->chosen);
        print_verdict(t->verdict, h->f);
    }
    if (h->w)
        put_tuning_members(h->w, t);
    return 0;
}

static int show_stage(void *arg, const struct store_stage *s) {
    struct head *h = arg;
    if (h->f) {
        fprintf(h->f, "stage     %lld ", (long long)s->ordinal + 1);
        print_text("", s->name, h->f);
        print_text(": ", s->decision, h->f);
        fputc('\n', h->f);
    }
    if (h->w) {
        json_put_object_begin(h->w);
        json_member_i64(h->w, "ordinal", s->ordinal);
        json_member_string(h->w, "name", s->name);
        json_member_string(h->w, "decision", s->decision);
        json_member_double(h->w, "started_at", s->started_at);
        json_member_double(h->w, "ended_at", s->ended_at);
        json_put_object_end(h->w);
    }
    return 0;
}

int trials_put_head(struct store *s, int64_t id, FILE *f, struct json_writer *w, struct err *e) {
    struct head h = {.f = f, .w = w};
    if (w)
        json_member_object(w, "tuning");
    TRY(store_tunings(s, id, NULL, show_tuning, &h, e));
    if (!h.found)
        return err_set(e, ERR_USAGE, "'%s' has no tuning %lld; 'haggle trials' lists them",
                       store_path(s), (long long)id);
    if (w)
        json_member_array(w, "stages");
    TRY(store_stages(s, id, show_stage, &h, e));
    if (w) {
        json_put_array_end(w);
        json_put_object_end(w);
    }
    if (f)
        fputc('\n', f);
    return 0;
}

// ---------------------------------------------------------------- trials for people

static void put_quantile(struct trials_rows *r, double value, double upper) {
    table_percentile(&r->table, value, isfinite(upper));
    r->unbounded = r->unbounded || (isfinite(value) && !isfinite(upper));
}

// Which knobs all rows share is known only after the last row, so knobs are kept until then.
static void keep_knobs(struct trials_rows *r, const char *text) {
    size_t at = r->table.n - 1;
    const char **knobs =
        region_grow(&r->table.region, r->knobs, at, &r->knobs_capacity, sizeof *knobs);
    const char *copy = region_copy(&r->table.region, text);
    r->failed = r->failed || !knobs || !copy;
    if (r->failed)
        return;
    r->knobs = knobs;
    r->knobs[at] = copy;
}

static void put_bytes(struct table *t, int64_t bytes) {
    table_bytes(t, bytes > 0 ? (uint64_t)bytes : 0);
}

static void put_outcome(struct table *to, const struct store_trial *t) {
    table_put(to, "%s%s%s", store_outcome_name(t->outcome), t->reason[0] ? ": " : "", t->reason);
}

static void put_people_cells(struct trials_rows *r, const struct store_trial *t) {
    struct table *to = &r->table;
    TRIAL_ROW(TABLE_CELL)
}

// Returns the bytes of the line at `at`; *next becomes the start of the next line.
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

// The lines that all rows have.
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

enum { NAME_BYTES = 64 };
// Copies the name in a line name=value. Returns the value; NULL for a line without a name.
static const char *split_line(const char *line, size_t bytes, char name[NAME_BYTES]) {
    const char *equals = memchr(line, '=', bytes);
    if (!equals || equals - line >= NAME_BYTES)
        return NULL;
    snprintf(name, NAME_BYTES, "%.*s", (int)(equals - line), line);
    return equals + 1;
}

// The knob that a line sets; -1 for one that this version does not have.
static int knob_of(const char *line, size_t bytes) {
    char name[NAME_BYTES];
    return split_line(line, bytes, name) ? knob_find(name) : -1;
}

// What distinguishes a row: the knobs that differ between rows, in their usual order. A knob that
// this row does not set has its default. Lines for knobs that this version does not have come last.
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
        r->failed = r->failed || !own;
        if (own)
            table_set(&r->table, i, COLUMN_KNOBS, own + (own[0] == ' '));
        free(own);
    }
}

static void print_common(struct trials_rows *r, FILE *f) {
    char *common = r->table.n > 1 ? common_lines(r) : strdup("");
    r->failed = r->failed || !common;
    if (common)
        put_knobs(r, common);
    if (common && common[0]) {
        fputs("all with ", f);
        table_print_text(common, f);
        fputs("\n\n", f);
    }
    free(common);
}

int trials_print(struct trials_rows *r, FILE *f, struct err *e) {
    if (!r->has_table)
        return 0;
    if (r->knobs && r->table.n > 0)
        print_common(r, f);
    r->table.failed = r->table.failed || r->failed;
    TRY(table_print(&r->table, f, e));
    if (r->knobs && r->table.n > 0)
        fprintf(f, "\nms/sample: latency of a sample, which is its micro-batch's time\n");
    if (r->unbounded)
        fprintf(f, "? too few steps for a 95 %% bound: p95 needs %zu, p99 needs %zu\n",
                sample_bound_needs(0.95), sample_bound_needs(0.99));
    return 0;
}

// ---------------------------------------------------------------- trials for programs

static void put_split(struct json_writer *w, const struct store_split *s) {
    json_put_object_begin(w);
    for (int i = 0; i < TIME_COUNT; i++)
        json_member_double(w, time_part_name((enum time_part)i), s->ms[i]);
    json_put_object_end(w);
}

// name=value lines as an object. A line without a name is left out.
static void put_lines(struct json_writer *w, const char *text) {
    char name[NAME_BYTES];
    json_put_object_begin(w);
    for (const char *at = text, *next; *at; at = next) {
        size_t bytes = line_at(at, &next);
        const char *value = split_line(at, bytes, name);
        if (!value)
            continue;
        json_put_key(w, name);
        json_put_string_n(w, value, bytes - (size_t)(value - at));
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
#define MEMBER_opt(w, name, x)     table_member_opt(w, name, x)
#define MEMBER_real(w, name, x)    json_member_double(w, name, x)
#define MEMBER_text(w, name, x)    json_member_string(w, name, x)
#define MEMBER_lines(w, name, x)   (json_put_key(w, name), put_lines(w, x))
#define MEMBER_outcome(w, name, x) json_member_string(w, name, store_outcome_name(x))
#define MEMBER_split(w, name, x)   (json_put_key(w, name), put_split(w, &(x)))
#define MEMBER_classes(w, name, x) (json_put_key(w, name), put_classes(w, &(x)))

static void put_trial(struct json_writer *w, const void *row) {
    const struct store_trial *t = row;
    json_put_object_begin(w);
    json_member_i64(w, "trial", t->id);
#define X(kind, type, name) MEMBER_##kind(w, #name, t->name);
    STORE_TRIAL_COLUMNS(X)
#undef X
    json_put_object_end(w);
}

// An object as one cell.
#define OBJECT_CELL(to, put_object, x)                                                             \
    do {                                                                                           \
        struct json_writer w_;                                                                     \
        json_writer_to_buffer(&w_, 0);                                                             \
        put_object(&w_, x);                                                                        \
        table_text(to, json_writer_finish(&w_, NULL) == 0 ? w_.buffer : "");                       \
        free(w_.buffer);                                                                           \
    } while (0)

#define CELL_int(to, x)     table_i64(to, x)
#define CELL_opt(to, x)     table_opt(to, x)
#define CELL_real(to, x)    table_real(to, x, 0)
#define CELL_text(to, x)    table_text(to, x)
#define CELL_lines(to, x)   table_text(to, x)
#define CELL_outcome(to, x) table_text(to, store_outcome_name(x))
#define CELL_split(to, x)   OBJECT_CELL(to, put_split, &(x))
#define CELL_classes(to, x) OBJECT_CELL(to, put_classes, &(x))

static void put_raw_cells(struct table *to, const struct store_trial *t) {
    table_i64(to, t->id);
#define X(kind, type, name) CELL_##kind(to, t->name);
    STORE_TRIAL_COLUMNS(X)
#undef X
}

static void put_trial_cells(struct trials_rows *r, const void *row) {
    const struct store_trial *t = row;
    if (!r->table.people) {
        put_raw_cells(&r->table, t);
        return;
    }
    put_people_cells(r, t);
    if (!r->table.failed)
        keep_knobs(r, t->knobs);
}

// ---------------------------------------------------------------- rows as they come

static int add(struct trials_rows *r, const void *row,
               void (*put_cells)(struct trials_rows *r, const void *row),
               void (*put_object)(struct json_writer *w, const void *row)) {
    r->n++;
    if (r->has_table) {
        table_row(&r->table);
        put_cells(r, row);
    }
    if (r->json)
        put_object(r->json, row);
    if (r->lines) { // one for each row
        struct json_writer line;
        json_writer_to_file(&line, r->lines, 0);
        put_object(&line, row);
        r->failed = json_writer_finish(&line, NULL) != 0 || r->failed;
        fputc('\n', r->lines);
    }
    r->failed = r->failed || r->table.failed;
    return r->failed ? ERR_MEMORY : 0;
}

int trials_add_tuning(void *arg, const struct store_tuning *t) {
    return add(arg, t, put_tuning_cells, put_tuning);
}

int trials_add_trial(void *arg, const struct store_trial *t) {
    return add(arg, t, put_trial_cells, put_trial);
}

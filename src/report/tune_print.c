// tune_print.c - see tune_print.h.
#include "report/tune_print.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- the table

static void put_why(struct table *table, const struct tuning *t, int i) {
    const struct tune_setting *s = &t->tune.settings[i];
    if (i != t->tune.chosen && s->outcome != TUNE_MEASURED)
        table_put(table, "%s%s%.400s", tune_outcome_name(s->outcome), s->reason[0] ? ": " : "",
                  s->reason);
}

// For programs every column has a name, and a percentile has no question mark.
#define ROW(X)                                                                                     \
    X("", "mark", LEFT, table_text(table, mark))                                                   \
    X("setting", "setting", LEFT, table_text(table, s->name))                                      \
    X("tokens/s", "tokens/s", RIGHT, table_real(table, tune_tokens_per_s(s), 0))                   \
    X("p50 ms", "p50 ms", RIGHT, table_real(table, 1e-6 * tune_quantile(s, 0.5).value, 2))         \
    X("p99 ms", "p99 ms", RIGHT,                                                                   \
      table_percentile(table, 1e-6 * p99.value, quantile_has_bound(&p99)))                         \
    X("ms/sample", "ms/sample", RIGHT, table_real(table, tune_ms_per_sample(s), 2))                \
    X("memory", "memory", RIGHT, table_bytes(table, s->need_bytes))                                \
    X("steps", "steps", RIGHT, table_opt(table, (int64_t)s->n))                                    \
    X("J/token", "J/token", RIGHT,                                                                 \
      table_significant(table, s->n > 0 ? tune_joules_per_token(s) : NAN, 3))                      \
    X("", "why", LEFT, put_why(table, t, i))

static const struct table_column columns[] = {ROW(TABLE_COLUMN)};

static void put_row(struct table *table, const struct tuning *t, int i) {
    const struct tune_setting *s = &t->tune.settings[i];
    const struct quantile p99 = tune_quantile(s, 0.99);
    const char *mark = i == t->tune.chosen ? "chosen" : s->frontier ? "frontier" : "";
    table_row(table);
    ROW(TABLE_CELL)
}

enum { LISTED = 4 }; // settings with a lower order are listed for people
static int order_of(const struct tuning *t, const struct tune_setting *s) {
    return s == &t->tune.settings[t->tune.chosen < 0 ? 0 : t->tune.chosen] ? 0
           : s->frontier                                                   ? 1
           : s->n > 0                                                      ? 2
           : s->outcome == TUNE_FAILED                                     ? 3
                                                                           : 4;
}

// For people: the choice, the frontier, other measured settings, failed ones. Settings that were
// only planned are listed for programs only: there may be thousands.
static void print_table(const struct tuning *t, enum table_format format, FILE *f) {
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof *columns, (enum table_format)format,
               (struct table_style){0});
    for (int order = 0; table.people && order < LISTED; order++)
        for (int i = 0; i < t->tune.n; i++)
            if (order_of(t, &t->tune.settings[i]) == order)
                put_row(&table, t, i);
    for (int i = 0; !table.people && i < t->tune.n; i++)
        put_row(&table, t, i);
    (void)table_print(&table, f, NULL);
    table_free(&table);
}

static void print_unlisted(const struct tuning *t, FILE *f) {
    int more = 0, refused = 0;
    for (int i = 0; i < t->tune.n; i++)
        if (order_of(t, &t->tune.settings[i]) >= LISTED) {
            more++;
            refused += t->tune.settings[i].outcome == TUNE_REFUSED;
        }
    fprintf(f,
            "\n%d more setting%s planned and not measured, %d of them refused; ? = too few steps "
            "for a 95 %% bound\n",
            more, more == 1 ? " was" : "s were", refused);
    if (t->tune.reused > 0)
        fprintf(f, "%d of %d trials came from the store and were not run again\n", t->tune.reused,
                t->tune.trials);
}

void tune_print(const struct tuning *t, enum table_format format, FILE *f) {
    if (format == TABLE_JSON || format == TABLE_JSONL) {
        struct json_writer w;
        json_writer_to_file(&w, f, format == TABLE_JSON ? 2 : 0);
        json_put_object_begin(&w);
        tune_put_json(t, &w);
        json_put_object_end(&w);
        fputc('\n', f);
        return;
    }
    print_table(t, format, f);
    if (format == TABLE_CSV)
        return;
    print_unlisted(t, f);
    tune_print_trade(t, f);
    if (t->sentences.lines[0])
        fprintf(f, "\n%s\n", t->sentences.lines);
    if (t->recipe_path)
        fprintf(f, "recipe    %s\n          haggle train %s\n", t->recipe_path, t->recipe_path);
    if (t->report_path)
        fprintf(f, "report    %s\n", t->report_path);
}

// ---------------------------------------------------------------- JSON

static void put_quantile(struct json_writer *w, const char *key, const struct tune_setting *s,
                         double p) {
    struct quantile q = tune_quantile(s, p);
    json_member_object(w, key);
    json_member_double(w, "value", 1e-6 * q.value);
    json_member_i64(w, "n", (int64_t)q.n);
    json_member_double(w, "upper95", 1e-6 * q.upper95);
    json_put_object_end(w);
}

static void put_changes(struct json_writer *w, const struct knobs *k, const struct knobs *base) {
    char value[KNOB_VALUE_BYTES];
    json_member_object(w, "changes");
    for (int id = 0; id < KNOB_COUNT; id++)
        if (!knobs_same(k, base, id))
            json_member_string(w, knob_info(id)->name, knobs_value(k, id, value));
    json_put_object_end(w);
}

static void put_setting(struct json_writer *w, const struct tuning *t, int i) {
    const struct tune_setting *s = &t->tune.settings[i];
    json_put_object_begin(w);
    json_member_string(w, "name", s->name);
    put_changes(w, &s->knobs, &t->tune.settings[0].knobs);
    json_member_string(w, "stage", tune_stage_name(s->stage));
    json_member_string(w, "outcome", tune_outcome_name(s->outcome));
    json_member_string(w, "reason", s->reason);
    json_member_bool(w, "chosen", i == t->tune.chosen);
    json_member_bool(w, "frontier", s->frontier);
    json_member_double(w, "predicted_step_ms", 1e3 * s->predicted_s);
    table_member_opt(w, "memory_needed_bytes", (int64_t)s->need_bytes);
    table_member_opt(w, "memory_measured_bytes", (int64_t)s->memory_bytes);
    json_member_i64(w, "trials", s->n_blocks);
    json_member_i64(w, "reused", s->reused);
    json_member_i64(w, "steps", (int64_t)s->n);
    if (s->n > 0) {
        json_member_double(w, "tokens_per_s", tune_tokens_per_s(s));
        json_member_double(w, "ms_per_sample", tune_ms_per_sample(s));
        json_member_double(w, "joules_per_token", tune_joules_per_token(s));
        put_quantile(w, "step_ms_p50", s, 0.5);
        put_quantile(w, "step_ms_p95", s, 0.95);
        put_quantile(w, "step_ms_p99", s, 0.99);
    }
    json_put_object_end(w);
}

// The choice's figure for each latency budget.
static void put_budgets(struct json_writer *w, const struct tune *t) {
    json_member_array(w, "budgets");
    for (int i = 0; i < t->n_bounds; i++) {
        const struct tune_bound *b = &t->bounds[i];
        char name[8];
        snprintf(name, sizeof name, "p%.0f", 100 * tune_percentile_of(b->p));
        json_put_object_begin(w);
        json_member_string(w, "of", b->respond ? "request" : "step");
        json_member_string(w, "percentile", name);
        json_member_double(w, "limit_ms", 1e-6 * (double)b->limit_ns);
        json_member_double(w, "value_ms", 1e-6 * b->q.value);
        json_member_double(w, "upper95_ms", 1e-6 * b->q.upper95);
        json_member_i64(w, "n", (int64_t)b->q.n);
        json_member_bool(w, "proven", b->proven);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}

void tune_put_json(const struct tuning *t, struct json_writer *w) {
    json_member_string(w, "goal", tune_goal_name(t->request.goal));
    json_member_i64(w, "tuning", t->history.id);
    json_member_double(w, "seconds", 1e-9 * (double)(t->tune.end_ns - t->tune.begin_ns));
    json_member_i64(w, "trials", t->tune.trials);
    json_member_i64(w, "reused", t->tune.reused);
    json_member_bool(w, "certain", t->tune.certain);
    json_member_bool(w, "provisional", t->tune.provisional);
    json_member_i64(w, "forgotten", t->tune.forgotten);
    sentences_put_json(t->sentences.lines[0] ? t->sentences.lines : t->tune.why_none, "verdict", w);
    json_member_string(w, "recipe", t->recipe_path);
    json_member_string(w, "report", t->report_path);
    if (t->noise.n > 0) {
        json_member_object(w, "noise_scale");
        noise_put_members(&t->noise, w);
        json_put_object_end(w);
    }
    if (t->request.answer_s > 0) {
        json_member_object(w, "second_model");
        json_member_i64(w, "bytes", (int64_t)lab_second_bytes(t->lab));
        json_member_double(w, "answer_ms", 1e3 * t->tune.request.answer_s);
        json_put_object_end(w);
    }
    json_member_array(w, "stages");
    for (int i = 0; i < STAGE_COUNT; i++) {
        const struct tune_decision *d = &t->tune.stages[i];
        if (!d->done)
            continue;
        json_put_object_begin(w);
        json_member_string(w, "name", tune_stage_name((enum tune_stage)i));
        json_member_string(w, "decision", d->text);
        json_member_i64(w, "trials", d->trials);
        json_member_double(w, "seconds", 1e-9 * (double)d->ns);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    put_budgets(w, &t->tune);
    json_put_key(w, "chosen");
    if (t->tune.chosen >= 0)
        put_setting(w, t, t->tune.chosen);
    else
        json_put_null(w);
    json_member_array(w, "settings");
    for (int i = 0; i < t->tune.n; i++)
        put_setting(w, t, i);
    json_put_array_end(w);
}

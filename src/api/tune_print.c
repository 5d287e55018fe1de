// tune_print.c - a search for people and for programs: the frontier as a table, the trials, the
// choice in words.
#include "api/tune.h"

#include "api/table.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- the table

enum column {
    COL_MARK,
    COL_NAME,
    COL_SPEED,
    COL_P50,
    COL_P99,
    COL_SAMPLE,
    COL_MEMORY,
    COL_STEPS,
    COL_JOULES,
    COL_WHY,
    COL_COUNT
};

static const struct table_column columns[COL_COUNT] = {
    {"", true},         {"setting", true},    {"tokens/s", false}, {"p50 ms", false},
    {"p99 ms", false},  {"ms/sample", false}, {"memory", false},   {"steps", false},
    {"J/token", false}, {"", true},
};

// For programs every column has a name, and a number is a number.
static const struct table_column csv_columns[COL_COUNT] = {
    {"mark", true},     {"setting", true},    {"tokens/s", false}, {"p50 ms", false},
    {"p99 ms", false},  {"ms/sample", false}, {"memory", false},   {"steps", false},
    {"J/token", false}, {"why", true},
};

static void put_number(struct table *t, enum column c, const char *format, double x) {
    char cell[64];
    if (!isfinite(x))
        return;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(cell, sizeof cell, format, x);
#pragma GCC diagnostic pop
    table_put(t, c, cell);
}

static void put_row(struct table *table, const struct tuning *t, int i, bool people) {
    const struct tune_setting *s = &t->tune.settings[i];
    char bytes[TEXT_UNIT_BYTES], cell[TUNE_TEXT_BYTES];
    if (!table_add_row(table))
        return;
    table_put(table, COL_MARK, i == t->tune.chosen ? "chosen" : s->frontier ? "frontier" : "");
    table_put(table, COL_NAME, s->name);
    put_number(table, COL_SPEED, "%.0f", tune_tokens_per_s(s));
    if (s->n > 0) {
        struct quantile q = tune_quantile(s, 0.99);
        put_number(table, COL_P50, "%.2f", 1e-6 * tune_quantile(s, 0.5).value);
        put_number(table, COL_P99, quantile_has_bound(&q) || !people ? "%.2f" : "%.2f?",
                   1e-6 * q.value);
        put_number(table, COL_SAMPLE, "%.2f", tune_ms_per_sample(s));
        put_number(table, COL_STEPS, "%.0f", (double)s->n);
        put_number(table, COL_JOULES, "%.3g", tune_joules_per_token(s));
    }
    if (s->need_bytes > 0)
        table_put(table, COL_MEMORY, text_bytes(bytes, s->need_bytes));
    if (i == t->tune.chosen || s->outcome == TUNE_MEASURED)
        snprintf(cell, sizeof cell, "%s", "");
    else
        snprintf(cell, sizeof cell, "%s%s%.400s", tune_outcome_name(s->outcome),
                 s->reason[0] ? ": " : "", s->reason);
    table_put(table, COL_WHY, cell);
}

static int order_of(const struct tuning *t, const struct tune_setting *s) {
    return s == &t->tune.settings[t->tune.chosen < 0 ? 0 : t->tune.chosen] ? 0
           : s->frontier                                                   ? 1
           : s->n > 0                                                      ? 2
           : s->outcome == TUNE_FAILED                                     ? 3
                                                                           : 4;
}

// For people: the choice, the frontier, what else was measured, what failed. What was only planned is
// for programs: there may be thousands.
static void print_markdown(const struct tuning *t, FILE *f) {
    enum { LISTED = 4 };
    struct table table;
    table_init(&table, columns, COL_COUNT);
    int more = 0, refused = 0;
    for (int order = 0; order < LISTED; order++)
        for (int i = 0; i < t->tune.n; i++)
            if (order_of(t, &t->tune.settings[i]) == order)
                put_row(&table, t, i, true);
    for (int i = 0; i < t->tune.n; i++)
        if (order_of(t, &t->tune.settings[i]) >= LISTED) {
            more++;
            refused += t->tune.settings[i].outcome == TUNE_REFUSED;
        }
    table_print_markdown(&table, f);
    table_free(&table);
    fprintf(f,
            "\n%d more setting%s planned and not measured, %d of them refused; ? = too few steps "
            "to bound it\n",
            more, more == 1 ? " was" : "s were", refused);
    if (t->tune.reused > 0)
        fprintf(f, "%d of %d trials were in the store from before, and were not run again\n",
                t->tune.reused, t->tune.trials);
}

static void print_csv(const struct tuning *t, FILE *f) {
    struct table table;
    table_init(&table, csv_columns, COL_COUNT);
    for (int i = 0; i < t->tune.n; i++)
        put_row(&table, t, i, false);
    table_print_csv(&table, f);
    table_free(&table);
}

void tune_print(const struct tuning *t, enum haggle_format format, FILE *f) {
    if (format == HAGGLE_CSV) {
        print_csv(t, f);
        return;
    }
    if (format == HAGGLE_JSON || format == HAGGLE_JSONL) {
        struct json_writer w;
        json_writer_to_file(&w, f, format == HAGGLE_JSON ? 2 : 0);
        json_put_object_begin(&w);
        tune_put_json(t, &w);
        json_put_object_end(&w);
        fputc('\n', f);
        return;
    }
    print_markdown(t, f);
    tune_print_trade(t, f);
    if (t->words[0])
        fprintf(f, "\n%s\n", t->words);
    if (t->recipe_path)
        fprintf(f, "recipe    %s\n          haggle train %s\n", t->recipe_path, t->recipe_path);
    if (t->report_path)
        fprintf(f, "report    %s\n", t->report_path);
}

// ---------------------------------------------------------------- the choice, in words

// A sentence may have a "; " of its own, and who shows them one by one must know where it ends.
static void say(struct tuning *t, const char *text) {
    size_t used = strlen(t->words), listed = strlen(t->sentences);
    snprintf(t->words + used, sizeof t->words - used, "%s%s", used ? "; " : "", text);
    snprintf(t->sentences + listed, sizeof t->sentences - listed, "%s%s", listed ? "\n" : "", text);
}

// The setting that is the choice with other values of some knobs; NULL: none was looked at.
static const struct tune_setting *twin(const struct tuning *t, const struct knobs *k) {
    for (int i = 0; i < t->tune.n; i++)
        if (knobs_equal(&t->tune.settings[i].knobs, k))
            return &t->tune.settings[i];
    return NULL;
}

// How much longer a setting takes than the choice: measured where both were, else predicted.
static double slower(const struct tuning *t, const struct tune_setting *s, bool *measured) {
    const struct tune_setting *c = &t->tune.settings[t->tune.chosen];
    *measured = s->n > 0;
    if (*measured)
        return tune_cost(&t->tune, s) / tune_cost(&t->tune, c) - 1;
    double samples = (double)(s->knobs.batch_micro * s->knobs.batch_accum) /
                     (double)(c->knobs.batch_micro * c->knobs.batch_accum);
    return s->predicted_s / c->predicted_s / samples - 1;
}

static void say_growth(struct tuning *t) {
    const struct tune_setting *c = &t->tune.settings[t->tune.chosen];
    struct knobs k = c->knobs;
    char text[TUNE_TEXT_BYTES];
    bool measured;
    if (t->request.goal != TUNE_BULK && !tune_has_limits(&t->request))
        return;
    for (int64_t m = 2 * k.batch_micro; k.batch_accum % (m / k.batch_micro) == 0; m *= 2) {
        struct knobs larger = k;
        larger.batch_micro = m;
        larger.batch_accum = k.batch_accum / (m / k.batch_micro);
        const struct tune_setting *s = twin(t, &larger);
        if (!s)
            continue;
        const double cost = slower(t, s, &measured);
        if (s->outcome != TUNE_REFUSED && !(cost > 0)) // not known, or it does pay
            continue;
        if (s->outcome == TUNE_REFUSED)
            snprintf(text, sizeof text, "a micro-batch of %lld does not fit: %.200s", (long long)m,
                     s->reason);
        else
            snprintf(text, sizeof text,
                     "larger micro-batches stop paying at %lld (%lld: %+.1f %% time%s)",
                     (long long)k.batch_micro, (long long)m, 100 * cost,
                     measured ? "" : ", predicted");
        say(t, text);
        return;
    }
}

static void say_recompute(struct tuning *t) {
    const struct tune_setting *c = &t->tune.settings[t->tune.chosen];
    struct knobs k = c->knobs;
    char text[TUNE_TEXT_BYTES], a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    bool measured;
    if (k.recompute_mode == RECOMPUTE_MODE_NONE) {
        k.recompute_mode = RECOMPUTE_MODE_FULL;
        const struct tune_setting *s = twin(t, &k);
        const double cost = s ? slower(t, s, &measured) : NAN;
        if (!isfinite(cost) || s->outcome == TUNE_REFUSED)
            return;
        snprintf(
            text, sizeof text,
            "checkpointing would cost %.0f %%%s and bring memory from %s to %s, which you do not "
            "need",
            100 * cost, measured ? "" : " (predicted)", text_bytes(a, c->need_bytes),
            text_bytes(b, s->need_bytes));
        say(t, text);
        return;
    }
    k.recompute_mode = RECOMPUTE_MODE_NONE;
    const struct tune_setting *s = twin(t, &k);
    if (s && s->outcome == TUNE_REFUSED) {
        snprintf(text, sizeof text, "checkpointing is what makes it fit: without it, %.200s",
                 s->reason);
        say(t, text);
    }
}

static void say_limits(struct tuning *t) {
    char text[TUNE_TEXT_BYTES], q[QUANTILE_TEXT_BYTES];
    for (int i = 0; i < t->tune.n_bounds; i++) {
        const struct tune_bound *b = &t->tune.bounds[i];
        const char *what = !b->respond ? ""
                           : t->tune.request.answer_s > 0
                               ? "a request's wait (its own turn predicted), "
                               : "a request's wait, ";
        if (b->proven)
            snprintf(text, sizeof text, "%s%s: under the budget of %.4g ms", what,
                     quantile_text(q, &b->q), 1e-6 * (double)b->limit_ns);
        else if (quantile_has_bound(&b->q))
            snprintf(text, sizeof text,
                     "%s%s: not proven under the budget of %.4g ms, the choice is provisional",
                     what, quantile_text(q, &b->q), 1e-6 * (double)b->limit_ns);
        else
            snprintf(text, sizeof text, "%sp%.0f unbounded, n=%zu: the choice is provisional", what,
                     100 * tune_percentile_of(b->p), b->q.n);
        say(t, text);
    }
    if (t->tune.request.joules_per_token > 0 &&
        !isfinite(tune_joules_per_token(&t->tune.settings[t->tune.chosen])))
        say(t, "its energy was not metered: the choice is provisional");
}

// What the choice is bound by, as train and bench say it.
static void judge(struct tuning *t) {
    const struct tune_setting *c = &t->tune.settings[t->tune.chosen];
    struct run_metrics m;
    struct samples ns = {0};
    struct session s;
    struct step_cost cost = {0};
    struct trace trace = {.total = c->split};
    if (plan_session(&s, &c->knobs, NULL) == 0)
        trial_step_cost(&s, &cost);
    session_close(&s);
    if (samples_open(&ns, c->n + 1, NULL) != 0)
        return;
    for (size_t i = 0; i < c->n; i++)
        samples_add(&ns, c->step_ns[i]);
    struct metrics_input in = {.step_ns = &ns,
                               .trace = &trace,
                               .wall_ns = c->wall_ns,
                               .tokens = c->tokens,
                               .batch_micro = c->knobs.batch_micro,
                               .samples_per_step = c->knobs.batch_micro * c->knobs.batch_accum};
    metrics_compute(&m, &in);
    api_verdict(&t->verdict, &m, &c->knobs, &cost, &t->machine);
    say(t, t->verdict.text);
    samples_close(&ns);
}

void tune_verdict(struct tuning *t) {
    const struct tune_setting *c = &t->tune.settings[t->tune.chosen], *base = &t->tune.settings[0];
    char text[TUNE_TEXT_BYTES];
    if (t->tune.chosen == 0)
        snprintf(text, sizeof text, "the recipe as given is the best found: %.0f tokens/s",
                 tune_tokens_per_s(c));
    else if (isfinite(tune_tokens_per_s(base)))
        snprintf(text, sizeof text, "%.300s: %.0f tokens/s, %+.1f %% against the recipe as given",
                 c->name, tune_tokens_per_s(c),
                 100 * (tune_tokens_per_s(c) / tune_tokens_per_s(base) - 1));
    else
        snprintf(text, sizeof text, "%.200s: %.0f tokens/s (the recipe as given: %.150s)", c->name,
                 tune_tokens_per_s(c), base->reason);
    say(t, text);
    judge(t);
    say_growth(t);
    say_recompute(t);
    say_limits(t);
    double samples = (double)(c->knobs.batch_micro * c->knobs.batch_accum);
    if (t->request.critical_samples > 0 && samples > t->request.critical_samples) {
        snprintf(text, sizeof text,
                 "%.0f sequences per step are more than the critical batch of about %.0f: the rest "
                 "hardly makes a step learn more",
                 samples, t->request.critical_samples);
        say(t, text);
    }
    if (t->tune.forgotten > 0) {
        snprintf(
            text, sizeof text,
            "at first somebody else had the machine (steps were %.1f times as long): %d setting%s "
            "measured then count%s as not measured",
            t->tune.slowed, t->tune.forgotten, t->tune.forgotten == 1 ? "" : "s",
            t->tune.forgotten == 1 ? "s" : "");
        say(t, text);
    }
    if (t->tune.hurried || t->tune.unplanned)
        say(t, "there was no time for settings that may be better: a longer --time has it");
    else if (!t->tune.certain)
        say(t, t->tune.compared ? "the finalists were too close to tell apart in the time given"
                                : "there was no time to compare the finalists");
}

// ---------------------------------------------------------------- JSON

static void put_bytes(struct json_writer *w, const char *key, uint64_t bytes) {
    json_put_key(w, key);
    if (bytes > 0)
        json_put_i64(w, (int64_t)bytes);
    else
        json_put_null(w);
}

static void put_quantile(struct json_writer *w, const char *key, const struct tune_setting *s,
                         double p) {
    struct quantile q = tune_quantile(s, p);
    json_put_key(w, key);
    json_put_object_begin(w);
    json_member_double(w, "value", 1e-6 * q.value);
    json_member_i64(w, "n", (int64_t)q.n);
    json_member_double(w, "upper95", 1e-6 * q.upper95);
    json_put_object_end(w);
}

static void put_changes(struct json_writer *w, const struct knobs *k, const struct knobs *base) {
    char value[KNOB_VALUE_BYTES];
    json_put_key(w, "changes");
    json_put_object_begin(w);
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
    put_bytes(w, "memory_needed_bytes", s->need_bytes);
    put_bytes(w, "memory_measured_bytes", s->memory_bytes);
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

// Of the choice, for each latency budget that was asked for.
static void put_budgets(struct json_writer *w, const struct tune *t) {
    json_put_key(w, "budgets");
    json_put_array_begin(w);
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
    json_member_i64(w, "tuning", t->id);
    json_member_double(w, "seconds", 1e-9 * (double)(t->tune.end_ns - t->tune.begin_ns));
    json_member_i64(w, "trials", t->tune.trials);
    json_member_i64(w, "reused", t->tune.reused);
    json_member_bool(w, "certain", t->tune.certain);
    json_member_bool(w, "provisional", t->tune.provisional);
    json_member_i64(w, "forgotten", t->tune.forgotten);
    json_member_string(w, "verdict", t->words[0] ? t->words : t->tune.why_none);
    json_member_string(w, "recipe", t->recipe_path);
    json_member_string(w, "report", t->report_path);
    if (t->noise.n > 0) {
        json_put_key(w, "noise_scale");
        json_put_object_begin(w);
        noise_put_members(&t->noise, w);
        json_put_object_end(w);
    }
    if (t->request.answer_s > 0) {
        json_put_key(w, "second_model");
        json_put_object_begin(w);
        json_member_i64(w, "bytes", (int64_t)lab_second_bytes(t->lab));
        json_member_double(w, "answer_ms", 1e3 * t->tune.request.answer_s);
        json_put_object_end(w);
    }
    json_put_key(w, "stages");
    json_put_array_begin(w);
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
    json_put_key(w, "settings");
    json_put_array_begin(w);
    for (int i = 0; i < t->tune.n; i++)
        put_setting(w, t, i);
    json_put_array_end(w);
}

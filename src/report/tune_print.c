// tune_print.c - see tune_print.h.
#include "report/tune_print.h"
#include "report/tune_words.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- the table

// What a row is: the choice, a setting that ran in turns, or a glance, whose figures are of another
// time.
static const char *mark_of(const struct tune *t, int i) {
    const struct tune_setting *s = &t->settings[i];
    return i == t->chosen         ? "chosen"
           : tune_in_turns(s)     ? "in turns"
           : tune_is_glance(t, i) ? "glance"
                                  : "";
}

static void put_why(struct table *table, const struct tune *t, int i, int alike) {
    char why[TUNE_WORDS_BYTES];
    tune_reason(why, t, i);
    if (alike > 0)
        table_put(table, "%s%s%d more like it", why, why[0] ? "; " : "", alike);
    else
        table_text(table, why);
}

// For programs every column has a name, and a percentile has no question mark.
#define ROW(X)                                                                                     \
    X("", NULL, LEFT, table_text(table, mark_of(t, i)))                                            \
    X(NULL, "mark", LEFT, table_text(table, mark))                                                 \
    X("setting", "setting", LEFT, table_text(table, s->name))                                      \
    X("tokens/s", "tokens/s", RIGHT, table_real(table, tune_speed(t, i), 0))                       \
    X("vs as given", NULL, RIGHT, table_text(table, tune_against(against, t, i)))                  \
    X("p50 ms", "p50 ms", RIGHT, table_real(table, 1e-6 * tune_quantile(s, 0.5).value, 2))         \
    X("p99 ms", "p99 ms", RIGHT,                                                                   \
      table_percentile(table, 1e-6 * p99.value, quantile_has_bound(&p99)))                         \
    X("ms/sample", "ms/sample", RIGHT, table_real(table, tune_sample_ms(t, i), 2))                 \
    X("memory", "memory", RIGHT, table_bytes(table, s->need_bytes))                                \
    X("steps", "steps", RIGHT, table_opt(table, (int64_t)s->n))                                    \
    X("J/token", "J/token", RIGHT,                                                                 \
      table_significant(table, s->n > 0 ? tune_joules_per_token(s) : NAN, 3))                      \
    X("", "why", LEFT, put_why(table, t, i, alike))                                                \
    X(NULL, "rounds", RIGHT, table_opt(table, s->turns.rounds))                                    \
    X(NULL, "ratio", RIGHT, table_real(table, ran ? s->turns.ratio : NAN, 4))                      \
    X(NULL, "ratio low", RIGHT, table_real(table, ran ? s->turns.low : NAN, 4))                    \
    X(NULL, "ratio high", RIGHT, table_real(table, ran ? s->turns.high : NAN, 4))

static const struct table_column columns[] = {ROW(TABLE_COLUMN)};

static void put_row(struct table *table, const struct tune *t, int i, int alike) {
    const struct tune_setting *s = &t->settings[i];
    const struct quantile p99 = tune_quantile(s, 0.99);
    const char *mark = i == t->chosen ? "chosen" : s->frontier ? "frontier" : "";
    const bool ran = tune_in_turns(s);
    char against[TUNE_WORDS_BYTES];
    table_row(table);
    ROW(TABLE_CELL)
}

// Rows for people; more would hide the choice. Glances that are alike within this share one.
enum { PEOPLE_ROWS = 15 };
static const double ALIKE_REL = 0.01;

struct listed { // what the table for people shows, and what it leaves out
    bool unbounded;
    int more, planned, refused; // measured; not measured; of these, refused
};

static bool near(double a, double b) {
    return fabs(a / b - 1) < ALIKE_REL;
}

static bool are_alike(const struct tune *t, int a, int b) {
    const struct tune_setting *x = &t->settings[a], *y = &t->settings[b];
    return x->outcome == y->outcome && near(tune_speed(t, a), tune_speed(t, b)) &&
           near((double)x->need_bytes, (double)y->need_bytes);
}

// The choice, as given, what ran in turns, glances, what broke a budget or failed. Settings that
// were only planned are listed for programs only: there may be thousands.
static void put_for_people(struct table *table, const struct tune *t, struct listed *out) {
    struct tune_place *places = tune_places(t);
    for (int i = 0, rows = 0; places && i < t->n; i++) {
        const struct tune_setting *s = &t->settings[places[i].at];
        const struct quantile p99 = tune_quantile(s, 0.99);
        int alike = 0;
        if (places[i].group == GROUP_UNMEASURED) {
            out->planned++;
            out->refused += s->outcome == TUNE_REFUSED;
            continue;
        }
        if (rows == PEOPLE_ROWS) {
            out->more++;
            continue;
        }
        while (places[i].group == GROUP_GLANCES && i + alike + 1 < t->n &&
               places[i + alike + 1].group == GROUP_GLANCES &&
               are_alike(t, places[i].at, places[i + alike + 1].at))
            alike++;
        put_row(table, t, places[i].at, alike);
        out->unbounded |= p99.n > 0 && !quantile_has_bound(&p99);
        i += alike;
        rows++;
    }
    free(places);
}

static void print_notes(const struct tune *t, const struct listed *l, FILE *f) {
    char line[TUNE_WORDS_BYTES];
    bool glances = false, compared = false;
    for (int i = 0; i < t->n; i++) {
        glances |= tune_is_glance(t, i);
        compared |= i > 0 && tune_is_compared(t, i);
    }
    if (l->unbounded)
        fprintf(f, "%s\n", tune_unbounded_note);
    fprintf(f, "ms/sample: latency of a sample, which is its micro-batch's time\n");
    if (compared && tune_by_sample(&t->request))
        fprintf(f, "vs as given: ms/sample in turns, with its 95 %% interval\n");
    else if (compared)
        fprintf(f, "vs as given: tokens/s in turns, with its 95 %% interval\n");
    if (glances)
        fprintf(f, "glance: measured outside the turns, at another time; its figures cannot be "
                   "compared with those of other rows\n");
    if (tune_better_line(line, t)[0])
        fprintf(f, "%s\n", line);
    if (l->more > 0)
        fprintf(f, "%d more were measured: the page and --output csv list them\n", l->more);
    if (l->planned > 0)
        fprintf(f, "%d more %s planned and not measured, %d of them refused\n", l->planned,
                l->planned == 1 ? "was" : "were", l->refused);
}

static void print_table(const struct tuning *t, enum table_format format, FILE *f) {
    struct table table;
    struct listed listed = {0};
    table_init(&table, columns, sizeof columns / sizeof *columns, (enum table_format)format,
               (struct table_style){0});
    if (table.people)
        put_for_people(&table, &t->tune, &listed);
    for (int i = 0; !table.people && i < t->tune.n; i++)
        put_row(&table, &t->tune, i, 0);
    (void)table_print(&table, f, NULL);
    if (table.people)
        print_notes(&t->tune, &listed, f);
    table_free(&table);
    if (format != TABLE_CSV && t->tune.reused > 0)
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

static void put_turns(struct json_writer *w, const char *key, const struct tune_turns *x,
                      bool shown) {
    if (!table_member_object(w, key, shown))
        return;
    json_member_double(w, "ratio", x->ratio);
    json_member_double(w, "low", x->low);
    json_member_double(w, "high", x->high);
    json_member_i64(w, "rounds", x->rounds);
    tune_put_states(x, w);
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
    put_turns(w, "in_turns", &s->turns, tune_in_turns(s));
    if (s->n > 0) {
        json_member_double(w, "tokens_per_s", tune_speed(&t->tune, i));
        json_member_double(w, "ms_per_sample", tune_sample_ms(&t->tune, i));
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

// Why the choice is what it is, and what it gains. Nothing is gained by keeping as given.
static void put_outcome(struct json_writer *w, const struct tune *t) {
    const bool changed = t->chosen > 0 && tune_in_turns(&t->settings[0]);
    const struct tune_setting *c = t->chosen > 0 ? &t->settings[t->chosen] : NULL;
    json_member_string(w, "why", tune_why_name(t->why));
    json_member_string(w, "rival", t->n > 0 && t->rival >= 0 ? t->settings[t->rival].name : NULL);
    put_turns(w, "gain", c ? &c->turns : NULL, changed && tune_in_turns(c));
    json_member_i64(w, "busy_visits", t->busy);
    json_member_i64(w, "moved_visits", t->moved);
    apart_put_member(&t->cpus, w);
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
    put_outcome(w, &t->tune);
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

// stored.c - see stored.h.
#include "tune/stored.h"

#include "base/json.h"
#include "base/text.h"
#include "plan/second.h"
#include "tune/again.h"
#include "tune/history.h"
#include "tune/tuning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct stored_trial { // what is kept of a row until its samples can be read
    int64_t id;
    int setting;
    struct store_trial row; // its text pointers are no longer valid
    char reason[TUNE_TEXT_BYTES];
};

struct stored_span { // wall time in which the search was running
    double from, to;
};

// ---------------------------------------------------------------- duration

// A search that was stopped and continued the next day did not take a day. Its duration is the time
// that its stages and trials cover. Trials count too, because when a search continues, the stages
// that it decides again replace the earlier ones.
static int add_span(struct stored *a, double from, double to) {
    if (!(to > from) || !isfinite(to - from))
        return 0;
    struct stored_span *spans =
        region_grow(&a->region, a->spans, a->n_spans, &a->spans_capacity, sizeof *spans);
    if (!spans)
        return err_set(&a->err, ERR_MEMORY, "no memory for the times of %zu trials", a->n_spans);
    a->spans = spans;
    a->spans[a->n_spans++] = (struct stored_span){from, to};
    return 0;
}

static int earlier(const void *x, const void *y) {
    const struct stored_span *a = x, *b = y;
    return (a->from > b->from) - (a->from < b->from);
}

static double covered_s(struct stored *a) {
    double sum = 0, end = -INFINITY;
    if (a->n_spans > 0)
        qsort(a->spans, a->n_spans, sizeof *a->spans, earlier);
    for (size_t i = 0; i < a->n_spans; i++) {
        sum += fmax(a->spans[i].to - fmax(a->spans[i].from, end), 0);
        end = fmax(end, a->spans[i].to);
    }
    return sum;
}

// ---------------------------------------------------------------- the row of the tuning

static int take_tuning(void *arg, const struct store_tuning *t) {
    struct stored *a = arg;
    if (a->goal)
        return 0; // the first row is the newest, and it is already taken
    a->id = t->id;
    a->chosen = t->chosen;
    a->state = t->state;
    a->goal = region_copy(&a->region, t->goal);
    a->budgets = region_copy(&a->region, t->budgets);
    a->model = region_copy(&a->region, t->model);
    a->recipe = region_copy(&a->region, t->recipe);
    a->verdict = region_copy(&a->region, t->verdict);
    a->turns = region_copy(&a->region, t->turns);
    if (!a->goal || !a->budgets || !a->model || !a->recipe || !a->verdict || !a->turns)
        return err_set(&a->err, ERR_MEMORY, "no memory for a tuning");
    return 0;
}

static int read_budgets(struct stored *a, struct tune_request *r, struct err *e) {
    static const char *const names[TUNE_PERCENTILES] = {"p50_ms", "p95_ms", "p99_ms"};
    struct json_reader j;
    const char *key;
    json_reader_init(&j, "budgets", a->budgets, strlen(a->budgets), &a->region, e);
    json_enter_object(&j);
    while (json_next_key(&j, &key)) {
        double x = 0;
        if (json_peek(&j) != JSON_NUMBER) {
            json_skip(&j);
            continue;
        }
        json_read_double(&j, &x);
        for (int p = 0; p < TUNE_PERCENTILES; p++)
            if (strcmp(key, names[p]) == 0 && x > 0 && x < 1e12)
                r->limit_ns[p] = (uint64_t)(1e6 * x);
        if (strcmp(key, "respond_ms") == 0 && x > 0 && x < 1e12)
            r->respond_ns = (uint64_t)(1e6 * x);
        if (strcmp(key, "joules_per_token") == 0)
            r->joules_per_token = x;
        if (strcmp(key, "memory_bytes") == 0 && x > 0 && x < 1e18)
            a->memory_budget = (uint64_t)x;
    }
    return json_finish(&j);
}

static int begin(struct stored *a, struct err *e) {
    struct tune_request r = {.goal = TUNE_BULK};
    for (int g = 0; g < TUNE_GOALS; g++)
        if (strcmp(a->goal, tune_goal_name((enum tune_goal)g)) == 0)
            r.goal = (enum tune_goal)g;
    TRY(read_budgets(a, &r, e));
    knobs_init(&a->base);
    TRY(knobs_load_recipe_text(&a->base, "the tuning's recipe", a->recipe, strlen(a->recipe), e));
    r.on_device = plan_wants_device(&a->base);
    return tune_again_begin(&a->tune, &a->base, &r, e);
}

// ---------------------------------------------------------------- stages

static int take_stage(void *arg, const struct store_stage *s) {
    struct stored *a = arg;
    if (s->ordinal < 0 || s->ordinal >= STAGE_COUNT ||
        strcmp(s->name, tune_stage_name((enum tune_stage)s->ordinal)) != 0)
        return 0;
    struct tune_decision *d = &a->tune.stages[s->ordinal];
    double seconds = s->ended_at - s->started_at;
    snprintf(d->text, sizeof d->text, "%s", s->decision);
    d->ns = seconds > 0 && seconds < 1e9 ? (uint64_t)(1e9 * seconds) : 0;
    d->done = true;
    return add_span(a, s->started_at, s->ended_at);
}

static enum tune_stage stage_of(const char *name) {
    for (int i = 0; i < STAGE_COUNT; i++)
        if (strcmp(name, tune_stage_name((enum tune_stage)i)) == 0)
            return (enum tune_stage)i;
    return STAGE_PROFILE;
}

// ---------------------------------------------------------------- trials

// Reads one knob per line. Knobs at their default are not listed.
static int read_knobs(struct knobs *k, const char *lines) {
    char text[KNOB_VALUE_BYTES + 128];
    knobs_init(k);
    while (*lines) {
        size_t n = strcspn(lines, "\n");
        if (n >= sizeof text)
            return ERR_FORMAT;
        memcpy(text, lines, n);
        text[n] = '\0';
        if (n > 0)
            TRY(knobs_set_assignment(k, text, SET_BY_RECIPE, NULL));
        lines += n + (lines[n] == '\n');
    }
    return 0;
}

static int add_trial(struct stored *a, const struct store_trial *row, int setting) {
    struct stored_trial *trials =
        region_grow(&a->region, a->trials, a->n, &a->capacity, sizeof *trials);
    if (!trials)
        return err_set(&a->err, ERR_MEMORY, "no memory for %zu trials", a->n);
    a->trials = trials;
    struct stored_trial *s = &a->trials[a->n++];
    s->id = row->id;
    s->setting = setting;
    s->row = *row;
    snprintf(s->reason, sizeof s->reason, "%s", row->reason);
    return 0;
}

static int take_trial(void *arg, const struct store_trial *row) {
    struct stored *a = arg;
    struct knobs k;
    if (read_knobs(&k, row->knobs) != 0) {
        a->unreadable++;
        return 0;
    }
    enum tune_stage stage = stage_of(row->stage);
    int i = tune_again_add(&a->tune, &k, stage, &a->err);
    if (i < 0)
        return i;
    struct tune_setting *s = &a->tune.settings[i];
    if (row->memory_predicted_bytes > 0)
        s->need_bytes = (uint64_t)row->memory_predicted_bytes;
    if (isfinite(row->predicted_step_ms))
        s->predicted_s = 1e-3 * row->predicted_step_ms;
    struct stored_memory *m = i == 0 ? &a->given : row->id == a->chosen ? &a->of_choice : NULL;
    if (m) {
        m->known = true;
        memcpy(m->by_class, row->by_class.bytes, sizeof m->by_class);
    }
    a->tune.stages[stage].trials++;
    if (row->tuning == a->id) // else it is the chosen trial, reused from an earlier search
        TRY(add_span(a, row->started_at, row->started_at + row->wall_s));
    return add_trial(a, row, i);
}

static int visit(struct stored *a, const struct stored_trial *s, struct err *e) {
    const struct store_trial *row = &s->row;
    struct tune_measured m = {0};
    bool good = row->outcome == OUTCOME_MEASURED || row->outcome == OUTCOME_DOMINATED ||
                row->outcome == OUTCOME_OVER_BUDGET || row->outcome == OUTCOME_STOPPED;
    m.rc = good ? 0 : ERR_INTERNAL;
    snprintf(m.reason, sizeof m.reason, "%s", s->reason);
    TRY(store_samples(a->store, s->id, &m.step_ns, &m.n, e));
    history_figures(row, m.n, &m);
    if (m.memory_bytes > 0)
        m.memory_bytes += a->second_bytes;
    int rc = tune_again_visit(&a->tune, s->setting, &m, e);
    free(m.step_ns);
    return rc;
}

// ---------------------------------------------------------------- what ran in turns

static int find_setting(const struct stored *a, const char *hash) {
    char own[HASH_TEXT_BYTES];
    for (int i = 0; i < a->tune.n; i++)
        if (store_setting(&a->tune.settings[i].knobs, own, NULL) == 0 && strcmp(own, hash) == 0)
            return i;
    return -1;
}

static void read_number(struct json_reader *j, double *out) {
    if (json_peek(j) == JSON_NUMBER)
        json_read_double(j, out);
    else
        json_skip(j);
}

static void read_state(struct json_reader *j, struct tune_turns *t) {
    struct tune_state s = {.apart_ns = NAN, .ratio = NAN, .low = NAN, .high = NAN};
    double rounds = 0;
    const char *key;
    json_enter_object(j);
    while (json_next_key(j, &key))
        read_number(j, strcmp(key, "rounds") == 0     ? &rounds
                       : strcmp(key, "apart_ns") == 0 ? &s.apart_ns
                       : strcmp(key, "ratio") == 0    ? &s.ratio
                       : strcmp(key, "low") == 0      ? &s.low
                       : strcmp(key, "high") == 0     ? &s.high
                                                      : &(double){0});
    if (t->n_states == TUNE_STATES_MOST || !(rounds >= 1 && rounds < 1e6) || !(s.ratio > 0))
        return;
    s.rounds = (int)rounds;
    t->states[t->n_states++] = s;
}

static void read_apart(struct json_reader *j, struct apart *out) {
    const char *key;
    json_enter_object(j);
    while (json_next_key(j, &key)) {
        double ns = NAN;
        read_number(j, &ns);
        if (ns < 1e9) // either of least and most
            apart_add(out, ns);
    }
}

static void read_turn(struct stored *a, struct json_reader *j) {
    struct tune_turns t = {.ratio = NAN, .low = NAN, .high = NAN, .tokens_per_s = NAN};
    const char *key, *hash = "";
    double rounds = 0;
    json_enter_object(j);
    while (json_next_key(j, &key)) {
        if (strcmp(key, "setting") == 0 && json_peek(j) == JSON_STRING)
            json_read_string(j, &hash, NULL);
        else if (strcmp(key, "states") == 0 && json_peek(j) == JSON_ARRAY) {
            json_enter_array(j);
            while (json_next_element(j))
                read_state(j, &t);
        } else
            read_number(j, strcmp(key, "rounds") == 0         ? &rounds
                           : strcmp(key, "ratio") == 0        ? &t.ratio
                           : strcmp(key, "low") == 0          ? &t.low
                           : strcmp(key, "high") == 0         ? &t.high
                           : strcmp(key, "tokens_per_s") == 0 ? &t.tokens_per_s
                                                              : &(double){0});
    }
    const int i = find_setting(a, hash);
    if (i < 0 || !(rounds >= 1 && rounds < 1e6) || !(t.tokens_per_s > 0) || !(t.ratio > 0))
        return;
    t.rounds = (int)rounds;
    a->tune.settings[i].turns = t;
}

// Older searches have no such text.
static int read_turns(struct stored *a, struct err *e) {
    struct json_reader j;
    const char *key, *text;
    if (!a->turns[0])
        return 0;
    json_reader_init(&j, "turns", a->turns, strlen(a->turns), &a->region, e);
    json_enter_object(&j);
    while (json_next_key(&j, &key)) {
        double x = -1;
        if (json_peek(&j) == JSON_STRING) {
            json_read_string(&j, &text, NULL);
            if (strcmp(key, "rival") == 0)
                a->tune.rival = find_setting(a, text);
            for (int why = 0; strcmp(key, "why") == 0 && why < TUNE_WHYS; why++)
                if (strcmp(text, tune_why_name((enum tune_why)why)) == 0)
                    a->tune.why = (enum tune_why)why;
        } else if (strcmp(key, "settings") == 0 && json_peek(&j) == JSON_ARRAY) {
            json_enter_array(&j);
            while (json_next_element(&j))
                read_turn(a, &j);
        } else if (strcmp(key, "apart_ns") == 0 && json_peek(&j) == JSON_OBJECT)
            read_apart(&j, &a->tune.cpus);
        else
            read_number(&j, &x);
        if (strcmp(key, "busy") == 0 && x >= 0 && x < 1e9)
            a->tune.busy = (int)x;
        if (strcmp(key, "moved") == 0 && x >= 0 && x < 1e9)
            a->tune.moved = (int)x;
        if (strcmp(key, "busy_most") == 0 && x >= 0)
            a->tune.busy_most = x;
    }
    return json_finish(&j);
}

// ---------------------------------------------------------------- the whole

static void say_why_none(struct stored *a) {
    const char *why = a->state == TUNING_STOPPED ? "The search was stopped before it chose."
                      : a->state == TUNING_RUNNING
                          ? "The search has not ended, or its process died."
                          : "The search chose no setting.";
    snprintf(a->tune.why_none, sizeof a->tune.why_none, "%s", why);
}

static void say_what_is_missing(struct stored *a) {
    sentences_add(&a->missing,
                  "This page was made from the store, which keeps only trials. It does not show "
                  "settings that were refused or only predicted, trials reused from earlier "
                  "searches, or the name of the machine.");
    if (a->unreadable > 0)
        sentences_add(&a->missing,
                      "%d trials are left out, because this build does not know some of their "
                      "knobs.",
                      a->unreadable);
}

static bool has_chosen(const struct stored *a) {
    for (size_t i = 0; i < a->n; i++)
        if (a->trials[i].id == a->chosen)
            return true;
    return a->chosen == 0;
}

// Memory of the second model; 0: there is none. Fails if it cannot be planned.
static int plan_second(const struct knobs *k, uint64_t *out, struct err *e) {
    struct plan p;
    *out = 0;
    if (!second_wanted(k))
        return 0;
    int rc = plan_run(&p, k, e);
    if (rc == 0)
        *out = plan_second_bytes(&p);
    plan_free(&p);
    return rc;
}

// Adds the second model, which trials do not load but runs do. Its recipe may no longer exist.
static void add_second(struct stored *a) {
    struct err why = {0};
    const struct knobs *k = &a->tune.settings[0].knobs;
    a->tune.request.on_device = plan_wants_device(k);
    if (tuning_predict_answers(&a->tune.request, k, &why) != 0)
        sentences_add(
            &a->missing,
            "The time to compute an answer can no longer be predicted, so the waits on this page "
            "do not include it: %.300s",
            why.text);
    else if (a->tune.request.goal == TUNE_HYBRID)
        sentences_add(&a->missing,
                      "The time to compute an answer was predicted again for this page (%.3g ms).",
                      1e3 * (a->tune.request.answer_s > 0 ? a->tune.request.answer_s
                                                          : a->tune.request.turn_s));
    err_clear(&why);
    if (plan_second(k, &a->second_bytes, &why) != 0) {
        sentences_add(&a->missing,
                      "The second model can no longer be planned, so no figure on this page "
                      "includes its memory or the time of its answers: %.300s",
                      why.text);
        return;
    }
    for (int i = 0; i < a->tune.n; i++)
        if (a->tune.settings[i].need_bytes > 0)
            a->tune.settings[i].need_bytes += a->second_bytes;
    a->given.second_bytes = a->of_choice.second_bytes = a->second_bytes;
}

static int put_together(struct stored *a, struct err *e) {
    int chosen = -1;
    struct store_filter own = {.tuning = a->id}, of_choice = {.id = a->chosen};
    TRY(begin(a, e));
    int rc = store_stages(a->store, a->id, take_stage, a, e);
    if (rc == 0)
        rc = store_trials(a->store, &own, take_trial, a, e);
    if (rc == 0 && !has_chosen(a)) // the chosen trial is one of an earlier search
        rc = store_trials(a->store, &of_choice, take_trial, a, e);
    if (a->err.code != 0)
        return err_set(e, a->err.code, "%s", a->err.text);
    TRY(rc);
    add_second(a);
    for (size_t i = 0; i < a->n; i++) {
        TRY(visit(a, &a->trials[i], e));
        if (a->trials[i].id == a->chosen)
            chosen = a->trials[i].setting;
    }
    TRY(read_turns(a, e));
    tune_again_end(&a->tune, chosen);
    const double seconds = covered_s(a);
    if (seconds > 0 && seconds < 1e9)
        a->tune.end_ns = (uint64_t)(1e9 * seconds);
    if (a->tune.chosen < 0)
        say_why_none(a);
    say_what_is_missing(a);
    return 0;
}

static int find(struct stored *a, const char *tuning, const char *path, struct err *e) {
    char own[STORE_PATH_BYTES], *end;
    long long id = 0;
    if (strcmp(tuning, "last") != 0) {
        id = strtoll(tuning, &end, 10);
        if (*end || end == tuning || id < 1)
            return err_set(e, ERR_USAGE, "--tuning=%s; accepted: a number from 1 on, or last",
                           tuning);
    }
    if (!path)
        TRY(store_default_path(own, e));
    TRY(store_open(&a->store, path ? path : own, STORE_READ, e));
    int rc = store_tunings(a->store, id, NULL, take_tuning, a, e);
    if (a->err.code != 0)
        return err_set(e, a->err.code, "%s", a->err.text);
    TRY(rc);
    if (!a->goal)
        return err_set(e, ERR_USAGE, "'%s' has no tuning %s; 'haggle trials' lists them",
                       store_path(a->store), id ? tuning : "at all");
    return 0;
}

int stored_open(struct stored *s, const char *tuning, const char *path, struct err *e) {
    *s = (struct stored){.tune = {.chosen = -1}};
    TRY(find(s, tuning, path, e));
    return put_together(s, e);
}

void stored_close(struct stored *s) {
    store_close(s->store);
    tune_free(&s->tune);
    region_free(&s->region);
}

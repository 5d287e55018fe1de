// tune_store.c - a search and its store: trials are written as they end, so that one that is killed goes
// on where it was, and later ones need not measure the same again.
#include "api/tune.h"

#include "base/clock.h"
#include "train/record.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void put_budgets(struct json_writer *w, const struct tune_request *r,
                        const struct knobs *k) {
    static const char *const names[TUNE_PERCENTILES] = {"p50_ms", "p95_ms", "p99_ms"};
    json_put_object_begin(w);
    for (int p = 0; p < TUNE_PERCENTILES; p++)
        if (r->limit_ns[p] > 0)
            json_member_double(w, names[p], 1e-6 * (double)r->limit_ns[p]);
    if (r->respond_ns > 0)
        json_member_double(w, "respond_ms", 1e-6 * (double)r->respond_ns);
    if (k->memory > 0)
        json_member_i64(w, "memory_bytes", (int64_t)k->memory);
    if (r->joules_per_token > 0)
        json_member_double(w, "joules_per_token", r->joules_per_token);
    for (int a = 0; a < ALLOW_COUNT; a++)
        if (r->allow >> a & 1)
            json_member_bool(w, tune_allow_name((enum tune_allow)a), true);
    json_put_object_end(w);
}

char *tune_recipe_text(const struct knobs *k) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return NULL;
    int rc = knobs_write_recipe(k, f, NULL);
    if (fclose(f) != 0 || rc != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static int begin(struct tuning *t, struct err *e) {
    struct json_writer w;
    json_writer_to_buffer(&w, 0);
    put_budgets(&w, &t->request, &t->base);
    char *recipe = tune_recipe_text(&t->base);
    const char *budgets = w.buffer;
    int rc = json_writer_finish(&w, e);
    if (rc == 0 && !recipe)
        rc = err_set(e, ERR_MEMORY, "out of memory for a search's record");
    struct store_tuning row = {.started_at = clock_wall_s(),
                               .goal = tune_goal_name(t->request.goal),
                               .budgets = budgets,
                               .key = t->key,
                               .model = t->base.model,
                               .recipe = recipe};
    if (rc == 0)
        rc = store_tuning_find_unfinished(t->store, &row, &t->id, e);
    if (rc == 0 && t->id > 0)
        log_put(&t->call->log, LOG_INFO, "search %lld was not finished: going on with its trials",
                (long long)t->id);
    else if (rc == 0)
        rc = store_tuning_begin(t->store, &row, &t->id, e);
    free(recipe);
    free(w.buffer);
    return rc;
}

// The path of the store, in `own` where it is the user's; NULL: none is wanted.
int tune_store_path(const char **path, char own[STORE_PATH_BYTES], struct err *e) {
    if (*path && strcmp(*path, "none") == 0)
        *path = NULL;
    else if (!*path) {
        TRY(store_default_path(own, e));
        *path = own;
    }
    return 0;
}

// Nothing is made yet: a search whose data cannot be read leaves no store behind.
int tune_store_check(const char *path, struct err *e) {
    char own[STORE_PATH_BYTES];
    struct store *s;
    struct stat st;
    TRY(tune_store_path(&path, own, e));
    if (!path || stat(path, &st) != 0 || (S_ISREG(st.st_mode) && st.st_size == 0)) // or to be made
        return 0;
    TRY(store_open(&s, path, STORE_READ, e));
    store_close(s);
    if (access(path, W_OK) != 0)
        return err_set(e, ERR_IO, "the store '%s' cannot be written: %s; --store names another",
                       path, strerror(errno));
    return 0;
}

int tune_store_open(struct tuning *t, const char *path, struct err *e) {
    char own[STORE_PATH_BYTES];
    TRY(tune_store_path(&path, own, e));
    if (!path)
        return 0;
    TRY(record_key(&t->base, t->key, e));
    TRY(store_open(&t->store, path, STORE_WRITE, e));
    t->stage_began_at = clock_wall_s();
    return begin(t, e);
}

// ---------------------------------------------------------------- what was measured before

enum { FOUND = 1 }; // of look: no more rows are wanted
struct recalled {
    struct tuning *t;
    struct store_trial row;
    int64_t steps; // 0: any number
};

static bool was_used(const struct tuning *t, int64_t id) {
    for (size_t i = 0; i < t->n_used; i++)
        if (t->used[i] == id)
            return true;
    return false;
}

static uint64_t whole(double x) { // of a figure in a file
    return x > 0 && x < 1e18 ? (uint64_t)x : 0;
}

void tune_store_figures(const struct store_trial *row, size_t steps, struct tune_measured *out) {
    out->tokens = row->tokens > 0 ? (uint64_t)row->tokens : 0;
    out->wall_ns = whole(1e9 * row->wall_s);
    out->memory_bytes = row->memory_measured_bytes > 0 ? (uint64_t)row->memory_measured_bytes : 0;
    out->joules = row->joules_per_token * (double)row->tokens;
    out->split.steps = steps;
    for (int i = 0; i < TIME_COUNT; i++) {
        out->split.ns[i] = whole(1e6 * row->split.ms[i] * (double)steps);
        out->split.wall_ns += out->split.ns[i];
    }
}

// A trial without tokens or without time has no speed, and one that has none would be the best of all or
// the worst: it is left.
static int look(void *arg, const struct store_trial *row) {
    struct recalled *r = arg;
    if (was_used(r->t, row->id) || row->steps < 1 || row->tokens < 1 ||
        whole(1e9 * row->wall_s) == 0 ||
        (r->t->request.joules_per_token > 0 && !isfinite(row->joules_per_token)) ||
        (r->steps > 0 && row->steps != r->steps) ||
        (row->outcome != OUTCOME_MEASURED && row->outcome != OUTCOME_DOMINATED &&
         row->outcome != OUTCOME_OVER_BUDGET))
        return 0;
    r->row = *row;
    return FOUND;
}

static int remember(struct tuning *t, int64_t id, struct err *e) {
    if (t->n_used == t->used_capacity) {
        size_t capacity = t->used_capacity ? 2 * t->used_capacity : 64;
        int64_t *more = realloc(t->used, capacity * sizeof *more);
        if (!more)
            return err_set(e, ERR_MEMORY, "out of memory for %zu trials", capacity);
        t->used = more;
        t->used_capacity = capacity;
    }
    t->used[t->n_used++] = id;
    return 0;
}

static int recall(struct tuning *t, const char *setting, const struct tune_order *o,
                  struct recalled *r, struct tune_measured *out, struct err *e) {
    struct store_filter f = {
        .key = t->key, .setting = setting, .tuning = o->first && !o->fresh ? 0 : t->id};
    const int rc = store_trials(t->store, &f, look, r, e);
    if (rc != FOUND)
        return rc;
    TRY(remember(t, r->row.id, e)); // also one that cannot be read: it is not tried again
    return store_samples(t->store, r->row.id, &out->step_ns, &out->n, e);
}

// What any search of the same key measured will do for a first look. A second look is there because the first
// may have met another minute, of which the store has more: it, and a finalist's round, takes what this very
// search measured before it was killed, and nothing else. Rounds of finalists are compared one with one, so a
// round of another length (--time was another) will not do. What cannot be read is measured again.
int tune_store_recall(struct tuning *t, const struct knobs *k, const struct tune_order *o,
                      struct tune_measured *out, struct err *e) {
    char setting[HASH_TEXT_BYTES];
    struct err why = {0};
    if (!t->store)
        return 0;
    TRY(store_setting(k, setting, e));
    struct recalled r = {.t = t, .steps = o->fresh ? o->steps : 0};
    int rc = recall(t, setting, o, &r, out, &why);
    if (rc == ERR_MEMORY)
        return err_set(e, rc, "%s", why.text);
    if (rc != 0) {
        t->unread = why;
        free(out->step_ns);
        out->step_ns = NULL;
        out->n = 0;
    }
    if (out->n == 0)
        return 0;
    out->reused = true;
    tune_store_figures(&r.row, out->n, out);
    return 0;
}

// ---------------------------------------------------------------- what is measured now

static double predicted(const struct tuning *t, const struct knobs *k) {
    for (int i = 0; i < t->tune.n; i++)
        if (knobs_equal(&t->tune.settings[i].knobs, k))
            return t->tune.settings[i].predicted_s;
    return NAN;
}

static enum store_outcome outcome_of(const struct trial_result *r, enum tune_go ended) {
    if (r->rc != 0 || (ended != TUNE_DOMINATED && ended != TUNE_OVER_BUDGET))
        return record_outcome(r);
    return ended == TUNE_DOMINATED ? OUTCOME_DOMINATED : OUTCOME_OVER_BUDGET;
}

void tune_store_trial(struct tuning *t, const struct knobs *k, const struct trial_result *r,
                      enum tune_go ended) {
    int64_t id = 0;
    const char *peak_is;
    if (!t->store || t->unrecorded.code != 0)
        return;
    struct record record = {.origin = "tune",
                            .key = t->key,
                            .tuning = t->id,
                            .stage = tune_stage_name(t->stage),
                            .outcome = outcome_of(r, ended),
                            .started_at = clock_wall_s() - 1e-9 * (double)r->wall_ns,
                            .predicted_step_s = predicted(t, k),
                            .joules_per_token = energy_per(&r->energy, (double)r->tokens),
                            .peak_flops_per_s = machine_peak(&t->machine, k->precision, &peak_is)};
    if (record_trial(t->store, &record, k, r, &id, &t->unrecorded) == 0)
        remember(t, id, &t->unrecorded);
}

void tune_store_stage(struct tuning *t, int stage) {
    const struct tune_decision *d = &t->tune.stages[stage];
    struct store_stage row = {.ordinal = stage,
                              .name = tune_stage_name((enum tune_stage)stage),
                              .decision = d->text,
                              .started_at = t->stage_began_at,
                              .ended_at = clock_wall_s()};
    t->stage_began_at = row.ended_at;
    t->stage = stage + 1 < STAGE_COUNT ? (enum tune_stage)(stage + 1) : STAGE_FINALISTS;
    if (t->store && t->unrecorded.code == 0)
        store_stage_add(t->store, t->id, &row, &t->unrecorded);
}

static int newest(void *arg, const struct store_trial *row) {
    if (row->steps > 0)
        *(int64_t *)arg = row->id;
    return 0;
}

// The trial that stands for the choice: the newest of this search, else one that it took from before.
static int64_t chosen_trial(struct tuning *t) {
    char setting[HASH_TEXT_BYTES];
    int64_t id = 0;
    if (t->tune.chosen < 0 ||
        store_setting(&t->tune.settings[t->tune.chosen].knobs, setting, &t->unrecorded) != 0)
        return 0;
    struct store_filter f = {.key = t->key, .setting = setting, .tuning = t->id};
    store_trials(t->store, &f, newest, &id, &t->unrecorded);
    f.tuning = 0;
    if (id == 0)
        store_trials(t->store, &f, newest, &id, &t->unrecorded);
    return id;
}

void tune_store_finish(struct tuning *t, int rc) {
    if (!t->store || t->unrecorded.code != 0)
        return;
    store_tuning_finish(t->store, t->id, rc == 0 ? TUNING_DONE : TUNING_STOPPED, chosen_trial(t),
                        t->words, &t->unrecorded);
}

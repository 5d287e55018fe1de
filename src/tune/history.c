// history.c - see history.h.
#include "tune/history.h"

#include "base/clock.h"
#include "base/json.h"
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

static int begin(struct history *h, const struct knobs *base, const struct tune_request *r,
                 bool *resumed, struct err *e) {
    struct json_writer w;
    json_writer_to_buffer(&w, 0);
    put_budgets(&w, r, base);
    char *recipe = knobs_recipe_text(base);
    const char *budgets = w.buffer;
    int rc = json_writer_finish(&w, e);
    if (rc == 0 && !recipe)
        rc = err_set(e, ERR_MEMORY, "out of memory for a search's record");
    const struct store_tuning row = {.started_at = clock_wall_s(),
                                     .goal = tune_goal_name(r->goal),
                                     .budgets = budgets,
                                     .key = h->key,
                                     .model = base->model,
                                     .recipe = recipe};
    if (rc == 0)
        rc = store_tuning_find_unfinished(h->store, &row, &h->id, e);
    *resumed = rc == 0 && h->id > 0;
    if (rc == 0 && !*resumed)
        rc = store_tuning_begin(h->store, &row, &h->id, e);
    free(recipe);
    free(w.buffer);
    return rc;
}

int history_path(const char **path, char own[STORE_PATH_BYTES], struct err *e) {
    if (*path && strcmp(*path, "none") == 0)
        *path = NULL;
    else if (!*path) {
        TRY(store_default_path(own, e));
        *path = own;
    }
    return 0;
}

// The store is not created yet, so that a search whose data cannot be read leaves none behind.
int history_check(const char *path, struct err *e) {
    char own[STORE_PATH_BYTES];
    struct store *s;
    struct stat st;
    TRY(history_path(&path, own, e));
    // A missing or empty file becomes a new store.
    if (!path || stat(path, &st) != 0 || (S_ISREG(st.st_mode) && st.st_size == 0))
        return 0;
    TRY(store_open(&s, path, STORE_READ, e));
    store_close(s);
    if (access(path, W_OK) != 0)
        return err_set(e, ERR_IO,
                       "the store '%s' cannot be written: %s; choose another one with --store",
                       path, strerror(errno));
    return 0;
}

int history_open(struct history *h, const char *path, const struct knobs *base,
                 const struct tune_request *r, bool *resumed, struct err *e) {
    char own[STORE_PATH_BYTES];
    *resumed = false;
    TRY(history_path(&path, own, e));
    if (!path)
        return 0;
    h->metered = r->joules_per_token > 0;
    TRY(record_key(base, h->key, e));
    TRY(store_open(&h->store, path, STORE_WRITE, e));
    h->stage_began_at = clock_wall_s();
    return begin(h, base, r, resumed, e);
}

void history_close(struct history *h) {
    store_close(h->store);
    free(h->used);
    h->store = NULL;
    h->used = NULL;
}

// ---------------------------------------------------------------- earlier trials

enum { FOUND = 1 }; // returned by `look`: no more rows are needed
struct recalled {
    struct history *h;
    struct store_trial row;
    int64_t steps; // 0: any number
};

static bool was_used(const struct history *h, int64_t id) {
    for (size_t i = 0; i < h->n_used; i++)
        if (h->used[i] == id)
            return true;
    return false;
}

static uint64_t whole(double x) { // numbers in a file may be out of range
    return x > 0 && x < 1e18 ? (uint64_t)x : 0;
}

void history_figures(const struct store_trial *row, size_t steps, struct tune_measured *out) {
    out->tokens = row->tokens > 0 ? (uint64_t)row->tokens : 0;
    out->wall_ns = whole(1e9 * row->wall_s);
    out->memory_bytes = row->memory_measured_bytes > 0 ? (uint64_t)row->memory_measured_bytes : 0;
    out->joules = row->joules_per_token * (double)row->tokens;
    out->busy = row->busy;
    apart_add(&out->cpus, row->apart_least_ns);
    apart_add(&out->cpus, row->apart_most_ns);
    out->split.steps = steps;
    for (int i = 0; i < TIME_COUNT; i++) {
        out->split.ns[i] = whole(1e6 * row->split.ms[i] * (double)steps);
        out->split.wall_ns += out->split.ns[i];
    }
}

// Takes the first trial that can be reused. One without tokens or without time is skipped: its
// speed would be zero or infinite.
static int look(void *arg, const struct store_trial *row) {
    struct recalled *r = arg;
    if (was_used(r->h, row->id) || row->steps < 1 || row->tokens < 1 ||
        whole(1e9 * row->wall_s) == 0 || (r->h->metered && !isfinite(row->joules_per_token)) ||
        (r->steps > 0 && row->steps != r->steps) ||
        (row->outcome != OUTCOME_MEASURED && row->outcome != OUTCOME_DOMINATED &&
         row->outcome != OUTCOME_OVER_BUDGET))
        return 0;
    r->row = *row;
    return FOUND;
}

static int remember(struct history *h, int64_t id, struct err *e) {
    if (h->n_used == h->used_capacity) {
        size_t capacity = h->used_capacity ? 2 * h->used_capacity : 64;
        int64_t *more = realloc(h->used, capacity * sizeof *more);
        if (!more)
            return err_set(e, ERR_MEMORY, "out of memory for %zu trials", capacity);
        h->used = more;
        h->used_capacity = capacity;
    }
    h->used[h->n_used++] = id;
    return 0;
}

static int recall(struct history *h, const char *setting, const struct tune_order *o,
                  struct recalled *r, struct tune_measured *out, struct err *e) {
    struct store_filter f = {
        .key = h->key, .setting = setting, .tuning = o->first && !o->fresh ? 0 : h->id};
    const int rc = store_trials(h->store, &f, look, r, e);
    if (rc != FOUND)
        return rc;
    TRY(remember(h, r->row.id, e)); // also if it cannot be read, so that it is not tried again
    return store_samples(h->store, r->row.id, &out->step_ns, &out->n, e);
}

// For the first trial of a setting, a trial of any search with the same key will do. A second trial
// is made because the first one may have hit a busy moment of the machine. It must not come from
// another search, whose moments were different again. So a second trial, and a finalist's round, is
// only taken from what this search measured before it was killed. The rounds of finalists are
// compared pair by pair, so a round of another length (from another --time) is not taken. A row
// that cannot be read is measured again.
int history_recall(struct history *h, const struct knobs *k, const struct tune_order *o,
                   struct tune_measured *out, struct err *e) {
    char setting[HASH_TEXT_BYTES];
    struct err why = {0};
    if (!h->store)
        return 0;
    TRY(store_setting(k, setting, e));
    struct recalled r = {.h = h, .steps = o->fresh ? o->steps : 0};
    int rc = recall(h, setting, o, &r, out, &why);
    if (rc == ERR_MEMORY)
        return err_set(e, rc, "%s", why.text);
    if (rc != 0) {
        h->unread = why;
        free(out->step_ns);
        out->step_ns = NULL;
        out->n = 0;
    }
    if (out->n == 0)
        return 0;
    out->reused = true;
    history_figures(&r.row, out->n, out);
    return 0;
}

// ---------------------------------------------------------------- new trials

static double predicted(const struct history *h, const struct knobs *k) {
    for (int i = 0; i < h->tune->n; i++)
        if (knobs_equal(&h->tune->settings[i].knobs, k))
            return h->tune->settings[i].predicted_s;
    return NAN;
}

static enum store_outcome outcome_of(const struct trial_result *r, enum tune_go ended) {
    if (r->rc != 0 || (ended != TUNE_DOMINATED && ended != TUNE_OVER_BUDGET))
        return record_outcome(r);
    return ended == TUNE_DOMINATED ? OUTCOME_DOMINATED : OUTCOME_OVER_BUDGET;
}

void history_add(struct history *h, const struct knobs *k, const struct trial_result *r,
                 enum tune_go ended) {
    int64_t id = 0;
    const char *peak_is;
    if (!h->store || h->unrecorded.code != 0)
        return;
    struct record record = {.origin = "tune",
                            .key = h->key,
                            .tuning = h->id,
                            .stage = tune_stage_name(h->stage),
                            .outcome = outcome_of(r, ended),
                            .started_at = clock_wall_s() - 1e-9 * (double)r->wall_ns,
                            .predicted_step_s = predicted(h, k),
                            .joules_per_token = energy_per(&r->energy, (double)r->tokens),
                            .peak_flops_per_s = machine_peak(&h->machine, k->precision, &peak_is)};
    if (record_trial(h->store, &record, k, r, &id, &h->unrecorded) == 0)
        remember(h, id, &h->unrecorded);
}

void history_stage(struct history *h, int stage) {
    const struct tune_decision *d = &h->tune->stages[stage];
    struct store_stage row = {.ordinal = stage,
                              .name = tune_stage_name((enum tune_stage)stage),
                              .decision = d->text,
                              .started_at = h->stage_began_at,
                              .ended_at = clock_wall_s()};
    h->stage_began_at = row.ended_at;
    h->stage = stage + 1 < STAGE_COUNT ? (enum tune_stage)(stage + 1) : STAGE_FINALISTS;
    if (h->store && h->unrecorded.code == 0)
        store_stage_add(h->store, h->id, &row, &h->unrecorded);
}

static int newest(void *arg, const struct store_trial *row) {
    if (row->steps > 0)
        *(int64_t *)arg = row->id;
    return 0;
}

// The trial that represents the chosen setting: the newest one of this search, else a reused one.
static int64_t chosen_trial(struct history *h) {
    char setting[HASH_TEXT_BYTES];
    int64_t id = 0;
    if (h->tune->chosen < 0 ||
        store_setting(&h->tune->settings[h->tune->chosen].knobs, setting, &h->unrecorded) != 0)
        return 0;
    struct store_filter f = {.key = h->key, .setting = setting, .tuning = h->id};
    store_trials(h->store, &f, newest, &id, &h->unrecorded);
    f.tuning = 0;
    if (id == 0)
        store_trials(h->store, &f, newest, &id, &h->unrecorded);
    return id;
}

static void put_hash(struct json_writer *w, const char *key, const struct knobs *k) {
    char setting[HASH_TEXT_BYTES];
    if (store_setting(k, setting, NULL) == 0)
        json_member_string(w, key, setting);
}

// What running in turns showed, for a page that is made from the store.
static void put_turns(struct json_writer *w, const struct tune *t) {
    json_put_object_begin(w);
    json_member_string(w, "why", tune_why_name(t->why));
    json_member_i64(w, "busy", t->busy);
    json_member_double(w, "busy_most", t->busy_most);
    json_member_i64(w, "moved", t->moved);
    apart_put_member(&t->cpus, w);
    if (t->rival >= 0 && t->rival < t->n)
        put_hash(w, "rival", &t->settings[t->rival].knobs);
    json_member_array(w, "settings");
    for (int i = 0; i < t->n; i++) {
        const struct tune_turns *x = &t->settings[i].turns;
        if (x->rounds == 0)
            continue;
        json_put_object_begin(w);
        put_hash(w, "setting", &t->settings[i].knobs);
        json_member_i64(w, "rounds", x->rounds);
        json_member_double(w, "ratio", x->ratio);
        json_member_double(w, "low", x->low);
        json_member_double(w, "high", x->high);
        json_member_double(w, "tokens_per_s", x->tokens_per_s);
        tune_put_states(x, w);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    json_put_object_end(w);
}

void history_finish(struct history *h, int rc, const char *verdict) {
    struct json_writer w;
    if (!h->store || h->unrecorded.code != 0)
        return;
    json_writer_to_buffer(&w, 0);
    put_turns(&w, h->tune);
    if (json_writer_finish(&w, &h->unrecorded) == 0)
        store_tuning_finish(h->store, h->id, rc == 0 ? TUNING_DONE : TUNING_STOPPED,
                            chosen_trial(h), verdict, w.buffer, &h->unrecorded);
    free(w.buffer);
}

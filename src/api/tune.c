// tune.c - haggle_tune: the request in words becomes a search, the search a recipe.
#include "api/tune.h"

#include "api/hybrid.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Of a trial that measures the gradient noise scale: steps, and the share of the time that it may take; three
// times as much where fewer than NOISE_LEAST steps would come of it.
enum { NOISE_STEPS = 40 };
static const double NOISE_SHARE = 0.1;

// ---------------------------------------------------------------- the request

static int read_limit(const char *flag, const char *text, uint64_t *out, struct err *e) {
    if (!text)
        return 0;
    TRY(text_parse_duration_ns(text, out, e) != 0 ? err_context(e, "--%s", flag) : 0);
    return *out > 0
               ? 0
               : err_set(e, ERR_USAGE, "--%s=%s; accepted: a time above 0, as 80ms", flag, text);
}

static int read_goal(const char *text, const struct knobs *k, enum tune_goal *out, struct err *e) {
    char own[KNOB_VALUE_BYTES];
    text = text ? text : knobs_value(k, KNOB_goal, own);
    for (int g = 0; g < TUNE_GOALS; g++)
        if (strcmp(text, tune_goal_name((enum tune_goal)g)) == 0) {
            *out = (enum tune_goal)g;
            return 0;
        }
    return err_set(e, ERR_USAGE, "--goal=%s; accepted: bulk, interactive, hybrid", text);
}

static int allow_one(unsigned *allow, const char *word, size_t n, struct err *e) {
    char known[128] = "";
    size_t used = 0;
    for (int a = 0; a < ALLOW_COUNT; a++) {
        const char *name = tune_allow_name((enum tune_allow)a);
        if (strlen(name) == n && strncmp(name, word, n) == 0) {
            *allow |= 1u << a;
            return 0;
        }
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", a ? ", " : "", name);
    }
    return err_set(e, ERR_USAGE, "--allow=%.*s; this build can move: %s", (int)n, word, known);
}

static int read_allow(const char *text, unsigned *out, struct err *e) {
    for (const char *at = text; at && *at;) {
        size_t n = strcspn(at, ",");
        TRY(allow_one(out, at, n, e));
        at += n + (at[n] == ',');
    }
    return 0;
}

// Another number of tokens per step changes the batch before the search begins.
static int set_tokens_per_step(struct knobs *k, int64_t tokens, struct err *e) {
    if (tokens == 0)
        return 0;
    if (tokens < k->seq || tokens % k->seq != 0)
        return err_set(
            e, ERR_USAGE, "--tokens-per-step=%lld; accepted: a multiple of seq (%lld), as %lld",
            (long long)tokens, (long long)k->seq, (long long)((tokens / k->seq + 1) * k->seq));
    const int64_t most = knob_info(KNOB_batch_micro)->most_int,
                  most_accum = knob_info(KNOB_batch_accum)->most_int;
    int64_t samples = tokens / k->seq, micro = k->batch_micro;
    while (micro > 1 && samples % micro != 0)
        micro--;
    // Where that is too many micro-batches, the next larger ones.
    while (micro <= most && (samples % micro != 0 || samples / micro > most_accum))
        micro++;
    if (micro > most)
        return err_set(
            e, ERR_USAGE,
            "--tokens-per-step=%lld is %lld sequences of seq=%lld; accepted: at most %lld x "
            "%lld of them (batch.micro x batch.accum), and a number that splits so",
            (long long)tokens, (long long)samples, (long long)k->seq, (long long)most,
            (long long)most_accum);
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)micro);
    TRY(knobs_set_at(k, KNOB_batch_micro, text, SET_BY_COMMAND_LINE, e));
    snprintf(text, sizeof text, "%lld", (long long)(samples / micro));
    return knobs_set_at(k, KNOB_batch_accum, text, SET_BY_COMMAND_LINE, e);
}

// The recipe that comes out says what it is for; a hybrid one is planned with its second configuration.
static int set_goal(struct tuning *t, const struct haggle_tune *o, struct err *e) {
    if (o->goal)
        TRY(knobs_set_at(&t->base, KNOB_goal, o->goal, SET_BY_COMMAND_LINE, e));
    return o->respond ? knobs_set_at(&t->base, KNOB_interactive_respond, o->respond,
                                     SET_BY_COMMAND_LINE, e)
                      : 0;
}

// Before the search: minutes of measuring are not lost to a path.
static int check_writable(const char *flag, const char *path, struct err *e) {
    char dir[PATH_MAX];
    if (!path)
        return 0;
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + (slash == path) : 1;
    if (!path[0] || strlen(path) >= sizeof dir)
        return err_set(e, ERR_USAGE, "--%s=%.80s; accepted: the path of a file", flag, path);
    if (file_is_dir(path) || path[strlen(path) - 1] == '/')
        return err_set(e, ERR_USAGE, "--%s=%s is a folder; accepted: the path of a file", flag,
                       path);
    memcpy(dir, slash ? path : ".", n);
    dir[n] = '\0';
    if (!file_is_dir(dir))
        return err_set(e, ERR_IO, "--%s=%s: there is no folder '%s'", flag, path, dir);
    if (access(dir, W_OK | X_OK) != 0)
        return err_set(e, ERR_IO, "--%s=%s: nothing can be written in '%s': %s", flag, path, dir,
                       strerror(errno));
    return file_check_replaceable(path, e) != 0 ? err_context(e, "--%s", flag) : 0;
}

// The page is written last, and the store is open meanwhile: one of them would be gone.
static int check_apart(const struct haggle_tune *o, struct err *e) {
    if (o->recipe && o->report && file_same_entry(o->recipe, o->report))
        return err_set(e, ERR_USAGE,
                       "--save=%s and --report=%s are the same file; accepted: two names, or "
                       "--report none",
                       o->recipe, o->report);
    char own[STORE_PATH_BYTES];
    const char *store = o->store;
    TRY(tune_store_path(&store, own, e));
    for (int i = 0; i < 2 && store; i++) {
        const char *path = i ? o->report : o->recipe;
        if (path && (file_same_entry(path, store) || file_same(path, store)))
            return err_set(e, ERR_USAGE, "--%s=%s is the store; accepted: a name of its own",
                           i ? "report" : "save", path);
    }
    return 0;
}

static int read_request(struct tuning *t, const struct haggle_tune *o, struct err *e) {
    struct tune_request *r = &t->request;
    r->time_ns = 180000000000;
    TRY(read_goal(o->goal, &t->base, &r->goal, e));
    TRY(read_limit("p50", o->p50, &r->limit_ns[TUNE_P50], e));
    TRY(read_limit("p95", o->p95, &r->limit_ns[TUNE_P95], e));
    TRY(read_limit("p99", o->p99, &r->limit_ns[TUNE_P99], e));
    TRY(read_limit("time", o->time, &r->time_ns, e));
    TRY(read_limit("respond", o->respond, &r->respond_ns, e));
    if (o->respond && r->goal != TUNE_HYBRID)
        return err_set(e, ERR_USAGE,
                       "--respond=%s with goal %s; accepted: with --goal hybrid, which answers "
                       "requests (--p99, --p95 and --p50 limit steps)",
                       o->respond, tune_goal_name(r->goal));
    if (!o->respond && r->goal == TUNE_HYBRID)
        r->respond_ns = t->base.interactive_respond; // the recipe's
    TRY(read_allow(o->allow, &r->allow, e));
    if (o->energy)
        TRY(text_parse_double(o->energy, &r->joules_per_token, e) != 0 ? err_context(e, "--energy")
                                                                       : 0);
    if (o->energy && !(r->joules_per_token > 0))
        return err_set(e, ERR_USAGE, "--energy=%s; accepted: joules per token, above 0", o->energy);
    TRY(check_writable("save", o->recipe, e));
    TRY(check_writable("report", o->report, e));
    TRY(check_apart(o, e));
    TRY(set_goal(t, o, e));
    return set_tokens_per_step(&t->base, o->tokens_per_step, e);
}

// ---------------------------------------------------------------- the laboratory, and a record of it

static int plan(void *arg, const struct knobs *k, struct tune_plan *out, struct err *e) {
    struct tuning *t = arg;
    return t->inner.plan(t->inner.arg, k, out, e);
}

static void add_second(const struct tuning *t, struct tune_measured *m) {
    if (m->memory_bytes > 0)
        m->memory_bytes += lab_second_bytes(t->lab); // a run will have it
}

static int recall(void *arg, const struct knobs *k, const struct tune_order *o,
                  struct tune_measured *out, struct err *e) {
    TRY(tune_store_recall(arg, k, o, out, e));
    add_second(arg, out);
    return 0;
}

static int measure(void *arg, const struct knobs *k, const struct tune_order *o,
                   struct tune_measured *out, struct err *e) {
    struct tuning *t = arg;
    if (!o->now)
        TRY(recall(t, k, o, out, e));
    if (out->n > 0)
        return 0;
    TRY(t->inner.measure(t->inner.arg, k, o, out, e));
    add_second(t, out);
    return 0;
}

static uint64_t now_ns(void *arg) {
    struct tuning *t = arg;
    return t->inner.clock_ns(t->inner.arg);
}

static void on_result(void *arg, const struct knobs *k, const struct trial_result *r,
                      enum tune_go ended) {
    tune_store_trial(arg, k, r, ended);
}

static void on_trial(void *arg, const struct tune *tune, const struct tune_setting *s,
                     const struct tune_measured *m) {
    struct tuning *t = arg;
    char text[TUNE_NAME_BYTES + 96];
    if (m->rc != 0)
        snprintf(text, sizeof text, "trial %d: %s: %.60s", tune->trials, s->name, m->reason);
    else
        snprintf(text, sizeof text, "trial %d: %s: %.0f tokens/s, %zu steps%s", tune->trials,
                 s->name, tune_tokens_per_s(s), s->n, m->reused ? " (from before)" : "");
    log_live(&t->call->log, text);
}

static void on_stage(void *arg, const struct tune *tune, int stage) {
    struct tuning *t = arg;
    const struct tune_decision *d = &tune->stages[stage];
    if (t->call->log.live)
        log_live_end(&t->call->log);
    log_put(&t->call->log, LOG_INFO, "%-32s %s", tune_stage_name((enum tune_stage)stage), d->text);
    tune_store_stage(t, stage);
}

// ---------------------------------------------------------------- the verb

// What a run is planned with: which programs it has, a second model where there is one, and what
// requests take.
static int find_options(struct tuning *t, struct session_options *out, struct knobs *second,
                        uint64_t *guest_bytes, struct err *e) {
    struct session s;
    struct hybrid h = {0};
    struct trainer_options o = {0};
    const struct shard_listener quiet = {0};
    int rc = plan_session(&s, &t->base, e);
    if (rc == 0)
        rc = hybrid_open(&h, &s, NULL, NULL, &quiet, e);
    if (rc == 0)
        hybrid_set_options(&h, &o);
    *guest_bytes = o.guest_bytes;
    *out = s.options;
    out->knobs = &t->base;
    if (rc == 0 && out->second) { // the session's own
        *second = *out->second;
        out->second = second;
    }
    hybrid_close(&h);
    session_close(&s);
    return rc;
}

static int open_lab(struct tuning *t, struct err *e) {
    struct session_options plan_options;
    struct knobs second;
    uint64_t guest_bytes;
    TRY(find_options(t, &plan_options, &second, &guest_bytes, e));
    struct lab_options o = {.session = &plan_options,
                            .guest_bytes = guest_bytes,
                            .stop = stop_flag(),
                            .on_result = on_result,
                            .on_result_arg = t,
                            .time_s = 1e-9 * (double)t->request.time_ns,
                            .all_types = t->request.allow >> ALLOW_PRECISION & 1};
    TRY(lab_open(&t->lab, &o, e));
    if (t->request.joules_per_token > 0 && lab_no_meter(t->lab)[0])
        return err_set(e, ERR_UNSUPPORTED,
                       "--energy=%g needs a meter, and this machine has none: %s",
                       t->request.joules_per_token, lab_no_meter(t->lab));
    t->inner = lab_table(t->lab);
    t->request.begin_ns = lab_begin_ns(t->lab);
    TRY(tune_predict_answers(&t->request, &t->base, e));
    char time[TEXT_UNIT_BYTES], room[TEXT_UNIT_BYTES];
    log_put(&t->call->log, LOG_INFO, "goal %s, %s to search; memory: %s, of which %s is head-room",
            tune_goal_name(t->request.goal), text_duration(time, 1e-9 * (double)t->request.time_ns),
            lab_have_is(t->lab), text_bytes(room, lab_headroom_bytes(t->lab)));
    if (t->request.answer_s > 0)
        log_put(&t->call->log, LOG_INFO,
                "requests go to a second model: %s of that memory, %s for a training sample",
                text_bytes(room, lab_second_bytes(t->lab)),
                text_duration(time, t->request.answer_s));
    return 0;
}

// Where the batch may move: beyond the noise scale more tokens per step hardly learn faster.
static int find_critical_batch(struct tuning *t, struct err *e) {
    struct noise_estimate *n = &t->noise;
    char text[NOISE_TEXT_BYTES];
    if (!(t->request.allow >> ALLOW_BATCH & 1))
        return 0;
    struct err why = {0};
    const double all_s = 1e-9 * (double)t->request.time_ns;
    int rc = lab_noise(t->lab, NOISE_STEPS, NOISE_SHARE * all_s, n, &why);
    if (rc == ERR_STOPPED)
        return err_set(e, rc, "%s", why.text);
    if (rc != 0) { // a recipe that does not run as it is; others may
        t->request.critical_samples = (double)(t->base.batch_micro * t->base.batch_accum);
        log_put(&t->call->log, LOG_WARN, "%s: larger batches are not tried", why.text);
        return 0;
    }
    log_put(&t->call->log, LOG_INFO, "gradient noise scale: %s", noise_text(text, n));
    if (n->n < NOISE_LEAST) {
        t->request.critical_samples = (double)(t->base.batch_micro * t->base.batch_accum);
        log_put(
            &t->call->log, LOG_WARN,
            "%lld steps of it fitted in three tenths of the time, %d are needed: larger batches "
            "are not tried",
            (long long)n->n, NOISE_LEAST);
    }
    // The upper end of what it may be: a batch is refused only when it is surely too large.
    double most = isfinite(n->tokens_high) ? n->tokens_high : n->tokens;
    if (n->n >= NOISE_LEAST && most > 0 && n->tokens > 0)
        t->request.critical_samples = most / n->tokens * n->sequences;
    return 0;
}

static int save_choice(struct tuning *t, const char *path, struct err *e) {
    struct knobs k = t->tune.settings[t->tune.chosen].knobs;
    // A run that nobody named is named after its recipe, which this is now: else training with the
    // choice would go on with the run of the recipe as given.
    if (k.by[KNOB_run_dir] == SET_BY_DEFAULT)
        k.run_dir[0] = '\0';
    TRY(knobs_save_recipe(&k, path, e));
    t->recipe_path = path;
    return 0;
}

static int search(struct tuning *t, const struct haggle_tune *o, struct err *e) {
    const struct tune_lab lab = {.arg = t,
                                 .plan = plan,
                                 .measure = measure,
                                 .clock_ns = now_ns,
                                 .recall = recall,
                                 .on_trial = on_trial,
                                 .on_stage = on_stage};
    TRY(tune_store_check(o->store, e));
    stop_plan_begin(); // there is nothing yet that a stop would have to save
    int rc = open_lab(t, e);
    stop_plan_end();
    TRY(rc);
    TRY(tune_store_open(t, o->store, e));
    TRY(find_critical_batch(t, e));
    rc = tune_run(&t->tune, &t->base, &t->request, &lab, e);
    if (t->call->log.live)
        log_live_end(&t->call->log);
    if (t->tune.chosen >= 0)
        tune_verdict(t);
    tune_store_finish(t, rc);
    if (rc == 0 && t->tune.chosen >= 0 && o->recipe)
        rc = save_choice(t, o->recipe, e);
    return rc;
}

// What there is of a search that was stopped, or that chose nothing, is worth a page too.
static void report(struct tuning *t, const struct haggle_tune *o) {
    struct err e = {0};
    if (!o->report || t->tune.n == 0)
        return;
    if (tune_report_write(t, o->report, &e) == 0)
        t->report_path = o->report;
    else
        log_put(&t->call->log, LOG_WARN, "no report: %s", e.text);
}

static int deliver(struct tuning *t, const struct haggle_tune *o, int rc, struct err *e) {
    struct call *c = t->call;
    if (rc == 0 && t->tune.chosen < 0)
        rc = err_set(e, tune_why_rc(&t->tune), "nothing was chosen: %s", t->tune.why_none);
    report(t, o);
    if (c->out && t->tune.n > 0)
        tune_print(t, o->format, c->out);
    if (c->wants_json) {
        call_json_begin(c, "tune", &t->base);
        tune_put_json(t, &c->json);
        if (rc != 0)
            call_json_error(&c->json, rc, e->text);
        json_put_object_end(&c->json);
    }
    if (t->unrecorded.code != 0)
        log_put(&c->log, LOG_WARN, "trials were not recorded: %s", t->unrecorded.text);
    if (t->unread.code != 0)
        log_put(&c->log, LOG_WARN, "trials of the store were measured again: %s", t->unread.text);
    return rc;
}

static int tune(struct call *c, const struct haggle_config *config, const struct haggle_tune *o,
                struct err *e) {
    struct tuning *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_MEMORY, "out of memory for a search");
    t->call = c;
    t->tune.chosen =
        -1; // also when the search does not begin: its results are delivered all the same
    t->base = config->knobs;
    int rc = knobs_name_run(&t->base, config->recipe[0] ? config->recipe : NULL, e);
    if (rc == 0)
        rc = machine_open(&t->machine, &t->base, MACHINE_KNOWN, e);
    t->request.cpus = t->machine.hw.usable_cpus;
    t->request.on_device = session_wants_device(&t->base);
    if (rc == 0)
        rc = read_request(t, o, e);
    if (rc == 0)
        rc = search(t, o, e);
    rc = t->lab ? deliver(t, o, rc, e) : rc;
    lab_close(t->lab);
    store_close(t->store);
    tune_free(&t->tune);
    free(t->used);
    free(t);
    return rc;
}

int haggle_tune(const struct haggle_config *config, const struct haggle_tune *options,
                const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, tune(&c, config, options, &c.err), e);
}

// tune.c - haggle_tune: reads the request, runs the search, writes the recipe and the page.
#include "api/api.h"

#include "base/file.h"
#include "base/text.h"
#include "report/tune_print.h"
#include "report/tune_report.h"
#include "serve/requests.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    return err_set(e, ERR_USAGE, "--goal=%s; accepted: bulk, interactive, hybrid, generate", text);
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
    return err_set(e, ERR_USAGE, "--allow=%.*s; accepted: %s", (int)n, word, known);
}

static int read_allow(const char *text, unsigned *out, struct err *e) {
    for (const char *at = text; at && *at;) {
        size_t n = strcspn(at, ",");
        TRY(allow_one(out, at, n, e));
        at += n + (at[n] == ',');
    }
    return 0;
}

// Changes the batch to the tokens per step that were asked for, before the search begins.
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
    // If that makes too many micro-batches, take the next larger size that divides.
    while (micro <= most && (samples % micro != 0 || samples / micro > most_accum))
        micro++;
    if (micro > most)
        return err_set(
            e, ERR_USAGE,
            "--tokens-per-step=%lld is %lld sequences of seq=%lld; accepted: a number that is "
            "batch.micro (at most %lld) x batch.accum (at most %lld)",
            (long long)tokens, (long long)samples, (long long)k->seq, (long long)most,
            (long long)most_accum);
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)micro);
    TRY(knobs_set_at(k, KNOB_batch_micro, text, SET_BY_COMMAND_LINE, e));
    snprintf(text, sizeof text, "%lld", (long long)(samples / micro));
    return knobs_set_at(k, KNOB_batch_accum, text, SET_BY_COMMAND_LINE, e);
}

// Sets the goal's knobs. The recipe that is written keeps them, and a hybrid run is planned with
// its second configuration.
static int set_goal(struct tuning *t, const struct haggle_tune *o, struct err *e) {
    if (o->goal)
        TRY(knobs_set_at(&t->base, KNOB_goal, o->goal, SET_BY_COMMAND_LINE, e));
    return o->respond ? knobs_set_at(&t->base, KNOB_interactive_respond, o->respond,
                                     SET_BY_COMMAND_LINE, e)
                      : 0;
}

// Called before the search, so that a bad path does not cost minutes of measuring.
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

// Recipe, page and store must be different files: a later one would overwrite an earlier one.
static int check_apart(const struct haggle_tune *o, bool has_store, struct err *e) {
    if (o->recipe && o->report && file_same_entry(o->recipe, o->report))
        return err_set(e, ERR_USAGE,
                       "--save=%s and --report=%s are the same file; accepted: two names, or "
                       "--report none",
                       o->recipe, o->report);
    char own[STORE_PATH_BYTES];
    const char *store = o->store;
    if (!has_store)
        return 0;
    TRY(history_path(&store, own, e));
    for (int i = 0; i < 2 && store; i++) {
        const char *path = i ? o->report : o->recipe;
        if (path && (file_same_entry(path, store) || file_same(path, store)))
            return err_set(e, ERR_USAGE, "--%s=%s is the store; accepted: another file",
                           i ? "report" : "save", path);
    }
    return 0;
}

int tune_check_outputs(const struct haggle_tune *o, bool store, struct err *e) {
    TRY(check_writable("save", o->recipe, e));
    TRY(check_writable("report", o->report, e));
    return check_apart(o, store, e);
}

// What belongs to the goal "generate" would have no effect here.
static int refuse_of_generate(const struct haggle_tune *o, enum tune_goal goal, struct err *e) {
    const char *flag = o->ttft            ? "ttft"
                       : o->itl           ? "itl"
                       : o->p             ? "p"
                       : o->batch         ? "batch"
                       : o->prompt_tokens ? "prompt-tokens"
                       : o->output_tokens ? "output-tokens"
                       : o->kl            ? "kl"
                       : o->data          ? "data"
                       : o->method        ? "method"
                                          : NULL;
    return flag ? err_set(e, ERR_USAGE, "--%s with goal %s; accepted: with --goal generate", flag,
                          tune_goal_name(goal))
                : 0;
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
        r->respond_ns = t->base.interactive_respond;
    TRY(read_allow(o->allow, &r->allow, e));
    if (o->energy)
        TRY(text_parse_double(o->energy, &r->joules_per_token, e) != 0 ? err_context(e, "--energy")
                                                                       : 0);
    if (o->energy && !(r->joules_per_token > 0))
        return err_set(e, ERR_USAGE, "--energy=%s; accepted: joules per token, above 0", o->energy);
    if (o->busy && strcmp(o->busy, "repeat") != 0 && strcmp(o->busy, "count") != 0)
        return err_set(e, ERR_USAGE, "--busy=%s; accepted: repeat, count", o->busy);
    TRY(refuse_of_generate(o, r->goal, e));
    TRY(tune_check_outputs(o, true, e));
    TRY(set_goal(t, o, e));
    return set_tokens_per_step(&t->base, o->tokens_per_step, e);
}

// ---------------------------------------------------------------- the verb

// The memory that the requests of a hybrid run take.
static int count_requests(const struct knobs *k, uint64_t *bytes, struct err *e) {
    const struct shard_listener quiet = {0};
    struct requests *r = NULL;
    struct plan p;
    int rc = plan_run(&p, k, e);
    if (rc == 0)
        rc = requests_of_plan(&r, &p, NULL, NULL, &quiet, e);
    *bytes = r ? requests_plan_bytes(r) : 0;
    requests_close(r);
    plan_free(&p);
    return rc;
}

static int save_choice(struct tuning *t, const char *path, struct err *e) {
    struct knobs k = t->tune.settings[t->tune.chosen].knobs;
    // A run without run.dir is named after its recipe, which is now this one. Otherwise training
    // with the choice would go on with the run of the recipe as given.
    if (k.by[KNOB_run_dir] == SET_BY_DEFAULT)
        k.run_dir[0] = '\0';
    TRY(knobs_save_recipe(&k, path, e));
    t->recipe_path = path;
    return 0;
}

static int search(struct tuning *t, const struct haggle_tune *o, struct err *e) {
    struct tuning_options options = {.store = o->store,
                                     .stop = stop_flag(),
                                     .count_busy = o->busy && strcmp(o->busy, "count") == 0};
    stop_plan_begin(); // nothing to save yet
    int rc = count_requests(&t->base, &options.request_bytes, e);
    if (rc == 0)
        rc = tuning_open(t, &options, e);
    stop_plan_end();
    if (rc == 0)
        rc = tuning_run(t, &options, e);
    if (rc == 0 && t->tune.chosen >= 0 && t->tune.why != TUNE_WHY_TOO_BUSY && o->recipe)
        rc = save_choice(t, o->recipe, e);
    return rc;
}

// A search that was stopped or decided nothing gets a page too, but not in place of an earlier one.
static void report(struct tuning *t, const struct haggle_tune *o) {
    struct err e = {0};
    const bool decided = t->tune.chosen >= 0 && t->tune.why != TUNE_WHY_TOO_BUSY;
    if (!o->report || t->tune.n == 0)
        return;
    if (!decided && access(o->report, F_OK) == 0) {
        log_put(t->log, LOG_INFO, "'%s' is of an earlier search and stays as it is", o->report);
        return;
    }
    if (tune_report_write(t, o->report, &e) == 0)
        t->report_path = o->report;
    else
        log_put(t->log, LOG_WARN, "no report: %s", e.text);
}

static int deliver(struct call *c, struct tuning *t, const struct haggle_tune *o, int rc,
                   struct err *e) {
    if (rc == 0 && t->tune.chosen < 0)
        rc = err_set(e, tune_why_rc(&t->tune), "nothing was chosen: %s", t->tune.why_none);
    else if (rc == 0 && t->tune.why == TUNE_WHY_TOO_BUSY)
        rc = err_set(e, ERR_BUSY,
                     "the machine was too busy to tell which setting is better; nothing was "
                     "changed or written");
    report(t, o);
    if (c->out && t->tune.n > 0)
        tune_print(t, (enum table_format)o->format, c->out);
    if (call_json_begin(c, "tune", &t->base)) {
        tune_put_json(t, &c->json);
        if (rc != 0)
            call_json_error(&c->json, rc, e->text);
        json_put_object_end(&c->json);
    }
    if (t->history.unrecorded.code != 0)
        log_put(&c->log, LOG_WARN, "trials were not recorded: %s", t->history.unrecorded.text);
    if (t->history.unread.code != 0)
        log_put(&c->log, LOG_WARN, "trials of the store were measured again: %s",
                t->history.unread.text);
    return rc;
}

static int tune(struct call *c, const struct haggle_config *config, const struct haggle_tune *o,
                struct err *e) {
    struct tuning *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_MEMORY, "out of memory for a search");
    t->log = &c->log;
    t->tune.chosen = -1; // results are delivered even when the search does not begin
    t->base = config->knobs;
    int rc = knobs_name_run(&t->base, config->recipe[0] ? config->recipe : NULL, e);
    if (rc == 0)
        rc = call_find_model(c, &t->base, e);
    if (rc == 0)
        rc = machine_open(&t->machine, &t->base, MACHINE_KNOWN, e);
    t->request.cpus = t->machine.hw.usable_cpus;
    t->request.on_device = plan_wants_device(&t->base);
    if (rc == 0)
        rc = read_request(t, o, e);
    if (rc == 0)
        rc = search(t, o, e);
    rc = t->lab ? deliver(c, t, o, rc, e) : rc;
    tuning_close(t);
    free(t);
    return rc;
}

int haggle_tune(const struct haggle_config *config, const struct haggle_tune *options,
                const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    const bool generate = options->goal && strcmp(options->goal, "generate") == 0;
    return call_end(&c,
                    generate ? tune_generate(&c, config, options, &c.err)
                             : tune(&c, config, options, &c.err),
                    e);
}

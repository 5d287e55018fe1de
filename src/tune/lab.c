// lab.c - see lab.h.
#include "tune/lab.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/text.h"
#include "measure/energy.h"
#include "plan/process.h"
#include "predict/predictor.h"
#include "train/buffers.h"
#include "tune/history.h"
#include "tune/worker.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HAVE_TEXT_BYTES = 160, UNTIMED_MOST = 8 };
// A step hangs if it takes HANG_TIMES its predicted time, and at least HANG_LEAST_S seconds. A
// start may take START_LIMIT_S. See run_trial for how the time left limits both.
static const double HANG_TIMES = 50, HANG_LEAST_S = 30, HANG_STEPS = 5, START_LIMIT_S = 300,
                    START_LEAST_S = 60, // a device's first start takes tens of seconds
    EXPLORE_LEAST_S = 10;
// Head-room: 1/50 of the memory, and at least what the libraries of two processes may differ by.
static const uint64_t HEADROOM_PARTS = 50, HEADROOM_LEAST = 8u << 20;

struct ready {              // what a child with an open backend found
    uint64_t have, process; // bytes available, bytes of the process; 0: not known
    char no_meter[ENERGY_WHY_BYTES];
    bool busy; // other processes used the device before this one did
};

struct lab {
    struct lab_options options;
    struct knobs base; // the recipe's
    struct plan plan;  // of the recipe; settings are planned like it
    struct dataset *data;
    struct buffers buffers;
    // `predictor` does not change during the search, because its predictions are compared with each
    // other. belief.c corrects them by what trials show. `learner` learns from trials, for the next
    // search.
    struct predictor *predictor, *learner;
    struct worker *worker;
    uint64_t started_ns; // when the worker's process began its first trial
    double start_s;      // how long a new process takes before its first step; 0: not known yet
    uint64_t begin_ns;
    uint64_t have_bytes;
    uint64_t process_bytes; // of the process of a run; 0: not known
    char have_is[HAVE_TEXT_BYTES];
    char no_meter[ENERGY_WHY_BYTES];
};

uint64_t lab_second_bytes(const struct lab *l) {
    return plan_second_bytes(&l->plan);
}

uint64_t lab_begin_ns(const struct lab *l) {
    return l->begin_ns;
}

const char *lab_have_is(const struct lab *l) {
    return l->have_is;
}

const char *lab_no_meter(const struct lab *l) {
    return l->no_meter;
}

uint64_t lab_headroom_bytes(const struct lab *l) {
    uint64_t part = l->have_bytes / HEADROOM_PARTS;
    // HEADROOM_LEAST would be all of a budget of a few MiB.
    uint64_t least = HEADROOM_LEAST < l->have_bytes / 8 ? HEADROOM_LEAST : l->have_bytes / 8;
    return part > least ? part : least;
}

// ---------------------------------------------------------------- work in a child

static void ask_meter(struct lab *l, struct ready *r) {
    struct energy_meter meter;
    energy_open(&meter, &(struct energy_options){.device = plan_wants_device(&l->base)});
    if (!meter.present)
        snprintf(r->no_meter, sizeof r->no_meter, "%s",
                 meter.why[0] ? meter.why : "none was found");
    struct others others = {.seconds = 1};
    others_of_device(&others, energy_device_used(&meter, clock_wall_s()));
    r->busy = plan_wants_device(&l->base) && others_notable(&others);
    energy_close(&meter);
}

// Finds out what only an open backend knows: the memory of a device, and what a process takes with
// its threads, libraries and kernels. A recipe that does not fit (ERR_MEMORY) also tells both.
static void ask_backend(struct lab *l, struct ready *r) {
    struct engine *g = NULL;
    struct plan_room room;
    ask_meter(l, r);
    int rc = engine_open(&g, NULL, NULL);
    if (rc == 0)
        rc = engine_ready(g, &l->plan, NULL);
    r->process = rc == 0 || rc == ERR_MEMORY ? l->plan.process_bytes : 0;
    l->plan.knobs.memory = 0; // in this child's copy: room is what exists, not the budget
    r->have = g && g->backend && engine_room(g, &l->plan, &room, NULL) == 0 ? room.bytes : 0;
    process_keep(&l->plan, engine_on_device(g));
    engine_close(g); // before calibration, which opens another engine
}

// The memory for settings: the budget, or what is available if that is less.
static void set_memory(struct lab *l, const struct ready *ready) {
    char text[TEXT_UNIT_BYTES], budget[TEXT_UNIT_BYTES];
    snprintf(l->no_meter, sizeof l->no_meter, "%s", ready->no_meter);
    l->process_bytes = ready->process;
    const bool device = plan_wants_device(&l->base) && ready->have > 0;
    const uint64_t have = device ? ready->have : plan_machine_room();
    text_bytes(text, have);
    text_bytes(budget, l->base.memory);
    l->have_bytes = have;
    if (l->base.memory > have)
        snprintf(l->have_is, sizeof l->have_is, "%s %s, less than the budget of %s", text,
                 device ? "on the device" : "available", budget);
    else if (l->base.memory > 0) {
        l->have_bytes = l->base.memory;
        snprintf(l->have_is, sizeof l->have_is, "the budget of %s%s", budget,
                 device ? " on the device" : "");
    } else
        snprintf(l->have_is, sizeof l->have_is, "%s %s", text,
                 device ? "on the device" : "available");
}

// Seconds for timing ops: long enough to average out short disturbances, if the search has time for
// that.
static double calibration_seconds(const struct lab *l) {
    const double all_s = l->options.time_s;
    return fmax(0.01 * all_s, fmin(0.5, 0.05 * all_s));
}

// A calibration runs at least CALIBRATED_BATCHES micro-batches. They may take CALIBRATE_MOST times
// calibration_seconds.
static const double CALIBRATED_BATCHES = 6, CALIBRATE_MOST = 10;
// The largest share of a step that may come from ops of other widths, from a roofline, or from ops
// that were timed while other programs were at work. Ops of another model or another element type
// say little about this one.
static const double GUESSED_MOST = 0.1;

// On the host ops are timed for long because other processes disturb them. A device's clock does
// not count these: a tenth of a second gives the same times as a quarter (docs/speed-log.md).
static const double DEVICE_CALIBRATE_S = 0.1;

// Settings whose ops must be timed: the recipe, a second model, other element types.
struct untimed {
    struct knobs knobs[UNTIMED_MOST];
    int n;
};

static void add_untimed(struct lab *l, const struct plan *plan, struct untimed *u) {
    struct predicted p;
    struct knobs k = plan->knobs;
    bool known = predictor_step(l->predictor, plan, &p, NULL) == 0 && p.calibrated &&
                 p.share[COST_FITTED] + p.share[COST_ROOFLINE] + p.busy_share < GUESSED_MOST;
    if (known || l->options.time_s <= 0 || u->n == UNTIMED_MOST)
        return;
    // A few turns of two micro-batches must not take the time of the search: if they are long, a
    // smaller micro-batch is timed.
    double turns_s =
        isfinite(p.seconds) ? CALIBRATED_BATCHES * p.seconds / (double)k.batch_accum : 0;
    for (; turns_s > CALIBRATE_MOST * calibration_seconds(l) && k.batch_micro > 1; turns_s /= 2)
        k.batch_micro = (k.batch_micro + 1) / 2;
    u->knobs[u->n++] = k;
}

// A setting that cannot be timed leaves the stored tables as they were.
static void calibrate(const struct lab *l, const struct knobs *k, bool busy) {
    struct calibrate_options o = {.seconds = calibration_seconds(l), .busy = busy};
    struct predictor *p = NULL;
    if (plan_wants_device(k) && o.seconds > DEVICE_CALIBRATE_S)
        o.seconds = DEVICE_CALIBRATE_S;
    if (predictor_open(&p, NULL, NULL) == 0 && predictor_calibrate(p, k, &o, NULL, NULL) == 0)
        predictor_store(p, NULL);
    predictor_close(p);
}

static int plan_setting(struct lab *l, const struct knobs *k, struct plan *p, struct err *e) {
    TRY(plan_like(p, &l->plan, k, e));
    TRY(buffers_count(&l->buffers, p, e));
    if (l->process_bytes > 0)
        plan_set_process(p, l->process_bytes, PLAN_MEASURED);
    else
        plan_set_process(p, l->plan.process_bytes, l->plan.process_how);
    return 0;
}

// Makes the micro-batch smaller until the setting fits, so that its ops can be timed. False: it
// never fits.
static bool shrink_to_fit(struct lab *l, struct knobs *k) {
    for (;; k->batch_micro /= 2) {
        struct plan p;
        const bool fits = plan_setting(l, k, &p, NULL) == 0 &&
                          plan_need_bytes(&p, p.device) <= l->have_bytes - lab_headroom_bytes(l);
        plan_free(&p);
        if (fits || k->batch_micro == 1)
            return fits;
    }
}

// Does all work that needs an open backend in one process, because the context of a device takes a
// second to make. The answers are sent before anything is timed, since timing may kill the process.
static void explore(struct lab *l, const struct untimed *u, int fd) {
    struct ready ready = {0};
    ask_backend(l, &ready);
    if (write(fd, &ready, sizeof ready) != (ssize_t)sizeof ready)
        return;
    set_memory(l, &ready);
    for (int i = 0; i < u->n; i++) {
        struct knobs k = u->knobs[i];
        if (shrink_to_fit(l, &k))
            calibrate(l, &k, ready.busy);
    }
    if (write(fd, "", 1) != 1)
        return;
}

// Finds out memory, meter and op times in a child. If the child dies or sends nothing, the rest
// stays unknown.
static void explore_in_child(struct lab *l, const struct untimed *u) {
    struct ready ready = {0};
    struct predictor *fresh = NULL;
    // A child that hangs must not cost more than the search was given.
    const double least_s = plan_wants_device(&l->base) ? START_LEAST_S : EXPLORE_LEAST_S;
    const uint64_t wait_ns =
        (uint64_t)(1e9 * fmin(START_LIMIT_S, fmax(least_s, l->options.time_s)));
    int ends[2];
    char done;
    bool told = false, whole = false;
    const pid_t child = pipe(ends) == 0 ? child_fork(ends) : -1;
    if (child == 0) {
        explore(l, u, ends[1]);
        _exit(0);
    }
    if (child > 0) {
        told = child_receive(ends[0], &ready, sizeof ready, NULL, clock_ns() + wait_ns) ==
               sizeof ready;
        whole = told && child_receive(ends[0], &done, 1, NULL, clock_ns() + wait_ns) == 1;
        close(ends[0]);
        if (!whole)
            kill(child, SIGKILL);
        child_wait(child);
    }
    if (!told)
        ready = (struct ready){.no_meter = "the process that looks for one died"};
    set_memory(l, &ready);
    if (u->n > 0 && predictor_open(&fresh, NULL, NULL) == 0) {
        predictor_close(l->predictor);
        l->predictor = fresh;
    }
}

// Times the element types that the search may choose. They change a step most, so a roofline is too
// inexact for them.
static void add_types(struct lab *l, struct untimed *u) {
    for (int p = 0; p < knob_info(KNOB_precision)->n_choices; p++) {
        struct plan plan;
        struct knobs k = l->base;
        if ((int)k.precision == p)
            continue;
        k.precision = (enum precision)p;
        if (plan_setting(l, &k, &plan, NULL) == 0)
            add_untimed(l, &plan, u);
        plan_free(&plan);
    }
}

// ---------------------------------------------------------------- opening

static int open_all(struct lab *l, struct err *e) {
    const struct worker_options plain = {0};
    const struct shard_listener quiet = {0};
    struct untimed untimed = {.n = 0};
    // The worker is forked first, before anything is open that the fork would copy.
    TRY(worker_open(&l->worker, &plain, e));
    TRY(plan_run(&l->plan, &l->base, e));
    TRY(buffers_open_data(&l->data, &l->plan, &quiet, e));
    l->buffers = (struct buffers){.data = l->data, .request_bytes = l->options.guest_bytes};
    TRY(buffers_count(&l->buffers, &l->plan, e));
    process_estimate(&l->plan);
    l->begin_ns = clock_ns();
    TRY(predictor_open(&l->predictor, NULL, e));
    add_untimed(l, &l->plan, &untimed);
    if (l->plan.second)
        add_untimed(l, l->plan.second, &untimed);
    if (l->options.all_types)
        add_types(l, &untimed);
    explore_in_child(l, &untimed);
    return predictor_open(&l->learner, NULL, e);
}

int lab_open(struct lab **out, const struct lab_options *o, struct err *e) {
    struct lab *l = *out = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_MEMORY, "out of memory for a search");
    l->options = *o;
    l->base = *o->knobs;
    // A search writes neither the folder nor the log of a run.
    l->base.run_dir[0] = l->base.log_trace[0] = '\0';
    l->base.resume = false;
    int rc = open_all(l, e);
    if (rc != 0) {
        lab_close(l);
        *out = NULL;
    }
    return rc;
}

void lab_close(struct lab *l) {
    if (!l)
        return;
    if (l->learner)
        predictor_store(l->learner, NULL); // a cache: after a failure ops are measured again
    predictor_close(l->learner);
    predictor_close(l->predictor);
    dataset_close(l->data);
    plan_free(&l->plan);
    worker_close(l->worker);
    free(l);
}

// ---------------------------------------------------------------- planning

static int plan(void *arg, const struct knobs *k, struct tune_plan *out, struct err *e) {
    struct lab *l = arg;
    struct plan setting;
    struct predicted p;
    struct err why = {0};
    char need[TEXT_UNIT_BYTES], room[TEXT_UNIT_BYTES];
    if (l->options.stop && *l->options.stop)
        return err_set(e, ERR_STOPPED, "stopped on request");
    out->step_s = NAN;
    out->have_bytes = l->have_bytes - lab_headroom_bytes(l);
    out->rc = plan_setting(l, k, &setting, &why);
    if (out->rc != 0) {
        snprintf(out->reason, sizeof out->reason, "%.500s", why.text);
        plan_free(&setting);
        return out->rc == ERR_MEMORY && why.text[0] == '\0'
                   ? err_set(e, ERR_MEMORY, "out of memory")
                   : 0;
    }
    out->need_bytes = plan_need_bytes(&setting, setting.device);
    if (predictor_step(l->predictor, &setting, &p, NULL) == 0) {
        out->step_s = p.seconds;
        out->guessed = !p.calibrated;
    }
    if (out->need_bytes > out->have_bytes) {
        out->rc = ERR_MEMORY;
        snprintf(out->reason, sizeof out->reason, "needs %s, more than %s minus %s of head-room",
                 text_bytes(need, out->need_bytes), l->have_is,
                 text_bytes(room, lab_headroom_bytes(l)));
    }
    plan_free(&setting);
    return 0;
}

// ---------------------------------------------------------------- measuring

struct trial_view {
    const struct tune_order *order;
    double *step_ns; // without the warm-up
    size_t n;
    int64_t seen;
    enum tune_go go; // what the judge said last
};

static bool judge(void *arg, const struct trial_sample *samples, int64_t n,
                  char reason[WORKER_REASON_BYTES]) {
    struct trial_view *v = arg;
    for (; v->seen < n; v->seen++)
        if (!samples[v->seen].warmup && (int64_t)v->n < v->order->steps)
            v->step_ns[v->n++] = (double)samples[v->seen].step_ns;
    if (!v->order->judge || v->n == 0)
        return false;
    v->go = v->order->judge(v->order->judge_arg, v->step_ns, v->n);
    static const char *const why[] = {"", "another setting is surely better",
                                      "a budget is surely broken", "precise enough"};
    snprintf(reason, WORKER_REASON_BYTES, "%s", why[v->go]);
    return v->go != TUNE_GO_ON;
}

static void learn(struct lab *l, const struct knobs *k, const struct trial_result *r) {
    const struct observed seen = {r->step_ns, r->steps, r->split, others_notable(&r->others)};
    struct plan setting;
    if (r->rc != 0)
        return;
    if (plan_setting(l, k, &setting, NULL) == 0)
        predictor_observe(l->learner, &setting, &seen, NULL);
    plan_free(&setting); // also when planning failed half-way
}

static int report(const struct lab *l, struct tune_measured *out, const struct knobs *k,
                  struct trial_result *r, struct err *e) {
    out->rc = r->rc;
    snprintf(out->reason, sizeof out->reason, "%.500s", r->rc != 0 ? r->reason : "");
    // If the process died, its steps are known but none of its figures: it counts as not measured.
    out->n = r->wall_ns > 0 ? (size_t)r->steps : 0;
    out->tokens = r->tokens;
    out->wall_ns = r->wall_ns;
    out->split = r->split;
    // On a device the planned memory is the device's. The peak of the process is not comparable.
    out->memory_bytes = plan_wants_device(k) ? 0 : r->memory_measured_bytes;
    out->joules = r->energy.joules;
    out->busy = l->options.count_busy ? NAN : others_share(&r->others);
    out->cpus = r->cpus;
    out->step_ns = malloc((out->n + 1) * sizeof *out->step_ns);
    if (!out->step_ns)
        return err_set(e, ERR_MEMORY, "out of memory for %zu samples", out->n);
    memcpy(out->step_ns, r->step_ns, out->n * sizeof *out->step_ns);
    return 0;
}

// Trials run without the second model, so its planned bytes are added.
static void add_second(const struct lab *l, struct tune_measured *m) {
    if (m->memory_bytes > 0)
        m->memory_bytes += lab_second_bytes(l);
}

static int recall(void *arg, const struct knobs *k, const struct tune_order *o,
                  struct tune_measured *out, struct err *e) {
    struct lab *l = arg;
    if (l->options.history)
        TRY(history_recall(l->options.history, k, o, out, e));
    if (l->options.count_busy)
        out->busy = NAN;
    add_second(l, out);
    return 0;
}

// How fast a process runs a setting also depends on the pages that its memory happens to get: two
// processes differ by some per cent for as long as they live. A run is a new process. So finalists
// are visited by new processes, as long as starting them takes at most this part of the time. A
// device has its own memory: there a new process costs seconds and runs at the same speed.
static const double RENEW_SHARE = 0.25;

static void renew(struct lab *l, const struct knobs *k) {
    if (!plan_wants_device(k) &&
        1e-9 * (double)(clock_ns() - l->started_ns) * RENEW_SHARE >= l->start_s)
        worker_renew(l->worker);
}

// Runs a trial. Of a new process it also notes how long the start took.
static int run_worker(struct lab *l, const struct worker_job *job, struct trial_result *r,
                      struct err *e) {
    const int64_t starts = worker_starts(l->worker);
    const uint64_t begin_ns = clock_ns();
    const bool first = l->started_ns == 0;
    TRY(worker_run(l->worker, job, r, e));
    if (!first && worker_starts(l->worker) == starts)
        return 0;
    l->started_ns = begin_ns;
    l->start_s = fmax(0, 1e-9 * ((double)(clock_ns() - begin_ns) - (double)r->wall_ns));
    return 0;
}

static int run_trial(struct lab *l, const struct knobs *k, const struct tune_order *o,
                     struct tune_measured *out, struct err *e) {
    struct trial_result r;
    struct trial_view view = {.order = o, .step_ns = calloc((size_t)o->steps, sizeof(double))};
    double hang_s =
        isfinite(o->step_s) ? fmax(HANG_TIMES * o->step_s, HANG_LEAST_S) : START_LIMIT_S;
    // A trial that hangs must leave time for other trials.
    const double most_s =
        fmax(o->left_s / 2,
             HANG_LEAST_S + (isfinite(o->step_s) ? HANG_STEPS * o->step_s : START_LIMIT_S));
    hang_s = fmin(hang_s, most_s);
    const double start_s = fmin(START_LIMIT_S + hang_s, fmax(most_s, START_LEAST_S + hang_s));
    struct worker_job job = {.knobs = k,
                             .warmup = o->warmup,
                             .steps = o->steps,
                             .stop = l->options.stop,
                             .start_limit_ns = (uint64_t)(1e9 * start_s),
                             .step_limit_ns = (uint64_t)(1e9 * hang_s),
                             .end_ns = clock_ns() + (uint64_t)(1e9 * fmax(o->left_s, 0)),
                             .judge = judge,
                             .judge_arg = &view};
    if (!view.step_ns)
        return err_set(e, ERR_MEMORY, "out of memory for %lld samples", (long long)o->steps);
    if (o->fresh)
        renew(l, k);
    int rc = run_worker(l, &job, &r, e);
    if (rc == 0)
        rc = report(l, out, k, &r, e);
    if (rc == 0) {
        learn(l, k, &r);
        add_second(l, out);
        if (l->options.history)
            history_add(l->options.history, k, &r, r.ended_early ? view.go : TUNE_GO_ON);
    }
    trial_free(&r);
    free(view.step_ns);
    return rc;
}

static int measure(void *arg, const struct knobs *k, const struct tune_order *o,
                   struct tune_measured *out, struct err *e) {
    if (!o->now)
        TRY(recall(arg, k, o, out, e));
    return out->n > 0 ? 0 : run_trial(arg, k, o, out, e);
}

// The trial ends at until_ns if it has enough steps for an estimate, else at last_ns.
struct patience {
    uint64_t until_ns, last_ns;
};

static bool is_late(void *arg, const struct trial_sample *samples, int64_t n,
                    char reason[WORKER_REASON_BYTES]) {
    const struct patience *p = arg;
    (void)samples;
    snprintf(reason, WORKER_REASON_BYTES, "its time is over");
    return clock_ns() > (n >= NOISE_LEAST ? p->until_ns : p->last_ns);
}

static int measure_noise(struct lab *l, const struct knobs *k, int64_t steps,
                         struct patience *patience, struct noise_estimate *out, struct err *e) {
    struct trial_result r;
    struct worker_job job = {.knobs = k,
                             .steps = steps,
                             .stop = l->options.stop,
                             .start_limit_ns = (uint64_t)(2e9 * START_LIMIT_S),
                             .step_limit_ns = (uint64_t)(1e9 * START_LIMIT_S),
                             .end_ns = patience->last_ns,
                             .judge = is_late,
                             .judge_arg = patience};
    int rc = worker_run(l->worker, &job, &r, e);
    *out = r.noise;
    if (rc == 0 && r.rc != 0)
        rc = err_set(e, r.rc, "the gradient noise scale: %.400s", r.reason);
    trial_free(&r);
    return rc;
}

int lab_noise(struct lab *l, int64_t steps, double seconds, struct noise_estimate *out,
              struct err *e) {
    const uint64_t now = clock_ns();
    struct patience patience = {now + (uint64_t)(1e9 * seconds), now + (uint64_t)(3e9 * seconds)};
    struct knobs k = l->base;
    // The first micro-batch must be smaller than the step.
    if (knobs_idle(&k, KNOB_noise_every) != NULL) {
        k.batch_accum = 2;
        k.batch_micro = k.batch_micro > 1 ? k.batch_micro / 2 : 1;
    }
    k.noise_every = 1;
    int rc = measure_noise(l, &k, steps, &patience, out, e);
    if (rc != ERR_MEMORY)
        return rc;
    // The same gradients with less memory: perhaps the recipe does not fit before it is tuned.
    k.batch_accum *= k.batch_micro;
    k.batch_micro = 1;
    k.recompute_mode = RECOMPUTE_MODE_FULL;
    k.recompute_every = 1;
    return measure_noise(l, &k, steps, &patience, out, e);
}

static uint64_t lab_clock(void *arg) {
    (void)arg;
    return clock_ns();
}

struct tune_lab lab_table(struct lab *l) {
    return (struct tune_lab){.arg = l,
                             .plan = plan,
                             .measure = measure,
                             .clock_ns = lab_clock,
                             .recall = l->options.history ? recall : NULL};
}

// lab.c - see lab.h.
#include "tune/lab.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/text.h"
#include "measure/energy.h"
#include "predict/predictor.h"
#include "train/second.h"
#include "train/trainer.h"
#include "tune/worker.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HAVE_TEXT_BYTES = 160, LOOK_MS = 100, UNTIMED_MOST = 8 };
// A step that takes this many times what was predicted, and so many seconds at least, hangs.
static const double HANG_TIMES = 50, HANG_LEAST_S = 30, HANG_STEPS = 5, START_LIMIT_S = 300,
                    START_LEAST_S = 60; // a device's first start takes tens of seconds
// Head-room: a fiftieth of what there is, and what a process's libraries may differ by.
static const uint64_t HEADROOM_PARTS = 50, HEADROOM_LEAST = 8u << 20;

struct ready {              // what a child with an open backend found
    uint64_t have, process; // bytes; 0: not known
    char no_meter[ENERGY_WHY_BYTES];
};

struct lab {
    struct lab_options options;
    struct session_options plan; // with knobs of its own:
    struct knobs base;
    struct knobs second; // where the plan has one
    struct session session;
    struct trainer *trainer;
    // All settings are planned with what was known when the search began: predictions are compared with each
    // other, and what trials show of them is belief.c's. The next search begins with what `learner` learnt.
    struct predictor *predictor, *learner;
    struct worker *worker;
    uint64_t begin_ns;
    uint64_t have_bytes;
    uint64_t process_bytes; // of a run, besides what is planned; 0: not known
    char have_is[HAVE_TEXT_BYTES];
    char no_meter[ENERGY_WHY_BYTES];
};

uint64_t lab_second_bytes(const struct lab *l) {
    return session_second_bytes(&l->session);
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
    // Of a budget of a few MiB the fixed part would be all there is.
    uint64_t least = HEADROOM_LEAST < l->have_bytes / 8 ? HEADROOM_LEAST : l->have_bytes / 8;
    return part > least ? part : least;
}

// ---------------------------------------------------------------- work in a child

// What a child wrote, whole; else it died or hangs.
static bool receive(int fd, char *out, size_t bytes) {
    const uint64_t until_ns = clock_ns() + (uint64_t)(1e9 * START_LIMIT_S);
    size_t got = 0;
    while (got < bytes) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, LOOK_MS) == 0) {
            if (clock_ns() > until_ns)
                return false;
            continue;
        }
        ssize_t n = read(fd, out + got, bytes - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        got += (size_t)n;
    }
    return true;
}

static void ask_meter(struct lab *l, struct ready *r) {
    struct energy_meter meter;
    energy_open(&meter, &(struct energy_options){.device = session_wants_device(&l->base)});
    if (!meter.present)
        snprintf(r->no_meter, sizeof r->no_meter, "%s",
                 meter.why[0] ? meter.why : "none was found");
    energy_close(&meter);
}

// What only an open backend knows: a device's memory, and what a process takes with its threads,
// libraries and kernels. A recipe that does not fit says as much.
static void ask_backend(struct lab *l, struct ready *r) {
    struct session_memory m;
    ask_meter(l, r);
    int rc = session_ready(&l->session, NULL);
    r->process = rc == 0 || rc == ERR_MEMORY ? l->session.process_bytes : 0;
    l->session.knobs.memory = 0; // of this process's copy: what there is, not what may be had
    r->have = l->session.backend && session_memory(&l->session, &m, NULL) == 0 ? m.have : 0;
}

// The budget, or what there is where that is less: a budget makes no memory.
static void set_memory(struct lab *l, const struct ready *ready) {
    char text[TEXT_UNIT_BYTES], budget[TEXT_UNIT_BYTES];
    snprintf(l->no_meter, sizeof l->no_meter, "%s", ready->no_meter);
    l->process_bytes = ready->process;
    const bool device = session_wants_device(&l->base) && ready->have > 0;
    const uint64_t have = device ? ready->have : mem_machine_available_bytes() / 20 * 19;
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

static uint64_t need_of(const struct session *s) {
    return session_wants_device(&s->knobs) ? session_arena_bytes(s) : session_predicted_bytes(s);
}

// Long enough to see past what disturbs a machine for a moment, where there is time for that.
static double calibration_seconds(const struct lab *l) {
    const double all_s = l->options.time_s;
    return fmax(0.01 * all_s, fmin(0.5, 0.05 * all_s));
}

// Micro-batches that a calibration runs at least, and how many times the seconds for it they may take.
static const double CALIBRATED_BATCHES = 6, CALIBRATE_MOST = 10;
// Of a step, from ops of other widths or by a roofline: another model's ops, or another type's, say little of these.
static const double GUESSED_MOST = 0.1;

// Others' work is what a host's ops are timed for so long for. It is not on a device's clock: what a tenth of a second
// says is what a quarter of one does (docs/speed-log.md).
static const double DEVICE_CALIBRATE_S = 0.1;

// Settings whose ops are to be timed: the recipe's, a second model's, those of other types.
struct untimed {
    struct knobs knobs[UNTIMED_MOST];
    int n;
};

static void add_untimed(struct lab *l, const struct session *s, struct untimed *u) {
    struct predicted p;
    struct knobs k = s->knobs;
    bool known = predictor_step(l->predictor, s, &p, NULL) == 0 && p.calibrated &&
                 p.share[COST_FITTED] + p.share[COST_ROOFLINE] < GUESSED_MOST;
    if (known || l->options.time_s <= 0 || u->n == UNTIMED_MOST)
        return;
    // A few turns of two micro-batches must not take a search's time: of long ones less is timed.
    double turns_s =
        isfinite(p.seconds) ? CALIBRATED_BATCHES * p.seconds / (double)k.batch_accum : 0;
    for (; turns_s > CALIBRATE_MOST * calibration_seconds(l) && k.batch_micro > 1; turns_s /= 2)
        k.batch_micro = (k.batch_micro + 1) / 2;
    u->knobs[u->n++] = k;
}

// One that cannot be timed leaves the predictor as it was.
static void calibrate(const struct lab *l, const struct knobs *k) {
    struct calibrate_options o = {.seconds = calibration_seconds(l)};
    struct predictor *p = NULL;
    if (session_wants_device(k) && o.seconds > DEVICE_CALIBRATE_S)
        o.seconds = DEVICE_CALIBRATE_S;
    if (predictor_open(&p, NULL, NULL) == 0 && predictor_calibrate(p, k, &o, NULL, NULL) == 0)
        predictor_store(p, NULL);
    predictor_close(p);
}

// All that needs an open backend, in one process: a device's context takes a second to make. What was asked is
// sent before anything is timed, which may be the end of the process.
static void explore(struct lab *l, const struct untimed *u, int fd) {
    const uint64_t need = need_of(&l->session);
    struct ready ready = {0};
    ask_backend(l, &ready);
    if (write(fd, &ready, sizeof ready) != (ssize_t)sizeof ready)
        return;
    set_memory(l, &ready);
    session_close(&l->session); // of this process: timing has one of its own, and takes as much
    const bool fits = need <= l->have_bytes - lab_headroom_bytes(l);
    for (int i = 0; fits && i < u->n; i++)
        calibrate(l, &u->knobs[i]);
    if (write(fd, "", 1) != 1)
        return;
}

// Memory, meter and op times. A child that dies, or of which nothing comes, leaves unknown what it did not say.
static void explore_in_child(struct lab *l, const struct untimed *u) {
    struct ready ready = {0};
    struct predictor *fresh = NULL;
    int ends[2] = {-1, -1};
    char done;
    const pid_t owner = getpid(), child = pipe(ends) == 0 ? fork() : -1;
    if (child == 0) {
        child_begin(owner);
        close(ends[0]);
        explore(l, u, ends[1]);
        _exit(0);
    }
    close(ends[1]);
    const bool told = child > 0 && receive(ends[0], (char *)&ready, sizeof ready);
    const bool whole = told && receive(ends[0], &done, sizeof done);
    close(ends[0]);
    if (child > 0 && !whole)
        kill(child, SIGKILL);
    if (child > 0)
        child_wait(child);
    if (!told)
        ready = (struct ready){.no_meter = "it is not known whether there is one"};
    set_memory(l, &ready);
    if (u->n > 0 && predictor_open(&fresh, NULL, NULL) == 0) {
        predictor_close(l->predictor);
        l->predictor = fresh;
    }
}

static int plan_session_of(struct lab *l, const struct knobs *k, struct session *s, struct err *e) {
    struct session_options o = l->plan;
    o.knobs = k;
    TRY(session_plan(s, &o, e));
    TRY(trainer_plan_memory(l->trainer, s, e));
    if (l->process_bytes > s->process_bytes)
        s->process_bytes = l->process_bytes;
    return 0;
}

// Of types that may be chosen a roofline would say too little: they are what changes a step most.
static void add_types(struct lab *l, struct untimed *u) {
    for (int p = 0; p < knob_info(KNOB_precision)->n_choices; p++) {
        struct session s;
        struct knobs k = l->base;
        if ((int)k.precision == p)
            continue;
        k.precision = (enum precision)p;
        if (plan_session_of(l, &k, &s, NULL) == 0)
            add_untimed(l, &s, u);
        session_close(&s);
    }
}

// ---------------------------------------------------------------- opening

static int open_all(struct lab *l, struct err *e) {
    const struct trainer_options o = {.guest_bytes = l->options.guest_bytes};
    const struct worker_options plain = {0};
    struct untimed untimed = {.n = 0};
    TRY(worker_open(&l->worker, &plain,
                    e)); // the first thing: nothing is open yet that it would copy
    TRY(session_plan(&l->session, &l->plan, e));
    TRY(trainer_open(&l->trainer, &l->session, &o, e));
    l->begin_ns = clock_ns();
    TRY(predictor_open(&l->predictor, NULL, e));
    add_untimed(l, &l->session, &untimed);
    if (l->session.second)
        add_untimed(l, &l->session.second->session, &untimed);
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
    l->plan = *o->session;
    l->base = *o->session->knobs;
    // A search writes no run: neither its folder nor its log.
    l->base.run_dir[0] = l->base.log_trace[0] = '\0';
    l->base.resume = false;
    l->plan.knobs = &l->base;
    if (l->plan.second) {
        l->second = *l->plan.second;
        l->plan.second = &l->second;
    }
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
        predictor_store(l->learner, NULL); // a cache: what cannot be kept is measured again
    predictor_close(l->learner);
    predictor_close(l->predictor);
    trainer_close(l->trainer);
    session_close(&l->session);
    worker_close(l->worker);
    free(l);
}

// ---------------------------------------------------------------- planning

static int plan(void *arg, const struct knobs *k, struct tune_plan *out, struct err *e) {
    struct lab *l = arg;
    struct session s;
    struct predicted p;
    struct err why = {0};
    char need[TEXT_UNIT_BYTES], room[TEXT_UNIT_BYTES];
    if (l->options.stop && *l->options.stop)
        return err_set(e, ERR_STOPPED, "stopped on request");
    out->step_s = NAN;
    out->have_bytes = l->have_bytes - lab_headroom_bytes(l);
    out->rc = plan_session_of(l, k, &s, &why);
    if (out->rc != 0) {
        snprintf(out->reason, sizeof out->reason, "%.500s", why.text);
        session_close(&s);
        return out->rc == ERR_MEMORY && why.text[0] == '\0'
                   ? err_set(e, ERR_MEMORY, "out of memory")
                   : 0;
    }
    out->need_bytes = need_of(&s);
    if (predictor_step(l->predictor, &s, &p, NULL) == 0) {
        out->step_s = p.seconds;
        out->guessed = !p.calibrated;
    }
    if (out->need_bytes > out->have_bytes) {
        out->rc = ERR_MEMORY;
        snprintf(out->reason, sizeof out->reason, "needs %s, more than %s less %s of head-room",
                 text_bytes(need, out->need_bytes), l->have_is,
                 text_bytes(room, lab_headroom_bytes(l)));
    }
    session_close(&s);
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
    struct session s;
    if (r->rc != 0)
        return;
    if (plan_session_of(l, k, &s, NULL) == 0)
        predictor_observe(l->learner, &s, r, NULL);
    session_close(&s); // also when it could not be planned to the end
}

static int report(struct tune_measured *out, const struct knobs *k, struct trial_result *r,
                  struct err *e) {
    out->rc = r->rc;
    snprintf(out->reason, sizeof out->reason, "%.500s", r->rc != 0 ? r->reason : "");
    out->n = r->wall_ns > 0 ? (size_t)r->steps : 0; // a process that died left steps and no figures
    out->tokens = r->tokens;
    out->wall_ns = r->wall_ns;
    out->split = r->split;
    // On a device the process's peak is not what was planned: better unknown than compared.
    out->memory_bytes = session_wants_device(k) ? 0 : r->memory_measured_bytes;
    out->joules = r->energy.joules;
    out->step_ns = malloc((out->n + 1) * sizeof *out->step_ns);
    if (!out->step_ns)
        return err_set(e, ERR_MEMORY, "out of memory for %zu samples", out->n);
    memcpy(out->step_ns, r->step_ns, out->n * sizeof *out->step_ns);
    return 0;
}

static int measure(void *arg, const struct knobs *k, const struct tune_order *o,
                   struct tune_measured *out, struct err *e) {
    struct lab *l = arg;
    struct trial_result r;
    struct trial_view view = {.order = o, .step_ns = calloc((size_t)o->steps, sizeof(double))};
    double hang_s =
        isfinite(o->step_s) ? fmax(HANG_TIMES * o->step_s, HANG_LEAST_S) : START_LIMIT_S;
    // One that hangs must leave time for others.
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
                             .judge = judge,
                             .judge_arg = &view};
    if (!view.step_ns)
        return err_set(e, ERR_MEMORY, "out of memory for %lld samples", (long long)o->steps);
    int rc = worker_run(l->worker, &job, &r, e);
    if (rc == 0)
        rc = report(out, k, &r, e);
    if (rc == 0) {
        learn(l, k, &r);
        if (l->options.on_result)
            l->options.on_result(l->options.on_result_arg, k, &r,
                                 r.ended_early ? view.go : TUNE_GO_ON);
    }
    trial_free(&r);
    free(view.step_ns);
    return rc;
}

struct patience {
    uint64_t until_ns, last_ns; // without enough steps for an estimate
};

static bool is_late(void *arg, const struct trial_sample *samples, int64_t n,
                    char reason[WORKER_REASON_BYTES]) {
    const struct patience *p = arg;
    (void)samples;
    snprintf(reason, WORKER_REASON_BYTES, "no more time for it");
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
    if (k.batch_accum < 2) { // the first micro-batch must be less than the step
        k.batch_accum = 2;
        k.batch_micro = k.batch_micro > 1 ? k.batch_micro / 2 : 1;
    }
    k.noise_every = 1;
    int rc = measure_noise(l, &k, steps, &patience, out, e);
    if (rc != ERR_MEMORY)
        return rc;
    // The same gradients with less memory: the recipe may be one that needs tuning to run at all.
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
    return (struct tune_lab){.arg = l, .plan = plan, .measure = measure, .clock_ns = lab_clock};
}

// trial.c - see trial.h. A trial trains with the ordinary trainer and an observer that records the
// measurements. A child sends its result through a pipe: the bytes of the struct, then those of the
// samples.
#include "train/trial.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/mem.h"
#include "train/buffers.h"
#include "train/crew.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// ---------------------------------------------------------------- what stays between trials

int trial_desk_open(struct trial_desk *d, bool keep, struct err *e) {
    *d = (struct trial_desk){0};
    return engine_open(&d->engine, &(struct engine_options){.keep = keep}, e);
}

void trial_desk_close(struct trial_desk *d) {
    engine_close(d->engine);
    dataset_close(d->data);
    *d = (struct trial_desk){0};
}

// The knobs that the dataset depends on: all data.* that change what is trained, and the place of
// the cache.
static bool same_data(const struct knobs *a, const struct knobs *b) {
    static const int more[] = {KNOB_model, KNOB_seed, KNOB_seq, KNOB_tokenizer, KNOB_data_cache};
    for (int id = 0; id < KNOB_COUNT; id++) {
        const struct knob_info *info = knob_info(id);
        if (strncmp(info->name, "data.", 5) == 0 && info->flags & KNOB_MATH &&
            !knobs_same(a, b, id))
            return false;
    }
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (!knobs_same(a, b, more[i]))
            return false;
    return true;
}

static int desk_data(struct trial_desk *d, struct plan *p, const struct shard_listener *listener,
                     const struct dataset **out, struct err *e) {
    if (d->data && !same_data(&d->data_knobs, &p->knobs)) {
        dataset_close(d->data);
        d->data = NULL;
    }
    if (!d->data)
        TRY(buffers_open_data(&d->data, p, listener, e));
    d->data_knobs = p->knobs;
    *out = d->data;
    return 0;
}

// ---------------------------------------------------------------- measuring

struct recorder {
    const struct trial_options *options;
    struct trial_result *out;
    uint64_t begin_ns;
    int64_t seen; // steps run, with warm-up
    bool sound;   // the last step left weights that can be trained further
    double begin_joules;
    struct others_mark begin_others;
    const struct engine *engine;
    bool on_device;
};

// A busy machine may hide the CPUs for a moment, and what a trial shows at its beginning and end
// matters most: an answer is asked for twice.
static void look_at_cpus(struct recorder *r) {
    double ns = NAN;
    for (int i = 0; i < 2 && !r->on_device && isnan(ns); i++)
        ns = apart_measure(r->engine->pool);
    apart_add(&r->out->cpus, ns);
}

static int on_start(void *arg, const struct train_start *start, struct err *e) {
    struct recorder *r = arg;
    (void)e;
    r->begin_joules = energy_read(start->energy);
    others_mark(&r->begin_others, NULL);
    energy_use_of(&r->out->energy, start->energy, NAN);
    look_at_cpus(r);
    return 0;
}

static void record(struct recorder *r, const struct train_step *step) {
    struct trial_result *out = r->out;
    if (out->steps == 0) {
        r->begin_ns = step->begin_ns;
        out->loss_first = step->loss;
    }
    struct time_split last;
    trace_last(step->trace, &last);
    time_split_add(&out->split, &last);
    out->step_ns[out->steps++] = (double)step->step_ns;
    out->wall_ns = step->begin_ns + step->step_ns - r->begin_ns;
    out->tokens += (uint64_t)step->tokens;
    out->real_tokens += (uint64_t)step->real_tokens;
    out->trained_tokens += (uint64_t)step->trained_tokens;
    data_use_add(&out->data, &step->data);
    out->loss_last = step->loss;
}

// The meter and other programs are looked at only where the measured steps begin and end, because
// that may take as long as a small step. The trainer looks at the CPUs more often.
static void look_around(struct recorder *r, const struct train_step *step) {
    struct others_mark now;
    energy_use_of(&r->out->energy, step->energy, energy_read(step->energy) - r->begin_joules);
    others_mark(&now, NULL);
    others_between(&r->out->others, &r->begin_others, &now);
    if (r->on_device)
        others_of_device(
            &r->out->others,
            energy_device_disturbed(step->energy, clock_wall_s() - r->out->others.seconds));
    look_at_cpus(r);
}

static int on_step(void *arg, const struct train_step *step, struct err *e) {
    struct recorder *r = arg;
    const struct trial_observer *ob = &r->options->observer;
    const bool warmup = r->seen++ < r->options->warmup;
    r->out->warmup += warmup;
    r->sound = isfinite(step->loss) && !step->skipped;
    if (step->noise != NULL)
        r->out->noise = *step->noise;
    if (warmup && r->seen == r->options->warmup) {
        r->begin_joules = energy_read(step->energy);
        others_mark(&r->begin_others, NULL);
        r->out->cpus = (struct apart){0};
        look_at_cpus(r);
    }
    if (!warmup && r->out->steps < r->options->steps) {
        record(r, step);
        apart_add(&r->out->cpus, step->apart_ns);
        if (r->out->steps == r->options->steps)
            look_around(r, step);
    }
    if (!ob->on_step)
        return 0;
    const struct trial_sample sample = {.begin_ns = step->begin_ns,
                                        .step_ns = step->step_ns,
                                        .data_wait_ns = step->data_wait_ns,
                                        .loss = step->loss,
                                        .warmup = warmup};
    int rc = ob->on_step(ob->arg, &sample, e);
    r->out->ended_early = rc == ERR_STOPPED;
    if (r->out->ended_early && r->out->steps > 0)
        look_around(r, step);
    return rc;
}

static void on_progress(void *arg, const struct shard_progress *p) {
    const struct trial_observer *ob = &((const struct recorder *)arg)->options->observer;
    (void)p;
    if (ob->on_progress)
        ob->on_progress(ob->arg);
}

// The knobs of a run that only does steps: no validation, no files, no resume.
static struct knobs bare_knobs(const struct knobs *k, const struct trial_options *o) {
    struct knobs bare = *k;
    bare.steps = o->warmup + o->steps;
    bare.epochs = 0;
    bare.time = 0;
    bare.eval_every = 0;
    bare.save_every = 0;
    bare.save_last = bare.save_best = false;
    bare.stop_patience = 0;
    bare.resume = false;
    bare.run_dir[0] = '\0'; // neither created nor locked: another run may use it
    bare.log_trace[0] = '\0';
    bare.generate_tokens = 0;
    return bare;
}

// Ranks of a trial are threads. They leave nothing for the next trial.
static int run(struct trial_desk *d, struct plan *p, struct trainer *t, struct crew *c,
               struct recorder *r, struct err *e) {
    const struct crew_options o = {
        .knobs = &p->knobs, .data = trainer_dataset(t), .stop = r->options->stop};
    struct train_result result;
    if (c)
        TRY(crew_lead(c, &o, t, d->engine, p, e));
    const int rc = trainer_run(t, &result, e);
    if (c)
        r->out->memory_predicted_bytes = result.metrics.memory_predicted_bytes; // of all ranks
    if (c && train_ended_together(rc, result.end))
        (void)crew_done(crew_leader(c), NULL);
    return rc;
}

static int train(struct trial_desk *d, struct plan *p, struct crew *c, struct recorder *r,
                 struct err *e) {
    struct trial_result *out = r->out;
    struct trainer_options o = {.observer = {.arg = r,
                                             .on_start = on_start,
                                             .on_step = on_step,
                                             .on_progress = on_progress},
                                .stop = r->options->stop};
    const struct shard_listener listener = {.arg = r, .progress = on_progress};
    struct trainer *t = NULL;
    const bool peak_is_ours = mem_process_reset_peak() == 0;
    TRY(desk_data(d, p, &listener, &o.data, e));
    int rc = trainer_open(&t, p, d->engine, &o, e);
    r->on_device = rc == 0 && plan_wants_device(&p->knobs);
    if (rc == 0) {
        rc = run(d, p, t, c, r, e);
        const struct session *s = d->engine->session;
        out->started = s && s->exec;
        out->kept_weights = s && s->kept_weights;
        // A process that has run other trials must reset its peak first. A new one need not.
        if (r->on_device)
            out->memory_measured_bytes = engine_device_bytes(d->engine);
        else if (peak_is_ours || !d->engine->options.keep)
            out->memory_measured_bytes = engine_process_peak_bytes(d->engine);
    }
    trainer_close(t);
    return rc;
}

// The split of the knobs, and a crew where it has several ranks.
static int open_ranks(struct trial_desk *d, const struct knobs *k, struct plan_split *split,
                      struct crew **crew, struct err *e) {
    TRY(plan_split_of(k, split, e));
    const int world = split->data * split->tensor * split->pipe;
    d->engine->options.comm = NULL;
    if (world == 1)
        return 0;
    TRY(crew_open(crew, world, k->comm_timeout, e));
    d->engine->options.comm = crew_leader(*crew);
    return 0;
}

int trial_measure(struct trial_desk *d, const struct knobs *k, const struct trial_options *o,
                  struct trial_result *out, struct err *e) {
    const struct knobs bare = bare_knobs(k, o);
    struct plan_split split;
    const struct plan_options po = {
        .knobs = &bare, .programs = {PLAN_TRAIN}, .real = DTYPE_F32, .split = &split};
    struct recorder recorder = {.options = o, .out = out, .engine = d->engine};
    struct crew *crew = NULL;
    struct plan p = {.prefix = ""};
    int rc = open_ranks(d, &bare, &split, &crew, e);
    if (rc == 0)
        rc = plan_make(&p, &po, e);
    if (rc == 0) {
        memcpy(out->by_class, p.layout.by_class, sizeof out->by_class);
        plan_step_cost(&p, &out->cost);
        out->flops = p.flops;
        rc = train(d, &p, crew, &recorder, e);
    }
    crew_close(crew, rc != 0 && rc != ERR_STOPPED, e ? e->text : err_phrase(rc));
    if (!crew || out->memory_predicted_bytes == 0)
        out->memory_predicted_bytes = engine_total_bytes(d->engine, &p);
    if (rc == ERR_STOPPED && out->ended_early) { // the observer ended it
        err_clear(e);
        rc = 0;
    }
    // If the last gradients were not finite, the next trial must not use these weights.
    if (rc == 0 && recorder.sound)
        engine_state_sound(d->engine);
    engine_unload(d->engine);
    d->engine->options.comm = NULL;
    plan_free(&p);
    if (rc == 0 && out->steps == 0 && !out->ended_early)
        rc = err_set(e, ERR_INTERNAL, "no step was measured");
    return rc;
}

// ---------------------------------------------------------------- in the child

// Never returns. It uses _exit, so that the parent's streams are not flushed and its handlers do
// not run.
_Noreturn static void be_child(int fd, const struct knobs *k, const struct trial_options *o,
                               struct trial_result *out) {
    struct err e = {0};
    const struct trial_options alone = {.warmup = o->warmup, .steps = o->steps};
    struct trial_desk desk;
    out->rc = trial_desk_open(&desk, false, &e);
    if (out->rc == 0)
        out->rc = trial_measure(&desk, k, &alone, out, &e);
    if (out->rc != 0)
        snprintf(out->reason, sizeof out->reason, "%s", e.text[0] ? e.text : err_phrase(out->rc));
    bool sent = child_send(fd, out, sizeof *out) &&
                child_send(fd, out->step_ns, (size_t)out->steps * sizeof *out->step_ns);
    _exit(sent ? 0 : 1);
}

// ---------------------------------------------------------------- in the parent

// For a child that sent no complete result: explains its end by its exit status.
void trial_explain(struct trial_result *out, int status) {
    out->rc = ERR_INTERNAL;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        out->rc = ERR_MEMORY;
        snprintf(out->reason, sizeof out->reason,
                 "the kernel killed its process, most likely because memory ran out");
    } else if (WIFSIGNALED(status))
        snprintf(out->reason, sizeof out->reason, "its process ended with signal %d (%s)",
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(out->reason, sizeof out->reason, "its process ended with status %d",
                 WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

static int collect(pid_t child, int fd, const struct trial_options *o, struct trial_result *out,
                   struct err *e) {
    struct trial_result sent;
    double *samples = out->step_ns; // the pointer in `sent` is the child's
    bool whole = child_receive(fd, &sent, sizeof sent, o->stop, UINT64_MAX) == sizeof sent &&
                 sent.steps >= 0 && sent.steps <= o->steps;
    if (whole) {
        *out = sent;
        out->step_ns = samples;
        size_t bytes = (size_t)out->steps * sizeof *samples;
        whole = child_receive(fd, samples, bytes, o->stop, UINT64_MAX) == bytes;
    }
    const bool stopped = !whole && o->stop && *o->stop;
    if (stopped)
        kill(child, SIGKILL);
    const int status = child_wait(child);
    if (stopped)
        return err_set(e, ERR_STOPPED, "stopped on request");
    if (!whole) {
        trial_explain(out, status);
        out->steps = 0;
    }
    return 0;
}

int trial_open(struct trial_result *out, const struct trial_options *o, struct err *e) {
    *out = (struct trial_result){.loss_first = NAN, .loss_last = NAN, .energy.joules = NAN};
    if (o->steps < 1 || o->steps > TRIAL_MOST_STEPS || o->warmup < 0)
        return err_set(e, ERR_USAGE, "%lld steps after %lld warm-up steps; accepted: 1 to %d steps",
                       (long long)o->steps, (long long)o->warmup, TRIAL_MOST_STEPS);
    out->step_ns = malloc((size_t)o->steps * sizeof *out->step_ns);
    if (!out->step_ns)
        return err_set(e, ERR_MEMORY, "out of memory for %lld samples", (long long)o->steps);
    return 0;
}

int trial_run(const struct knobs *k, const struct trial_options *o, struct trial_result *out,
              struct err *e) {
    TRY(trial_open(out, o, e));
    int ends[2];
    if (pipe(ends) != 0)
        return err_set(e, ERR_IO, "cannot make a pipe for a trial: %s", strerror(errno));
    const pid_t child = child_fork(ends);
    if (child < 0)
        return err_set(e, ERR_MEMORY, "cannot start a process for a trial: %s", strerror(errno));
    if (child == 0)
        be_child(ends[1], k, o, out);
    int rc = collect(child, ends[0], o, out, e);
    close(ends[0]);
    return rc;
}

struct metrics_input trial_metrics_input(const struct trial_result *t, const struct knobs *k,
                                         struct samples *step_ns, const struct trace *trace) {
    return (struct metrics_input){.step_ns = step_ns,
                                  .trace = trace,
                                  .wall_ns = t->wall_ns,
                                  .tokens = t->tokens,
                                  .real_tokens = t->real_tokens,
                                  .trained_tokens = t->trained_tokens,
                                  .data = t->data,
                                  .batch_micro = k->batch_micro,
                                  .samples_per_step = k->batch_micro * k->batch_accum,
                                  .model_flops_per_step = t->flops.model,
                                  .hardware_flops_per_step = t->flops.hardware,
                                  .energy = t->energy};
}

void trial_free(struct trial_result *r) {
    free(r->step_ns);
    r->step_ns = NULL;
    r->steps = 0;
}

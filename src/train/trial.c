// trial.c - see trial.h. A trial trains with the ordinary trainer and an observer that keeps what is
// asked for. From a child, results come back through a pipe as the bytes of the struct, then of the
// samples.
#include "train/trial.h"

#include "base/child.h"
#include "base/mem.h"
#include "train/kept.h"
#include "train/trainer.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// ---------------------------------------------------------------- measuring

struct recorder {
    const struct trial_options *options;
    struct trial_result *out;
    uint64_t begin_ns;
    int64_t seen; // steps of any kind
    bool sound;   // the last of them left weights that can be trained further
    double begin_joules;
};

static int on_start(void *arg, const struct train_start *start, struct err *e) {
    struct recorder *r = arg;
    (void)e;
    r->begin_joules = energy_read(start->energy);
    energy_use_of(&r->out->energy, start->energy, NAN);
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

// The meter is read where the measured steps begin and end, not at every step: reading may take as long as
// a small step does.
static void read_meter(struct recorder *r, const struct train_step *step) {
    energy_use_of(&r->out->energy, step->energy, energy_read(step->energy) - r->begin_joules);
}

static int on_step(void *arg, const struct train_step *step, struct err *e) {
    struct recorder *r = arg;
    const struct trial_observer *ob = &r->options->observer;
    const bool warmup = r->seen++ < r->options->warmup;
    r->out->warmup += warmup;
    r->sound = isfinite(step->loss) && !step->skipped;
    if (step->noise != NULL)
        r->out->noise = *step->noise;
    if (warmup && r->seen == r->options->warmup)
        r->begin_joules = energy_read(step->energy);
    if (!warmup && r->out->steps < r->options->steps) {
        record(r, step);
        if (r->out->steps == r->options->steps)
            read_meter(r, step);
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
        read_meter(r, step);
    return rc;
}

static void on_progress(void *arg, const struct shard_progress *p) {
    const struct trial_observer *ob = &((const struct recorder *)arg)->options->observer;
    (void)p;
    if (ob->on_progress)
        ob->on_progress(ob->arg);
}

static bool is_logits(const struct program *p, int tensor) {
    if (tensor < 0)
        return false;
    const struct tensor *t = &p->tensors[tensor];
    return strcmp((t->root < 0 ? t : &p->tensors[t->root])->name, NAME_LOGITS) == 0;
}

static bool touches_logits(const struct program *p, const struct op *op) {
    for (int i = 0; i < op->n_in; i++)
        if (is_logits(p, op->in[i]))
            return true;
    for (int i = 0; i < op->n_out; i++)
        if (is_logits(p, op->out[i]))
            return true;
    return false;
}

static void add_cost(struct op_cost *sum, const struct op_cost *c) {
    sum->flops += c->flops;
    sum->bytes += c->bytes;
    sum->comm_bytes += c->comm_bytes;
}

void trial_step_cost(const struct session *s, struct step_cost *out) {
    const struct program *p = s->programs[SESSION_TRAIN];
    *out = (struct step_cost){0};
    for (int i = 0; p && i < p->n_order; i++) {
        const struct segment *seg = &p->segments[p->order[i].segment];
        for (int k = 0; k < seg->n_ops; k++) {
            const struct op *op = &seg->ops[k];
            const struct op_cost c = op_cost_of(p, op);
            const enum op_category kind = op_info(op->kind)->category;
            add_cost(&out->all[kind], &c);
            if (touches_logits(p, op))
                add_cost(&out->logits[kind], &c);
        }
    }
}

// Steps alone: no validation, no files, nothing resumed.
static struct knobs bare_knobs(const struct knobs *k, const struct trial_options *o) {
    struct knobs bare = *k;
    bare.steps = o->warmup + o->steps;
    bare.time = 0;
    bare.eval_every = 0;
    bare.save_every = 0;
    bare.save_last = false;
    bare.resume = false;
    bare.run_dir[0] = '\0'; // neither created nor locked: a run may be on there
    bare.log_trace[0] = '\0';
    bare.generate_tokens = 0;
    return bare;
}

int trial_measure(const struct knobs *k, const struct trial_options *o, struct kept *kept,
                  struct trial_result *out, struct err *e) {
    struct knobs bare = bare_knobs(k, o);
    struct session_options so = {.knobs = &bare, .real = DTYPE_F32, .kept = kept};
    so.has[SESSION_TRAIN] = true;
    struct recorder recorder = {.options = o, .out = out};
    struct trainer_options to = {.observer = {.arg = &recorder,
                                              .on_start = on_start,
                                              .on_step = on_step,
                                              .on_progress = on_progress},
                                 .stop = o->stop};
    const bool peak_is_ours = mem_process_reset_peak() == 0;
    struct session s;
    struct trainer *t = NULL;
    int rc = session_plan(&s, &so, e);
    if (rc == 0) {
        memcpy(out->by_class, s.layout.by_class, sizeof out->by_class);
        trial_step_cost(&s, &out->cost);
        out->flops = session_step_flops(&s);
        rc = trainer_open(&t, &s, &to, e);
    }
    if (rc == 0) {
        rc = trainer_run(t, NULL, e);
        out->kept_weights = s.kept_weights;
        out->started = s.exec != NULL;
        // A process with a past has a peak from then; one without may not need to reset it.
        if (peak_is_ours || !kept)
            out->memory_measured_bytes = session_process_peak_bytes(&s);
    }
    out->memory_predicted_bytes = session_predicted_bytes(&s);
    if (rc == ERR_STOPPED && out->ended_early) { // as the observer wished
        err_clear(e);
        rc = 0;
    }
    // Weights whose gradients are not finite would give the next trial others like them.
    if (rc == 0 && kept && recorder.sound)
        kept_state_sound(kept);
    trainer_close(t);
    session_close(&s);
    if (rc == 0 && out->steps == 0 && !out->ended_early)
        rc = err_set(e, ERR_INTERNAL, "no step was measured");
    return rc;
}

// ---------------------------------------------------------------- in the child

static bool send_all(int fd, const void *data, size_t bytes) {
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

// Never returns. _exit: the streams and handlers of the parent are the parent's.
_Noreturn static void be_child(int fd, const struct knobs *k, const struct trial_options *o,
                               struct trial_result *out) {
    struct err e = {0};
    const struct trial_options alone = {.warmup = o->warmup, .steps = o->steps};
    out->rc = trial_measure(k, &alone, NULL, out, &e);
    if (out->rc != 0)
        snprintf(out->reason, sizeof out->reason, "%s", e.text[0] ? e.text : err_phrase(out->rc));
    bool sent = send_all(fd, out, sizeof *out) &&
                send_all(fd, out->step_ns, (size_t)out->steps * sizeof *out->step_ns);
    _exit(sent ? 0 : 1);
}

// ---------------------------------------------------------------- in the parent

// Reads until `bytes` or the end; looks at the stop request ten times a second.
static size_t receive(int fd, void *data, size_t bytes, const struct trial_options *o,
                      bool *stopped) {
    size_t got = 0;
    while (got < bytes) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = poll(&p, 1, 100);
        if (o->stop && *o->stop) {
            *stopped = true;
            break;
        }
        if (ready <= 0)
            continue;
        ssize_t n = read(fd, (char *)data + got, bytes - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    return got;
}

// A child that sent nothing whole: what the kernel says about its end.
void trial_explain(struct trial_result *out, int status) {
    out->rc = ERR_INTERNAL;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        out->rc = ERR_MEMORY;
        snprintf(out->reason, sizeof out->reason,
                 "its process was killed by the kernel, most likely for memory");
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
    bool stopped = false;
    double *samples = out->step_ns; // the pointer in `sent` is the child's
    size_t got = receive(fd, &sent, sizeof sent, o, &stopped);
    bool whole = got == sizeof sent && sent.steps >= 0 && sent.steps <= o->steps;
    if (whole) {
        *out = sent;
        out->step_ns = samples;
        size_t bytes = (size_t)out->steps * sizeof *samples;
        whole = receive(fd, samples, bytes, o, &stopped) == bytes;
    }
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
        return err_set(e, ERR_USAGE, "%lld steps after %lld; accepted: 1 to %d steps",
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
        return err_set(e, ERR_IO, "no pipe for a trial: %s", strerror(errno));
    const pid_t owner = getpid(), child = fork();
    if (child < 0) {
        int why = errno;
        close(ends[0]);
        close(ends[1]);
        return err_set(e, ERR_MEMORY, "no process for a trial: %s", strerror(why));
    }
    if (child == 0) {
        child_begin(owner);
        close(ends[0]);
        be_child(ends[1], k, o, out);
    }
    close(ends[1]);
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

// worker.c - see worker.h. The owner's side: starts the process, sends jobs, receives steps and
// results, and explains how a process was lost. worker_serve.c is the worker's side, worker_wire.h
// has the messages.
#include "tune/worker.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/text.h"
#include "tune/worker_wire.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

// How often the owner checks for a stop request. A signal also wakes poll.
enum { LOOK_MS = 100 };

// How long a process may be silent when the caller's time is over (worker_job.end_ns). The first
// start of a device takes tens of seconds. On the CPU a start may take as many times as long as the
// longest one so far.
enum { START_TIMES = 5 };
static const uint64_t STEP_GRACE_NS = 1000000000, START_GRACE_NS = 10000000000,
                      DEVICE_GRACE_NS = 60000000000;

struct worker {
    struct worker_options o;
    pid_t pid; // -1: none
    int fd;
    int64_t starts, jobs;
    uint64_t start_ns; // the longest time from a job to its first step so far; 0: none had one
    // An opened library stays in a process with its buffers. So a setting with another library or
    // device needs a new process, or its measured memory would include theirs.
    bool used;
    enum device device;
    enum cpu_blas blas;
    struct trial_sample *samples; // of the present trial; room for all of its steps
    int64_t room, n;
};

// ---------------------------------------------------------------- the process

static int start(struct worker *w, struct err *e) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return err_set(e, ERR_IO, "cannot make sockets for a worker: %s", strerror(errno));
    const pid_t pid = child_fork(ends);
    if (pid < 0)
        return err_set(e, ERR_MEMORY, "cannot start a process for a worker: %s", strerror(errno));
    if (pid == 0) {
        prctl(PR_SET_NAME, "haggle-worker");
        worker_serve(ends[1], &w->o);
    }
    w->fd = ends[0];
    w->pid = pid;
    w->used = false;
    w->starts++;
    return 0;
}

// Waits for a process that has ended, or is about to, and returns its status.
static int bury(struct worker *w) {
    const int status = child_wait(w->pid);
    close(w->fd);
    w->pid = -1;
    w->fd = -1;
    return status;
}

// Kills the process at once: it holds nothing that must be saved.
static void end(struct worker *w) {
    if (w->pid < 0)
        return;
    kill(w->pid, SIGKILL);
    bury(w);
}

int worker_open(struct worker **out, const struct worker_options *o, struct err *e) {
    struct worker *w = *out = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_MEMORY, "no memory for a worker");
    w->o = *o;
    w->pid = w->fd = -1;
    int rc = start(w, e);
    if (rc != 0) {
        worker_close(w);
        *out = NULL;
    }
    return rc;
}

void worker_close(struct worker *w) {
    if (!w)
        return;
    end(w);
    free(w->samples);
    free(w);
}

void worker_renew(struct worker *w) {
    end(w);
}

pid_t worker_pid(const struct worker *w) {
    return w->pid;
}

int64_t worker_starts(const struct worker *w) {
    return w->starts;
}

// Makes sure that there is a process for this setting: the present one, or a new one.
static int ready(struct worker *w, const struct knobs *k, struct err *e) {
    const bool other = w->used && (w->device != k->device || w->blas != k->cpu_blas);
    if (w->pid >= 0 && other)
        end(w);
    if (w->pid < 0)
        TRY(start(w, e));
    w->used = true;
    w->device = k->device;
    w->blas = k->cpu_blas;
    return 0;
}

// ---------------------------------------------------------------- a trial

struct trial {
    struct worker *w;
    const struct worker_job *job;
    struct trial_result *out;
    uint64_t begin_ns;   // of the trial
    uint64_t heard_ns;   // time of the last message
    uint64_t longest_ns; // step so far
    bool asked;          // the judge has asked to stop
    char why[WORKER_REASON_BYTES];
};

static int make_room(struct worker *w, int64_t n, struct err *e) {
    w->n = 0;
    if (n <= w->room)
        return 0;
    struct trial_sample *more = realloc(w->samples, (size_t)n * sizeof *more);
    if (!more)
        return err_set(e, ERR_MEMORY, "out of memory for %lld samples", (long long)n);
    w->samples = more;
    w->room = n;
    return 0;
}

static bool send_job(struct worker *w, const struct worker_job *job) {
    struct wire_job m = {.head = {.kind = WIRE_JOB, .job = ++w->jobs},
                         .knobs = *job->knobs,
                         .warmup = job->warmup,
                         .steps = job->steps};
    return wire_send(w->fd, &m, sizeof m);
}

static void take_steps(struct trial *t, const struct wire_steps *m) {
    struct worker *w = t->w;
    if (w->n == 0 && t->heard_ns - t->begin_ns > w->start_ns)
        w->start_ns = t->heard_ns - t->begin_ns;
    for (int64_t i = 0; i < m->n && w->n < w->room; i++) {
        w->samples[w->n++] = m->samples[i];
        if (m->samples[i].step_ns > t->longest_ns)
            t->longest_ns = m->samples[i].step_ns;
        t->out->warmup += m->samples[i].warmup;
        if (!m->samples[i].warmup && t->out->steps < t->job->steps)
            t->out->step_ns[t->out->steps++] = (double)m->samples[i].step_ns;
    }
    if (!t->job->judge || t->asked)
        return;
    t->asked = t->job->judge(t->job->judge_arg, w->samples, w->n, t->why);
    const struct wire_head stop = {.kind = WIRE_STOP, .job = w->jobs};
    if (t->asked)
        wire_send(w->fd, &stop, sizeof stop); // a failure is noticed when the next message is read
}

static void take_result(struct trial *t, const struct wire_result *m) {
    struct trial_result *out = t->out;
    double *samples = out->step_ns; // the message's pointer is one of the other process
    const int64_t steps = out->steps;
    *out = m->result;
    out->step_ns = samples;
    out->steps = steps;
    if (out->ended_early)
        snprintf(out->reason, sizeof out->reason, "%s", t->why);
}

// Takes one message. True: it was the result. Sets *gone if the process has closed its end.
static bool take_message(struct trial *t, bool *gone) {
    union wire_message m;
    if (wire_receive(t->w->fd, &m, true) <= 0) {
        *gone = true;
        return false;
    }
    t->heard_ns = clock_ns();
    if (m.head.job != t->w->jobs)
        return false;
    if (m.head.kind == WIRE_STEPS)
        take_steps(t, &m.steps);
    if (m.head.kind == WIRE_RESULT)
        take_result(t, &m.result);
    return m.head.kind == WIRE_RESULT;
}

static uint64_t start_grace(const struct worker *w) {
    const uint64_t usual = STEP_GRACE_NS + START_TIMES * w->start_ns;
    return w->start_ns > 0 && usual < START_GRACE_NS ? usual : START_GRACE_NS;
}

// How long the process may be silent; 0: for ever.
static uint64_t limit_of(const struct trial *t) {
    const struct worker_job *job = t->job;
    const bool stepped = t->w->n > 0;
    const uint64_t limit = stepped ? job->step_limit_ns : job->start_limit_ns;
    if (job->end_ns == 0)
        return limit;
    const uint64_t left = job->end_ns > t->heard_ns ? job->end_ns - t->heard_ns : 0;
    const uint64_t grace = stepped                         ? STEP_GRACE_NS + 2 * t->longest_ns
                           : plan_wants_device(job->knobs) ? DEVICE_GRACE_NS
                                                           : start_grace(t->w);
    const uint64_t most = left > grace ? left : grace;
    return limit == 0 || most < limit ? most : limit;
}

static bool is_hung(const struct trial *t) {
    const uint64_t limit = limit_of(t);
    return limit > 0 && clock_ns() - t->heard_ns > limit;
}

static int wait_ms(const struct trial *t) {
    const uint64_t limit = limit_of(t), silent = clock_ns() - t->heard_ns;
    if (limit == 0 || silent >= limit)
        return limit == 0 ? LOOK_MS : 0;
    const uint64_t ms = (limit - silent) / 1000000 + 1;
    return ms < LOOK_MS ? (int)ms : LOOK_MS;
}

static void lose_hung(struct trial *t) {
    char a[TEXT_UNIT_BYTES];
    const int64_t step = t->w->n;
    end(t->w);
    t->out->rc = ERR_INTERNAL;
    snprintf(t->out->reason, sizeof t->out->reason,
             "its process hung: it sent nothing for %s %s and was killed",
             text_duration(a, 1e-9 * (double)limit_of(t)),
             step > 0 ? "after a step" : "before the first step");
}

// Whether the failure may have left the process unfit for the next trial: errors of a device stay,
// and memory may have run out half-way. Such a process is replaced.
static bool is_doubtful(const struct trial_result *r) {
    return r->rc == ERR_INTERNAL || (r->rc == ERR_MEMORY && r->started);
}

static int listen_to(struct trial *t, struct err *e) {
    bool done = false, gone = false;
    t->begin_ns = t->heard_ns = clock_ns();
    while (!done && !gone) {
        struct pollfd p = {.fd = t->w->fd, .events = POLLIN};
        const int heard = poll(&p, 1, wait_ms(t));
        if (t->job->stop && *t->job->stop) {
            end(t->w);
            return err_set(e, ERR_STOPPED, "stopped on request");
        }
        if (heard > 0) {
            done = take_message(t, &gone);
        } else if (is_hung(t)) {
            lose_hung(t);
            return 0;
        }
    }
    if (gone)
        trial_explain(t->out, bury(t->w));
    else if (is_doubtful(t->out))
        end(t->w);
    return 0;
}

static int run_once(struct worker *w, const struct worker_job *job, struct trial_result *out,
                    struct err *e) {
    const struct trial_options o = {.warmup = job->warmup, .steps = job->steps};
    struct trial t = {.w = w, .job = job, .out = out};
    TRY(trial_open(out, &o, e));
    TRY(make_room(w, job->warmup + job->steps, e));
    TRY(ready(w, job->knobs, e));
    if (!send_job(w, job)) { // it died between two trials, which is not this trial's fault
        end(w);
        TRY(ready(w, job->knobs, e));
        if (!send_job(w, job))
            return err_set(e, ERR_IO, "a worker that was just started accepts no job");
    }
    return listen_to(&t, e);
}

int worker_run(struct worker *w, const struct worker_job *job, struct trial_result *out,
               struct err *e) {
    TRY(run_once(w, job, out, e));
    if (out->rc != ERR_NUMERIC || !out->kept_weights)
        return 0;
    // The cause may be the weights that earlier trials left. After this failure they are not used
    // again, so the trial is repeated from the initial weights.
    trial_free(out);
    return run_once(w, job, out, e);
}

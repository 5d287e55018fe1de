// worker_serve.c - the process of a worker: takes jobs, measures them, sends their steps.
//
// Steps are sent between two steps, never inside one, and not more often than every TELL_NS. Waking
// the owner takes a CPU from the computation, so short steps are sent together.
#include "tune/worker_wire.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const uint64_t TELL_NS = 10 * 1000 * 1000, ANSWER_FROM_NS = 200 * 1000 * 1000;
enum { ANSWER_MS = 2 };

struct server {
    int fd;
    const struct worker_options *o;
    struct trial_desk desk;
    const struct wire_job *job;
    struct wire_steps pending;
    uint64_t told_ns;
    int64_t step;
};

// ---------------------------------------------------------------- messages

bool wire_send(int fd, const void *message, size_t bytes) {
    ssize_t n;
    do
        n = send(fd, message, bytes, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)bytes;
}

long wire_receive(int fd, union wire_message *m, bool wait) {
    ssize_t n;
    do
        n = recv(fd, m, sizeof *m, wait ? 0 : MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && !wait && (errno == EAGAIN || errno == EWOULDBLOCK))
        return -1;
    return n < (ssize_t)sizeof m->head ? 0 : (long)n;
}

// ---------------------------------------------------------------- during a job

// A worker whose owner is gone ends.
static void tell(struct server *v, const void *message, size_t bytes) {
    if (!wire_send(v->fd, message, bytes))
        _exit(1);
}

static void tell_steps(struct server *v) {
    struct wire_steps *p = &v->pending;
    if (p->n > 0)
        tell(v, p, offsetof(struct wire_steps, samples) + (size_t)p->n * sizeof *p->samples);
    p->n = 0;
    v->told_ns = clock_ns();
}

static bool stop_heard(struct server *v) {
    union wire_message m;
    long n;
    while ((n = wire_receive(v->fd, &m, false)) >= 0) {
        if (n == 0)
            _exit(1);
        if (m.head.kind == WIRE_STOP && m.head.job == v->job->head.job)
            return true;
    }
    return false;
}

static int on_step(void *arg, const struct trial_sample *sample, struct err *e) {
    struct server *v = arg;
    v->pending.samples[v->pending.n++] = *sample;
    v->step++;
    if (v->o->fault)
        v->o->fault(v->o->fault_arg, &v->job->knobs, v->step);
    // The first step is sent at once, because the owner waits for it with the limit for a start.
    if (v->step > 1 && v->pending.n < WIRE_SAMPLES && clock_ns() - v->told_ns < TELL_NS)
        return 0;
    tell_steps(v);
    // The owner's answer takes a moment. After a long step it is worth waiting for, because
    // otherwise another long step would run in vain.
    struct pollfd answer = {.fd = v->fd, .events = POLLIN};
    if (sample->step_ns > ANSWER_FROM_NS)
        poll(&answer, 1, ANSWER_MS);
    return stop_heard(v) ? err_set(e, ERR_STOPPED, "enough is known") : 0;
}

static void on_progress(void *arg) {
    struct server *v = arg;
    const struct wire_head alive = {.kind = WIRE_ALIVE, .job = v->job->head.job};
    if (clock_ns() - v->told_ns < TELL_NS)
        return;
    tell(v, &alive, sizeof alive);
    v->told_ns = clock_ns();
}

static void serve(struct server *v, const struct wire_job *job) {
    struct wire_result out = {.head = {.kind = WIRE_RESULT, .job = job->head.job}};
    const struct trial_options o = {
        .warmup = job->warmup,
        .steps = job->steps,
        .observer = {.arg = v, .on_step = on_step, .on_progress = on_progress}};
    struct trial_result *r = &out.result;
    struct err e = {0};
    v->job = job;
    v->step = 0;
    v->pending.head = (struct wire_head){.kind = WIRE_STEPS, .job = job->head.job};
    v->pending.n = 0;
    v->told_ns = clock_ns();
    r->rc = trial_open(r, &o, &e);
    if (r->rc == 0)
        r->rc = trial_measure(&v->desk, &job->knobs, &o, r, &e);
    if (r->rc != 0)
        snprintf(r->reason, sizeof r->reason, "%s", e.text[0] ? e.text : err_phrase(r->rc));
    tell_steps(v);
    free(r->step_ns);
    r->step_ns = NULL;
    tell(v, &out, sizeof out);
}

// ---------------------------------------------------------------- the process

// The tuner must survive its trials. If memory runs out, the kernel kills the process with the
// highest score.
static void offer_to_oom_killer(void) {
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, "1000", 4) != 4) // not permitted: the kernel may kill another process first
        errno = 0;
    close(fd);
}

_Noreturn void worker_serve(int fd, const struct worker_options *o) {
    union wire_message m;
    struct server v = {.fd = fd, .o = o};
    struct err e = {0};
    offer_to_oom_killer();
    if (trial_desk_open(&v.desk, true, &e) != 0)
        _exit(1);
    while (wire_receive(fd, &m, true) > 0)
        if (m.head.kind == WIRE_JOB)
            serve(&v, &m.job);
    _exit(0); // the kernel frees all memory, faster than this process could
}

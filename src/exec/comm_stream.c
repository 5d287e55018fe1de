// comm_stream.c - see comm_stream.h. A ring of issued ops between the executor's thread and the
// stream's own. Nothing is allocated after the opening: the ring holds the ops of the longest turn.
#include "exec/comm_stream.h"

#include "base/c_locale.h"
#include "base/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct issued {
    const struct op_call *call;
    int program, segment, micro;
    uint64_t start_ns, end_ns;
    uint64_t ticket; // of a send
    bool sent;       // it was waited for
    void *copy;      // what a send sends instead of the operand; NULL: the operand
    // For each wait: 1 + the place of the send that it waits for; 0: no send.
    uint64_t waits[OP_MAX_WAIT];
};

struct comm_stream {
    struct comm *comm;
    struct program *const *programs;
    int (*groups)[PROGRAM_MAX_GROUPS]; // by program
    struct issued *ring;               // of one turn
    uint64_t most;                     // ops of the longest turn
    uint64_t *events;                  // by event: 1 + the place of the last op that recorded it
    int n_events;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    // Under the lock:
    uint64_t n_issued, n_done; // in this turn
    bool stop;
    struct err failed; // code 0: nothing has
};

// ---------------------------------------------------------------- the stream's thread

static int await_sends(struct comm_stream *s, uint64_t n, struct err *e);

// An op of this thread may overwrite what an earlier one sends.
static int await_events(struct comm_stream *s, const struct issued *i, struct err *e) {
    const struct op *op = i->call->op;
    for (int w = 0; w < op->n_wait; w++)
        if (i->waits[w] > 0)
            TRY(await_sends(s, i->waits[w], e));
    return 0;
}

static int run(struct comm_stream *s, struct issued *i, struct err *e) {
    const struct op_call *call = i->call;
    const struct op *op = call->op;
    struct comm *c = s->comm;
    const struct operand *x = op->n_in > 0 ? &call->in[0] : &call->out[0],
                         *y = op->n_out > 0 ? &call->out[0] : x;
    const uint64_t bytes = (uint64_t)op->n * dtype_bytes(x->dtype);
    const int group = op->group >= 0 ? s->groups[i->program][op->group] : -1;
    char about[COMM_ABOUT_BYTES];
    snprintf(about, sizeof about, "'%s' of '%.60s' in '%.40s'", op_info(op->kind)->name,
             s->programs[i->program]->segments[i->segment].name, s->programs[i->program]->name);
    c->note(c, about);
    TRY(await_events(s, i, e));
    switch (op->kind) {
    case OP_ALL_REDUCE:
        return c->all_reduce(c, group, y->data, op->n, y->dtype, e);
    case OP_REDUCE_SCATTER:
        return c->reduce_scatter(c, group, x->data, y->data, op->n, x->dtype,
                                 (op->flags & OP_ACCUMULATE) != 0, e);
    case OP_ALL_GATHER:
        return c->all_gather(c, group, x->data, y->data, op->n, x->dtype, e);
    case OP_SEND:
        return c->send(c, op->peer, op->channel, i->copy ? i->copy : x->data, bytes, &i->ticket, e);
    case OP_RECV:
        return c->recv(c, op->peer, op->channel, y->data, bytes, e);
    default:
        return err_set(e, ERR_INTERNAL, "the op '%s' does not communicate",
                       op_info(op->kind)->name);
    }
}

static void *work(void *arg) {
    struct comm_stream *s = arg;
    c_locale_enter();
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        if (s->n_done == s->n_issued || s->failed.code != 0) {
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        struct issued *i = &s->ring[s->n_done];
        struct err e = {0};
        pthread_mutex_unlock(&s->lock);
        i->start_ns = clock_ns();
        const int rc = run(s, i, &e);
        if (rc == 0)
            s->comm->note(s->comm, NULL);
        i->end_ns = clock_ns();
        pthread_mutex_lock(&s->lock);
        if (rc != 0)
            s->failed = e;
        s->n_done++;
        pthread_cond_signal(&s->done);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

// ---------------------------------------------------------------- opening

static int open_groups(struct comm_stream *s, int n, struct err *e) {
    for (int i = 0; i < n; i++)
        for (int g = 0; g < s->programs[i]->n_groups; g++) {
            const struct comm_group *group = &s->programs[i]->groups[g];
            TRY(s->comm->group(s->comm, group->ranks, group->n_ranks, &s->groups[i][g], e));
        }
    return 0;
}

static uint64_t ops_of_turn(const struct program *p) {
    uint64_t n = 0;
    for (int i = 0; i < p->n_order; i++) {
        const struct segment *seg = &p->segments[p->order[i].segment];
        for (int k = 0; k < seg->n_ops; k++)
            n += op_info(seg->ops[k].kind)->category == CAT_COMM;
    }
    return n;
}

static int start(struct comm_stream *s, struct err *e) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&s->thread, NULL, work, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    s->started = rc == 0;
    return rc == 0 ? 0 : err_set(e, ERR_MEMORY, "cannot start a thread: %s", strerror(rc));
}

int comm_stream_open(struct comm_stream **out, struct comm *c, struct program *const *programs,
                     int n_programs, struct err *e) {
    struct comm_stream *s = *out = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_MEMORY, "out of memory for communication");
    s->comm = c;
    s->programs = programs;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->done, NULL);
    for (int i = 0; i < n_programs; i++) {
        const uint64_t n = ops_of_turn(programs[i]);
        s->most = n > s->most ? n : s->most;
        s->n_events = programs[i]->n_events > s->n_events ? programs[i]->n_events : s->n_events;
    }
    s->groups = calloc((size_t)n_programs + 1, sizeof *s->groups);
    s->ring = calloc(s->most + 1, sizeof *s->ring);
    s->events = calloc((size_t)s->n_events + 1, sizeof *s->events);
    int rc = s->groups && s->ring && s->events
                 ? open_groups(s, n_programs, e)
                 : err_set(e, ERR_MEMORY, "out of memory for communication");
    if (rc == 0)
        rc = start(s, e);
    if (rc != 0) {
        comm_stream_close(s);
        *out = NULL;
    }
    return rc;
}

void comm_stream_close(struct comm_stream *s) {
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (s->started)
        pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->done);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s->groups);
    free(s->ring);
    free(s->events);
    free(s);
}

// ---------------------------------------------------------------- the executor's thread

static int copy_operand(const struct op_call *call, void **out, struct err *e) {
    const uint64_t bytes = (uint64_t)call->op->n * dtype_bytes(call->in[0].dtype);
    *out = malloc(bytes + 1);
    if (!*out)
        return err_set(e, ERR_MEMORY, "out of memory for a message");
    memcpy(*out, call->in[0].data, bytes);
    return 0;
}

static int await_done(struct comm_stream *s, uint64_t n, enum comm_wait *waited, struct err *e);

int comm_stream_issue(struct comm_stream *s, int program, const struct op_call *call, int segment,
                      int micro, bool at_once, struct err *e) {
    struct issued i = {.call = call, .program = program, .segment = segment, .micro = micro};
    enum comm_wait waited = WAIT_NONE;
    if (s->n_issued == s->most)
        return err_set(e, ERR_INTERNAL, "a turn issues more than its %llu communication ops",
                       (unsigned long long)s->most);
    if (at_once && call->op->kind == OP_SEND)
        TRY(copy_operand(call, &i.copy, e));
    pthread_mutex_lock(&s->lock);
    for (int w = 0; w < call->op->n_wait; w++) {
        const uint64_t n = s->events[call->op->wait[w]];
        i.waits[w] = n > 0 && s->ring[n - 1].call->op->kind == OP_SEND ? n : 0;
    }
    s->ring[s->n_issued] = i;
    if (call->op->record >= 0)
        s->events[call->op->record] = s->n_issued + 1;
    s->n_issued++;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    return at_once ? await_done(s, s->n_issued, &waited, e) : 0;
}

static enum comm_wait kind_of_wait(const struct comm_stream *s, const struct issued *i) {
    const struct op *op = i->call->op;
    const bool stages =
        op->group >= 0 ? s->programs[i->program]->groups[op->group].stages : op->peer >= 0;
    return stages ? WAIT_STAGES : WAIT_RANKS;
}

// Waits until ops [0, n) of this turn have run.
static int await_done(struct comm_stream *s, uint64_t n, enum comm_wait *waited, struct err *e) {
    pthread_mutex_lock(&s->lock);
    if (s->n_done < n)
        *waited = kind_of_wait(s, &s->ring[n - 1]);
    while (s->n_done < n && s->failed.code == 0)
        pthread_cond_wait(&s->done, &s->lock);
    const int rc = s->failed.code != 0 ? err_set(e, s->failed.code, "%s", s->failed.text) : 0;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static int await_sent(struct comm_stream *s, struct issued *i, struct err *e) {
    pthread_mutex_lock(&s->lock); // both threads may ask
    const bool due = i->call->op->kind == OP_SEND && !i->sent;
    i->sent = i->sent || due;
    pthread_mutex_unlock(&s->lock);
    if (!due)
        return 0;
    TRY(s->comm->sent(s->comm, i->ticket, e));
    free(i->copy);
    i->copy = NULL;
    return 0;
}

// Sends count as done in the order of their stream. So all up to place n - 1 are waited for.
static int await_sends(struct comm_stream *s, uint64_t n, struct err *e) {
    for (uint64_t k = 0; k < n; k++)
        TRY(await_sent(s, &s->ring[k], e));
    return 0;
}

int comm_stream_await(struct comm_stream *s, const struct op *op, enum comm_wait *waited,
                      struct err *e) {
    for (int w = 0; w < op->n_wait; w++) {
        const uint64_t n = s->events[op->wait[w]];
        if (n == 0) // another stream's, or not recorded in this turn
            continue;
        TRY(await_done(s, n, waited, e));
        if (s->ring[n - 1].call->op->kind == OP_SEND)
            TRY(await_sends(s, n, e));
    }
    return 0;
}

int comm_stream_drain(struct comm_stream *s, struct trace *trace, enum comm_wait *waited,
                      struct err *e) {
    int rc = await_done(s, s->n_issued, waited, e);
    for (uint64_t k = 0; rc == 0 && k < s->n_issued; k++) {
        const struct issued *i = &s->ring[k];
        rc = await_sent(s, &s->ring[k], e);
        if (trace)
            trace_add_beside(trace, i->call->op, i->segment, i->micro, i->start_ns, i->end_ns);
    }
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&s->lock);
    s->n_issued = s->n_done = 0;
    pthread_mutex_unlock(&s->lock);
    memset(s->events, 0, (size_t)s->n_events * sizeof *s->events);
    return 0;
}

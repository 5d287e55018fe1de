// crew.c - see crew.h.
#include "train/crew.h"

#include "base/text.h"
#include "train/alike.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---------------------------------------------------------------- agreement

int crew_data(struct comm *c, int rc, struct err *e) {
    return comm_agree(c, rc, NULL, 0, e);
}

enum { HOST_BYTES = 64 };
struct need { // of one rank
    uint64_t bytes;
    char host[HOST_BYTES];
};

// A machine holds all its ranks together.
static int check_host(const struct need *all, int world, int rank, const struct plan_room *room,
                      struct err *e) {
    uint64_t sum = 0;
    int largest = rank, n = 0;
    char need[TEXT_UNIT_BYTES], most[TEXT_UNIT_BYTES], has[TEXT_UNIT_BYTES];
    for (int i = 0; i < world; i++) {
        if (strcmp(all[i].host, all[rank].host) != 0)
            continue;
        n++;
        sum += all[i].bytes;
        if (all[i].bytes > all[largest].bytes)
            largest = i;
    }
    if (!room->is || n < 2 || sum <= room->bytes)
        return 0;
    return err_set(e, ERR_MEMORY,
                   "the %d ranks on %s need %s together, rank %d the most with %s; %s is %s", n,
                   all[rank].host, text_bytes(need, sum), largest,
                   text_bytes(most, all[largest].bytes), room->is, text_bytes(has, room->bytes));
}

int crew_ready(struct comm *c, int rc, const struct trainer *t, const struct engine *g,
               const struct plan *p, struct err *e) {
    if (!c || c->world < 2)
        return rc;
    TRY(comm_agree(c, rc, NULL, 0, e));
    if (!c->one_process) // else they share it, and t may be NULL
        TRY(alike_check_data(c, trainer_dataset(t), e));
    struct need own = {.bytes = engine_need_bytes(g, p)};
    struct need *all = malloc((size_t)c->world * sizeof *all);
    gethostname(own.host, sizeof own.host - 1);
    rc = all ? 0 : err_set(e, ERR_MEMORY, "out of memory for %d ranks", c->world);
    TRY(comm_agree(c, rc, NULL, 0, e));
    // A budget is that of each rank, and each has compared its plan with it.
    const bool budget = p->knobs.memory > 0;
    struct plan_room room = g->room;
    rc = comm_gather(c, &own, sizeof own, all, e);
    if (rc == 0 && !budget)
        rc = check_host(all, c->world, c->rank, &room, e);
    free(all);
    return comm_agree(c, rc, NULL, 0, e);
}

int crew_done(struct comm *c, struct err *e) {
    return comm_agree(c, 0, NULL, 0, e);
}

// ---------------------------------------------------------------- ranks that are processes

int crew_join(struct comm **out, const struct knobs *k, int world, const struct comm_lost *lost,
              struct err *e) {
    TRY(comm_join(out, world, k->comm_timeout, lost, e));
    return alike_check(*out, k, e);
}

void crew_leave(struct comm *c, bool failed, const char *why) {
    if (!c)
        return;
    if (failed)
        c->give_up(c, why);
    c->close(c);
}

// ---------------------------------------------------------------- one follower

struct follower {
    struct plan plan;
    struct engine *engine;
    struct trainer *trainer;
};

static int get_ready(struct follower *f, struct comm *c, const struct crew_options *o,
                     struct err *e) {
    const struct engine_options eo = {.comm = c};
    const struct trainer_options to = {
        .stop = o->stop, .trace_events = o->trace_events, .data = o->data};
    TRY(plan_run_rank(&f->plan, o->knobs, c->rank, e));
    TRY(engine_open(&f->engine, &eo, e));
    TRY(trainer_open(&f->trainer, &f->plan, f->engine, &to, e));
    return engine_ready(f->engine, &f->plan, e);
}

int crew_follow(struct comm *c, const struct crew_options *o, struct err *e) {
    struct follower f = {.plan = {.prefix = ""}};
    struct train_result result = {.end = TRAIN_FAILED};
    int rc = crew_data(c, 0, e);
    if (rc == 0) {
        rc = get_ready(&f, c, o, e);
        rc = crew_ready(c, rc, f.trainer, f.engine, &f.plan, e);
    }
    if (rc == 0) {
        rc = trainer_run(f.trainer, &result, e);
        if (o->on_end)
            o->on_end(o->arg, c->rank, f.trainer, &f.plan);
        if (train_ended_together(rc, result.end))
            (void)crew_done(c, NULL); // it was the last thing to tell
    }
    // Before the memory that other ranks may still read.
    crew_leave(c, !train_ended_together(rc, result.end), e ? e->text : err_phrase(rc));
    trainer_close(f.trainer);
    engine_close(f.engine);
    plan_free(&f.plan);
    return rc;
}

// ---------------------------------------------------------------- followers that are threads

struct member {
    struct crew *crew;
    int rank;
    pthread_t thread;
};

struct crew {
    struct comm_job *job;
    int world, n_started;
    struct member *members; // of ranks 1, 2, ...
    struct knobs knobs;     // of the run: the leader's change while it plans
    struct crew_options o;
};

int crew_open(struct crew **out, int world, uint64_t timeout_ns, struct err *e) {
    struct crew *c = *out = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_MEMORY, "out of memory for %d ranks", world);
    c->world = world;
    c->members = calloc((size_t)world, sizeof *c->members);
    int rc = c->members ? comm_job_open(&c->job, world, timeout_ns, e)
                        : err_set(e, ERR_MEMORY, "out of memory for %d ranks", world);
    if (rc != 0) {
        free(c->members);
        free(c);
        *out = NULL;
    }
    return rc;
}

struct comm *crew_leader(struct crew *c) {
    return comm_job_rank(c->job, 0);
}

static void *follow(void *arg) {
    const struct member *m = arg;
    struct comm *c = comm_job_rank(m->crew->job, m->rank);
    struct err e = {0}; // all ranks have the same error, and the leader reports it
    (void)crew_follow(c, &m->crew->o, &e);
    return NULL;
}

int crew_start(struct crew *c, const struct crew_options *o, struct err *e) {
    c->knobs = *o->knobs;
    c->o = *o;
    c->o.knobs = &c->knobs;
    // Followers inherit this mask: the leader's thread handles signals.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int cause = 0;
    for (int i = 1; i < c->world && cause == 0; i++) {
        struct member *m = &c->members[i - 1];
        *m = (struct member){.crew = c, .rank = i};
        cause = pthread_create(&m->thread, NULL, follow, m);
        c->n_started += cause == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return cause == 0 ? 0
                      : err_set(e, ERR_MEMORY, "rank %d of %d could not be started: %s",
                                c->n_started + 1, c->world, strerror(cause));
}

void crew_close(struct crew *c, bool failed, const char *why) {
    if (!c)
        return;
    struct comm *leader = crew_leader(c);
    if (failed)
        leader->give_up(leader, why);
    if (c->n_started > 0)
        leader->close(leader);
    for (int i = 0; i < c->n_started; i++)
        pthread_join(c->members[i].thread, NULL);
    comm_job_close(c->job);
    free(c->members);
    free(c);
}

int crew_lead(struct crew *c, const struct crew_options *o, const struct trainer *t,
              struct engine *g, struct plan *p, struct err *e) {
    struct comm *leader = crew_leader(c);
    TRY(crew_start(c, o, e));
    TRY(crew_data(leader, 0, e));
    return crew_ready(leader, engine_ready(g, p, e), t, g, p, e);
}

static int lead(struct crew *c, const struct knobs *k, const struct trainer_options *o,
                struct follower *f, struct train_result *result, struct err *e) {
    const struct engine_options eo = {.comm = c ? crew_leader(c) : NULL};
    TRY(plan_run(&f->plan, k, e));
    TRY(engine_open(&f->engine, &eo, e));
    TRY(trainer_open(&f->trainer, &f->plan, f->engine, o, e));
    const struct crew_options follow = {
        .knobs = k, .data = trainer_dataset(f->trainer), .stop = o->stop};
    if (c)
        TRY(crew_lead(c, &follow, f->trainer, f->engine, &f->plan, e));
    const int rc = trainer_run(f->trainer, result, e);
    if (c && train_ended_together(rc, result->end))
        (void)crew_done(crew_leader(c), NULL);
    return rc;
}

int crew_train(const struct knobs *k, const struct trainer_options *o, struct err *e) {
    struct follower f = {.plan = {.prefix = ""}};
    struct train_result result = {.end = TRAIN_FAILED};
    struct crew *c = NULL;
    const int world = (int)knobs_world(k);
    if (world > 1)
        TRY(crew_open(&c, world, k->comm_timeout, e));
    const int rc = lead(c, k, o, &f, &result, e);
    crew_close(c, !train_ended_together(rc, result.end), e ? e->text : err_phrase(rc));
    trainer_close(f.trainer);
    engine_close(f.engine);
    plan_free(&f.plan);
    return rc;
}

// crew.h - the ranks of a run beyond the first.
//
// Rank 0 leads: it opens the data, prints the plan, watches the run and writes its files. The other
// ranks follow: each makes its plan, opens an engine and a trainer without an observer, and runs.
// Their trainers meet the leader's (meet.h), so all of them make the same steps.
//
//     leader                                followers
//     crew_join ..........................  crew_join       (processes only)
//     trainer_open (opens the data)
//     crew_data ..........................  crew_data
//     engine_ready                          plan_run_rank, trainer_open, engine_ready
//     crew_ready .........................  crew_ready
//     trainer_run ........................  trainer_run
//
// Followers that are threads of this process are a `crew`. A follower that is a process calls
// crew_join and crew_follow itself.
#ifndef HAGGLE_TRAIN_CREW_H
#define HAGGLE_TRAIN_CREW_H

#include "train/trainer.h"

struct crew_options {
    const struct knobs *knobs;  // of the run
    const struct dataset *data; // that the leader has opened; NULL: each follower opens it
    const volatile sig_atomic_t *stop;
    size_t trace_events;
    // Called on the follower's thread after its run, before its trainer is closed. NULL: nothing.
    void (*on_end)(void *arg, int rank, const struct trainer *t, const struct plan *p);
    void *arg;
};

// A follower's run, from its plan to its end, on this thread. After a failure all ranks end. Closes
// the follower's end of the connection.
int crew_follow(struct comm *c, const struct crew_options *o, struct err *e);

// Joins the processes that mpirun has started, and compares what each was told to do (alike.h). On
// failure *out is NULL or an end that crew_leave leaves.
int crew_join(struct comm **out, const struct knobs *k, int world, const struct comm_lost *lost,
              struct err *e);
// This rank's end, as crew_follow does it. c may be NULL.
void crew_leave(struct comm *c, bool failed, const char *why);

// The leader has opened the data, or could not (rc).
int crew_data(struct comm *c, int rc, struct err *e);
// Every rank is ready, or could not be (rc). ERR_MEMORY if the ranks on one machine do not fit
// there together, ERR_MISMATCH if they have opened other data. The same error on every rank.
int crew_ready(struct comm *c, int rc, const struct trainer *t, const struct engine *g,
               const struct plan *p, struct err *e);

// The last meeting: every rank has ended its run and written what it writes of its own.
int crew_done(struct comm *c, struct err *e);

struct crew; // followers that are threads

int crew_open(struct crew **out, int world, uint64_t timeout_ns, struct err *e);
struct comm *crew_leader(struct crew *c); // the end of rank 0
int crew_start(struct crew *c, const struct crew_options *o, struct err *e);
// What a leader does between trainer_open and trainer_run, all in one.
int crew_lead(struct crew *c, const struct crew_options *o, const struct trainer *t,
              struct engine *g, struct plan *p, struct err *e);
// Waits for the followers. Call it when the leader has ended, also after a failure. c may be NULL.
void crew_close(struct crew *c, bool failed, const char *why);

// A whole run with these knobs, whose ranks are threads of this process, or one rank alone. For
// callers that want the steps and nothing else.
int crew_train(const struct knobs *k, const struct trainer_options *o, struct err *e);

#endif

// guest.h - requests answered during a run: samples that are evaluated, or trained on, beside the bulk.
//
// Place: serve/ reads requests and hands ready samples over (struct guest_source); trainer.c asks for
// them where it may: evaluations at each yield point of a step (program/program.h), while its data is
// waited for, between validation batches, between the tensors of a checkpoint that is written and between
// steps; training samples between steps only, so that a bulk update never sees half of one. Nothing here
// knows of sockets, JSON or text.
//
// Invariants:
//   1. An evaluation changes nothing that training reads: losses of the bulk steps are the same to the
//      bit as without it.
//   2. A training sample is an AdamW update of its own with the learning rate of the next bulk step. It
//      counts as an update (bias correction) and not as a step: the schedule does not advance.
//   3. The sequence of updates is a function of the order in which training samples were taken.
//   4. Nobody is waited for: a source that has nothing ready says so.
//   5. Where a second model answers (second.h) a training sample is a step of that one. It touches nothing of
//      the bulk's, so it may run at the yield points of a step and while its data is waited for, too.
#ifndef HAGGLE_TRAIN_GUEST_H
#define HAGGLE_TRAIN_GUEST_H

#include "measure/sample.h"
#include "train/manifest.h"
#include "train/session.h"

enum guest_kind { GUEST_EVALUATE, GUEST_TRAIN, GUEST_KINDS };
const char *guest_kind_name(enum guest_kind kind); // "evaluate", "train"

struct guest_sample {
    enum guest_kind kind;
    uint64_t arrived_ns; // clock_ns when the request was there
    struct exec_batch
        rows;       // interactive.micro x interactive.seq each; ids inside the vocabulary of the
                    // model that answers
    int64_t tokens; // that are read, without padding
    int64_t trained_tokens; // > 0
    void *ticket;           // the source's own
};

struct guest_answer {
    int rc; // 0, or why there is no result:
    const char *error;
    double loss;      // mean over its trained tokens
    int64_t step;     // bulk steps done
    int64_t own_step; // steps of the second model, with this one; -1: there is none
    double lr;        // of a training sample, as the next two
    double grad_norm; // before clipping
    bool skipped;     // gradients were not finite: nothing was updated
    uint64_t waited_ns, run_ns;
};

// begin and end are called once each, from the thread that trains, as the others.
struct guest_source {
    void *arg;
    int (*begin)(void *arg, struct err *e); // requests may come from now on
    // Takes the oldest ready sample (train false: the oldest evaluation). False: there is none.
    bool (*next)(void *arg, bool train, struct guest_sample *out);
    void (*answer)(void *arg, const struct guest_sample *s, const struct guest_answer *a);
    void (*end)(void *arg); // whoever still waits will hear that the run has ended
};

struct guest_figures {
    uint64_t answered;
    uint64_t late;                 // took longer than interactive.respond; 0 without one
    double worst_ns;               // NaN: none was answered
    struct quantile p50, p95, p99; // of nanoseconds from arrival to answer
};

struct guest_report {
    bool on; // the run takes requests
    struct guest_figures kinds[GUEST_KINDS];
    struct guest_figures all;
    int64_t updates; // by training samples, of this process
    uint64_t run_ns; // of the run's time, in requests
};

struct guests;

uint64_t guests_plan_bytes(void); // of figures
int guests_open(struct guests **out, struct session *s, const struct guest_source *source,
                void (*told)(void *arg, const struct guest_sample *s, const struct guest_answer *a),
                void *told_arg, struct err *e);
void guests_close(struct guests *g); // NULL is accepted
// Answers what is ready, interactive.queue at most, so that the bulk goes on however many come. train:
// training samples, too; *st, of the bulk, counts their updates unless a second model does. Fails as a step
// would.
int guests_serve(struct guests *g, struct train_state *st, bool train, struct err *e);
uint64_t guests_run_ns(const struct guests *g); // all that requests took so far
void guests_report(struct guests *g, struct guest_report *out);
// Answers so far, and the p95 of the recent ones in nanoseconds (NaN: none).
uint64_t guests_recent(struct guests *g, double *p95_ns);

#endif

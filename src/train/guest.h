// guest.h - answers requests during a hybrid run: samples that are evaluated, or trained on, beside
// the bulk training.
//
// Place: serve/ reads requests and hands over samples that are ready (struct guest_source).
// trainer.c takes them:
//   - evaluations at each yield point of a step (program/program.h), while it waits for data,
//     between validation batches, while a checkpoint is written, and between steps;
//   - training samples only between steps, so that a bulk update never sees half of one.
// This file knows nothing of sockets, JSON or text.
//
// Invariants:
//   1. An evaluation changes nothing that training reads: losses of the bulk steps are the same to
//      the bit as without it.
//   2. A training sample is a separate AdamW update with the learning rate of the next bulk step.
//      It counts as an update (bias correction) but not as a step: the schedule does not advance.
//   3. The sequence of updates depends only on the order in which training samples were taken.
//   4. No call waits for a request: a source that has nothing ready says so.
//   5. With a second model (plan/second.h), that model answers, and a training sample is a step of
//      it. Such a step does not touch the bulk model, so it may also run at the yield points of a
//      bulk step and while the trainer waits for data.
#ifndef HAGGLE_TRAIN_GUEST_H
#define HAGGLE_TRAIN_GUEST_H

#include "measure/sample.h"
#include "train/manifest.h"
#include "engine/engine.h"

enum guest_kind { GUEST_EVALUATE, GUEST_TRAIN, GUEST_KINDS };
const char *guest_kind_name(enum guest_kind kind); // "evaluate", "train"

struct guest_sample {
    enum guest_kind kind;
    uint64_t arrived_ns; // clock_ns when the request arrived
    // interactive.micro x interactive.seq each; ids are in the vocabulary of the model that answers
    struct exec_batch rows;
    int64_t tokens;         // without padding
    int64_t trained_tokens; // > 0
    void *ticket;           // for the source's use
};

struct guest_answer {
    int rc;            // 0: answered
    const char *error; // why not; "" when rc is 0
    double loss;       // mean over its trained tokens
    int64_t step;      // bulk steps done
    int64_t own_step;  // steps of the second model, including this one; -1: no second model
    // Of a training sample:
    double lr;
    double grad_norm; // before clipping
    bool skipped;     // gradients were not finite: nothing was updated
    uint64_t waited_ns, run_ns;
};

// All functions are called from the thread that trains; begin and end once each.
struct guest_source {
    void *arg;
    int (*begin)(void *arg, struct err *e); // requests are accepted from now on
    // Takes the oldest sample that is ready; with `train` false the oldest evaluation. False: none.
    bool (*next)(void *arg, bool train, struct guest_sample *out);
    void (*answer)(void *arg, const struct guest_sample *s, const struct guest_answer *a);
    void (*end)(void *arg); // tells all requests that still wait that the run has ended
};

struct guest_figures {
    uint64_t answered;
    uint64_t late;                 // took longer than interactive.respond; 0 if that is not set
    double worst_ns;               // NaN: none was answered
    struct quantile p50, p95, p99; // nanoseconds from arrival to answer
    // The longest time in which the run took no request of the kind, answered or not, and the
    // longest computation of an answer. A request that waits alone takes their sum at most, once it
    // has been read.
    uint64_t gap_ns, run_ns;
};

struct guest_report {
    bool on; // the run takes requests
    struct guest_figures kinds[GUEST_KINDS];
    struct guest_figures all;
    int64_t updates; // by training samples, in this process
    uint64_t run_ns; // time of the run spent in requests
};

struct guests;

uint64_t guests_plan_bytes(void); // memory of the samples of response times
// The state of a second model before its first step. Resuming may replace it.
void guests_begin_second(struct train_state *st, const struct knobs *k);
// *second counts the steps of the second model. It is unused when the session has none. `told` (may
// be NULL) is called after each answer.
int guests_open(struct guests **out, struct session *s, struct train_state *second,
                const struct guest_source *source,
                void (*told)(void *arg, const struct guest_sample *s, const struct guest_answer *a),
                void *told_arg, struct err *e);
void guests_close(struct guests *g); // NULL is accepted
// Answers the requests that are ready, at most interactive.queue of them, so that the bulk training
// goes on however many arrive. With `train` it takes training samples too. *st is the state of the
// bulk run and counts their updates, unless there is a second model. Fails as a step would.
int guests_serve(struct guests *g, struct train_state *st, bool train, struct err *e);
uint64_t guests_run_ns(const struct guests *g); // time spent in requests so far
void guests_report(struct guests *g, struct guest_report *out);
// Answers so far, and the p95 of the recent ones in nanoseconds (NaN: none).
uint64_t guests_recent(struct guests *g, double *p95_ns);

#endif

// trainer.h - the step loop: batches in, updates out, validated, checkpointed, measured.
//
// Place: api/ plans a session, opens a trainer on it (which opens the data and tells the session how
// much memory that takes), runs it, and wires log, live line and TensorBoard to the observer. This
// folder knows none of those.
//
//     session_plan(&s, ...); trainer_open(&t, &s, &options, &e); trainer_run(t, &result, &e);
//     trainer_close(t); session_close(&s);
//
// Invariants:
//   1. A step is a function of the checkpointed state: 2N steps, and N steps, a crash, a resume and
//      N steps, end with the same bits.
//   2. Nothing is allocated between two steps, except for validation results and saving.
//   3. Weights change only in whole steps with finite gradients: a step whose gradients are not
//      finite leaves weights and moments as they were, is counted, and ten in a row end the run.
//   4. A save that fails is reported and the run goes on; when the newest state could not be saved
//      at the end, the run's result says so.
#ifndef HAGGLE_TRAIN_TRAINER_H
#define HAGGLE_TRAIN_TRAINER_H

#include "base/log.h"
#include "data/dataset.h"
#include "measure/energy.h"
#include "measure/metrics.h"
#include "measure/sample.h"
#include "measure/trace.h"
#include "train/guest.h"
#include "train/manifest.h"
#include "train/noise.h"
#include "train/session.h"

#include <limits.h>
#include <signal.h>

// ---------------------------------------------------------------- what observers are told

struct train_start {
    const struct session *session;
    const struct dataset *dataset;
    struct train_state state;    // where the run begins
    int64_t steps;               // where it ends
    int64_t warmup_steps;        // first steps of this process that percentiles leave out
    const char *resumed_from;    // path; NULL: from the beginning
    uint64_t checkpoint_bytes;   // of one checkpoint; 0: none will be saved
    struct energy_meter *energy; // open; may be read whenever an observer is called
};

struct train_step {
    int64_t step, steps; // done, counting this one; of how many
    double loss;         // mean over the step's trained tokens; NaN when there are none
    double lr;
    double grad_norm;                            // before clipping
    double loss_scale;                           // of this step; 1 where the type needs none
    bool skipped;                                // not finite: nothing was updated
    bool empty;                                  // no trained token: nothing was computed
    bool warmup;                                 // left out of percentiles
    int64_t tokens, real_tokens, trained_tokens; // of this step
    uint64_t all_trained_tokens;                 // of the run so far
    double epoch;                                // passes over the data; NaN: it is endless
    uint64_t begin_ns, step_ns, data_wait_ns;    // clock_ns; step_ns includes the wait
    struct data_use data;                        // what its batch took
    const struct noise_estimate *noise;          // so far; NULL: this step did not measure it
    uint64_t elapsed_ns;                         // since trainer_run began
    double tokens_per_s;             // since the warm-up (or the beginning of it), without
                                     // validation and saving
    double eta_s;                    // at that pace; NaN: not known yet
    struct samples *step_ns_samples; // for quantiles; not to be changed
    const struct trace *trace;       // trace_last: this step's split
    struct energy_meter *energy;     // to be read, by those who want to know
    uint64_t answered;               // requests so far
    double answer_p95_ns;            // of recent ones; NaN: none
};

struct train_eval {
    int64_t step;
    double loss; // mean over trained tokens; NaN when there were none
    int64_t batches, tokens, trained_tokens;
    struct quantile batch_p50, batch_p99; // of nanoseconds per batch, data included
    uint64_t total_ns, data_ns;
    bool complete; // false: a stop request ended it early
};

struct train_save {
    int64_t step;
    const char *path; // "" when it failed
    uint64_t bytes, ns;
    int rc; // 0, or why it failed:
    const char *error;
};

enum train_end { TRAIN_FAILED, TRAIN_DONE, TRAIN_TIME, TRAIN_STOPPED };

struct train_result {
    enum train_end end;
    struct train_state state; // at the end
    int64_t first_step, steps_run;
    int64_t warmup_steps;   // of them left out of metrics
    struct train_eval eval; // the last one; batches 0 and loss NaN: none
    int saves, failed_saves;
    struct noise_estimate noise;        // of all steps run that measured it; n 0: none
    struct data_use data;               // of all steps run, warm-up included
    uint64_t wall_ns, eval_ns, save_ns; // of trainer_run; of these, validation and saving
    struct run_metrics metrics; // of the steps after warm-up; wall time without validation and
                                // saving
    // On a device metrics speak of its memory alone; the process is apart.
    bool on_device;
    uint64_t process_peak_bytes; // on the host; 0: not known
    struct guest_report guests;
    char checkpoint[PATH_MAX]; // newest one written; "" none
};

// Any member may be NULL. A non-zero return ends the run: ERR_STOPPED as a stop request would
// (the step is complete, a checkpoint is written), any other at once and unsaved; it is what
// trainer_run returns. on_message and on_end cannot fail. What a person should read, a failed save
// included, comes through on_message; on_save is for records. All are called from trainer_run's thread,
// between steps; on_guest, which cannot fail, also inside them.
struct train_observer {
    void *arg;
    int (*on_start)(void *arg, const struct train_start *start, struct err *e);
    int (*on_step)(void *arg, const struct train_step *step, struct err *e);
    int (*on_eval)(void *arg, const struct train_eval *eval, struct err *e);
    int (*on_save)(void *arg, const struct train_save *save, struct err *e);
    void (*on_message)(void *arg, enum log_level level, const char *text);
    // While data is tokenized, in trainer_open; cannot fail.
    void (*on_progress)(void *arg, const struct shard_progress *p);
    void (*on_guest)(void *arg, const struct guest_sample *s, const struct guest_answer *a);
    void (*on_end)(void *arg, const struct train_result *result);
};

// ---------------------------------------------------------------- running

struct trainer_options {
    struct train_observer observer;
    // Not 0: finish the step, save, return ERR_STOPPED. Set by a signal handler or another thread;
    // NULL: nobody asks.
    const volatile sig_atomic_t *stop;
    // Op events kept for trainer_trace, at most: a short run gets no more than it can fill. 0:
    // totals only.
    size_t trace_events;
    double peak_flops_per_s; // of the device, for MFU; 0: not known
    // Requests to answer meanwhile; NULL: none. The session then has the interactive programs, or a second
    // model.
    const struct guest_source *guests;
    uint64_t guest_bytes; // what the source takes
};

struct trainer;

// After session_plan (with SESSION_TRAIN, and SESSION_EVAL when eval.every is not 0), before
// session_start: opens the data, sets s->loader_bytes (with the trace's) and s->process_bytes as
// they are now. Everything else comes from s->knobs; saving
// is on when save.every or save.last is, and then run.dir must be set.
int trainer_open(struct trainer **out, struct session *s, const struct trainer_options *o,
                 struct err *e);
// Creates and locks run.dir, where one is set, until trainer_close (ERR_USAGE when another run has it):
// before on_start, so that observers may write there from then on. Starts the session unless the
// caller has, resumes, and trains to the end: once per trainer. 0 when
// done or out of time; ERR_STOPPED; ERR_NUMERIC; ERR_IO when the last save failed. *out (may be
// NULL) is filled in every case.
int trainer_run(struct trainer *t, struct train_result *out, struct err *e);
// session_ready: trainer_run begins with it, before anything is written; a caller may ask before.
int trainer_ready(struct trainer *t, struct err *e);
// What a run with another plan on the same data would take besides its arena: fills its loader_bytes,
// saving_bytes and process_bytes. `other` is planned, with the same seq.
int trainer_plan_memory(const struct trainer *t, struct session *other, struct err *e);
uint64_t trainer_trace_bytes(const struct trainer *t); // of the trace's events
void trainer_close(struct trainer *t);                 // before session_close; NULL is accepted

const struct trace *trainer_trace(const struct trainer *t); // until trainer_close
const struct dataset *trainer_dataset(const struct trainer *t);
const struct session *trainer_session(const struct trainer *t);

#endif

// trainer.h - the step loop: reads batches, trains, validates, saves checkpoints and measures.
//
// Place: api/ makes a plan and an engine and opens a trainer on them. Opening it opens the data and
// stores in the plan how much memory that takes. Then api/ runs the trainer and connects log, live
// line and TensorBoard to the observer. This folder knows none of those.
//
//     plan_run(&p, ...); engine_open(&g, ...); trainer_open(&t, &p, g, &options, &e);
//     trainer_run(t, &result, &e); trainer_close(t); engine_close(g); plan_free(&p);
//
// Invariants:
//   1. A step depends only on the state that a checkpoint holds: 2N steps end with the same bits as
//      N steps, a crash, a resume and N more steps.
//   2. Nothing is allocated between two steps, except for validation results and saving.
//   3. Weights change only in whole steps with finite gradients. A step whose gradients are not
//      finite leaves weights and moments as they were and is counted. Ten in a row end the run, and
//      so do losses that stay far above where they were (judge.h), unless stop.diverged is false.
//      A loss that is not finite before any update ends the run in any case. A run that ends
//      without a single update because no gradients were finite is an error.
//   4. Replicas that train apart (comm.every) are saved and validated, and the run ends, only after
//      steps at whose end their weights were averaged. What is due earlier waits for the next one.
//      Only if data cannot be read are they averaged ahead of time, so that no step is lost.
//   5. The newest checkpoint that later losses have shown to be sound is not removed for one of
//      which that is not known yet. A run that ends because it has diverged saves nothing more.
//   6. A save that fails is reported and the run goes on. If the last state could not be saved, the
//      run's result says so.
#ifndef HAGGLE_TRAIN_TRAINER_H
#define HAGGLE_TRAIN_TRAINER_H

#include "base/log.h"
#include "data/dataset.h"
#include "hw/apart.h"
#include "measure/energy.h"
#include "measure/metrics.h"
#include "measure/sample.h"
#include "measure/trace.h"
#include "train/guest.h"
#include "train/manifest.h"
#include "train/meet.h"
#include "train/noise.h"
#include "engine/engine.h"

#include <limits.h>
#include <signal.h>

// ---------------------------------------------------------------- what observers receive

struct train_start {
    const struct session *session;
    const struct dataset *dataset;
    struct train_state state;    // at the beginning of the run
    int64_t steps;               // the step at which the run ends
    int64_t warmup_steps;        // first steps of this process that percentiles leave out
    const char *resumed_from;    // path of a checkpoint; NULL: a new run
    uint64_t checkpoint_bytes;   // size of one checkpoint; 0: none will be saved
    struct energy_meter *energy; // open; observers may read it whenever they are called
};

struct train_step {
    int64_t step, steps; // steps done, counting this one; the step at which the run ends
    double loss;         // mean over the step's trained tokens; NaN when there are none
    double lr;
    double grad_norm;                            // before clipping
    double loss_scale;                           // of this step; 1 unless precision=fp16
    bool skipped;                                // gradients were not finite: nothing was updated
    bool empty;                                  // no trained token: nothing was computed
    bool warmup;                                 // left out of percentiles
    int64_t tokens, real_tokens, trained_tokens; // in this step
    uint64_t all_trained_tokens;                 // in the run so far
    double epoch, epochs; // passes over the data so far, and at the end; NaN: it is endless
    uint64_t begin_ns, step_ns, data_wait_ns; // clock_ns; step_ns includes data_wait_ns
    struct data_use data;                     // work of making its batch
    const struct noise_estimate *noise;       // so far; NULL: this step did not measure it
    const struct meet_note *ranks;            // each rank's step before this one; NULL: one rank
    int n_ranks;
    uint64_t elapsed_ns; // since trainer_run began
    // Without validation and saving. Since the end of the warm-up; during it, since the start.
    double tokens_per_s;
    double eta_s;                    // at that speed; NaN: not known yet
    struct samples *step_ns_samples; // for quantiles; observers must not change it
    const struct trace *trace;       // trace_last gives this step's split of time
    struct energy_meter *energy;     // observers may read it
    double apart_ns;                 // of the CPUs, if it was looked at just now; else NaN
    uint64_t answered;               // requests answered so far
    double answer_p95_ns;            // p95 of recent response times; NaN: none
};

struct train_eval {
    int64_t step;
    double loss; // mean over trained tokens; NaN when there were none
    int64_t batches, tokens, trained_tokens;
    struct quantile batch_p50, batch_p99; // nanoseconds per batch, including its data
    uint64_t total_ns, data_ns;
    bool complete; // false: a stop request ended it early
    bool judged;   // it counts for save.best and stop.patience
    bool best;     // if so: the best so far
};

struct train_save {
    int64_t step;
    const char *path; // "" when it failed
    uint64_t bytes, ns;
    bool best;         // of the best validation so far
    int rc;            // 0: saved
    const char *error; // why not; "" when rc is 0
};

// What one rank has measured, over the steps after warm-up.
struct rank_report {
    double step_p50_ns, step_p95_ns;
    struct time_split split;
    uint64_t arena_bytes, predicted_bytes, measured_bytes; // of its process; 0: not known
};

// TRAIN_PATIENCE: stop.patience validations were not better than the best before them.
enum train_end {
    TRAIN_FAILED,
    TRAIN_DONE,
    TRAIN_TIME,
    TRAIN_STOPPED,
    TRAIN_PATIENCE,
    TRAIN_DIVERGED,
};

// Whether all ranks have ended the run together: none needs to be told.
static inline bool train_ended_together(int rc, enum train_end end) {
    return rc == 0 || rc == ERR_STOPPED || end == TRAIN_DIVERGED;
}

struct train_result {
    enum train_end end;
    struct train_state state; // at the end
    int64_t first_step, steps_run;
    double epoch;           // passes over the data since the run's first step; NaN: it is endless
    int64_t warmup_steps;   // first steps that metrics leave out
    struct train_eval eval; // the last one; batches 0 and loss NaN: none
    int saves, failed_saves;
    struct noise_estimate noise;        // from all steps that measured it; n 0: none
    struct data_use data;               // of all steps run, warm-up included
    uint64_t wall_ns, eval_ns, save_ns; // the whole of trainer_run; its validation; its saving
    struct run_metrics metrics;  // of the steps after warm-up; time without validation and saving
    bool on_device;              // then the memory in metrics is the device's
    uint64_t process_peak_bytes; // on the host; 0: not known
    struct guest_report guests;
    struct step_flops flops; // of a step, on all ranks
    struct apart cpus; // of this rank's threads, during the steps after warm-up; not on a device
    const struct rank_report *ranks; // by rank, until trainer_close; NULL: one rank
    int n_ranks;
    char checkpoint[PATH_MAX]; // the newest one written; "": none
    char best[PATH_MAX];       // that of the best validation (state.best); "": none is kept
};

// Any member may be NULL. All are called from the thread of trainer_run between steps, on_guest
// also inside of steps. A return that is not 0 ends the run. ERR_STOPPED ends it as a stop request
// does: the step is complete and a checkpoint is written. Any other code ends it at once, without
// saving, and trainer_run returns it. Everything that the user should read, also that a save
// failed, comes through on_message. on_save is for records.
struct train_observer {
    void *arg;
    int (*on_start)(void *arg, const struct train_start *start, struct err *e);
    int (*on_step)(void *arg, const struct train_step *step, struct err *e);
    int (*on_eval)(void *arg, const struct train_eval *eval, struct err *e);
    int (*on_save)(void *arg, const struct train_save *save, struct err *e);
    void (*on_message)(void *arg, enum log_level level, const char *text);
    // Called by trainer_open while data is tokenized.
    void (*on_progress)(void *arg, const struct shard_progress *p);
    void (*on_guest)(void *arg, const struct guest_sample *s, const struct guest_answer *a);
    void (*on_end)(void *arg, const struct train_result *result);
};

// ---------------------------------------------------------------- running

struct trainer_options {
    struct train_observer observer;
    // A signal handler or another thread sets it to stop the run: the trainer finishes the step,
    // saves and returns ERR_STOPPED. NULL: no stop requests.
    const volatile sig_atomic_t *stop;
    // Most op events kept for trainer_trace. A short run keeps no more than it can fill. 0: totals
    // only.
    size_t trace_events;
    double peak_flops_per_s; // of the device, for MFU; 0: not known
    // Requests to answer during the run; NULL: none. They need a plan with the interactive programs
    // or a second model.
    const struct guest_source *guests;
    uint64_t guest_bytes; // memory of the source of requests
    // Data that the caller has opened for these knobs. It must outlive the trainer. NULL: the
    // trainer opens the data.
    const struct dataset *data;
};

struct buffers;
struct trainer;

// The plan must have PLAN_TRAIN, and PLAN_EVAL when eval.every is not 0. Plan and engine must
// outlive the trainer. Opens the data and counts the buffers of the run into the plan (buffers.h).
// Everything else comes from the plan's knobs. The run saves if save.every or save.last is set, and
// then run.dir must be set.
int trainer_open(struct trainer **out, struct plan *p, struct engine *g,
                 const struct trainer_options *o, struct err *e);
// If run.dir is set, creates it and locks it until trainer_close (ERR_USAGE when another run has
// locked it). That comes before on_start, so that observers may write there from then on. Loads the
// plan unless the caller has loaded it, resumes, and trains to the end. May be called once per
// trainer. Returns 0 when done, out of time (knob time) or out of patience, ERR_STOPPED,
// ERR_NUMERIC, or ERR_IO when the last save failed. *out (out may be NULL) is filled in every case.
int trainer_run(struct trainer *t, struct train_result *out, struct err *e);
void trainer_close(struct trainer *t); // before engine_close; NULL is accepted

const struct trace *trainer_trace(const struct trainer *t); // until trainer_close
// When the run began, by this rank's clock: a moment that all ranks have in common.
uint64_t trainer_origin_ns(const struct trainer *t);
const struct dataset *trainer_dataset(const struct trainer *t);
const struct buffers *trainer_buffers(const struct trainer *t); // for buffers_count of other plans

#endif

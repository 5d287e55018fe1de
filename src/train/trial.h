// trial.h - a trial: some steps of one configuration, measured in this process or in a child.
//
// Place: bench and every search over configurations run trials. api/ makes tables of them.
// trial_run forks, so that the peak of memory is that of the trial alone, and a configuration that
// is killed or crashes gives a result with a reason and does not end the search. A worker
// (tune/worker.h) is a process that stays and calls trial_measure many times.
//
// Invariants: a trial writes no files and leaves nothing behind. The caller of trial_run has no
// other threads while it runs, because a fork copies only the calling thread.
#ifndef HAGGLE_TRAIN_TRIAL_H
#define HAGGLE_TRAIN_TRIAL_H

#include "hw/apart.h"
#include "hw/others.h"
#include "knob/knob.h"
#include "measure/metrics.h"
#include "measure/trace.h"
#include "program/program.h"
#include "train/noise.h"
#include "engine/engine.h"

#include <signal.h>

enum { TRIAL_MOST_STEPS = 1 << 20 };

struct trial_sample {                         // one step, reported when it has ended
    uint64_t begin_ns, step_ns, data_wait_ns; // clock_ns; step_ns includes data_wait_ns
    double loss;                              // NaN: no trained token
    bool warmup;                              // not counted
};

// Called in the process that measures. Any member may be NULL.
struct trial_observer {
    void *arg;
    // Returning ERR_STOPPED ends the trial with the steps measured so far. Any other code that is
    // not 0 makes it fail.
    int (*on_step)(void *arg, const struct trial_sample *sample, struct err *e);
    void (*on_progress)(void *arg); // data is being read: the process is alive, without a step yet
};

struct trial_options {
    int64_t warmup, steps;             // steps run but not counted; steps measured
    const volatile sig_atomic_t *stop; // not 0: ends the trial with ERR_STOPPED; may be NULL
    struct trial_observer observer;    // for trial_measure; trial_run ignores it
};

struct dataset;

struct trial_result {
    int rc;                      // 0: measured
    char reason[ERR_TEXT_BYTES]; // why it was not measured, or why it was ended early; else ""
    bool started;                // memory was taken: the plan was not refused
    bool ended_early;            // by the observer: rc is 0, and steps are fewer, perhaps none
    int64_t warmup, steps;       // steps run but not counted; steps measured
    double *step_ns;             // one per measured step; freed by trial_free
    uint64_t wall_ns;            // from the first measured step to the last, including the loader
    uint64_t tokens, real_tokens, trained_tokens;
    double loss_first, loss_last; // of the measured steps
    // The weights were not the initial ones but what earlier trials left. Times do not depend on
    // that, but the losses say nothing about this configuration.
    bool kept_weights;
    struct time_split split;
    struct data_use data;
    struct energy_use energy;    // of the measured steps
    struct others others;        // what other programs took meanwhile
    struct apart cpus;           // how far they were from each other; none on a device
    struct noise_estimate noise; // from all steps, with noise.every; n 0: not measured
    uint64_t memory_predicted_bytes, memory_measured_bytes; // 0: not known
    uint64_t by_class[CLASS_COUNT];
    struct step_cost cost;
    struct step_flops flops;
};

// Runs a trial in a child process. Returns 0 also when the configuration was refused or the process
// died: see out->rc. Fails when no process could be started (ERR_IO, ERR_MEMORY), and with
// ERR_STOPPED. Call trial_free in every case.
int trial_run(const struct knobs *k, const struct trial_options *o, struct trial_result *out,
              struct err *e);
void trial_free(struct trial_result *r);
// The input of metrics_compute, except for peak_flops_per_s, which the caller must know.
struct metrics_input trial_metrics_input(const struct trial_result *t, const struct knobs *k,
                                         struct samples *step_ns, const struct trace *trace);

// What a process keeps between its trials: an engine, and the data as long as the knobs that affect
// it stay the same. With `keep` the engine also keeps its arena and weights (engine/arena.h).
struct trial_desk {
    struct engine *engine;
    struct dataset *data;    // NULL: none yet
    struct knobs data_knobs; // `data` was opened for these
};
int trial_desk_open(struct trial_desk *d, bool keep, struct err *e);
void trial_desk_close(struct trial_desk *d);
// Runs a trial in this process. Returns 0, or why it was not measured. out->step_ns must have room
// for o->steps samples (trial_open). Memory is measured only if the process can reset its peak.
int trial_measure(struct trial_desk *d, const struct knobs *k, const struct trial_options *o,
                  struct trial_result *out, struct err *e);
// Clears *out and allocates memory for its samples.
int trial_open(struct trial_result *out, const struct trial_options *o, struct err *e);
// For a child that ended before it could report: sets rc and reason from waitpid's status.
void trial_explain(struct trial_result *out, int status);
#endif

// trial.h - one configuration, measured for some steps: in this process, or in one of its own.
//
// Place: bench (and every search over configurations) runs trials; api/ makes tables of them.
// trial_run forks, so that the peak of memory is the trial's own, and a configuration that is killed or
// crashes is a result with a reason, never the end of a search. tune/worker.h has processes that stay,
// and call trial_measure again and again.
//
// Invariants: a trial writes no files and leaves nothing behind; the caller of trial_run has no other
// threads while it runs (a fork copies only the calling one).
#ifndef HAGGLE_TRAIN_TRIAL_H
#define HAGGLE_TRAIN_TRIAL_H

#include "knob/knob.h"
#include "measure/metrics.h"
#include "measure/trace.h"
#include "program/program.h"
#include "train/noise.h"
#include "train/session.h"

#include <signal.h>

enum { TRIAL_MOST_STEPS = 1 << 20 };

struct trial_sample {                         // one step, as soon as it is over
    uint64_t begin_ns, step_ns, data_wait_ns; // clock_ns; step_ns includes the wait
    double loss;                              // NaN: no trained token
    bool warmup;                              // run and not counted
};

// Called in the process that measures. Any member may be NULL.
struct trial_observer {
    void *arg;
    // ERR_STOPPED: enough, the trial ends here with what it has. Any other code is its failure.
    int (*on_step)(void *arg, const struct trial_sample *sample, struct err *e);
    void (*on_progress)(void *arg); // data is being read: alive, though without a step
};

struct trial_options {
    int64_t warmup, steps;             // run and not counted; measured
    const volatile sig_atomic_t *stop; // not 0: the trial is ended, ERR_STOPPED; may be NULL
    struct trial_observer observer;    // of trial_measure; trial_run has none
};

// Work of one training step by kind of op; of that, what reads or writes the logits.
struct step_cost {
    struct op_cost all[CAT_COUNT], logits[CAT_COUNT];
};

struct trial_result {
    int rc;                      // 0: measured; else why not, in words:
    char reason[ERR_TEXT_BYTES]; // "" when measured; of a trial that was ended early: why
    bool started;                // memory was taken: not refused by its plan
    bool ended_early;            // by the observer: rc is 0, and steps are fewer, perhaps none
    int64_t warmup, steps;       // run and not counted; measured
    double *step_ns;             // one per step; malloc'd
    uint64_t wall_ns;            // from the first of them to the last, loader included
    uint64_t tokens, real_tokens, trained_tokens;
    double loss_first, loss_last; // of the measured steps
    // The weights were not the initial ones but what former trials left: times are as good, losses
    // are no figures of this configuration.
    bool kept_weights;
    struct time_split split;
    struct data_use data;
    struct energy_use energy;    // of the measured steps
    struct noise_estimate noise; // of all steps, with noise.every; n 0: not measured
    uint64_t memory_predicted_bytes, memory_measured_bytes; // 0: not known
    uint64_t by_class[CLASS_COUNT];
    struct step_cost cost;
    struct step_flops flops;
};

// 0 also when the configuration was refused or its process died: see out->rc. Fails when no process
// could be made (ERR_IO, ERR_MEMORY) and with ERR_STOPPED. trial_free in every case.
int trial_run(const struct knobs *k, const struct trial_options *o, struct trial_result *out,
              struct err *e);
void trial_free(struct trial_result *r);
// For metrics_compute, all but the peak: how fast the machine could be is the caller's to know.
struct metrics_input trial_metrics_input(const struct trial_result *t, const struct knobs *k,
                                         struct samples *step_ns, const struct trace *trace);
// The same in this process: 0, or why it was not measured; *out has room for o->steps samples in
// step_ns. `kept` may be NULL; see kept.h. Memory is measured where the process can reset its peak.
int trial_measure(const struct knobs *k, const struct trial_options *o, struct kept *kept,
                  struct trial_result *out, struct err *e);
// Empties *out and takes memory for its samples.
int trial_open(struct trial_result *out, const struct trial_options *o, struct err *e);
// For a process that has ended (waitpid's status) before it could report: rc and reason.
void trial_explain(struct trial_result *out, int status);
// From the plan alone.
void trial_step_cost(const struct session *s, struct step_cost *out);

#endif

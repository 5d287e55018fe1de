// trial.h - one configuration, measured for some steps in a process of its own.
//
// Place: bench (and every search over configurations) runs trials; api/ makes tables of them. The
// process is forked so that the peak of its memory is its own, and so that a configuration that is
// killed or crashes is a result with a reason, never the end of a search.
//
// Invariants: a trial writes no files and leaves nothing behind; the caller has no other threads
// while it runs (a fork copies only the calling one).
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

struct trial_options {
    int64_t warmup, steps;             // run and not counted; measured
    const volatile sig_atomic_t *stop; // not 0: the trial is ended, ERR_STOPPED; may be NULL
};

// Work of one training step by kind of op; of that, what reads or writes the logits.
struct step_cost {
    struct op_cost all[CAT_COUNT], logits[CAT_COUNT];
};

struct trial_result {
    int rc;                      // 0: measured; else why not, in words:
    char reason[ERR_TEXT_BYTES]; // "" when measured
    int64_t steps;               // measured
    double *step_ns;             // one per step; malloc'd
    uint64_t wall_ns;            // from the first of them to the last, loader included
    uint64_t tokens, real_tokens, trained_tokens;
    double loss_first, loss_last; // of the measured steps
    struct time_split split;
    struct data_use data;
    struct energy_use energy;    // of the measured steps
    struct noise_estimate noise; // of all steps, with noise.every; n 0: not measured
    uint64_t memory_predicted_bytes, memory_measured_bytes; // 0: not known
    uint64_t by_class[CLASS_COUNT];
    struct step_cost cost;
};

// 0 also when the configuration was refused or its process died: see out->rc. Fails when no process
// could be made (ERR_IO, ERR_MEMORY) and with ERR_STOPPED. trial_free in every case.
int trial_run(const struct knobs *k, const struct trial_options *o, struct trial_result *out,
              struct err *e);
void trial_free(struct trial_result *r);
// From the plan alone.
void trial_step_cost(const struct session *s, struct step_cost *out);

#endif

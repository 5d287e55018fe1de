// hyper.h - the optimizer's policy: all numbers that the host decides for one step.
//
// Place: trainer.c fills the array and passes it to session_set_hyper. The ops of the update read
// it (program/program.h, enum hyper). There is no state, as in schedule.h.
#ifndef HAGGLE_TRAIN_HYPER_H
#define HAGGLE_TRAIN_HYPER_H

#include "knob/knob.h"
#include "program/program.h"
#include "train/manifest.h"

#include <stdint.h>

struct hyper_step {
    int64_t step; // counted from 0, for the schedule
    // Counted from 1: this update and all applied before. Skipped steps left the moments alone, so
    // they do not count.
    int64_t update;
    int64_t trained_tokens; // in the whole step, over all micro-batches and replicas, or over those
                            // of one replica that takes a step of its own (comm.every)
    double loss_scale;      // scale.h
    int64_t guest;          // 0: a step; n: the update of the n-th training request (guest.h)
};

// Updates applied so far, by steps and by requests.
int64_t hyper_updates(const struct train_state *st);

// HYPER_LOSS_FACTOR is loss_scale / trained_tokens. It is 0 without trained tokens, to avoid a
// division by zero. Such a step has no gradient and must not be run (trainer.c skips it).
void hyper_fill(const struct knobs *k, const struct hyper_step *at, double out[HYPER_COUNT]);

#endif

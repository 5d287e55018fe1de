// schedule.h - the learning rate as a function of the step.
//
// Place: hyper.c asks once per step. No state: a resumed run and an uninterrupted one get the same
// number from the same step.
#ifndef HAGGLE_TRAIN_SCHEDULE_H
#define HAGGLE_TRAIN_SCHEDULE_H

#include "knob/knob.h"

#include <stdint.h>

// Learning rate of step `step`, counted from 0, in a run of k->steps steps.
//
// Warm-up: step s < sched.warmup has (s+1)/warmup of optim.lr, so step warmup-1 is the first at the
// full rate; a warm-up of 0 or 1 starts there. A warm-up longer than the run never gets there.
// After it, by sched.kind:
//   constant  optim.lr
//   linear    a straight line that reaches sched.min x optim.lr exactly at the last step
//   cosine    half a cosine to the same end
//   wsd       optim.lr until the last sched.decay x steps steps (rounded), then linear to that end
// A step at or past the end of the run (steps was lowered) has the last step's rate.
double schedule_lr(const struct knobs *k, int64_t step);

#endif

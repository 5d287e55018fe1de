// schedule.h - the learning rate as a function of the step.
//
// Place: hyper.c calls it once per step. There is no state: a resumed run and an uninterrupted one
// get the same rate for the same step.
#ifndef HAGGLE_TRAIN_SCHEDULE_H
#define HAGGLE_TRAIN_SCHEDULE_H

#include "knob/knob.h"

#include <stdint.h>

// Learning rate of step `step`, counted from 0, in a run of k->steps steps.
//
// Warm-up: step s < sched.warmup has (s+1)/warmup of optim.lr, so step warmup-1 is the first one at
// the full rate. A warm-up of 0 or 1 starts at the full rate. A warm-up longer than the run never
// reaches it. After the warm-up, by sched.kind:
//   constant  optim.lr
//   linear    a straight line that reaches sched.min x optim.lr exactly at the last step
//   cosine    half a cosine to the same end
//   wsd       optim.lr, then in the last sched.decay x steps steps (rounded) linear to that end
// A step at or past the end of the run (after steps was lowered) has the rate of the last step.
double schedule_lr(const struct knobs *k, int64_t step);

#endif

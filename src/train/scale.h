// scale.h - dynamic loss scaling for fp16 (Micikevicius et al., 2018): gradients that would vanish below
// the type's least number are computed times a power of two, and the update divides by it.
//
// Place: trainer.c multiplies the loss factor by it (hyper.c), CLIP divides, and after a step the policy
// here decides what the next one has. The state is part of the checkpoint.
//
// Invariants: the scale is a power of two between `floor` and SCALE_MOST, so that scaling costs no digit.
// It halves when gradients were not finite (such a step is skipped) and doubles after scale.growth good
// steps in a row. With a type that needs none it is 1 and stays.
#ifndef HAGGLE_TRAIN_SCALE_H
#define HAGGLE_TRAIN_SCALE_H

#include "base/err.h"
#include "knob/knob.h"

#include <stdbool.h>
#include <stdint.h>

#define SCALE_MOST 16777216.0 // 2^24: beyond it no gradient of a finite loss fits

struct loss_scale {
    double value;
    int64_t good_steps; // since it last changed
};

void loss_scale_start(struct loss_scale *s, const struct knobs *k);
// A value a checkpoint may hold for these knobs.
bool loss_scale_valid(const struct loss_scale *s, const struct knobs *k);
// After a step. ERR_NUMERIC when gradients are not finite even at the floor, naming step and knobs.
int loss_scale_update(struct loss_scale *s, const struct knobs *k, bool finite, int64_t step,
                      struct err *e);

#endif

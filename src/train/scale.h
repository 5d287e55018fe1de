// scale.h - dynamic loss scaling for fp16 (Micikevicius et al., 2018). Small gradients would vanish
// in fp16, so the loss, and with it every gradient, is multiplied by a power of two. The update
// divides by it.
//
// Place: hyper.c multiplies the loss factor by the scale and the op CLIP divides by it. After a
// step the policy here decides the scale of the next one. The state is part of the checkpoint.
//
// Invariants: the scale is a power of two between scale.floor and SCALE_MOST, so that scaling loses
// no digit. It halves when gradients were not finite (such a step is skipped) and doubles after
// scale.growth good steps in a row. In other precisions it is always 1.
#ifndef HAGGLE_TRAIN_SCALE_H
#define HAGGLE_TRAIN_SCALE_H

#include "base/err.h"
#include "knob/knob.h"

#include <stdbool.h>
#include <stdint.h>

#define SCALE_MOST 16777216.0 // 2^24: with a larger scale no gradient of a finite loss fits in fp16

struct loss_scale {
    double value;
    int64_t good_steps; // in a row, since the scale last changed
};

void loss_scale_start(struct loss_scale *s, const struct knobs *k);
// Whether a run with these knobs can continue with this scale, which a checkpoint holds.
bool loss_scale_valid(const struct loss_scale *s, const struct knobs *k);
// To be called after each step. ERR_NUMERIC, naming step and knobs, when gradients are not finite
// even at the floor.
int loss_scale_update(struct loss_scale *s, const struct knobs *k, bool finite, int64_t step,
                      struct err *e);

#endif

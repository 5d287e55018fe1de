// tuned.h - trains the scales and minima of a quantized model so that its distributions come near
// its source's: the divergence (KL) on calibration text, by Adam.
//
// Place: `haggle quantize --method tuned`. Codes are chosen as `awq` chooses them and stay. Source
// and quantized model are two engines. A turn: the source computes logits; the program
// PLAN_GRADIENTS of the other one, whose weights are the values of the quantized bytes, takes them
// as what its own should be and makes the gradient of every weight. As
//
//     value = code * scale (+ minimum),
//
// a scale's gradient is the sum over its group of weight gradient * code, a minimum's the sum of
// the weight gradients. So no op knows of quantized training, and memory is two models of float32,
// the gradients of one, and two numbers of state per scale.
//
// Invariants:
//   1. Only the training split of the data is read.
//   2. Scales stay positive. What is written are values of the format (float16 for int4), so the
//      loss of the last turns is that of the result, but for the kernels' rounding of activations.
//   3. The same data, seed and threads give the same bytes.
#ifndef HAGGLE_TRAIN_TUNED_H
#define HAGGLE_TRAIN_TUNED_H

#include "model/quantize.h"
#include "train/powers.h"
#include "train/rounded.h"

struct tuned_options {
    const struct score *data;       // divided (score_open_divided)
    const struct quantized *stored; // which matrices are quantized, and how
    const struct powers *powers;
    uint64_t tokens; // of calibration text that are trained on; the text is repeated if need be
    const struct score_listener *l;
};

struct tuned {
    struct rounded *all;
    int n;
    uint64_t steps, tokens;
    double kl_first, kl_last; // nats per token: of the first tenth of the steps and of the last
    double seconds;
};

int tuned_train(struct tuned *out, const struct tuned_options *o, struct err *e);
void tuned_free(struct tuned *t); // also after a failure
// The bytes of a matrix (base/storage.h); NULL: it was not tuned, or in another format.
const void *tuned_bytes(const struct tuned *t, const char *name, struct storage storage);

#endif

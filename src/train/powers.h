// powers.h - the mean square of every column of what each matrix of a model is multiplied with, on
// calibration text (the training split of a divided dataset).
//
// Place: methods that choose codes by activations need them (model/quantize.h). PLAN_POWERS adds
// them up while it computes the text; nothing of an activation is kept.
//
// Invariant: the powers of a matrix have a mean of 1, and none is below POWER_LEAST, so a column
// that the text never used still counts a little.
#ifndef HAGGLE_TRAIN_POWERS_H
#define HAGGLE_TRAIN_POWERS_H

#include "train/score.h"

#define POWER_LEAST 1e-3f

struct powers {
    struct powers_of {
        char name[128]; // of the parameter
        float *mean;    // per column of [out, in]
        int64_t n;
    } * all;
    int n;
    uint64_t tokens; // that were computed
};

// Computes about `tokens` tokens of the training split of data->data, or all of it if it is less.
int powers_measure(struct powers *out, const struct score *data, uint64_t tokens,
                   const struct score_listener *l, struct err *e);
void powers_free(struct powers *p);
const float *powers_find(const struct powers *p, const char *name); // NULL: it multiplies nothing

#endif

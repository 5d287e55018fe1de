// plain.h - ops that move bytes or handle a few doubles, for any float type.
#ifndef HAGGLE_BACKEND_CPU_PLAIN_H
#define HAGGLE_BACKEND_CPU_PLAIN_H

#include "backend/backend.h"

int plain_zero(const struct op_call *call); // m rows of n columns (m = 0: one row), any type
// The same type on both sides; with ACCUMULATE a float type.
int plain_copy(const struct op_call *call, struct err *e);
int plain_cast(const struct op_call *call, struct err *e); // between float types; m as in zero
int plain_clip(const struct op_call *call);
int plain_sum(const struct op_call *call);

// A sum of doubles with what rounding lost. Whatever the order of the terms, high + low has the
// same bits but for one case in billions, so ranks may divide a sum as they like.
struct pair {
    double high, low;
};
void pair_add(struct pair *p, double x);

#endif

// plain.h - ops that move bytes or handle a few doubles, whatever the float type.
#ifndef HAGGLE_BACKEND_CPU_PLAIN_H
#define HAGGLE_BACKEND_CPU_PLAIN_H

#include "backend/backend.h"

int plain_zero(const struct op_call *call); // m rows of n columns (m = 0: one row), any type
int plain_copy(const struct op_call *call,
               struct err *e); // the same type on both sides; ACCUMULATE: fp32, fp64
int plain_cast(const struct op_call *call, struct err *e); // between float types; rows as in zero
int plain_clip(const struct op_call *call);
int plain_sum(const struct op_call *call);

#endif

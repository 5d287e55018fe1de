// ref.h - the reference kernels, one table per float type, for reference.c only.
#ifndef HAGGLE_BACKEND_CPU_REF_H
#define HAGGLE_BACKEND_CPU_REF_H

#include "backend/backend.h"

typedef int ref_fn(const struct op_call *call, struct err *e);

// A slot that is NULL is an op without a float type of its own (reference.c runs it) or not a
// single rank's.
extern ref_fn *const ref_table_f32[OP_COUNT];
extern ref_fn *const ref_table_f64[OP_COUNT];

#endif

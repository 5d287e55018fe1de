// ref.h - the reference kernels: one table per float type, used by reference.c only.
#ifndef HAGGLE_BACKEND_CPU_REF_H
#define HAGGLE_BACKEND_CPU_REF_H

#include "backend/backend.h"

typedef int ref_fn(const struct op_call *call, struct err *e);

// A slot is NULL when reference.c itself runs the op, or when the op needs several ranks or the
// host.
extern ref_fn *const ref_table_f32[OP_COUNT];
extern ref_fn *const ref_table_f64[OP_COUNT];

#endif

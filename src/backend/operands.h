// operands.h - what an op expects of its operands, checked before a CPU kernel touches them.
//
// One table (operands.c) gives each op a letter per operand, so kernels can cast without asking: a
// call that passed backend_check_call has every required pointer, the right element types and no
// negative size.
#ifndef HAGGLE_BACKEND_OPERANDS_H
#define HAGGLE_BACKEND_OPERANDS_H

#include "backend/backend.h"

// The element type of the call's activations (DTYPE_F32 or DTYPE_F64 for the reference), or
// DTYPE_COUNT when the op has none (zero, clip). ERR_UNSUPPORTED or ERR_MISMATCH, naming op,
// operand and type, when the operands do not fit.
int backend_check_call(const struct op_call *call, enum dtype *float_type, struct err *e);

#endif

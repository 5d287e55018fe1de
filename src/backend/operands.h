// operands.h - checks of a call that the backends share. They run before a kernel touches anything.
//
// ops.def gives each operand of an op a letter. A call that passed backend_check_call has every
// required pointer, the right element types and no negative size, so kernels can cast without
// asking.
#ifndef HAGGLE_BACKEND_OPERANDS_H
#define HAGGLE_BACKEND_OPERANDS_H

#include "backend/backend.h"

// *float_type: the element type of the call's activations, or DTYPE_COUNT when the op has none
// (zero, clip). ERR_UNSUPPORTED or ERR_MISMATCH, naming op, operand and type, when the operands do
// not fit.
int backend_check_call(const struct op_call *call, enum dtype *float_type, struct err *e);

// ERR_USAGE, naming op, row and id, when an id in host memory is out of range.
int backend_check_tokens(const struct op_call *embed, struct err *e); // also its positions
// A negative target is accepted: its row is not trained.
int backend_check_targets(const struct op_call *call, const int32_t *targets, struct err *e);
// Places of rows in a cache of op->batch sequences with op->seq rows each.
int backend_check_cached(const struct op *op, const int32_t *sequences, const int32_t *positions,
                         struct err *e);

#endif

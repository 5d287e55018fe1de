// signature.h - a value that holds all that the time of an op depends on: its kind, sizes, element
// types and the flags that change its work.
//
// Place: costs.h keeps times by signature. The layers of a model repeat a few dozen signatures, and
// so do settings that differ only in accumulation or recomputation.
//
// Invariants: two ops of equal signature do the same work on different data. There is no padding,
// so signatures can be compared and hashed as memory.
#ifndef HAGGLE_PREDICT_SIGNATURE_H
#define HAGGLE_PREDICT_SIGNATURE_H

#include "program/program.h"

// Sizes of an op in the order in which files hold them.
enum signature_size {
    SIZE_M,
    SIZE_N,
    SIZE_K,
    SIZE_BATCH,
    SIZE_SEQ,
    SIZE_HEADS,
    SIZE_KV_HEADS,
    SIZE_HEAD_DIM,
    SIZE_POSITIONS,
    SIZE_COUNT
};

// At least the number of operands, rounded up so that the struct has no padding at its end.
enum { SIGNATURE_OPERANDS = 20, SIGNATURE_STORED = 64 };
_Static_assert((int)SIGNATURE_OPERANDS >= (int)OP_MAX_IN + (int)OP_MAX_OUT, "operands have room");

struct op_signature {
    int64_t sizes[SIZE_COUNT];
    int32_t kind;
    uint32_t flags;
    int32_t act;
    // enum dtype + 1 of each operand; 0: absent. Quantized: SIGNATURE_STORED + storage_code.
    uint8_t types[SIGNATURE_OPERANDS];
};
_Static_assert(sizeof(struct op_signature) == 8 * SIZE_COUNT + 12 + SIGNATURE_OPERANDS,
               "a signature has no padding");

// Whether a file may hold this value of `types`.
bool signature_type_known(uint8_t type);
void signature_of(const struct program *p, const struct op *op, struct op_signature *out);
uint64_t signature_hash(const struct op_signature *s);
bool signature_same(const struct op_signature *a, const struct op_signature *b);
// The size that grows with the tokens of a micro-batch: rows, or sequences if the op has them.
enum signature_size signature_rows(const struct op_signature *s);
// Same class: equal except for sizes. Same family: equal except for the rows.
bool signature_same_class(const struct op_signature *a, const struct op_signature *b);
bool signature_same_family(const struct op_signature *a, const struct op_signature *b);
// The element type an op computes in: that of its first floating-point operand; DTYPE_COUNT: none.
enum dtype signature_real(const struct op_signature *s);

#endif

// cuda_needs.h - bytes of scratch that the kernels of the CUDA backend need for an op.
//
// The plan asks before there is a device, the plug-in when it chooses kernels. Both get the same
// answer, because it follows from the op's sizes and from what the user chose. A kernel that would
// need more is not chosen.
#ifndef HAGGLE_BACKEND_CUDA_NEEDS_H
#define HAGGLE_BACKEND_CUDA_NEEDS_H

#include "program/program.h"

struct cuda_choice {
    bool plain;         // one plain kernel per op (cuda.kernels=plain)
    bool deterministic; // cuda.deterministic
};

enum {
    CUDA_SPLITS = 64,        // partial sums of a column, at most
    CUDA_SQNORM_PARTS = 512, // partial sums of squares, at most
};

// A product may be divided along its inner dimension: each part has a float for every element of
// the result.
static inline uint64_t cuda_product_scratch(int64_t rows, int64_t columns) {
    const double parts = 16, least = 64 << 10, most = 32 << 20;
    const double bytes = parts * (double)rows * (double)columns * sizeof(float);
    return (uint64_t)(bytes > most ? most : bytes < least ? least : bytes);
}

// Partial sums of two vectors of n columns.
static inline uint64_t cuda_sums_scratch(int64_t n) {
    return (uint64_t)CUDA_SPLITS * 2 * (uint64_t)n * sizeof(float);
}

// `type` is the op's element type (letter f of ops.def).
static inline uint64_t cuda_scratch_bytes(const struct op *op, enum dtype type,
                                          const struct cuda_choice *c) {
    (void)type;
    uint64_t product, sums;
    switch (op->kind) {
    case OP_MATMUL:
    case OP_MATMUL_ACT:
        return c->plain ? 0 : cuda_product_scratch(op->m, op->n);
    case OP_MATMUL_DX:
    case OP_MATMUL_DX_ACT:
        return c->plain ? 0 : cuda_product_scratch(op->m, op->k);
    case OP_MATMUL_DW:
        product = c->plain ? 0 : cuda_product_scratch(op->n, op->k);
        sums = op->n_out > 1 ? cuda_sums_scratch(op->n) : 0;
        return product > sums ? product : sums;
    case OP_NORM_DW:
    case OP_NORM_BWD:
    case OP_BIAS_DB:
        return cuda_sums_scratch(op->n);
    case OP_GRAD_SQNORM:
        return CUDA_SQNORM_PARTS * sizeof(double);
    default:
        return 0;
    }
}

// The same as a scratch_fn (program.h). arg: struct cuda_choice.
uint64_t cuda_scratch(const void *arg, const struct program *p, const struct op *op);

#endif

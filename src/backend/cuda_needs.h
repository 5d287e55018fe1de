// cuda_needs.h - bytes of scratch that the kernels of the CUDA backend need for an op.
//
// The plan asks before there is a device, the plug-in when it chooses kernels. Both get the same
// answer, because it follows from the op's sizes and from what the user chose. A kernel that would
// need more is not chosen.
#ifndef HAGGLE_BACKEND_CUDA_NEEDS_H
#define HAGGLE_BACKEND_CUDA_NEEDS_H

#include "program/program.h"

#include <string.h>

struct cuda_choice {
    bool plain;         // one plain kernel per op (cuda.kernels=plain)
    bool deterministic; // cuda.deterministic
    bool attention;     // a library computes attention (cuda_wants_cudnn)
};

// Whether cuda.cudnn (NULL: auto) asks for the library.
static inline bool cuda_wants_cudnn(const char *cudnn) {
    return !cudnn || strcmp(cudnn, "none") != 0;
}

enum {
    CUDA_SPLITS = 64,        // partial sums of a column, at most
    CUDA_SLABS = 160,        // the same for all gradients of a norm; a device has fewer processors
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

// Whether the library for attention takes an op, by its sizes.
static inline bool cuda_attention_fits(const struct op *op, enum dtype type,
                                       const struct cuda_choice *c) {
    return c->attention && !c->plain && (type == DTYPE_BF16 || type == DTYPE_F16) && op->seq > 1 &&
           op->kv_heads > 0 && op->head_dim > 0 && op->head_dim <= 128 && op->head_dim % 8 == 0;
}

// What one launch of an op of attention computes: so many sequences, so many heads of keys and
// values with the query heads that share them.
struct cuda_part {
    int64_t batch, kv_heads;
};

static inline uint64_t cuda_part_scores(const struct op *op, struct cuda_part part) {
    const uint64_t tile = 128, rows = ((uint64_t)op->seq + tile - 1) / tile * tile,
                   heads = (uint64_t)(part.kv_heads * (op->heads / op->kv_heads));
    return (uint64_t)part.batch * heads * rows * rows * 2;
}

// The deterministic backward keeps a score of 2 bytes for each pair of tokens. So that they do not
// take more than the rest of the step, it is computed in equal parts of up to a GiB, as far as
// sequences and heads can be divided. Parts of one sequence begin at aligned rows only if its
// length is a multiple of four.
static inline struct cuda_part cuda_attention_part(const struct op *op,
                                                   const struct cuda_choice *c) {
    const uint64_t most = 1 << 30;
    struct cuda_part part = {op->batch, op->kv_heads};
    if (op->kind != OP_ATTENTION_BWD || !c->deterministic || op->seq % 4 != 0)
        return part;
    while (part.batch > 1 && cuda_part_scores(op, part) > most)
        do
            part.batch--;
        while (op->batch % part.batch != 0);
    while (part.kv_heads > 1 && cuda_part_scores(op, part) > most)
        do
            part.kv_heads--;
        while (op->kv_heads % part.kv_heads != 0);
    return part;
}

// The row sums of dout.o; the scores, or dq in float32, which before Hopper the library keeps a
// second time; dk and dv of each query head before they are summed over those that share a head of
// keys. The slack is for the library's own small needs and for the alignment of the pieces.
static inline uint64_t cuda_attention_scratch(const struct op *op, enum dtype type,
                                              const struct cuda_choice *c) {
    const uint64_t slack = 4 << 20;
    if (!cuda_attention_fits(op, type, c))
        return 0;
    if (op->kind != OP_ATTENTION_BWD)
        return slack;
    const struct cuda_part part = cuda_attention_part(op, c);
    const uint64_t heads = (uint64_t)(part.kv_heads * (op->heads / op->kv_heads)),
                   rows = (uint64_t)part.batch * heads * (uint64_t)op->seq,
                   columns = (uint64_t)op->head_dim;
    return rows * sizeof(float) +
           (c->deterministic ? cuda_part_scores(op, part) : 2 * rows * columns * sizeof(float)) +
           (op->heads != op->kv_heads ? 2 * rows * columns * 2 : 0) + slack;
}

// The gradient of an embedding takes its rows in chunks of so many. Each chunk may have a partial
// sum of a row, and there are lists of the ids in order.
static inline int64_t cuda_embed_chunk(int64_t rows) {
    const int64_t least = 8, chunks = 1024;
    return rows > least * chunks ? (rows + chunks - 1) / chunks : least;
}
static inline uint64_t cuda_embed_scratch(int64_t rows, int64_t columns) {
    const int64_t chunk = cuda_embed_chunk(rows), chunks = (rows + chunk - 1) / chunk;
    return (uint64_t)(chunks * columns + 2 * rows + 1) * 4;
}

// `type` is the op's element type (letter f of ops.def).
static inline uint64_t cuda_scratch_bytes(const struct op *op, enum dtype type,
                                          const struct cuda_choice *c) {
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
    case OP_ATTENTION:
    case OP_ATTENTION_BWD:
        return cuda_attention_scratch(op, type, c);
    case OP_NORM_BWD:
        return c->plain ? cuda_sums_scratch(op->n) : (uint64_t)CUDA_SLABS * 2 * (uint64_t)op->n * 4;
    case OP_NORM_DW:
    case OP_BIAS_DB:
        return cuda_sums_scratch(op->n);
    case OP_EMBED_DW:
        return c->plain ? 0 : cuda_embed_scratch(op->m, op->n);
    case OP_GRAD_SQNORM:
        return CUDA_SQNORM_PARTS * sizeof(double);
    default:
        return 0;
    }
}

// The same as a scratch_fn (program.h). arg: struct cuda_choice.
uint64_t cuda_scratch(const void *arg, const struct program *p, const struct op *op);

#endif

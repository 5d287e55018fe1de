// kernels.h - the inner loops of the fast CPU backend: one table per instruction set, made from one
// source.
//
// kernels_generic.c, kernels_avx2.c and kernels_avx512.c include the same *.inc files and differ in
// compiler flags only. Nothing in a table knows threads, ops or tensors: cpu_ops.c and its siblings
// split the work and call these with rows and spans. A result depends on the arguments alone, never
// on how the caller split the work into calls.
#ifndef HAGGLE_BACKEND_CPU_KERNELS_H
#define HAGGLE_BACKEND_CPU_KERNELS_H

#include "backend/moments.h"
#include "program/program.h" // ADAMW_BLOCK

#include <stdbool.h>
#include <stdint.h>

struct adamw_scalars {
    float factor, beta1, one_minus_beta1, beta2,
        one_minus_beta2;             // factor: of the gradient (clipping)
    float keep;                      // 1 - lr decay, or 1
    float step, inv_root_bias2, eps; // step = lr / bias1
};

// Random draws of a span of narrow moments: element i of it is element first + i of the tensor.
struct adamw_draws {
    struct moments_key key;
    uint32_t first;
};

// One product C = alpha A B (+ C) (+ bias), row-major; see gemm.h for the operands' meaning.
struct gemm_args {
    int64_t m, n, k;
    float alpha;
    const float *a, *b;
    int64_t lda, ldb, ldc;
    bool ta, tb;     // A is stored [k,m]; B is stored [n,k]
    bool accumulate; // add to C
    float *c;
    const float *bias; // n values, or NULL
    // The product this is a piece of has few rows (and A is not transposed), which another method
    // suits better. The caller decides, so that all pieces of a product are computed alike, however
    // it was cut.
    bool few_rows;
};

enum { GEMM_FEW_ROWS = 8 };
enum {
    GEMM_PACK_FLOATS = 128 * 1024
}; // per thread, for packed A and B: half of a second-level cache of 1 MiB

// One sequence and its heads, for attention. Rows are the sequence's own; operands point at row 0,
// head 0.
struct attn_args {
    int64_t T, H, G, D;
    float scale;
    const float *q, *k, *v, *o, *dout;
    int64_t ldq, ldk, ldv, ldo, lddo;
    const int32_t *doc_start; // of this sequence, or NULL
    float *lse;               // [H][T]
    float *out;               // o of forward
    int64_t ldout;
    float *dq, *dk, *dv;
    int64_t lddq, lddk, lddv;
};

// Attention works in square blocks of this many queries and keys.
enum { ATTN_BLOCK = 64, ATTN_MAX_D = 256 };
enum { ATTN_SCRATCH_FLOATS = 9 * ATTN_BLOCK * ATTN_MAX_D + 3 * ATTN_BLOCK * ATTN_BLOCK + 1024 };

struct cpu_kernels {
    const char *name;
    int width; // floats per vector

    // Spans of n elements. Outputs may be the inputs, but must not overlap them otherwise.
    void (*add)(float *y, const float *a, const float *b, int64_t n);
    void (*act)(float *y, const float *h, int64_t n, int kind);
    void (*act_bwd)(float *dh, const float *dy, const float *h, int64_t n, int kind);
    void (*swiglu)(float *y, const float *gate, const float *up, int64_t n);
    void (*swiglu_bwd)(float *dgate, float *dup, const float *dy, const float *gate,
                       const float *up, int64_t n);
    void (*adamw)(float *w, float *m, float *v, const float *g, int64_t n,
                  const struct adamw_scalars *s);
    void (*adamw_bf16)(float *w, uint16_t *m, uint16_t *v, const float *g, int64_t n,
                       const struct adamw_draws *d, const struct adamw_scalars *s);
    // The span begins at a block; scales are its own, m and v of each block.
    void (*adamw_int8)(float *w, int8_t *m, uint8_t *v, float *scales, const float *g, int64_t n,
                       const struct adamw_draws *d, const struct adamw_scalars *s);
    double (*sum_squares)(const float *g, int64_t n);

    // One row of n columns.
    void (*norm)(float *y, float stats[2], const float *x, const float *w, const float *b,
                 int64_t n, float eps, bool rms);
    void (*norm_dx)(float *dx, const float *dy, const float *x, const float *w,
                    const float stats[2], int64_t n, bool rms, bool accumulate);
    void (*rope)(float *y, const float *x, const float *table, int64_t heads, int64_t D,
                 bool inverse);
    // Returns the loss; with_grad: x becomes (softmax - onehot) * factor.
    float (*loss)(float *x, int64_t n, int64_t target, bool with_grad, float factor);
    int64_t (*argmax)(const float *x, int64_t n);

    // Columns [0, n) over m rows.
    void (*column_sum)(float *y, const float *x, int64_t ld, int64_t m, int64_t n, bool accumulate);
    void (*norm_dw)(float *dw, float *db, const float *dy, int64_t lddy, const float *x,
                    int64_t ldx, const float *stats, int64_t m, int64_t n, bool accumulate);

    // Matrix product in one thread; pack holds GEMM_PACK_FLOATS, 64-byte aligned. mr, nr: the sizes
    // of a tile, the unit in which callers should split m and n.
    void (*gemm)(const struct gemm_args *g, float *pack);
    int gemm_mr, gemm_nr;

    // Attention. scratch holds ATTN_SCRATCH_FLOATS, 64-byte aligned.
    void (*attn_fwd)(const struct attn_args *a, int64_t head, int64_t q_block, float *scratch);
    // Gradients to the keys and values of one block of one kv head, and with_dq to all queries'
    // share of it.
    void (*attn_bwd_kv)(const struct attn_args *a, int64_t kv_head, int64_t kv_block, bool with_dq,
                        float *scratch);
    void (*attn_bwd_q)(const struct attn_args *a, int64_t head, int64_t q_block, float *scratch);
    // One query row over keys [0, n).
    void (*attn_decode)(float *o, const float *q, const float *k, int64_t ldk, const float *v,
                        int64_t ldv, int64_t n, int64_t D, float scale, float *scratch);
};

extern const struct cpu_kernels cpu_kernels_generic;
#if defined(__x86_64__)
extern const struct cpu_kernels cpu_kernels_avx2;
extern const struct cpu_kernels cpu_kernels_avx512;
#endif

#endif

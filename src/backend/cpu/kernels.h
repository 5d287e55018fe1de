// kernels.h - the inner loops of the fast CPU backend: one table per instruction set and element
// type, made from one source.
//
// kernels_generic.c, kernels_avx2.c and kernels_avx512.c include the same *.inc files and differ in
// compiler flags only. Each of them compiles the kernels once per element type. A kernel knows
// nothing of threads, ops or tensors: cpu_ops.c and its siblings split the work and call it with
// rows and spans (runs of elements without gaps). A result depends on the arguments alone, never on
// how the caller split the work into calls.
//
// `real` is an element of the table's type, which weights and activations have: fp32, bf16 or fp16.
// `float` is float32 in every table. Kernels compute in float32 and round once, when they store.
#ifndef HAGGLE_BACKEND_CPU_KERNELS_H
#define HAGGLE_BACKEND_CPU_KERNELS_H

#include "backend/dropout.h"
#include "program/program.h" // ADAMW_BLOCK

#include <stdbool.h>
#include <stdint.h>

typedef void real;

enum kernel_type { KERNEL_F32, KERNEL_BF16, KERNEL_F16, KERNEL_TYPES };

struct adamw_scalars {
    float factor; // the gradient is multiplied by it (clipping)
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float keep;                      // 1 - lr decay, or 1
    float step, inv_root_bias2, eps; // step = lr / bias1
};

// Random draws for a span of narrow moments: element i of the span is element first + i of the
// tensor.
struct adamw_draws {
    struct moments_key key;
    uint32_t first;
};

// One product C = alpha A B (+ C) (+ bias), row-major. Leading dimensions are in elements.
struct gemm_args {
    int64_t m, n, k;
    float alpha;
    const real *a, *b;
    int64_t lda, ldb, ldc;
    bool ta, tb;     // A is stored [k,m]; B is stored [n,k]
    bool accumulate; // add to C
    bool wide;       // C is float32, also when A and B have 16 bits
    real *c;
    const real *bias; // n values, or NULL
    // Activation of the finished C, as it was stored, written to act_out; NULL: none. A product of
    // many rows applies it tile by tile, while C is in the cache. With few_rows, the caller must.
    void (*act)(real *y, const real *h, int64_t n, int kind);
    int act_kind;
    real *act_out;
    int64_t ld_act;
    // The whole product has few rows and A is not transposed: another method is faster. The caller
    // decides, so that all pieces of a product are computed in the same way, however it was cut.
    bool few_rows;
};

enum { GEMM_FEW_ROWS = 8 };
// Scratch per thread: first packed A and B, half of a second-level cache of 1 MiB. Then, for
// results of 16 bits, the float32 sums of a block of C while they are not complete.
enum { GEMM_PACK_FLOATS = 128 * 1024, GEMM_SUM_FLOATS = 128 * 1024 };

// A way to compute products of one element type, in one thread. mr and nr are the sizes of a tile:
// callers should split m and n in multiples of them. scratch holds GEMM_PACK_FLOATS +
// GEMM_SUM_FLOATS, 64-byte aligned.
struct cpu_gemm {
    const char *name;
    void (*run)(const struct gemm_args *g, float *scratch);
    int mr, nr;
};

// Attention over one sequence with all its heads. Operands point at row 0, head 0 of the sequence.
struct attn_args {
    int64_t T, H, G, D; // rows, query heads, key/value heads, columns of a head
    float scale;
    const real *q, *k, *v, *o, *dout;
    int64_t ldq, ldk, ldv, ldo, lddo;
    const int32_t *doc_start; // of this sequence, or NULL
    int64_t first;            // the row of the sequence that row 0 of q and out is
    float *lse;               // [H][T]; the forward alone accepts NULL
    real *out;                // output of the forward; the backward reads it as o
    int64_t ldout;
    real *dq, *dk, *dv;
    int64_t lddq, lddk, lddv;
};

// Attention works in square blocks of this many queries and keys.
enum { ATTN_BLOCK = 64, ATTN_MAX_D = 256 };
enum { ATTN_SCRATCH_FLOATS = 9 * ATTN_BLOCK * ATTN_MAX_D + 3 * ATTN_BLOCK * ATTN_BLOCK + 1024 };
// Scratch after that, for 16-bit types: gradients of the queries of a kv head while they are not
// complete.
enum { ATTN_SUM_FLOATS = GEMM_PACK_FLOATS + GEMM_SUM_FLOATS - ATTN_SCRATCH_FLOATS };

// Where norm_dw finds its rows: each of m rows holds `heads` of them, which start `apart` elements
// after one another.
struct norm_rows {
    int64_t m, heads, apart, lddy, ldx;
};

struct cpu_kernels {
    const char *name; // of the instruction set
    int width;        // floats per vector

    // Spans of n elements. An output may be an input, but must not overlap one otherwise.
    void (*add)(real *y, const real *a, const real *b, int64_t n);
    void (*mul)(real *y, const real *a, const real *b, int64_t n);
    // One row, whose draws have the key `row`. Dropped elements are 0, or are not added to.
    void (*dropout)(real *y, const real *x, int64_t n, struct moments_key row,
                    const struct dropout *d, bool accumulate);
    void (*act)(real *y, const real *h, int64_t n, int kind);
    void (*act_bwd)(real *dh, const real *dy, const real *h, int64_t n, int kind);
    void (*swiglu)(real *y, const real *gate, const real *up, int64_t n);
    void (*swiglu_bwd)(real *dgate, real *dup, const real *dy, const real *gate, const real *up,
                       int64_t n);
    void (*widen)(float *y, const real *x, int64_t n);
    void (*narrow)(real *y, const float *x, int64_t n);
    void (*add_wide)(float *y, const real *x, int64_t n); // y += x
    void (*adamw)(float *w, float *m, float *v, const float *g, int64_t n,
                  const struct adamw_scalars *s);
    void (*adamw_bf16)(float *w, uint16_t *m, uint16_t *v, const float *g, int64_t n,
                       const struct adamw_draws *d, const struct adamw_scalars *s);
    // The span begins at a block of ADAMW_BLOCK elements. scales: of its blocks, m and v of each.
    void (*adamw_int8)(float *w, int8_t *m, uint8_t *v, float *scales, const float *g, int64_t n,
                       const struct adamw_draws *d, const struct adamw_scalars *s);
    // AdamW one pass at a time: y = factor x, the two moments, and the step.
    void (*scale)(float *y, const float *x, float factor, int64_t n);
    void (*adam_m)(float *m, const float *g, int64_t n, const struct adamw_scalars *s);
    void (*adam_v)(float *v, const float *g, int64_t n, const struct adamw_scalars *s);
    void (*adam_step)(float *w, const float *m, const float *v, int64_t n,
                      const struct adamw_scalars *s);
    double (*sum_squares)(const float *g, int64_t n);

    // One row of n columns.
    void (*norm)(real *y, float stats[2], const real *x, const real *w, const real *b, int64_t n,
                 float eps, bool rms);
    void (*norm_dx)(real *dx, const real *dy, const real *x, const real *w, const float stats[2],
                    int64_t n, bool rms, bool accumulate);
    void (*rope)(real *y, const real *x, const float *table, int64_t heads, int64_t D,
                 bool inverse);
    // Returns the loss; with_grad: x becomes (softmax - onehot) * factor.
    float (*loss)(real *x, int64_t n, int64_t target, bool with_grad, float factor);
    // The divergence of softmax(x) from softmax(teacher); with_grad: x becomes its gradient.
    float (*loss_kl)(real *x, const real *teacher, int64_t n, bool with_grad, float factor);
    void (*log_softmax)(float *y, const real *x, int64_t n);
    void (*log_softmax_bwd)(real *dx, const float *dy, const float *y, int64_t n);
    int64_t (*argmax)(const real *x, int64_t n);

    // Columns [0, n) over m rows.
    void (*column_sum)(float *y, const real *x, int64_t ld, int64_t m, int64_t n, bool accumulate);
    void (*norm_dw)(float *dw, float *db, const real *dy, const real *x, const float *stats,
                    const struct norm_rows *rows, int64_t n, bool accumulate);

    struct cpu_gemm gemm;

    // Attention. scratch holds ATTN_SCRATCH_FLOATS, for 16-bit types ATTN_SUM_FLOATS more; 64-byte
    // aligned.
    void (*attn_fwd)(const struct attn_args *a, int64_t head, int64_t q_block, float *scratch);
    // Gradients of the keys and values of one block of one kv head. with_dq: also adds the block's
    // part to the gradients of all queries. The blocks of a kv head must then come in order, with
    // the same scratch, and for 16-bit types the gradients of its queries (H / G heads of T rows of
    // whole vectors) must fit ATTN_SUM_FLOATS.
    void (*attn_bwd_kv)(const struct attn_args *a, int64_t kv_head, int64_t kv_block, bool with_dq,
                        float *scratch);
    void (*attn_bwd_q)(const struct attn_args *a, int64_t head, int64_t q_block, float *scratch);
    // One query row over keys [0, n).
    void (*attn_decode)(real *o, const real *q, const real *k, int64_t ldk, const real *v,
                        int64_t ldv, int64_t n, int64_t D, float scale, float *scratch);
};

// Indexed by enum kernel_type.
extern const struct cpu_kernels *const cpu_kernels_generic[KERNEL_TYPES];
#if defined(__x86_64__)
extern const struct cpu_kernels *const cpu_kernels_avx2[KERNEL_TYPES];
extern const struct cpu_kernels *const cpu_kernels_avx512[KERNEL_TYPES];
// Products of bf16 by instructions made for them.
extern const struct cpu_gemm cpu_gemm_avx512bf16;
extern const struct cpu_gemm cpu_gemm_amx;
#endif

#endif

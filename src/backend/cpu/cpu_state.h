// cpu_state.h - the state of the fast CPU backend, and what the files of this folder share.
//
// cpu.c opens the backend and finds the function of an op. cpu_ops.c, cpu_matmul.c and
// cpu_attention.c split an op's work over the pool and call the kernels of one instruction set
// (kernels.h). How the work is split never changes a result; each file says why.
#ifndef HAGGLE_BACKEND_CPU_STATE_H
#define HAGGLE_BACKEND_CPU_STATE_H

#include "backend/backend.h"
#include "backend/cpu/blas.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/quant.h"
#include "base/mem.h"
#include "base/pool.h"

enum { CPU_SQNORM_BLOCKS = 4096 };
// Scratch of one thread. Matrix products and attention use the same memory, one after the other.
enum { CPU_SCRATCH_FLOATS = (int)GEMM_PACK_FLOATS + (int)GEMM_SUM_FLOATS };
_Static_assert((int)ATTN_SCRATCH_FLOATS + (int)ATTN_SUM_FLOATS == (int)CPU_SCRATCH_FLOATS,
               "attention and matrix products share one scratch");

// What the ops of one element type get.
struct cpu {
    struct mem *mem;
    struct pool *pool;
    int threads;
    enum kernel_type type;
    const struct cpu_kernels *kernels;
    const struct cpu_gemm *gemm;   // the builtin matrix product
    const struct cpu_quant *quant; // products with quantized weights
    const struct blas *blas;       // for float32, perhaps without a library; NULL for 16-bit types
    float *scratch;                // CPU_SCRATCH_FLOATS per thread
    double *partial;               // CPU_SQNORM_BLOCKS
};

typedef int cpu_fn(struct cpu *cpu, const struct op_call *call, struct err *e);

static inline float *cpu_scratch(const struct cpu *cpu, int thread) {
    return cpu->scratch + (int64_t)thread * CPU_SCRATCH_FLOATS;
}

// Address of element (row, column) of an operand of any type.
static inline void *cpu_at(const struct operand *o, int64_t row, int64_t column) {
    return (char *)o->data + (row * o->ld + column) * (int64_t)dtype_bytes(o->dtype);
}

static inline void *cpu_row(const struct operand *o, int64_t row) {
    return cpu_at(o, row, 0);
}

// Runs fn on the whole pool, or in the calling thread alone when the work (elements touched) is too
// little to share.
void cpu_run(struct cpu *cpu, pool_fn *fn, void *arg, int64_t work);

cpu_fn cpu_zero, cpu_copy, cpu_cast, cpu_embed, cpu_embed_dw, cpu_gather_rows, cpu_norm,
    cpu_norm_dx, cpu_norm_dw, cpu_bias_db, cpu_rope_table, cpu_rope, cpu_act, cpu_act_bwd,
    cpu_swiglu, cpu_swiglu_bwd, cpu_add, cpu_dropout, cpu_loss, cpu_loss_sum, cpu_loss_stats,
    cpu_loss_part, cpu_loss_kl, cpu_argmax, cpu_grad_sqnorm, cpu_clip, cpu_sum, cpu_adamw,
    cpu_adamw_bf16, cpu_adamw_int8;
struct adamw_scalars cpu_adamw_scalars(const struct op_call *c);
cpu_fn cpu_matmul, cpu_matmul_act, cpu_matmul_dx, cpu_matmul_dw;
cpu_fn cpu_matmul_quantized; // matmul and matmul_act
int cpu_check_quantized(const struct op_call *c,
                        struct err *e); // refuses what does not fit scratch
cpu_fn cpu_add_norm, cpu_add_bias, cpu_mul, cpu_log_softmax, cpu_nll, cpu_nll_bwd,
    cpu_log_softmax_bwd, cpu_grad_scale, cpu_adam_decay, cpu_adam_m, cpu_adam_v, cpu_adam_step;
cpu_fn cpu_attention, cpu_attention_bwd, cpu_kv_append, cpu_attention_cached;
int cpu_check_head_dim(const struct op *op, struct err *e); // refuses what does not fit scratch

#endif

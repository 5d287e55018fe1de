// cpu.c - opens the fast CPU backend: instruction set, BLAS, scratch memory, and the function of
// each op.
#include "backend/cpu/cpu.h"
#include "backend/cpu/cpu_state.h"
#include "backend/operands.h"

#include <stdlib.h>
#include <string.h>

static cpu_fn *const functions[OP_COUNT] = {
    [OP_ZERO] = cpu_zero,
    [OP_COPY] = cpu_copy,
    [OP_CAST] = cpu_cast,
    [OP_EMBED] = cpu_embed,
    [OP_NORM] = cpu_norm,
    [OP_MATMUL] = cpu_matmul,
    [OP_ROPE_TABLE] = cpu_rope_table,
    [OP_ROPE] = cpu_rope,
    [OP_ATTENTION] = cpu_attention,
    [OP_ACT] = cpu_act,
    [OP_SWIGLU] = cpu_swiglu,
    [OP_ADD] = cpu_add,
    [OP_LOSS] = cpu_loss,
    [OP_LOSS_SUM] = cpu_loss_sum,
    [OP_EMBED_DW] = cpu_embed_dw,
    [OP_NORM_DX] = cpu_norm_dx,
    [OP_NORM_DW] = cpu_norm_dw,
    [OP_MATMUL_DX] = cpu_matmul_dx,
    [OP_MATMUL_DW] = cpu_matmul_dw,
    [OP_BIAS_DB] = cpu_bias_db,
    [OP_ATTENTION_BWD] = cpu_attention_bwd,
    [OP_ACT_BWD] = cpu_act_bwd,
    [OP_SWIGLU_BWD] = cpu_swiglu_bwd,
    [OP_GRAD_SQNORM] = cpu_grad_sqnorm,
    [OP_CLIP] = cpu_clip,
    [OP_ADAMW] = cpu_adamw,
    [OP_ADAMW_BF16] = cpu_adamw_bf16,
    [OP_ADAMW_INT8] = cpu_adamw_int8,
    [OP_GATHER_ROWS] = cpu_gather_rows,
    [OP_ARGMAX] = cpu_argmax,
    [OP_KV_APPEND] = cpu_kv_append,
    [OP_ATTENTION_DECODE] = cpu_attention_decode,
};

static int run(struct backend *b, const struct op_call *call, struct err *e) {
    enum dtype type;
    TRY(backend_check_call(call, &type, e));
    if (type != DTYPE_F32 && type != DTYPE_COUNT)
        return err_set(e, ERR_UNSUPPORTED, "%s: the cpu backend computes in fp32, not %s",
                       op_info(call->op->kind)->name, dtype_text(type));
    return functions[call->op->kind](b->state, call, e);
}

// ---------------------------------------------------------------- instruction sets

struct isa {
    const struct cpu_kernels *kernels;
    bool supported;
};

// Best first. Returns how many there are.
static int list_isas(struct isa out[3]) {
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    out[n++] = (struct isa){&cpu_kernels_avx512, __builtin_cpu_supports("avx512f") &&
                                                     __builtin_cpu_supports("avx512bw") &&
                                                     __builtin_cpu_supports("avx512dq") &&
                                                     __builtin_cpu_supports("avx512vl") &&
                                                     __builtin_cpu_supports("fma")};
    out[n++] = (struct isa){&cpu_kernels_avx2,
                            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")};
#endif
    out[n++] = (struct isa){&cpu_kernels_generic, true};
    return n;
}

static int choose_isa(const char *name, const struct cpu_kernels **out, struct err *e) {
    struct isa isas[3];
    int n = list_isas(isas);
    bool automatic = !name || strcmp(name, "auto") == 0;
    for (int i = 0; i < n; i++) {
        if (!automatic && strcmp(name, isas[i].kernels->name) != 0)
            continue;
        if (isas[i].supported) {
            *out = isas[i].kernels;
            return 0;
        }
        if (!automatic)
            return err_set(e, ERR_UNSUPPORTED, "this CPU has no %s", name);
    }
    return err_set(e, ERR_USAGE, "instruction set '%s' is not one of auto, avx512, avx2, generic",
                   name);
}

// ---------------------------------------------------------------- open and close

static int arena_take(struct backend *b, uint64_t bytes, void **out, struct err *e) {
    return mem_take(((struct cpu *)b->state)->mem, "arena", "cpu arena", (size_t)bytes, out, e);
}

static void arena_give(struct backend *b, void *arena) {
    mem_give(((struct cpu *)b->state)->mem, arena);
}

static void close_backend(struct backend *b) {
    struct cpu *cpu = b->state;
    blas_close(&cpu->blas);
    if (cpu->scratch)
        mem_give(cpu->mem, cpu->scratch);
    free(cpu);
    free(b);
}

static int open_state(struct cpu *cpu, const struct cpu_options *options, struct err *e) {
    TRY(choose_isa(options ? options->isa : NULL, &cpu->kernels, e));
    TRY(blas_open(&cpu->blas, options ? options->blas : NULL, cpu->kernels, cpu->pool, e));
    size_t scratch = (size_t)cpu->threads * CPU_SCRATCH_FLOATS * sizeof(float);
    size_t partial = CPU_SQNORM_BLOCKS * sizeof(double);
    void *block;
    TRY(mem_take(cpu->mem, "workspace", "cpu kernels' scratch", scratch + partial, &block, e));
    cpu->scratch = block;
    cpu->partial = (double *)((char *)block + scratch);
    return 0;
}

static int accepts(const struct backend *b, const struct op *op, struct err *e) {
    (void)b;
    return op_info(op->kind)->category == CAT_ATTENTION ? cpu_check_head_dim(op, e) : 0;
}

int cpu_backend_open(struct backend **out, struct mem *mem, struct pool *pool,
                     const struct cpu_options *options, struct err *e) {
    struct backend *b = calloc(1, sizeof *b);
    struct cpu *cpu = calloc(1, sizeof *cpu);
    if (!b || !cpu) {
        free(b);
        free(cpu);
        return err_set(e, ERR_MEMORY, "no memory for the cpu backend");
    }
    cpu->mem = mem;
    cpu->pool = pool;
    cpu->threads = pool_threads(pool);
    b->name = "cpu";
    b->state = cpu;
    b->arena_take = arena_take;
    b->arena_give = arena_give;
    b->close = close_backend;
    b->accepts = accepts;
    b->types = 1u << DTYPE_F32;
    for (int kind = 0; kind < OP_COUNT; kind++)
        b->run[kind] = functions[kind] ? run : NULL;
    int rc = open_state(cpu, options, e);
    if (rc != 0) {
        close_backend(b);
        return rc;
    }
    *out = b;
    return 0;
}

const char *cpu_backend_blas(const struct backend *b) {
    return ((const struct cpu *)b->state)->blas.name;
}

const char *cpu_backend_isa(const struct backend *b) {
    return ((const struct cpu *)b->state)->kernels->name;
}

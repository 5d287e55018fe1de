// cpu.c - opens the fast CPU backend: chooses instruction set and BLAS, takes scratch memory, and
// has the table of functions by op.
#include "backend/cpu/cpu.h"
#include "backend/cpu/cpu_state.h"
#include "backend/joined.h"
#include "backend/operands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static int run_joined(struct cpu *cpu, const struct op_call *call, struct err *e);

static int matmul_dw(struct cpu *cpu, const struct op_call *call, struct err *e) {
    return call->out[1].data ? run_joined(cpu, call, e) : cpu_matmul_dw(cpu, call, e);
}

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
    [OP_DROPOUT] = cpu_dropout,
    [OP_LOSS] = cpu_loss,
    [OP_LOSS_SUM] = cpu_loss_sum,
    [OP_LOSS_STATS] = cpu_loss_stats,
    [OP_LOSS_PART] = cpu_loss_part,
    [OP_EMBED_DW] = cpu_embed_dw,
    [OP_NORM_DX] = cpu_norm_dx,
    [OP_NORM_DW] = cpu_norm_dw,
    [OP_MATMUL_DX] = cpu_matmul_dx,
    [OP_MATMUL_DW] = matmul_dw,
    [OP_BIAS_DB] = cpu_bias_db,
    [OP_ATTENTION_BWD] = cpu_attention_bwd,
    [OP_ACT_BWD] = cpu_act_bwd,
    [OP_SWIGLU_BWD] = cpu_swiglu_bwd,
    [OP_GRAD_SQNORM] = cpu_grad_sqnorm,
    [OP_CLIP] = cpu_clip,
    [OP_SUM] = cpu_sum,
    [OP_ADAMW] = cpu_adamw,
    [OP_ADAMW_BF16] = cpu_adamw_bf16,
    [OP_ADAMW_INT8] = cpu_adamw_int8,
    [OP_ADD_NORM] = cpu_add_norm,
    [OP_MATMUL_ACT] = cpu_matmul_act,
    [OP_NORM_BWD] = run_joined,
    [OP_MATMUL_DX_ACT] = run_joined,
    [OP_ADD_BIAS] = cpu_add_bias,
    [OP_MUL] = cpu_mul,
    [OP_LOG_SOFTMAX] = cpu_log_softmax,
    [OP_NLL] = cpu_nll,
    [OP_NLL_BWD] = cpu_nll_bwd,
    [OP_LOG_SOFTMAX_BWD] = cpu_log_softmax_bwd,
    [OP_GRAD_SCALE] = cpu_grad_scale,
    [OP_ADAM_DECAY] = cpu_adam_decay,
    [OP_ADAM_M] = cpu_adam_m,
    [OP_ADAM_V] = cpu_adam_v,
    [OP_ADAM_STEP] = cpu_adam_step,
    [OP_GATHER_ROWS] = cpu_gather_rows,
    [OP_ARGMAX] = cpu_argmax,
    [OP_KV_APPEND] = cpu_kv_append,
    [OP_ATTENTION_CACHED] = cpu_attention_cached,
};

static int run_joined(struct cpu *cpu, const struct op_call *call, struct err *e) {
    struct joined j;
    if (!joined_split(call, &j))
        return err_set(e, ERR_INTERNAL, "%s: not two ops", op_info(call->op->kind)->name);
    TRY(functions[j.op[0].kind](cpu, &j.call[0], e));
    return functions[j.op[1].kind](cpu, &j.call[1], e);
}

// The state of the backend: one struct per element type, which its ops get, and what they share.
struct cpu_all {
    struct cpu of[KERNEL_TYPES];
    struct blas blas;
};

// An op without a float type (DTYPE_COUNT) runs as float32. -1: the type is not supported.
static int type_of(enum dtype type) {
    switch (type) {
    case DTYPE_BF16:
        return KERNEL_BF16;
    case DTYPE_F16:
        return KERNEL_F16;
    case DTYPE_F32:
    case DTYPE_COUNT:
        return KERNEL_F32;
    default:
        return -1;
    }
}

static int run(struct backend *b, const struct op_call *call, struct err *e) {
    enum dtype type;
    TRY(backend_check_call(call, &type, e));
    if (call->op->kind == OP_COPY && type_of(call->in[0].dtype) >= 0)
        type = call->in[0].dtype;
    if (type_of(type) < 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: the cpu backend computes in fp32, bf16 and fp16, not %s",
                       op_info(call->op->kind)->name, dtype_text(type));
    struct cpu_all *all = b->state;
    return functions[call->op->kind](&all->of[type_of(type)], call, e);
}

// ---------------------------------------------------------------- instruction sets

struct isa {
    const char *name;
    const struct cpu_kernels *const *kernels;
    const struct cpu_gemm *bf16; // products of bf16; NULL: those of `kernels`, which widen
    const struct cpu_quant *quant;
    bool supported;
};

#if defined(__x86_64__)

// Linux saves the tile registers of AMX only for processes that asked for it: by arch_prctl, since
// 5.16. Tile data is component 18 of the saved state.
// `needs`: of the following.
enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 }; // EDX of leaf 7
static bool tiles_allowed(unsigned needs) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & needs) != needs)
        return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

#endif

enum { MAX_ISAS = 5 };
// Lists the instruction sets, best first, and returns how many there are.
static int list_isas(struct isa out[MAX_ISAS]) {
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
    const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni"),
               tiles = bf16 && tiles_allowed(AMX_TILE | AMX_BF16);
    const struct cpu_quant *wide = vnni ? &cpu_quant_avx512vnni : &cpu_quant_avx2,
                           *widest =
                               vnni && tiles && tiles_allowed(AMX_INT8) ? &cpu_quant_amx : wide;
    out[n++] = (struct isa){"amx", cpu_kernels_avx512, &cpu_gemm_amx, widest, tiles};
    out[n++] = (struct isa){"avx512_bf16", cpu_kernels_avx512, &cpu_gemm_avx512bf16, wide, bf16};
    out[n++] = (struct isa){"avx512", cpu_kernels_avx512, NULL, wide, avx512};
    out[n++] = (struct isa){"avx2", cpu_kernels_avx2, NULL, &cpu_quant_avx2,
                            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                __builtin_cpu_supports("f16c")};
#endif
    out[n++] = (struct isa){"generic", cpu_kernels_generic, NULL, &cpu_quant_generic, true};
    return n;
}

static int choose_isa(const char *name, struct isa *out, struct err *e) {
    struct isa isas[MAX_ISAS];
    int n = list_isas(isas);
    bool automatic = !name || strcmp(name, "auto") == 0;
    for (int i = 0; i < n; i++) {
        if (!automatic && strcmp(name, isas[i].name) != 0)
            continue;
        if (isas[i].supported) {
            *out = isas[i];
            return 0;
        }
        if (!automatic)
            return err_set(e, ERR_UNSUPPORTED, "this CPU has no %s", name);
    }
    return err_set(e, ERR_USAGE,
                   "instruction set '%s' is not one of auto, amx, avx512_bf16, avx512, avx2, "
                   "generic",
                   name);
}

// ---------------------------------------------------------------- open and close

static struct mem *mem_of(const struct backend *b) {
    return ((struct cpu_all *)b->state)->of[KERNEL_F32].mem;
}

static int arena_take(struct backend *b, uint64_t bytes, void **out, struct err *e) {
    return mem_take(mem_of(b), "arena", "cpu arena", (size_t)bytes, out, e);
}

static void arena_give(struct backend *b, void *arena) {
    mem_give(mem_of(b), arena);
}

static void close_backend(struct backend *b) {
    struct cpu_all *all = b->state;
    blas_close(&all->blas);
    if (all->of[KERNEL_F32].scratch)
        mem_give(mem_of(b), all->of[KERNEL_F32].scratch);
    free(all);
    free(b);
}

// Every thread touches its part of the scratch, so that the pages lie near its core and are
// resident before the process's memory is measured.
static void touch_scratch(void *arg, int thread, int threads) {
    (void)threads;
    memset((float *)arg + (int64_t)thread * CPU_SCRATCH_FLOATS, 0,
           CPU_SCRATCH_FLOATS * sizeof(float));
}

static int open_state(struct cpu_all *all, struct mem *mem, struct pool *pool,
                      const struct cpu_options *options, struct err *e) {
    struct cpu base = {.mem = mem, .pool = pool, .threads = pool_threads(pool)};
    struct isa isa = {0};
    void *block;
    all->of[KERNEL_F32] = base; // close_backend needs mem, also after a failure below
    TRY(choose_isa(options ? options->isa : NULL, &isa, e));
    TRY(blas_open(&all->blas, options ? options->blas : NULL, isa.kernels[KERNEL_F32], pool, e));
    size_t scratch = (size_t)base.threads * CPU_SCRATCH_FLOATS * sizeof(float);
    size_t partial = CPU_SQNORM_BLOCKS * sizeof(double);
    TRY(mem_take(mem, "workspace", "cpu kernels' scratch", scratch + partial, &block, e));
    pool_run(pool, touch_scratch, block);
    base.scratch = block;
    base.partial = (double *)((char *)block + scratch);
    for (int type = 0; type < KERNEL_TYPES; type++) {
        struct cpu *cpu = &all->of[type];
        *cpu = base;
        cpu->type = (enum kernel_type)type;
        cpu->kernels = isa.kernels[type];
        cpu->gemm = &cpu->kernels->gemm;
        cpu->quant = isa.quant;
    }
    if (isa.bf16)
        all->of[KERNEL_BF16].gemm = isa.bf16;
    all->of[KERNEL_F32].blas = &all->blas;
    return 0;
}

static int make(struct backend *b, struct op_call *call, struct err *e) {
    (void)b;
    if (op_info(call->op->kind)->category == CAT_MATMUL)
        return cpu_check_quantized(call, e);
    return op_info(call->op->kind)->category == CAT_ATTENTION ? cpu_check_head_dim(call->op, e) : 0;
}

static void describe(struct backend *b, const struct cpu_all *all) {
    b->isa = all->of[KERNEL_F32].kernels->name;
    b->products[DTYPE_F32] = all->blas.name;
    b->products[DTYPE_BF16] = all->of[KERNEL_BF16].gemm->name;
    b->products[DTYPE_F16] = all->of[KERNEL_F16].gemm->name;
    b->info.types = 1u << DTYPE_F32 | 1u << DTYPE_BF16 | 1u << DTYPE_F16;
    b->info.storages = 1u << STORAGE_INT8 | 1u << STORAGE_INT4;
    b->info.memory_bytes = mem_machine_total_bytes();
    snprintf(b->info.text, sizeof b->info.text, "kernels for %s, matrix products: %s", b->isa,
             all->blas.name);
}

int cpu_backend_open(struct backend **out, struct mem *mem, struct pool *pool,
                     const struct cpu_options *options, struct err *e) {
    struct backend *b = calloc(1, sizeof *b);
    struct cpu_all *all = calloc(1, sizeof *all);
    if (!b || !all) {
        free(b);
        free(all);
        return err_set(e, ERR_MEMORY, "no memory for the cpu backend");
    }
    b->name = "cpu";
    b->state = all;
    b->arena_take = arena_take;
    b->arena_give = arena_give;
    b->close = close_backend;
    b->make = make;
    for (int kind = 0; kind < OP_COUNT; kind++)
        b->run[kind] = functions[kind] ? run : NULL;
    int rc = open_state(all, mem, pool, options, e);
    if (rc != 0) {
        close_backend(b);
        return rc;
    }
    describe(b, all);
    *out = b;
    return 0;
}

// cpu_moments.c - AdamW with moments of 16 and 8 bits: splits the elements over the pool and calls the
// kernels. Shares begin where blocks do, and draws go by element, so splits cannot change a result.
#include "backend/cpu/cpu_state.h"
#include "program/program.h"

struct task {
    const struct cpu_kernels *kernels;
    const struct op_call *c;
    struct adamw_scalars scalars;
    struct moments_key key;
};

enum { SHARE = 4 * ADAMW_BLOCK };

static void share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    int64_t begin, end;
    pool_share(c->op->n, SHARE, thread, threads, &begin, &end);
    if (begin >= end)
        return;
    int64_t n = end - begin;
    struct operand weight = c->out[0], master = c->out[3].data ? c->out[3] : weight;
    float *w = (float *)master.data + begin;
    const float *g = (const float *)c->in[0].data + begin;
    const struct adamw_draws draws = {t->key, (uint32_t)begin};
    if (c->op->kind == OP_ADAMW_BF16)
        t->kernels->adamw_bf16(w, (uint16_t *)c->out[1].data + begin,
                               (uint16_t *)c->out[2].data + begin, g, n, &draws, &t->scalars);
    else
        t->kernels->adamw_int8(
            w, (int8_t *)c->out[1].data + begin, (uint8_t *)c->out[2].data + begin,
            (float *)c->out[4].data + begin / ADAMW_BLOCK * 2, g, n, &draws, &t->scalars);
    if (master.data != weight.data)
        dtype_convert((char *)weight.data + (size_t)begin * dtype_bytes(weight.dtype), weight.dtype,
                      w, DTYPE_F32, (size_t)n);
}

static int update(struct cpu *cpu, const struct op_call *c) {
    const double *hyper = c->in[1].data, *clip = c->in[2].data;
    if (clip && clip[CLIP_SKIP] != 0)
        return 0;
    struct task t = {.kernels = cpu->kernels,
                     .c = c,
                     .scalars = cpu_adamw_scalars(c),
                     .key = moments_key(hyper[HYPER_DRAW], c->op->salt)};
    cpu_run(cpu, share, &t, c->op->n);
    return 0;
}

int cpu_adamw_bf16(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    return update(cpu, c);
}

int cpu_adamw_int8(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    return update(cpu, c);
}

// cpu_moments.c - AdamW with moments of 16 and 8 bits: splits the elements over the pool and calls
// the kernels. A thread's share begins at a block of moments, and the random draws depend on the
// element's number, so the split cannot change a result.
#include "backend/cpu/cpu_state.h"
#include "program/program.h"

struct task {
    const struct cpu_kernels *kernels;
    const struct op_call *c;
    struct adamw_scalars scalars;
    struct moments_key key;
};

enum { BLOCK = 4 * ADAMW_BLOCK };

static void step(const struct task *t, float *w, int64_t at, int64_t n) {
    const struct op_call *c = t->c;
    const float *g = (const float *)c->in[0].data + at;
    const struct adamw_draws draws = {t->key, (uint32_t)(c->op->first + at)};
    if (c->op->kind == OP_ADAMW_BF16)
        t->kernels->adamw_bf16(w, (uint16_t *)c->out[1].data + at, (uint16_t *)c->out[2].data + at,
                               g, n, &draws, &t->scalars);
    else
        t->kernels->adamw_int8(w, (int8_t *)c->out[1].data + at, (uint8_t *)c->out[2].data + at,
                               (float *)c->out[4].data + at / ADAMW_BLOCK * 2, g, n, &draws,
                               &t->scalars);
}

// The step is computed in float32: on the weight itself, on its master, or on the widened weight.
static void share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    float own[BLOCK], *master = c->out[3].data;
    int64_t begin, end;
    pool_share(c->op->n, BLOCK, thread, threads, &begin, &end);
    if (!master && c->out[0].dtype == DTYPE_F32) {
        if (begin < end)
            step(t, (float *)c->out[0].data + begin, begin, end - begin);
        return;
    }
    for (int64_t i = begin; i < end; i += BLOCK) {
        int64_t n = end - i < BLOCK ? end - i : BLOCK;
        void *weight = cpu_at(&c->out[0], 0, i);
        float *w = master ? master + i : own;
        if (!master)
            t->kernels->widen(w, weight, n);
        step(t, w, i, n);
        t->kernels->narrow(weight, w, n);
    }
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

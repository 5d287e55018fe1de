// cpu_fusion.c - ops that program/fuse.c makes by joining or by taking apart: residual and norm in
// one pass, and the single passes of a bias, of the loss and of AdamW. Also dropout.
//
// Work is split by rows or elements. One thread computes each of them alone, so the split cannot
// change a result. The fused op calls the kernels of its two ops row by row, so its bits are
// theirs. It is faster because the row just written is still in the first-level cache.
#include "backend/cpu/cpu_state.h"
#include "backend/operands.h"
#include "program/program.h"

#include <string.h>

struct task {
    struct cpu *cpu;
    const struct op_call *c;
    struct adamw_scalars scalars; // for the passes of AdamW
    struct dropout dropout;
};

// ---------------------------------------------------------------- rows

typedef void row_fn(const struct task *t, int64_t row);

static void for_rows(const struct task *t, int thread, int threads, row_fn *row) {
    int64_t begin, end;
    pool_share(t->c->op->m, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        row(t, i);
}

#define ROW_SHARE(name)                                                                            \
    static void name##_share(void *arg, int thread, int threads) {                                 \
        for_rows(arg, thread, threads, name##_row);                                                \
    }
#define ROW_OP(name)                                                                               \
    ROW_SHARE(name)                                                                                \
    int cpu_##name(struct cpu *cpu, const struct op_call *c, struct err *e) {                      \
        (void)e;                                                                                   \
        struct task t = {.cpu = cpu, .c = c};                                                      \
        cpu_run(cpu, name##_share, &t, c->op->m * c->op->n);                                       \
        return 0;                                                                                  \
    }

static void add_norm_row(const struct task *t, int64_t i) {
    const struct op_call *c = t->c;
    void *y = cpu_row(&c->out[0], i);
    t->cpu->kernels->add(y, cpu_row(&c->in[0], i), cpu_row(&c->in[1], i), c->op->n);
    t->cpu->kernels->norm(cpu_row(&c->out[1], i), (float *)c->out[2].data + 2 * i, y, c->in[2].data,
                          c->in[3].data, c->op->n, (float)c->op->scale, c->op->flags & OP_RMS);
}
ROW_OP(add_norm)

static void add_bias_row(const struct task *t, int64_t i) {
    t->cpu->kernels->add(cpu_row(&t->c->out[0], i), cpu_row(&t->c->in[0], i), t->c->in[1].data,
                         t->c->op->n);
}
ROW_OP(add_bias)

static void dropout_row_of(const struct task *t, int64_t i) {
    const struct op_call *c = t->c;
    const struct moments_key row = dropout_row(t->dropout, ((const int32_t *)c->in[1].data)[i]);
    t->cpu->kernels->dropout(cpu_row(&c->out[0], i), cpu_row(&c->in[0], i), c->op->n, row,
                             &t->dropout, c->op->flags & OP_ACCUMULATE);
}

static void dropout_share(void *arg, int thread, int threads) {
    for_rows(arg, thread, threads, dropout_row_of);
}

int cpu_dropout(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    const double *hyper = c->in[2].data;
    struct task t = {
        .cpu = cpu, .c = c, .dropout = dropout_of(hyper[HYPER_DRAW], c->op->salt, c->op->scale)};
    cpu_run(cpu, dropout_share, &t, c->op->m * c->op->n);
    return 0;
}

static void log_softmax_row(const struct task *t, int64_t i) {
    t->cpu->kernels->log_softmax(cpu_row(&t->c->out[0], i), cpu_row(&t->c->in[0], i), t->c->op->n);
}
ROW_OP(log_softmax)

static void log_softmax_bwd_row(const struct task *t, int64_t i) {
    t->cpu->kernels->log_softmax_bwd(cpu_row(&t->c->out[0], i), cpu_row(&t->c->in[0], i),
                                     cpu_row(&t->c->in[1], i), t->c->op->n);
}
ROW_OP(log_softmax_bwd)

// ---------------------------------------------------------------- loss

// One element per row: too little work for several threads.
int cpu_nll(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)cpu;
    const int32_t *targets = c->in[1].data;
    float *row_loss = c->out[0].data;
    TRY(backend_check_targets(c, targets, e));
    for (int64_t i = 0; i < c->op->m; i++)
        row_loss[i] = targets[i] < 0 ? 0 : -*(const float *)cpu_at(&c->in[0], i, targets[i]);
    return 0;
}

static void nll_bwd_row(const struct task *t, int64_t i) {
    const struct op_call *c = t->c;
    const int32_t *targets = c->in[0].data;
    const double *hyper = c->in[1].data;
    float *d = cpu_row(&c->out[0], i);
    memset(d, 0, (size_t)c->op->n * sizeof *d);
    if (targets[i] >= 0)
        d[targets[i]] = (float)-hyper[HYPER_LOSS_FACTOR];
}
ROW_SHARE(nll_bwd)

int cpu_nll_bwd(struct cpu *cpu, const struct op_call *c, struct err *e) {
    struct task t = {.cpu = cpu, .c = c};
    TRY(backend_check_targets(c, c->in[0].data, e));
    cpu_run(cpu, nll_bwd_share, &t, c->op->m * c->op->n);
    return 0;
}

// ---------------------------------------------------------------- AdamW, one pass at a time

enum { BLOCK = 1024 };

static bool skipped(const struct operand *clip) {
    return clip->data && ((const double *)clip->data)[CLIP_SKIP] != 0;
}

static void grad_scale_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    const double *clip = c->in[1].data;
    float *y = c->out[0].data;
    int64_t begin, end;
    pool_share(c->op->n, BLOCK, thread, threads, &begin, &end);
    if (begin >= end)
        return;
    if (skipped(&c->in[1])) // gradients are not finite: 0 times them would be NaN
        memset(y + begin, 0, (size_t)(end - begin) * sizeof *y);
    else
        t->cpu->kernels->scale(y + begin, (const float *)c->in[0].data + begin,
                               (float)clip[CLIP_FACTOR], end - begin);
}

int cpu_grad_scale(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    struct task t = {.cpu = cpu, .c = c};
    cpu_run(cpu, grad_scale_share, &t, c->op->n);
    return 0;
}

static void moment_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    const struct cpu_kernels *k = t->cpu->kernels;
    float *y = c->out[0].data;
    int64_t begin, end;
    pool_share(c->op->n, BLOCK, thread, threads, &begin, &end);
    if (begin >= end)
        return;
    const float *g = (const float *)c->in[0].data + begin;
    if (c->op->kind == OP_ADAM_DECAY)
        k->scale(y + begin, y + begin, t->scalars.keep, end - begin);
    else if (c->op->kind == OP_ADAM_M)
        k->adam_m(y + begin, g, end - begin, &t->scalars);
    else
        k->adam_v(y + begin, g, end - begin, &t->scalars);
}

// Steps on the float32 master where there is one; the 16-bit weight is the master rounded, block by
// block. A 16-bit weight without a master is widened, stepped and rounded again.
static void adam_step_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    const struct cpu_kernels *k = t->cpu->kernels;
    const float *m = c->in[0].data, *v = c->in[3].data;
    float own[BLOCK], *master = c->out[1].data;
    int64_t begin, end;
    pool_share(c->op->n, BLOCK, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i += BLOCK) {
        int64_t n = end - i < BLOCK ? end - i : BLOCK;
        void *weight = cpu_at(&c->out[0], 0, i);
        bool narrow = t->cpu->type != KERNEL_F32;
        float *w = master ? master + i : narrow ? own : weight;
        if (!master && narrow)
            k->widen(w, weight, n);
        k->adam_step(w, m + i, v + i, n, &t->scalars);
        if (w != weight)
            k->narrow(weight, w, n);
    }
}

static int update(struct cpu *cpu, const struct op_call *c, pool_fn *share) {
    if (skipped(&c->in[2]))
        return 0;
    struct task t = {.cpu = cpu, .c = c, .scalars = cpu_adamw_scalars(c)};
    cpu_run(cpu, share, &t, c->op->n);
    return 0;
}

int cpu_adam_decay(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    return update(cpu, c, moment_share);
}

int cpu_adam_m(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    return update(cpu, c, moment_share);
}

int cpu_adam_v(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    return update(cpu, c, moment_share);
}

int cpu_adam_step(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    return update(cpu, c, adam_step_share);
}

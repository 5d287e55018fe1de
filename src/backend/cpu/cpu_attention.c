// cpu_attention.c - attention split over the threads in units of work that write no common memory.
//
// In the forward, a unit is (sequence, head, block of queries). In the backward, a unit is
// (sequence, kv head): it alone writes its dk and dv and the dq of its query heads. When these
// units are too few for the threads, two passes with smaller units compute the scores twice instead
// (7 products for 5). Threads take units from a counter, longest first. kernels_attention.inc sums
// in an order that does not depend on the units, so neither the split nor the number of passes
// changes a bit.
#include "backend/cpu/cpu_state.h"

#include <stdatomic.h>
#include <string.h>

struct units {
    struct cpu *cpu;
    const struct op_call *c;
    _Atomic int64_t next;
    int64_t count, blocks; // units; blocks of a sequence
};

// The arguments of sequence b: rows b*T .. b*T+T-1 of every operand.
static struct attn_args sequence(const struct op_call *c, int64_t b) {
    const struct op *op = c->op;
    int64_t row = b * op->seq;
    bool bwd = op->kind == OP_ATTENTION_BWD;
    const struct operand *q = &c->in[bwd ? 1 : 0], *k = q + 1, *v = q + 2;
    const struct operand *start = &c->in[bwd ? 6 : 3];
    struct attn_args a = {.T = op->seq,
                          .H = op->heads,
                          .G = op->kv_heads,
                          .D = op->head_dim,
                          .scale = (float)op->scale,
                          .q = cpu_row(q, row),
                          .ldq = q->ld,
                          .k = cpu_row(k, row),
                          .ldk = k->ld,
                          .v = cpu_row(v, row),
                          .ldv = v->ld,
                          .doc_start = start->data ? (const int32_t *)start->data + row : NULL};
    if (bwd) {
        a.dout = cpu_row(&c->in[0], row), a.lddo = c->in[0].ld;
        a.o = cpu_row(&c->in[4], row), a.ldo = c->in[4].ld;
        a.lse = (float *)c->in[5].data + b * op->heads * op->seq;
        a.dq = cpu_row(&c->out[0], row), a.lddq = c->out[0].ld;
        a.dk = cpu_row(&c->out[1], row), a.lddk = c->out[1].ld;
        a.dv = cpu_row(&c->out[2], row), a.lddv = c->out[2].ld;
    } else {
        a.out = cpu_row(&c->out[0], row), a.ldout = c->out[0].ld;
        a.lse = (float *)c->out[1].data + b * op->heads * op->seq;
    }
    return a;
}

static bool take(struct units *u, int64_t *unit) {
    *unit = atomic_fetch_add_explicit(&u->next, 1, memory_order_relaxed);
    return *unit < u->count;
}

static void run_units(struct cpu *cpu, const struct op_call *c, int64_t count, pool_fn *fn) {
    const struct op *op = c->op;
    struct units u = {.cpu = cpu, .c = c, .count = count};
    u.blocks = (op->seq + ATTN_BLOCK - 1) / ATTN_BLOCK;
    // The work: half of the T x T scores with D multiply-adds each, in units of 32 of these.
    cpu_run(cpu, fn, &u,
            op->batch * op->heads * op->seq * (op->seq / 8 + 1) * (op->head_dim / 8 + 1));
}

int cpu_check_head_dim(const struct op *op, struct err *e) {
    if (op->head_dim >= 1 && op->head_dim <= ATTN_MAX_D)
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "%s: head dimension %lld is not in [1, %d]",
                   op_info(op->kind)->name, (long long)op->head_dim, (int)ATTN_MAX_D);
}

// Later blocks of queries see more keys. They go first, so that the last units taken are short.
static void forward_units(void *arg, int thread, int threads) {
    (void)threads;
    struct units *u = arg;
    const struct op *op = u->c->op;
    int64_t pairs = op->batch * op->heads, unit;
    while (take(u, &unit)) {
        int64_t block = u->blocks - 1 - unit / pairs, pair = unit % pairs;
        struct attn_args a = sequence(u->c, pair / op->heads);
        u->cpu->kernels->attn_fwd(&a, pair % op->heads, block, cpu_scratch(u->cpu, thread));
    }
}

int cpu_attention(struct cpu *cpu, const struct op_call *c, struct err *e) {
    const struct op *op = c->op;
    TRY(cpu_check_head_dim(op, e));
    int64_t blocks = (op->seq + ATTN_BLOCK - 1) / ATTN_BLOCK;
    run_units(cpu, c, op->batch * op->heads * blocks, forward_units);
    return 0;
}

// All blocks of a kv head, in order, because each block adds to dq.
static void backward_units(void *arg, int thread, int threads) {
    (void)threads;
    struct units *u = arg;
    const struct op *op = u->c->op;
    int64_t unit;
    while (take(u, &unit)) {
        struct attn_args a = sequence(u->c, unit / op->kv_heads);
        for (int64_t block = 0; block < u->blocks; block++)
            u->cpu->kernels->attn_bwd_kv(&a, unit % op->kv_heads, block, true,
                                         cpu_scratch(u->cpu, thread));
    }
}

// More queries see the early blocks of keys, so these go first.
static void backward_kv_units(void *arg, int thread, int threads) {
    (void)threads;
    struct units *u = arg;
    const struct op *op = u->c->op;
    int64_t pairs = op->batch * op->kv_heads, unit;
    while (take(u, &unit)) {
        struct attn_args a = sequence(u->c, unit % pairs / op->kv_heads);
        u->cpu->kernels->attn_bwd_kv(&a, unit % pairs % op->kv_heads, unit / pairs, false,
                                     cpu_scratch(u->cpu, thread));
    }
}

static void backward_q_units(void *arg, int thread, int threads) {
    (void)threads;
    struct units *u = arg;
    const struct op *op = u->c->op;
    int64_t pairs = op->batch * op->heads, unit;
    while (take(u, &unit)) {
        struct attn_args a = sequence(u->c, unit % pairs / op->heads);
        u->cpu->kernels->attn_bwd_q(&a, unit % pairs % op->heads, u->blocks - 1 - unit / pairs,
                                    cpu_scratch(u->cpu, thread));
    }
}

// One pass adds to the gradients of queries block by block, in float32. For fp32 that happens in
// place; for 16-bit types it needs scratch, which must have room for them.
static bool sums_fit(const struct cpu *cpu, const struct op *op) {
    int64_t width = cpu->kernels->width, whole = (op->head_dim + width - 1) / width * width;
    return cpu->type == KERNEL_F32 ||
           op->heads / op->kv_heads * op->seq * whole <= (int64_t)ATTN_SUM_FLOATS;
}

int cpu_attention_bwd(struct cpu *cpu, const struct op_call *c, struct err *e) {
    const struct op *op = c->op;
    TRY(cpu_check_head_dim(op, e));
    int64_t pairs = op->batch * op->kv_heads, blocks = (op->seq + ATTN_BLOCK - 1) / ATTN_BLOCK;
    // One pass keeps pairs / (rounds x threads) of the threads busy. Two passes keep all of them
    // busy, with 7/5 of the work.
    int64_t rounds = (pairs + cpu->threads - 1) / cpu->threads;
    bool one_pass = cpu->threads == 1 || blocks == 1 || 7 * pairs >= 5 * rounds * cpu->threads;
    if (one_pass && sums_fit(cpu, op)) {
        run_units(cpu, c, pairs, backward_units);
        return 0;
    }
    run_units(cpu, c, pairs * blocks, backward_kv_units);
    run_units(cpu, c, op->batch * op->heads * blocks, backward_q_units);
    return 0;
}

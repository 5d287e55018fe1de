// cpu_cached.c - keys and values in a cache, and attention of rows over it.
//
// Rows of a turn may belong to any sequences. A block is up to ATTN_BLOCK rows of one sequence at
// consecutive positions, the first of which is a multiple of ATTN_BLOCK: then the kernel of
// training's attention computes them together, and each key that they share is loaded once. A
// prompt's chunk consists of such blocks. All other rows are computed one by one. A unit of work is
// a head of what begins among ATTN_BLOCK rows of the turn; no two units write common memory.
#include "backend/cpu/cpu_state.h"
#include "backend/operands.h"

#include <stdatomic.h>
#include <string.h>

int cpu_kv_append(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)cpu;
    const struct op *op = c->op;
    const int32_t *sequences = c->in[2].data, *positions = c->in[3].data;
    size_t bytes = (size_t)(op->kv_heads * op->head_dim) * dtype_bytes(c->in[0].dtype);
    TRY(backend_check_cached(op, sequences, positions, e));
    for (int64_t i = 0; i < op->m; i++) {
        if (sequences[i] < 0)
            continue;
        const int64_t at = sequences[i] * op->seq + positions[i];
        memcpy(cpu_row(&c->out[0], at), cpu_row(&c->in[0], i), bytes);
        memcpy(cpu_row(&c->out[1], at), cpu_row(&c->in[1], i), bytes);
    }
    return 0;
}

struct cached {
    struct cpu *cpu;
    const struct op_call *c;
    const int32_t *sequences, *positions;
    _Atomic int64_t next;
    int64_t ranges; // of ATTN_BLOCK rows of the turn
};

// Rows of the block that begins at row i; 0: none does. A block of a few rows is slower than they
// are alone.
static int64_t block_at(const struct cached *x, int64_t i) {
    enum { LEAST = 8 };
    int64_t n = 0;
    if (x->sequences[i] < 0 || x->positions[i] % ATTN_BLOCK != 0)
        return 0;
    while (n < ATTN_BLOCK && i + n < x->c->op->m && x->sequences[i + n] == x->sequences[i] &&
           x->positions[i + n] == x->positions[i] + n)
        n++;
    return n < LEAST ? 0 : n;
}

// The first row from i on that is not in a block that began before.
static int64_t behind_block(const struct cached *x, int64_t i) {
    const int64_t before = x->sequences[i] < 0 ? 0 : x->positions[i] % ATTN_BLOCK, at = i - before;
    if (before == 0 || at < 0)
        return i;
    const int64_t n = block_at(x, at);
    return n > before ? at + n : i;
}

static void attend_block(const struct cached *x, int64_t i, int64_t n, int64_t head,
                         float *scratch) {
    const struct op_call *c = x->c;
    const struct op *op = c->op;
    const int64_t at = x->sequences[i] * op->seq;
    const struct attn_args a = {.T = x->positions[i] + n,
                                .H = op->heads,
                                .G = op->kv_heads,
                                .D = op->head_dim,
                                .scale = (float)op->scale,
                                .first = x->positions[i],
                                .q = cpu_row(&c->in[0], i),
                                .ldq = c->in[0].ld,
                                .k = cpu_row(&c->in[1], at),
                                .ldk = c->in[1].ld,
                                .v = cpu_row(&c->in[2], at),
                                .ldv = c->in[2].ld,
                                .out = cpu_row(&c->out[0], i),
                                .ldout = c->out[0].ld};
    x->cpu->kernels->attn_fwd(&a, head, x->positions[i] / ATTN_BLOCK, scratch);
}

static void attend_row(const struct cached *x, int64_t i, int64_t head, float *scratch) {
    const struct op_call *c = x->c;
    const struct op *op = c->op;
    const int64_t D = op->head_dim, column = head / (op->heads / op->kv_heads) * D;
    void *out = cpu_at(&c->out[0], i, head * D);
    if (x->sequences[i] < 0) {
        memset(out, 0, (size_t)D * dtype_bytes(c->out[0].dtype));
        return;
    }
    const int64_t at = x->sequences[i] * op->seq;
    x->cpu->kernels->attn_decode(out, cpu_at(&c->in[0], i, head * D), cpu_at(&c->in[1], at, column),
                                 c->in[1].ld, cpu_at(&c->in[2], at, column), c->in[2].ld,
                                 x->positions[i] + 1, D, (float)op->scale, scratch);
}

// Later rows of a prompt see more keys. They go first, so that the last units taken are short.
static void cached_units(void *arg, int thread, int threads) {
    (void)threads;
    struct cached *x = arg;
    const struct op *op = x->c->op;
    float *scratch = cpu_scratch(x->cpu, thread);
    for (;;) {
        const int64_t unit = atomic_fetch_add_explicit(&x->next, 1, memory_order_relaxed);
        if (unit >= x->ranges * op->heads)
            return;
        const int64_t head = unit % op->heads,
                      begin = (x->ranges - 1 - unit / op->heads) * ATTN_BLOCK;
        const int64_t end = begin + ATTN_BLOCK < op->m ? begin + ATTN_BLOCK : op->m;
        for (int64_t i = behind_block(x, begin), n; i < end; i += n) {
            n = block_at(x, i);
            if (n > 0)
                attend_block(x, i, n, head, scratch);
            else
                attend_row(x, i, head, scratch), n = 1;
        }
    }
}

int cpu_attention_cached(struct cpu *cpu, const struct op_call *c, struct err *e) {
    const struct op *op = c->op;
    struct cached x = {.cpu = cpu,
                       .c = c,
                       .sequences = c->in[3].data,
                       .positions = c->in[4].data,
                       .ranges = (op->m + ATTN_BLOCK - 1) / ATTN_BLOCK};
    TRY(cpu_check_head_dim(op, e));
    TRY(backend_check_cached(op, x.sequences, x.positions, e));
    int64_t keys = 0;
    for (int64_t i = 0; i < op->m; i++)
        keys += x.sequences[i] < 0 ? 0 : x.positions[i] + 1;
    cpu_run(cpu, cached_units, &x, keys * op->heads * op->head_dim);
    return 0;
}

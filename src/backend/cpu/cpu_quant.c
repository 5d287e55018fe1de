// cpu_quant.c - products with quantized weights (quant.h), split over the pool by columns of y.
//
// Few rows of x: each thread rounds all of them for itself, which takes less time than to wait for
// one another. Many rows: the threads round some rows each, then all read all of them. Where not
// all fit the threads' scratch, the product is done in parts of as many rows as do.
//
// A thread's scratch: the kernel's panel, a tile of y, and behind them its rows of x.
#include "backend/cpu/cpu_state.h"
#include "backend/cpu/quant.h"

#include <string.h>

enum {
    SCRATCH_BYTES = CPU_SCRATCH_FLOATS * (int)sizeof(float),
    ROWS_AT = SCRATCH_BYTES / 8 * 3,
    ROWS_BYTES = SCRATCH_BYTES - ROWS_AT, // of rows of x, per thread
    TILE_AT = QUANT_SCRATCH,
    TILE_BYTES = ROWS_AT - TILE_AT,
    FEW_COLUMNS = 256, // of a tile with few rows
    ROWS_MOST = TILE_BYTES / (int)sizeof(float) / QUANT_PANEL,
};
_Static_assert((int)TILE_BYTES > 0 && (int)ROWS_MOST > 256, "panel and tile fit half a scratch");

struct task {
    struct cpu *cpu;
    const struct op_call *c;
    struct quant_product p;
    int64_t first, rows;   // of x, in this part
    int64_t pieces, holds; // of a rounded row; how many rows a thread's scratch holds
    enum quant_order order;
    int zero;
    bool few, own; // few rows; each thread has its own copy of them
};

static char *scratch_of(const struct task *t, int thread) {
    return (char *)cpu_scratch(t->cpu, thread);
}

// The first piece of row i of the part, in the scratch of the thread that has it.
static struct quant_piece *row_at(const struct task *t, int64_t i, int self) {
    const int64_t thread = t->own ? self : i / t->holds, at = t->own ? i : i % t->holds,
                  side = t->p.apart;
    struct quant_piece *first =
        (struct quant_piece *)(void *)(scratch_of(t, (int)thread) + ROWS_AT);
    return first + at / side * side * t->pieces + at % side;
}

static void round_row(const struct task *t, int64_t i, int self) {
    const int64_t k = t->p.k;
    const char *x = cpu_row(&t->c->in[0], t->first + i);
    const int64_t width = (int64_t)dtype_bytes(t->c->in[0].dtype);
    struct quant_piece *to = row_at(t, i, self);
    float wide[QUANT_PIECE];
    for (int64_t at = 0; at < k; at += QUANT_PIECE, to += t->p.apart) {
        const int64_t n = k - at < QUANT_PIECE ? k - at : QUANT_PIECE;
        const float *from = (const float *)(const void *)(x + at * width);
        if (t->c->in[0].dtype != DTYPE_F32) {
            t->cpu->kernels->widen(wide, x + at * width, n);
            from = wide;
        }
        t->cpu->quant->encode(from, n, t->order, t->zero, to);
    }
}

static void round_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    int64_t begin, end;
    pool_share(t->rows, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        round_row(t, i, thread);
}

// y = scale x W' + b (+ y), rounded; then the activation of what was stored.
static void finish(const struct task *t, const float *tile, int64_t ld, int64_t j0, int64_t j1) {
    const struct cpu_kernels *k = t->cpu->kernels;
    const struct op_call *c = t->c;
    for (int64_t i = 0; i < t->rows; i++) {
        float sums[FEW_COLUMNS];
        real *y = cpu_at(&c->out[0], t->first + i, j0);
        k->scale(sums, tile + i * ld, (float)c->op->scale, j1 - j0);
        if (c->in[2].data)
            k->add_wide(sums, cpu_at(&c->in[2], 0, j0), j1 - j0);
        if (c->op->flags & OP_ACCUMULATE)
            k->add_wide(sums, y, j1 - j0);
        k->narrow(y, sums, j1 - j0);
        if (c->op->kind == OP_MATMUL_ACT)
            k->act(cpu_at(&c->out[1], t->first + i, j0), y, j1 - j0, c->op->act);
    }
}

static void multiply_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct quant_piece *row[ROWS_MOST];
    struct quant_product p = t->p;
    char *scratch = scratch_of(t, thread);
    float *tile = (float *)(void *)(scratch + TILE_AT);
    const int64_t step = t->few ? FEW_COLUMNS : QUANT_PANEL;
    int64_t begin, end;
    pool_share(p.n, QUANT_PANEL, thread, threads, &begin, &end);
    if (begin >= end)
        return;
    for (int64_t i = 0; i < t->rows; i++) {
        if (t->own)
            round_row(t, i, thread);
        row[i] = row_at(t, i, thread);
    }
    p.row = row;
    p.y = tile;
    p.ldy = step;
    for (p.j0 = begin; p.j0 < end; p.j0 = p.j1) {
        p.j1 = end - p.j0 < step ? end : p.j0 + step;
        if (t->few)
            t->cpu->quant->few(&p);
        else
            t->cpu->quant->many(&p, scratch);
        finish(t, tile, step, p.j0, p.j1);
    }
}

int cpu_check_quantized(const struct op_call *c, struct err *e) {
    const int64_t most =
        ROWS_BYTES / (int)sizeof(struct quant_piece) / QUANT_ROWS * (int64_t)QUANT_PIECE;
    if (storage_plain(c->in[1].storage) || c->op->k <= most)
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "%s: rows of %lld elements are more than the %lld of %s",
                   op_info(c->op->kind)->name, (long long)c->op->k, (long long)most,
                   "products with quantized weights");
}

int cpu_matmul_quantized(struct cpu *cpu, const struct op_call *c, struct err *e) {
    const struct op *op = c->op;
    const struct operand *w = &c->in[1];
    struct task t = {
        .cpu = cpu, .c = c, .p = {.storage = w->storage, .w = w->data, .n = op->n, .k = op->k}};
    TRY(cpu_check_quantized(c, e));
    if (op->m == 0 || op->n == 0)
        return 0;
    if (w->rows < op->n || w->cols != op->k ||
        !storage_layout(w->storage, w->rows, w->cols, &t.p.parts))
        return err_set(e, ERR_INTERNAL, "%s: the weight is no quantized matrix of %lld x %lld",
                       op_info(op->kind)->name, (long long)op->n, (long long)op->k);
    const bool int8 = w->storage.kind == STORAGE_INT8;
    const struct quant_few few = int8 ? cpu->quant->int8 : cpu->quant->int4;
    t.few = op->m <= few.most;
    t.order = t.few ? few.order : QUANT_NATURAL;
    t.zero = int8 ? QUANT_ZERO8 : w->storage.minima ? 0 : QUANT_ZERO4;
    t.p.apart = t.few ? QUANT_ROWS : 1;
    t.pieces = (op->k + QUANT_PIECE - 1) / QUANT_PIECE;
    const int64_t bytes = t.pieces * (int64_t)sizeof(struct quant_piece) * QUANT_ROWS;
    t.holds = bytes > 0 ? ROWS_BYTES / bytes * QUANT_ROWS : ROWS_MOST;
    t.own = op->m <= QUANT_ROWS;
    int64_t most = t.own ? op->m : t.holds * cpu->threads;
    const int64_t tile_rows = t.few ? TILE_BYTES / (int)sizeof(float) / FEW_COLUMNS : ROWS_MOST;
    most = most < tile_rows ? most : tile_rows;
    for (t.first = 0; t.first < op->m; t.first += t.rows) {
        t.rows = op->m - t.first < most ? op->m - t.first : most;
        t.p.m = t.rows;
        if (!t.own)
            cpu_run(cpu, round_share, &t, t.rows * op->k);
        cpu_run(cpu, multiply_share, &t, t.rows * op->n * (op->k / 16 + 1));
    }
    return 0;
}

// cpu_matmul.c - the three matrix products of a layer, with C cut into one piece per thread.
//
// The pieces form a grid of rows and columns, chosen for the least work per thread. Each thread
// packs its own part of B, so few rows of wide pieces are cheapest until the columns run out. With
// the builtin kernels an element of C is the same however C is cut. With a library it may differ in
// the last bit between thread counts.
//
// An activation is applied to each finished tile by the builtin product of many rows. After a
// library or a product of few rows it is a separate pass over the thread's piece.
#include "backend/cpu/cpu_state.h"

#include <math.h>

struct product {
    struct cpu *cpu;
    struct gemm_args g;
    int rows, columns; // of the grid; rows * columns <= threads
};

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// Cost of a thread's piece in multiply-adds. Packing an element of B costs about as much as 8 of
// them, because it often comes from main memory. Packing an element of A costs about 3, for each
// block of columns that it is packed for.
static double piece_cost(const struct gemm_args *g, const struct cpu_gemm *way, int rows,
                         int columns) {
    if (g->few_rows) // every piece of a column reads the same part of B
        return (double)ceil_div(g->n, columns) * (double)(rows > 1 ? 2 : 1);
    double m = (double)(ceil_div(ceil_div(g->m, way->mr), rows) * way->mr);
    double n = (double)(ceil_div(ceil_div(g->n, way->nr), columns) * way->nr);
    return (m * n + 8 * n + 3 * m * ceil(n / 384)) * (double)g->k;
}

static void choose_grid(struct product *p) {
    double best = INFINITY;
    int threads = p->cpu->threads;
    for (int rows = 1; rows <= threads; rows++) {
        double cost = piece_cost(&p->g, p->cpu->gemm, rows, threads / rows);
        if (cost < best) {
            best = cost;
            p->rows = rows;
            p->columns = threads / rows;
        }
    }
}

static void multiply_piece(void *arg, int thread, int threads) {
    const struct product *p = arg;
    const struct cpu_gemm *way = p->cpu->gemm;
    int rows = threads == 1 ? 1 : p->rows, columns = threads == 1 ? 1 : p->columns;
    if (thread >= rows * columns)
        return;
    int64_t i0, i1, j0, j1;
    pool_share(p->g.m, way->mr, thread / columns, rows, &i0, &i1);
    pool_share(p->g.n, way->nr, thread % columns, columns, &j0, &j1);
    if (i0 >= i1 || j0 >= j1)
        return;
    struct gemm_args g = p->g;
    g.m = i1 - i0;
    g.n = j1 - j0;
    int64_t size = p->cpu->type == KERNEL_F32 ? 4 : 2, c_size = g.wide ? 4 : size;
    g.a = (const char *)g.a + (g.ta ? i0 : i0 * g.lda) * size;
    g.b = (const char *)g.b + (g.tb ? j0 * g.ldb : j0) * size;
    g.c = (char *)g.c + (i0 * g.ldc + j0) * c_size;
    g.bias = g.bias ? (const char *)g.bias + j0 * size : NULL;
    g.act_out = g.act ? (char *)g.act_out + (i0 * g.ld_act + j0) * size : NULL;
    bool library = p->cpu->blas && blas_gemm(p->cpu->blas, &g);
    if (!library)
        way->run(&g, cpu_scratch(p->cpu, thread));
    if (g.act && (library || g.few_rows || g.k == 0))
        for (int64_t i = 0; i < g.m; i++)
            g.act((char *)g.act_out + i * g.ld_act * size, (char *)g.c + i * g.ldc * size, g.n,
                  g.act_kind);
}

static int multiply(struct cpu *cpu, const struct gemm_args *g) {
    struct product p = {.cpu = cpu, .g = *g};
    if (g->m == 0 || g->n == 0)
        return 0;
    p.g.few_rows = g->m <= GEMM_FEW_ROWS && !g->ta;
    choose_grid(&p);
    cpu_run(cpu, multiply_piece, &p, g->m * g->n * (g->k / 16 + 1));
    return 0;
}

static struct gemm_args forward_of(const struct op_call *c) {
    const struct op *op = c->op;
    return (struct gemm_args){.m = op->m,
                              .n = op->n,
                              .k = op->k,
                              .alpha = (float)op->scale,
                              .a = c->in[0].data,
                              .lda = c->in[0].ld,
                              .b = c->in[1].data,
                              .ldb = c->in[1].ld,
                              .tb = !(op->flags & OP_IN_OUT),
                              .bias = c->in[2].data,
                              .c = c->out[0].data,
                              .ldc = c->out[0].ld,
                              .accumulate = op->flags & OP_ACCUMULATE};
}

int cpu_matmul(struct cpu *cpu, const struct op_call *c, struct err *e) {
    if (!storage_plain(c->in[1].storage))
        return cpu_matmul_quantized(cpu, c, e);
    struct gemm_args g = forward_of(c);
    return multiply(cpu, &g);
}

int cpu_matmul_act(struct cpu *cpu, const struct op_call *c, struct err *e) {
    if (!storage_plain(c->in[1].storage))
        return cpu_matmul_quantized(cpu, c, e);
    struct gemm_args g = forward_of(c);
    g.act = cpu->kernels->act;
    g.act_kind = c->op->act;
    g.act_out = c->out[1].data;
    g.ld_act = c->out[1].ld;
    return multiply(cpu, &g);
}

int cpu_matmul_dx(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    const struct op *op = c->op;
    return multiply(cpu, &(struct gemm_args){.m = op->m,
                                             .n = op->k,
                                             .k = op->n,
                                             .alpha = (float)op->scale,
                                             .a = c->in[0].data,
                                             .lda = c->in[0].ld,
                                             .b = c->in[1].data,
                                             .ldb = c->in[1].ld,
                                             .tb = op->flags & OP_IN_OUT,
                                             .c = c->out[0].data,
                                             .ldc = c->out[0].ld,
                                             .accumulate = op->flags & OP_ACCUMULATE});
}

// dW has the layout of W: [k,n] = x' dy with IN_OUT, else [n,k] = dy' x. The prime is a transpose.
int cpu_matmul_dw(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    const struct op *op = c->op;
    bool in_out = op->flags & OP_IN_OUT;
    const struct operand *left = &c->in[in_out ? 0 : 1], *right = &c->in[in_out ? 1 : 0];
    return multiply(cpu, &(struct gemm_args){.m = in_out ? op->k : op->n,
                                             .n = in_out ? op->n : op->k,
                                             .k = op->m,
                                             .alpha = (float)op->scale,
                                             .a = left->data,
                                             .lda = left->ld,
                                             .ta = true,
                                             .wide = true,
                                             .b = right->data,
                                             .ldb = right->ld,
                                             .c = c->out[0].data,
                                             .ldc = c->out[0].ld,
                                             .accumulate = op->flags & OP_ACCUMULATE});
}

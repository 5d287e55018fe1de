// cpu_ops.c - every op but matrix products and attention: splits the work over the pool and calls
// the kernels.
//
// How each kind of op is split, and why the split cannot change its result:
//   element by element   by elements or rows; no element depends on another
//   row by row           by rows; one thread computes a row (norm, rope, loss, argmax)
//   sums over rows       by columns; one thread sums a column, rows in order (bias, norm weights,
//                        embedding)
//   sums over all        by blocks whose size depends on n only, added in order (gradient norm)
#include "backend/cpu/cpu_state.h"
#include "backend/cpu/plain.h"
#include "backend/operands.h"
#include "model/shape.h"

#include <math.h>
#include <string.h>

static enum dtype cpu_dtype(const struct cpu *cpu) {
    static const enum dtype types[KERNEL_TYPES] = {
        [KERNEL_F32] = DTYPE_F32, [KERNEL_BF16] = DTYPE_BF16, [KERNEL_F16] = DTYPE_F16};
    return types[cpu->type];
}

// With fewer elements, starting the threads costs more than they save.
enum { WORK_TO_SHARE = 16384 };

void cpu_run(struct cpu *cpu, pool_fn *fn, void *arg, int64_t work) {
    if (cpu->threads == 1 || work < WORK_TO_SHARE)
        fn(arg, 0, 1);
    else
        pool_run(cpu->pool, fn, arg);
}

struct task {
    struct cpu *cpu;
    const struct op_call *c;
    const struct adamw_scalars *adamw;
    int64_t block;
};

// ---------------------------------------------------------------- element by element

// Calls `span` with pieces (row, column, n) that cover this thread's share of the op's m x n
// elements. When no operand has gaps between rows, the matrix is treated as one long row.
typedef void span_fn(const struct task *t, int64_t row, int64_t column, int64_t n);

static void for_spans(const struct task *t, int n_in, int n_out, int thread, int threads,
                      span_fn *span) {
    const struct op *op = t->c->op;
    int64_t m = op->m, n = op->n, begin, end;
    bool flat = true;
    for (int i = 0; i < n_in; i++)
        flat &= t->c->in[i].ld == n;
    for (int i = 0; i < n_out; i++)
        flat &= t->c->out[i].ld == n;
    if (flat || m == 1) {
        pool_share(m * n, 1024, thread, threads, &begin, &end);
        if (begin < end)
            span(t, 0, begin, end - begin);
        return;
    }
    pool_share(m, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        span(t, i, 0, n);
}

// The pool function and the op from name##_span and its numbers of operands.
#define SPAN_OP(name, n_in, n_out)                                                                 \
    static void name##_share(void *arg, int thread, int threads) {                                 \
        for_spans(arg, n_in, n_out, thread, threads, name##_span);                                 \
    }                                                                                              \
    int cpu_##name(struct cpu *cpu, const struct op_call *c, struct err *e) {                      \
        (void)e;                                                                                   \
        struct task t = {.cpu = cpu, .c = c};                                                      \
        cpu_run(cpu, name##_share, &t, c->op->m * c->op->n);                                       \
        return 0;                                                                                  \
    }

static void add_span(const struct task *t, int64_t row, int64_t column, int64_t n) {
    const struct op_call *c = t->c;
    t->cpu->kernels->add(cpu_at(&c->out[0], row, column), cpu_at(&c->in[0], row, column),
                         cpu_at(&c->in[1], row, column), n);
}
SPAN_OP(add, 2, 1)

static void mul_span(const struct task *t, int64_t row, int64_t column, int64_t n) {
    const struct op_call *c = t->c;
    t->cpu->kernels->mul(cpu_at(&c->out[0], row, column), cpu_at(&c->in[0], row, column),
                         cpu_at(&c->in[1], row, column), n);
}
SPAN_OP(mul, 2, 1)

static void act_span(const struct task *t, int64_t row, int64_t column, int64_t n) {
    const struct op_call *c = t->c;
    t->cpu->kernels->act(cpu_at(&c->out[0], row, column), cpu_at(&c->in[0], row, column), n,
                         c->op->act);
}
SPAN_OP(act, 1, 1)

static void act_bwd_span(const struct task *t, int64_t row, int64_t column, int64_t n) {
    const struct op_call *c = t->c;
    t->cpu->kernels->act_bwd(cpu_at(&c->out[0], row, column), cpu_at(&c->in[0], row, column),
                             cpu_at(&c->in[1], row, column), n, c->op->act);
}
SPAN_OP(act_bwd, 2, 1)

static void swiglu_span(const struct task *t, int64_t row, int64_t column, int64_t n) {
    const struct op_call *c = t->c;
    t->cpu->kernels->swiglu(cpu_at(&c->out[0], row, column), cpu_at(&c->in[0], row, column),
                            cpu_at(&c->in[1], row, column), n);
}
SPAN_OP(swiglu, 2, 1)

static void swiglu_bwd_span(const struct task *t, int64_t row, int64_t column, int64_t n) {
    const struct op_call *c = t->c;
    t->cpu->kernels->swiglu_bwd(cpu_at(&c->out[0], row, column), cpu_at(&c->out[1], row, column),
                                cpu_at(&c->in[0], row, column), cpu_at(&c->in[1], row, column),
                                cpu_at(&c->in[2], row, column), n);
}
SPAN_OP(swiglu_bwd, 3, 2)

static void copy_span(const struct task *t, int64_t row, int64_t column, int64_t n) {
    const struct op_call *c = t->c;
    void *y = cpu_at(&c->out[0], row, column);
    const void *x = cpu_at(&c->in[0], row, column);
    if (c->op->flags & OP_ACCUMULATE)
        t->cpu->kernels->add(y, y, x, n);
    else
        memmove(y, x, (size_t)n * dtype_bytes(c->in[0].dtype));
}

static void copy_share(void *arg, int thread, int threads) {
    for_spans(arg, 1, 1, thread, threads, copy_span);
}

int cpu_copy(struct cpu *cpu, const struct op_call *c, struct err *e) {
    struct task t = {.cpu = cpu, .c = c};
    if (c->in[0].dtype != c->out[0].dtype || c->in[0].dtype != cpu_dtype(cpu))
        return plain_copy(c, e);
    cpu_run(cpu, copy_share, &t, c->op->m * c->op->n);
    return 0;
}

// For any element type. m = 0 stands for one row.
static void zero_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct operand *y = &t->c->out[0];
    int64_t size = (int64_t)dtype_bytes(y->dtype), m = t->c->op->m, n = t->c->op->n, begin, end;
    if (m <= 1 || y->ld == n) {
        pool_share((m > 0 ? m : 1) * n * size, 4096, thread, threads, &begin, &end);
        if (begin < end)
            memset((char *)y->data + begin, 0, (size_t)(end - begin));
        return;
    }
    pool_share(m, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        memset((char *)y->data + i * y->ld * size, 0, (size_t)(n * size));
}

int cpu_zero(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    struct task t = {.cpu = cpu, .c = c};
    cpu_run(cpu, zero_share, &t, (c->op->m > 0 ? c->op->m : 1) * c->op->n);
    return 0;
}

// plain_cast on this thread's rows, or on its part of the only row.
static void cast_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    struct op op = *t->c->op;
    struct op_call part = *t->c;
    bool flat = op.m <= 1 || (part.in[0].ld == op.n && part.out[0].ld == op.n);
    int64_t begin, end, skip_in, skip_out;
    if (flat) {
        pool_share((op.m > 0 ? op.m : 1) * op.n, 1024, thread, threads, &begin, &end);
        skip_in = skip_out = begin;
        op.m = 1;
        op.n = end - begin;
    } else {
        pool_share(op.m, 1, thread, threads, &begin, &end);
        skip_in = begin * part.in[0].ld;
        skip_out = begin * part.out[0].ld;
        op.m = end - begin;
    }
    if (begin >= end)
        return;
    part.op = &op;
    part.in[0].data = (char *)part.in[0].data + skip_in * (int64_t)dtype_bytes(part.in[0].dtype);
    part.out[0].data =
        (char *)part.out[0].data + skip_out * (int64_t)dtype_bytes(part.out[0].dtype);
    plain_cast(&part, NULL);
}

int cpu_cast(struct cpu *cpu, const struct op_call *c, struct err *e) {
    struct task t = {.cpu = cpu, .c = c};
    struct op nothing = *c->op;
    struct op_call check = *c;
    nothing.m = 0;
    nothing.n = 0;
    check.op = &nothing;
    TRY(plain_cast(&check, e)); // checks the types: threads cannot report an error
    cpu_run(cpu, cast_share, &t, (c->op->m > 0 ? c->op->m : 1) * c->op->n);
    return 0;
}

// ---------------------------------------------------------------- embedding

// A row of a quantized table plus the row of its position (NULL: none), widened piece by piece and
// rounded once.
static void embed_stored(const struct task *t, int64_t id, const char *place, char *x, int64_t n) {
    enum { PIECE = 512 };
    const struct operand *table = &t->c->in[1];
    struct storage_parts parts;
    float value[PIECE];
    if (!storage_layout(table->storage, table->rows, table->cols, &parts))
        return; // backend_check_call has refused it
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t count = n - at < PIECE ? n - at : PIECE;
        storage_read_row(table->storage, &parts, table->data, id, at, count, value);
        const int64_t byte = at * (int64_t)dtype_bytes(table->dtype);
        if (place)
            t->cpu->kernels->add_wide(value, place + byte, count);
        t->cpu->kernels->narrow(x + byte, value, count);
    }
}

static void embed_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    const int32_t *ids = c->in[0].data, *positions = c->in[2].data;
    int64_t begin, end, n = c->op->n;
    pool_share(c->op->m, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int64_t id = ids[i] - c->op->first;
        void *x = cpu_row(&c->out[0], i);
        const bool here = id >= 0 && id < c->op->k; // else another rank has the row
        const void *place = positions && c->in[3].data ? cpu_row(&c->in[3], positions[i]) : NULL;
        if (here && !storage_plain(c->in[1].storage)) {
            embed_stored(t, id, place, x, n);
            continue;
        }
        const void *from = here ? cpu_row(&c->in[1], id) : NULL;
        if (!here && place)
            memcpy(x, place, (size_t)n * dtype_bytes(c->in[1].dtype));
        else if (!here)
            memset(x, 0, (size_t)n * dtype_bytes(c->in[1].dtype));
        else if (place)
            t->cpu->kernels->add(x, from, place, n);
        else
            memcpy(x, from, (size_t)n * dtype_bytes(c->in[1].dtype));
    }
}

int cpu_embed(struct cpu *cpu, const struct op_call *c, struct err *e) {
    struct task t = {.cpu = cpu, .c = c};
    TRY(backend_check_tokens(c, e));
    cpu_run(cpu, embed_share, &t, c->op->m * c->op->n);
    return 0;
}

static void embed_dw_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    const struct op *op = c->op;
    const int32_t *ids = c->in[0].data;
    int64_t begin, end;
    pool_share(op->n, 16, thread, threads, &begin, &end);
    if (begin >= end)
        return;
    if (!(op->flags & OP_ACCUMULATE))
        for (int64_t r = 0; r < op->k; r++)
            memset(cpu_at(&c->out[0], r, begin), 0, (size_t)(end - begin) * sizeof(float));
    for (int64_t i = 0; i < op->m; i++) {
        const int64_t id = ids[i] - op->first;
        if (id >= 0 && id < op->k)
            t->cpu->kernels->add_wide(cpu_at(&c->out[0], id, begin), cpu_at(&c->in[1], i, begin),
                                      end - begin);
    }
}

int cpu_embed_dw(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    struct task t = {.cpu = cpu, .c = c};
    cpu_run(cpu, embed_dw_share, &t, (c->op->m + c->op->k) * c->op->n);
    return 0;
}

int cpu_gather_rows(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)cpu; // one row per sequence: too little work for several threads
    const int32_t *rows = c->in[1].data;
    for (int64_t i = 0; i < c->op->m; i++)
        if (rows[i] < 0 || (c->op->k > 0 && rows[i] >= c->op->k))
            return err_set(e, ERR_USAGE, "gather_rows: row %d does not exist", rows[i]);
    for (int64_t i = 0; i < c->op->m; i++)
        memcpy(cpu_row(&c->out[0], i), cpu_row(&c->in[0], rows[i]),
               (size_t)c->op->n * dtype_bytes(c->in[0].dtype));
    return 0;
}

// ---------------------------------------------------------------- row by row

#define ROW_OP(name, work)                                                                         \
    int cpu_##name(struct cpu *cpu, const struct op_call *c, struct err *e) {                      \
        (void)e;                                                                                   \
        struct task t = {.cpu = cpu, .c = c};                                                      \
        cpu_run(cpu, name##_share, &t, work);                                                      \
        return 0;                                                                                  \
    }

// With heads, a row of the operands holds several rows of n columns, each with its statistics.
static void norm_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    float *stats = c->out[1].data;
    int64_t begin, end, heads = op_norm_heads(c->op), n = c->op->n;
    pool_share(c->op->m, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        for (int64_t h = 0; h < heads; h++)
            t->cpu->kernels->norm(cpu_at(&c->out[0], i, h * n), stats + 2 * (i * heads + h),
                                  cpu_at(&c->in[0], i, h * n), c->in[1].data, c->in[2].data, n,
                                  (float)c->op->scale, c->op->flags & OP_RMS);
}
ROW_OP(norm, op_norm_heads(c->op) * c->op->m * c->op->n)

static void norm_dx_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    const float *stats = c->in[3].data;
    int64_t begin, end, heads = op_norm_heads(c->op), n = c->op->n;
    pool_share(c->op->m, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        for (int64_t h = 0; h < heads; h++)
            t->cpu->kernels->norm_dx(cpu_at(&c->out[0], i, h * n), cpu_at(&c->in[0], i, h * n),
                                     cpu_at(&c->in[1], i, h * n), c->in[2].data,
                                     stats + 2 * (i * heads + h), n, c->op->flags & OP_RMS,
                                     c->op->flags & OP_ACCUMULATE);
}
ROW_OP(norm_dx, op_norm_heads(c->op) * c->op->m * c->op->n)

// Calls libm for each element, which is affordable: the table is made once per micro-batch.
static void rope_table_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    const int32_t *positions = c->in[0].data;
    const float *inv_freq = c->in[1].data;
    int64_t begin, end, half = c->op->head_dim / 2;
    pool_share(c->op->m, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        float *row = cpu_row(&c->out[0], i);
        for (int64_t j = 0; j < half; j++) {
            float angle = (float)positions[i] * inv_freq[j];
            row[j] = cosf(angle);
            row[half + j] = sinf(angle);
        }
    }
}
ROW_OP(rope_table, 8 * c->op->m * c->op->head_dim)

static void rope_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    int64_t begin, end;
    pool_share(c->op->m, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        t->cpu->kernels->rope(cpu_row(&c->out[0], i), cpu_row(&c->in[0], i), cpu_row(&c->in[1], i),
                              c->op->heads, c->op->head_dim, c->op->flags & OP_INVERSE);
}
ROW_OP(rope, c->op->m * c->op->heads * c->op->head_dim)

static void loss_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    const int32_t *targets = c->in[1].data;
    const double *hyper = c->in[2].data;
    float *row_loss = c->out[1].data;
    bool with_grad = c->op->flags & OP_WITH_GRAD;
    float factor = with_grad ? (float)hyper[HYPER_LOSS_FACTOR] : 0;
    int64_t begin, end, n = c->op->n;
    pool_share(c->op->m, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        void *x = cpu_row(&c->out[0], i);
        if (targets[i] >= 0)
            row_loss[i] = t->cpu->kernels->loss(x, n, targets[i], with_grad, factor);
        else {
            row_loss[i] = 0;
            if (with_grad)
                memset(x, 0, (size_t)n * dtype_bytes(c->out[0].dtype));
        }
    }
}

int cpu_loss(struct cpu *cpu, const struct op_call *c, struct err *e) {
    struct task t = {.cpu = cpu, .c = c};
    if (c->op->flags & OP_WITH_GRAD && !c->in[2].data)
        return err_set(e, ERR_INTERNAL, "loss: WITH_GRAD needs hyper");
    TRY(backend_check_targets(c, c->in[1].data, e));
    cpu_run(cpu, loss_share, &t, c->op->m * c->op->n);
    return 0;
}

static void loss_kl_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    const int32_t *targets = c->in[2].data;
    const double *hyper = c->in[3].data;
    float *row_loss = c->out[1].data;
    const bool with_grad = c->op->flags & OP_WITH_GRAD;
    const float factor = with_grad ? (float)hyper[HYPER_LOSS_FACTOR] : 0;
    int64_t begin, end, n = c->op->n;
    pool_share(c->op->m, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        void *x = cpu_row(&c->out[0], i);
        row_loss[i] = targets[i] < 0 ? 0
                                     : t->cpu->kernels->loss_kl(x, cpu_row(&c->in[1], i), n,
                                                                with_grad, factor);
        if (targets[i] < 0 && with_grad)
            memset(x, 0, (size_t)n * dtype_bytes(c->out[0].dtype));
    }
}

int cpu_loss_kl(struct cpu *cpu, const struct op_call *c, struct err *e) {
    struct task t = {.cpu = cpu, .c = c};
    if (c->op->flags & OP_WITH_GRAD && !c->in[3].data)
        return err_set(e, ERR_INTERNAL, "loss_kl: WITH_GRAD needs hyper");
    cpu_run(cpu, loss_kl_share, &t, c->op->m * c->op->n);
    return 0;
}

// The loss over columns that ranks share. Rows are widened in blocks.
enum { LOSS_BLOCK = 1024 };

static void loss_stats_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    const int32_t *targets = c->in[1].data;
    float x[LOSS_BLOCK];
    int64_t begin, end, n = c->op->n;
    pool_share(c->op->m, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int64_t target = targets[i] - c->op->first;
        float max = -INFINITY, sum = 0, logit = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t at = 0; at < n; at += LOSS_BLOCK) {
                const int64_t some = n - at < LOSS_BLOCK ? n - at : LOSS_BLOCK;
                t->cpu->kernels->widen(x, cpu_at(&c->in[0], i, at), some);
                for (int64_t j = 0; j < some && pass == 0; j++)
                    max = x[j] > max ? x[j] : max;
                for (int64_t j = 0; j < some && pass == 1; j++)
                    sum += expf(x[j] - max);
                if (target >= at && target < at + some)
                    logit = x[target - at];
            }
        float *out = cpu_row(&c->out[0], i);
        out[0] = max, out[1] = sum, out[2] = logit;
    }
}

int cpu_loss_stats(struct cpu *cpu, const struct op_call *c, struct err *e) {
    struct task t = {.cpu = cpu, .c = c};
    (void)e;
    cpu_run(cpu, loss_stats_share, &t, c->op->m * c->op->n);
    return 0;
}

static void loss_part_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    const struct op *op = c->op;
    const int32_t *targets = c->in[2].data;
    const bool with_grad = op->flags & OP_WITH_GRAD;
    const float factor = with_grad ? (float)((const double *)c->in[3].data)[HYPER_LOSS_FACTOR] : 0;
    float *row_loss = c->out[1].data, x[LOSS_BLOCK];
    int64_t begin, end;
    pool_share(op->m, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        float max = -INFINITY, sum = 0, logit = 0;
        for (int64_t r = 0; r < op->batch; r++)
            max = fmaxf(max, ((const float *)cpu_row(&c->in[1], r * op->m + i))[0]);
        for (int64_t r = 0; r < op->batch; r++) {
            const float *s = cpu_row(&c->in[1], r * op->m + i);
            sum += s[1] * expf(s[0] - max);
            logit += s[2];
        }
        row_loss[i] = targets[i] < 0 ? 0 : logf(sum) + max - logit;
        for (int64_t at = 0; with_grad && at < op->n; at += LOSS_BLOCK) {
            const int64_t some = op->n - at < LOSS_BLOCK ? op->n - at : LOSS_BLOCK,
                          target = targets[i] - op->first - at;
            void *row = cpu_at(&c->out[0], i, at);
            t->cpu->kernels->widen(x, row, some);
            for (int64_t j = 0; j < some; j++)
                x[j] = targets[i] < 0 ? 0 : expf(x[j] - max) / sum * factor;
            if (targets[i] >= 0 && target >= 0 && target < some)
                x[target] -= factor;
            t->cpu->kernels->narrow(row, x, some);
        }
    }
}

int cpu_loss_part(struct cpu *cpu, const struct op_call *c, struct err *e) {
    struct task t = {.cpu = cpu, .c = c};
    if (c->op->flags & OP_WITH_GRAD && !c->in[3].data)
        return err_set(e, ERR_INTERNAL, "loss_part: WITH_GRAD needs hyper");
    cpu_run(cpu, loss_part_share, &t, c->op->m * c->op->n);
    return 0;
}

int cpu_loss_sum(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)cpu, (void)e;
    const float *row_loss = c->in[0].data;
    const int32_t *targets = c->in[1].data;
    double *results = c->out[0].data, sum = 0, count = 0;
    for (int64_t i = 0; i < c->op->m; i++) {
        sum += (double)row_loss[i];
        count += targets[i] >= 0;
    }
    results[RESULT_LOSS_SUM] += sum;
    results[RESULT_TOKENS] += count;
    return 0;
}

static void argmax_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    int32_t *ids = c->out[0].data;
    int64_t begin, end;
    pool_share(c->op->m, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        ids[i] = (int32_t)t->cpu->kernels->argmax(cpu_row(&c->in[0], i), c->op->n);
}
ROW_OP(argmax, c->op->m * c->op->n)

// ---------------------------------------------------------------- sums over rows

static void bias_db_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    int64_t begin, end;
    pool_share(c->op->n, 64, thread, threads, &begin, &end);
    if (begin < end)
        t->cpu->kernels->column_sum((float *)c->out[0].data + begin, cpu_at(&c->in[0], 0, begin),
                                    c->in[0].ld, c->op->m, end - begin,
                                    c->op->flags & OP_ACCUMULATE);
}
ROW_OP(bias_db, c->op->m * c->op->n)

static void norm_dw_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const struct op_call *c = t->c;
    float *db = c->out[1].data;
    int64_t begin, end;
    pool_share(c->op->n, 32, thread, threads, &begin, &end);
    if (begin < end)
        t->cpu->kernels->norm_dw((float *)c->out[0].data + begin, db ? db + begin : NULL,
                                 cpu_at(&c->in[0], 0, begin), cpu_at(&c->in[1], 0, begin),
                                 c->in[2].data,
                                 &(struct norm_rows){.m = c->op->m,
                                                     .heads = op_norm_heads(c->op),
                                                     .apart = c->op->n,
                                                     .lddy = c->in[0].ld,
                                                     .ldx = c->in[1].ld},
                                 end - begin, c->op->flags & OP_ACCUMULATE);
}
ROW_OP(norm_dw, op_norm_heads(c->op) * c->op->m * c->op->n)

// ---------------------------------------------------------------- update

static void grad_sqnorm_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const float *g = t->c->in[0].data;
    int64_t n = t->c->op->n, begin, end;
    pool_share((n + t->block - 1) / t->block, 1, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t left = n - i * t->block;
        t->cpu->partial[i] =
            t->cpu->kernels->sum_squares(g + i * t->block, left < t->block ? left : t->block);
    }
}

// With ranks: blocks do not depend on how a weight is divided, and their sums are added exactly.
static void sqnorm_pairs_share(void *arg, int thread, int threads) {
    const struct task *t = arg;
    const float *g = t->c->in[0].data;
    const int64_t n = t->c->op->n;
    struct pair sum = {0, 0};
    int64_t begin, end;
    pool_share(n, ADAMW_BLOCK, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i += ADAMW_BLOCK)
        pair_add(&sum, t->cpu->kernels->sum_squares(g + i,
                                                    end - i < ADAMW_BLOCK ? end - i : ADAMW_BLOCK));
    t->cpu->partial[2 * thread] = sum.high;
    t->cpu->partial[2 * thread + 1] = sum.low;
}

static int sqnorm_pairs(struct cpu *cpu, const struct op_call *c) {
    struct task t = {.cpu = cpu, .c = c};
    struct pair sum = {0, 0};
    memset(cpu->partial, 0, CPU_SQNORM_BLOCKS * sizeof *cpu->partial); // fewer threads may run
    cpu_run(cpu, sqnorm_pairs_share, &t, c->op->n);
    for (int i = 0; i < CPU_SQNORM_BLOCKS && i < 2 * pool_threads(cpu->pool); i++)
        pair_add(&sum, cpu->partial[i]);
    double *sq = c->out[0].data;
    sq[0] = sum.high, sq[1] = sum.low;
    return 0;
}

int cpu_grad_sqnorm(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    if (c->out[0].cols == 2)
        return sqnorm_pairs(cpu, c);
    int64_t n = c->op->n, block = 16384;
    while ((n + block - 1) / block > CPU_SQNORM_BLOCKS)
        block *= 2;
    struct task t = {.cpu = cpu, .c = c, .block = block};
    cpu_run(cpu, grad_sqnorm_share, &t, n);
    double *sq = c->out[0].data, sum = 0;
    for (int64_t i = 0; i < (n + block - 1) / block; i++)
        sum += cpu->partial[i];
    *sq = c->op->flags & OP_ACCUMULATE ? *sq + sum : sum;
    return 0;
}

int cpu_clip(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)cpu, (void)e;
    return plain_clip(c);
}

int cpu_sum(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)cpu, (void)e;
    return plain_sum(c);
}

// Steps on the float32 master where there is one, else on the weight. A 16-bit weight is the master
// rounded, block by block, while the master is in the first-level cache. A 16-bit weight without a
// master is widened, stepped and rounded again.
static void adamw_share(void *arg, int thread, int threads) {
    enum { BLOCK = 1024 };
    const struct task *t = arg;
    const struct op_call *c = t->c;
    const struct cpu_kernels *k = t->cpu->kernels;
    float own[BLOCK], *master = c->out[3].data;
    const float *grad = c->in[0].data;
    int64_t begin, end;
    pool_share(c->op->n, BLOCK, thread, threads, &begin, &end);
    if (!master && t->cpu->type == KERNEL_F32) {
        if (begin < end)
            k->adamw((float *)c->out[0].data + begin, (float *)c->out[1].data + begin,
                     (float *)c->out[2].data + begin, grad + begin, end - begin, t->adamw);
        return;
    }
    for (int64_t i = begin; i < end; i += BLOCK) {
        int64_t n = end - i < BLOCK ? end - i : BLOCK;
        void *weight = cpu_at(&c->out[0], 0, i);
        float *w = master ? master + i : own;
        if (!master)
            k->widen(w, weight, n);
        k->adamw(w, (float *)c->out[1].data + i, (float *)c->out[2].data + i, grad + i, n,
                 t->adamw);
        k->narrow(weight, w, n);
    }
}

// The scalars are computed in double and rounded once, as torch does: 1 - 0.999f would lose half
// its digits.
struct adamw_scalars cpu_adamw_scalars(const struct op_call *c) {
    const double *hyper = c->in[1].data, *clip = c->in[2].data;
    return (struct adamw_scalars){
        .factor = clip ? (float)clip[CLIP_FACTOR] : 1,
        .beta1 = (float)hyper[HYPER_BETA1],
        .one_minus_beta1 = (float)(1 - hyper[HYPER_BETA1]),
        .beta2 = (float)hyper[HYPER_BETA2],
        .one_minus_beta2 = (float)(1 - hyper[HYPER_BETA2]),
        .keep = c->op->flags & OP_DECAY ? (float)(1 - hyper[HYPER_LR] * hyper[HYPER_DECAY]) : 1,
        .step = (float)(hyper[HYPER_LR] / hyper[HYPER_BIAS1]),
        .inv_root_bias2 = (float)(1 / sqrt(hyper[HYPER_BIAS2])),
        .eps = (float)hyper[HYPER_EPS],
    };
}

int cpu_adamw(struct cpu *cpu, const struct op_call *c, struct err *e) {
    (void)e;
    const double *clip = c->in[2].data;
    if (clip && clip[CLIP_SKIP] != 0)
        return 0;
    struct adamw_scalars s = cpu_adamw_scalars(c);
    struct task t = {.cpu = cpu, .c = c, .adamw = &s};
    cpu_run(cpu, adamw_share, &t, c->op->n);
    return 0;
}

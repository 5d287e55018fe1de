// plain.c - ops that move bytes or handle a few doubles: for the reference backend, and for what
// the fast one has no kernels for.
#include "backend/cpu/plain.h"

#include <math.h>
#include <string.h>

static char *row_of(const struct operand *o, int64_t row) {
    return (char *)o->data + row * o->ld * (int64_t)dtype_bytes(o->dtype);
}

// m = 0 stands for one row of n elements: results, flat gradients.
static int64_t rows_of(const struct op *op) {
    return op->m > 0 ? op->m : 1;
}

int plain_zero(const struct op_call *c) {
    size_t bytes = (size_t)c->op->n * dtype_bytes(c->out[0].dtype);
    for (int64_t i = 0; i < rows_of(c->op) && bytes > 0; i++)
        memset(row_of(&c->out[0], i), 0, bytes);
    return 0;
}

static bool is_float(enum dtype t) {
    return t == DTYPE_F32 || t == DTYPE_F64 || t == DTYPE_BF16 || t == DTYPE_F16;
}

// y += x in a 16-bit type: one rounding per element.
static void add_narrow(uint16_t *y, const uint16_t *x, enum dtype type, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float pair[2] = {0};
        dtype_convert(&pair[0], DTYPE_F32, &y[i], type, 1);
        dtype_convert(&pair[1], DTYPE_F32, &x[i], type, 1);
        pair[0] += pair[1];
        dtype_convert(&y[i], type, &pair[0], DTYPE_F32, 1);
    }
}

int plain_copy(const struct op_call *c, struct err *e) {
    const struct op *op = c->op;
    enum dtype type = c->in[0].dtype;
    if (type != c->out[0].dtype)
        return err_set(e, ERR_MISMATCH, "copy: from %s to %s needs the op cast", dtype_text(type),
                       dtype_text(c->out[0].dtype));
    if (op->flags & OP_ACCUMULATE && !is_float(type))
        return err_set(e, ERR_UNSUPPORTED, "copy: ACCUMULATE adds float types, not %s",
                       dtype_text(type));
    for (int64_t i = 0; i < op->m && op->n > 0; i++) {
        const void *x = row_of(&c->in[0], i);
        void *y = row_of(&c->out[0], i);
        if (!(op->flags & OP_ACCUMULATE))
            memmove(y, x, (size_t)op->n * dtype_bytes(type));
        else if (type == DTYPE_F32)
            for (int64_t j = 0; j < op->n; j++)
                ((float *)y)[j] += ((const float *)x)[j];
        else if (type == DTYPE_F64)
            for (int64_t j = 0; j < op->n; j++)
                ((double *)y)[j] += ((const double *)x)[j];
        else
            add_narrow(y, x, type, op->n);
    }
    return 0;
}

int plain_cast(const struct op_call *c, struct err *e) {
    enum dtype from = c->in[0].dtype, to = c->out[0].dtype;
    if (!is_float(from) || !is_float(to))
        return err_set(e, ERR_UNSUPPORTED, "cast: from %s to %s; accepted are float types",
                       dtype_text(from), dtype_text(to));
    for (int64_t i = 0; i < rows_of(c->op) && c->op->n > 0; i++)
        dtype_convert(row_of(&c->out[0], i), to, row_of(&c->in[0], i), from, (size_t)c->op->n);
    return 0;
}

void pair_add(struct pair *p, double x) {
    const double sum = p->high + x, part = sum - p->high;
    if (isfinite(sum))
        p->low += (p->high - (sum - part)) + (x - part); // Knuth's two-sum: what rounding lost
    p->high = sum;
}

static double total(const double *x, int64_t n) {
    struct pair sum = {0, 0};
    for (int64_t i = 0; i < n; i++)
        pair_add(&sum, x[i]);
    return sum.high + sum.low;
}

int plain_sum(const struct op_call *c) {
    *(double *)c->out[0].data = total(c->in[0].data, c->op->n);
    return 0;
}

// As torch.nn.utils.clip_grad_norm_: the factor is clip / (norm + 1e-6), at most 1. A clip of 0 or
// less means no clipping. The gradients are multiplied by the loss scale. The norm is given without
// it, and the factor also divides by it.
int plain_clip(const struct op_call *c) {
    const double *sq = c->in[0].data, *hyper = c->in[1].data;
    double *out = c->out[0].data, sum = total(sq, c->op->n);
    double scale = hyper[HYPER_SCALE] > 0 ? hyper[HYPER_SCALE] : 1;
    double norm = sqrt(sum) / scale, clip = hyper[HYPER_CLIP];
    bool skip = !isfinite(norm);
    double factor = clip > 0 ? clip / (norm + 1e-6) : 1;
    out[CLIP_NORM] = norm;
    out[CLIP_SKIP] = skip;
    out[CLIP_FACTOR] = skip ? 0 : (factor < 1 ? factor : 1) / scale;
    return 0;
}

// rows.cu - ops where a block takes a row: norms, argmax, and rows fetched by index. (The loss is
// in loss.cu.)
//
// A token id that is out of range cannot be refused here without waiting for the device. It makes
// its row NaN instead. The loss is then not finite, CLIP skips the update, and the run reports it.
#include "backend/cuda/plain/quantized.cuh"

#include <math_constants.h>

// ---------------------------------------------------------------- norm

// The norm of one row, by one block. stats = {mean, 1 / standard deviation}; the mean of an RMS
// norm is 0 by definition. Here and below m counts rows of n columns. Each row of the operands
// holds `heads` of them.
template <typename T>
static __device__ void norm_row(T *y, float *stats, const T *row, const T *w, const T *b, float eps,
                                bool rms, int64_t n) {
    float mean = 0, sum = 0;
    if (!rms) {
        EACH_COLUMN(j, n)
            sum += value(row[j]);
        mean = block_sum(sum) / (float)n;
        sum = 0;
    }
    EACH_COLUMN(j, n) {
        float d = value(row[j]) - mean;
        sum += d * d;
    }
    float rstd = 1 / sqrtf(block_sum(sum) / (float)n + eps);
    if (threadIdx.x == 0) {
        stats[0] = mean;
        stats[1] = rstd;
    }
    EACH_COLUMN(j, n) {
        float xhat = (value(row[j]) - mean) * rstd;
        y[j] = rounded<T>(xhat * (w ? value(w[j]) : 1) + (b ? value(b[j]) : 0));
    }
}

template <typename T>
__global__ void norm_kernel(T *y, int64_t ldy, float *stats, const T *x, int64_t ldx, const T *w,
                            const T *b, float eps, bool rms, int64_t heads, int64_t m, int64_t n) {
    EACH_ROW(i, m)
        norm_row(y + head_at(i, heads, ldy, n), stats + 2 * i, x + head_at(i, heads, ldx, n), w, b,
                 eps, rms, n);
}

// A thread reads only elements of y that it has written itself, so threads need not wait.
template <typename T>
__global__ void add_norm_kernel(T *y, int64_t ldy, T *z, int64_t ldz, float *stats, const T *a,
                                int64_t lda, const T *b, int64_t ldb, const T *w, const T *bias,
                                float eps, bool rms, int64_t m, int64_t n) {
    EACH_ROW(i, m) {
        EACH_COLUMN(j, n)
            y[i * ldy + j] = rounded<T>(value(a[i * lda + j]) + value(b[i * ldb + j]));
        norm_row(z + i * ldz, stats + 2 * i, (const T *)(y + i * ldy), w, bias, eps, rms, n);
    }
}

template <typename T>
static int norm(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    const int64_t heads = op_norm_heads(op), rows = op->m * heads;
    if (op->m == 0)
        return 0;
    norm_kernel<<<rows_grid(rows), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (float *)c->out[1].data, (const T *)c->in[0].data,
        c->in[0].ld, (const T *)c->in[1].data, (const T *)c->in[2].data, (float)op->scale,
        (op->flags & OP_RMS) != 0, heads, rows, op->n);
    return cuda_launched(s, c, e);
}

template <typename T>
static int add_norm(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0)
        return 0;
    add_norm_kernel<<<rows_grid(op->m), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (T *)c->out[1].data, c->out[1].ld,
        (float *)c->out[2].data, (const T *)c->in[0].data, c->in[0].ld, (const T *)c->in[1].data,
        c->in[1].ld, (const T *)c->in[2].data, (const T *)c->in[3].data, (float)op->scale,
        (op->flags & OP_RMS) != 0, op->m, op->n);
    return cuda_launched(s, c, e);
}

// dy w, always rounded in the same way. If the compiler fused the product into one of its two uses
// only, dy w - mean(dy w) would not cancel for a row of one column.
template <typename T> static __device__ float scaled(T dy, const T *w, int64_t j) {
    return w ? __fmul_rn(value(dy), value(w[j])) : value(dy);
}

// With g = dy w and xhat the normalised row: dx = rstd (g - mean(g) - xhat mean(g xhat)). RMS has
// no mean(g).
template <typename T>
__global__ void norm_dx_kernel(T *dx, int64_t ldd, const T *dy, int64_t ldy, const T *x,
                               int64_t ldx, const T *w, const float *stats, bool rms,
                               bool accumulate, int64_t heads, int64_t m, int64_t n) {
    EACH_ROW(i, m) {
        float mean = stats[2 * i], rstd = stats[2 * i + 1], sum_g = 0, sum_gx = 0;
        const T *dy_row = dy + head_at(i, heads, ldy, n), *x_row = x + head_at(i, heads, ldx, n);
        T *dx_row = dx + head_at(i, heads, ldd, n);
        EACH_COLUMN(j, n) {
            float g = scaled(dy_row[j], w, j);
            sum_g += g;
            sum_gx += g * (value(x_row[j]) - mean) * rstd;
        }
        sum_g = rms ? 0 : block_sum(sum_g) / (float)n;
        sum_gx = block_sum(sum_gx) / (float)n;
        EACH_COLUMN(j, n) {
            float g = scaled(dy_row[j], w, j);
            float xhat = (value(x_row[j]) - mean) * rstd;
            put(&dx_row[j], rstd * (g - sum_g - xhat * sum_gx), accumulate);
        }
    }
}

template <typename T>
static int norm_dx(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    const int64_t heads = op_norm_heads(op), rows = op->m * heads;
    if (op->m == 0)
        return 0;
    norm_dx_kernel<<<rows_grid(rows), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const T *)c->in[0].data, c->in[0].ld,
        (const T *)c->in[1].data, c->in[1].ld, (const T *)c->in[2].data,
        (const float *)c->in[3].data, (op->flags & OP_RMS) != 0, (op->flags & OP_ACCUMULATE) != 0,
        heads, rows, op->n);
    return cuda_launched(s, c, e);
}

// ---------------------------------------------------------------- argmax

// The first of equal values. NaN is ignored; 0 when all values are NaN.
template <typename T>
__global__ void argmax_kernel(int32_t *ids, const T *x, int64_t ld, int64_t m, int64_t n) {
    __shared__ float best_value[BLOCK];
    __shared__ int32_t best_index[BLOCK];
    EACH_ROW(i, m) {
        float best = 0;
        int32_t at = -1;
        EACH_COLUMN(j, n) {
            float v = value(x[i * ld + j]);
            if (!isnan(v) && (at < 0 || v > best))
                best = v, at = (int32_t)j;
        }
        best_value[threadIdx.x] = best;
        best_index[threadIdx.x] = at;
        __syncthreads();
        for (int half = BLOCK / 2; half > 0; half /= 2) {
            if ((int)threadIdx.x < half) {
                int other = (int)threadIdx.x + half;
                int32_t mine = best_index[threadIdx.x], theirs = best_index[other];
                float a = best_value[threadIdx.x], b = best_value[other];
                if (theirs >= 0 && (mine < 0 || b > a || (b == a && theirs < mine))) {
                    best_value[threadIdx.x] = b;
                    best_index[threadIdx.x] = theirs;
                }
            }
            __syncthreads();
        }
        if (threadIdx.x == 0)
            ids[i] = best_index[0] < 0 ? 0 : best_index[0];
        __syncthreads();
    }
}

template <typename T>
static int argmax(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    if (c->op->m == 0)
        return 0;
    argmax_kernel<<<rows_grid(c->op->m), BLOCK, 0, stream>>>(
        (int32_t *)c->out[0].data, (const T *)c->in[0].data, c->in[0].ld, c->op->m, c->op->n);
    return cuda_launched(s, c, e);
}

// ---------------------------------------------------------------- rows by index

template <typename T> struct plain_table {
    const T *at;
    int64_t ld;

    __device__ float get(int64_t row, int64_t j) const { return value(at[row * ld + j]); }
};

struct quantized_table {
    struct quantized w;

    __device__ float get(int64_t row, int64_t j) const { return quantized_value(w, row, j); }
};

template <typename T, typename TABLE>
__global__ void embed_kernel(T *x, int64_t ldx, const int32_t *ids, const TABLE table,
                             const int32_t *positions, const T *places, int64_t ldp, int64_t rows,
                             int64_t first, bool part, int64_t m, int64_t n) {
    EACH_ROW(i, m) {
        int64_t id = ids[i] - first, position = positions && places ? positions[i] : 0;
        const bool here = id >= 0 && id < rows; // else another rank has the row, if it is a part
        bool bad = (!here && !part) || position < 0;
        EACH_COLUMN(j, n) {
            float v = bad ? CUDART_NAN_F : here ? table.get(id, j) : 0;
            if (!bad && positions && places)
                v += value(places[position * ldp + j]);
            x[i * ldx + j] = rounded<T>(v);
        }
    }
}

template <typename T, typename TABLE>
static int embed_from(struct cuda *s, const struct op_call *c, const TABLE &table,
                      cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    embed_kernel<T, TABLE><<<rows_grid(op->m), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const int32_t *)c->in[0].data, table,
        (const int32_t *)c->in[2].data, (const T *)c->in[3].data, c->in[3].ld, op->k, op->first,
        (op->flags & OP_PART) != 0, op->m, op->n);
    return cuda_launched(s, c, e);
}

template <typename T>
static int embed(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0 || op->n == 0)
        return 0;
    if (c->in[1].storage.kind == STORAGE_PLAIN)
        return embed_from<T>(s, c, plain_table<T>{(const T *)c->in[1].data, c->in[1].ld}, stream,
                             e);
    quantized_table table;
    TRY(quantized_of(s, c, &table.w, e));
    return embed_from<T>(s, c, table, stream, e);
}

template <typename T>
__global__ void gather_kernel(T *y, int64_t ldy, const T *x, int64_t ldx, const int32_t *rows,
                              int64_t limit, int64_t m, int64_t n) {
    EACH_ROW(i, m) {
        int64_t row = rows[i];
        bool bad = row < 0 || (limit > 0 && row >= limit);
        EACH_COLUMN(j, n)
            y[i * ldy + j] = bad ? rounded<T>(CUDART_NAN_F) : x[row * ldx + j];
    }
}

template <typename T>
static int gather_rows(struct cuda *s, const struct op_call *c, cudaStream_t stream,
                       struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0 || op->n == 0)
        return 0;
    gather_kernel<<<rows_grid(op->m), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const T *)c->in[0].data, c->in[0].ld,
        (const int32_t *)c->in[1].data, op->k, op->m, op->n);
    return cuda_launched(s, c, e);
}

template <typename T> void cuda_add_rows(struct cuda_table *t) {
    t->fn[OP_NORM] = norm<T>;
    t->fn[OP_ADD_NORM] = add_norm<T>;
    t->fn[OP_NORM_DX] = norm_dx<T>;
    t->fn[OP_ARGMAX] = argmax<T>;
    t->fn[OP_EMBED] = embed<T>;
    t->fn[OP_GATHER_ROWS] = gather_rows<T>;
}
template void cuda_add_rows<float>(struct cuda_table *);
template void cuda_add_rows<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_rows<__half>(struct cuda_table *);

// rows.cu - ops where a block takes a row: norms, the loss, argmax, and rows fetched by index.
//
// Ids come from the host and cannot be refused here without waiting for the device. A token or
// target that is out of range makes its row NaN instead: the loss is then not finite, CLIP skips
// the update, and the run says so.
#include "backend/cuda/cuda.cuh"

#include <math_constants.h>

// Blocks per grid: rows beyond it are taken in turns.
static unsigned rows_grid(int64_t m) {
    return (unsigned)(m < (1 << 30) ? m : 1 << 30);
}
#define EACH_ROW(i, m) for (int64_t i = blockIdx.x; i < (m); i += gridDim.x)
#define EACH_COLUMN(j, n) for (int64_t j = threadIdx.x; j < (n); j += blockDim.x)

// ---------------------------------------------------------------- norm

// stats[row] = {mean, 1 / standard deviation}; the mean of an RMS norm is 0 by definition. Here and
// below m counts rows of n columns, of which each row of the operands holds `heads`.
template <typename T>
__global__ void norm_kernel(T *y, int64_t ldy, float *stats, const T *x, int64_t ldx, const T *w,
                            const T *b, float eps, bool rms, int64_t heads, int64_t m, int64_t n) {
    EACH_ROW(i, m) {
        const T *row = x + head_at(i, heads, ldx, n);
        T *out = y + head_at(i, heads, ldy, n);
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
            stats[2 * i] = mean;
            stats[2 * i + 1] = rstd;
        }
        EACH_COLUMN(j, n) {
            float xhat = (value(row[j]) - mean) * rstd;
            out[j] = rounded<T>(xhat * (w ? value(w[j]) : 1) + (b ? value(b[j]) : 0));
        }
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

// dy w, rounded once and always alike: contracted into one of its two uses only, dy w - mean(dy w)
// would not cancel for a row of one column.
template <typename T> static __device__ float scaled(T dy, const T *w, int64_t j) {
    return w ? __fmul_rn(value(dy), value(w[j])) : value(dy);
}

// With g = dy w and xhat the normalised row: dx = rstd (g - mean(g) - xhat mean(g xhat)); RMS has
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
        (const float *)c->in[3].data, (op->flags & OP_RMS) != 0,
        (op->flags & OP_ACCUMULATE) != 0, heads, rows, op->n);
    return cuda_launched(s, c, e);
}

// ---------------------------------------------------------------- loss

// The larger of two, or NaN when either is: a NaN logit must reach the loss.
static __device__ float larger(float a, float b) {
    return a > b || isnan(a) ? a : b;
}

static __device__ float block_max(float x) {
    __shared__ float part[WARP];
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        x = larger(x, __shfl_xor_sync(0xffffffffu, x, offset));
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = x;
    __syncthreads();
    float max = part[0];
    for (int i = 1; i < (int)blockDim.x / WARP; i++)
        max = larger(max, part[i]);
    return max;
}

template <typename T>
__global__ void __launch_bounds__(1024)
    loss_kernel(T *logits, int64_t ld, float *row_loss, const int32_t *targets,
                const double *hyper, bool with_grad, int64_t m, int64_t n) {
    EACH_ROW(i, m) {
        T *x = logits + i * ld;
        int64_t target = targets[i];
        if (target < 0) { // not trained
            if (threadIdx.x == 0)
                row_loss[i] = 0;
            if (with_grad)
                EACH_COLUMN(j, n)
                    x[j] = rounded<T>(0);
            continue;
        }
        if (target >= n) {
            if (threadIdx.x == 0)
                row_loss[i] = CUDART_NAN_F;
            if (with_grad)
                EACH_COLUMN(j, n)
                    x[j] = rounded<T>(CUDART_NAN_F);
            continue;
        }
        float max = -CUDART_INF_F, sum = 0;
        EACH_COLUMN(j, n)
            max = larger(value(x[j]), max);
        max = block_max(max);
        EACH_COLUMN(j, n)
            sum += expf(value(x[j]) - max);
        sum = block_sum(sum);
        if (threadIdx.x == 0)
            row_loss[i] = logf(sum) + (max - value(x[target]));
        if (!with_grad)
            continue;
        __syncthreads(); // thread 0 has read the target's logit
        float factor = (float)hyper[HYPER_LOSS_FACTOR];
        EACH_COLUMN(j, n) {
            float p = expf(value(x[j]) - max) / sum;
            x[j] = rounded<T>((p - (j == target ? 1.0f : 0.0f)) * factor);
        }
    }
}

template <typename T>
static int loss(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    bool with_grad = op->flags & OP_WITH_GRAD;
    if (with_grad && !c->in[2].data)
        return s->host.err_set(e, ERR_INTERNAL, "loss: WITH_GRAD needs hyper");
    if (op->m == 0)
        return 0;
    loss_kernel<<<rows_grid(op->m), 1024, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (float *)c->out[1].data, (const int32_t *)c->in[1].data,
        (const double *)c->in[2].data, with_grad, op->m, op->n);
    return cuda_launched(s, c, e);
}

// The first of equals; NaN never wins; 0 when all are NaN.
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
    argmax_kernel<<<rows_grid(c->op->m), BLOCK, 0, stream>>>((int32_t *)c->out[0].data,
                                                             (const T *)c->in[0].data, c->in[0].ld,
                                                             c->op->m, c->op->n);
    return cuda_launched(s, c, e);
}

// ---------------------------------------------------------------- rows by index

template <typename T>
__global__ void embed_kernel(T *x, int64_t ldx, const int32_t *ids, const T *table, int64_t ldt,
                             const int32_t *positions, const T *places, int64_t ldp, int64_t rows,
                             int64_t m, int64_t n) {
    EACH_ROW(i, m) {
        int64_t id = ids[i], position = positions && places ? positions[i] : 0;
        bool bad = id < 0 || id >= rows || position < 0;
        EACH_COLUMN(j, n) {
            float v = bad ? CUDART_NAN_F : value(table[id * ldt + j]);
            if (!bad && positions && places)
                v += value(places[position * ldp + j]);
            x[i * ldx + j] = rounded<T>(v);
        }
    }
}

template <typename T>
static int embed(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0 || op->n == 0)
        return 0;
    embed_kernel<<<rows_grid(op->m), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const int32_t *)c->in[0].data,
        (const T *)c->in[1].data, c->in[1].ld, (const int32_t *)c->in[2].data,
        (const T *)c->in[3].data, c->in[3].ld, op->k, op->m, op->n);
    return cuda_launched(s, c, e);
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
    t->fn[OP_NORM_DX] = norm_dx<T>;
    t->fn[OP_LOSS] = loss<T>;
    t->fn[OP_ARGMAX] = argmax<T>;
    t->fn[OP_EMBED] = embed<T>;
    t->fn[OP_GATHER_ROWS] = gather_rows<T>;
}
template void cuda_add_rows<float>(struct cuda_table *);
template void cuda_add_rows<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_rows<__half>(struct cuda_table *);

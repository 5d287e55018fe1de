// loss.cu - cross-entropy and its gradient, with a block per row: in one pass, and step by step.
//
// A target that is out of range makes its row NaN. The loss is then not finite, CLIP skips the
// update, and the run reports it.
#include "backend/cuda/cuda.cuh"

#include <math_constants.h>

// ---------------------------------------------------------------- in one pass

// The larger of two values, or NaN when one is NaN: a logit that is NaN must make the loss NaN.
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
    loss_kernel(T *logits, int64_t ld, float *row_loss, const int32_t *targets, const double *hyper,
                bool with_grad, int64_t m, int64_t n) {
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

// ---------------------------------------------------------------- over columns that ranks share

template <typename T>
__global__ void __launch_bounds__(1024)
    loss_stats_kernel(float *stats, int64_t lds, const T *logits, int64_t ld,
                      const int32_t *targets, int64_t first, int64_t m, int64_t n) {
    EACH_ROW(i, m) {
        const T *x = logits + i * ld;
        const int64_t target = targets[i] - first;
        float max = -CUDART_INF_F, sum = 0;
        EACH_COLUMN(j, n)
            max = larger(value(x[j]), max);
        max = block_max(max);
        EACH_COLUMN(j, n)
            sum += expf(value(x[j]) - max);
        sum = block_sum(sum);
        if (threadIdx.x == 0) {
            stats[i * lds] = max, stats[i * lds + 1] = sum;
            stats[i * lds + 2] = target >= 0 && target < n ? value(x[target]) : 0;
        }
    }
}

template <typename T>
static int loss_stats(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0)
        return 0;
    loss_stats_kernel<<<rows_grid(op->m), 1024, 0, stream>>>(
        (float *)c->out[0].data, c->out[0].ld, (const T *)c->in[0].data, c->in[0].ld,
        (const int32_t *)c->in[1].data, op->first, op->m, op->n);
    return cuda_launched(s, c, e);
}

template <typename T>
__global__ void __launch_bounds__(1024)
    loss_part_kernel(T *logits, int64_t ld, float *row_loss, const float *stats, int64_t lds,
                     const int32_t *targets, const double *hyper, int64_t first, int64_t parts,
                     bool with_grad, int64_t m, int64_t n) {
    EACH_ROW(i, m) {
        T *x = logits + i * ld;
        float max = -CUDART_INF_F, sum = 0, logit = 0;
        for (int64_t r = 0; r < parts; r++)
            max = larger(stats[(r * m + i) * lds], max);
        for (int64_t r = 0; r < parts; r++) {
            const float *part = stats + (r * m + i) * lds;
            sum += part[1] * expf(part[0] - max);
            logit += part[2];
        }
        const bool trained = targets[i] >= 0;
        if (threadIdx.x == 0)
            row_loss[i] = trained ? logf(sum) + max - logit : 0;
        if (!with_grad)
            continue;
        const float factor = trained ? (float)hyper[HYPER_LOSS_FACTOR] : 0;
        EACH_COLUMN(j, n) {
            float p = trained ? expf(value(x[j]) - max) / sum : 0;
            x[j] = rounded<T>((p - (trained && j == targets[i] - first ? 1.0f : 0.0f)) * factor);
        }
    }
}

template <typename T>
static int loss_part(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    bool with_grad = op->flags & OP_WITH_GRAD;
    if (with_grad && !c->in[3].data)
        return s->host.err_set(e, ERR_INTERNAL, "loss_part: WITH_GRAD needs hyper");
    if (op->m == 0)
        return 0;
    loss_part_kernel<<<rows_grid(op->m), 1024, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (float *)c->out[1].data, (const float *)c->in[1].data,
        c->in[1].ld, (const int32_t *)c->in[2].data, (const double *)c->in[3].data, op->first,
        op->batch, with_grad, op->m, op->n);
    return cuda_launched(s, c, e);
}

// ---------------------------------------------------------------- from a teacher's

// The logarithm of the sum of exp(x) over a row, in every thread of its block.
template <typename T> static __device__ float block_log_sum(const T *x, int64_t n) {
    float max = -CUDART_INF_F, sum = 0;
    EACH_COLUMN(j, n)
        max = larger(value(x[j]), max);
    max = block_max(max);
    EACH_COLUMN(j, n)
        sum += expf(value(x[j]) - max);
    return max + logf(block_sum(sum));
}

template <typename T>
__global__ void __launch_bounds__(1024)
    loss_kl_kernel(T *logits, int64_t ld, const T *teachers, int64_t ldt, float *row_loss,
                   const int32_t *targets, const double *hyper, bool with_grad, int64_t m,
                   int64_t n) {
    const float factor = with_grad ? (float)hyper[HYPER_LOSS_FACTOR] : 0;
    EACH_ROW(i, m) {
        T *x = logits + i * ld;
        const T *teacher = teachers + i * ldt;
        const bool trained = targets[i] >= 0;
        const float own = block_log_sum(x, n), other = block_log_sum(teacher, n);
        float sum = 0;
        EACH_COLUMN(j, n) {
            const float q = value(x[j]) - own, p = value(teacher[j]) - other, weight = expf(p);
            sum += weight * (p - q);
            if (with_grad)
                x[j] = rounded<T>(trained ? (expf(q) - weight) * factor : 0);
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0)
            row_loss[i] = trained ? sum : 0;
    }
}

template <typename T>
static int loss_kl(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    const bool with_grad = op->flags & OP_WITH_GRAD;
    if (with_grad && !c->in[3].data)
        return s->host.err_set(e, ERR_INTERNAL, "loss_kl: WITH_GRAD needs hyper");
    if (op->m == 0)
        return 0;
    loss_kl_kernel<<<rows_grid(op->m), 1024, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const T *)c->in[1].data, c->in[1].ld,
        (float *)c->out[1].data, (const int32_t *)c->in[2].data, (const double *)c->in[3].data,
        with_grad, op->m, op->n);
    return cuda_launched(s, c, e);
}

// ---------------------------------------------------------------- step by step

template <typename T>
__global__ void __launch_bounds__(1024)
    log_softmax_kernel(float *logp, int64_t ldp, const T *logits, int64_t ldx, int64_t m,
                       int64_t n) {
    EACH_ROW(i, m) {
        const T *x = logits + i * ldx;
        float max = -CUDART_INF_F, sum = 0;
        EACH_COLUMN(j, n)
            max = larger(value(x[j]), max);
        max = block_max(max);
        EACH_COLUMN(j, n)
            sum += expf(value(x[j]) - max);
        float lse = logf(block_sum(sum));
        EACH_COLUMN(j, n)
            logp[i * ldp + j] = (value(x[j]) - max) - lse;
    }
}

template <typename T>
static int log_softmax(struct cuda *s, const struct op_call *c, cudaStream_t stream,
                       struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0)
        return 0;
    log_softmax_kernel<<<rows_grid(op->m), 1024, 0, stream>>>(
        (float *)c->out[0].data, c->out[0].ld, (const T *)c->in[0].data, c->in[0].ld, op->m, op->n);
    return cuda_launched(s, c, e);
}

static __global__ void nll_kernel(float *row_loss, const float *logp, int64_t ld,
                                  const int32_t *targets, int64_t m, int64_t n) {
    EACH(i, m) {
        int64_t target = targets[i];
        row_loss[i] = target < 0 ? 0 : target >= n ? CUDART_NAN_F : -logp[i * ld + target];
    }
}

static int nll(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0)
        return 0;
    nll_kernel<<<rows_grid(ceil_div(op->m, BLOCK)), BLOCK, 0, stream>>>(
        (float *)c->out[0].data, (const float *)c->in[0].data, c->in[0].ld,
        (const int32_t *)c->in[1].data, op->m, op->n);
    return cuda_launched(s, c, e);
}

static __global__ void nll_bwd_kernel(float *dlogp, int64_t ld, const int32_t *targets,
                                      const double *hyper, int64_t m, int64_t n) {
    const float factor = (float)hyper[HYPER_LOSS_FACTOR];
    EACH_ROW(i, m) {
        int64_t target = targets[i];
        float rest = target >= n ? CUDART_NAN_F : 0;
        EACH_COLUMN(j, n)
            dlogp[i * ld + j] = j == target ? -factor : rest;
    }
}

static int nll_bwd(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0)
        return 0;
    nll_bwd_kernel<<<rows_grid(op->m), BLOCK, 0, stream>>>(
        (float *)c->out[0].data, c->out[0].ld, (const int32_t *)c->in[0].data,
        (const double *)c->in[1].data, op->m, op->n);
    return cuda_launched(s, c, e);
}

template <typename T>
__global__ void __launch_bounds__(1024)
    log_softmax_bwd_kernel(T *dx, int64_t ldx, const float *dlogp, int64_t ldd, const float *logp,
                           int64_t ldp, int64_t m, int64_t n) {
    EACH_ROW(i, m) {
        float sum = 0;
        EACH_COLUMN(j, n)
            sum += dlogp[i * ldd + j];
        sum = block_sum(sum);
        EACH_COLUMN(j, n)
            dx[i * ldx + j] = rounded<T>(dlogp[i * ldd + j] - expf(logp[i * ldp + j]) * sum);
    }
}

template <typename T>
static int log_softmax_bwd(struct cuda *s, const struct op_call *c, cudaStream_t stream,
                           struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0)
        return 0;
    log_softmax_bwd_kernel<<<rows_grid(op->m), 1024, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const float *)c->in[0].data, c->in[0].ld,
        (const float *)c->in[1].data, c->in[1].ld, op->m, op->n);
    return cuda_launched(s, c, e);
}

template <typename T> void cuda_add_loss(struct cuda_table *t) {
    t->fn[OP_LOSS] = loss<T>;
    t->fn[OP_LOSS_STATS] = loss_stats<T>;
    t->fn[OP_LOSS_PART] = loss_part<T>;
    t->fn[OP_LOSS_KL] = loss_kl<T>;
    t->fn[OP_LOG_SOFTMAX] = log_softmax<T>;
    t->fn[OP_LOG_SOFTMAX_BWD] = log_softmax_bwd<T>;
    t->fn[OP_NLL] = nll;
    t->fn[OP_NLL_BWD] = nll_bwd;
}
template void cuda_add_loss<float>(struct cuda_table *);
template void cuda_add_loss<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_loss<__half>(struct cuda_table *);

// optimizer.cu - AdamW on one weight, and the few sums of an update. Calls for many weights become
// one (joined.cu).
#include "backend/cuda/fast/adamw.cuh"

// ---------------------------------------------------------------- AdamW

template <typename T, enum op_kind KIND>
__global__ void __launch_bounds__(BLOCK)
    adamw_call_kernel(const struct adamw_call c, const double *hyper, const double *clip) {
    run_chunk<T, KIND>(c, blockIdx.x, hyper, clip);
}

template <typename T, enum op_kind KIND>
static int adamw(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    adamw_call_kernel<T, KIND><<<(unsigned)ceil_div(c->op->n, CHUNK), BLOCK, 0, stream>>>(
        adamw_call_of(c), (const double *)c->in[1].data, (const double *)c->in[2].data);
    return cuda_launched(s, c, e);
}

template <typename T, enum op_kind KIND>
static int make_adamw(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                      struct err *e) {
    (void)s, (void)e;
    if (c->op->n > 0 && ceil_div(c->op->n, CHUNK) < INT32_MAX)
        made->run = adamw<T, KIND>;
    return 0;
}

// ---------------------------------------------------------------- sums in order

enum { TILE = 4 * BLOCK };

// The sum of a few hundred doubles, in their order. All threads read, thread 0 adds and gets the
// sum.
static __device__ double sum_in_order(const double *x, int64_t n) {
    __shared__ double tile[TILE];
    double sum = 0;
    for (int64_t base = 0; base < n; base += TILE) {
        const int here = n - base < TILE ? (int)(n - base) : (int)TILE;
        for (int i = threadIdx.x; i < here; i += BLOCK)
            tile[i] = x[base + i];
        __syncthreads();
        if (threadIdx.x == 0)
#pragma unroll 8
            for (int i = 0; i < here; i++)
                sum += tile[i];
        __syncthreads();
    }
    return sum;
}

static __global__ void __launch_bounds__(BLOCK) sum_kernel(double *y, const double *x, int64_t n) {
    const double sum = sum_in_order(x, n);
    if (threadIdx.x == 0)
        *y = sum;
}

static int sum(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    sum_kernel<<<1, BLOCK, 0, stream>>>((double *)c->out[0].data, (const double *)c->in[0].data,
                                        c->op->n);
    return cuda_launched(s, c, e);
}

static __global__ void __launch_bounds__(BLOCK)
    clip_kernel(double *out, const double *sq, const double *hyper, int64_t n) {
    const double squares = sum_in_order(sq, n);
    if (threadIdx.x == 0)
        clip_of(out, squares, hyper);
}

static int clip(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    clip_kernel<<<1, BLOCK, 0, stream>>>((double *)c->out[0].data, (const double *)c->in[0].data,
                                         (const double *)c->in[1].data, c->op->n);
    return cuda_launched(s, c, e);
}

template <cuda_fn *RUN>
static int make_always(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                       struct err *e) {
    (void)s, (void)c, (void)e;
    made->run = RUN;
    return 0;
}

template <typename T> void cuda_add_fast_optimizer(struct cuda_table *t) {
    t->fast[OP_ADAMW] = make_adamw<T, OP_ADAMW>;
    t->fast[OP_ADAMW_BF16] = make_adamw<T, OP_ADAMW_BF16>;
    t->fast[OP_ADAMW_INT8] = make_adamw<T, OP_ADAMW_INT8>;
    t->fast[OP_SUM] = make_always<sum>;
    t->fast[OP_CLIP] = make_always<clip>;
}
template void cuda_add_fast_optimizer<float>(struct cuda_table *);
template void cuda_add_fast_optimizer<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_optimizer<__half>(struct cuda_table *);

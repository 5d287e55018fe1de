// optimizer.cu - AdamW with moments of 16 and 8 bits, and AdamW with float moments one pass at a
// time. (AdamW with float moments in one pass is in sums.cu.) backend/moments.h says what the bytes
// of narrow moments mean and draws the random bits that round them, as on the CPU.
#include "backend/cuda/update.cuh"
#include "backend/moments.h"

// The weight is updated in full precision: in its master, if there is one.
template <typename T>
static __device__ void update(const struct adamw_step &s, float g, float *m, float *v, T *w,
                              float *master, int64_t i) {
    float wi = master ? master[i] : value(w[i]);
    adamw_element(s, g, m, v, &wi);
    if (master)
        master[i] = wi;
    w[i] = rounded<T>(wi);
}

// ---------------------------------------------------------------- bf16

template <typename T>
__global__ void adamw_bf16_kernel(T *w, uint16_t *m, uint16_t *v, float *master, const float *grad,
                                  const double *hyper, const double *clip, bool decay,
                                  uint32_t salt, int64_t first, int64_t n) {
    if (clip && clip[CLIP_SKIP] != 0)
        return;
    const struct adamw_step s = adamw_step_of(hyper, clip, decay);
    const struct moments_key key = moments_key(hyper[HYPER_DRAW], salt);
    EACH(i, n) {
        float mi = moments_from_bf16(m[i]), vi = moments_from_bf16(v[i]);
        update(s, grad[i], &mi, &vi, w, master, i);
        uint32_t bits = moments_bits(key, (uint32_t)(first + i));
        m[i] = moments_to_bf16(mi, bits & 0xffff);
        v[i] = moments_to_bf16(vi, bits >> 16);
    }
}

// ---------------------------------------------------------------- int8

// The largest value over the threads of the block; every thread gets it. NaN is ignored.
static __device__ float block_most(float x) {
    __shared__ float part[WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    __syncthreads(); // the call before may still be reading `part`
    if (lane == 0)
        part[warp] = x;
    __syncthreads();
    float most = 0;
    for (int i = 0; i < (int)(blockDim.x / WARP); i++)
        most = fmaxf(most, part[i]);
    return most;
}

// A block of threads per block of moments, a thread per element.
template <typename T>
__global__ void __launch_bounds__(ADAMW_BLOCK)
    adamw_int8_kernel(T *w, int8_t *m, uint8_t *v, float *master, float *scales, const float *grad,
                      const double *hyper, const double *clip, bool decay, uint32_t salt,
                      int64_t first, int64_t n) {
    if (clip && clip[CLIP_SKIP] != 0)
        return;
    const struct adamw_step s = adamw_step_of(hyper, clip, decay);
    const struct moments_key key = moments_key(hyper[HYPER_DRAW], salt);
    for (int64_t block = blockIdx.x; block * ADAMW_BLOCK < n; block += gridDim.x) {
        int64_t i = block * ADAMW_BLOCK + threadIdx.x;
        float mi = 0, vi = 0;
        if (i < n) {
            mi = moments_m(m[i], scales[2 * block]);
            vi = moments_v(v[i], scales[2 * block + 1]);
            update(s, grad[i], &mi, &vi, w, master, i);
        }
        // block_most waits for all threads, so all of them have read the old scales.
        float m_scale = moments_scale(block_most(fabsf(mi)));
        float v_scale = moments_scale(block_most(vi));
        if (threadIdx.x == 0)
            scales[2 * block] = m_scale, scales[2 * block + 1] = v_scale;
        if (i < n) {
            uint32_t bits = moments_bits(key, (uint32_t)(first + i));
            m[i] = moments_code_m(mi, moments_inverse(m_scale), bits & 0xffff);
            v[i] = moments_code_v(vi, moments_inverse(v_scale), bits >> 16);
        }
    }
}

// ---------------------------------------------------------------- one pass at a time

// y may be g. When the update is skipped, gradients are not finite, and 0 times them would be NaN.
static __global__ void grad_scale_kernel(float *y, const float *g, const double *clip, int64_t n) {
    const bool skip = clip[CLIP_SKIP] != 0;
    const float factor = (float)clip[CLIP_FACTOR];
    EACH(i, n)
        y[i] = skip ? 0 : g[i] * factor;
}

static __global__ void adam_decay_kernel(float *w, const double *hyper, const double *clip,
                                         bool decay, int64_t n) {
    if (clip && clip[CLIP_SKIP] != 0)
        return;
    const struct adamw_step s = adamw_step_of(hyper, clip, decay);
    EACH(i, n)
        w[i] *= s.keep;
}

static __global__ void adam_m_kernel(float *m, const float *g, const double *hyper,
                                     const double *clip, int64_t n) {
    if (clip && clip[CLIP_SKIP] != 0)
        return;
    const struct adamw_step s = adamw_step_of(hyper, clip, false);
    EACH(i, n)
        m[i] = s.beta1 * m[i] + s.rest1 * g[i];
}

static __global__ void adam_v_kernel(float *v, const float *g, const double *hyper,
                                     const double *clip, int64_t n) {
    if (clip && clip[CLIP_SKIP] != 0)
        return;
    const struct adamw_step s = adamw_step_of(hyper, clip, false);
    EACH(i, n)
        v[i] = s.beta2 * v[i] + s.rest2 * g[i] * g[i];
}

template <typename T>
__global__ void adam_step_kernel(T *w, float *master, const float *m, const float *v,
                                 const double *hyper, const double *clip, int64_t n) {
    if (clip && clip[CLIP_SKIP] != 0)
        return;
    const struct adamw_step s = adamw_step_of(hyper, clip, false);
    EACH(i, n) {
        float wi = master ? master[i] : value(w[i]);
        wi -= s.size * m[i] / (sqrtf(v[i]) * s.root + s.eps);
        if (master)
            master[i] = wi;
        w[i] = rounded<T>(wi);
    }
}

// ---------------------------------------------------------------- launches

static unsigned grid_for(const struct cuda *s, int64_t n, int64_t per_block) {
    int64_t blocks = ceil_div(n, per_block), most = 16 * (int64_t)s->processors;
    return (unsigned)(blocks < most ? blocks : most);
}

template <typename T>
static int adamw_bf16(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->n == 0)
        return 0;
    adamw_bf16_kernel<<<grid_for(s, op->n, BLOCK), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, (uint16_t *)c->out[1].data, (uint16_t *)c->out[2].data,
        (float *)c->out[3].data, (const float *)c->in[0].data, (const double *)c->in[1].data,
        (const double *)c->in[2].data, (op->flags & OP_DECAY) != 0, op->salt, op->first, op->n);
    return cuda_launched(s, c, e);
}

template <typename T>
static int adamw_int8(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->n == 0)
        return 0;
    adamw_int8_kernel<<<grid_for(s, op->n, ADAMW_BLOCK), ADAMW_BLOCK, 0, stream>>>(
        (T *)c->out[0].data, (int8_t *)c->out[1].data, (uint8_t *)c->out[2].data,
        (float *)c->out[3].data, (float *)c->out[4].data, (const float *)c->in[0].data,
        (const double *)c->in[1].data, (const double *)c->in[2].data, (op->flags & OP_DECAY) != 0,
        op->salt, op->first, op->n);
    return cuda_launched(s, c, e);
}

static int grad_scale(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    if (c->op->n == 0)
        return 0;
    grad_scale_kernel<<<grid_for(s, c->op->n, BLOCK), BLOCK, 0, stream>>>(
        (float *)c->out[0].data, (const float *)c->in[0].data, (const double *)c->in[1].data,
        c->op->n);
    return cuda_launched(s, c, e);
}

// Decay and the two moments.
static int adam_pass(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    float *y = (float *)c->out[0].data;
    const float *g = (const float *)c->in[0].data;
    const double *hyper = (const double *)c->in[1].data, *clip = (const double *)c->in[2].data;
    unsigned grid = grid_for(s, op->n, BLOCK);
    if (op->n == 0)
        return 0;
    if (op->kind == OP_ADAM_DECAY)
        adam_decay_kernel<<<grid, BLOCK, 0, stream>>>(y, hyper, clip, (op->flags & OP_DECAY) != 0,
                                                      op->n);
    else if (op->kind == OP_ADAM_M)
        adam_m_kernel<<<grid, BLOCK, 0, stream>>>(y, g, hyper, clip, op->n);
    else
        adam_v_kernel<<<grid, BLOCK, 0, stream>>>(y, g, hyper, clip, op->n);
    return cuda_launched(s, c, e);
}

template <typename T>
static int adam_step(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    if (c->op->n == 0)
        return 0;
    adam_step_kernel<<<grid_for(s, c->op->n, BLOCK), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, (float *)c->out[1].data, (const float *)c->in[0].data,
        (const float *)c->in[3].data, (const double *)c->in[1].data, (const double *)c->in[2].data,
        c->op->n);
    return cuda_launched(s, c, e);
}

template <typename T> void cuda_add_optimizer(struct cuda_table *t) {
    t->fn[OP_GRAD_SCALE] = grad_scale;
    t->fn[OP_ADAM_DECAY] = t->fn[OP_ADAM_M] = t->fn[OP_ADAM_V] = adam_pass;
    t->fn[OP_ADAM_STEP] = adam_step<T>;
    t->fn[OP_ADAMW_BF16] = adamw_bf16<T>;
    t->fn[OP_ADAMW_INT8] = adamw_int8<T>;
}
template void cuda_add_optimizer<float>(struct cuda_table *);
template void cuda_add_optimizer<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_optimizer<__half>(struct cuda_table *);

// cached.cu - keys and values into a cache, and attention of few rows over it.
//
// A block has a row, a head of keys, and up to HEADS of the query heads that share it, so that the
// cache is read once for all of them. The blocks of a cluster divide the positions of the row's
// sequence. In a block, LANES lanes have a key, 16 bytes of it each, with a maximum, a sum and an
// output of their own. At the end these are put together in a fixed order: the lanes of a warp,
// the warps of a block, and the blocks of the cluster, which read each other's shared memory.
#include "backend/cuda/elements.cuh"
#include "backend/cuda/fast/chain.cuh"
#include "backend/cuda/fast/cached.cuh"

#include <math_constants.h>

enum {
    WARPS = 8,
    MOST_SPLITS = 8, // blocks of a cluster: as many as every device takes
    TOGETHER = 2,    // keys of a lane that are under way at the same time
    FEW_ROWS = 16,
};

// What a sum counts for that belongs to `maximum`, beside others of the maximum `top`.
template <typename T> static inline __device__ float weight_of(float maximum, float top) {
    return maximum == -CUDART_INF_F ? 0 : exp_for<T>(maximum - top);
}

template <typename T, int LANES, int HEADS>
__global__ void __launch_bounds__(WARPS *WARP, 2) cached_kernel(const cached_args<T> a) {
    enum { KEYS = WARP / LANES, W = WIDE<T>, COLUMNS = LANES * W };
    __shared__ float maxima[WARPS][HEADS], sums[WARPS][HEADS];
    __shared__ float block_maximum[HEADS], block_sum_of[HEADS];
    __shared__ __align__(16) float parts[WARPS][HEADS][COLUMNS];
    __shared__ __align__(16) float whole[HEADS][COLUMNS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, column = lane % LANES * W,
              split = blockIdx.x, splits = gridDim.x;
    const int g = blockIdx.y / a.chunks, first = blockIdx.y % a.chunks * HEADS;
    const int64_t i = blockIdx.z;
    const int64_t b = a.sequences[i], last = b < 0 ? -1 : a.positions[i];
    const bool bad = b >= a.batch || (b >= 0 && (last < 0 || last >= a.capacity)),
               here = column < a.dim;
    chain_wait();
    chain_next();

    const int keys = bad ? 0 : (int)last + 1, each = (keys + splits - 1) / splits,
              begin = split * each, end = begin + each < keys ? begin + each : keys;
    const T *const k0 = a.kcache + (b < 0 ? 0 : b) * a.capacity * a.ldk + g * a.dim + column;
    const T *const v0 = a.vcache + (b < 0 ? 0 : b) * a.capacity * a.ldv + g * a.dim + column;
    uint4 k[TOGETHER], v[TOGETHER], first_q[HEADS];
    auto read_keys = [&](int t0) {
#pragma unroll
        for (int u = 0; u < TOGETHER; u++) {
            const int t = t0 + u * WARPS * KEYS + lane / LANES;
            k[u] = v[u] = uint4{};
            if (t < end && here) {
                k[u] = load16(k0 + t * a.ldk);
                v[u] = load16(v0 + t * a.ldv);
            }
        }
    };
    read_keys(begin + warp * KEYS);
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        first_q[h] = uint4{};
        if (here && first + h < a.shared)
            first_q[h] =
                load16(a.q + i * a.ldq + (int64_t)(g * a.shared + first + h) * a.dim + column);
    }
    float q[HEADS][W], out[HEADS][W], maximum[HEADS], sum[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        const floats<T> x = widen<T>(first_q[h]);
#pragma unroll
        for (int l = 0; l < W; l++)
            q[h][l] = x.x[l] * a.scale, out[h][l] = 0;
        maximum[h] = -CUDART_INF_F, sum[h] = 0;
    }
    for (int t0 = begin + warp * KEYS; t0 < end; t0 += TOGETHER * WARPS * KEYS) {
        uint4 keys_now[TOGETHER], values_now[TOGETHER];
#pragma unroll
        for (int u = 0; u < TOGETHER; u++)
            keys_now[u] = k[u], values_now[u] = v[u];
        read_keys(t0 + TOGETHER * WARPS * KEYS); // under way while these are computed with
#pragma unroll
        for (int u = 0; u < TOGETHER; u++) {
            const bool seen = t0 + u * WARPS * KEYS + lane / LANES < end;
            const floats<T> key = widen<T>(keys_now[u]), val = widen<T>(values_now[u]);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float score = 0;
#pragma unroll
                for (int l = 0; l < W; l++)
                    score += q[h][l] * key.x[l];
#pragma unroll
                for (int offset = LANES / 2; offset > 0; offset /= 2)
                    score += __shfl_xor_sync(0xffffffffu, score, offset);
                // A score that is NaN is never the maximum, but exp(NaN) carries it into the sum.
                const float top = seen ? fmaxf(maximum[h], score) : maximum[h],
                            keep = weight_of<T>(maximum[h], top),
                            p = seen ? exp_for<T>(score - (top == -CUDART_INF_F ? 0 : top)) : 0;
                maximum[h] = top;
                sum[h] = sum[h] * keep + p;
#pragma unroll
                for (int l = 0; l < W; l++)
                    out[h][l] = out[h][l] * keep + p * val.x[l];
            }
        }
    }
    // The lanes of a warp that have the same columns of other keys.
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
#pragma unroll
        for (int offset = LANES; offset < WARP; offset *= 2) {
            const float theirs = __shfl_xor_sync(0xffffffffu, maximum[h], offset),
                        top = fmaxf(maximum[h], theirs), mine = weight_of<T>(maximum[h], top),
                        other = weight_of<T>(theirs, top);
            sum[h] = sum[h] * mine + __shfl_xor_sync(0xffffffffu, sum[h], offset) * other;
#pragma unroll
            for (int l = 0; l < W; l++)
                out[h][l] =
                    out[h][l] * mine + __shfl_xor_sync(0xffffffffu, out[h][l], offset) * other;
            maximum[h] = top;
        }
        if (lane < LANES) {
#pragma unroll
            for (int l = 0; l < W; l += 4)
                *(float4 *)&parts[warp][h][column + l] =
                    make_float4(out[h][l], out[h][l + 1], out[h][l + 2], out[h][l + 3]);
            if (lane == 0)
                maxima[warp][h] = maximum[h], sums[warp][h] = sum[h];
        }
    }
    __syncthreads();
    for (int x = threadIdx.x; x < HEADS * COLUMNS; x += WARPS * WARP) {
        const int h = x / COLUMNS;
        float top = -CUDART_INF_F, total = 0, all = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            top = fmaxf(top, maxima[w][h]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float weight = weight_of<T>(maxima[w][h], top);
            total += sums[w][h] * weight;
            all += parts[w][h][x % COLUMNS] * weight;
        }
        whole[h][x % COLUMNS] = all;
        if (x % COLUMNS == 0)
            block_maximum[h] = top, block_sum_of[h] = total;
    }
    cluster_barrier();
    // A block writes every splits-th piece of the result.
    for (int x = split * WARPS * WARP + (int)threadIdx.x; x < HEADS * COLUMNS;
         x += splits * WARPS * WARP) {
        const int h = x / COLUMNS, d = x % COLUMNS;
        if (d >= a.dim || first + h >= a.shared)
            continue;
        float theirs[MOST_SPLITS], top = -CUDART_INF_F, total = 0, all = 0;
#pragma unroll
        for (int r = 0; r < MOST_SPLITS; r++) {
            theirs[r] = r < splits ? block_value(&block_maximum[h], r) : -CUDART_INF_F;
            top = fmaxf(top, theirs[r]);
        }
#pragma unroll
        for (int r = 0; r < MOST_SPLITS; r++)
            if (r < splits) {
                const float weight = weight_of<T>(theirs[r], top);
                total += block_value(&block_sum_of[h], r) * weight;
                all += block_value(&whole[h][d], r) * weight;
            }
        a.o[i * a.ldo + (int64_t)(g * a.shared + first + h) * a.dim + d] =
            rounded<T>(bad     ? CUDART_NAN_F
                       : b < 0 ? 0
                               : all / total);
    }
    cluster_barrier(); // others may still be reading this block's memory
}

template <typename T, int LANES, int HEADS>
static int run_cached(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    const cached_args<T> a = cached_args_of<T>(c, HEADS);
    const int64_t blocks = op->kv_heads * a.chunks * op->m;
    unsigned splits = 1;
    while (s->chains && splits < MOST_SPLITS && (int64_t)splits * blocks < s->processors)
        splits *= 2;
    return chain_launch(s, c, cached_kernel<T, LANES, HEADS>,
                        {dim3(splits, (unsigned)(op->kv_heads * a.chunks), (unsigned)op->m),
                         WARPS * WARP, 0, splits},
                        stream, e, a);
}

template <typename T, int LANES, int HEADS>
static int take(struct cuda *s, const struct op_call *c, struct cuda_made *made, struct err *e) {
    made->run = run_cached<T, LANES, HEADS>;
    return chain_allow(s, c, cached_kernel<T, LANES, HEADS>, 0, e);
}

template <typename T, int LANES>
static int take_heads(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                      struct err *e) {
    const int64_t shared = c->op->heads / c->op->kv_heads;
    return shared == 1   ? take<T, LANES, 1>(s, c, made, e)
           : shared == 2 ? take<T, LANES, 2>(s, c, made, e)
                         : take<T, LANES, 4>(s, c, made, e);
}

template <typename T>
static int make_cached(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                       struct err *e) {
    const struct op *op = c->op;
    const int64_t cells = op->batch * op->seq, lanes = ceil_div(op->head_dim, WIDE<T>);
    if (op->m == 0 || op->m > 65535 || op->heads > 65535 || op->head_dim % WIDE<T> != 0 ||
        lanes > WARP || cells == 0 || op->seq > 1 << 30 ||
        !wide_rows<T>(c->in[0].data, c->in[0].ld, op->m) ||
        !wide_rows<T>(c->in[1].data, c->in[1].ld, cells) ||
        !wide_rows<T>(c->in[2].data, c->in[2].ld, cells))
        return 0;
    // More rows than there are sequences: many of them belong to one, as in a prompt.
    if (op->m > FEW_ROWS && op->m > op->batch) {
        if constexpr (sizeof(T) == 2)
            return cuda_make_cached_rows<T>(s, c, made, e);
        return 0;
    }
    return lanes <= 8    ? take_heads<T, 8>(s, c, made, e)
           : lanes <= 16 ? take_heads<T, 16>(s, c, made, e)
                         : take_heads<T, 32>(s, c, made, e);
}

// ---------------------------------------------------------------- into the cache

template <typename T> struct append_args {
    T *kcache, *vcache;
    const T *k, *v;
    const int32_t *sequences, *positions;
    int64_t ldkc, ldvc, ldk, ldv, batch, capacity;
    int of_row; // accesses to a row of the cache
};

// A block has a row. A place outside the cache is not written.
template <typename T>
__global__ void __launch_bounds__(BLOCK) append_kernel(const append_args<T> a) {
    const int64_t i = blockIdx.x, b = a.sequences[i], at = a.positions[i];
    chain_wait();
    chain_next();
    if (b < 0 || b >= a.batch || at < 0 || at >= a.capacity)
        return;
    const int64_t to = b * a.capacity + at;
    for (int j = threadIdx.x; j < 2 * a.of_row; j += blockDim.x) {
        const bool key = j < a.of_row;
        const int64_t column = (int64_t)(key ? j : j - a.of_row) * WIDE<T>;
        const uint4 bits = load16(key ? a.k + i * a.ldk + column : a.v + i * a.ldv + column);
        store16(key ? a.kcache + to * a.ldkc + column : a.vcache + to * a.ldvc + column, bits);
    }
}

template <typename T>
static int run_append(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    const append_args<T> a = {(T *)c->out[0].data,
                              (T *)c->out[1].data,
                              (const T *)c->in[0].data,
                              (const T *)c->in[1].data,
                              (const int32_t *)c->in[2].data,
                              (const int32_t *)c->in[3].data,
                              c->out[0].ld,
                              c->out[1].ld,
                              c->in[0].ld,
                              c->in[1].ld,
                              op->batch,
                              op->seq,
                              (int)(op->kv_heads * op->head_dim / WIDE<T>)};
    return chain_launch(s, c, append_kernel<T>, {dim3((unsigned)op->m), BLOCK, 0, 0}, stream, e, a);
}

template <typename T>
static int make_append(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                       struct err *e) {
    const struct op *op = c->op;
    const int64_t cells = op->batch * op->seq;
    if (op->m == 0 || op->kv_heads * op->head_dim % WIDE<T> != 0 ||
        !wide_rows<T>(c->in[0].data, c->in[0].ld, op->m) ||
        !wide_rows<T>(c->in[1].data, c->in[1].ld, op->m) ||
        !wide_rows<T>(c->out[0].data, c->out[0].ld, cells) ||
        !wide_rows<T>(c->out[1].data, c->out[1].ld, cells))
        return 0;
    made->run = run_append<T>;
    return chain_allow(s, c, append_kernel<T>, 0, e);
}

template <typename T> void cuda_add_fast_cached(struct cuda_table *t) {
    t->fast[OP_ATTENTION_CACHED] = make_cached<T>;
    t->fast[OP_KV_APPEND] = make_append<T>;
}
template void cuda_add_fast_cached<float>(struct cuda_table *);
template void cuda_add_fast_cached<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_cached<__half>(struct cuda_table *);

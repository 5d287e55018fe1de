// attention.cu - the forward of attention, over a sequence and over a cache. Scores never leave the
// multiprocessor: a block goes through the keys in tiles and keeps a running maximum and sum per
// row.
#include "backend/cuda/plain/attention.cuh"

// ---------------------------------------------------------------- a sequence

template <typename T> struct attention_args {
    const T *q, *k, *v;
    int64_t ldq, ldk, ldv;
    const int32_t *doc_start;
    T *o;
    int64_t ldo;
    float *lse;
};

template <typename T, int NJ>
__global__ void __launch_bounds__(WARPS *WARP)
    attention_kernel(struct attention_args<T> a, struct attention_sizes n) {
    extern __shared__ float shared[];
    int ld = tile_ld(n.D), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float *q = shared, *k = q + TILE * ld, *v = k + TILE * ld;
    int64_t t0 = (int64_t)blockIdx.x * TILE, h = blockIdx.y, b = blockIdx.z, base = b * n.T;
    int64_t g = h / (n.H / n.G);
    load_tile(q, a.q + base * a.ldq + h * n.D, a.ldq, t0, n.T, n.D);

    // The keys of the tile: from the earliest document of its rows to its last row.
    int64_t mine = t0 + lane < n.T ? t0 + lane : n.T - 1;
    int64_t begin = first_key(a.doc_start, base + mine, mine);
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        int64_t other = __shfl_xor_sync(0xffffffffu, begin, offset);
        begin = other < begin ? other : begin;
    }
    int64_t end = t0 + TILE < n.T ? t0 + TILE : n.T;

    float max[OWN], sum[OWN], out[OWN][NJ];
    int64_t first[OWN];
    for (int i = 0; i < OWN; i++) {
        int64_t t = t0 + warp + i * WARPS;
        max[i] = -CUDART_INF_F;
        sum[i] = 0;
        first[i] = t < n.T ? first_key(a.doc_start, base + t, t) : t + 1; // past the end: no key
        for (int j = 0; j < NJ; j++)
            out[i][j] = 0;
    }
    for (int64_t s0 = begin / TILE * TILE; s0 < end; s0 += TILE) {
        __syncthreads(); // all threads are done with the tile before
        load_tile(k, a.k + base * a.ldk + g * n.D, a.ldk, s0, n.T, n.D);
        load_tile(v, a.v + base * a.ldv + g * n.D, a.ldv, s0, n.T, n.D);
        __syncthreads();
        float p[OWN];
        for (int i = 0; i < OWN; i++) {
            int64_t t = t0 + warp + i * WARPS, column = s0 + lane;
            bool seen = column >= first[i] && column <= t;
            float score = seen ? n.scale * dot_rows(q + (warp + i * WARPS) * ld, k + lane * ld, n.D)
                               : -CUDART_INF_F;
            float top = score;
            for (int offset = WARP / 2; offset > 0; offset /= 2)
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
            top = fmaxf(top, max[i]);
            // A tile without a key of this row changes nothing. A score that is NaN is never the
            // maximum, but exp(NaN) carries it into the sum.
            float shift = top == -CUDART_INF_F ? 0 : top;
            p[i] = seen ? expf(score - shift) : 0;
            float keep = expf(max[i] - shift); // 0 before the first key
            sum[i] = sum[i] * keep + warp_sum(p[i]);
            max[i] = top;
            for (int j = 0; j < NJ; j++)
                out[i][j] *= keep;
        }
        for (int c = 0; c < TILE; c++) {
            float column[NJ];
            for (int j = 0; j < NJ; j++)
                column[j] = lane + j * WARP < n.D ? v[c * ld + lane + j * WARP] : 0;
            for (int i = 0; i < OWN; i++) {
                float weight = __shfl_sync(0xffffffffu, p[i], c);
                for (int j = 0; j < NJ; j++)
                    out[i][j] += weight * column[j];
            }
        }
    }
    for (int i = 0; i < OWN; i++) {
        int64_t t = t0 + warp + i * WARPS;
        if (t >= n.T)
            continue;
        for (int j = 0; j < NJ; j++)
            if (lane + j * WARP < n.D)
                a.o[(base + t) * a.ldo + h * n.D + lane + j * WARP] =
                    rounded<T>(out[i][j] / sum[i]);
        if (lane == 0)
            a.lse[(b * n.H + h) * n.T + t] = max[i] + logf(sum[i]);
    }
}

template <typename T>
static int attention(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->batch == 0 || op->seq == 0)
        return 0;
    attention_args<T> a = {(const T *)c->in[0].data,
                           (const T *)c->in[1].data,
                           (const T *)c->in[2].data,
                           c->in[0].ld,
                           c->in[1].ld,
                           c->in[2].ld,
                           (const int32_t *)c->in[3].data,
                           (T *)c->out[0].data,
                           c->out[0].ld,
                           (float *)c->out[1].data};
    dim3 grid((unsigned)ceil_div(op->seq, TILE), (unsigned)op->heads, (unsigned)op->batch);
    ATTENTION_LAUNCH(attention_kernel, T, grid, tile_bytes(3, op->head_dim), stream, a,
                     attention_sizes_of(op));
    return 0;
}

// ---------------------------------------------------------------- a cache

// A block per row writes one row of the two caches. A place outside the cache is not written;
// attention_cached makes the output of that row NaN.
template <typename T>
__global__ void kv_append_kernel(T *kcache, int64_t ldkc, T *vcache, int64_t ldvc, const T *k,
                                 int64_t ldk, const T *v, int64_t ldv, const int32_t *sequences,
                                 const int32_t *positions, int64_t batch, int64_t seq, int64_t n) {
    int64_t i = blockIdx.x, b = sequences[i], at = positions[i];
    if (b < 0 || b >= batch || at < 0 || at >= seq)
        return;
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
        kcache[(b * seq + at) * ldkc + j] = k[i * ldk + j];
        vcache[(b * seq + at) * ldvc + j] = v[i * ldv + j];
    }
}

template <typename T>
static int kv_append(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0)
        return 0;
    kv_append_kernel<<<(unsigned)op->m, BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (T *)c->out[1].data, c->out[1].ld,
        (const T *)c->in[0].data, c->in[0].ld, (const T *)c->in[1].data, c->in[1].ld,
        (const int32_t *)c->in[2].data, (const int32_t *)c->in[3].data, op->batch, op->seq,
        op->kv_heads * op->head_dim);
    return cuda_launched(s, c, e);
}

// A block per (head, row). The warps take the keys in turns. Each warp has its running
// maximum, sum and output, with the columns of the head in its lanes. At the end the parts of the
// warps are added up.
template <typename T, int NJ>
__global__ void __launch_bounds__(WARPS *WARP)
    cached_kernel(T *o, int64_t ldo, const T *q, int64_t ldq, const T *kcache, int64_t ldk,
                  const T *vcache, int64_t ldv, const int32_t *sequences, const int32_t *positions,
                  struct attention_sizes n) {
    __shared__ float part_max[WARPS], part_sum[WARPS];
    extern __shared__ float part[]; // [WARPS][D]
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t h = blockIdx.x, i = blockIdx.y, g = h / (n.H / n.G), b = sequences[i];
    int64_t last = b < 0 ? -1 : positions[i];
    bool bad = b >= n.B || (b >= 0 && (last < 0 || last >= n.T));
    float mine[NJ], out[NJ], max = -CUDART_INF_F, sum = 0;
    for (int j = 0; j < NJ; j++) {
        int64_t d = lane + j * WARP;
        mine[j] = d < n.D ? value(q[i * ldq + h * n.D + d]) : 0;
        out[j] = 0;
    }
    for (int64_t t = warp; !bad && t <= last; t += WARPS) {
        const T *key = kcache + (b * n.T + t) * ldk + g * n.D;
        const T *val = vcache + (b * n.T + t) * ldv + g * n.D;
        float score = 0;
        for (int j = 0; j < NJ; j++)
            if (lane + j * WARP < n.D)
                score += mine[j] * value(key[lane + j * WARP]);
        score = n.scale * warp_sum(score);
        float top = fmaxf(max, score), keep = expf(max - top), p = expf(score - top);
        max = top;
        sum = sum * keep + p;
        for (int j = 0; j < NJ; j++)
            if (lane + j * WARP < n.D)
                out[j] = out[j] * keep + p * value(val[lane + j * WARP]);
    }
    if (lane == 0) {
        part_max[warp] = max;
        part_sum[warp] = sum;
    }
    for (int j = 0; j < NJ; j++)
        if (lane + j * WARP < n.D)
            part[warp * n.D + lane + j * WARP] = out[j];
    __syncthreads();
    float top = -CUDART_INF_F, total = 0;
    for (int w = 0; w < WARPS; w++)
        top = fmaxf(top, part_max[w]);
    for (int w = 0; w < WARPS; w++)
        total += part_sum[w] * expf(part_max[w] - top);
    for (int64_t d = threadIdx.x; d < n.D; d += blockDim.x) {
        float x = 0;
        for (int w = 0; w < WARPS; w++)
            x += part[w * n.D + d] * expf(part_max[w] - top);
        o[i * ldo + h * n.D + d] = rounded<T>(bad ? CUDART_NAN_F : b < 0 ? 0 : x / total);
    }
}

template <typename T>
static int cached(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0)
        return 0;
    dim3 grid((unsigned)op->heads, (unsigned)op->m);
    ATTENTION_LAUNCH(cached_kernel, T, grid, (size_t)(WARPS * op->head_dim) * sizeof(float), stream,
                     (T *)c->out[0].data, c->out[0].ld, (const T *)c->in[0].data, c->in[0].ld,
                     (const T *)c->in[1].data, c->in[1].ld, (const T *)c->in[2].data, c->in[2].ld,
                     (const int32_t *)c->in[3].data, (const int32_t *)c->in[4].data,
                     attention_sizes_of(op));
    return 0;
}

template <typename T> void cuda_add_attention(struct cuda_table *t) {
    t->fn[OP_ATTENTION] = attention<T>;
    t->fn[OP_KV_APPEND] = kv_append<T>;
    t->fn[OP_ATTENTION_CACHED] = cached<T>;
}
template void cuda_add_attention<float>(struct cuda_table *);
template void cuda_add_attention<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_attention<__half>(struct cuda_table *);

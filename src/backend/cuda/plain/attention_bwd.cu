// attention_bwd.cu - the gradient of attention. Scores are computed again, tile by tile, from q, k
// and lse. There are two kernels, so that each output has one writer: dq by tiles of rows, dk and
// dv by tiles of keys (over all query heads that share them).
//
//   p = exp(scale q.k - lse)   dp = dout.v   ds = p (dp - dout.o) scale
//   dq = sum ds k              dk = sum ds q  dv = sum p dout
#include "backend/cuda/plain/attention.cuh"

template <typename T> struct attention_bwd_args {
    const T *dout, *q, *k, *v, *o;
    int64_t lddo, ldq, ldk, ldv, ldo;
    const float *lse;
    const int32_t *doc_start;
    T *dq, *dk, *dv;
    int64_t lddq, lddk, lddv;
};

// dout.o of a row, summed by one warp. All its lanes get the result.
template <typename T>
static __device__ float row_product(const struct attention_bwd_args<T> *a, int64_t row, int64_t h,
                                    int64_t D) {
    float sum = 0;
    for (int64_t d = threadIdx.x % WARP; d < D; d += WARP)
        sum += value(a->dout[row * a->lddo + h * D + d]) * value(a->o[row * a->ldo + h * D + d]);
    return warp_sum(sum);
}

template <typename T, int NJ>
__global__ void __launch_bounds__(WARPS *WARP)
    dq_kernel(struct attention_bwd_args<T> a, struct attention_sizes n) {
    extern __shared__ float shared[];
    int ld = tile_ld(n.D), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float *q = shared, *dout = q + TILE * ld, *k = dout + TILE * ld, *v = k + TILE * ld;
    int64_t t0 = (int64_t)blockIdx.x * TILE, h = blockIdx.y, b = blockIdx.z, base = b * n.T;
    int64_t g = h / (n.H / n.G);
    load_tile(q, a.q + base * a.ldq + h * n.D, a.ldq, t0, n.T, n.D);
    load_tile(dout, a.dout + base * a.lddo + h * n.D, a.lddo, t0, n.T, n.D);

    int64_t mine = t0 + lane < n.T ? t0 + lane : n.T - 1;
    int64_t begin = first_key(a.doc_start, base + mine, mine);
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        int64_t other = __shfl_xor_sync(0xffffffffu, begin, offset);
        begin = other < begin ? other : begin;
    }
    int64_t end = t0 + TILE < n.T ? t0 + TILE : n.T;

    float lse[OWN], product[OWN], out[OWN][NJ];
    int64_t first[OWN];
    for (int i = 0; i < OWN; i++) {
        int64_t t = t0 + warp + i * WARPS;
        bool inside = t < n.T;
        first[i] = inside ? first_key(a.doc_start, base + t, t) : t + 1;
        lse[i] = inside ? a.lse[(b * n.H + h) * n.T + t] : 0;
        product[i] = inside ? row_product(&a, base + t, h, n.D) : 0;
        for (int j = 0; j < NJ; j++)
            out[i][j] = 0;
    }
    for (int64_t s0 = begin / TILE * TILE; s0 < end; s0 += TILE) {
        __syncthreads();
        load_tile(k, a.k + base * a.ldk + g * n.D, a.ldk, s0, n.T, n.D);
        load_tile(v, a.v + base * a.ldv + g * n.D, a.ldv, s0, n.T, n.D);
        __syncthreads();
        float ds[OWN];
        for (int i = 0; i < OWN; i++) {
            int64_t t = t0 + warp + i * WARPS, column = s0 + lane;
            int row = (warp + i * WARPS) * ld;
            ds[i] = 0;
            if (column >= first[i] && column <= t) {
                float p = expf(n.scale * dot_rows(q + row, k + lane * ld, n.D) - lse[i]);
                float dp = dot_rows(dout + row, v + lane * ld, n.D);
                ds[i] = p * (dp - product[i]) * n.scale;
            }
        }
        for (int c = 0; c < TILE; c++) {
            float column[NJ];
            for (int j = 0; j < NJ; j++)
                column[j] = lane + j * WARP < n.D ? k[c * ld + lane + j * WARP] : 0;
            for (int i = 0; i < OWN; i++) {
                float weight = __shfl_sync(0xffffffffu, ds[i], c);
                for (int j = 0; j < NJ; j++)
                    out[i][j] += weight * column[j];
            }
        }
    }
    for (int i = 0; i < OWN; i++) {
        int64_t t = t0 + warp + i * WARPS;
        for (int j = 0; t < n.T && j < NJ; j++)
            if (lane + j * WARP < n.D)
                a.dq[(base + t) * a.lddq + h * n.D + lane + j * WARP] = rounded<T>(out[i][j]);
    }
}

// In this kernel a warp owns four keys, and its lanes are the 32 queries of a tile.
template <typename T, int NJ>
__global__ void __launch_bounds__(WARPS *WARP)
    dkv_kernel(struct attention_bwd_args<T> a, struct attention_sizes n) {
    extern __shared__ float shared[];
    __shared__ float product[TILE];
    int ld = tile_ld(n.D), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float *k = shared, *v = k + TILE * ld, *q = v + TILE * ld, *dout = q + TILE * ld;
    int64_t s0 = (int64_t)blockIdx.x * TILE, g = blockIdx.y, b = blockIdx.z, base = b * n.T;
    int64_t share = n.H / n.G;
    load_tile(k, a.k + base * a.ldk + g * n.D, a.ldk, s0, n.T, n.D);
    load_tile(v, a.v + base * a.ldv + g * n.D, a.ldv, s0, n.T, n.D);
    float dk[OWN][NJ], dv[OWN][NJ];
    for (int i = 0; i < OWN; i++)
        for (int j = 0; j < NJ; j++)
            dk[i][j] = dv[i][j] = 0;
    for (int64_t h = g * share; h < (g + 1) * share; h++)
        for (int64_t t0 = s0; t0 < n.T; t0 += TILE) {
            __syncthreads();
            load_tile(q, a.q + base * a.ldq + h * n.D, a.ldq, t0, n.T, n.D);
            load_tile(dout, a.dout + base * a.lddo + h * n.D, a.lddo, t0, n.T, n.D);
            for (int r = warp; r < TILE; r += WARPS) {
                float x = t0 + r < n.T ? row_product(&a, base + t0 + r, h, n.D) : 0;
                if (lane == 0)
                    product[r] = x;
            }
            __syncthreads();
            int64_t t = t0 + lane;
            int64_t first = t < n.T ? first_key(a.doc_start, base + t, t) : n.T; // sees no key
            float lse = t < n.T ? a.lse[(b * n.H + h) * n.T + t] : 0;
            float p[OWN], ds[OWN];
            for (int i = 0; i < OWN; i++) {
                int64_t column = s0 + warp + i * WARPS;
                int row = (warp + i * WARPS) * ld;
                p[i] = ds[i] = 0;
                if (column >= first && column <= t) {
                    p[i] = expf(n.scale * dot_rows(k + row, q + lane * ld, n.D) - lse);
                    float dp = dot_rows(v + row, dout + lane * ld, n.D);
                    ds[i] = p[i] * (dp - product[lane]) * n.scale;
                }
            }
            for (int r = 0; r < TILE; r++) {
                float query[NJ], grad[NJ];
                for (int j = 0; j < NJ; j++) {
                    bool inside = lane + j * WARP < n.D;
                    query[j] = inside ? q[r * ld + lane + j * WARP] : 0;
                    grad[j] = inside ? dout[r * ld + lane + j * WARP] : 0;
                }
                for (int i = 0; i < OWN; i++) {
                    float weight_k = __shfl_sync(0xffffffffu, ds[i], r);
                    float weight_v = __shfl_sync(0xffffffffu, p[i], r);
                    for (int j = 0; j < NJ; j++) {
                        dk[i][j] += weight_k * query[j];
                        dv[i][j] += weight_v * grad[j];
                    }
                }
            }
        }
    for (int i = 0; i < OWN; i++) {
        int64_t t = s0 + warp + i * WARPS;
        for (int j = 0; t < n.T && j < NJ; j++)
            if (lane + j * WARP < n.D) {
                int64_t at = g * n.D + lane + j * WARP;
                a.dk[(base + t) * a.lddk + at] = rounded<T>(dk[i][j]);
                a.dv[(base + t) * a.lddv + at] = rounded<T>(dv[i][j]);
            }
    }
}

template <typename T>
static int attention_bwd(struct cuda *s, const struct op_call *c, cudaStream_t stream,
                         struct err *e) {
    const struct op *op = c->op;
    if (op->batch == 0 || op->seq == 0)
        return 0;
    struct attention_bwd_args<T> a;
    a.dout = (const T *)c->in[0].data, a.lddo = c->in[0].ld;
    a.q = (const T *)c->in[1].data, a.ldq = c->in[1].ld;
    a.k = (const T *)c->in[2].data, a.ldk = c->in[2].ld;
    a.v = (const T *)c->in[3].data, a.ldv = c->in[3].ld;
    a.o = (const T *)c->in[4].data, a.ldo = c->in[4].ld;
    a.lse = (const float *)c->in[5].data;
    a.doc_start = (const int32_t *)c->in[6].data;
    a.dq = (T *)c->out[0].data, a.lddq = c->out[0].ld;
    a.dk = (T *)c->out[1].data, a.lddk = c->out[1].ld;
    a.dv = (T *)c->out[2].data, a.lddv = c->out[2].ld;
    struct attention_sizes n = attention_sizes_of(op);
    size_t bytes = tile_bytes(4, op->head_dim);
    dim3 rows((unsigned)ceil_div(op->seq, TILE), (unsigned)op->heads, (unsigned)op->batch);
    dim3 keys((unsigned)ceil_div(op->seq, TILE), (unsigned)op->kv_heads, (unsigned)op->batch);
    ATTENTION_LAUNCH(dq_kernel, T, rows, bytes, stream, a, n);
    ATTENTION_LAUNCH(dkv_kernel, T, keys, bytes, stream, a, n);
    return 0;
}

// Tiles of whole heads must fit shared memory. Heads and sequences are the second and third
// dimension of the grid, which have 16 bits.
int cuda_accepts_attention(const struct cuda *s, const struct op *op, struct err *e) {
    const char *name = s->host.op_name(op->kind);
    int64_t most = ATTENTION_MAX_DIM;
    while (most > 0 && tile_bytes(4, most) > (size_t)s->shared_bytes)
        most -= WARP;
    if (op->head_dim > most)
        return s->host.err_set(e, ERR_UNSUPPORTED,
                               "%s: head dimension %lld; accepted on this device: 1 to %lld", name,
                               (long long)op->head_dim, (long long)most);
    if (op->heads > 65535 || op->batch > 65535)
        return s->host.err_set(e, ERR_UNSUPPORTED,
                               "%s: %lld heads, %lld sequences; accepted on a GPU: up to 65535",
                               name, (long long)op->heads, (long long)op->batch);
    return 0;
}

template <typename T> void cuda_add_attention_bwd(struct cuda_table *t) {
    t->fn[OP_ATTENTION_BWD] = attention_bwd<T>;
}
template void cuda_add_attention_bwd<float>(struct cuda_table *);
template void cuda_add_attention_bwd<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_attention_bwd<__half>(struct cuda_table *);

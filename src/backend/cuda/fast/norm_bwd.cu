// norm_bwd.cu - all gradients of a norm with one pass over dy and x. A block takes a slab of rows.
// Its threads keep the sums of their columns in registers while they go through the rows, and a
// second kernel adds up the slabs, in their order.
#include "backend/cuda/fast/fast.cuh"

enum {
    MOST_THREADS = 384,   // so that a thread has registers for a row and for its sums
    COLUMNS = WARP,       // of a block that adds up slabs
    PARTS = BLOCK / WARP, // threads of one of its columns
};

// Elements of a row that a thread keeps, at most, and the accesses to them.
template <typename T> constexpr int HELD = sizeof(T) == 2 ? 32 : 16;
template <typename T> constexpr int ACCESSES = HELD<T> / WIDE<T>;

template <typename T> struct norm_bwd {
    T *dx;
    const T *dy, *x, *w;
    const float *stats;
    float *part;                           // part[slab][2][n]
    int64_t ldd, ldy, ldx, heads, m, rows; // rows of a slab
    int n, lanes;                          // threads of a row
    bool rms, accumulate;
};

// With g = dy w and xhat the normalised row: dx = rstd (g - mean(g) - xhat mean(g xhat)). RMS has
// no mean(g). dw is the sum of dy xhat over the rows, db that of dy. dx may be dy.
template <typename T, bool LONG>
__global__ void __launch_bounds__(MOST_THREADS, 1) norm_bwd_kernel(const struct norm_bwd<T> s) {
    extern __shared__ float sums[]; // of half of the groups
    __shared__ float2 of_warp[2][MOST_THREADS / WARP];
    const int group = threadIdx.x / s.lanes, lane = threadIdx.x % s.lanes,
              groups = blockDim.x / s.lanes, warps = s.lanes / WARP;
    const int64_t begin = blockIdx.x * s.rows, end = begin + s.rows < s.m ? begin + s.rows : s.m;
    floats<T> dw[ACCESSES<T>] = {}, db[ACCESSES<T>] = {};
    int turn = 0;
    for (int64_t base = begin; base < end; base += groups, turn ^= 1) {
        const int64_t i = base + group;
        const int n = i < end ? s.n : 0; // a group without a row waits for the others
        const T *dy = s.dy + head_at(i, s.heads, s.ldy, s.n),
                *x = s.x + head_at(i, s.heads, s.ldx, s.n);
        T *dx = s.dx + head_at(i, s.heads, s.ldd, s.n);
        uint4 held_dy[ACCESSES<T>], held_x[ACCESSES<T>], before[ACCESSES<T>];
#pragma unroll
        for (int k = 0; k < ACCESSES<T>; k++) {
            const int j = (k * s.lanes + lane) * WIDE<T>;
            if (j >= n)
                continue;
            held_dy[k] = load16(dy + j);
            held_x[k] = load16(x + j);
            if (s.accumulate)
                before[k] = load16(dx + j);
        }
        const float2 stat = n > 0 ? *(const float2 *)(s.stats + 2 * i) : make_float2(0, 0);
        float sum_g = 0, sum_gx = 0;
#pragma unroll
        for (int k = 0; k < ACCESSES<T>; k++) {
            const int j = (k * s.lanes + lane) * WIDE<T>;
            if (j >= n)
                continue;
            const floats<T> d = widen<T>(held_dy[k]), v = widen<T>(held_x[k]);
            floats<T> w;
            if (s.w)
                w = read_wide(s.w + j);
#pragma unroll
            for (int l = 0; l < WIDE<T>; l++) {
                const float g = s.w ? __fmul_rn(d.x[l], w.x[l]) : d.x[l],
                            xhat = (v.x[l] - stat.x) * stat.y;
                sum_g += g;
                sum_gx += g * xhat;
                dw[k].x[l] += d.x[l] * xhat;
                db[k].x[l] += d.x[l];
            }
        }
        sum_g = warp_sum(sum_g), sum_gx = warp_sum(sum_gx);
        if (LONG) {
            if (threadIdx.x % WARP == 0)
                of_warp[turn][threadIdx.x / WARP] = make_float2(sum_g, sum_gx);
            __syncthreads(); // the other half of of_warp is for the next turn
            sum_g = sum_gx = 0;
            for (int k = 0; k < warps; k++) {
                const float2 other = of_warp[turn][group * warps + k];
                sum_g += other.x, sum_gx += other.y;
            }
        }
        sum_g = s.rms ? 0 : sum_g / (float)s.n;
        sum_gx /= (float)s.n;
#pragma unroll
        for (int k = 0; k < ACCESSES<T>; k++) {
            const int j = (k * s.lanes + lane) * WIDE<T>;
            if (j >= n)
                continue;
            const floats<T> d = widen<T>(held_dy[k]), v = widen<T>(held_x[k]),
                            old = widen<T>(before[k]);
            floats<T> w, out;
            if (s.w)
                w = read_wide(s.w + j);
#pragma unroll
            for (int l = 0; l < WIDE<T>; l++) {
                const float g = s.w ? __fmul_rn(d.x[l], w.x[l]) : d.x[l],
                            xhat = (v.x[l] - stat.x) * stat.y,
                            slope = stat.y * (g - sum_g - xhat * sum_gx);
                out.x[l] = s.accumulate ? old.x[l] + slope : slope;
            }
            write_wide(dx + j, out);
        }
    }
    // Each round adds the upper half of the groups to the lower half. Neighbouring lanes have
    // neighbouring words, whatever a lane's columns are.
    for (int left = groups, half; left > 1; left = half) {
        half = (left + 1) / 2;
        float *slot = sums + (int64_t)(group % half) * 2 * s.lanes * HELD<T> + lane;
        if (group >= half && group < left) {
#pragma unroll
            for (int k = 0; k < ACCESSES<T> * WIDE<T>; k++) {
                slot[2 * k * s.lanes] = dw[k / WIDE<T>].x[k % WIDE<T>];
                slot[(2 * k + 1) * s.lanes] = db[k / WIDE<T>].x[k % WIDE<T>];
            }
        }
        __syncthreads();
        if (group < left - half) {
#pragma unroll
            for (int k = 0; k < ACCESSES<T> * WIDE<T>; k++) {
                dw[k / WIDE<T>].x[k % WIDE<T>] += slot[2 * k * s.lanes];
                db[k / WIDE<T>].x[k % WIDE<T>] += slot[(2 * k + 1) * s.lanes];
            }
        }
        __syncthreads();
    }
    if (group > 0)
        return;
    float *part = s.part + (int64_t)blockIdx.x * 2 * s.n;
#pragma unroll
    for (int k = 0; k < ACCESSES<T>; k++) {
        const int j = (k * s.lanes + lane) * WIDE<T>;
        if (j >= s.n)
            continue;
#pragma unroll
        for (int l = 0; l < WIDE<T>; l++) {
            part[j + l] = dw[k].x[l];
            part[s.n + j + l] = db[k].x[l];
        }
    }
}

// A column is of dw or of db.
static __global__ void __launch_bounds__(BLOCK)
    add_slabs(float *dw, float *db, const float *part, int slabs, bool accumulate, int n) {
    __shared__ float sums[PARTS][COLUMNS];
    const int column = threadIdx.x % COLUMNS, which = threadIdx.x / COLUMNS,
              j = blockIdx.x * COLUMNS + column;
    float sum = 0;
    if (j < 2 * n)
#pragma unroll 8
        for (int i = which; i < slabs; i += PARTS)
            sum += part[(int64_t)i * 2 * n + j];
    sums[which][column] = sum;
    __syncthreads();
    float *to = j < n ? dw + j : db ? db + (j - n) : NULL;
    if (which > 0 || j >= 2 * n || !to)
        return;
    sum = 0;
    for (int i = 0; i < PARTS; i++)
        sum += sums[i][column];
    put(to, sum, accumulate);
}

// ---------------------------------------------------------------- launches

template <typename T> static int lanes_of(int64_t n) {
    return (int)(ceil_div(ceil_div(n, HELD<T>), WARP) * WARP);
}

template <typename T, bool LONG>
static int run_norm_bwd(struct cuda *s, const struct op_call *c, cudaStream_t stream,
                        struct err *e) {
    const struct op *op = c->op;
    const int lanes = lanes_of<T>(op->n), groups = MOST_THREADS / lanes;
    struct norm_bwd<T> a = {};
    a.dx = (T *)c->out[0].data, a.ldd = c->out[0].ld;
    a.dy = (const T *)c->in[0].data, a.ldy = c->in[0].ld;
    a.x = (const T *)c->in[1].data, a.ldx = c->in[1].ld;
    a.w = (const T *)c->in[2].data, a.stats = (const float *)c->in[3].data;
    a.part = (float *)c->scratch.data;
    a.heads = op_norm_heads(op), a.m = op->m * a.heads, a.n = (int)op->n, a.lanes = lanes;
    a.rms = (op->flags & OP_RMS) != 0, a.accumulate = c->in[4].data != NULL;
    int64_t slabs = s->processors < CUDA_SLABS ? s->processors : (int64_t)CUDA_SLABS;
    slabs = slabs < ceil_div(a.m, groups) ? slabs : ceil_div(a.m, groups);
    a.rows = ceil_div(a.m, slabs);
    slabs = ceil_div(a.m, a.rows);
    const size_t bytes = (size_t)(groups / 2) * 2 * HELD<T> * (size_t)lanes * sizeof(float);
    norm_bwd_kernel<T, LONG><<<(unsigned)slabs, groups * lanes, bytes, stream>>>(a);
    TRY(cuda_launched(s, c, e));
    add_slabs<<<(unsigned)ceil_div(2 * op->n, COLUMNS), BLOCK, 0, stream>>>(
        (float *)c->out[1].data, (float *)c->out[2].data, a.part, (int)slabs,
        (op->flags & OP_ACCUMULATE) != 0, (int)op->n);
    return cuda_launched(s, c, e);
}

template <typename T, bool LONG>
static int allow_norm_bwd(struct cuda *s, struct cuda_made *made, struct err *e) {
    made->run = run_norm_bwd<T, LONG>;
    return cuda_check(s,
                      cudaFuncSetAttribute(norm_bwd_kernel<T, LONG>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           HELD<T> * MOST_THREADS * (int)sizeof(float)),
                      "shared memory of norm_bwd", e);
}

template <typename T>
static int make_norm_bwd(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                         struct err *e) {
    const struct op *op = c->op;
    bool fit = op->m > 0 && op->n > 0 && op->n % WIDE<T> == 0 && op->n <= HELD<T> * MOST_THREADS &&
               (uintptr_t)c->in[3].data % sizeof(float2) == 0;
    for (int i = 0; i < 3; i++)
        fit = fit && wide_rows<T>(c->in[i].data, c->in[i].ld, op->m);
    if (!fit || !wide_rows<T>(c->out[0].data, c->out[0].ld, op->m))
        return 0;
    return lanes_of<T>(op->n) == WARP ? allow_norm_bwd<T, false>(s, made, e)
                                      : allow_norm_bwd<T, true>(s, made, e);
}

template <typename T> void cuda_add_fast_norm_bwd(struct cuda_table *t) {
    t->fast[OP_NORM_BWD] = make_norm_bwd<T>;
}
template void cuda_add_fast_norm_bwd<float>(struct cuda_table *);
template void cuda_add_fast_norm_bwd<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_norm_bwd<__half>(struct cuda_table *);

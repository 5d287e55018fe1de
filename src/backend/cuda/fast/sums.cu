// sums.cu - sums over rows: the gradients of norms' weights and biases, and of biases.
//
// A block takes a slab of rows of a few columns. It reads 128 bytes of a row at a time, 32 rows
// together, and keeps the sums in registers. The block that ends last among those of its columns
// adds up the slabs, in their order. So the sums do not depend on which block that is.
#include "backend/cuda/fast/fast.cuh"

#include <stdlib.h>

enum {
    LANES = 8,            // threads beside one another in a row
    ROWS = BLOCK / LANES, // rows that a block reads together
    WARPS = BLOCK / WARP,
    BLOCKS_OF_PROCESSOR = 4,
    LEAST_ROWS = 2 * ROWS, // of a slab
};

template <typename T> constexpr int COLUMNS = LANES *WIDE<T>; // of a block

template <typename T> struct column_sums {
    float *dw, *db, *part; // part[slab][2][n]
    unsigned *arrived;     // per block of columns: how many slabs are summed; 0 between runs
    const T *dy, *x;
    const float *stats;
    int64_t ldy, ldx, heads, m, rows; // rows of a slab
    int n, slabs;
    bool accumulate;
};

// The slabs' sums of a column, in order. All reads are under way together.
static __device__ float sum_of_slabs(const float *part, int64_t stride, int slabs) {
    float sum = 0;
#pragma unroll 16
    for (int i = 0; i < slabs; i++)
        sum += __ldcg(part + i * stride); // not from a cache that other blocks do not write
    return sum;
}

// NORM: sums of dy xhat, and of dy; else only of dy.
template <typename T, bool NORM>
__global__ void __launch_bounds__(BLOCK, BLOCKS_OF_PROCESSOR)
    column_sums_kernel(const struct column_sums<T> s) {
    __shared__ float sums[WARPS][2][COLUMNS<T>];
    __shared__ bool is_last;
    const int t = threadIdx.x, lane = t % LANES, warp = t / WARP;
    const int column = blockIdx.x * COLUMNS<T> + lane * WIDE<T>;
    const int64_t begin = blockIdx.y * s.rows, end = begin + s.rows < s.m ? begin + s.rows : s.m;
    floats<T> w = {}, b = {};
    if (column < s.n) {
#pragma unroll(NORM ? 2 : 4)
        for (int64_t i = begin + t / LANES; i < end; i += ROWS) {
            const floats<T> d = read_wide(s.dy + head_at(i, s.heads, s.ldy, s.n) + column);
            floats<T> x;
            float2 stat;
            if (NORM) {
                x = read_wide(s.x + head_at(i, s.heads, s.ldx, s.n) + column);
                stat = *(const float2 *)(s.stats + 2 * i);
            }
#pragma unroll
            for (int k = 0; k < WIDE<T>; k++) {
                if (NORM)
                    w.x[k] += d.x[k] * (x.x[k] - stat.x) * stat.y;
                b.x[k] += d.x[k];
            }
        }
    }
#pragma unroll
    for (int k = 0; k < WIDE<T>; k++) {
        for (int offset = LANES; offset < WARP; offset *= 2) { // the rows of the warp
            if (NORM)
                w.x[k] += __shfl_xor_sync(0xffffffffu, w.x[k], offset);
            b.x[k] += __shfl_xor_sync(0xffffffffu, b.x[k], offset);
        }
        if (t % WARP < LANES) {
            sums[warp][0][lane * WIDE<T> + k] = w.x[k];
            sums[warp][1][lane * WIDE<T> + k] = b.x[k];
        }
    }
    __syncthreads();
    // From here on a thread has one column of one of the two sums.
    const int which = t / COLUMNS<T>, j = blockIdx.x * COLUMNS<T> + t % COLUMNS<T>;
    const bool mine = which < 2 && (NORM || which == 1) && j < s.n;
    float sum = 0;
    if (mine)
        for (int i = 0; i < WARPS; i++)
            sum += sums[i][which][t % COLUMNS<T>];
    if (s.slabs > 1) {
        if (mine)
            s.part[((int64_t)blockIdx.y * 2 + which) * s.n + j] = sum;
        __threadfence();
        __syncthreads();
        if (t == 0)
            is_last = atomicAdd(&s.arrived[blockIdx.x], 1) == (unsigned)s.slabs - 1;
        __syncthreads();
        if (!is_last)
            return;
        __threadfence();
        if (t == 0)
            s.arrived[blockIdx.x] = 0;
        if (mine)
            sum = sum_of_slabs(s.part + (int64_t)which * s.n + j, 2 * (int64_t)s.n, s.slabs);
    }
    float *to = which == 0 ? s.dw : s.db;
    if (mine && to)
        put(&to[j], sum, s.accumulate);
}

// ---------------------------------------------------------------- launches

// How many slabs fill the device once, and whether their sums fit in the scratch.
template <typename T>
static int slabs_of(const struct cuda *s, const struct op_call *c, int64_t rows) {
    const int64_t blocks = ceil_div(c->op->n, COLUMNS<T>),
                  room = c->scratch.cols / (2 * c->op->n * (int64_t)sizeof(float));
    int64_t slabs = (int64_t)s->processors * BLOCKS_OF_PROCESSOR / blocks;
    slabs = slabs < room ? slabs : room;
    slabs = slabs < rows / LEAST_ROWS ? slabs : rows / LEAST_ROWS;
    return (int)(slabs > 1 ? slabs : 1);
}

// Input `stats`: the statistics, behind x; 0: sums of dy alone.
template <typename T, bool NORM>
static int sum_columns(struct cuda *s, const struct op_call *c, cudaStream_t stream,
                       struct err *e) {
    const struct op *op = c->op;
    struct column_sums<T> a = {};
    a.dw = NORM ? (float *)c->out[0].data : NULL, a.db = (float *)c->out[NORM].data;
    a.part = (float *)c->scratch.data, a.arrived = (unsigned *)cuda_own(c);
    a.dy = (const T *)c->in[0].data, a.ldy = c->in[0].ld;
    if (NORM) {
        a.x = (const T *)c->in[1].data, a.ldx = c->in[1].ld;
        a.stats = (const float *)c->in[2].data;
    }
    a.heads = NORM ? op_norm_heads(op) : 1, a.m = op->m * a.heads, a.n = (int)op->n;
    a.slabs = slabs_of<T>(s, c, a.m), a.rows = ceil_div(a.m, a.slabs);
    a.accumulate = (op->flags & OP_ACCUMULATE) != 0;
    const dim3 grid((unsigned)ceil_div(op->n, COLUMNS<T>), (unsigned)a.slabs);
    column_sums_kernel<T, NORM><<<grid, BLOCK, 0, stream>>>(a);
    return cuda_launched(s, c, e);
}

static void drop_counters(void *own) {
    cudaFree(own);
}

template <typename T, bool NORM>
static int make_sums(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                     struct err *e) {
    const struct op *op = c->op;
    const int64_t blocks = ceil_div(op->n, COLUMNS<T>);
    if (op->m == 0 || op->n == 0 || op->n % WIDE<T> != 0 || op->n > INT32_MAX / 2 ||
        !wide_rows<T>(c->in[0].data, c->in[0].ld, op->m) ||
        (NORM && (!wide_rows<T>(c->in[1].data, c->in[1].ld, op->m) ||
                  (uintptr_t)c->in[2].data % sizeof(float2) != 0)))
        return 0;
    const size_t bytes = (size_t)blocks * sizeof(unsigned);
    TRY(cuda_check(s, cudaMalloc(&made->own, bytes), "counters of a sum", e));
    made->drop = drop_counters;
    made->run = sum_columns<T, NORM>;
    return cuda_check(s, cudaMemset(made->own, 0, bytes), "counters of a sum", e);
}

template <typename T> void cuda_add_fast_sums(struct cuda_table *t) {
    t->fast[OP_NORM_DW] = make_sums<T, true>;
    t->fast[OP_BIAS_DB] = make_sums<T, false>;
}
template void cuda_add_fast_sums<float>(struct cuda_table *);
template void cuda_add_fast_sums<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_sums<__half>(struct cuda_table *);

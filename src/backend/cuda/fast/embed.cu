// embed.cu - rows of a table fetched by id, and their gradients added up by id.
//
// The gradient first puts the positions of the ids in order: by id, and by position where ids are
// equal. Then it cuts them into chunks. A warp adds up a chunk's rows of dx, one run of equal ids
// after the other, into the row of the table. A run that began in the chunk before is put aside,
// and a last kernel adds such parts to the table, in order. So the order of a sum follows from the
// ids alone, and a run that fills many chunks is the work of many warps.
#include "backend/cuda/fast/fast.cuh"

#include <math_constants.h>

enum {
    WARPS = BLOCK / WARP,
    BUCKETS = 256,      // ranges of ids; a block puts those of one range in order
    MOST_WIDTH = 1024,  // ids of a range
    TOGETHER = 4,       // reads of a thread that are under way at the same time
    COLUMNS = 4 * WARP, // of a block that adds up runs over several chunks
};

// ---------------------------------------------------------------- fetching

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    embed_kernel(T *x, int64_t ldx, const int32_t *ids, const T *table, int64_t ldt,
                 const int32_t *positions, const T *places, int64_t ldp, int64_t rows,
                 int64_t first, bool part, uint32_t of_row, uint32_t accesses) {
    const uint32_t k = blockIdx.x * (uint32_t)BLOCK + threadIdx.x;
    if (k >= accesses)
        return;
    const int64_t i = k / of_row, j = (int64_t)(k % of_row) * WIDE<T>;
    const int64_t id = ids[i] - first, position = places ? positions[i] : 0;
    const bool here = id >= 0 && id < rows; // else another rank has the row, if it is a part
    const bool bad = (!here && !part) || position < 0;
    floats<T> v = {};
    if (here && !bad)
        v = read_wide(table + id * ldt + j);
    if (places && !bad) {
        const floats<T> place = read_wide(places + position * ldp + j);
#pragma unroll
        for (int l = 0; l < WIDE<T>; l++)
            v.x[l] += place.x[l];
    }
    if (bad)
#pragma unroll
        for (int l = 0; l < WIDE<T>; l++)
            v.x[l] = CUDART_NAN_F;
    write_wide(x + i * ldx + j, v);
}

template <typename T>
static int embed(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    const bool placed = c->in[2].data && c->in[3].data;
    const uint32_t of_row = (uint32_t)(op->n / WIDE<T>), accesses = (uint32_t)op->m * of_row;
    embed_kernel<<<(unsigned)ceil_div(accesses, BLOCK), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const int32_t *)c->in[0].data, (const T *)c->in[1].data,
        c->in[1].ld, (const int32_t *)c->in[2].data, placed ? (const T *)c->in[3].data : NULL,
        c->in[3].ld, op->k, op->first, (op->flags & OP_PART) != 0, of_row, accesses);
    return cuda_launched(s, c, e);
}

template <typename T>
static int make_embed(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                      struct err *e) {
    const struct op *op = c->op;
    (void)s, (void)e;
    if (c->in[1].storage.kind == STORAGE_PLAIN && op->m > 0 && op->n > 0 && op->n % WIDE<T> == 0 &&
        op->m * (op->n / WIDE<T>) < INT32_MAX && wide_rows<T>(c->in[1].data, c->in[1].ld, op->k) &&
        wide_rows<T>(c->in[3].data, c->in[3].ld, op->positions) &&
        wide_rows<T>(c->out[0].data, c->out[0].ld, op->m))
        made->run = embed<T>;
    return 0;
}

// ---------------------------------------------------------------- the order of the ids

// The row of the table that an id names; -1: none of this table's.
static __device__ int row_of_id(int32_t id, int64_t first, int rows) {
    const int64_t row = (int64_t)id - first;
    return row >= 0 && row < rows ? (int)row : -1;
}

// The sum over the threads before this one.
static __device__ int sum_before(int x) {
    __shared__ int part[WARPS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int sum = x;
    for (int offset = 1; offset < WARP; offset *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, offset);
        sum += lane >= offset ? other : 0;
    }
    if (lane == WARP - 1)
        part[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++)
        sum += part[w];
    return sum - x;
}

// Goes through a warp's part of the ids, in order. `below` counts those before the range. For each
// that is in the range, count[id - low] is raised; with `order`, its value before is where the id
// belongs.
static __device__ void walk(const int32_t *ids, int64_t first, int rows, int begin, int end,
                            int low, int high, int *count, int *below, int *order, int *sorted) {
    const int lane = threadIdx.x % WARP;
    for (int base = begin; base < end; base += TOGETHER * WARP) {
        int row[TOGETHER];
#pragma unroll
        for (int u = 0; u < TOGETHER; u++) {
            const int i = base + u * WARP + lane;
            row[u] = i < end ? row_of_id(ids[i], first, rows) : -1;
        }
#pragma unroll
        for (int u = 0; u < TOGETHER; u++) {
            const bool match = row[u] >= low && row[u] < high;
            const unsigned matches = __ballot_sync(0xffffffffu, match);
            *below += row[u] >= 0 && row[u] < low;
            if (matches == 0)
                continue;
            if (match) {
                const unsigned same = __match_any_sync(matches, row[u]);
                const int rank = __popc(same & ((1u << lane) - 1)), at = count[row[u] - low];
                __syncwarp(matches);
                if (rank == 0)
                    count[row[u] - low] = at + __popc(same);
                if (order) {
                    order[at + rank] = base + u * WARP + lane;
                    sorted[at + rank] = row[u];
                }
            }
            __syncwarp();
        }
    }
}

// order: positions of the ids that name a row, by row and then by position. sorted: their rows.
// found: how many. A block has the rows [low, high).
static __global__ void __launch_bounds__(BLOCK)
    order_kernel(int *order, int *sorted, int *found, const int32_t *ids, int64_t first, int rows,
                 int width, int m) {
    __shared__ int count[WARPS][MOST_WIDTH];
    const int t = threadIdx.x, warp = t / WARP;
    const int low = blockIdx.x * width, high = low + width < rows ? low + width : rows;
    const int share = (m + WARPS - 1) / WARPS, begin = warp * share,
              end = begin + share < m ? begin + share : m;
    for (int w = 0; w < WARPS; w++)
        for (int b = t; b < width; b += BLOCK)
            count[w][b] = 0;
    __syncthreads();
    int below = 0, ignored = 0;
    walk(ids, first, rows, begin, end, low, high, count[warp], &below, NULL, NULL);
    below = block_sum(below); // also waits for all counts
    // Counts become places: by row, and for each row by the parts of the ids.
    const int each = (width + BLOCK - 1) / BLOCK, from = t * each,
              to = from + each < width ? from + each : width;
    int mine = 0;
    for (int b = from; b < to; b++)
        for (int w = 0; w < WARPS; w++)
            mine += count[w][b];
    int at = below + sum_before(mine);
    for (int b = from; b < to; b++)
        for (int w = 0; w < WARPS; w++) {
            const int n = count[w][b];
            count[w][b] = at;
            at += n;
        }
    if (blockIdx.x == gridDim.x - 1 && t == BLOCK - 1)
        *found = at;
    __syncthreads();
    walk(ids, first, rows, begin, end, low, high, count[warp], &ignored, order, sorted);
}

// ---------------------------------------------------------------- sums

struct runs {
    float *table, *part; // part[chunk][n]: of the run that began in the chunk before
    int64_t ldt;
    const int *order, *sorted, *found;
    int chunk, n;
};

template <typename T>
static __device__ void end_run(const struct runs &r, const floats<T> &sum, int chunk, int row,
                               bool began_before, int column) {
    float *to = began_before ? r.part + (int64_t)chunk * r.n : r.table + row * r.ldt;
#pragma unroll
    for (int k = 0; k < WIDE<T>; k += 4) {
        float4 *four = (float4 *)(to + column + k);
        float4 v = began_before ? make_float4(0, 0, 0, 0) : *four;
        v.x += sum.x[k], v.y += sum.x[k + 1], v.z += sum.x[k + 2], v.w += sum.x[k + 3];
        *four = v;
    }
}

// A warp adds up the rows of a chunk in WARP * WIDE<T> columns.
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    sum_chunks_kernel(const struct runs r, const T *dx, int64_t ldx) {
    const int lane = threadIdx.x % WARP, chunk = blockIdx.x * WARPS + threadIdx.x / WARP;
    const int column = (blockIdx.y * WARP + lane) * WIDE<T>, found = *r.found;
    const int64_t begin = (int64_t)chunk * r.chunk,
                  end = begin + r.chunk < found ? begin + r.chunk : found;
    if (begin >= end)
        return;
    int current = r.sorted[begin];
    bool began_before = begin > 0 && r.sorted[begin - 1] == current;
    floats<T> sum = {};
    for (int64_t base = begin; base < end; base += WARP) {
        const int here = end - base < WARP ? (int)(end - base) : (int)WARP;
        const int from = lane < here ? r.order[base + lane] : 0,
                  row = lane < here ? r.sorted[base + lane] : 0;
        for (int u = 0; u < here; u += TOGETHER) {
            uint4 bits[TOGETHER];
#pragma unroll
            for (int v = 0; v < TOGETHER; v++) {
                const int64_t i = __shfl_sync(0xffffffffu, from, u + v);
                if (column < r.n && u + v < here)
                    bits[v] = load16(dx + i * ldx + column);
            }
#pragma unroll
            for (int v = 0; v < TOGETHER; v++) {
                const int next = __shfl_sync(0xffffffffu, row, u + v);
                if (u + v >= here)
                    continue;
                if (next != current) {
                    if (column < r.n)
                        end_run<T>(r, sum, chunk, current, began_before, column);
                    current = next, began_before = false, sum = {};
                }
                const floats<T> d = widen<T>(bits[v]);
#pragma unroll
                for (int k = 0; k < WIDE<T>; k++)
                    sum.x[k] += d.x[k];
            }
        }
    }
    if (column < r.n)
        end_run<T>(r, sum, chunk, current, began_before, column);
}

// The block of the first chunk that a run reaches into adds the parts of all further chunks.
static __global__ void __launch_bounds__(BLOCK) sum_parts_kernel(const struct runs r) {
    __shared__ float4 sums[WARPS][WARP];
    const int t = threadIdx.x, lane = t % WARP, warp = t / WARP;
    const int64_t chunk = blockIdx.x + 1, found = *r.found, begin = chunk * r.chunk;
    if (begin >= found)
        return;
    const int row = r.sorted[begin];
    if (r.sorted[begin - 1] != row || (chunk > 1 && r.sorted[begin - r.chunk - 1] == row))
        return;
    const int64_t chunks = (found + r.chunk - 1) / r.chunk;
    int64_t last = chunk; // behind the last chunk of the run
    for (int count = BLOCK; count == BLOCK; last += count)
        count = __syncthreads_count(last + t < chunks && r.sorted[(last + t) * r.chunk] == row);
    const int column = blockIdx.y * COLUMNS + lane * 4;
    float4 sum = make_float4(0, 0, 0, 0);
    if (column < r.n)
#pragma unroll 8
        for (int64_t d = chunk + warp; d < last; d += WARPS) {
            const float4 v = *(const float4 *)(r.part + d * r.n + column);
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || column >= r.n)
        return;
    float4 *to = (float4 *)(r.table + row * r.ldt + column);
    sum = *to;
    for (int w = 0; w < WARPS; w++) {
        const float4 v = sums[w][lane];
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    *to = sum;
}

// ---------------------------------------------------------------- launches

template <typename T>
static int embed_dw(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    const int m = (int)op->m, chunk = (int)cuda_embed_chunk(op->m),
              chunks = (int)ceil_div(m, chunk), width = (int)ceil_div(op->k, BUCKETS);
    struct runs r = {};
    r.table = (float *)c->out[0].data, r.ldt = c->out[0].ld, r.n = (int)op->n, r.chunk = chunk;
    r.part = (float *)c->scratch.data; // first, because its rows begin at multiples of 16 bytes
    int *order = (int *)(r.part + (int64_t)chunks * op->n), *sorted = order + m,
        *found = sorted + m;
    r.order = order, r.sorted = sorted, r.found = found;
    if (!(op->flags & OP_ACCUMULATE)) {
        const size_t width_bytes = (size_t)op->n * sizeof(float);
        TRY(cuda_check(s,
                       c->out[0].ld == op->n
                           ? cudaMemsetAsync(r.table, 0, (size_t)op->k * width_bytes, stream)
                           : cudaMemset2DAsync(r.table, (size_t)r.ldt * sizeof(float), 0,
                                               width_bytes, (size_t)op->k, stream),
                       "embed_dw", e));
    }
    order_kernel<<<(unsigned)ceil_div(op->k, width), BLOCK, 0, stream>>>(
        order, sorted, found, (const int32_t *)c->in[0].data, op->first, (int)op->k, width, m);
    const dim3 grid((unsigned)ceil_div(chunks, WARPS), (unsigned)ceil_div(op->n, WARP * WIDE<T>));
    sum_chunks_kernel<T><<<grid, BLOCK, 0, stream>>>(r, (const T *)c->in[1].data, c->in[1].ld);
    if (chunks > 1)
        sum_parts_kernel<<<dim3((unsigned)chunks - 1, (unsigned)ceil_div(op->n, COLUMNS)), BLOCK, 0,
                           stream>>>(r);
    return cuda_launched(s, c, e);
}

template <typename T>
static int make_embed_dw(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                         struct err *e) {
    const struct op *op = c->op;
    (void)s, (void)e;
    if (op->m > 0 && op->m < 1 << 24 && op->k > 0 && op->k <= BUCKETS * MOST_WIDTH && op->n > 0 &&
        op->n % WIDE<T> == 0 && op->n < 1 << 20 &&
        wide_rows<T>(c->in[1].data, c->in[1].ld, op->m) &&
        wide_rows<float>(c->out[0].data, c->out[0].ld, op->k) && aligned16(c->scratch.data))
        made->run = embed_dw<T>;
    return 0;
}

template <typename T> void cuda_add_fast_embed(struct cuda_table *t) {
    t->fast[OP_EMBED] = make_embed<T>;
    t->fast[OP_EMBED_DW] = make_embed_dw<T>;
}
template void cuda_add_fast_embed<float>(struct cuda_table *);
template void cuda_add_fast_embed<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_embed<__half>(struct cuda_table *);

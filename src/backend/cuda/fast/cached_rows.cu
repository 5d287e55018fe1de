// cached_rows.cu - attention of many rows over a cache, as for a prompt, on tensor cores.
//
// A block has a head of keys and 64 pairs of a row and one of the query heads that share it, 16 for
// each warp. It goes through the keys of the rows' sequence in tiles of 64, with a running maximum,
// sum and output for each pair. Rows that follow one another mostly belong to one sequence. Where
// they do not, the block goes through the keys of every run of rows, and the other pairs see none
// of them.
#include "backend/cuda/fast/cached.cuh"
#include "backend/cuda/fast/chain.cuh"
#include "backend/cuda/fast/codes.cuh"

#include <math_constants.h>

enum { WARPS = 4, PAIRS = 64, KEYS = 64, STAGES = 2 };

// Bytes between rows of a tile of keys, and of values: so that what lanes read together lies in
// different banks. COLUMNS are those of a head, in whole pieces of 32.
template <int COLUMNS> constexpr int KEY_BYTES = (COLUMNS * 2 + 127) / 128 * 128 + 64;
template <int COLUMNS> constexpr int VALUE_BYTES = COLUMNS * 2 + 16;
template <int COLUMNS>
constexpr int STAGE_BYTES = KEYS *(KEY_BYTES<COLUMNS> + VALUE_BYTES<COLUMNS>);

static inline __device__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Fetches the keys and values t0 .. t0 + 63 of a sequence. What is behind the last, or behind the
// columns of a head, becomes 0.
template <typename T, int COLUMNS>
static __device__ void fetch(const cached_args<T> &a, unsigned to, const T *keys, const T *values,
                             int t0, int end) {
    enum { PIECES = COLUMNS / 8 };
    for (int i = threadIdx.x; i < KEYS * PIECES; i += WARPS * WARP) {
        const int row = i / PIECES, piece = i % PIECES, t = t0 + row;
        const bool inside = t < end && piece * 8 < a.dim;
        copy_async<16>(to + row * KEY_BYTES<COLUMNS> + piece * 16,
                       inside ? keys + t * a.ldk + piece * 8 : keys, inside ? 16 : 0);
        copy_async<16>(to + KEYS * KEY_BYTES<COLUMNS> + row * VALUE_BYTES<COLUMNS> + piece * 16,
                       inside ? values + t * a.ldv + piece * 8 : values, inside ? 16 : 0);
    }
}

// What a lane has of its warp's 16 pairs: of pairs g and g + 8, columns that it shares with three
// other lanes.
template <int COLUMNS> struct state { float out[COLUMNS / 8][4], maximum[2], sum[2]; };

// A tile of keys that begins at t0. last: the last key that pairs g and g + 8 see of this sequence.
template <typename T, int COLUMNS>
static __device__ void attend(struct state<COLUMNS> &s, const uint4 (&q)[2][COLUMNS / 32],
                              const char *tile, unsigned at, int t0, const int (&last)[2],
                              float scale) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    float score[KEYS / 8][4];
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int l = 0; l < 4; l++)
            score[n][l] = 0;
#pragma unroll
        for (int c = 0; c < COLUMNS / 32; c++) {
            const uint4 k =
                *(const uint4 *)(tile + (n * 8 + g) * KEY_BYTES<COLUMNS> + (c * 32 + t * 8) * 2);
            tile_product<T>(score[n], q[0][c].x, q[1][c].x, q[0][c].y, q[1][c].y, k.x, k.y);
            tile_product<T>(score[n], q[0][c].z, q[1][c].z, q[0][c].w, q[1][c].w, k.z, k.w);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = s.maximum[r];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int l = 2 * r; l < 2 * r + 2; l++) {
                const bool seen = t0 + n * 8 + 2 * t + l % 2 <= last[r];
                score[n][l] = seen ? score[n][l] * scale : -CUDART_INF_F;
                top = fmaxf(top, score[n][l]);
            }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        // A score that is NaN is never the maximum, but a power of NaN carries it into the sum.
        const float shift = top == -CUDART_INF_F ? 0 : top,
                    keep = power_of_two(s.maximum[r] - shift);
        s.maximum[r] = top;
        s.sum[r] *= keep;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int l = 2 * r; l < 2 * r + 2; l++) {
                score[n][l] = power_of_two(score[n][l] - shift);
                s.sum[r] += score[n][l];
            }
#pragma unroll
        for (int d = 0; d < COLUMNS / 8; d++)
            s.out[d][2 * r] *= keep, s.out[d][2 * r + 1] *= keep;
    }
    const unsigned values =
        at + KEYS * KEY_BYTES<COLUMNS> + lane % 16 * VALUE_BYTES<COLUMNS> + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        const float(&low)[4] = score[2 * k], (&high)[4] = score[2 * k + 1];
        const unsigned p[4] = {two_of<T>(low[0], low[1]), two_of<T>(low[2], low[3]),
                               two_of<T>(high[0], high[1]), two_of<T>(high[2], high[3])};
#pragma unroll
        for (int d = 0; d < COLUMNS / 8; d += 2) {
            unsigned v[4];
            turned_tiles(v, values + k * 16 * VALUE_BYTES<COLUMNS> + d * 16);
            tile_product<T>(s.out[d], p[0], p[1], p[2], p[3], v[0], v[1]);
            tile_product<T>(s.out[d + 1], p[0], p[1], p[2], p[3], v[2], v[3]);
        }
    }
}

// A pair of a row and a query head. `last`: its last key; -1: it sees none.
struct pair {
    int64_t row, head;
    int sequence, last;
    bool here, bad;
};

template <typename T>
static __device__ struct pair pair_of(const cached_args<T> &a, int index, int heads, int rows,
                                      int64_t m) {
    struct pair p = {};
    const int first = blockIdx.y % a.chunks * heads, of_row = first + index % heads;
    p.row = (int64_t)blockIdx.x * rows + index / heads;
    p.head = (int64_t)(blockIdx.y / a.chunks) * a.shared + of_row;
    p.here = index / heads < rows && p.row < m && of_row < a.shared;
    p.sequence = p.last = -1;
    if (!p.here)
        return p;
    p.sequence = a.sequences[p.row];
    const int position = a.positions[p.row];
    p.bad = p.sequence >= a.batch || (p.sequence >= 0 && (position < 0 || position >= a.capacity));
    p.last = p.bad || p.sequence < 0 ? -1 : position;
    return p;
}

template <typename T, int COLUMNS>
__global__ void __launch_bounds__(WARPS *WARP)
    rows_kernel(const cached_args<T> a, int heads, int rows, int64_t m) {
    extern __shared__ uint4 shared[];
    __shared__ int sequences[PAIRS], lasts[PAIRS]; // of the block's rows
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const unsigned to = shared_address(shared);
    struct pair p[2];
    for (int r = 0; r < 2; r++)
        p[r] = pair_of(a, warp * 16 + g + 8 * r, heads, rows, m);
    if ((int)threadIdx.x < rows) {
        const struct pair first = pair_of(a, (int)threadIdx.x * heads, heads, rows, m);
        sequences[threadIdx.x] = first.sequence, lasts[threadIdx.x] = first.last;
    }
    chain_wait();
    chain_next();
    __syncthreads();
    uint4 q[2][COLUMNS / 32];
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS / 32; c++) {
            q[r][c] = uint4{};
            if (p[r].here && c * 32 + t * 8 < a.dim)
                q[r][c] = load16(a.q + p[r].row * a.ldq + p[r].head * a.dim + c * 32 + t * 8);
        }
    struct state<COLUMNS> s;
#pragma unroll
    for (int r = 0; r < 2; r++)
        s.maximum[r] = -CUDART_INF_F, s.sum[r] = 0;
#pragma unroll
    for (int d = 0; d < COLUMNS / 8; d++)
#pragma unroll
        for (int l = 0; l < 4; l++)
            s.out[d][l] = 0;

    const float scale = a.scale * 1.44269504088896340736f; // powers of two, not of e
    for (int begin = 0, end; begin < rows; begin = end) {
        const int b = sequences[begin];
        int keys = lasts[begin] + 1;
        for (end = begin + 1; end < rows && sequences[end] == b; end++)
            keys = lasts[end] + 1 > keys ? lasts[end] + 1 : keys;
        const int64_t head = (int64_t)(blockIdx.y / a.chunks) * a.dim;
        const T *const k = a.kcache + (int64_t)b * a.capacity * a.ldk + head, *const v =
                                                                                  a.vcache +
                                                                                  (int64_t)b *
                                                                                      a.capacity *
                                                                                      a.ldv +
                                                                                  head;
        int last[2]; // a sequence may have other runs
        for (int r = 0; r < 2; r++) {
            const int row = (warp * 16 + g + 8 * r) / heads;
            last[r] = row >= begin && row < end ? p[r].last : -1;
        }
        if (keys > 0)
            fetch<T, COLUMNS>(a, to, k, v, 0, keys);
        copies_close();
        for (int t0 = 0, stage = 0; t0 < keys; t0 += KEYS, stage ^= 1) {
            if (t0 + KEYS < keys)
                fetch<T, COLUMNS>(a, to + (stage ^ 1) * STAGE_BYTES<COLUMNS>, k, v, t0 + KEYS,
                                  keys);
            copies_close();
            copies_wait<1>();
            __syncthreads();
            attend<T, COLUMNS>(s, q, (const char *)shared + stage * STAGE_BYTES<COLUMNS>,
                               to + stage * STAGE_BYTES<COLUMNS>, t0, last, scale);
            __syncthreads();
        }
    }
    copies_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = s.sum[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (!p[r].here)
            continue;
        T *o = a.o + p[r].row * a.ldo + p[r].head * a.dim + 2 * t;
        const bool idle = p[r].sequence < 0;
#pragma unroll
        for (int d = 0; d < COLUMNS / 8; d++)
            if (d * 8 < a.dim)
                for (int l = 0; l < 2; l++)
                    o[d * 8 + l] = rounded<T>(p[r].bad ? CUDART_NAN_F
                                              : idle   ? 0
                                                       : s.out[d][2 * r + l] / sum);
    }
}

template <typename T, int COLUMNS>
static int run_rows(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    const int64_t shared = op->heads / op->kv_heads;
    const int heads = shared < PAIRS ? (int)shared : (int)PAIRS, rows = PAIRS / heads;
    const cached_args<T> a = cached_args_of<T>(c, heads);
    return chain_launch(s, c, rows_kernel<T, COLUMNS>,
                        {dim3((unsigned)ceil_div(op->m, rows), (unsigned)(op->kv_heads * a.chunks)),
                         WARPS * WARP, STAGES * STAGE_BYTES<COLUMNS>, 0},
                        stream, e, a, heads, rows, op->m);
}

template <typename T, int COLUMNS>
static int take(struct cuda *s, const struct op_call *c, struct cuda_made *made, struct err *e) {
    if (STAGES * STAGE_BYTES < COLUMNS >> s->shared_bytes)
        return 0;
    made->run = run_rows<T, COLUMNS>;
    return chain_allow(s, c, rows_kernel<T, COLUMNS>, STAGES * STAGE_BYTES<COLUMNS>, e);
}

template <typename T>
int cuda_make_cached_rows(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                          struct err *e) {
    const int64_t dim = c->op->head_dim;
    return dim <= 64    ? take<T, 64>(s, c, made, e)
           : dim <= 128 ? take<T, 128>(s, c, made, e)
           : dim <= 256 ? take<T, 256>(s, c, made, e)
                        : 0;
}
template int cuda_make_cached_rows<__nv_bfloat16>(struct cuda *, const struct op_call *,
                                                  struct cuda_made *, struct err *);
template int cuda_make_cached_rows<__half>(struct cuda *, const struct op_call *,
                                           struct cuda_made *, struct err *);

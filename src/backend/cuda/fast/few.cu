// few.cu - products of up to 16 rows, by weights stored [n,k], plain or quantized. Their time is
// that of reading the weights, so everything here is about keeping reads under way.
//
// A tile is 8 rows of W. Of a tile, a warp takes a part of k, in stages of 128 bytes of each row,
// and has several stages under way in a ring of its own. `along` warps share a tile; the block's
// other warps have other tiles at the same time: a step. After some steps the block adds up what
// its warps have found, in order, so that warps rarely wait for one another. Blocks are as many as
// multiprocessors, and take steps in turns. W does not change during a turn, so the rings fill
// before the kernel in front has ended (chain.cuh).
//
// Tensor cores take W as the 8 columns of their second operand, and the rows of x as the 16 rows of
// the first. How k is divided follows from n and k, not from the number of rows, so a row's bits do
// not depend on the rows beside it.
//
// Products of the same x may be one launch (cuda_join_few): q, k and v, or gate and up.
#include "backend/cuda/elements.cuh"
#include "backend/cuda/fast/chain.cuh"
#include "backend/cuda/fast/codes.cuh"
#include "backend/cuda/fast/few.cuh"

#include <stdlib.h>

enum {
    WARPS = 16,
    PART_BYTES = 8 << 10, // for the sums of warps
    TILE = 8,             // rows of W
    ROW_BYTES = 128,      // of a row in a stage
    MOST_ROWS = 16,
    MOST_PARTS = 3,
};

// Stages of a ring. With more of them, two blocks would not fit on a multiprocessor.
template <typename F> constexpr int STAGES = F::EACH == 32 ? 4 : 5;
// Bytes between the rows of a stage, and of the whole: codes, then scales, then minima.
template <typename F> constexpr int ROW_STRIDE = F::EACH == 32 ? ROW_BYTES + 16 : (int)ROW_BYTES;
template <typename F>
constexpr int STAGE_BYTES = TILE *(ROW_STRIDE<F> + (int)F::PARTS * (int)F::SCALE_BYTES);
// Elements of a row in a stage.
template <typename F> constexpr int STAGE_K = ROW_BYTES / 16 * (int)F::EACH;

// A product: y = scale x W' + bias, and with `act` its activation.
struct part {
    const char *codes, *scales, *minima;
    const void *bias;
    void *y, *act;
    int64_t ldy, lda;
    int n, begin, end; // rows of W; tiles of the parts before this one, and with it
};

struct few_args {
    struct part part[MOST_PARTS];
    const void *x;
    int64_t ldx, row_bytes;                               // from one row of W to the next
    int m, k, parts, stages, along, steps, batch, groups; // batch: steps between two sums
    float scale;
    int act;
    bool accumulate;
};

// Elements of a row of x in shared memory, with a gap so that rows begin in different banks.
template <typename F> static inline __host__ __device__ int x_stride(int stages) {
    return stages * STAGE_K<F> + (F::EACH == 8 ? 32 : F::EACH == 16 ? 8 : 16);
}

template <typename F> static size_t shared_bytes(int m, int stages) {
    return (size_t)WARPS * STAGES<F> * STAGE_BYTES<F> + PART_BYTES +
           (size_t)m * (size_t)x_stride<F>(stages) * 2;
}

// Where piece p of 16 bytes of a row lies, so that the lanes that read together hit all banks: four
// pieces of two rows, or a word of eight rows.
template <typename F> static inline __device__ int place_of(int row, int p) {
    return row * ROW_STRIDE<F> + (F::EACH == 32 ? p : p ^ (row & 1) << 2) * 16;
}

static inline __device__ const struct part &part_of(const struct few_args &a, int tile) {
    return a.part[a.parts > 2 && tile >= a.part[1].end ? 2 : a.parts > 1 && tile >= a.part[0].end];
}

// What a lane fetches of the stages of a tile: 16 bytes of two rows, four rows apart, and a word of
// the scales of a row. Where there are no such rows it fetches zeros.
template <typename F> struct reader {
    enum { WORDS = F::SCALE_BYTES > 0 ? F::SCALE_BYTES / 4 : 1 }; // of the scales of a row
    const char *codes, *scales, *minima;
    int rows_left, scale_rows_left;

    __device__ void seek(const struct few_args &a, int tile, int lane) {
        const struct part &p = part_of(a, tile);
        const int row = (tile - p.begin) * TILE + lane / 8;
        rows_left = p.n - row;
        codes = p.codes + (rows_left > 0 ? row * a.row_bytes + lane % 8 * 16 : 0);
        if (F::PARTS > 0) {
            const int scale_row = (tile - p.begin) * TILE + lane / WORDS;
            scale_rows_left = lane < TILE * WORDS ? p.n - scale_row : 0;
            const int64_t at =
                scale_rows_left > 0 ? ((int64_t)scale_row * a.groups + lane % WORDS * 2) * 2 : 0;
            scales = p.scales + at;
            minima = p.minima + at;
        }
    }

    __device__ void fetch(const struct few_args &a, unsigned to, int stage, int lane) const {
        const int at = stage * ROW_BYTES, row = lane / 8, piece = lane % 8;
        const bool inside = at + piece * 16 < a.k * 16 / F::EACH;
        const bool one = inside && rows_left > 0, two = inside && rows_left > 4;
        copy_async<16>(to + place_of<F>(row, piece), one ? codes + at : codes, one ? 16 : 0);
        copy_async<16>(to + place_of<F>(row + 4, piece), two ? codes + at + 4 * a.row_bytes : codes,
                       two ? 16 : 0);
        if (F::PARTS > 0 && lane < TILE * WORDS) {
            const int first = stage * (F::SCALE_BYTES / 2); // group
            const bool scaled = scale_rows_left > 0 && first + lane % WORDS * 2 < a.groups;
            const unsigned place = to + TILE * ROW_STRIDE<F> + lane * 4;
            copy_async<4>(place, scaled ? scales + first * 2 : scales, scaled ? 4 : 0);
            if (F::PARTS > 1)
                copy_async<4>(place + TILE * F::SCALE_BYTES, scaled ? minima + first * 2 : minima,
                              scaled ? 4 : 0);
        }
    }
};

// The rows of x of a lane. Where there is none it has another row, because what the tensor cores
// make of one row does not depend on the others, and nobody reads the result.
struct rows_of_x {
    const uint16_t *low, *high;
};

template <typename U, bool TWO>
static __device__ void read_x(U(&low), U(&high), const struct rows_of_x &x, int at) {
    low = *(const U *)(x.low + at);
    high = U{};
    if (TWO)
        high = *(const U *)(x.high + at);
}

// Adds the product of a stage. x: the rows from the stage's first element on.
template <typename T, typename F, bool TWO>
static __device__ void multiply(float (&sum)[2][4], const char *stage, const struct rows_of_x x) {
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    if constexpr (F::EACH == 32) {
        typedef typename word_of<F::SCALE_BYTES>::type words;
        enum { GROUPS = F::SCALE_BYTES / 2, BLOCKS = F::GROUP / 32 };
        __half scale[2][GROUPS], minimum[2][GROUPS];
        const char *scales = stage + TILE * ROW_STRIDE<F>;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const words w = *(const words *)(scales + (2 * t + i) * F::SCALE_BYTES);
            memcpy(scale[i], &w, sizeof w);
            if (F::PARTS > 1) {
                const words v = *(const words *)(scales + (TILE + 2 * t + i) * F::SCALE_BYTES);
                memcpy(minimum[i], &v, sizeof v);
            }
        }
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            float part[4] = {}, ones[4] = {};
#pragma unroll
            for (int block = group * BLOCKS; block < (group + 1) * BLOCKS; block++) {
                const unsigned w = *(const unsigned *)(stage + place_of<F>(g, block) + 4 * t);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint2 low, high;
                    read_x<uint2, TWO>(low, high, x, block * 32 + half * 16 + 4 * t);
                    tile_product<T>(part, low.x, high.x, low.y, high.y,
                                    int4_pair<T, (F::PARTS > 1)>(w >> 4 * half),
                                    int4_pair<T, (F::PARTS > 1)>(w >> (4 * half + 8)));
                    if (F::PARTS > 1) { // the sum of x
                        const unsigned one = __is_same(T, __half) ? 0x3c003c00u : 0x3f803f80u;
                        tile_product<T>(ones, low.x, high.x, low.y, high.y, one, one);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < (TWO ? 4 : 2); i++) {
                sum[0][i] += __half2float(scale[i & 1][group]) * part[i];
                if (F::PARTS > 1)
                    sum[0][i] += __half2float(minimum[i & 1][group]) * ones[i];
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int piece = t + 4 * i;
            const uint4 w = *(const uint4 *)(stage + place_of<F>(g, piece));
            uint4 low, high;
            read_x<uint4, TWO>(low, high, x, piece * F::EACH);
            if (F::EACH == 8) {
                tile_product<T>(sum[0], low.x, high.x, low.y, high.y, w.x, w.y);
                tile_product<T>(sum[1], low.z, high.z, low.w, high.w, w.z, w.w);
            } else {
                tile_product<T>(sum[0], low.x, high.x, low.y, high.y, int8_pair<T>(w.x),
                                int8_pair<T>(w.x >> 8));
                tile_product<T>(sum[1], low.z, high.z, low.w, high.w, int8_pair<T>(w.y),
                                int8_pair<T>(w.y >> 8));
                read_x<uint4, TWO>(low, high, x, piece * F::EACH + 8);
                tile_product<T>(sum[0], low.x, high.x, low.y, high.y, int8_pair<T>(w.z),
                                int8_pair<T>(w.z >> 8));
                tile_product<T>(sum[1], low.z, high.z, low.w, high.w, int8_pair<T>(w.w),
                                int8_pair<T>(w.w >> 8));
            }
        }
    }
}

// Element (row, j) of the part that has the tile.
template <typename T, typename F>
static __device__ void write(const struct few_args &a, int tile, int column, int row, float sum) {
    const struct part &p = part_of(a, tile);
    const int j = (tile - p.begin) * TILE + column;
    if (j >= p.n)
        return;
    sum *= F::EACH == 16 ? a.scale * ((const float *)p.scales)[j] : a.scale;
    if (p.bias)
        sum += value(((const T *)p.bias)[j]);
    T *y = (T *)p.y + row * p.ldy + j;
    if (a.accumulate)
        sum += value(*y);
    *y = rounded<T>(sum);
    if (p.act)
        ((T *)p.act)[row * p.lda + j] = rounded<T>(act_value<T>(value(rounded<T>(sum)), a.act));
}

template <typename T, typename F, bool TWO>
__global__ void __launch_bounds__(WARPS *WARP, TWO || F::PARTS > 1 ? 1 : 2)
    few_kernel(const __grid_constant__ few_args a) {
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const int beside = WARPS / a.along, mine = warp % a.along, tile_of = warp / a.along;
    char *ring = (char *)shared + warp * STAGES<F> * STAGE_BYTES<F>;
    float *parts = (float *)((char *)shared + WARPS * STAGES<F> * STAGE_BYTES<F>);
    uint16_t *x = (uint16_t *)((char *)parts + PART_BYTES);
    const int stride = x_stride<F>(a.stages), tiles = a.part[a.parts - 1].end;
    const struct rows_of_x rows = {x + (g < a.m ? g : 0) * stride,
                                   x + (g + 8 < a.m ? g + 8 : 0) * stride};
    const unsigned to = shared_address(ring);

    // The stage that is fetched next; there is none if `step` is past the end.
    int step = mine < a.stages ? (int)blockIdx.x : a.steps, stage = mine, slot = 0;
    struct reader<F> from;
    if (step < a.steps)
        from.seek(a, step * beside + tile_of, lane);
    auto fetch_next = [&]() {
        if (step < a.steps) {
            from.fetch(a, to + slot * STAGE_BYTES<F>, stage, lane);
            stage += a.along;
            if (stage >= a.stages) {
                stage = mine, step += gridDim.x;
                if (step < a.steps)
                    from.seek(a, step * beside + tile_of, lane);
            }
        }
        slot = slot + 1 == STAGES<F> ? 0 : slot + 1;
        copies_close();
    };
    for (int i = 0; i < STAGES<F> - 1; i++)
        fetch_next();
    chain_wait();
    chain_next();
    for (int row = 0; row < a.m; row++)
        for (int at = threadIdx.x * 8; at < a.stages * STAGE_K<F>; at += WARPS * WARP * 8) {
            uint4 piece = {};
            if (at < a.k)
                piece = load16((const T *)a.x + row * a.ldx + at);
            *(uint4 *)(x + row * stride + at) = F::EACH == 8 ? piece : in_pairs(piece);
        }
    __syncthreads();

    int at = 0;
    for (int first = blockIdx.x; first < a.steps; first += a.batch * gridDim.x) {
        int made = 0; // steps
        for (int now = first; made < a.batch && now < a.steps; made++, now += gridDim.x) {
            float sum[2][4] = {};
            for (int i = mine; i < a.stages; i += a.along) {
                copies_wait<STAGES<F> - 2>();
                __syncwarp();
                fetch_next();
                multiply<T, F, TWO>(sum, ring + at * STAGE_BYTES<F>,
                                    {rows.low + i * STAGE_K<F>, rows.high + i * STAGE_K<F>});
                at = at + 1 == STAGES<F> ? 0 : at + 1;
            }
            float *part = parts + (made * WARPS + warp) * a.m * TILE;
            if (g < a.m)
                *(float2 *)(part + g * TILE + 2 * t) =
                    make_float2(sum[0][0] + sum[1][0], sum[0][1] + sum[1][1]);
            if (TWO && g + 8 < a.m)
                *(float2 *)(part + (g + 8) * TILE + 2 * t) =
                    make_float2(sum[0][2] + sum[1][2], sum[0][3] + sum[1][3]);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < made * beside * a.m * TILE; i += WARPS * WARP) {
            const int column = i % TILE, row = i / TILE % a.m, group = i / TILE / a.m,
                      tile = (first + group / beside * (int)gridDim.x) * beside + group % beside;
            const float *from_warp = parts + (group * a.along * a.m + row) * TILE + column;
            float all = 0;
#pragma unroll 4
            for (int w = 0; w < a.along; w++)
                all += from_warp[w * a.m * TILE];
            if (tile < tiles)
                write<T, F>(a, tile, column, row, all);
        }
        __syncthreads();
    }
    copies_wait<0>();
}

// ---------------------------------------------------------------- launches

typedef int launch_fn(struct cuda *s, const struct op_call *c, const struct few_args &a,
                      cudaStream_t stream, struct err *e);

struct few {
    struct few_args a;
    launch_fn *launch;
};

static unsigned blocks_of(const struct cuda *s, const struct few_args &a) {
    return (unsigned)(a.steps < s->processors ? a.steps : s->processors);
}

// Divides the warps of a block between k and tiles, so that the busiest warp has the least to do.
static void divide(const struct cuda *s, struct few_args *a) {
    int64_t least = INT64_MAX;
    const int tiles = a->part[a->parts - 1].end;
    for (int along = WARPS; along >= 1; along /= 2) {
        const int steps = (int)ceil_div(tiles, WARPS / along);
        const int64_t work = ceil_div(steps, s->processors) * ceil_div(a->stages, along);
        if (work <= least) { // of equal ones, that with the fewest sums over warps
            least = work;
            a->along = along, a->steps = steps;
        }
    }
    a->batch = PART_BYTES / (int)(WARPS * a->m * TILE * sizeof(float));
}

template <typename T, typename F, bool TWO>
static int launch(struct cuda *s, const struct op_call *c, const struct few_args &a,
                  cudaStream_t stream, struct err *e) {
    return chain_launch(s, c, few_kernel<T, F, TWO>,
                        {dim3(blocks_of(s, a)), WARPS * WARP, shared_bytes<F>(a.m, a.stages), 0},
                        stream, e, a);
}

static int run(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct few *f = (const struct few *)cuda_own(c);
    return f->launch(s, c, f->a, stream, e);
}

template <typename T, typename F, bool TWO>
static int allow(struct cuda *s, const struct op_call *c, struct few *f, struct err *e) {
    f->launch = launch<T, F, TWO>;
    return chain_allow(s, c, few_kernel<T, F, TWO>, (size_t)s->shared_bytes, e);
}

// Takes the call if its operands fit the format. *taken: whether it did.
template <typename T, typename F>
static int take(struct cuda *s, const struct op_call *c, struct few *f, bool *taken,
                struct err *e) {
    f->a.stages = (int)ceil_div(f->a.k, STAGE_K<F>);
    *taken = f->a.k % F::EACH == 0 &&
             shared_bytes<F>(f->a.m, f->a.stages) <= (size_t)s->shared_bytes &&
             (F::PARTS == 0 || f->a.groups % 2 == 0);
    if (!*taken)
        return 0;
    divide(s, &f->a);
    return f->a.m > 8 ? allow<T, F, true>(s, c, f, e) : allow<T, F, false>(s, c, f, e);
}

template <typename T, int GROUP>
static int take_int4(struct cuda *s, const struct op_call *c, struct few *f, bool *taken,
                     struct err *e) {
    return c->in[1].storage.minima ? take<T, int4_groups<GROUP, true>>(s, c, f, taken, e)
                                   : take<T, int4_groups<GROUP, false>>(s, c, f, taken, e);
}

template <typename T>
static int choose(struct cuda *s, const struct op_call *c, struct few *f, bool *taken,
                  struct err *e) {
    const struct operand *w = &c->in[1];
    struct storage_parts parts;
    if (w->storage.kind == STORAGE_PLAIN) {
        f->a.row_bytes = w->ld * (int64_t)sizeof(T);
        return take<T, dense>(s, c, f, taken, e);
    }
    if (!s->host.storage_layout(w->storage, w->rows, w->cols, &parts))
        return 0;
    f->a.row_bytes = (int64_t)parts.row_bytes;
    f->a.groups = (int)parts.groups;
    f->a.part[0].scales = f->a.part[0].codes + parts.scales;
    f->a.part[0].minima = f->a.part[0].codes + parts.minima;
    if (w->storage.kind == STORAGE_INT8)
        return take<T, int8_rows>(s, c, f, taken, e);
    switch (w->storage.group) {
    case 32:
        return take_int4<T, 32>(s, c, f, taken, e);
    case 64:
        return take_int4<T, 64>(s, c, f, taken, e);
    default:
        return take_int4<T, 128>(s, c, f, taken, e);
    }
}

template <typename T> static bool fits(const struct op_call *c) {
    const struct op *op = c->op;
    return op->m > 0 && op->m <= MOST_ROWS && op->n > 0 && op->k > 0 && op->n < INT32_MAX / 2 &&
           op->k < 1 << 20 && !(op->flags & OP_IN_OUT) && op->k % 8 == 0 &&
           op->stream == STREAM_COMPUTE && wide_rows<T>(c->in[0].data, c->in[0].ld, op->m) &&
           (c->in[1].storage.kind != STORAGE_PLAIN ||
            wide_rows<T>(c->in[1].data, c->in[1].ld, op->n)) &&
           aligned16(c->in[1].data);
}

static void drop(void *own) {
    free(own);
}

template <typename T>
int cuda_make_few(struct cuda *s, const struct op_call *c, struct cuda_made *made, struct err *e) {
    const struct op *op = c->op;
    bool taken = false;
    if (!fits<T>(c))
        return 0;
    struct few *f = (struct few *)calloc(1, sizeof *f);
    if (!f)
        return s->host.err_set(e, ERR_MEMORY, "no memory for a matrix product");
    f->a.x = c->in[0].data, f->a.ldx = c->in[0].ld;
    f->a.m = (int)op->m, f->a.k = (int)op->k;
    f->a.parts = 1;
    f->a.scale = (float)op->scale;
    f->a.act = op->act;
    f->a.accumulate = (op->flags & OP_ACCUMULATE) != 0;
    struct part *p = &f->a.part[0];
    p->codes = (const char *)c->in[1].data;
    p->bias = c->in[2].data;
    p->y = c->out[0].data, p->ldy = c->out[0].ld;
    if (op->kind == OP_MATMUL_ACT)
        p->act = c->out[1].data, p->lda = c->out[1].ld;
    p->n = (int)op->n, p->end = (int)ceil_div(op->n, TILE);
    const int rc = choose<T>(s, c, f, &taken, e);
    if (rc != 0 || !taken)
        free(f);
    else
        *made = {run, f, drop};
    return rc;
}
template int cuda_make_few<__nv_bfloat16>(struct cuda *, const struct op_call *, struct cuda_made *,
                                          struct err *);
template int cuda_make_few<__half>(struct cuda *, const struct op_call *, struct cuda_made *,
                                   struct err *);

// Whether a call may be a part of the first one's launch.
static bool alike(const struct op_call *first, const struct op_call *c) {
    const struct cuda_made *made = (const struct cuda_made *)c->made;
    if (!made || made->run != run)
        return false;
    const struct few *a = (const struct few *)cuda_own(first), *b = (const struct few *)cuda_own(c);
    return a->launch == b->launch && a->a.x == b->a.x && a->a.ldx == b->a.ldx && a->a.m == b->a.m &&
           a->a.k == b->a.k && a->a.row_bytes == b->a.row_bytes && a->a.scale == b->a.scale &&
           a->a.accumulate == b->a.accumulate;
}

void cuda_join_few(struct cuda *s, struct op_call *calls, int n) {
    int end;
    for (int first = 0; first < n; first = end) {
        end = first + 1;
        if (!alike(&calls[first], &calls[first]))
            continue;
        struct few *f = (struct few *)cuda_own(&calls[first]);
        for (; end < n && f->a.parts < MOST_PARTS && alike(&calls[first], &calls[end]); end++) {
            struct cuda_made *made = (struct cuda_made *)calls[end].made;
            struct part *p = &f->a.part[f->a.parts];
            *p = ((const struct few *)made->own)->a.part[0];
            p->begin = p[-1].end;
            p->end += p->begin;
            f->a.parts++;
            drop(made->own);
            *made = {chain_nothing, NULL, NULL};
        }
        divide(s, &f->a);
    }
}

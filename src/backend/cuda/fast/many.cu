// many.cu - products of any number of rows by quantized weights, on tensor cores. A block has a
// tile of 128 rows of x and 64 rows of W, and goes through k in steps of 128. Codes become numbers
// in registers, so the weight is never there in another form. Sums of a group are multiplied by its
// scale in float.
#include "backend/cuda/elements.cuh"
#include "backend/cuda/fast/codes.cuh"
#include "backend/cuda/fast/few.cuh"

#include <stdlib.h>

// A warp has 32 rows of x and 32 rows of W: two tiles by four tiles of the tensor cores.
enum { WARPS = 8, ROWS = 128, COLUMNS = 64, STEP = 128, STAGES = 2, TALL = 2, BROAD = 4 };

// Bytes between rows in shared memory: so that what lanes read together lies in different banks.
enum { X_BYTES = STEP * 2 + 32 };
template <typename F> constexpr int CODES = STEP * 16 / (int)F::EACH; // of a row in a step
template <typename F> constexpr int W_BYTES = CODES<F> + 16;
template <typename F> constexpr int STAGE_BYTES = ROWS *X_BYTES + COLUMNS *W_BYTES<F>;

struct many_args {
    const void *x;
    const char *codes;
    const void *scales, *bias;
    const __half *minima;
    void *y, *act;
    int64_t ldx, ldy, lda, row_bytes, groups;
    int m, n, k, kind;
    float scale;
    bool accumulate;
};

template <typename T, typename F>
static __device__ void fetch(const many_args &a, unsigned to, int i0, int j0, int k0) {
    enum { X_PIECES = STEP / 8, W_PIECES = CODES<F> / 16 };
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * X_PIECES; i += WARPS * WARP) {
        const int row = i / X_PIECES, k = k0 + i % X_PIECES * 8;
        const bool inside = i0 + row < a.m && k < a.k;
        copy_async<16>(to + row * X_BYTES + i % X_PIECES * 16,
                       inside ? (const T *)a.x + (i0 + row) * a.ldx + k : (const T *)a.x,
                       inside ? 16 : 0);
    }
#pragma unroll
    for (int i = threadIdx.x; i < COLUMNS * W_PIECES; i += WARPS * WARP) {
        const int row = i / W_PIECES, k = k0 + i % W_PIECES * F::EACH;
        const bool inside = j0 + row < a.n && k < a.k;
        copy_async<16>(to + ROWS * X_BYTES + row * W_BYTES<F> + i % W_PIECES * 16,
                       inside ? a.codes + (j0 + row) * a.row_bytes + k * 16 / F::EACH : a.codes,
                       inside ? 16 : 0);
    }
}

// The two pairs of numbers that a lane has of 16 elements of a row, of which the codes begin at
// `row`: elements 4 t to 4 t + 3. sixteen: which 16 of a step's.
template <typename T, typename F>
static __device__ void read_codes(unsigned (&b)[2], const char *row, int sixteen, int t) {
    if (F::EACH == 16) {
        const unsigned w = *(const unsigned *)(row + sixteen * 16 + 4 * t);
        b[0] = int8_pair<T>(__byte_perm(w, 0, 0x4140));
        b[1] = int8_pair<T>(__byte_perm(w, 0, 0x4342));
    } else {
        const unsigned w = *(const unsigned *)(row + sixteen / 2 * 16 + 4 * t) >> (sixteen % 2 * 4);
        b[0] = int4_pair<T, (F::PARTS > 1)>(__byte_perm(w, 0, 0x4140));
        b[1] = int4_pair<T, (F::PARTS > 1)>(__byte_perm(w, 0, 0x4342));
    }
}

template <typename T, typename F>
static __device__ void multiply(const many_args &a, float (&sum)[TALL][BROAD][4], const char *stage,
                                int rows, int columns, int j0, int k0) {
    // int8 has one scale for a row, which is not applied here.
    enum { GROUP = F::GROUP > 0 ? F::GROUP : STEP, GROUPS = STEP / GROUP };
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const char *x = stage + (rows + g) * X_BYTES + 8 * t,
               *w = stage + ROWS * X_BYTES + (columns + g) * W_BYTES<F>;
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        float part[TALL][BROAD][4] = {}, ones[TALL][4] = {};
#pragma unroll
        for (int i = group * GROUP / 16; i < (group + 1) * GROUP / 16; i++) {
            uint2 low[TALL], high[TALL];
#pragma unroll
            for (int r = 0; r < TALL; r++) {
                low[r] = *(const uint2 *)(x + r * 16 * X_BYTES + i * 32);
                high[r] = *(const uint2 *)(x + (r * 16 + 8) * X_BYTES + i * 32);
            }
#pragma unroll
            for (int c = 0; c < BROAD; c++) {
                unsigned b[2];
                read_codes<T, F>(b, w + c * 8 * W_BYTES<F>, i, t);
#pragma unroll
                for (int r = 0; r < TALL; r++)
                    tile_product<T>(F::PARTS > 0 ? part[r][c] : sum[r][c], low[r].x, high[r].x,
                                    low[r].y, high[r].y, b[0], b[1]);
            }
            if (F::PARTS > 1) { // the sum of x
                const unsigned one = __is_same(T, __half) ? 0x3c003c00u : 0x3f803f80u;
#pragma unroll
                for (int r = 0; r < TALL; r++)
                    tile_product<T>(ones[r], low[r].x, high[r].x, low[r].y, high[r].y, one, one);
            }
        }
        if (F::PARTS == 0)
            continue;
        const int at = k0 / GROUP + group; // of the row's groups
#pragma unroll
        for (int c = 0; c < BROAD; c++)
#pragma unroll
            for (int l = 0; l < 2; l++) {
                const int j = j0 + columns + c * 8 + 2 * t + l;
                const bool inside = j < a.n && at < a.groups;
                const float scale =
                    inside ? __half2float(((const __half *)a.scales)[j * a.groups + at]) : 0;
                float minimum = 0;
                if (F::PARTS > 1 && inside)
                    minimum = __half2float(a.minima[j * a.groups + at]);
#pragma unroll
                for (int r = 0; r < TALL; r++)
#pragma unroll
                    for (int h = l; h < 4; h += 2) {
                        sum[r][c][h] += scale * part[r][c][h];
                        if (F::PARTS > 1)
                            sum[r][c][h] += minimum * ones[r][h];
                    }
            }
    }
}

template <typename T, typename F>
__global__ void __launch_bounds__(WARPS *WARP) many_kernel(const __grid_constant__ many_args a) {
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const int i0 = blockIdx.y * ROWS, j0 = blockIdx.x * COLUMNS, rows = warp % 4 * 32,
              columns = warp / 4 * 32;
    const unsigned to = shared_address(shared);
    float sum[TALL][BROAD][4] = {};
    fetch<T, F>(a, to, i0, j0, 0);
    copies_close();
    for (int k0 = 0, stage = 0; k0 < a.k; k0 += STEP, stage ^= 1) {
        if (k0 + STEP < a.k)
            fetch<T, F>(a, to + (stage ^ 1) * STAGE_BYTES<F>, i0, j0, k0 + STEP);
        copies_close();
        copies_wait<1>();
        __syncthreads();
        multiply<T, F>(a, sum, (const char *)shared + stage * STAGE_BYTES<F>, rows, columns, j0,
                       k0);
        __syncthreads();
    }
    copies_wait<0>();
#pragma unroll
    for (int c = 0; c < BROAD; c++)
#pragma unroll
        for (int l = 0; l < 2; l++) {
            const int j = j0 + columns + c * 8 + 2 * t + l;
            if (j >= a.n)
                continue;
            const float scale = F::EACH == 16 ? a.scale * ((const float *)a.scales)[j] : a.scale,
                        bias = a.bias ? value(((const T *)a.bias)[j]) : 0;
#pragma unroll
            for (int r = 0; r < TALL; r++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int i = i0 + rows + r * 16 + h * 8 + g;
                    if (i >= a.m)
                        continue;
                    T *y = (T *)a.y + i * a.ldy + j;
                    float v = sum[r][c][2 * h + l] * scale + bias;
                    if (a.accumulate)
                        v += value(*y);
                    *y = rounded<T>(v);
                    if (a.act)
                        ((T *)a.act)[i * a.lda + j] =
                            rounded<T>(act_value<T>(value(rounded<T>(v)), a.kind));
                }
        }
}

// ---------------------------------------------------------------- launches

typedef int launch_fn(struct cuda *s, const struct op_call *c, const many_args &a,
                      cudaStream_t stream, struct err *e);

struct many {
    many_args a;
    launch_fn *launch;
};

static int run(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct many *m = (const struct many *)cuda_own(c);
    return m->launch(s, c, m->a, stream, e);
}

static void drop(void *own) {
    free(own);
}

template <typename T, typename F>
static int launch(struct cuda *s, const struct op_call *c, const many_args &a, cudaStream_t stream,
                  struct err *e) {
    const dim3 grid((unsigned)ceil_div(a.n, COLUMNS), (unsigned)ceil_div(a.m, ROWS));
    many_kernel<T, F><<<grid, WARPS * WARP, STAGES * STAGE_BYTES<F>, stream>>>(a);
    return cuda_launched(s, c, e);
}

template <typename T, typename F>
static int take(struct cuda *s, const struct op_call *c, struct many *m, struct err *e) {
    m->launch = launch<T, F>;
    return cuda_check(s,
                      cudaFuncSetAttribute((const void *)many_kernel<T, F>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           STAGES * STAGE_BYTES<F>),
                      s->host.op_name(c->op->kind), e);
}

template <typename T, int GROUP>
static int take_int4(struct cuda *s, const struct op_call *c, struct many *m, struct err *e) {
    return c->in[1].storage.minima ? take<T, int4_groups<GROUP, true>>(s, c, m, e)
                                   : take<T, int4_groups<GROUP, false>>(s, c, m, e);
}

template <typename T>
static int choose(struct cuda *s, const struct op_call *c, struct many *m, struct err *e) {
    switch (c->in[1].storage.group) {
    case 0:
        return take<T, int8_rows>(s, c, m, e);
    case 32:
        return take_int4<T, 32>(s, c, m, e);
    case 64:
        return take_int4<T, 64>(s, c, m, e);
    default:
        return take_int4<T, 128>(s, c, m, e);
    }
}

template <typename T>
int cuda_make_many(struct cuda *s, const struct op_call *c, struct cuda_made *made, struct err *e) {
    const struct op *op = c->op;
    const struct operand *w = &c->in[1];
    struct storage_parts parts;
    if (op->m <= 0 || op->n <= 0 || op->k <= 0 || op->k % 16 != 0 || op->m > 1 << 22 ||
        op->n > 1 << 30 || op->k > 1 << 24 || !aligned16(w->data) ||
        !wide_rows<T>(c->in[0].data, c->in[0].ld, op->m) ||
        STAGES * STAGE_BYTES < int8_rows >> s->shared_bytes ||
        !s->host.storage_layout(w->storage, w->rows, w->cols, &parts))
        return 0;
    struct many *m = (struct many *)calloc(1, sizeof *m);
    if (!m)
        return s->host.err_set(e, ERR_MEMORY, "no memory for a matrix product");
    many_args *a = &m->a;
    a->x = c->in[0].data, a->ldx = c->in[0].ld;
    a->codes = (const char *)w->data, a->row_bytes = (int64_t)parts.row_bytes;
    a->scales = a->codes + parts.scales, a->minima = (const __half *)(a->codes + parts.minima);
    a->groups = parts.groups;
    a->bias = c->in[2].data;
    a->y = c->out[0].data, a->ldy = c->out[0].ld;
    if (op->kind == OP_MATMUL_ACT)
        a->act = c->out[1].data, a->lda = c->out[1].ld;
    a->m = (int)op->m, a->n = (int)op->n, a->k = (int)op->k, a->kind = op->act;
    a->scale = (float)op->scale;
    a->accumulate = (op->flags & OP_ACCUMULATE) != 0;
    const int rc = choose<T>(s, c, m, e);
    if (rc != 0)
        free(m);
    else
        *made = {run, m, drop};
    return rc;
}
template int cuda_make_many<__nv_bfloat16>(struct cuda *, const struct op_call *,
                                           struct cuda_made *, struct err *);
template int cuda_make_many<__half>(struct cuda *, const struct op_call *, struct cuda_made *,
                                    struct err *);

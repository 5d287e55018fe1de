// rows.cu - norms and their gradients with respect to the input, with one pass over memory: a warp
// or, for longer rows, a block keeps a row in registers.
//
// Which threads take which elements follows from the row's length alone. So a norm that is joined
// with an addition, or issued again in the backward, gives the same bits.
#include "backend/cuda/fast/chain.cuh"
#include "backend/cuda/fast/fast.cuh"

enum {
    MOST_LANES = 512,  // threads of a row
    ROWS_OF_BLOCK = 4, // where a warp takes a row
};

// Elements of a row that a thread keeps, at most, and the accesses to them.
template <typename T> constexpr int HELD = sizeof(T) == 2 ? 32 : 16;
template <typename T> constexpr int ACCESSES = HELD<T> / WIDE<T>;

// The row of this thread, and which of its threads this is.
struct place {
    int64_t row;
    int lane, lanes;
};

template <bool LONG> static __device__ struct place place_of_thread(void) {
    if (LONG)
        return {blockIdx.x, (int)threadIdx.x, (int)blockDim.x};
    return {blockIdx.x * (int64_t)ROWS_OF_BLOCK + threadIdx.x / WARP, (int)threadIdx.x % WARP,
            WARP};
}

template <bool LONG> static __device__ float sum_of_row(float x) {
    return LONG ? block_sum(x) : warp_sum(x);
}

// The accesses k of a thread to its row: `first` is the index of the first element.
#define EACH_ACCESS(k, first, p, n)                                                                \
    _Pragma("unroll") for (int k = 0, first = (p).lane * WIDE<T>; k < ACCESSES<T>;                 \
                           k++, first += (p).lanes * WIDE<T>) if (first < (n))

// ---------------------------------------------------------------- norm

template <typename T> struct norm_sizes {
    const T *w, *b;
    float eps;
    bool rms;
    int64_t heads, m;
    int n;
};

// A row, and the weight and bias of its columns, as they are stored. All reads are made before the
// first sum, so that they are under way together.
template <typename T> struct held { uint4 x[ACCESSES<T>], w[ACCESSES<T>], b[ACCESSES<T>]; };

template <typename T>
static __device__ void hold_weights(struct held<T> *h, const struct place p,
                                    const struct norm_sizes<T> &s) {
    EACH_ACCESS(k, first, p, s.n) {
        if (s.w)
            h->w[k] = load16(s.w + first);
        if (s.b)
            h->b[k] = load16(s.b + first);
    }
}

template <typename T, bool LONG>
static __device__ void norm_row(T *y, float *stats, const struct held<T> &h, const struct place p,
                                const struct norm_sizes<T> &s) {
    float mean = 0, sum = 0;
    if (!s.rms) {
        EACH_ACCESS(k, first, p, s.n) {
            const floats<T> x = widen<T>(h.x[k]);
#pragma unroll
            for (int i = 0; i < WIDE<T>; i++)
                sum += x.x[i];
        }
        mean = sum_of_row<LONG>(sum) / (float)s.n;
        sum = 0;
    }
    EACH_ACCESS(k, first, p, s.n) {
        const floats<T> x = widen<T>(h.x[k]);
#pragma unroll
        for (int i = 0; i < WIDE<T>; i++) {
            float d = x.x[i] - mean;
            sum += d * d;
        }
    }
    const float rstd = 1 / sqrtf(sum_of_row<LONG>(sum) / (float)s.n + s.eps);
    if (p.lane == 0)
        *(float2 *)stats = make_float2(mean, rstd);
    EACH_ACCESS(k, first, p, s.n) {
        const floats<T> x = widen<T>(h.x[k]), w = widen<T>(h.w[k]), b = widen<T>(h.b[k]);
        floats<T> out;
#pragma unroll
        for (int i = 0; i < WIDE<T>; i++) {
            float xhat = (x.x[i] - mean) * rstd;
            out.x[i] = xhat * (s.w ? w.x[i] : 1) + (s.b ? b.x[i] : 0);
        }
        write_wide(y + first, out);
    }
}

template <typename T, bool LONG>
__global__ void __launch_bounds__(MOST_LANES)
    norm_kernel(T *y, int64_t ldy, float *stats, const T *x, int64_t ldx,
                const struct norm_sizes<T> s) {
    const struct place p = place_of_thread<LONG>();
    chain_wait();
    chain_next();
    if (p.row >= s.m)
        return;
    x += head_at(p.row, s.heads, ldx, s.n);
    struct held<T> h;
    EACH_ACCESS(k, first, p, s.n)
    h.x[k] = load16(x + first);
    hold_weights(&h, p, s);
    norm_row<T, LONG>(y + head_at(p.row, s.heads, ldy, s.n), stats + 2 * p.row, h, p, s);
}

// y = a + b, and z = norm of y as it is stored.
template <typename T, bool LONG>
__global__ void __launch_bounds__(MOST_LANES)
    add_norm_kernel(T *y, int64_t ldy, T *z, int64_t ldz, float *stats, const T *a, int64_t lda,
                    const T *b, int64_t ldb, const struct norm_sizes<T> s) {
    const struct place p = place_of_thread<LONG>();
    uint4 more[ACCESSES<T>];
    struct held<T> h;
    hold_weights(&h, p, s);
    chain_wait();
    chain_next();
    if (p.row >= s.m)
        return;
    a += p.row * lda, b += p.row * ldb, y += p.row * ldy;
    EACH_ACCESS(k, first, p, s.n) {
        h.x[k] = load16(a + first);
        more[k] = load16(b + first);
    }
    EACH_ACCESS(k, first, p, s.n) {
        floats<T> sum = widen<T>(h.x[k]);
        const floats<T> other = widen<T>(more[k]);
#pragma unroll
        for (int i = 0; i < WIDE<T>; i++)
            sum.x[i] += other.x[i];
        h.x[k] = narrow<T>(sum);
        store16(y + first, h.x[k]);
    }
    norm_row<T, LONG>(z + p.row * ldz, stats + 2 * p.row, h, p, s);
}

// ---------------------------------------------------------------- its gradient

// With g = dy w and xhat the normalised row: dx = rstd (g - mean(g) - xhat mean(g xhat)). RMS has
// no mean(g). The product dy w is rounded before it is used, as in the plain kernel.
template <typename T, bool LONG>
__global__ void __launch_bounds__(MOST_LANES)
    norm_dx_kernel(T *dx, int64_t ldd, const T *dy, int64_t ldy, const T *x, int64_t ldx,
                   const float *stats, bool accumulate, const struct norm_sizes<T> s) {
    const struct place p = place_of_thread<LONG>();
    if (p.row >= s.m)
        return;
    dx += head_at(p.row, s.heads, ldd, s.n);
    dy += head_at(p.row, s.heads, ldy, s.n), x += head_at(p.row, s.heads, ldx, s.n);
    uint4 held_dy[ACCESSES<T>], held_x[ACCESSES<T>], held_w[ACCESSES<T>], before[ACCESSES<T>];
    EACH_ACCESS(k, first, p, s.n) {
        held_dy[k] = load16(dy + first);
        held_x[k] = load16(x + first);
        if (s.w)
            held_w[k] = load16(s.w + first);
        if (accumulate)
            before[k] = load16(dx + first);
    }
    const float2 stat = *(const float2 *)(stats + 2 * p.row);
    const float mean = stat.x, rstd = stat.y;
    auto gradients = [&](int k) {
        floats<T> g = widen<T>(held_dy[k]);
        const floats<T> w = widen<T>(held_w[k]);
#pragma unroll
        for (int i = 0; i < WIDE<T>; i++)
            g.x[i] = s.w ? __fmul_rn(g.x[i], w.x[i]) : g.x[i];
        return g;
    };
    float sum_g = 0, sum_gx = 0;
    EACH_ACCESS(k, first, p, s.n) {
        const floats<T> g = gradients(k), xs = widen<T>(held_x[k]);
#pragma unroll
        for (int i = 0; i < WIDE<T>; i++) {
            sum_g += g.x[i];
            sum_gx += g.x[i] * (xs.x[i] - mean) * rstd;
        }
    }
    sum_g = s.rms ? 0 : sum_of_row<LONG>(sum_g) / (float)s.n;
    sum_gx = sum_of_row<LONG>(sum_gx) / (float)s.n;
    EACH_ACCESS(k, first, p, s.n) {
        const floats<T> g = gradients(k), xs = widen<T>(held_x[k]), old = widen<T>(before[k]);
        floats<T> out;
#pragma unroll
        for (int i = 0; i < WIDE<T>; i++) {
            float xhat = (xs.x[i] - mean) * rstd;
            float d = rstd * (g.x[i] - sum_g - xhat * sum_gx);
            out.x[i] = accumulate ? old.x[i] + d : d;
        }
        write_wide(dx + first, out);
    }
}

// ---------------------------------------------------------------- launches

struct shape_of_grid {
    unsigned blocks, threads;
};

template <typename T> static struct shape_of_grid grid_of_rows(int64_t rows, int64_t n) {
    const int64_t lanes = ceil_div(ceil_div(n, HELD<T>), WARP) * WARP;
    if (lanes == WARP)
        return {(unsigned)ceil_div(rows, ROWS_OF_BLOCK), ROWS_OF_BLOCK * WARP};
    return {(unsigned)rows, (unsigned)lanes};
}

template <typename T>
static struct norm_sizes<T> sizes_of(const struct op *op, const void *w, const void *b) {
    const int64_t heads = op_norm_heads(op);
    return {(const T *)w, (const T *)b, (float)op->scale, (op->flags & OP_RMS) != 0,
            heads,        op->m *heads, (int)op->n};
}

template <typename T, bool LONG>
static int norm(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct norm_sizes<T> sizes = sizes_of<T>(c->op, c->in[1].data, c->in[2].data);
    const struct shape_of_grid g = grid_of_rows<T>(sizes.m, sizes.n);
    return chain_launch(s, c, norm_kernel<T, LONG>, {dim3(g.blocks), g.threads, 0, 0}, stream, e,
                        (T *)c->out[0].data, c->out[0].ld, (float *)c->out[1].data,
                        (const T *)c->in[0].data, c->in[0].ld, sizes);
}

template <typename T, bool LONG>
static int add_norm(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    struct norm_sizes<T> sizes = sizes_of<T>(c->op, c->in[2].data, c->in[3].data);
    const struct shape_of_grid g = grid_of_rows<T>(sizes.m, sizes.n);
    return chain_launch(s, c, add_norm_kernel<T, LONG>, {dim3(g.blocks), g.threads, 0, 0}, stream,
                        e, (T *)c->out[0].data, c->out[0].ld, (T *)c->out[1].data, c->out[1].ld,
                        (float *)c->out[2].data, (const T *)c->in[0].data, c->in[0].ld,
                        (const T *)c->in[1].data, c->in[1].ld, sizes);
}

template <typename T, bool LONG>
static int norm_dx(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct norm_sizes<T> sizes = sizes_of<T>(c->op, c->in[2].data, NULL);
    const struct shape_of_grid g = grid_of_rows<T>(sizes.m, sizes.n);
    norm_dx_kernel<T, LONG><<<g.blocks, g.threads, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const T *)c->in[0].data, c->in[0].ld,
        (const T *)c->in[1].data, c->in[1].ld, (const float *)c->in[3].data,
        (c->op->flags & OP_ACCUMULATE) != 0, sizes);
    return cuda_launched(s, c, e);
}

// Whether the rows of the first `ins` inputs and `outs` outputs begin and end at multiples of 16
// bytes, and fit in registers. The operand after them is the statistics.
template <typename T>
static bool fits(const struct op_call *c, int ins, int outs, const struct operand *stats) {
    const struct op *op = c->op;
    bool fit = op->m > 0 && op->n > 0 && op->n % WIDE<T> == 0 && op->n <= HELD<T> * MOST_LANES &&
               op->m * op_norm_heads(op) < INT32_MAX && (uintptr_t)stats->data % 8 == 0;
    for (int i = 0; i < ins; i++)
        fit = fit && wide_rows<T>(c->in[i].data, c->in[i].ld, op->m);
    for (int i = 0; i < outs; i++)
        fit = fit && wide_rows<T>(c->out[i].data, c->out[i].ld, op->m);
    return fit;
}

// Each op has two kernels: for rows of a warp, and for rows of a block.
template <typename T>
static int make_norm(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                     struct err *e) {
    if (!fits<T>(c, 3, 1, &c->out[1]))
        return 0;
    const bool one_warp = c->op->n <= HELD<T> * WARP;
    made->run = one_warp ? norm<T, false> : norm<T, true>;
    return one_warp ? chain_allow(s, c, norm_kernel<T, false>, 0, e)
                    : chain_allow(s, c, norm_kernel<T, true>, 0, e);
}

template <typename T>
static int make_add_norm(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                         struct err *e) {
    if (!fits<T>(c, 4, 2, &c->out[2]))
        return 0;
    const bool one_warp = c->op->n <= HELD<T> * WARP;
    made->run = one_warp ? add_norm<T, false> : add_norm<T, true>;
    return one_warp ? chain_allow(s, c, add_norm_kernel<T, false>, 0, e)
                    : chain_allow(s, c, add_norm_kernel<T, true>, 0, e);
}

template <typename T>
static int make_norm_dx(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                        struct err *e) {
    (void)s, (void)e;
    if (fits<T>(c, 3, 1, &c->in[3]))
        made->run = c->op->n <= HELD<T> * WARP ? norm_dx<T, false> : norm_dx<T, true>;
    return 0;
}

template <typename T> void cuda_add_fast_rows(struct cuda_table *t) {
    t->fast[OP_NORM] = make_norm<T>;
    t->fast[OP_ADD_NORM] = make_add_norm<T>;
    t->fast[OP_NORM_DX] = make_norm_dx<T>;
}
template void cuda_add_fast_rows<float>(struct cuda_table *);
template void cuda_add_fast_rows<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_rows<__half>(struct cuda_table *);

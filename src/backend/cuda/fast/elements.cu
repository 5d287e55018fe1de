// elements.cu - ops on single elements, 16 bytes of each operand per thread: add, mul, activations,
// rotary embedding, copies and casts, and the addition of a bias, with or without an activation.
// The formulas are those of the plain kernels.
#include "backend/cuda/elements.cuh"
#include "backend/cuda/fast/chain.cuh"
#include "backend/cuda/fast/fast.cuh"

#include <stdlib.h>

// ---------------------------------------------------------------- accesses

// Rows of `of_row` accesses; rows without gaps between them are one.
struct accesses {
    uint32_t of_row, all;
};

template <typename F>
__global__ void __launch_bounds__(BLOCK) each_access(const F f, const struct accesses a) {
    const uint32_t k = blockIdx.x * (uint32_t)BLOCK + threadIdx.x;
    if (k < a.all)
        f((int64_t)(k / a.of_row), k % a.of_row);
}

// The same as a chained kernel.
template <typename F>
__global__ void __launch_bounds__(BLOCK) each_access_chained(const F f, const struct accesses a) {
    const uint32_t k = blockIdx.x * (uint32_t)BLOCK + threadIdx.x;
    chain_wait();
    chain_next();
    if (k < a.all)
        f((int64_t)(k / a.of_row), k % a.of_row);
}

// For ops of generation that have few accesses; they write activations only.
template <typename F>
static int launch_chained(struct cuda *s, const struct op_call *c, const F &f, struct accesses a,
                          cudaStream_t stream, struct err *e) {
    return chain_launch(s, c, each_access_chained<F>,
                        {dim3((unsigned)ceil_div(a.all, BLOCK)), BLOCK, 0, 0}, stream, e, f, a);
}

template <typename F>
static int launch(struct cuda *s, const struct op_call *c, const F &f, struct accesses a,
                  cudaStream_t stream, struct err *e) {
    each_access<<<(unsigned)ceil_div(a.all, BLOCK), BLOCK, 0, stream>>>(f, a);
    return cuda_launched(s, c, e);
}

// The accesses to m rows of n elements, `wide` at a time. all = 0: there are none, or too many for
// 32 bits.
static struct accesses accesses_of(int64_t m, int64_t n, int wide, bool gaps) {
    const int64_t all = n % wide == 0 ? m * (n / wide) : 0;
    if (all <= 0 || all > INT32_MAX)
        return {1, 0};
    return {(uint32_t)(gaps ? n / wide : all), (uint32_t)all};
}

template <typename T> struct matrix {
    T *at;
    int64_t ld;

    __device__ T *operator()(int64_t i, uint32_t access) const {
        return at + i * ld + (int64_t)access * WIDE<T>;
    }
};

template <typename T> static struct matrix<T> matrix_of(const struct operand *o) {
    return {(T *)o->data, o->ld};
}

// The accesses to operands that have the op's m x n elements.
template <typename T>
static struct accesses accesses_to(const struct op *op, const struct operand *const *list,
                                   int count) {
    bool gaps = false;
    for (int i = 0; i < count; i++) {
        if (!wide_rows<T>(list[i]->data, list[i]->ld, op->m))
            return {1, 0};
        gaps = gaps || list[i]->ld != op->n;
    }
    return accesses_of(op->m, op->n, WIDE<T>, gaps);
}

// ---------------------------------------------------------------- one or two inputs, one output

template <typename T> struct sum_of {
    static __device__ float of(float a, float b) { return a + b; }
};
template <typename T> struct product_of {
    static __device__ float of(float a, float b) { return a * b; }
};
template <typename T> struct swiglu_of {
    static __device__ float of(float gate, float up) { return swiglu_value<T>(gate, up); }
};
template <typename T, int KIND> struct act_slope_of {
    static __device__ float of(float dy, float h) { return dy * act_slope<T>(h, KIND); }
};

// y may be a or b.
template <typename T, typename F> struct binary {
    struct matrix<T> y, a, b;

    __device__ void operator()(int64_t i, uint32_t j) const {
        const uint4 left = load16(a(i, j)), right = load16(b(i, j));
        const floats<T> p = widen<T>(left), q = widen<T>(right);
        floats<T> out;
#pragma unroll
        for (int k = 0; k < WIDE<T>; k++)
            out.x[k] = F::of(p.x[k], q.x[k]);
        write_wide(y(i, j), out);
    }
};

template <typename T> static struct accesses binary_accesses(const struct op_call *c) {
    const struct operand *list[] = {&c->in[0], &c->in[1], &c->out[0]};
    return accesses_to<T>(c->op, list, 3);
}

template <typename T, typename F>
static int run_binary(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const binary<T, F> f = {matrix_of<T>(&c->out[0]), matrix_of<T>(&c->in[0]),
                            matrix_of<T>(&c->in[1])};
    return launch(s, c, f, binary_accesses<T>(c), stream, e);
}

template <typename T, typename F>
static int make_binary(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                       struct err *e) {
    (void)s, (void)e;
    if (binary_accesses<T>(c).all > 0)
        made->run = run_binary<T, F>;
    return 0;
}

template <typename T>
static int run_swiglu(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const binary<T, swiglu_of<T>> f = {matrix_of<T>(&c->out[0]), matrix_of<T>(&c->in[0]),
                                       matrix_of<T>(&c->in[1])};
    return launch_chained(s, c, f, binary_accesses<T>(c), stream, e);
}

template <typename T>
static int make_swiglu(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                       struct err *e) {
    if (binary_accesses<T>(c).all == 0)
        return 0;
    made->run = run_swiglu<T>;
    return chain_allow(s, c, each_access_chained<binary<T, swiglu_of<T>>>, 0, e);
}

template <typename T>
static int make_act_bwd(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                        struct err *e) {
    switch (c->op->act) {
    case ACT_GELU_TANH:
        return make_binary<T, act_slope_of<T, ACT_GELU_TANH>>(s, c, made, e);
    case ACT_GELU_ERF:
        return make_binary<T, act_slope_of<T, ACT_GELU_ERF>>(s, c, made, e);
    case ACT_RELU:
        return make_binary<T, act_slope_of<T, ACT_RELU>>(s, c, made, e);
    default:
        return make_binary<T, act_slope_of<T, ACT_SWIGLU>>(s, c, made, e);
    }
}

template <typename T> struct swiglu_bwd {
    struct matrix<T> dgate, dup, dy, gate, up;

    __device__ void operator()(int64_t i, uint32_t j) const {
        const uint4 from[3] = {load16(dy(i, j)), load16(gate(i, j)), load16(up(i, j))};
        const floats<T> d = widen<T>(from[0]), g = widen<T>(from[1]), u = widen<T>(from[2]);
        floats<T> to_gate, to_up;
#pragma unroll
        for (int k = 0; k < WIDE<T>; k++)
            swiglu_slopes<T>(d.x[k], g.x[k], u.x[k], &to_gate.x[k], &to_up.x[k]);
        write_wide(dgate(i, j), to_gate);
        write_wide(dup(i, j), to_up);
    }
};

template <typename T> static struct accesses swiglu_bwd_accesses(const struct op_call *c) {
    const struct operand *list[] = {&c->in[0], &c->in[1], &c->in[2], &c->out[0], &c->out[1]};
    return accesses_to<T>(c->op, list, 5);
}

template <typename T>
static int run_swiglu_bwd(struct cuda *s, const struct op_call *c, cudaStream_t stream,
                          struct err *e) {
    const swiglu_bwd<T> f = {matrix_of<T>(&c->out[0]), matrix_of<T>(&c->out[1]),
                             matrix_of<T>(&c->in[0]), matrix_of<T>(&c->in[1]),
                             matrix_of<T>(&c->in[2])};
    return launch(s, c, f, swiglu_bwd_accesses<T>(c), stream, e);
}

template <typename T>
static int make_swiglu_bwd(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                           struct err *e) {
    (void)s, (void)e;
    if (swiglu_bwd_accesses<T>(c).all > 0)
        made->run = run_swiglu_bwd<T>;
    return 0;
}

// ---------------------------------------------------------------- bias and activation

// y may be x.
template <typename T> struct bias_of {
    struct matrix<T> y, x;
    const T *bias;

    __device__ void operator()(int64_t i, uint32_t j) const {
        floats<T> v = read_wide(x(i, j));
        const floats<T> b = read_wide(bias + (int64_t)j * WIDE<T>);
#pragma unroll
        for (int k = 0; k < WIDE<T>; k++)
            v.x[k] += b.x[k];
        write_wide(y(i, j), v);
    }
};

// h += bias, if there is one, then a = act(h) of h as it is stored. a may be h without a bias.
template <typename T, int KIND> struct act_of {
    struct matrix<T> a, h;
    const T *bias;

    __device__ void operator()(int64_t i, uint32_t j) const {
        uint4 stored = load16(h(i, j));
        if (bias) {
            floats<T> sum = widen<T>(stored);
            const floats<T> b = read_wide(bias + (int64_t)j * WIDE<T>);
#pragma unroll
            for (int k = 0; k < WIDE<T>; k++)
                sum.x[k] += b.x[k];
            stored = narrow<T>(sum);
            store16(h(i, j), stored);
        }
        floats<T> v = widen<T>(stored);
#pragma unroll
        for (int k = 0; k < WIDE<T>; k++)
            v.x[k] = act_value<T>(v.x[k], KIND);
        write_wide(a(i, j), v);
    }
};

template <typename T>
static void launch_act(matrix<T> a, matrix<T> h, const T *bias, int kind, struct accesses n,
                       cudaStream_t stream) {
    const unsigned blocks = (unsigned)ceil_div(n.all, BLOCK);
    if (kind == ACT_GELU_TANH)
        each_access<<<blocks, BLOCK, 0, stream>>>(act_of<T, ACT_GELU_TANH>{a, h, bias}, n);
    else if (kind == ACT_GELU_ERF)
        each_access<<<blocks, BLOCK, 0, stream>>>(act_of<T, ACT_GELU_ERF>{a, h, bias}, n);
    else if (kind == ACT_RELU)
        each_access<<<blocks, BLOCK, 0, stream>>>(act_of<T, ACT_RELU>{a, h, bias}, n);
    else
        each_access<<<blocks, BLOCK, 0, stream>>>(act_of<T, ACT_SWIGLU>{a, h, bias}, n);
}

template <typename T> static struct accesses act_accesses(const struct op_call *c) {
    const struct operand *list[] = {&c->in[0], &c->out[0]};
    return accesses_to<T>(c->op, list, 2);
}

template <typename T>
static int run_act(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    launch_act<T>(matrix_of<T>(&c->out[0]), matrix_of<T>(&c->in[0]), NULL, c->op->act,
                  act_accesses<T>(c), stream);
    return cuda_launched(s, c, e);
}

template <typename T>
static int make_act(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                    struct err *e) {
    (void)s, (void)e;
    if (act_accesses<T>(c).all > 0)
        made->run = run_act<T>;
    return 0;
}

// A bias has a value for each column, so rows stay rows.
template <typename T>
static struct accesses bias_accesses(const T *x, int64_t ldx, const T *y, int64_t ldy,
                                     const T *bias, int64_t m, int64_t n) {
    if (!wide_rows<T>(x, ldx, m) || !wide_rows<T>(y, ldy, m) || !aligned16(bias))
        return {1, 0};
    return accesses_of(m, n, WIDE<T>, true);
}

template <typename T> static struct accesses add_bias_accesses(const struct op_call *c) {
    return bias_accesses<T>((const T *)c->in[0].data, c->in[0].ld, (const T *)c->out[0].data,
                            c->out[0].ld, (const T *)c->in[1].data, c->op->m, c->op->n);
}

template <typename T>
static int run_add_bias(struct cuda *s, const struct op_call *c, cudaStream_t stream,
                        struct err *e) {
    const bias_of<T> f = {matrix_of<T>(&c->out[0]), matrix_of<T>(&c->in[0]),
                          (const T *)c->in[1].data};
    return launch(s, c, f, add_bias_accesses<T>(c), stream, e);
}

template <typename T>
static int make_add_bias(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                         struct err *e) {
    (void)s, (void)e;
    if (add_bias_accesses<T>(c).all > 0)
        made->run = run_add_bias<T>;
    return 0;
}

template <typename T>
void cuda_fast_add_bias(T *y, int64_t ld, const T *bias, int64_t m, int64_t n,
                        cudaStream_t stream) {
    const struct accesses a = bias_accesses<T>(y, ld, y, ld, bias, m, n);
    if (a.all == 0)
        cuda_add_bias<T>(y, ld, bias, m, n, stream);
    else
        each_access<<<(unsigned)ceil_div(a.all, BLOCK), BLOCK, 0, stream>>>(
            bias_of<T>{{y, ld}, {y, ld}, bias}, a);
}

template <typename T>
void cuda_fast_add_bias_act(T *h, int64_t ldh, T *a, int64_t lda, const T *bias, int kind,
                            int64_t m, int64_t n, cudaStream_t stream) {
    const struct accesses all = bias_accesses<T>(h, ldh, a, lda, bias, m, n);
    if (all.all == 0)
        cuda_add_bias_act<T>(h, ldh, a, lda, bias, kind, m, n, stream);
    else
        launch_act<T>({a, lda}, {h, ldh}, bias, kind, all, stream);
}

#define FOR_PRODUCTS(T)                                                                            \
    template void cuda_fast_add_bias<T>(T *, int64_t, const T *, int64_t, int64_t, cudaStream_t);  \
    template void cuda_fast_add_bias_act<T>(T *, int64_t, T *, int64_t, const T *, int, int64_t,   \
                                            int64_t, cudaStream_t);
FOR_PRODUCTS(float)
FOR_PRODUCTS(__nv_bfloat16)
FOR_PRODUCTS(__half)

// ---------------------------------------------------------------- rotary embedding

// A thread has the same 16 bytes of both halves of a head, so y may be x.
template <typename T> struct rotation {
    struct matrix<T> y, x;
    const float *table;
    int64_t ldt;
    float sign;
    uint32_t of_half; // accesses to half a head

    __device__ void operator()(int64_t i, uint32_t k) const {
        const int64_t half = (int64_t)of_half * WIDE<T>, j = (int64_t)(k % of_half) * WIDE<T>,
                      at = k / of_half * 2 * half + j;
        const T *from = x.at + i * x.ld + at;
        T *to = y.at + i * y.ld + at;
        const uint4 low = load16(from), high = load16(from + half);
        const float *cosines = table + i * ldt + j, *sines = cosines + half;
        floats<T> a = widen<T>(low), b = widen<T>(high);
#pragma unroll
        for (int l = 0; l < WIDE<T>; l += 4) {
            const float4 c = *(const float4 *)(cosines + l), s = *(const float4 *)(sines + l);
            rotate(c.x, sign * s.x, &a.x[l], &b.x[l]);
            rotate(c.y, sign * s.y, &a.x[l + 1], &b.x[l + 1]);
            rotate(c.z, sign * s.z, &a.x[l + 2], &b.x[l + 2]);
            rotate(c.w, sign * s.w, &a.x[l + 3], &b.x[l + 3]);
        }
        write_wide(to, a);
        write_wide(to + half, b);
    }
};

template <typename T> static struct accesses rope_accesses(const struct op_call *c) {
    const int64_t half = c->op->head_dim / 2;
    if (half % WIDE<T> != 0 || !wide_rows<T>(c->in[0].data, c->in[0].ld, c->op->m) ||
        !wide_rows<T>(c->out[0].data, c->out[0].ld, c->op->m) ||
        !wide_rows<float>(c->in[1].data, c->in[1].ld, c->op->m))
        return {1, 0};
    return accesses_of(c->op->m, half * c->op->heads, WIDE<T>, true);
}

template <typename T> static rotation<T> rotation_of(const struct op_call *c) {
    return {matrix_of<T>(&c->out[0]),
            matrix_of<T>(&c->in[0]),
            (const float *)c->in[1].data,
            c->in[1].ld,
            c->op->flags & OP_INVERSE ? -1.0f : 1.0f,
            (uint32_t)(c->op->head_dim / 2 / WIDE<T>)};
}

template <typename T>
static int run_rope(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    return launch_chained(s, c, rotation_of<T>(c), rope_accesses<T>(c), stream, e);
}

template <typename T>
static int make_rope(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                     struct err *e) {
    if (rope_accesses<T>(c).all == 0)
        return 0;
    made->run = run_rope<T>;
    return chain_allow(s, c, each_access_chained<rotation<T>>, 0, e);
}

// Queries and keys in one launch: the accesses of the first, then those of the second.
template <typename T> struct two_rotations {
    rotation<T> f[2];
    struct accesses a[2];

    __device__ void operator()(int64_t, uint32_t k) const {
        if (k < a[0].all)
            f[0]((int64_t)(k / a[0].of_row), k % a[0].of_row);
        else
            f[1]((int64_t)((k - a[0].all) / a[1].of_row), (k - a[0].all) % a[1].of_row);
    }
};

template <typename T>
static int run_two_ropes(struct cuda *s, const struct op_call *c, cudaStream_t stream,
                         struct err *e) {
    const two_rotations<T> *f = (const two_rotations<T> *)cuda_own(c);
    const uint32_t all = f->a[0].all + f->a[1].all;
    return launch_chained(s, c, *f, {all, all}, stream, e);
}

template <typename T> static int join_ropes(struct cuda *s, struct op_call *calls, struct err *e) {
    struct cuda_made *made[2] = {(struct cuda_made *)calls[0].made,
                                 (struct cuda_made *)calls[1].made};
    if (made[0]->run != run_rope<T> || made[1]->run != run_rope<T>)
        return 0;
    two_rotations<T> *f = (two_rotations<T> *)calloc(1, sizeof *f);
    if (!f)
        return s->host.err_set(e, ERR_MEMORY, "no memory for an op of the cuda backend");
    for (int i = 0; i < 2; i++)
        f->f[i] = rotation_of<T>(&calls[i]), f->a[i] = rope_accesses<T>(&calls[i]);
    *made[0] = {run_two_ropes<T>, f, free};
    *made[1] = {chain_nothing, NULL, NULL};
    return chain_allow(s, &calls[0], each_access_chained<two_rotations<T>>, 0, e);
}

int cuda_join_ropes(struct cuda *s, struct op_call *calls, int n, struct err *e) {
    for (int i = 0; i + 1 < n; i += 2)
        switch (calls[i].in[0].dtype) {
        case DTYPE_BF16:
            TRY(join_ropes<__nv_bfloat16>(s, calls + i, e));
            break;
        case DTYPE_F16:
            TRY(join_ropes<__half>(s, calls + i, e));
            break;
        default:
            TRY(join_ropes<float>(s, calls + i, e));
        }
    return 0;
}

// ---------------------------------------------------------------- copies

// Rows with gaps between them. Without gaps the plain kernel is as fast.
struct copy_of {
    struct matrix<uint4> y, x; // ld counts 16 bytes

    __device__ void operator()(int64_t i, uint32_t j) const { store16(y(i, j), load16(x(i, j))); }
};

// Accesses by bytes, whatever the type is.
static struct accesses copy_accesses(const struct op_call *c, int64_t size) {
    const struct operand *x = &c->in[0], *y = &c->out[0];
    if (!aligned16(x->data) || !aligned16(y->data) || x->ld * size % 16 != 0 ||
        y->ld * size % 16 != 0)
        return {1, 0};
    return accesses_of(c->op->m, c->op->n * size, 16, true);
}

static int64_t size_of(enum dtype type) {
    return type == DTYPE_F64 || type == DTYPE_I64    ? 8
           : type == DTYPE_F32 || type == DTYPE_I32  ? 4
           : type == DTYPE_BF16 || type == DTYPE_F16 ? 2
                                                     : 1;
}

static int run_copy(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const int64_t size = size_of(c->in[0].dtype);
    const copy_of f = {{(uint4 *)c->out[0].data, c->out[0].ld * size / 16},
                       {(uint4 *)c->in[0].data, c->in[0].ld * size / 16}};
    return launch(s, c, f, copy_accesses(c, size), stream, e);
}

template <typename T> static struct accesses add_to_accesses(const struct op_call *c) {
    const struct operand *list[] = {&c->in[0], &c->out[0]};
    return accesses_to<T>(c->op, list, 2);
}

template <typename T>
static int run_add_to(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const binary<T, sum_of<T>> f = {matrix_of<T>(&c->out[0]), matrix_of<T>(&c->out[0]),
                                    matrix_of<T>(&c->in[0])};
    return launch(s, c, f, add_to_accesses<T>(c), stream, e);
}

// The op's types are any, so the table is not one of the operands' type.
static int make_copy(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                     struct err *e) {
    const struct op *op = c->op;
    const enum dtype type = c->in[0].dtype;
    (void)s, (void)e;
    if (type != c->out[0].dtype)
        return 0;
    if (op->flags & OP_ACCUMULATE) {
        if (type == DTYPE_F32 && add_to_accesses<float>(c).all > 0)
            made->run = run_add_to<float>;
        else if (type == DTYPE_BF16 && add_to_accesses<__nv_bfloat16>(c).all > 0)
            made->run = run_add_to<__nv_bfloat16>;
        else if (type == DTYPE_F16 && add_to_accesses<__half>(c).all > 0)
            made->run = run_add_to<__half>;
    } else if (op->m > 1 && (c->in[0].ld != op->n || c->out[0].ld != op->n) &&
               copy_accesses(c, size_of(type)).all > 0) {
        made->run = run_copy;
    }
    return 0;
}

// ---------------------------------------------------------------- casts

enum { CAST = 4 }; // elements of a thread

template <typename FROM, typename TO> struct cast_of {
    TO *y;
    const FROM *x;
    int64_t ldy, ldx;

    __device__ void operator()(int64_t i, uint32_t k) const {
        FROM from[CAST];
        TO to[CAST];
        read_four(x + i * ldx + (int64_t)k * CAST, from);
#pragma unroll
        for (int l = 0; l < CAST; l++)
            to[l] = rounded<TO>(value(from[l]));
        write_four(y + i * ldy + (int64_t)k * CAST, to);
    }
};

template <typename FROM, typename TO>
static struct accesses cast_accesses(const struct op_call *c) {
    const int64_t m = c->op->m > 0 ? c->op->m : 1; // 0 stands for one row
    if (!wide_rows<FROM>(c->in[0].data, c->in[0].ld, m) ||
        !wide_rows<TO>(c->out[0].data, c->out[0].ld, m))
        return {1, 0};
    return accesses_of(m, c->op->n, CAST,
                       m > 1 && (c->in[0].ld != c->op->n || c->out[0].ld != c->op->n));
}

template <typename FROM, typename TO>
static int run_cast(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const cast_of<FROM, TO> f = {(TO *)c->out[0].data, (const FROM *)c->in[0].data, c->out[0].ld,
                                 c->in[0].ld};
    return launch(s, c, f, cast_accesses<FROM, TO>(c), stream, e);
}

template <typename FROM, typename TO>
static void choose_cast(const struct op_call *c, struct cuda_made *made) {
    if (cast_accesses<FROM, TO>(c).all > 0)
        made->run = run_cast<FROM, TO>;
}

static int make_cast(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                     struct err *e) {
    const enum dtype from = c->in[0].dtype, to = c->out[0].dtype;
    (void)s, (void)e;
    if (from == DTYPE_F32 && to == DTYPE_BF16)
        choose_cast<float, __nv_bfloat16>(c, made);
    else if (from == DTYPE_F32 && to == DTYPE_F16)
        choose_cast<float, __half>(c, made);
    else if (from == DTYPE_BF16 && to == DTYPE_F32)
        choose_cast<__nv_bfloat16, float>(c, made);
    else if (from == DTYPE_F16 && to == DTYPE_F32)
        choose_cast<__half, float>(c, made);
    return 0;
}

template <typename T> void cuda_add_fast_elements(struct cuda_table *t) {
    t->fast[OP_ADD] = make_binary<T, sum_of<T>>;
    t->fast[OP_MUL] = make_binary<T, product_of<T>>;
    t->fast[OP_SWIGLU] = make_swiglu<T>;
    t->fast[OP_SWIGLU_BWD] = make_swiglu_bwd<T>;
    t->fast[OP_ADD_BIAS] = make_add_bias<T>;
    t->fast[OP_ACT] = make_act<T>;
    t->fast[OP_ACT_BWD] = make_act_bwd<T>;
    t->fast[OP_ROPE] = make_rope<T>;
    t->fast[OP_COPY] = make_copy;
    t->fast[OP_CAST] = make_cast;
}
template void cuda_add_fast_elements<float>(struct cuda_table *);
template void cuda_add_fast_elements<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_elements<__half>(struct cuda_table *);

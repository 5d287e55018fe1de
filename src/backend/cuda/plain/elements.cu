// elements.cu - ops that handle one element (or one pair) at a time: zero, copy, cast, add, mul,
// dropout, activations, rotary embedding, and the addition of a bias, with or without an
// activation.
#include "backend/cuda/elements.cuh"
#include "backend/dropout.h"

// ---------------------------------------------------------------- bytes

static size_t bytes_of(enum dtype t) {
    return t == DTYPE_F64 || t == DTYPE_I64    ? 8
           : t == DTYPE_F32 || t == DTYPE_I32  ? 4
           : t == DTYPE_BF16 || t == DTYPE_F16 ? 2
                                               : 1;
}

static int zero(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    // m = 0 stands for one row of n elements: results, flat gradients.
    size_t rows = c->op->m > 0 ? (size_t)c->op->m : 1, size = bytes_of(c->out[0].dtype);
    size_t width = (size_t)c->op->n * size, pitch = (size_t)c->out[0].ld * size;
    if (width == 0)
        return 0;
    if (rows == 1 || pitch == width)
        return cuda_check(s, cudaMemsetAsync(c->out[0].data, 0, rows * width, stream), "zero", e);
    return cuda_check(s, cudaMemset2DAsync(c->out[0].data, pitch, 0, width, rows, stream), "zero",
                      e);
}

template <typename T>
__global__ void add_to(T *y, int64_t ldy, const T *x, int64_t ldx, int64_t m, int64_t n) {
    EACH_ELEMENT(i, j, m, n)
        y[i * ldy + j] = y[i * ldy + j] + x[i * ldx + j];
}

static int copy(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    enum dtype type = c->in[0].dtype;
    size_t size = bytes_of(type), width = (size_t)op->n * size;
    size_t to = (size_t)c->out[0].ld * size, from = (size_t)c->in[0].ld * size;
    if (type != c->out[0].dtype)
        return s->host.err_set(e, ERR_MISMATCH, "copy: from %s to %s needs the op cast",
                               s->host.dtype_text(type), s->host.dtype_text(c->out[0].dtype));
    if (op->m == 0 || op->n == 0)
        return 0;
    if (!(op->flags & OP_ACCUMULATE)) {
        if (op->m == 1 || (to == width && from == width))
            return cuda_check(s,
                              cudaMemcpyAsync(c->out[0].data, c->in[0].data, (size_t)op->m * width,
                                              cudaMemcpyDeviceToDevice, stream),
                              "copy", e);
        return cuda_check(s,
                          cudaMemcpy2DAsync(c->out[0].data, to, c->in[0].data, from, width,
                                            (size_t)op->m, cudaMemcpyDeviceToDevice, stream),
                          "copy", e);
    }
    struct extent x = extent_of(op, c->in[0].ld, c->out[0].ld, op->n);
    if (type == DTYPE_F32)
        add_to<<<grid_of(x.m, x.n), BLOCK, 0, stream>>>((float *)c->out[0].data, c->out[0].ld,
                                                        (const float *)c->in[0].data, c->in[0].ld,
                                                        x.m, x.n);
    else if (type == DTYPE_BF16)
        add_to<<<grid_of(x.m, x.n), BLOCK, 0, stream>>>(
            (__nv_bfloat16 *)c->out[0].data, c->out[0].ld, (const __nv_bfloat16 *)c->in[0].data,
            c->in[0].ld, x.m, x.n);
    else if (type == DTYPE_F16)
        add_to<<<grid_of(x.m, x.n), BLOCK, 0, stream>>>((__half *)c->out[0].data, c->out[0].ld,
                                                        (const __half *)c->in[0].data, c->in[0].ld,
                                                        x.m, x.n);
    else if (type == DTYPE_F64)
        add_to<<<grid_of(x.m, x.n), BLOCK, 0, stream>>>((double *)c->out[0].data, c->out[0].ld,
                                                        (const double *)c->in[0].data, c->in[0].ld,
                                                        x.m, x.n);
    else
        return s->host.err_set(e, ERR_UNSUPPORTED, "copy: ACCUMULATE adds float types, not %s",
                               s->host.dtype_text(type));
    return cuda_launched(s, c, e);
}

// ---------------------------------------------------------------- casts

static __device__ double load_any(const void *p, enum dtype t, int64_t i) {
    switch (t) {
    case DTYPE_F64:
        return ((const double *)p)[i];
    case DTYPE_BF16:
        return (double)__bfloat162float(((const __nv_bfloat16 *)p)[i]);
    case DTYPE_F16:
        return (double)__half2float(((const __half *)p)[i]);
    default:
        return (double)((const float *)p)[i];
    }
}

static __device__ void store_any(void *p, enum dtype t, int64_t i, double x) {
    switch (t) {
    case DTYPE_F64:
        ((double *)p)[i] = x;
        break;
    case DTYPE_BF16:
        ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn((float)x);
        break;
    case DTYPE_F16:
        ((__half *)p)[i] = __float2half_rn((float)x);
        break;
    default:
        ((float *)p)[i] = (float)x;
    }
}

static __global__ void cast_kernel(void *y, enum dtype to, int64_t ldy, const void *x,
                                   enum dtype from, int64_t ldx, int64_t m, int64_t n) {
    EACH_ELEMENT(i, j, m, n)
        store_any(y, to, i * ldy + j, load_any(x, from, i * ldx + j));
}

static bool is_float(enum dtype t) {
    return t == DTYPE_F32 || t == DTYPE_F64 || t == DTYPE_BF16 || t == DTYPE_F16;
}

static int cast(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    int64_t m = c->op->m > 0 ? c->op->m : 1;
    if (!is_float(c->in[0].dtype) || !is_float(c->out[0].dtype))
        return s->host.err_set(e, ERR_UNSUPPORTED, "cast: from %s to %s; accepted are float types",
                               s->host.dtype_text(c->in[0].dtype),
                               s->host.dtype_text(c->out[0].dtype));
    if (c->op->n == 0)
        return 0;
    cast_kernel<<<grid_of(m, c->op->n), BLOCK, 0, stream>>>(
        c->out[0].data, c->out[0].dtype, c->out[0].ld, c->in[0].data, c->in[0].dtype, c->in[0].ld,
        m, c->op->n);
    return cuda_launched(s, c, e);
}

// ---------------------------------------------------------------- add, bias

template <typename T>
__global__ void add_kernel(T *y, int64_t ldy, const T *a, int64_t lda, const T *b, int64_t ldb,
                           int64_t m, int64_t n) {
    EACH_ELEMENT(i, j, m, n)
        y[i * ldy + j] = rounded<T>(value(a[i * lda + j]) + value(b[i * ldb + j]));
}

template <typename T>
static int add(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    if (c->op->m == 0 || c->op->n == 0)
        return 0;
    struct extent x = extent_of(c->op, c->in[0].ld, c->in[1].ld, c->out[0].ld);
    add_kernel<<<grid_of(x.m, x.n), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const T *)c->in[0].data, c->in[0].ld,
        (const T *)c->in[1].data, c->in[1].ld, x.m, x.n);
    return cuda_launched(s, c, e);
}

template <typename T>
__global__ void dropout_kernel(T *y, int64_t ldy, const T *x, int64_t ldx, const int32_t *numbers,
                               const double *hyper, uint32_t salt, double part, bool adds,
                               int64_t m, int64_t n) {
    const struct dropout d = dropout_of(hyper[HYPER_DRAW], salt, part);
    EACH_ELEMENT(i, j, m, n) {
        const bool kept = dropout_factor(d, dropout_row(d, numbers[i]), j) > 0;
        const float v = kept ? value(x[i * ldx + j]) * d.factor : 0;
        y[i * ldy + j] = rounded<T>(adds ? value(y[i * ldy + j]) + v : v);
    }
}

template <typename T>
static int dropout(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0 || op->n == 0)
        return 0;
    dropout_kernel<<<grid_of(op->m, op->n), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const T *)c->in[0].data, c->in[0].ld,
        (const int32_t *)c->in[1].data, (const double *)c->in[2].data, op->salt, op->scale,
        (op->flags & OP_ACCUMULATE) != 0, op->m, op->n);
    return cuda_launched(s, c, e);
}

template <typename T>
__global__ void mul_kernel(T *y, int64_t ldy, const T *a, int64_t lda, const T *b, int64_t ldb,
                           int64_t m, int64_t n) {
    EACH_ELEMENT(i, j, m, n)
        y[i * ldy + j] = rounded<T>(value(a[i * lda + j]) * value(b[i * ldb + j]));
}

template <typename T>
static int mul(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    if (c->op->m == 0 || c->op->n == 0)
        return 0;
    struct extent x = extent_of(c->op, c->in[0].ld, c->in[1].ld, c->out[0].ld);
    mul_kernel<<<grid_of(x.m, x.n), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const T *)c->in[0].data, c->in[0].ld,
        (const T *)c->in[1].data, c->in[1].ld, x.m, x.n);
    return cuda_launched(s, c, e);
}

// y may be x.
template <typename T>
__global__ void bias_kernel(T *y, int64_t ldy, const T *x, int64_t ldx, const T *bias, int64_t m,
                            int64_t n) {
    EACH_ELEMENT(i, j, m, n)
        y[i * ldy + j] = rounded<T>(value(x[i * ldx + j]) + value(bias[j]));
}

template <typename T>
static int add_bias(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    if (c->op->m == 0 || c->op->n == 0)
        return 0;
    bias_kernel<<<grid_of(c->op->m, c->op->n), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const T *)c->in[0].data, c->in[0].ld,
        (const T *)c->in[1].data, c->op->m, c->op->n);
    return cuda_launched(s, c, e);
}

template <typename T>
void cuda_add_bias(T *y, int64_t ld, const T *bias, int64_t m, int64_t n, cudaStream_t stream) {
    bias_kernel<<<grid_of(m, n), BLOCK, 0, stream>>>(y, ld, (const T *)y, ld, bias, m, n);
}
template void cuda_add_bias<float>(float *, int64_t, const float *, int64_t, int64_t, cudaStream_t);
template void cuda_add_bias<__nv_bfloat16>(__nv_bfloat16 *, int64_t, const __nv_bfloat16 *, int64_t,
                                           int64_t, cudaStream_t);
template void cuda_add_bias<__half>(__half *, int64_t, const __half *, int64_t, int64_t,
                                    cudaStream_t);

// ---------------------------------------------------------------- activations

template <typename T>
__global__ void act_kernel(T *y, int64_t ldy, const T *h, int64_t ldh, int kind, int64_t m,
                           int64_t n) {
    EACH_ELEMENT(i, j, m, n)
        y[i * ldy + j] = rounded<T>(act_value<T>(value(h[i * ldh + j]), kind));
}

template <typename T>
static int act(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    if (c->op->m == 0 || c->op->n == 0)
        return 0;
    struct extent x = extent_of(c->op, c->in[0].ld, c->out[0].ld, c->op->n);
    act_kernel<<<grid_of(x.m, x.n), BLOCK, 0, stream>>>((T *)c->out[0].data, c->out[0].ld,
                                                        (const T *)c->in[0].data, c->in[0].ld,
                                                        c->op->act, x.m, x.n);
    return cuda_launched(s, c, e);
}

// The activation is computed from h as it is stored, i.e. rounded to T.
template <typename T>
__global__ void bias_act_kernel(T *h, int64_t ldh, T *a, int64_t lda, const T *bias, int kind,
                                int64_t m, int64_t n) {
    EACH_ELEMENT(i, j, m, n) {
        T stored = h[i * ldh + j];
        if (bias) {
            stored = rounded<T>(value(stored) + value(bias[j]));
            h[i * ldh + j] = stored;
        }
        a[i * lda + j] = rounded<T>(act_value<T>(value(stored), kind));
    }
}

template <typename T>
void cuda_add_bias_act(T *h, int64_t ldh, T *a, int64_t lda, const T *bias, int kind, int64_t m,
                       int64_t n, cudaStream_t stream) {
    bias_act_kernel<<<grid_of(m, n), BLOCK, 0, stream>>>(h, ldh, a, lda, bias, kind, m, n);
}
template void cuda_add_bias_act<float>(float *, int64_t, float *, int64_t, const float *, int,
                                       int64_t, int64_t, cudaStream_t);
template void cuda_add_bias_act<__nv_bfloat16>(__nv_bfloat16 *, int64_t, __nv_bfloat16 *, int64_t,
                                               const __nv_bfloat16 *, int, int64_t, int64_t,
                                               cudaStream_t);
template void cuda_add_bias_act<__half>(__half *, int64_t, __half *, int64_t, const __half *, int,
                                        int64_t, int64_t, cudaStream_t);

template <typename T>
__global__ void act_bwd_kernel(T *dh, int64_t ldd, const T *dy, int64_t ldy, const T *h,
                               int64_t ldh, int kind, int64_t m, int64_t n) {
    EACH_ELEMENT(i, j, m, n)
        dh[i * ldd + j] =
            rounded<T>(value(dy[i * ldy + j]) * act_slope<T>(value(h[i * ldh + j]), kind));
}

template <typename T>
static int act_bwd(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    if (c->op->m == 0 || c->op->n == 0)
        return 0;
    struct extent x = extent_of(c->op, c->in[0].ld, c->in[1].ld, c->out[0].ld);
    act_bwd_kernel<<<grid_of(x.m, x.n), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const T *)c->in[0].data, c->in[0].ld,
        (const T *)c->in[1].data, c->in[1].ld, c->op->act, x.m, x.n);
    return cuda_launched(s, c, e);
}

template <typename T>
__global__ void swiglu_kernel(T *a, int64_t lda, const T *gate, int64_t ldg, const T *up,
                              int64_t ldu, int64_t m, int64_t n) {
    EACH_ELEMENT(i, j, m, n) {
        a[i * lda + j] =
            rounded<T>(swiglu_value<T>(value(gate[i * ldg + j]), value(up[i * ldu + j])));
    }
}

template <typename T>
static int swiglu(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    if (c->op->m == 0 || c->op->n == 0)
        return 0;
    struct extent x = extent_of(c->op, c->in[0].ld, c->in[1].ld, c->out[0].ld);
    swiglu_kernel<<<grid_of(x.m, x.n), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const T *)c->in[0].data, c->in[0].ld,
        (const T *)c->in[1].data, c->in[1].ld, x.m, x.n);
    return cuda_launched(s, c, e);
}

template <typename T>
__global__ void swiglu_bwd_kernel(T *dgate, int64_t lddg, T *dup, int64_t lddu, const T *dy,
                                  int64_t ldy, const T *gate, int64_t ldg, const T *up, int64_t ldu,
                                  int64_t m, int64_t n) {
    EACH_ELEMENT(i, j, m, n) {
        float to_gate, to_up;
        swiglu_slopes<T>(value(dy[i * ldy + j]), value(gate[i * ldg + j]), value(up[i * ldu + j]),
                         &to_gate, &to_up);
        dgate[i * lddg + j] = rounded<T>(to_gate);
        dup[i * lddu + j] = rounded<T>(to_up);
    }
}

template <typename T>
static int swiglu_bwd(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    if (c->op->m == 0 || c->op->n == 0)
        return 0;
    swiglu_bwd_kernel<<<grid_of(c->op->m, c->op->n), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (T *)c->out[1].data, c->out[1].ld,
        (const T *)c->in[0].data, c->in[0].ld, (const T *)c->in[1].data, c->in[1].ld,
        (const T *)c->in[2].data, c->in[2].ld, c->op->m, c->op->n);
    return cuda_launched(s, c, e);
}

// ---------------------------------------------------------------- rotary embedding

// The angle is a float product, as on the CPU: position x frequency is rounded in the same way
// everywhere.
static __global__ void rope_table_kernel(float *table, int64_t ld, const int32_t *positions,
                                         const float *inv_freq, int64_t half, int64_t m) {
    EACH_ELEMENT(i, j, m, half) {
        float angle = (float)positions[i] * inv_freq[j];
        table[i * ld + j] = cosf(angle);
        table[i * ld + half + j] = sinf(angle);
    }
}

static int rope_table(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    int64_t half = c->op->head_dim / 2;
    if (c->op->m == 0 || half == 0)
        return 0;
    rope_table_kernel<<<grid_of(c->op->m, half), BLOCK, 0, stream>>>(
        (float *)c->out[0].data, c->out[0].ld, (const int32_t *)c->in[0].data,
        (const float *)c->in[1].data, half, c->op->m);
    return cuda_launched(s, c, e);
}

// Element j of a head pairs with j + D/2. A thread reads both before it writes either, so y may be
// x.
template <typename T>
__global__ void rope_kernel(T *y, int64_t ldy, const T *x, int64_t ldx, const float *table,
                            int64_t ldt, float sign, int64_t half, int64_t m, int64_t n) {
    EACH_ELEMENT(i, pair, m, n) {
        int64_t h = pair / half, j = pair % half, at = h * 2 * half + j;
        float cosine = table[i * ldt + j], sine = sign * table[i * ldt + half + j];
        float a = value(x[i * ldx + at]), b = value(x[i * ldx + at + half]);
        rotate(cosine, sine, &a, &b);
        y[i * ldy + at] = rounded<T>(a);
        y[i * ldy + at + half] = rounded<T>(b);
    }
}

template <typename T>
static int rope(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    int64_t half = c->op->head_dim / 2, pairs = half * c->op->heads;
    if (c->op->m == 0 || pairs == 0)
        return 0;
    rope_kernel<<<grid_of(c->op->m, pairs), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (const T *)c->in[0].data, c->in[0].ld,
        (const float *)c->in[1].data, c->in[1].ld, c->op->flags & OP_INVERSE ? -1.0f : 1.0f, half,
        c->op->m, pairs);
    return cuda_launched(s, c, e);
}

template <typename T> void cuda_add_plain(struct cuda_table *t) {
    t->fn[OP_ZERO] = zero;
    t->fn[OP_COPY] = copy;
    t->fn[OP_CAST] = cast;
    t->fn[OP_ADD] = add<T>;
    t->fn[OP_DROPOUT] = dropout<T>;
    t->fn[OP_MUL] = mul<T>;
    t->fn[OP_ADD_BIAS] = add_bias<T>;
    t->fn[OP_ACT] = act<T>;
    t->fn[OP_ACT_BWD] = act_bwd<T>;
    t->fn[OP_SWIGLU] = swiglu<T>;
    t->fn[OP_SWIGLU_BWD] = swiglu_bwd<T>;
    t->fn[OP_ROPE_TABLE] = rope_table;
    t->fn[OP_ROPE] = rope<T>;
}
template void cuda_add_plain<float>(struct cuda_table *);
template void cuda_add_plain<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_plain<__half>(struct cuda_table *);

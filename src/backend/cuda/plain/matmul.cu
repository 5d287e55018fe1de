// matmul.cu - the three matrix products, in tiles of 32 x 32 in shared memory, with sums in float.
// The weight of the forward may be quantized.
#include "backend/cuda/plain/quantized.cuh"

enum { SIDE = 32, EACH_THREAD = 4 }; // elements of a tile's column that a thread computes

// A matrix in memory: element (i, j) is at i * down + j * across.
template <typename T> struct matrix {
    T *at;
    int64_t down, across;

    __device__ float get(int64_t i, int64_t j) const { return value(at[i * down + j * across]); }
};

// A quantized weight [columns, inner], turned.
struct turned_codes {
    struct quantized w;

    __device__ float get(int64_t i, int64_t j) const { return quantized_value(w, j, i); }
};

// C = scale A B (+ C) for A [rows, inner] and B [inner, columns].
template <typename T, typename TO, typename B>
__global__ void __launch_bounds__(SIDE *SIDE / EACH_THREAD)
    product_kernel(struct matrix<TO> c, struct matrix<const T> a, const B b, int64_t rows,
                   int64_t columns, int64_t inner, float scale, bool accumulate) {
    __shared__ float left[SIDE][SIDE + 1], right[SIDE][SIDE + 1];
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE, step = SIDE / EACH_THREAD;
    const int64_t j0 = (int64_t)blockIdx.x * SIDE;
    for (int64_t i0 = (int64_t)blockIdx.y * SIDE; i0 < rows; i0 += (int64_t)gridDim.y * SIDE) {
        float sum[EACH_THREAD] = {};
        for (int64_t k0 = 0; k0 < inner; k0 += SIDE) {
            __syncthreads(); // all threads are done with the tiles before
            for (int r = y; r < SIDE; r += step) {
                left[r][x] = i0 + r < rows && k0 + x < inner ? a.get(i0 + r, k0 + x) : 0;
                right[r][x] = k0 + r < inner && j0 + x < columns ? b.get(k0 + r, j0 + x) : 0;
            }
            __syncthreads();
            for (int k = 0; k < SIDE; k++)
                for (int r = 0; r < EACH_THREAD; r++)
                    sum[r] += left[y + r * step][k] * right[k][x];
        }
        for (int r = 0; r < EACH_THREAD; r++)
            if (i0 + y + r * step < rows && j0 + x < columns)
                put(&c.at[(i0 + y + r * step) * c.down + (j0 + x) * c.across], scale * sum[r],
                    accumulate);
    }
}

template <typename T, typename TO, typename B>
static int multiply(struct cuda *s, const struct op_call *c, struct matrix<TO> out,
                    struct matrix<const T> a, const B &b, int64_t rows, int64_t columns,
                    int64_t inner, cudaStream_t stream, struct err *e) {
    if (rows == 0 || columns == 0)
        return 0;
    const int64_t down = ceil_div(rows, SIDE);
    dim3 grid((unsigned)ceil_div(columns, SIDE), (unsigned)(down < 65535 ? down : 65535));
    product_kernel<T, TO, B><<<grid, SIDE * SIDE / EACH_THREAD, 0, stream>>>(
        out, a, b, rows, columns, inner, (float)c->op->scale, (c->op->flags & OP_ACCUMULATE) != 0);
    return cuda_launched(s, c, e);
}

template <typename T> static struct matrix<const T> as_is(const struct operand *o) {
    return {(const T *)o->data, o->ld, 1};
}

template <typename T>
static struct matrix<const T> turned(const struct operand *o) {
    return {(const T *)o->data, 1, o->ld};
}

template <typename T>
static struct matrix<T> result(const struct operand *o) {
    return {(T *)o->data, o->ld, 1};
}

// W as [k, n], and as [n, k]. It is stored [n, k], or [k, n] with IN_OUT.
template <typename T>
static struct matrix<const T> weight_kn(const struct op_call *c) {
    return c->op->flags & OP_IN_OUT ? as_is<T>(&c->in[1]) : turned<T>(&c->in[1]);
}

template <typename T>
static struct matrix<const T> weight_nk(const struct op_call *c) {
    return c->op->flags & OP_IN_OUT ? turned<T>(&c->in[1]) : as_is<T>(&c->in[1]);
}

// x W for a weight in any storage.
template <typename T>
static int forward(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    struct turned_codes codes;
    if (c->in[1].storage.kind == STORAGE_PLAIN)
        return multiply(s, c, result<T>(&c->out[0]), as_is<T>(&c->in[0]), weight_kn<T>(c), op->m,
                        op->n, op->k, stream, e);
    TRY(quantized_of(s, c, &codes.w, e));
    return multiply(s, c, result<T>(&c->out[0]), as_is<T>(&c->in[0]), codes, op->m, op->n, op->k,
                    stream, e);
}

// y[m,n] = scale x[m,k] W + bias
template <typename T>
static int matmul(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    TRY(forward<T>(s, c, stream, e));
    if (!c->in[2].data || op->m == 0 || op->n == 0)
        return 0;
    cuda_add_bias((T *)c->out[0].data, c->out[0].ld, (const T *)c->in[2].data, op->m, op->n,
                  stream);
    return cuda_launched(s, c, e);
}

// h = product + bias, a = act(h). Bias and activation are one kernel after the product.
template <typename T>
static int matmul_act(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0 || op->n == 0)
        return 0;
    TRY(forward<T>(s, c, stream, e));
    cuda_add_bias_act((T *)c->out[0].data, c->out[0].ld, (T *)c->out[1].data, c->out[1].ld,
                      (const T *)c->in[2].data, op->act, op->m, op->n, stream);
    return cuda_launched(s, c, e);
}

// dx[m,k] = scale dy[m,n] W'
template <typename T>
static int matmul_dx(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    return multiply(s, c, result<T>(&c->out[0]), as_is<T>(&c->in[0]), weight_nk<T>(c), op->m, op->k,
                    op->n, stream, e);
}

// dW = scale x' dy, a float for every T. Its shape is [n,k], or [k,n] with IN_OUT.
template <typename T>
static int matmul_dw(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    const struct operand *x = &c->in[0], *dy = &c->in[1];
    return op->flags & OP_IN_OUT ? multiply(s, c, result<float>(&c->out[0]), turned<T>(x),
                                            as_is<T>(dy), op->k, op->n, op->m, stream, e)
                                 : multiply(s, c, result<float>(&c->out[0]), turned<T>(dy),
                                            as_is<T>(x), op->n, op->k, op->m, stream, e);
}

template <typename T> void cuda_add_matmul(struct cuda_table *t) {
    t->fn[OP_MATMUL] = matmul<T>;
    t->fn[OP_MATMUL_ACT] = matmul_act<T>;
    t->fn[OP_MATMUL_DX] = matmul_dx<T>;
    t->fn[OP_MATMUL_DW] = matmul_dw<T>;
}
template void cuda_add_matmul<float>(struct cuda_table *);
template void cuda_add_matmul<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_matmul<__half>(struct cuda_table *);

// matmul.cu - the three matrix products, by cuBLAS. fp32 is computed in fp32 (TF32 only on
// request), bf16 and fp16 with sums in fp32.
//
// cuBLAS is column-major: to it, a row-major [rows, columns] matrix is the transpose, with the same
// leading dimension. Each product below is therefore written for the transposed result.
#include "backend/cuda/cuda.cuh"

template <typename T> static cudaDataType_t type_of(void);
template <> cudaDataType_t type_of<float>(void) {
    return CUDA_R_32F;
}
template <> cudaDataType_t type_of<__nv_bfloat16>(void) {
    return CUDA_R_16BF;
}
template <> cudaDataType_t type_of<__half>(void) {
    return CUDA_R_16F;
}

struct matrix {
    const void *data;
    int64_t ld;
    cublasOperation_t as; // CUBLAS_OP_T: cuBLAS is to transpose it
};

static int leading(int64_t ld) {
    return (int)(ld > 0 ? ld : 1);
}

// C = scale A B (+ C), where rows and columns of C are column-major as in cuBLAS. Sizes beyond int
// are refused: the 64-bit interface has no advantage below 2^31 elements per dimension.
static int gemm(struct cuda *s, const struct op_call *c, int64_t rows, int64_t columns,
                int64_t inner, struct matrix a, struct matrix b, cudaDataType_t in, void *out,
                int64_t ld, cudaDataType_t out_type, cudaStream_t stream, struct err *e) {
    const int64_t most = INT32_MAX;
    const char *name = s->host.op_name(c->op->kind);
    float alpha = (float)c->op->scale, beta = c->op->flags & OP_ACCUMULATE ? 1.0f : 0.0f;
    if (stream != s->stream[STREAM_COMPUTE])
        return s->host.err_set(e, ERR_UNSUPPORTED,
                               "%s: matrix products run on the compute stream only", name);
    if (rows > most || columns > most || inner > most || a.ld > most || b.ld > most || ld > most)
        return s->host.err_set(e, ERR_UNSUPPORTED, "%s: a dimension is larger than %lld", name,
                               (long long)most);
    return cuda_check_blas(s,
                           cublasGemmEx(s->blas, a.as, b.as, (int)rows, (int)columns, (int)inner,
                                        &alpha, a.data, in, leading(a.ld), b.data, in,
                                        leading(b.ld), &beta, out, out_type, leading(ld),
                                        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                           name, e);
}

// A product over no elements is 0. cuBLAS is not called.
static int empty_product(struct cuda *s, const struct op_call *c, int64_t rows, int64_t columns,
                         size_t size, cudaStream_t stream, struct err *e) {
    if (c->op->flags & OP_ACCUMULATE || rows == 0 || columns == 0)
        return 0;
    return cuda_check(s,
                      cudaMemset2DAsync(c->out[0].data, (size_t)c->out[0].ld * size, 0,
                                        (size_t)columns * size, (size_t)rows, stream),
                      s->host.op_name(c->op->kind), e);
}

// y[m,n] = scale x[m,k] W, where neither m nor n is 0.
template <typename T>
static int product(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    struct matrix w = {c->in[1].data, c->in[1].ld,
                       op->flags & OP_IN_OUT ? CUBLAS_OP_N : CUBLAS_OP_T};
    struct matrix x = {c->in[0].data, c->in[0].ld, CUBLAS_OP_N};
    if (op->k == 0)
        return empty_product(s, c, op->m, op->n, sizeof(T), stream, e);
    return gemm(s, c, op->n, op->m, op->k, w, x, type_of<T>(), c->out[0].data, c->out[0].ld,
                type_of<T>(), stream, e);
}

// y = product + bias
template <typename T>
static int matmul(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0 || op->n == 0)
        return 0;
    TRY(product<T>(s, c, stream, e));
    if (!c->in[2].data)
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
    TRY(product<T>(s, c, stream, e));
    cuda_add_bias_act((T *)c->out[0].data, c->out[0].ld, (T *)c->out[1].data, c->out[1].ld,
                      (const T *)c->in[2].data, op->act, op->m, op->n, stream);
    return cuda_launched(s, c, e);
}

// dx[m,k] = scale dy[m,n] W'
template <typename T>
static int matmul_dx(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0 || op->k == 0)
        return 0;
    struct matrix w = {c->in[1].data, c->in[1].ld,
                       op->flags & OP_IN_OUT ? CUBLAS_OP_T : CUBLAS_OP_N};
    struct matrix dy = {c->in[0].data, c->in[0].ld, CUBLAS_OP_N};
    if (op->n == 0)
        return empty_product(s, c, op->m, op->k, sizeof(T), stream, e);
    return gemm(s, c, op->k, op->m, op->n, w, dy, type_of<T>(), c->out[0].data, c->out[0].ld,
                type_of<T>(), stream, e);
}

// dW = scale x' dy, a float for every T. Its shape is [n,k], or [k,n] with IN_OUT.
template <typename T>
static int matmul_dw(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    bool in_out = op->flags & OP_IN_OUT;
    if (op->n == 0 || op->k == 0)
        return 0;
    struct matrix x = {c->in[0].data, c->in[0].ld, in_out ? CUBLAS_OP_T : CUBLAS_OP_N};
    struct matrix dy = {c->in[1].data, c->in[1].ld, in_out ? CUBLAS_OP_N : CUBLAS_OP_T};
    int64_t rows = in_out ? op->n : op->k, columns = in_out ? op->k : op->n;
    if (op->m == 0)
        return empty_product(s, c, columns, rows, sizeof(float), stream, e);
    return gemm(s, c, rows, columns, op->m, in_out ? dy : x, in_out ? x : dy, type_of<T>(),
                c->out[0].data, c->out[0].ld, CUDA_R_32F, stream, e);
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

// argmax.cu - the likeliest id of a row of logits: 16 bytes at a time. The blocks of a cluster have
// a part of the row each, and the first of them finds the best of all parts.
#include "backend/cuda/fast/chain.cuh"
#include "backend/cuda/fast/fast.cuh"

enum { THREADS = 1024, TOGETHER = 2, MOST_SPLITS = 8 };

// The larger value, of equal ones the first. An index below 0 has no value.
struct best {
    float value;
    int at;

    __device__ void take(float v, int i) {
        if (i >= 0 && (at < 0 || v > value || (v == value && i < at)))
            value = v, at = i;
    }
    __device__ void take_of_warp(void) {
        for (int offset = WARP / 2; offset > 0; offset /= 2) {
            const float v = __shfl_xor_sync(0xffffffffu, value, offset);
            const int i = __shfl_xor_sync(0xffffffffu, at, offset);
            take(v, i);
        }
    }
};

// NaN is ignored; 0 when all values are NaN.
template <typename T>
__global__ void __launch_bounds__(THREADS)
    argmax_kernel(int32_t *ids, const T *x, int64_t ld, int accesses) {
    __shared__ struct best of_warp[WARP];
    __shared__ float of_block[2]; // the value, and the bits of its index
    const int split = blockIdx.x, splits = gridDim.x;
    chain_wait();
    chain_next();
    x += blockIdx.y * ld;
    struct best b = {0, -1};
    for (int j0 = split * TOGETHER * THREADS + (int)threadIdx.x; j0 < accesses;
         j0 += splits * TOGETHER * THREADS) {
        uint4 bits[TOGETHER];
#pragma unroll
        for (int u = 0; u < TOGETHER; u++)
            if (j0 + u * THREADS < accesses)
                bits[u] = load16(x + (int64_t)(j0 + u * THREADS) * WIDE<T>);
#pragma unroll
        for (int u = 0; u < TOGETHER; u++) {
            const int j = j0 + u * THREADS;
            if (j >= accesses)
                continue;
            const floats<T> v = widen<T>(bits[u]);
#pragma unroll
            for (int l = 0; l < WIDE<T>; l++)
                b.take(v.x[l], isnan(v.x[l]) ? -1 : j * WIDE<T> + l);
        }
    }
    b.take_of_warp();
    if (threadIdx.x % WARP == 0)
        of_warp[threadIdx.x / WARP] = b;
    __syncthreads();
    if (threadIdx.x < WARP) {
        b = of_warp[threadIdx.x];
        b.take_of_warp();
    }
    if (threadIdx.x == 0)
        of_block[0] = b.value, of_block[1] = __int_as_float(b.at);
    cluster_barrier();
    if (split == 0 && threadIdx.x == 0) {
        for (int r = 1; r < splits; r++)
            b.take(block_value(&of_block[0], r), __float_as_int(block_value(&of_block[1], r)));
        ids[blockIdx.y] = b.at < 0 ? 0 : b.at;
    }
    cluster_barrier(); // the first block may still be reading this one's memory
}

template <typename T>
static int argmax(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const int accesses = (int)(c->op->n / WIDE<T>);
    unsigned splits = 1;
    while (s->chains && splits < MOST_SPLITS && (int)splits * TOGETHER * THREADS < accesses)
        splits *= 2;
    return chain_launch(s, c, argmax_kernel<T>,
                        {dim3(splits, (unsigned)c->op->m), THREADS, 0, splits}, stream, e,
                        (int32_t *)c->out[0].data, (const T *)c->in[0].data, c->in[0].ld, accesses);
}

template <typename T>
static int make_argmax(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                       struct err *e) {
    const struct op *op = c->op;
    if (op->m == 0 || op->m > 65535 || op->n == 0 || op->n % WIDE<T> != 0 || op->n > 1 << 30 ||
        !wide_rows<T>(c->in[0].data, c->in[0].ld, op->m))
        return 0;
    made->run = argmax<T>;
    return chain_allow(s, c, argmax_kernel<T>, 0, e);
}

template <typename T> void cuda_add_fast_argmax(struct cuda_table *t) {
    t->fast[OP_ARGMAX] = make_argmax<T>;
}
template void cuda_add_fast_argmax<float>(struct cuda_table *);
template void cuda_add_fast_argmax<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_argmax<__half>(struct cuda_table *);

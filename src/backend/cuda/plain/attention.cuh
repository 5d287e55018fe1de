// attention.cuh - tiles and masks that the forward and backward of attention share.
//
// B sequences, T tokens, H query heads, G key/value heads, D columns of a head. Row b*T+t sees the
// keys s of its sequence with doc_start[row] <= s <= t. A doc_start beyond t is taken as t. Query
// head h reads key/value head h / (H/G).
//
// A block of 8 warps has a tile of 32 rows. Warp w owns rows w, w+8, w+16 and w+24 of it. Its 32
// lanes are the 32 columns of the tile of scores. For outputs, a lane holds columns lane, lane+32,
// ... of the head; NJ is how many, so a head has up to 32 NJ columns.
#ifndef HAGGLE_BACKEND_CUDA_ATTENTION_CUH
#define HAGGLE_BACKEND_CUDA_ATTENTION_CUH

#include "backend/cuda/cuda.cuh"

#include <math_constants.h>

enum { TILE = 32, WARPS = 8, OWN = TILE / WARPS, ATTENTION_MAX_DIM = 256 };

struct attention_sizes {
    int64_t T, H, G, D;
    float scale;
    int64_t B; // sequences
};

static inline struct attention_sizes attention_sizes_of(const struct op *op) {
    return (struct attention_sizes){op->seq,      op->heads,        op->kv_heads,
                                    op->head_dim, (float)op->scale, op->batch};
}

// Floats between rows of a tile in shared memory. The number is odd, so that the elements of a
// column lie in different banks.
static inline __host__ __device__ int tile_ld(int64_t D) {
    return (int)(D | 1);
}

static inline size_t tile_bytes(int tiles, int64_t D) {
    return (size_t)tiles * TILE * (size_t)tile_ld(D) * sizeof(float);
}

// Rows [t0, t0+32) of one head into shared memory; rows past T become 0.
template <typename T>
static __device__ void load_tile(float *tile, const T *head, int64_t ld, int64_t t0, int64_t rows,
                                 int64_t D) {
    for (int r = threadIdx.x / WARP; r < TILE; r += WARPS)
        for (int64_t d = threadIdx.x % WARP; d < D; d += WARP)
            tile[r * tile_ld(D) + d] = t0 + r < rows ? value(head[(t0 + r) * ld + d]) : 0;
}

static __device__ int64_t first_key(const int32_t *doc_start, int64_t row, int64_t t) {
    int64_t s = doc_start ? doc_start[row] : 0;
    return s < 0 ? 0 : s > t ? t : s;
}

static __device__ float dot_rows(const float *a, const float *b, int64_t D) {
    float sum = 0;
    for (int64_t d = 0; d < D; d++)
        sum += a[d] * b[d];
    return sum;
}

// Launches the kernel for the width of the head, after allowing it the shared memory it needs. A
// macro, because `kernel` is a template whose NJ is chosen here.
#define ATTENTION_LAUNCH(kernel, T, grid, bytes, stream, ...)                                      \
    do {                                                                                           \
        void *which_;                                                                              \
        if (c->op->head_dim <= 64)                                                                 \
            which_ = (void *)kernel<T, 2>;                                                         \
        else if (c->op->head_dim <= 128)                                                           \
            which_ = (void *)kernel<T, 4>;                                                         \
        else                                                                                       \
            which_ = (void *)kernel<T, 8>;                                                         \
        TRY(cuda_allow_shared(s, c, which_, bytes, e));                                            \
        if (c->op->head_dim <= 64)                                                                 \
            kernel<T, 2><<<grid, WARPS * WARP, bytes, stream>>>(__VA_ARGS__);                      \
        else if (c->op->head_dim <= 128)                                                           \
            kernel<T, 4><<<grid, WARPS * WARP, bytes, stream>>>(__VA_ARGS__);                      \
        else                                                                                       \
            kernel<T, 8><<<grid, WARPS * WARP, bytes, stream>>>(__VA_ARGS__);                      \
        TRY(cuda_launched(s, c, e));                                                               \
    } while (0)

// A kernel that uses more than 48 KiB of shared memory must be allowed to.
static inline int cuda_allow_shared(struct cuda *s, const struct op_call *c, const void *kernel,
                                    size_t bytes, struct err *e) {
    const char *name = s->host.op_name(c->op->kind);
    if (bytes <= 40 * 1024) // leaves room for the arrays that a kernel declares itself
        return 0;
    return cuda_check(
        s, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
        name, e);
}

#endif

// cuda.cuh - what the files of the CUDA plug-in share: its state, the translation of failures into
// messages, and the few helpers that every kernel uses.
//
// Rules of this folder:
// - plain/ has one simple kernel for every op: the truth that tests compare with. fast/ has better
//   ones for the operands they are made for. When a program is bound, cuda_make chooses.
// - An op enqueues everything on its stream and never waits for the device, so any sequence of ops
//   can be captured as a graph.
// - There are no atomics on floats, so results do not depend on timing.
// - Kernels are templates over T, the type of the activations: float, __nv_bfloat16 or __half.
//   Sums and what is kept for later (statistics, lse, gradients of weights) are float. hyper,
//   results, clip and norms are double, as on the CPU.
// - Row i of an operand starts at i * ld.
#ifndef HAGGLE_BACKEND_CUDA_CUH
#define HAGGLE_BACKEND_CUDA_CUH

#include "backend/cuda_needs.h"
#include "backend/plugin.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

enum { CUDA_MARKS = 16384 }; // timing events per turn, at most

struct cuda {
    struct plugin_host host;
    struct cuda_choice choice;
    bool tf32;
    int device, processors, shared_bytes; // shared memory of a block, at most
    cudaStream_t stream[STREAM_COUNT];
    cudaEvent_t *events;
    int n_events;
    cudaEvent_t fork, join[STREAM_COUNT]; // for captures
    unsigned captured;                    // streams that joined the capture, bits 1 << stream
    bool capturing;
    bool chains;         // kernels may begin before the one in front has ended (fast/chain.cuh)
    bool leads, follows; // whether what was enqueued last on the compute stream is such a kernel
    cudaEvent_t *marks;  // made when they are first used
    int n_marks;
    cudaEvent_t begin, end;
    void *small;                              // pinned: what the host reads a few bytes through
    char cache[PLUGIN_PATH_BYTES];            // folder for what was measured; "": none
    char products_text[64], products_f32[96]; // for people
    struct cuda_products *products;           // fast/matmul.cu; NULL: not opened yet
    char attention_text[128];                 // for people: what computes attention
    struct cudnn *cudnn;                      // fast/cudnn.cu; NULL: plain kernels
    char note[384];                           // for people (backend.note)
};

// Runs one op: enqueues its kernels on `stream`.
typedef int cuda_fn(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e);

// What is made for a call when a program is bound (op_call.made).
struct cuda_made {
    cuda_fn *run;
    void *own;               // belongs to `run`: a library's plan, say; NULL: none
    void (*drop)(void *own); // frees it
};
static inline void *cuda_own(const struct op_call *c) {
    return ((const struct cuda_made *)c->made)->own;
}

// Looks for a fast kernel for a call whose operands were checked. Sets made->run, and own and drop
// if it needs them, or leaves `made` as it is: then the plain kernel runs, or the two ops of a
// joined one.
typedef int cuda_make_fn(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                         struct err *e);

struct cuda_table {
    cuda_fn *fn[OP_COUNT];        // plain kernels
    cuda_make_fn *fast[OP_COUNT]; // NULL: only the plain kernel
};

// Each file adds its ops for T to a table. An op without a plain kernel is not supported.
template <typename T> void cuda_add_plain(struct cuda_table *t);
template <typename T> void cuda_add_rows(struct cuda_table *t);
template <typename T> void cuda_add_loss(struct cuda_table *t);
template <typename T> void cuda_add_sums(struct cuda_table *t);
template <typename T> void cuda_add_optimizer(struct cuda_table *t);
template <typename T> void cuda_add_matmul(struct cuda_table *t);
template <typename T> void cuda_add_attention(struct cuda_table *t);
template <typename T> void cuda_add_attention_bwd(struct cuda_table *t);
template <typename T> void cuda_add_fast_matmul(struct cuda_table *t);
template <typename T> void cuda_add_fast_attention(struct cuda_table *t);
template <typename T> void cuda_add_fast_cached(struct cuda_table *t);
template <typename T> void cuda_add_fast_argmax(struct cuda_table *t);
template <typename T> void cuda_add_fast_rows(struct cuda_table *t);
template <typename T> void cuda_add_fast_norm_bwd(struct cuda_table *t);
template <typename T> void cuda_add_fast_sums(struct cuda_table *t);
template <typename T> void cuda_add_fast_embed(struct cuda_table *t);
template <typename T> void cuda_add_fast_loss(struct cuda_table *t);
template <typename T> void cuda_add_fast_elements(struct cuda_table *t);
template <typename T> void cuda_add_fast_optimizer(struct cuda_table *t);

// run.cu
int cuda_make(struct backend *b, struct op_call *call, struct err *e);
void cuda_unmake(struct backend *b, struct op_call *call);
// The same for an op that another one is made of, when its operands were checked. `type` is that of
// the activations.
int cuda_make_part(struct cuda *s, struct op_call *call, enum dtype type, struct err *e);
void cuda_unmake_part(struct op_call *call);
int cuda_run_part(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e);
int cuda_join(struct backend *b, struct op_call *calls, int n, struct err *e); // fast/joined.cu
int cuda_run(struct backend *b, const struct op_call *call, struct err *e);
bool cuda_has(enum op_kind kind);

// fast/matmul.cu
void cuda_products_close(struct cuda *s);
size_t cuda_products_version(void); // of cuBLASLt: 10000 x major + 100 x minor + patch

// fast/cudnn.cu. `library` as in struct plugin_options. An error only for a file that was named:
// without the library plain kernels run, and attention_text says why.
int cuda_cudnn_open(struct cuda *s, const char *library, struct err *e);
void cuda_cudnn_close(struct cuda *s);
void cuda_attention_close(struct cuda *s); // fast/attention.cu

// Turns a failure into an error that names what was being done; 0 when there was none.
int cuda_check(struct cuda *s, cudaError_t status, const char *what, struct err *e);
// Called after a launch: an error when CUDA did not accept it.
int cuda_launched(struct cuda *s, const struct op_call *c, struct err *e);
// Refuses an attention op that does not fit the device. Called when a program is bound.
int cuda_accepts_attention(const struct cuda *s, const struct op *op, struct err *e);

// Adds bias[j] to every row of y. In plain/elements.cu, used by products.
template <typename T>
void cuda_add_bias(T *y, int64_t ld, const T *bias, int64_t m, int64_t n, cudaStream_t stream);

// h += bias (NULL: none), then a = act(h) of h as it is stored, in one pass. In plain/elements.cu,
// used by products.
template <typename T>
void cuda_add_bias_act(T *h, int64_t ldh, T *a, int64_t lda, const T *bias, int kind, int64_t m,
                       int64_t n, cudaStream_t stream);

// ---------------------------------------------------------------- elements

static inline __device__ float value(float x) {
    return x;
}
static inline __device__ float value(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
static inline __device__ float value(__half x) {
    return __half2float(x);
}
template <typename T> static inline __device__ T rounded(float x);
template <> inline __device__ float rounded<float>(float x) {
    return x;
}
template <> inline __device__ __nv_bfloat16 rounded<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <> inline __device__ __half rounded<__half>(float x) {
    return __float2half_rn(x);
}
// Stores x, or adds it to the element.
template <typename T> static inline __device__ void put(T *at, float x, bool accumulate) {
    *at = rounded<T>(accumulate ? value(*at) + x : x);
}

// Where row i of n columns begins, when each row of an operand holds `heads` of them side by side.
static inline __device__ int64_t head_at(int64_t i, int64_t heads, int64_t ld, int64_t n) {
    return heads == 1 ? i * ld : i / heads * ld + i % heads * n;
}

// ---------------------------------------------------------------- grids

enum { BLOCK = 256, WARP = 32 };

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// A thread per element of n, in blocks of BLOCK threads.
#define EACH(i, n)                                                                                 \
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < (n);                           \
         i += (int64_t)gridDim.x * BLOCK)

// A thread per element of m x n. Rows are the grid's y, so that kernels need no division by n.
static inline dim3 grid_of(int64_t m, int64_t n) {
    return dim3((unsigned)ceil_div(n, BLOCK), (unsigned)(m < 65535 ? m : 65535));
}
#define EACH_ELEMENT(i, j, m, n)                                                                   \
    for (int64_t i = blockIdx.y; i < (m); i += gridDim.y)                                          \
        for (int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; j < (n);                  \
             j += (int64_t)gridDim.x * blockDim.x)

// The sizes of an op for EACH_ELEMENT. Rows without gaps between them become one long row, which
// fills the blocks better.
struct extent {
    int64_t m, n;
};
static inline struct extent extent_of(const struct op *op, int64_t ld0, int64_t ld1, int64_t ld2) {
    if (ld0 == op->n && ld1 == op->n && ld2 == op->n)
        return (struct extent){1, op->m * op->n};
    return (struct extent){op->m, op->n};
}

// The grid of an op where a block takes a row. Blocks take further rows in turns.
static inline unsigned rows_grid(int64_t m) {
    return (unsigned)(m < (1 << 30) ? m : 1 << 30);
}
#define EACH_ROW(i, m)    for (int64_t i = blockIdx.x; i < (m); i += gridDim.x)
#define EACH_COLUMN(j, n) for (int64_t j = threadIdx.x; j < (n); j += blockDim.x)

// ---------------------------------------------------------------- sums over a block

template <typename T> static inline __device__ T warp_sum(T x) {
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

// The sum over all threads of the block, a multiple of 32. Every thread gets it; the order is
// always the same.
template <typename T> static inline __device__ T block_sum(T x) {
    __shared__ T part[WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_sum(x);
    __syncthreads(); // the sum before may still be reading `part`
    if (lane == 0)
        part[warp] = x;
    __syncthreads();
    T sum = 0;
    for (int i = 0; i < warps; i++)
        sum += part[i];
    return sum;
}

#endif

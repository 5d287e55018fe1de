// joined.cu - many calls of one kind as one launch: the squares of all gradients, AdamW on all
// weights. A model has a few hundred weights, most of them small, and a launch for each would take
// longer than its work.
//
// The elements of all calls are cut into chunks, and a block of threads takes a chunk. A table on
// the device says which call a chunk belongs to. Sums are added in the order of the chunks of their
// call, so they do not depend on what else was joined.
#include "backend/cuda/cuda.cuh"

#include <stdlib.h>

enum { CHUNK = 8192, VECTOR = 4 };

struct chunk {
    uint32_t call, index; // which one of the call's chunks
};

struct square_call {
    const float *g;
    double *sq;
    int64_t n;
    int64_t first;         // its first partial sum
    int32_t parts;         // how many it has
    bool accumulate, pair; // pair: sq also has room for what rounding lost
    bool aligned;
};

struct adamw_call {
    void *w;
    float *m, *v, *master;
    const float *g;
    int64_t n;
    bool decay, aligned;
};

// What is made for joined calls. All of it lies in one piece of device memory.
struct joined {
    void *memory;
    const struct chunk *chunks;
    const void *calls;
    double *part;
    int64_t n_chunks;
    int n_calls;
};

static bool aligned(const void *p) {
    return (uintptr_t)p % 16 == 0;
}

// ---------------------------------------------------------------- squares

static __global__ void __launch_bounds__(BLOCK)
    joined_squares(double *part, const struct square_call *calls, const struct chunk *chunks) {
    const struct chunk at = chunks[blockIdx.x];
    const struct square_call c = calls[at.call];
    const int64_t begin = (int64_t)at.index * CHUNK,
                  end = begin + CHUNK < c.n ? begin + CHUNK : c.n;
    const int64_t whole = c.aligned ? begin + (end - begin) / VECTOR * VECTOR : begin;
    double sum = 0;
    for (int64_t i = begin + VECTOR * (int64_t)threadIdx.x; i < whole; i += VECTOR * BLOCK) {
        const float4 g = *(const float4 *)&c.g[i];
        sum += (double)g.x * g.x + (double)g.y * g.y + ((double)g.z * g.z + (double)g.w * g.w);
    }
    for (int64_t i = whole + threadIdx.x; i < end; i += BLOCK)
        sum += (double)c.g[i] * c.g[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        part[c.first + at.index] = sum;
}

// A block adds the partial sums of a call.
static __global__ void __launch_bounds__(BLOCK)
    joined_totals(const double *part, const struct square_call *calls) {
    const struct square_call c = calls[blockIdx.x];
    double sum = 0;
    for (int i = threadIdx.x; i < c.parts; i += BLOCK)
        sum += part[c.first + i];
    sum = block_sum(sum);
    if (threadIdx.x != 0)
        return;
    *c.sq = c.accumulate ? *c.sq + sum : sum;
    if (c.pair)
        c.sq[1] = 0;
}

static int run_squares(struct cuda *s, const struct op_call *c, cudaStream_t stream,
                       struct err *e) {
    const struct joined *j = (const struct joined *)cuda_own(c);
    const struct square_call *calls = (const struct square_call *)j->calls;
    if (j->n_chunks > 0)
        joined_squares<<<(unsigned)j->n_chunks, BLOCK, 0, stream>>>(j->part, calls, j->chunks);
    joined_totals<<<(unsigned)j->n_calls, BLOCK, 0, stream>>>(j->part, calls);
    return cuda_launched(s, c, e);
}

// ---------------------------------------------------------------- AdamW

// The values from hyper: computed in double, used as float, as in plain/sums.cu.
struct adamw_step {
    float factor, beta1, beta2, rest1, rest2, decay, size, root, eps;
};

static __device__ struct adamw_step adamw_step_of(const double *hyper, const double *clip) {
    struct adamw_step s;
    s.factor = clip ? (float)clip[CLIP_FACTOR] : 1;
    s.beta1 = (float)hyper[HYPER_BETA1], s.rest1 = (float)(1 - hyper[HYPER_BETA1]);
    s.beta2 = (float)hyper[HYPER_BETA2], s.rest2 = (float)(1 - hyper[HYPER_BETA2]);
    s.decay = (float)(1 - hyper[HYPER_LR] * hyper[HYPER_DECAY]);
    s.size = (float)(hyper[HYPER_LR] / hyper[HYPER_BIAS1]);
    s.root = (float)(1 / sqrt(hyper[HYPER_BIAS2])), s.eps = (float)hyper[HYPER_EPS];
    return s;
}

static __device__ void adamw_element(const struct adamw_step &s, float keep, float g, float *m,
                                     float *v, float *w) {
    g *= s.factor;
    *m = s.beta1 * *m + s.rest1 * g;
    *v = s.beta2 * *v + s.rest2 * g * g;
    *w = *w * keep - s.size * *m / (sqrtf(*v) * s.root + s.eps);
}

template <typename T> struct __align__(VECTOR * sizeof(T)) four {
    T x[VECTOR];
};

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    joined_adamw(const struct adamw_call *calls, const struct chunk *chunks, const double *hyper,
                 const double *clip) {
    if (clip && clip[CLIP_SKIP] != 0)
        return;
    const struct adamw_step s = adamw_step_of(hyper, clip);
    const struct chunk at = chunks[blockIdx.x];
    const struct adamw_call c = calls[at.call];
    const float keep = c.decay ? s.decay : 1;
    T *w = (T *)c.w;
    const int64_t begin = (int64_t)at.index * CHUNK,
                  end = begin + CHUNK < c.n ? begin + CHUNK : c.n;
    const int64_t whole = c.aligned ? begin + (end - begin) / VECTOR * VECTOR : begin;
#pragma unroll 2
    for (int64_t i = begin + VECTOR * (int64_t)threadIdx.x; i < whole; i += VECTOR * BLOCK) {
        const float4 g4 = *(const float4 *)&c.g[i];
        float4 m4 = *(float4 *)&c.m[i], v4 = *(float4 *)&c.v[i], w4;
        four<T> stored;
        if (c.master) {
            w4 = *(float4 *)&c.master[i];
        } else {
            stored = *(four<T> *)&w[i];
            w4 = make_float4(value(stored.x[0]), value(stored.x[1]), value(stored.x[2]),
                             value(stored.x[3]));
        }
        adamw_element(s, keep, g4.x, &m4.x, &v4.x, &w4.x);
        adamw_element(s, keep, g4.y, &m4.y, &v4.y, &w4.y);
        adamw_element(s, keep, g4.z, &m4.z, &v4.z, &w4.z);
        adamw_element(s, keep, g4.w, &m4.w, &v4.w, &w4.w);
        *(float4 *)&c.m[i] = m4;
        *(float4 *)&c.v[i] = v4;
        if (c.master)
            *(float4 *)&c.master[i] = w4;
        stored.x[0] = rounded<T>(w4.x), stored.x[1] = rounded<T>(w4.y);
        stored.x[2] = rounded<T>(w4.z), stored.x[3] = rounded<T>(w4.w);
        *(four<T> *)&w[i] = stored;
    }
    for (int64_t i = whole + threadIdx.x; i < end; i += BLOCK) {
        float wi = c.master ? c.master[i] : value(w[i]);
        adamw_element(s, keep, c.g[i], &c.m[i], &c.v[i], &wi);
        if (c.master)
            c.master[i] = wi;
        w[i] = rounded<T>(wi);
    }
}

template <typename T>
static int run_adamw(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct joined *j = (const struct joined *)cuda_own(c);
    if (j->n_chunks > 0)
        joined_adamw<T><<<(unsigned)j->n_chunks, BLOCK, 0, stream>>>(
            (const struct adamw_call *)j->calls, j->chunks, (const double *)c->in[1].data,
            (const double *)c->in[2].data);
    return cuda_launched(s, c, e);
}

// ---------------------------------------------------------------- joining

static int run_nothing(struct cuda *s, const struct op_call *c, cudaStream_t stream,
                       struct err *e) {
    (void)s, (void)c, (void)stream, (void)e;
    return 0;
}

static void drop_joined(void *own) {
    struct joined *j = (struct joined *)own;
    cudaFree(j->memory);
    free(j);
}

static struct square_call square_call_of(const struct op_call *c, int64_t first, int64_t parts) {
    struct square_call q = {};
    q.g = (const float *)c->in[0].data, q.sq = (double *)c->out[0].data;
    q.n = c->op->n, q.first = first, q.parts = (int32_t)parts;
    q.accumulate = (c->op->flags & OP_ACCUMULATE) != 0, q.pair = c->out[0].cols == 2;
    q.aligned = aligned(q.g);
    return q;
}

static struct adamw_call adamw_call_of(const struct op_call *c) {
    struct adamw_call a = {};
    a.w = c->out[0].data, a.m = (float *)c->out[1].data, a.v = (float *)c->out[2].data;
    a.master = (float *)c->out[3].data, a.g = (const float *)c->in[0].data;
    a.n = c->op->n, a.decay = (c->op->flags & OP_DECAY) != 0;
    a.aligned = aligned(a.w) && aligned(a.m) && aligned(a.v) && aligned(a.master) && aligned(a.g);
    return a;
}

// Puts the tables on the device.
static int make_joined(struct cuda *s, struct joined *j, const struct op_call *calls, int n,
                       struct err *e) {
    const bool squares = calls[0].op->kind == OP_GRAD_SQNORM;
    const size_t call_bytes = squares ? sizeof(struct square_call) : sizeof(struct adamw_call);
    for (int i = 0; i < n; i++)
        j->n_chunks += ceil_div(calls[i].op->n, CHUNK);
    j->n_calls = n;
    const size_t chunk_bytes = (size_t)j->n_chunks * sizeof(struct chunk),
                 table_bytes = chunk_bytes + (size_t)n * call_bytes,
                 part_bytes = squares ? (size_t)j->n_chunks * sizeof(double) : 0;
    unsigned char *table = (unsigned char *)malloc(table_bytes);
    if (!table)
        return s->host.err_set(e, ERR_MEMORY, "no memory for an op of the cuda backend");
    struct chunk *chunk = (struct chunk *)table;
    int64_t first = 0;
    for (int i = 0; i < n; i++) {
        const int64_t parts = ceil_div(calls[i].op->n, CHUNK);
        for (int64_t k = 0; k < parts; k++)
            *chunk++ = (struct chunk){(uint32_t)i, (uint32_t)k};
        if (squares)
            ((struct square_call *)(table + chunk_bytes))[i] =
                square_call_of(&calls[i], first, parts);
        else
            ((struct adamw_call *)(table + chunk_bytes))[i] = adamw_call_of(&calls[i]);
        first += parts;
    }
    // chunks and calls are multiples of 8 bytes, so the doubles behind them are aligned.
    int rc = cuda_check(s, cudaMalloc(&j->memory, table_bytes + part_bytes), "joining ops", e);
    if (rc == 0)
        rc = cuda_check(s, cudaMemcpy(j->memory, table, table_bytes, cudaMemcpyHostToDevice),
                        "joining ops", e);
    free(table);
    j->chunks = (const struct chunk *)j->memory;
    j->calls = (const unsigned char *)j->memory + chunk_bytes;
    j->part = (double *)((unsigned char *)j->memory + table_bytes);
    return rc;
}

// Whether the calls can share a launch. Their number of chunks is the size of a grid.
static bool fit(const struct op_call *calls, int n) {
    int64_t chunks = 0;
    for (int i = 0; i < n; i++) {
        const struct op_call *a = &calls[0], *b = &calls[i];
        chunks += ceil_div(b->op->n, CHUNK);
        if (b->op->kind != a->op->kind)
            return false;
        if (a->op->kind == OP_ADAMW &&
            (b->in[1].data != a->in[1].data || b->in[2].data != a->in[2].data ||
             b->out[0].dtype != a->out[0].dtype))
            return false;
    }
    return chunks < INT32_MAX;
}

int cuda_join(struct backend *b, struct op_call *calls, int n, struct err *e) {
    struct cuda *s = (struct cuda *)b->state;
    if (n < 2 || !fit(calls, n))
        return 0;
    struct joined *j = (struct joined *)calloc(1, sizeof *j);
    if (!j)
        return s->host.err_set(e, ERR_MEMORY, "no memory for an op of the cuda backend");
    int rc = make_joined(s, j, calls, n, e);
    if (rc != 0) {
        drop_joined(j);
        return rc;
    }
    for (int i = 0; i < n; i++) {
        struct cuda_made *made = (struct cuda_made *)calls[i].made;
        if (made->drop)
            made->drop(made->own);
        *made = (struct cuda_made){};
        made->run = run_nothing;
    }
    struct cuda_made *first = (struct cuda_made *)calls[0].made;
    const enum dtype type = calls[0].out[0].dtype;
    first->own = j, first->drop = drop_joined;
    first->run = calls[0].op->kind == OP_GRAD_SQNORM ? run_squares
                 : type == DTYPE_BF16                ? run_adamw<__nv_bfloat16>
                 : type == DTYPE_F16                 ? run_adamw<__half>
                                                     : run_adamw<float>;
    return 0;
}

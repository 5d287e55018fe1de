// joined.cu - many calls of one kind as one launch: the squares of all gradients, AdamW on all
// weights. A model has a few hundred weights, most of them small, and a launch for each would take
// longer than its work.
//
// The elements of all calls are cut into chunks, and a block of threads takes a chunk. A table on
// the device says which call a chunk belongs to. Sums are added in the order of the chunks of their
// call, so they do not depend on what else was joined.
#include "backend/cuda/fast/adamw.cuh"
#include "backend/cuda/fast/few.cuh"

#include <stdlib.h>

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

// What is made for joined calls. All of it lies in one piece of device memory.
struct joined {
    void *memory;
    const struct chunk *chunks;
    const void *calls;
    double *part;
    int64_t n_chunks;
    int n_calls;
};

// ---------------------------------------------------------------- squares

static __global__ void __launch_bounds__(BLOCK)
    joined_squares(double *part, const struct square_call *calls, const struct chunk *chunks) {
    const struct chunk at = chunks[blockIdx.x];
    const struct square_call c = calls[at.call];
    const int64_t begin = (int64_t)at.index * CHUNK,
                  end = begin + CHUNK < c.n ? begin + CHUNK : c.n;
    const int64_t whole = c.aligned ? begin + (end - begin) / FOUR * FOUR : begin;
    double sum = 0;
    for (int64_t i = begin + FOUR * (int64_t)threadIdx.x; i < whole; i += FOUR * BLOCK) {
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

template <typename T, enum op_kind KIND>
__global__ void __launch_bounds__(BLOCK)
    joined_adamw(const struct adamw_call *calls, const struct chunk *chunks, const double *hyper,
                 const double *clip) {
    const struct chunk at = chunks[blockIdx.x];
    const struct adamw_call c = calls[at.call];
    run_chunk<T, KIND>(c, at.index, hyper, clip);
}

template <typename T, enum op_kind KIND>
static int run_adamw(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct joined *j = (const struct joined *)cuda_own(c);
    if (j->n_chunks > 0)
        joined_adamw<T, KIND><<<(unsigned)j->n_chunks, BLOCK, 0, stream>>>(
            (const struct adamw_call *)j->calls, j->chunks, (const double *)c->in[1].data,
            (const double *)c->in[2].data);
    return cuda_launched(s, c, e);
}

template <typename T> static cuda_fn *adamw_of(enum op_kind kind) {
    return kind == OP_ADAMW        ? run_adamw<T, OP_ADAMW>
           : kind == OP_ADAMW_BF16 ? run_adamw<T, OP_ADAMW_BF16>
                                   : run_adamw<T, OP_ADAMW_INT8>;
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
    q.aligned = aligned16(q.g);
    return q;
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
        if (a->op->kind != OP_GRAD_SQNORM &&
            (b->in[1].data != a->in[1].data || b->in[2].data != a->in[2].data ||
             b->out[0].dtype != a->out[0].dtype))
            return false;
    }
    return chunks < INT32_MAX;
}

int cuda_join(struct backend *b, struct op_call *calls, int n, struct err *e) {
    struct cuda *s = (struct cuda *)b->state;
    if (n > 1 && calls[0].op->kind == OP_MATMUL)
        cuda_join_few(s, calls, n);
    else if (n > 1 && calls[0].op->kind == OP_ROPE)
        return cuda_join_ropes(s, calls, n, e);
    if (n < 2 || calls[0].op->kind == OP_MATMUL || !fit(calls, n))
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
    const enum op_kind kind = calls[0].op->kind;
    first->own = j, first->drop = drop_joined;
    first->run = kind == OP_GRAD_SQNORM ? run_squares
                 : type == DTYPE_BF16   ? adamw_of<__nv_bfloat16>(kind)
                 : type == DTYPE_F16    ? adamw_of<__half>(kind)
                                        : adamw_of<float>(kind);
    return 0;
}

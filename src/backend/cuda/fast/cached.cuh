// cached.cuh - what the kernels of attention over a cache share.
#ifndef HAGGLE_BACKEND_CUDA_CACHED_CUH
#define HAGGLE_BACKEND_CUDA_CACHED_CUH

#include "backend/cuda/fast/fast.cuh"

template <typename T> struct cached_args {
    T *o;
    const T *q, *kcache, *vcache;
    const int32_t *sequences, *positions;
    int64_t ldo, ldq, ldk, ldv, batch, capacity;
    int heads, shared, dim, chunks; // query heads; those of a head of keys; blocks for these
    float scale;
};

// heads: query heads of a block, at most.
template <typename T>
static inline cached_args<T> cached_args_of(const struct op_call *c, int heads) {
    const struct op *op = c->op;
    const int shared = (int)(op->heads / op->kv_heads);
    return {(T *)c->out[0].data,
            (const T *)c->in[0].data,
            (const T *)c->in[1].data,
            (const T *)c->in[2].data,
            (const int32_t *)c->in[3].data,
            (const int32_t *)c->in[4].data,
            c->out[0].ld,
            c->in[0].ld,
            c->in[1].ld,
            c->in[2].ld,
            op->batch,
            op->seq,
            (int)op->heads,
            shared,
            (int)op->head_dim,
            (int)ceil_div(shared, heads),
            (float)op->scale};
}

// Attention of many rows, most of them of one sequence (cached_rows.cu): takes a call whose rows
// begin at multiples of 16 bytes, or leaves `made` as it is.
template <typename T>
int cuda_make_cached_rows(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                          struct err *e);

#endif

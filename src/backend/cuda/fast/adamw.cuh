// adamw.cuh - AdamW on a chunk of a weight, for one weight (optimizer.cu) and for many (joined.cu).
#ifndef HAGGLE_BACKEND_CUDA_ADAMW_CUH
#define HAGGLE_BACKEND_CUDA_ADAMW_CUH

#include "backend/cuda/fast/fast.cuh"
#include "backend/cuda/update.cuh"
#include "backend/moments.h"

enum { CHUNK = 8192, FOUR = 4 }; // a chunk is whole blocks of 8-bit moments

struct adamw_call {
    void *w, *m, *v;
    float *master, *scales;
    const float *g;
    int64_t n, first;
    uint32_t salt;
    bool decay, aligned;
};

static inline struct adamw_call adamw_call_of(const struct op_call *c) {
    struct adamw_call a = {};
    a.w = c->out[0].data, a.m = c->out[1].data, a.v = c->out[2].data;
    a.master = (float *)c->out[3].data, a.g = (const float *)c->in[0].data;
    a.scales = c->op->kind == OP_ADAMW_INT8 ? (float *)c->out[4].data : NULL;
    a.n = c->op->n, a.first = c->op->first, a.salt = c->op->salt;
    a.decay = (c->op->flags & OP_DECAY) != 0;
    a.aligned =
        aligned16(a.w) && aligned16(a.m) && aligned16(a.v) && aligned16(a.master) && aligned16(a.g);
    return a;
}

// Four elements of a weight from `at` on, of which there are `count`.
struct quad {
    int64_t at;
    int count;
    bool whole; // can be read and written at once
};

static inline __device__ struct quad quad_at(const struct adamw_call &c, int64_t at) {
    const int64_t left = c.n - at;
    return {at, left >= FOUR ? FOUR : left > 0 ? (int)left : 0, c.aligned && left >= FOUR};
}

template <typename U>
static inline __device__ void take(const struct quad &q, const U *from, U (&x)[FOUR]) {
    if (q.whole)
        read_four(from + q.at, x);
    else
#pragma unroll
        for (int i = 0; i < FOUR; i++)
            x[i] = i < q.count ? from[q.at + i] : (U)0.0f;
}

template <typename U>
static inline __device__ void give(const struct quad &q, U *to, const U (&x)[FOUR]) {
    if (q.whole)
        write_four(to + q.at, x);
    else
#pragma unroll
        for (int i = 0; i < FOUR; i++)
            if (i < q.count)
                to[q.at + i] = x[i];
}

// The weights of a quad, in full precision: their masters, if there are any.
template <typename T>
static inline __device__ void take_weights(const struct adamw_call &c, const struct quad &q,
                                           float (&w)[FOUR]) {
    if (c.master) {
        take(q, c.master, w);
        return;
    }
    T stored[FOUR];
    take(q, (const T *)c.w, stored);
#pragma unroll
    for (int i = 0; i < FOUR; i++)
        w[i] = value(stored[i]);
}

template <typename T>
static inline __device__ void give_weights(const struct adamw_call &c, const struct quad &q,
                                           const float (&w)[FOUR]) {
    T stored[FOUR];
#pragma unroll
    for (int i = 0; i < FOUR; i++)
        stored[i] = rounded<T>(w[i]);
    give(q, (T *)c.w, stored);
    if (c.master)
        give(q, c.master, w);
}

// Chunks of a weight with float, with bf16, and with 8-bit moments. A block of threads runs them.

template <typename T>
static inline __device__ void adamw_chunk(const struct adamw_call &c, const struct adamw_step &s,
                                          int64_t begin) {
#pragma unroll 2
    for (int k = threadIdx.x * FOUR; k < CHUNK && begin + k < c.n; k += BLOCK * FOUR) {
        const struct quad q = quad_at(c, begin + k);
        float g[FOUR], m[FOUR], v[FOUR], w[FOUR];
        take(q, c.g, g);
        take(q, (const float *)c.m, m);
        take(q, (const float *)c.v, v);
        take_weights<T>(c, q, w);
#pragma unroll
        for (int i = 0; i < FOUR; i++)
            adamw_element(s, g[i], &m[i], &v[i], &w[i]);
        give(q, (float *)c.m, m);
        give(q, (float *)c.v, v);
        give_weights<T>(c, q, w);
    }
}

template <typename T>
static inline __device__ void adamw_bf16_chunk(const struct adamw_call &c,
                                               const struct adamw_step &s, struct moments_key key,
                                               int64_t begin) {
#pragma unroll 2
    for (int k = threadIdx.x * FOUR; k < CHUNK && begin + k < c.n; k += BLOCK * FOUR) {
        const struct quad q = quad_at(c, begin + k);
        float g[FOUR], w[FOUR];
        uint16_t m[FOUR], v[FOUR];
        take(q, c.g, g);
        take(q, (const uint16_t *)c.m, m);
        take(q, (const uint16_t *)c.v, v);
        take_weights<T>(c, q, w);
#pragma unroll
        for (int i = 0; i < FOUR; i++) {
            float mi = moments_from_bf16(m[i]), vi = moments_from_bf16(v[i]);
            adamw_element(s, g[i], &mi, &vi, &w[i]);
            const uint32_t bits = moments_bits(key, (uint32_t)(c.first + q.at + i));
            m[i] = moments_to_bf16(mi, bits & 0xffff);
            v[i] = moments_to_bf16(vi, bits >> 16);
        }
        give(q, (uint16_t *)c.m, m);
        give(q, (uint16_t *)c.v, v);
        give_weights<T>(c, q, w);
    }
}

// The largest value over a warp; every thread gets it. NaN is ignored.
static inline __device__ float warp_most(float x) {
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// A warp takes a block of moments, two quads per thread.
template <typename T>
static inline __device__ void adamw_int8_chunk(const struct adamw_call &c,
                                               const struct adamw_step &s, struct moments_key key,
                                               int64_t begin) {
    enum { QUADS = ADAMW_BLOCK / (WARP * FOUR) };
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (int64_t at = begin + warp * ADAMW_BLOCK; at < begin + CHUNK && at < c.n;
         at += BLOCK / WARP * ADAMW_BLOCK) {
        float *scales = c.scales + at / ADAMW_BLOCK * 2;
        const float old_m = scales[0], old_v = scales[1];
        float m[QUADS][FOUR], v[QUADS][FOUR], m_most = 0, v_most = 0;
#pragma unroll
        for (int h = 0; h < QUADS; h++) {
            const struct quad q = quad_at(c, at + (h * WARP + lane) * FOUR);
            float g[FOUR], w[FOUR];
            int8_t m_code[FOUR];
            uint8_t v_code[FOUR];
            take(q, c.g, g);
            take(q, (const int8_t *)c.m, m_code);
            take(q, (const uint8_t *)c.v, v_code);
            take_weights<T>(c, q, w);
#pragma unroll
            for (int i = 0; i < FOUR; i++) {
                m[h][i] = moments_m(m_code[i], old_m), v[h][i] = moments_v(v_code[i], old_v);
                adamw_element(s, g[i], &m[h][i], &v[h][i], &w[i]);
                m_most = fmaxf(m_most, fabsf(m[h][i]));
                v_most = fmaxf(v_most, v[h][i]);
            }
            give_weights<T>(c, q, w);
        }
        // The exchange between the threads also waits until all have read the old scales.
        const float m_scale = moments_scale(warp_most(m_most)),
                    v_scale = moments_scale(warp_most(v_most));
        if (lane == 0)
            scales[0] = m_scale, scales[1] = v_scale;
        const float m_inverse = moments_inverse(m_scale), v_inverse = moments_inverse(v_scale);
#pragma unroll
        for (int h = 0; h < QUADS; h++) {
            const struct quad q = quad_at(c, at + (h * WARP + lane) * FOUR);
            int8_t m_code[FOUR];
            uint8_t v_code[FOUR];
#pragma unroll
            for (int i = 0; i < FOUR; i++) {
                const uint32_t bits = moments_bits(key, (uint32_t)(c.first + q.at + i));
                m_code[i] = moments_code_m(m[h][i], m_inverse, bits & 0xffff);
                v_code[i] = moments_code_v(v[h][i], v_inverse, bits >> 16);
            }
            give(q, (int8_t *)c.m, m_code);
            give(q, (uint8_t *)c.v, v_code);
        }
    }
}

// The chunk with number `index` of a call of that kind.
template <typename T, enum op_kind KIND>
static inline __device__ void run_chunk(const struct adamw_call &c, uint32_t index,
                                        const double *hyper, const double *clip) {
    if (clip && clip[CLIP_SKIP] != 0)
        return;
    const struct adamw_step s = adamw_step_of(hyper, clip, c.decay);
    const int64_t begin = (int64_t)index * CHUNK;
    if (KIND == OP_ADAMW)
        adamw_chunk<T>(c, s, begin);
    else if (KIND == OP_ADAMW_BF16)
        adamw_bf16_chunk<T>(c, s, moments_key(hyper[HYPER_DRAW], c.salt), begin);
    else
        adamw_int8_chunk<T>(c, s, moments_key(hyper[HYPER_DRAW], c.salt), begin);
}

#endif

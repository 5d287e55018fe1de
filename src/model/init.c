// init.c - initial values of parameters. Element i of a tensor is a function of only (seed, tensor
// name, i), so any split over threads, processes or calls gives the same bits.
//
// Normals are drawn four at a time. Block i/4 of a Philox 4x32-10 stream (Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", SC'11) gives four 32-bit words, which two Box-Muller
// transforms turn into four normals. Everything is written as short loops of fixed length over
// arrays, so that the compiler uses SIMD. Logarithm, sine and cosine are float32 series in this
// file and not libm's, because those may differ in the last bit between versions. For the same
// reason this file must not be compiled for an instruction set with fused multiply-add contraction.
#include "model/shape.h"

#include "base/hash.h"

#include <math.h>
#include <string.h>

enum { LANES = 64, BATCH = 4 * LANES }; // Philox blocks and elements per batch

struct words {
    uint32_t w[4][LANES];
};

// Ten rounds on LANES consecutive counters. The key is the seed. The counter's low half is the
// block number and its high half is the stream.
static void philox(uint64_t seed, uint64_t stream, uint64_t block, struct words *out) {
    const uint32_t m0 = 0xD2511F53u, m1 = 0xCD9E8D57u; // these constants are from the paper
    const uint32_t step0 = 0x9E3779B9u, step1 = 0xBB67AE85u;
    uint32_t *restrict c0 = out->w[0], *restrict c1 = out->w[1], *restrict c2 = out->w[2],
                       *restrict c3 = out->w[3];
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < LANES; i++) {
        uint64_t counter = block + (uint64_t)i;
        c0[i] = (uint32_t)counter;
        c1[i] = (uint32_t)(counter >> 32);
        c2[i] = (uint32_t)stream;
        c3[i] = (uint32_t)(stream >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < LANES; i++) {
            uint64_t p0 = (uint64_t)m0 * c0[i], p1 = (uint64_t)m1 * c2[i];
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)p1;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)p0;
        }
        k0 += step0;
        k1 += step1;
    }
}

// -2 ln(u) for u = (x/2 + 0.5) / 2^31 in (0, 1]. The smallest u is 2^-32, so normals reach 6.6
// sigma.
static inline float minus_two_log(uint32_t x) {
    float u = ((float)(int32_t)(x >> 1) + 0.5f) * 0x1p-31f;
    uint32_t bits;
    memcpy(&bits, &u, sizeof bits);
    // Brings the mantissa into [sqrt(1/2), sqrt(2)). The offset moves the exponent step from 1 to
    // sqrt(1/2).
    uint32_t shifted = bits - 0x3F3504F3u;
    int32_t exponent = (int32_t)shifted >> 23;
    uint32_t mantissa_bits = (shifted & 0x007FFFFFu) + 0x3F3504F3u;
    float m;
    memcpy(&m, &mantissa_bits, sizeof m);
    // ln m = 2 artanh(t) with t = (m-1)/(m+1), |t| <= 0.172. The first omitted term is below 1e-9.
    float t = (m - 1.0f) / (m + 1.0f), t2 = t * t;
    float series = 1.0f + t2 * (1.0f / 3 + t2 * (1.0f / 5 + t2 * (1.0f / 7 + t2 * (1.0f / 9))));
    float ln = (float)exponent * 0.693147181f + 2.0f * t * series;
    return fmaxf(-2.0f * ln, 0.0f);
}

// Sine and cosine of a uniformly drawn angle. The two highest bits choose the quarter turn. The
// other 30 bits are a signed offset of at most an eighth of a turn, where a short Taylor series is
// exact to float precision.
static inline void turn(uint32_t x, float *sine, float *cosine) {
    float a = (float)(int32_t)(x << 2) * (1.57079633f * 0x1p-32f), a2 = a * a;
    float s =
        a *
        (1.0f + a2 * (-1.0f / 6 + a2 * (1.0f / 120 + a2 * (-1.0f / 5040 + a2 * (1.0f / 362880)))));
    float c =
        1.0f +
        a2 * (-0.5f +
              a2 * (1.0f / 24 + a2 * (-1.0f / 720 + a2 * (1.0f / 40320 + a2 * (-1.0f / 3628800)))));
    uint32_t quarter = x >> 30;
    float first = quarter & 1 ? c : s, second = quarter & 1 ? s : c;
    *sine = quarter & 2 ? -first : first;
    *cosine = (quarter + 1) & 2 ? -second : second;
}

// BATCH normals, scaled by std: elements 4*block to 4*block + BATCH - 1 of the tensor.
static void normals(uint64_t seed, uint64_t stream, uint64_t block, float std,
                    float *restrict out) {
    struct words w;
    float radius[2][LANES], sine[2][LANES], cosine[2][LANES];
    philox(seed, stream, block, &w);
    for (int pair = 0; pair < 2; pair++) {
        for (int i = 0; i < LANES; i++)
            radius[pair][i] = std * sqrtf(minus_two_log(w.w[2 * pair][i]));
        for (int i = 0; i < LANES; i++)
            turn(w.w[2 * pair + 1][i], &sine[pair][i], &cosine[pair][i]);
    }
    for (int i = 0; i < LANES; i++) {
        out[4 * i + 0] = radius[0][i] * cosine[0][i];
        out[4 * i + 1] = radius[0][i] * sine[0][i];
        out[4 * i + 2] = radius[1][i] * cosine[1][i];
        out[4 * i + 3] = radius[1][i] * sine[1][i];
    }
}

// BATCH numbers that are evenly spread between -bound and bound.
static void uniforms(uint64_t seed, uint64_t stream, uint64_t block, float bound,
                     float *restrict out) {
    struct words w;
    philox(seed, stream, block, &w);
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < 4; k++)
            out[4 * i + k] = bound * ((float)(int32_t)w.w[k][i] * 0x1p-31f);
}

void model_param_init(const struct model_param *p, uint64_t seed, int64_t begin, int64_t n,
                      float *out) {
    if (p->init == INIT_ZERO || p->init == INIT_ONE) {
        for (int64_t i = 0; i < n; i++)
            out[i] = p->init == INIT_ONE ? 1.0f : 0.0f;
        return;
    }
    void (*draw)(uint64_t, uint64_t, uint64_t, float, float *) =
        p->init == INIT_UNIFORM ? uniforms : normals;
    uint64_t stream = hash_u64(p->name, strlen(p->name));
    int64_t end = begin + n, at = begin;
    while (at < end) {
        int64_t batch = at / BATCH, first = batch * BATCH;
        if (at == first && end - at >= BATCH) {
            draw(seed, stream, (uint64_t)batch * LANES, p->init_std, out + (at - begin));
            at += BATCH;
            continue;
        }
        // A batch that crosses the edge of the range is computed whole and copied in part.
        float whole[BATCH];
        int64_t stop = end < first + BATCH ? end : first + BATCH;
        draw(seed, stream, (uint64_t)batch * LANES, p->init_std, whole);
        memcpy(out + (at - begin), whole + (at - first), (size_t)(stop - at) * sizeof *out);
        at = stop;
    }
}

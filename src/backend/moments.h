// moments.h - what the bytes of Adam's narrow moments (16 or 8 bits) mean, and the random draws
// that round them. The reference, the CUDA kernels and the tests share this file;
// kernels_moments.inc has the same in vectors.
//
// Rounding is stochastic: a value is rounded up with the probability that makes the mean of many
// roundings equal to the value. A moment decays by a few percent or less per step; rounding to
// nearest would leave it where it is.
//
//   bf16   the upper half of a float32.
//   int8   blocks of ADAMW_BLOCK elements, scale = the block's largest magnitude:
//            m = scale sign(c) (c/127)^2, c in -127 .. 127
//            v = scale (c/255)^4,         c in 0 .. 255
//          The codes stand for powers, because the values of a block spread over orders of
//          magnitude, as the "dynamic" code of Dettmers et al. (2022) assumes. Unlike that code, a
//          power needs no table and no search. The step is m / sqrt(v), and the exponents give m
//          and sqrt(v) the same shape. A v above 0 is never rounded to 0, because the step would
//          then divide by eps.
#ifndef HAGGLE_BACKEND_MOMENTS_H
#define HAGGLE_BACKEND_MOMENTS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define MOMENTS_FN static inline __host__ __device__
#else
#define MOMENTS_FN static inline
#endif

// ---------------------------------------------------------------- draws

// 32 bits per (key, element): 16 to round m, 16 to round v. The multipliers and shifts are those of
// "lowbias32" (2018), the 32-bit mixer with the least bias that C. Wellons' search found. The
// second word of the key enters between its two rounds; otherwise another key would only shift the
// same sequence. Element numbers count modulo 2^32.
struct moments_key {
    uint32_t a, b;
};

MOMENTS_FN uint32_t moments_bits(struct moments_key key, uint32_t element) {
    uint32_t x = element + key.a;
    x = (x ^ x >> 16) * UINT32_C(0x7feb352d) ^ key.b;
    x = (x ^ x >> 15) * UINT32_C(0x846ca68b);
    return x ^ x >> 16;
}

// draw: hyper[HYPER_DRAW], made of seed and step. salt: op->salt, another one for each weight.
MOMENTS_FN struct moments_key moments_key(double draw, uint32_t salt) {
    uint64_t step = (uint64_t)draw;
    struct moments_key k = {(uint32_t)step, (uint32_t)(step >> 32)};
    struct moments_key out = {moments_bits(k, salt), moments_bits(k, ~salt)};
    return out;
}

// ---------------------------------------------------------------- bf16

// The draw is added to the half that is cut off; a carry out of it rounds up. NaN takes another
// path, because the carry could make it 0.
MOMENTS_FN uint16_t moments_to_bf16(float x, uint32_t bits16) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & UINT32_C(0x7fffffff)) > UINT32_C(0x7f800000))
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + bits16) >> 16);
}

MOMENTS_FN float moments_from_bf16(uint16_t x) {
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

// ---------------------------------------------------------------- int8

// A block whose largest value is below this is stored as zeros, because 1 / scale must be finite.
// Such values are far too small to show beside eps.
#define MOMENTS_LEAST_SCALE 1e-37f
#define MOMENTS_MOST_SCALE  3e38f

MOMENTS_FN float moments_scale(float largest) {
    return largest < MOMENTS_LEAST_SCALE  ? 0
           : largest > MOMENTS_MOST_SCALE ? MOMENTS_MOST_SCALE
                                          : largest;
}

MOMENTS_FN float moments_inverse(float scale) {
    return scale > 0 ? 1 / scale : 0;
}

// A draw in (0, 1) from 16 bits.
MOMENTS_FN float moments_unit(uint32_t bits16) {
    return ((float)bits16 + 0.5f) * 0x1p-16f;
}

MOMENTS_FN float moments_m(int8_t code, float scale) {
    float r = (float)code * (1 / 127.0f);
    return scale * (r * fabsf(r));
}

MOMENTS_FN float moments_v(uint8_t code, float scale) {
    float r = (float)code * (1 / 255.0f);
    r *= r;
    return scale * (r * r);
}

// Codes k and k + 1 stand for k^2 and (k+1)^2. The root finds k, and the draw chooses one of the
// two. The comparison also catches NaN, whose conversion to int would be undefined.
MOMENTS_FN int8_t moments_code_m(float m, float inverse, uint32_t bits16) {
    float x = fabsf(m) * inverse * (127.0f * 127.0f), t = sqrtf(x);
    float k = t < 126 ? (float)(int)t : 126;
    int code = (int)k + (moments_unit(bits16) * (2 * k + 1) < x - k * k);
    return (int8_t)(m < 0 ? -code : code);
}

MOMENTS_FN uint8_t moments_code_v(float v, float inverse, uint32_t bits16) {
    const float top = 255.0f * 255.0f * 255.0f * 255.0f;
    float x = v * inverse * top, t = sqrtf(sqrtf(x));
    float k = t < 254 ? (float)(int)t : 254;
    float low = k * k, high = (k + 1) * (k + 1);
    low *= low, high *= high;
    int code = (int)k + (moments_unit(bits16) * (high - low) < x - low);
    return (uint8_t)(code == 0 && v > 0 ? 1 : code);
}

#endif

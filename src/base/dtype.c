// dtype.c - element types and conversions between the floating ones.
//
// Conversions are exact where the target can hold the value and rounded once, to nearest even,
// where it cannot: a double goes to 16 bits through a float rounded *to odd*, which keeps the
// information a second rounding needs. NaN stays NaN (its sign and upper payload are kept, the
// quiet bit is set).
#include "base/dtype.h"

#include <string.h>

static const struct {
    size_t bytes;
    const char *safetensors, *text;
} types[DTYPE_COUNT] = {
#define X(name, bytes, st, text) {bytes, st, text},
    DTYPE_LIST(X)
#undef X
};

static int known(enum dtype t) {
    return (unsigned)t < DTYPE_COUNT;
}

size_t dtype_bytes(enum dtype t) {
    return known(t) ? types[t].bytes : 0;
}
const char *dtype_text(enum dtype t) {
    return known(t) ? types[t].text : "unknown";
}
const char *dtype_safetensors(enum dtype t) {
    return known(t) ? types[t].safetensors : "unknown";
}

int dtype_from_safetensors(const char *name) {
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(name, types[i].safetensors) == 0)
            return i;
    return -1;
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Inline twins, so that the loops below compile to loops and not to calls.
static inline float widen_bf16(uint16_t x) {
    return float_of((uint32_t)x << 16);
}

static inline uint16_t narrow_bf16(float x) {
    uint32_t bits = bits_of(x);
    uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16; // ties go to the even neighbour
    uint32_t nan = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded);
}

static inline float widen_f16(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000) << 16;
    uint32_t rest = (uint32_t)(x & 0x7FFF) << 13;
    if (rest >= 0x0F800000) { // infinity and NaN: exponent 31 becomes 255
        uint32_t quiet = rest > 0x0F800000 ? 0x400000 : 0;
        return float_of(sign | 0x7F800000 | (rest & 0x007FFFFF) | quiet);
    }
    // Subnormal: mantissa x 2^-24, through integers, so that it holds in threads that flush
    // subnormal floats to zero too.
    if (rest < 0x00800000)
        return float_of(sign | bits_of((float)(rest >> 13) * 0x1p-24f));
    return float_of(sign | (rest + 0x38000000)); // exponent bias 15 -> 127
}

static inline uint16_t narrow_f16(float x) {
    uint32_t bits = bits_of(x);
    uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000)
        return (uint16_t)(sign | 0x7E00 | (bits >> 13 & 0x3FF));
    // 65520 is half way from the largest finite value to 2^16; the tie goes up.
    if (bits >= 0x477FF000)
        return (uint16_t)(sign | 0x7C00);
    // Below 2^-14: subnormal. Adding 0.5 rounds at 2^-24, the last bit of a subnormal half.
    if (bits < 0x38800000)
        return (uint16_t)(sign | (bits_of(float_of(bits) + 0.5f) - 0x3F000000));
    // Exponent bias 127 -> 15; a carry out of the mantissa is the next exponent, which is right.
    return (uint16_t)(sign | (bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13);
}

float dtype_bf16_to_f32(uint16_t x) {
    return widen_bf16(x);
}
uint16_t dtype_f32_to_bf16(float x) {
    return narrow_bf16(x);
}
float dtype_f16_to_f32(uint16_t x) {
    return widen_f16(x);
}
uint16_t dtype_f32_to_f16(float x) {
    return narrow_f16(x);
}

// The float next to x in magnitude toward zero, with the last bit set when anything was cut (Boldo
// and Melquiond, 2008: rounding to odd and then to nearest equals rounding once when the middle
// format has two bits more).
static float odd_float(double x) {
    float f = (float)x;
    if ((double)f == x || x != x)
        return f;
    uint32_t bits = bits_of(f);
    double magnitude = x < 0 ? -x : x;
    if ((double)float_of(bits & 0x7FFFFFFF) > magnitude)
        bits--;
    return float_of(bits | 1);
}

static int is_floating(enum dtype t) {
    return t == DTYPE_F32 || t == DTYPE_F64 || t == DTYPE_BF16 || t == DTYPE_F16;
}

#define KEY(to, from) ((int)(to)*DTYPE_COUNT + (int)(from))
#define LOOP(dst_t, src_t, expression)                                                             \
    do {                                                                                           \
        dst_t *restrict d = dst;                                                                   \
        const src_t *restrict s = src;                                                             \
        for (size_t i = 0; i < n; i++)                                                             \
            d[i] = (expression);                                                                   \
    } while (0)

void dtype_convert(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, size_t n) {
    if (n == 0 || !is_floating(dst_type) || !is_floating(src_type))
        return;
    if (dst_type == src_type) {
        memcpy(dst, src, n * dtype_bytes(src_type));
        return;
    }
    switch (KEY(dst_type, src_type)) {
    case KEY(DTYPE_F32, DTYPE_BF16):
        LOOP(float, uint16_t, widen_bf16(s[i]));
        break;
    case KEY(DTYPE_F32, DTYPE_F16):
        LOOP(float, uint16_t, widen_f16(s[i]));
        break;
    case KEY(DTYPE_F32, DTYPE_F64):
        LOOP(float, double, (float)s[i]);
        break;
    case KEY(DTYPE_F64, DTYPE_F32):
        LOOP(double, float, (double)s[i]);
        break;
    case KEY(DTYPE_F64, DTYPE_BF16):
        LOOP(double, uint16_t, (double)widen_bf16(s[i]));
        break;
    case KEY(DTYPE_F64, DTYPE_F16):
        LOOP(double, uint16_t, (double)widen_f16(s[i]));
        break;
    case KEY(DTYPE_BF16, DTYPE_F32):
        LOOP(uint16_t, float, narrow_bf16(s[i]));
        break;
    case KEY(DTYPE_BF16, DTYPE_F64):
        LOOP(uint16_t, double, narrow_bf16(odd_float(s[i])));
        break;
    case KEY(DTYPE_BF16, DTYPE_F16):
        LOOP(uint16_t, uint16_t, narrow_bf16(widen_f16(s[i])));
        break;
    case KEY(DTYPE_F16, DTYPE_F32):
        LOOP(uint16_t, float, narrow_f16(s[i]));
        break;
    case KEY(DTYPE_F16, DTYPE_F64):
        LOOP(uint16_t, double, narrow_f16(odd_float(s[i])));
        break;
    case KEY(DTYPE_F16, DTYPE_BF16):
        LOOP(uint16_t, uint16_t, narrow_f16(widen_bf16(s[i])));
        break;
    default:
        break;
    }
}

// dtype.c - element types and conversions between the floating ones.
//
// A conversion is exact where the target can hold the value. Otherwise it rounds once, to nearest
// even. A double goes to 16 bits through a float that is rounded *to odd*, which keeps the
// information that the second rounding needs. NaN stays NaN: its sign and upper payload are kept
// and the quiet bit is set.
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

// Inline, so that the loops below contain no calls. The header makes them external too.
inline float dtype_bf16_to_f32(uint16_t x) {
    return float_of((uint32_t)x << 16);
}

inline uint16_t dtype_f32_to_bf16(float x) {
    uint32_t bits = bits_of(x);
    uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16; // ties go to the even neighbour
    uint32_t nan = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded);
}

inline float dtype_f16_to_f32(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000) << 16;
    uint32_t rest = (uint32_t)(x & 0x7FFF) << 13;
    if (rest >= 0x0F800000) { // infinity and NaN: exponent 31 becomes 255
        uint32_t quiet = rest > 0x0F800000 ? 0x400000 : 0;
        return float_of(sign | 0x7F800000 | (rest & 0x007FFFFF) | quiet);
    }
    // Subnormal: mantissa x 2^-24. The mantissa is converted from an integer, so the result is also
    // right in threads that flush subnormal floats to zero.
    if (rest < 0x00800000)
        return float_of(sign | bits_of((float)(rest >> 13) * 0x1p-24f));
    return float_of(sign | (rest + 0x38000000)); // exponent bias 15 -> 127
}

inline uint16_t dtype_f32_to_f16(float x) {
    uint32_t bits = bits_of(x);
    uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000)
        return (uint16_t)(sign | 0x7E00 | (bits >> 13 & 0x3FF));
    // 65520 is half way from the largest finite value to 2^16. The tie goes up, to infinity.
    if (bits >= 0x477FF000)
        return (uint16_t)(sign | 0x7C00);
    // Below 2^-14 the result is subnormal. Adding 0.5 rounds at 2^-24, the last bit of a subnormal
    // half-precision number.
    if (bits < 0x38800000)
        return (uint16_t)(sign | (bits_of(float_of(bits) + 0.5f) - 0x3F000000));
    // Exponent bias 127 -> 15. A carry out of the mantissa correctly increments the exponent.
    return (uint16_t)(sign | (bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13);
}

// Rounds x to odd: truncates it to a float toward zero, and sets the last bit when anything was cut
// off. Rounding to odd and then to nearest equals rounding once, if the middle format has at least
// two bits more than the final one (Boldo and Melquiond, 2008).
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

int dtype_is_floating(enum dtype t) {
    return t == DTYPE_F32 || t == DTYPE_F64 || t == DTYPE_BF16 || t == DTYPE_F16;
}

#define KEY(to, from) ((int)(to)*DTYPE_COUNT + (int)(from))
// Converts each element s of src.
#define CASE(to, to_t, from, from_t, expression)                                                   \
    case KEY(to, from): {                                                                          \
        to_t *restrict d = dst;                                                                    \
        for (size_t i = 0; i < n; i++) {                                                           \
            const from_t s = ((const from_t *restrict)src)[i];                                     \
            d[i] = (expression);                                                                   \
        }                                                                                          \
        break;                                                                                     \
    }

void dtype_convert(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, size_t n) {
    if (n == 0 || !dtype_is_floating(dst_type) || !dtype_is_floating(src_type))
        return;
    if (dst_type == src_type) {
        memcpy(dst, src, n * dtype_bytes(src_type));
        return;
    }
    switch (KEY(dst_type, src_type)) {
        CASE(DTYPE_F32, float, DTYPE_BF16, uint16_t, dtype_bf16_to_f32(s))
        CASE(DTYPE_F32, float, DTYPE_F16, uint16_t, dtype_f16_to_f32(s))
        CASE(DTYPE_F32, float, DTYPE_F64, double, (float)s)
        CASE(DTYPE_F64, double, DTYPE_F32, float, (double)s)
        CASE(DTYPE_F64, double, DTYPE_BF16, uint16_t, (double)dtype_bf16_to_f32(s))
        CASE(DTYPE_F64, double, DTYPE_F16, uint16_t, (double)dtype_f16_to_f32(s))
        CASE(DTYPE_BF16, uint16_t, DTYPE_F32, float, dtype_f32_to_bf16(s))
        CASE(DTYPE_BF16, uint16_t, DTYPE_F64, double, dtype_f32_to_bf16(odd_float(s)))
        CASE(DTYPE_BF16, uint16_t, DTYPE_F16, uint16_t, dtype_f32_to_bf16(dtype_f16_to_f32(s)))
        CASE(DTYPE_F16, uint16_t, DTYPE_F32, float, dtype_f32_to_f16(s))
        CASE(DTYPE_F16, uint16_t, DTYPE_F64, double, dtype_f32_to_f16(odd_float(s)))
        CASE(DTYPE_F16, uint16_t, DTYPE_BF16, uint16_t, dtype_f32_to_f16(dtype_bf16_to_f32(s)))
    default:
        break;
    }
}

// Exponents of all ones are infinities and NaNs. The loop over a block has no branch, so that
// compilers vectorize it.
enum { FINITE_BLOCK = 4096 };
#define FIRST_NOT_FINITE(type, mask)                                                               \
    do {                                                                                           \
        const type *x = data, ones = (mask);                                                       \
        for (size_t i = 0; i < n; i += FINITE_BLOCK) {                                             \
            const size_t end = n - i < FINITE_BLOCK ? n : i + FINITE_BLOCK;                        \
            type bad = 0;                                                                          \
            for (size_t k = i; k < end; k++)                                                       \
                bad |= (type)((x[k] & ones) == ones);                                              \
            for (size_t k = i; bad && k < end; k++)                                                \
                if ((x[k] & ones) == ones)                                                         \
                    return (int64_t)k;                                                             \
        }                                                                                          \
        return -1;                                                                                 \
    } while (0)

int64_t dtype_first_not_finite(const void *data, enum dtype t, size_t n) {
    switch (t) {
    case DTYPE_F32:
        FIRST_NOT_FINITE(uint32_t, 0x7f800000u);
    case DTYPE_F64:
        FIRST_NOT_FINITE(uint64_t, 0x7ff0000000000000u);
    case DTYPE_BF16:
        FIRST_NOT_FINITE(uint16_t, 0x7f80u);
    case DTYPE_F16:
        FIRST_NOT_FINITE(uint16_t, 0x7c00u);
    default:
        return -1;
    }
}

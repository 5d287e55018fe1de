// test_dtype.c - dtype.h: every 16-bit value survives a round trip. Rounding is compared with the
// compiler's _Float16, and with an exact search for bf16.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t bits_of(float x) {
    uint32_t b;
    memcpy(&b, &x, 4);
    return b;
}

static float float_of(uint32_t b) {
    float x;
    memcpy(&x, &b, 4);
    return x;
}

static void test_table(void **state) {
    (void)state;
    assert_int_equal(dtype_bytes(DTYPE_F32), 4);
    assert_int_equal(dtype_bytes(DTYPE_I64), 8);
    assert_int_equal(dtype_bytes(DTYPE_COUNT), 0);
    assert_string_equal(dtype_text(DTYPE_BF16), "bf16");
    assert_string_equal(dtype_text((enum dtype)99), "unknown");
    for (int t = 0; t < DTYPE_COUNT; t++)
        assert_int_equal(dtype_from_safetensors(dtype_safetensors((enum dtype)t)), t);
    assert_int_equal(dtype_from_safetensors("f32"), -1);
    assert_int_equal(dtype_from_safetensors(""), -1);
}

static void test_round_trip(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t x = (uint16_t)i;
        float b = dtype_bf16_to_f32(x), h = dtype_f16_to_f32(x);
        if ((x & 0x7FFF) > 0x7F80) {
            uint16_t back = dtype_f32_to_bf16(b);
            assert_true(isnan(b) && (back & 0x7FFF) > 0x7F80);
            assert_int_equal(back & 0x8000, x & 0x8000);
        } else {
            assert_int_equal(dtype_f32_to_bf16(b), x);
        }
        if ((x & 0x7FFF) > 0x7C00) {
            uint16_t back = dtype_f32_to_f16(h);
            assert_true(isnan(h) && (back & 0x7FFF) > 0x7C00);
            assert_int_equal(back & 0x8000, x & 0x8000);
        } else {
            assert_int_equal(dtype_f32_to_f16(h), x);
            // The value by definition, from sign, exponent and mantissa.
            int exponent = x >> 10 & 31, mantissa = x & 1023;
            double want = exponent == 31  ? INFINITY
                          : exponent == 0 ? ldexp(mantissa, -24)
                                          : ldexp(1024 + mantissa, exponent - 25);
            assert_true((double)h == (x & 0x8000 ? -want : want));
            assert_int_equal(!!signbit(h), x >> 15);
        }
    }
}

// The nearest bf16, found by comparing x with both neighbours. The arithmetic is exact, because a
// float's distance to each of them fits a double.
static uint16_t nearest_bf16(double x) {
    if (isnan(x))
        return 0x7FC0;
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    // Bisection finds the largest bf16 that is not above a. Positive floats have the same order as
    // their bits.
    uint32_t low = 0, high = 0x7F80;
    while (low + 1 < high) {
        uint32_t mid = (low + high) / 2;
        if ((double)float_of(mid << 16) <= a)
            low = mid;
        else
            high = mid;
    }
    if (isinf(a))
        return sign | 0x7F80;
    // The step after the largest finite value would be 2^128.
    double above = high == 0x7F80 ? 0x1p128 : (double)float_of(high << 16);
    double below = (double)float_of(low << 16);
    double up = above - a, down = a - below;
    uint32_t pick = down < up ? low : up < down ? high : low % 2 ? high : low;
    return (uint16_t)(sign | pick);
}

static void check_float(float x) {
    uint16_t b = dtype_f32_to_bf16(x);
    if (isnan(x)) {
        assert_true((b & 0x7FFF) > 0x7F80);
        assert_true((dtype_f32_to_f16(x) & 0x7FFF) > 0x7C00);
        return;
    }
    if (b != nearest_bf16(x))
        fail_msg("bf16 of %a is %04x, not %04x", (double)x, b, nearest_bf16(x));
#ifdef __FLT16_MAX__
    _Float16 want = (_Float16)x;
    uint16_t want_bits;
    memcpy(&want_bits, &want, 2);
    if (dtype_f32_to_f16(x) != want_bits)
        fail_msg("fp16 of %a is %04x, not %04x", (double)x, dtype_f32_to_f16(x), want_bits);
#endif
}

static void test_f32_rounding(void **state) {
    (void)state;
    // Values around every 16-bit value and around every half-way point between two of them.
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t h = bits_of(dtype_f16_to_f32((uint16_t)i)), b = i << 16;
        for (int d = -1; d <= 1; d++) {
            check_float(float_of(h + (uint32_t)d));
            check_float(float_of(h + 0x1000 + (uint32_t)d));
            check_float(float_of(b + (uint32_t)d));
            check_float(float_of(b + 0x8000 + (uint32_t)d));
        }
    }
    // Half-way points of subnormal halves: odd multiples of 2^-25.
    for (int k = 0; k < 2050; k++) {
        float x = ldexpf((float)k, -25);
        check_float(x);
        check_float(nextafterf(x, 0));
        check_float(-nextafterf(x, 1));
    }
    for (uint64_t i = 0; i < 1000000; i++)
        check_float(float_of((uint32_t)rng_u64(1, 1, i)));
}

static void check_double(double x) {
    uint16_t b, h;
    dtype_convert(&b, DTYPE_BF16, &x, DTYPE_F64, 1);
    dtype_convert(&h, DTYPE_F16, &x, DTYPE_F64, 1);
    if (isnan(x)) {
        assert_true((b & 0x7FFF) > 0x7F80 && (h & 0x7FFF) > 0x7C00);
        return;
    }
    if (b != nearest_bf16(x))
        fail_msg("bf16 of %a is %04x, not %04x", x, b, nearest_bf16(x));
#ifdef __FLT16_MAX__
    _Float16 want = (_Float16)x;
    uint16_t want_bits;
    memcpy(&want_bits, &want, 2);
    if (h != want_bits)
        fail_msg("fp16 of %a is %04x, not %04x", x, h, want_bits);
#endif
}

static void test_f64_rounds_once(void **state) {
    (void)state;
    // Just above half way. Rounding to float first would lose the small excess and then round to
    // even, the wrong way.
    double hair = 1 + 0x1p-8 + 0x1p-40;
    uint16_t b;
    dtype_convert(&b, DTYPE_BF16, &hair, DTYPE_F64, 1);
    assert_int_equal(b, 0x3F81);
    for (uint64_t i = 0; i < 200000; i++) {
        uint64_t r = rng_u64(1, 2, i);
        float f = float_of((uint32_t)r & 0xFFFFF000u);
        double x = (double)f;
        if (!isfinite(x))
            continue;
        check_double(x);
        check_double(nextafter(x, INFINITY));
        check_double(nextafter(x, -INFINITY));
        memcpy(&x, &r, 8);
        check_double(x);
    }
    static const double special[] = {0.0,        -0.0,       INFINITY, -INFINITY,
                                     1e300,      -1e300,     1e-300,   65520.0,
                                     65519.9999, 0x1p-25,    0x1p-24,  5e-324,
                                     0x1p-134,   0x1.8p-134, 0x1p-149, 3.3961775292304955e38};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        check_double(special[i]);
    check_double(NAN);
}

static void test_convert_pairs(void **state) {
    (void)state;
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16};
    // Small integers are exact in every type, so any path keeps them.
    double source[100], result[100];
    unsigned char a[800], b[800];
    for (int i = 0; i < 100; i++)
        source[i] = i - 50;
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 4; j++) {
            memset(b, 0xAA, sizeof b);
            dtype_convert(a, types[i], source, DTYPE_F64, 100);
            dtype_convert(b, types[j], a, types[i], 99);
            for (size_t k = 99 * dtype_bytes(types[j]); k < sizeof b; k++)
                assert_int_equal(b[k], 0xAA); // exactly n elements were written
            dtype_convert(result, DTYPE_F64, b, types[j], 99);
            assert_memory_equal(result, source, 99 * sizeof *source);
        }
    }
    // With a type that is not floating-point nothing is written.
    memset(b, 0xAA, sizeof b);
    dtype_convert(b, DTYPE_I32, source, DTYPE_F64, 10);
    assert_int_equal(b[0], 0xAA);
    dtype_convert(NULL, DTYPE_F32, NULL, DTYPE_F16, 0);
}

static void test_first_not_finite(void **state) {
    (void)state;
    enum { N = 9000 }; // more than two blocks
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16};
    static const double bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    static const size_t places[] = {0, 1, 4095, 4096, 8191, 8999};
    static double data[N + 1], wide[N + 1];
    for (int i = 0; i <= N; i++)
        wide[i] = i % 3 ? 65504 : -i; // the largest of fp16
    for (size_t i = 0; i < 4; i++) {
        char *bytes = (char *)data;
        const size_t each = dtype_bytes(types[i]);
        dtype_convert(data, types[i], wide, DTYPE_F64, N);
        dtype_convert(bytes + N * each, types[i], &bad[0], DTYPE_F64, 1);
        assert_int_equal(dtype_first_not_finite(data, types[i], N), -1); // not beyond the end
        assert_int_equal(dtype_first_not_finite(data, types[i], 0), -1);
        for (size_t k = sizeof places / sizeof *places; k-- > 0;) { // ever earlier ones
            dtype_convert(bytes + places[k] * each, types[i], &bad[k % 4], DTYPE_F64, 1);
            assert_int_equal(dtype_first_not_finite(data, types[i], N), places[k]);
        }
    }
    memset(data, 0xff, sizeof data);
    assert_int_equal(dtype_first_not_finite(data, DTYPE_I32, N), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),         cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_f32_rounding),  cmocka_unit_test(test_f64_rounds_once),
        cmocka_unit_test(test_convert_pairs), cmocka_unit_test(test_first_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

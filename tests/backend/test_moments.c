// test_moments.c - the narrow types of Adam's moments: draws are uniform, rounding has no bias,
// errors stay within their bounds, and a slow decay is not lost.
#include "backend/moments.h"

#include "backend/cpu/cpu.h"
#include "base/rng.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { DRAWS = 1 << 16 };

// ---------------------------------------------------------------- draws

// Chi-square with 15 degrees of freedom: 37.7 is exceeded once in a thousand times. The draws are
// fixed, so the test is too.
static double chi_square(const int64_t *bins, int n, int64_t total) {
    double expected = (double)total / n, sum = 0;
    for (int i = 0; i < n; i++)
        sum += ((double)bins[i] - expected) * ((double)bins[i] - expected) / expected;
    return sum;
}

static void test_draws(void **state) {
    (void)state;
    for (uint32_t salt = 0; salt < 4; salt++) {
        struct moments_key key = moments_key(1000 + salt / 2, salt % 2);
        int64_t m[16] = {0}, v[16] = {0}, both[16] = {0}, next[16] = {0}, steps[16] = {0};
        struct moments_key later = moments_key(1001 + salt / 2, salt % 2);
        for (uint32_t i = 0; i < DRAWS; i++) {
            uint32_t x = moments_bits(key, i), y = moments_bits(key, i + 1);
            uint32_t z = moments_bits(later, i);
            m[x >> 12 & 15]++, v[x >> 28]++;
            both[(x >> 14 & 3) * 4 + (x >> 30)]++; // of m and of v
            next[(x >> 14 & 3) * 4 + (y >> 14 & 3)]++;
            steps[(x >> 14 & 3) * 4 + (z >> 14 & 3)]++;
        }
        assert_true(chi_square(m, 16, DRAWS) < 37.7);
        assert_true(chi_square(v, 16, DRAWS) < 37.7);
        assert_true(chi_square(both, 16, DRAWS) < 37.7);
        assert_true(chi_square(next, 16, DRAWS) < 37.7);
        assert_true(chi_square(steps, 16, DRAWS) < 37.7);
    }
}

// ---------------------------------------------------------------- bf16

// Every draw once: the mean of all roundings is the value itself, exactly.
static void test_bf16_mean(void **state) {
    (void)state;
    const float values[] = {1, -1, 0, 1.0001f, 3.14159265f, -2.71828183e-20f, 1e-40f, 6.02e23f};
    for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
        double sum = 0;
        for (uint32_t bits = 0; bits < DRAWS; bits++) {
            float y = moments_from_bf16(moments_to_bf16(values[k], bits));
            // The nearest neighbour on either side: 8 bits of mantissa.
            assert_true(fabs((double)y - (double)values[k]) <
                        fmax(fabs((double)values[k]) * 0x1p-7, 0x1p-133));
            sum += (double)y;
        }
        assert_true(fabs(sum / DRAWS - (double)values[k]) <= fabs((double)values[k]) * 1e-12);
    }
    // With the real draws: within four standard errors.
    const double x = 1.0 + 0.3 * 0x1p-7;
    double sum = 0;
    struct moments_key key = moments_key(7, 7);
    for (uint32_t i = 0; i < 1 << 20; i++)
        sum += (double)moments_from_bf16(moments_to_bf16((float)x, moments_bits(key, i) & 0xffff));
    double error = sqrt(0.3 * 0.7 / (1 << 20)) * 0x1p-7;
    assert_true(fabs(sum / (1 << 20) - x) < 4 * error);
}

static void test_bf16_special(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < DRAWS; bits += 0xffff) {
        assert_true(isnan(moments_from_bf16(moments_to_bf16(NAN, bits))));
        assert_true(moments_from_bf16(moments_to_bf16(INFINITY, bits)) == INFINITY);
        assert_true(moments_from_bf16(moments_to_bf16(-INFINITY, bits)) == -INFINITY);
        uint32_t odd = 0x7fffffff;
        float nan;
        memcpy(&nan, &odd, sizeof nan);
        assert_true(isnan(moments_from_bf16(moments_to_bf16(nan, bits))));
    }
}

// ---------------------------------------------------------------- int8

// Blocks of values that spread over `decades` orders of magnitude.
static float spread(int block, uint64_t i, int decades) {
    double size = pow(10, -decades * rng_uniform(3, (uint64_t)block, i));
    return (float)(size * (rng_u64(4, (uint64_t)block, i) % 2 ? 1 : -1) * 1e-3);
}

// The error is smaller than the step between neighbouring codes, for the smallest and the largest
// draw.
static void test_int8_bounds(void **state) {
    (void)state;
    for (int block = 0; block < 48; block++) {
        float x[ADAMW_BLOCK], most = 0;
        for (uint64_t i = 0; i < ADAMW_BLOCK; i++) {
            x[i] = spread(block, i, 1 + block % 12);
            most = fmaxf(most, fabsf(x[i]));
        }
        float scale = moments_scale(most), inverse = moments_inverse(scale);
        for (int i = 0; i < ADAMW_BLOCK; i++)
            for (uint32_t bits = 0; bits < DRAWS; bits += 0x5555) {
                double a = fabs((double)x[i]) / (double)scale;
                int8_t c = moments_code_m(x[i], inverse, bits);
                uint8_t u = moments_code_v(fabsf(x[i]), inverse, bits);
                double m = (double)moments_m(c, scale) / (double)scale;
                double v = (double)moments_v(u, scale) / (double)scale;
                double k = floor(sqrt(a) * 127 + 1e-4), l = floor(sqrt(sqrt(a)) * 255 + 1e-4);
                double m_gap = (2 * k + 1) / (127.0 * 127), v_gap = (pow(l + 1, 4) - pow(l, 4));
                assert_true(fabs(fabs(m) - a) <= m_gap * 1.001 + 1e-6);
                assert_true(m * (double)x[i] >= 0); // the sign is kept, or the value is 0
                assert_true(fabs(v - a) <= v_gap / pow(255, 4) * 1.001 + 1e-6);
                assert_true(v > 0);
                if (fabsf(x[i]) == most) // the block's largest is exact, up to float32
                    assert_true(fabs(fabs(m) - 1) < 1e-6 && fabs(v - 1) < 1e-6);
            }
    }
}

// Every draw once, as for bf16. Below the smallest code above 0, the mean of v is too large, never
// too small (moments.h).
static void test_int8_mean(void **state) {
    (void)state;
    const double values[] = {1, 0.999, 0.5, 0.1234, 1e-2, 1e-4, 1e-6, 1e-9};
    for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
        double m = 0, v = 0, x = (double)(float)values[k];
        for (uint32_t bits = 0; bits < DRAWS; bits++) {
            m += (double)moments_m(moments_code_m((float)-x, 1, bits), 1);
            v += (double)moments_v(moments_code_v((float)x, 1, bits), 1);
        }
        // Draws have 16 bits, so a probability is right to 2^-16 of a step.
        assert_true(fabs(m / DRAWS + x) < 2e-5 * fmax(x, 1e-4));
        assert_true(fabs(v / DRAWS - x) < 1e-4 * x);
    }
    assert_true(moments_v(moments_code_v(1e-12f, 1, 0xffff), 1) > 0);
}

static void test_int8_special(void **state) {
    (void)state;
    assert_int_equal(moments_code_m(0, 0, 0), 0);
    assert_int_equal(moments_code_v(0, 0, 0), 0);
    assert_true(moments_scale(1e-42f) == 0 && moments_inverse(0) == 0);
    float most = moments_scale(INFINITY);
    assert_true(isfinite(most) && moments_inverse(most) > 0);
    assert_int_equal(moments_code_m(-INFINITY, moments_inverse(most), 0), -127);
    assert_int_equal(moments_code_v(INFINITY, moments_inverse(most), 0), 255);
    moments_code_m(NAN, 1, 0); // any code, but no undefined conversion
    moments_code_v(NAN, 1, 0);
}

// ---------------------------------------------------------------- decay

struct moments {
    float w[4096], g[4096], scales[4096 / ADAMW_BLOCK * 2];
    uint16_t m16[4096], v16[4096];
    int8_t m8[4096];
    uint8_t v8[4096];
};

// Steps without gradient, except for one element per block that keeps the scale where it is. The
// mean of the others must decay as beta^n, although a step changes them by far less than a unit of
// either type. (Rounded to nearest, they would stay where they are.)
static void decay(struct backend *b, struct moments *x, bool int8, double *m, double *v) {
    enum { N = 4096, STEPS = 120 };
    double hyper[HYPER_COUNT] = {[HYPER_LR] = 0,  [HYPER_BETA1] = 0.998, [HYPER_BETA2] = 0.999,
                                 [HYPER_EPS] = 1, [HYPER_BIAS1] = 1,     [HYPER_BIAS2] = 1};
    struct op op = {.kind = int8 ? OP_ADAMW_INT8 : OP_ADAMW_BF16, .n = N, .n_in = 8, .n_out = 5};
    struct operand w = {x->w, N, DTYPE_F32, 1, N, {0}},
                   s = {x->scales, 2, DTYPE_F32, N / ADAMW_BLOCK, 2, {0}};
    struct operand mo = {int8 ? (void *)x->m8 : x->m16, N, int8 ? DTYPE_I8 : DTYPE_BF16, 1, N, {0}};
    struct operand vo = {int8 ? (void *)x->v8 : x->v16, N, int8 ? DTYPE_U8 : DTYPE_BF16, 1, N, {0}};
    struct op_call c = {
        .op = &op,
        .in = {{x->g, N, DTYPE_F32, 1, N, {0}}, {hyper, 1, DTYPE_F64}, {0}, w, mo, vo, {0}, s},
        .out = {w, mo, vo, {0}, s}};
    struct err e = {0};
    double before[2] = {0, 0}, after[2] = {0, 0};
    for (int step = 0; step <= STEPS; step++) {
        double *sum = step == 0 ? before : after;
        for (int i = 0; i < N && (step == 0 || step == STEPS); i++) {
            if (i % ADAMW_BLOCK == 0)
                continue;
            float scale[2] = {x->scales[i / ADAMW_BLOCK * 2], x->scales[i / ADAMW_BLOCK * 2 + 1]};
            sum[0] += (double)(int8 ? moments_m(x->m8[i], scale[0]) : moments_from_bf16(x->m16[i]));
            sum[1] += (double)(int8 ? moments_v(x->v8[i], scale[1]) : moments_from_bf16(x->v16[i]));
        }
        hyper[HYPER_DRAW] = step;
        if (step < STEPS && b->run[op.kind](b, &c, &e) != 0)
            fail_msg("%s", e.text);
    }
    *m = after[0] / before[0] / pow(0.998, STEPS);
    *v = after[1] / before[1] / pow(0.999, STEPS);
}

static void test_decay(void **state) {
    (void)state;
    struct mem *mem;
    struct backend *b;
    struct err e = {0};
    struct moments *x = calloc(1, sizeof *x);
    assert_non_null(x);
    assert_int_equal(mem_open(&mem, &e), 0);
    assert_int_equal(cpu_reference_open(&b, mem, &e), 0);
    for (int i = 0; i < 4096; i++) {
        x->m8[i] = (int8_t)(20 + i % 100), x->v8[i] = (uint8_t)(30 + i % 220);
        x->m16[i] = moments_to_bf16(1 + (float)(i % 97) / 97, 0);
        x->v16[i] = moments_to_bf16(1 + (float)(i % 89) / 89, 0);
        if (i % ADAMW_BLOCK == 0) {
            x->scales[i / ADAMW_BLOCK * 2] = 1e-3f, x->scales[i / ADAMW_BLOCK * 2 + 1] = 1e-6f;
            x->m8[i] = 127, x->v8[i] = 255, x->g[i] = 1e-3f;
        }
    }
    for (int int8 = 0; int8 < 2; int8++) {
        double m, v;
        decay(b, x, int8, &m, &v);
        print_message(
            "%s: after 120 steps without gradient m is %.4f and v %.4f of what is right\n",
            int8 ? "int8" : "bf16", m, v);
        assert_true(fabs(m - 1) < 0.02 && fabs(v - 1) < 0.02);
    }
    b->close(b);
    mem_close(mem);
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws),        cmocka_unit_test(test_bf16_mean),
        cmocka_unit_test(test_bf16_special), cmocka_unit_test(test_int8_bounds),
        cmocka_unit_test(test_int8_mean),    cmocka_unit_test(test_int8_special),
        cmocka_unit_test(test_decay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

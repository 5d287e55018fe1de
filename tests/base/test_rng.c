// test_rng.c - rng.h: known answers, distributions, and the permutation really is a permutation.
//
// Everything here is a function of constants, so a test that passes once passes always. The bounds
// are about five standard deviations wide, because the constants were not selected to pass.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void test_known_answers(void **state) {
    (void)state;
    // From kat_vectors in the authors' Random123, for philox4x32 with 10 rounds: the first two of
    // four words.
    assert_true(rng_u64(0, 0, 0) == UINT64_C(0xe169c58d6627e8d5));
    assert_true(rng_u64(UINT64_MAX, UINT64_MAX, UINT64_MAX) == UINT64_C(0x41c83b0e408f276d));
    assert_true(rng_u64(UINT64_C(0x299f31d0a4093822), UINT64_C(0x0370734413198a2e),
                        UINT64_C(0x85a308d3243f6a88)) == UINT64_C(0x94fdccebd16cfe09));
    // rng_normal uses all four words: 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
    double u = (double)(UINT64_C(0xe169c58d6627e8d5) >> 11) * 0x1p-53 + 0x1p-53;
    double v = (double)(UINT64_C(0x9b00dbd8bc57ac4c) >> 11) * 0x1p-53;
    double want = sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
    assert_true(fabs(rng_normal(0, 0, 0) - want) < 1e-12);
}

static void test_uniform(void **state) {
    (void)state;
    enum { N = 400000, BINS = 64 };
    static int bins[BINS];
    double sum = 0, squares = 0, neighbours = 0, last = 0.5;
    for (uint64_t i = 0; i < N; i++) {
        double x = rng_uniform(42, 7, i);
        assert_true(x >= 0 && x < 1);
        bins[(int)(x * BINS)]++;
        sum += x;
        squares += x * x;
        neighbours += (x - 0.5) * (last - 0.5);
        last = x;
    }
    assert_true(fabs(sum / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
    assert_true(fabs(squares / N - 1.0 / 3) < 5 * sqrt(4.0 / 45 / N));
    assert_true(fabs(neighbours / N) < 5 * (1.0 / 12) / sqrt(N));
    double chi = 0, expected = (double)N / BINS;
    for (int i = 0; i < BINS; i++)
        chi += (bins[i] - expected) * (bins[i] - expected) / expected;
    assert_true(chi > 63 - 5 * sqrt(126) && chi < 63 + 5 * sqrt(126));
}

static void test_normal(void **state) {
    (void)state;
    enum { N = 400000 };
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
    int beyond2 = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = rng_normal(42, 8, i);
        assert_true(isfinite(x));
        m1 += x;
        m2 += x * x;
        m3 += x * x * x;
        m4 += x * x * x * x;
        beyond2 += fabs(x) > 2;
    }
    assert_true(fabs(m1 / N) < 5 / sqrt(N));
    assert_true(fabs(m2 / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(m3 / N) < 5 * sqrt(15.0 / N));
    assert_true(fabs(m4 / N - 3) < 5 * sqrt(96.0 / N));
    assert_true(fabs((double)beyond2 / N - 0.0455003) < 5 * sqrt(0.0455 * 0.9545 / N));
}

static void test_below(void **state) {
    (void)state;
    int count[7] = {0};
    for (uint64_t i = 0; i < 70000; i++)
        count[rng_below(1, 1, i, 7)]++;
    for (int i = 0; i < 7; i++)
        assert_true(abs(count[i] - 10000) < 500);
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(rng_below(1, 1, i, 1), 0);
        assert_true(rng_below(1, 1, i, UINT64_MAX) < UINT64_MAX);
    }
    assert_int_equal(rng_below(1, 1, 1, 0), 0);
}

static void test_streams_differ(void **state) {
    (void)state;
    // Neighbouring seeds, streams and indexes differ in about half of their bits.
    int bits[3] = {0};
    enum { N = 2000 };
    for (uint64_t i = 0; i < N; i++) {
        uint64_t x = rng_u64(i, i, i);
        bits[0] += __builtin_popcountll(x ^ rng_u64(i + 1, i, i));
        bits[1] += __builtin_popcountll(x ^ rng_u64(i, i + 1, i));
        bits[2] += __builtin_popcountll(x ^ rng_u64(i, i, i + 1));
    }
    for (int k = 0; k < 3; k++)
        assert_true(fabs((double)bits[k] / N - 32) < 5 * 4 / sqrt(N));
}

static void test_permutation(void **state) {
    (void)state;
    static const uint64_t sizes[] = {1,  2,  3,   4,   5,   7,   8,    9,    15,   16,   17,   63,
                                     64, 65, 100, 255, 256, 257, 1000, 4095, 4096, 4097, 70000};
    unsigned char *seen = malloc(70000);
    assert_non_null(seen);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        for (uint64_t seed = 0; seed < 3; seed++) {
            uint64_t n = sizes[k], fixed = 0;
            memset(seen, 0, n);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t x = rng_permute(seed, 9, i, n);
                assert_true(x < n);
                assert_int_equal(seen[x], 0);
                seen[x] = 1;
                fixed += x == i;
            }
            if (n >= 1000)
                assert_true(fixed < 10); // one fixed point is expected on average
        }
    }
    free(seen);
    // For sizes too large to enumerate, results stay inside the range.
    static const uint64_t large[] = {UINT64_C(1) << 32, (UINT64_C(1) << 40) + 1, UINT64_MAX};
    for (size_t k = 0; k < 3; k++)
        for (uint64_t i = 0; i < 1000; i++)
            assert_true(rng_permute(1, 1, i * 7919, large[k]) < large[k]);
    assert_int_equal(rng_permute(1, 1, 5, 0), 0);
}

static void test_permutation_is_fair(void **state) {
    (void)state;
    // Over many seeds: all orders of three elements, and the place of the first of ten.
    int orders[27] = {0}, places[10] = {0}, swapped = 0;
    enum { N = 12000 };
    for (uint64_t seed = 0; seed < N; seed++) {
        orders[rng_permute(seed, 0, 0, 3) * 9 + rng_permute(seed, 0, 1, 3) * 3 +
               rng_permute(seed, 0, 2, 3)]++;
        places[rng_permute(seed, 1, 0, 10)]++;
        swapped += rng_permute(seed, 2, 0, 2) == 1;
    }
    static const int six[] = {5, 7, 11, 15, 19, 21}; // 012 021 102 120 201 210 in base three
    int total = 0;
    for (int i = 0; i < 6; i++) {
        assert_true(abs(orders[six[i]] - N / 6) < 5 * 41);
        total += orders[six[i]];
    }
    assert_int_equal(total, N);
    for (int i = 0; i < 10; i++)
        assert_true(abs(places[i] - N / 10) < 5 * 33);
    assert_true(abs(swapped - N / 2) < 5 * 55);
    // i and its image are not correlated.
    enum { M = 10000 };
    double sum = 0;
    for (uint64_t i = 0; i < M; i++)
        sum += ((double)i / M - 0.5) * ((double)rng_permute(3, 3, i, M) / M - 0.5);
    assert_true(fabs(sum / M) < 5 * (1.0 / 12) / sqrt(M));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_normal),
        cmocka_unit_test(test_below),
        cmocka_unit_test(test_streams_differ),
        cmocka_unit_test(test_permutation),
        cmocka_unit_test(test_permutation_is_fair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_sample.c - quantiles by brute force, bounds compared with binomials summed term by term, and
// coverage.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "measure/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_quantiles_are_order_statistics(void **state) {
    (void)state;
    struct samples s;
    assert_int_equal(samples_open(&s, 1000, NULL), 0);
    for (int i = 100; i >= 1; i--)
        samples_add(&s, i);
    static const double P[] = {0.5, 0.95, 0.99, 0.01, 0.999};
    struct quantile q[5];
    samples_quantiles(&s, 0, P, 5, q);
    assert_true(q[0].value == 50 && q[1].value == 95 && q[2].value == 99);
    assert_true(q[3].value == 1 && q[4].value == 100);
    assert_int_equal(q[0].n, 100);
    assert_true(isnan(q[2].upper95) && !quantile_has_bound(&q[2]) && q[2].n_needed == 299);
    assert_true(!isnan(q[1].upper95) && quantile_has_bound(&q[1]) && q[1].upper95 >= q[1].value);
    samples_quantiles(&s, 10, P, 1, q); // the newest ten are 10 .. 1
    assert_true(q[0].value == 5 && q[0].n == 10);
    samples_close(&s);
}

static void test_ring_keeps_newest(void **state) {
    (void)state;
    struct samples s;
    assert_int_equal(samples_open(&s, 8, NULL), 0);
    for (int i = 0; i < 21; i++)
        samples_add(&s, i);
    assert_int_equal(samples_count(&s), 8);
    assert_int_equal(s.seen, 21);
    double held[8];
    assert_int_equal(samples_copy(&s, 0, held), 8);
    for (int i = 0; i < 8; i++)
        assert_true(held[i] == 13 + i);
    assert_int_equal(samples_copy(&s, 3, held), 3);
    assert_true(held[0] == 18 && held[2] == 20);
    samples_clear(&s);
    struct quantile q;
    double p = 0.5;
    samples_quantiles(&s, 0, &p, 1, &q);
    assert_true(q.n == 0 && isnan(q.value) && isnan(q.upper95));
    samples_close(&s);
    struct err e = {0};
    assert_int_equal(samples_open(&s, 0, &e), ERR_USAGE);
}

// P(Bin(n, p) = j), from logarithms of factorials.
static long double binomial(size_t n, long double p, size_t j) {
    return expl(lgammal((long double)n + 1) - lgammal((long double)j + 1) -
                lgammal((long double)(n - j) + 1) + (long double)j * logl(p) +
                (long double)(n - j) * log1pl(-p));
}

static void test_bounds_match_binomials(void **state) {
    (void)state;
    static const double P[] = {0.1, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999};
    for (size_t i = 0; i < sizeof P / sizeof *P; i++)
        for (size_t n = 1; n <= 700; n += n < 310 ? 1 : 39) {
            size_t expected = 0;
            long double below = 0; // P(Bin < k)
            for (size_t k = 1; k <= n && expected == 0; k++)
                if ((below += binomial(n, P[i], k - 1)) >= 0.95L)
                    expected = k;
            size_t rank = sample_bound_rank(n, P[i]);
            if (rank != expected)
                fail_msg("p=%g n=%zu: rank %zu, expected %zu", P[i], n, rank, expected);
        }
    assert_int_equal(sample_bound_needs(0.5), 5);
    assert_int_equal(sample_bound_needs(0.9), 29);
    assert_int_equal(sample_bound_needs(0.95), 59);
    assert_int_equal(sample_bound_needs(0.99), 299);
    assert_int_equal(sample_bound_needs(0.999), 2995);
    assert_int_equal(sample_bound_rank(298, 0.99), 0);
    assert_int_equal(sample_bound_rank(299, 0.99), 299);
    // Large n: normal approximation, rank near n p + 1.645 sqrt(n p (1-p)).
    size_t rank = sample_bound_rank(1000000, 0.5);
    assert_true(rank > 500815 && rank < 500830);
}

// For a skewed distribution the bound holds in about 95 % of the repetitions, never much less.
static void test_bound_covers(void **state) {
    (void)state;
    enum { RUNS = 2000, N = 80 };
    struct samples s;
    assert_int_equal(samples_open(&s, N, NULL), 0);
    int covered = 0;
    const double p = 0.95, truth = -log(1 - p); // of an exponential
    for (int run = 0; run < RUNS; run++) {
        samples_clear(&s);
        for (int i = 0; i < N; i++)
            samples_add(&s, -log(1 - rng_uniform(7, (uint64_t)run, (uint64_t)i)));
        struct quantile q;
        samples_quantiles(&s, 0, &p, 1, &q);
        covered += q.upper95 >= truth;
    }
    assert_true(covered >= RUNS * 0.94);
    samples_close(&s);
}

static void test_spread_and_interval(void **state) {
    (void)state;
    double five[] = {5, 1, 4, 2, 100};
    struct spread sp;
    sample_spread_of(five, 5, &sp);
    assert_true(sp.median == 4 && sp.mad == 2 && sp.min == 1 && sp.max == 100);
    assert_true(isnan(sp.low95));
    // Ranks of the 95 % interval of a median, n=6: 1,6; n=10: 2,9; n=20: 6,15; n=100: 40,61.
    static const size_t table[][3] = {
        {6, 1, 6}, {10, 2, 9}, {20, 6, 15}, {50, 18, 33}, {100, 40, 61}};
    for (size_t t = 0; t < sizeof table / sizeof *table; t++) {
        double v[100];
        for (size_t i = 0; i < table[t][0]; i++)
            v[i] = (double)(i + 1);
        sample_spread_of(v, table[t][0], &sp);
        assert_true(sp.low95 == (double)table[t][1]);
        assert_true(sp.high95 == (double)table[t][2]);
    }
    sample_spread_of(five, 0, &sp);
    assert_true(sp.n == 0 && isnan(sp.median));
    double even[] = {9, 1, 4, 2};
    assert_true(sample_median(even, 4) == 3 && sample_median(even, 3) == 2);
    assert_true(even[0] == 1 && even[3] == 9 && isnan(sample_median(even, 0)));
}

// The interval of a ratio holds the truth in 95 % of the cases, also with three rounds.
static void test_ratio_interval(void **state) {
    (void)state;
    static const size_t rounds[] = {3, 5, 20};
    for (size_t n = 0; n < 3; n++) {
        int held = 0;
        for (uint64_t trial = 0; trial < 2000; trial++) {
            double a[20], b[20];
            for (uint64_t i = 0; i < rounds[n]; i++) {
                const double moment = exp(0.3 * rng_normal(2, trial, 3 * i)); // of the machine
                a[i] = 1.3 * moment * exp(0.05 * rng_normal(2, trial, 3 * i + 1));
                b[i] = moment * exp(0.05 * rng_normal(2, trial, 3 * i + 2));
            }
            const struct ratio r = sample_ratio(a, b, rounds[n]);
            assert_true(r.low <= r.median && r.median <= r.high);
            held += r.low < 1.3 && r.high > 1.3;
        }
        assert_in_range(held, 1870, 1930);
    }
}

static void test_compare(void **state) {
    (void)state;
    double a[40], b[40], c[40], drift[40], after[40];
    for (int i = 0; i < 40; i++) {
        a[i] = 100 + 5 * rng_normal(1, 1, (uint64_t)i);
        b[i] = 100 + 5 * rng_normal(1, 2, (uint64_t)i);
        c[i] = 120 + 5 * rng_normal(1, 3, (uint64_t)i);
        drift[i] = 100 + 3 * i + 0.3 * rng_normal(1, 4, (uint64_t)i);
        after[i] = drift[i] + 1 + 0.3 * rng_normal(1, 5, (uint64_t)i);
    }
    struct ratio r = sample_ratio(a, b, 40);
    assert_true(ratio_direction(&r) == 0 && r.low < 1 && r.high > 1 && r.high / r.low < 1.1);
    r = sample_ratio(a, c, 40);
    assert_true(ratio_direction(&r) == -1 && r.low < 0.84 && r.high > 0.82);
    // A difference of one percent within a drift of a hundred percent: only pairs show it.
    r = sample_ratio(after, drift, 40);
    assert_int_equal(ratio_direction(&r), 1);
    r = sample_ratio(a, c, 2);
    assert_true(isnan(r.low) && r.median > 0 && ratio_direction(&r) == 0);
    struct spread sa, sb, sc, sd, se;
    sample_spread_of(drift, 40, &sd);
    sample_spread_of(after, 40, &se);
    assert_int_equal(sample_compare(&sd, &se), COMPARE_SAME);
    sample_spread_of(a, 40, &sa);
    sample_spread_of(b, 40, &sb);
    sample_spread_of(c, 40, &sc);
    assert_int_equal(sample_compare(&sa, &sb), COMPARE_SAME);
    assert_int_equal(sample_compare(&sa, &sc), COMPARE_LOWER);
    assert_int_equal(sample_compare(&sc, &sa), COMPARE_HIGHER);
}

static void test_text(void **state) {
    (void)state;
    char text[QUANTILE_TEXT_BYTES];
    struct quantile q = {.p = 0.99, .value = 41.2e6, .upper95 = NAN, .n = 120, .n_needed = 299};
    assert_string_equal(quantile_text(text, &q), "p99 41.2 ms (n=120, no 95 % bound; need 299)");
    q.n = 400;
    q.upper95 = 43e6;
    assert_string_equal(quantile_text(text, &q),
                        "p99 41.2 ms (n=400, at most 43.0 ms with 95 % confidence)");
    q.p = 0.999;
    q.n = 0;
    assert_string_equal(quantile_text(text, &q), "p99.9 not measured (n=0)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles_are_order_statistics),
        cmocka_unit_test(test_ring_keeps_newest),
        cmocka_unit_test(test_bounds_match_binomials),
        cmocka_unit_test(test_bound_covers),
        cmocka_unit_test(test_spread_and_interval),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_ratio_interval),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

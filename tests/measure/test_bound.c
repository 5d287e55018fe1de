// test_bound.c - ranks compared with binomials summed term by term; error rates by simulation.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "measure/bound.h"
#include "measure/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static long double binomial(size_t n, long double p, size_t j) {
    return expl(lgammal((long double)n + 1) - lgammal((long double)j + 1) -
                lgammal((long double)(n - j) + 1) + (long double)j * logl(p) +
                (long double)(n - j) * log1pl(-p));
}

// The smallest k with P(Bin(n, p) >= k) <= 1 - confidence; 0: none up to n.
static size_t expected_rank(size_t n, double p, double confidence) {
    long double at_least = 0;
    size_t k = n + 1;
    while (k > 0 && (at_least += binomial(n, p, k - 1)) <= 1 - (long double)confidence)
        k--;
    return k > n ? 0 : k;
}

static void test_ranks_match_binomials(void **state) {
    (void)state;
    static const double P[] = {0.5, 0.9, 0.95, 0.99}, C[] = {0.8, 0.95, 0.999};
    for (size_t i = 0; i < 4; i++)
        for (size_t c = 0; c < 3; c++)
            for (size_t n = 1; n < 900; n += n < 20 ? 1 : 57)
                if (sample_upper_rank(n, P[i], C[c]) != expected_rank(n, P[i], C[c]))
                    fail_msg("p=%g confidence %g n=%zu: %zu, expected %zu", P[i], C[c], n,
                             sample_upper_rank(n, P[i], C[c]), expected_rank(n, P[i], C[c]));
    // One sample fewer than 299 (59) cannot bound p99 (p95) at 95 %.
    assert_int_equal(sample_upper_needs(0.99, 0.95), 299);
    assert_int_equal(sample_upper_needs(0.95, 0.95), 59);
    assert_int_equal(sample_upper_rank(298, 0.99, 0.95), 0);
    assert_int_equal(sample_upper_rank(299, 0.99, 0.95), 299);
    assert_int_equal(sample_upper_rank(299, 1.5, 0.95), 0);
    assert_int_equal(sample_upper_rank(0, 0.5, 0.95), 0);
    for (size_t n = 1; n < 900; n += 13)
        assert_int_equal(sample_upper_rank(n, 0.95, 0.95), sample_bound_rank(n, 0.95));
}

static void test_known_numbers(void **state) {
    (void)state;
    assert_int_equal(sample_bound_watch(339, 0, 0.99, 0.95).state, BOUND_OPEN);
    assert_int_equal(sample_bound_watch(340, 0, 0.99, 0.95).state, BOUND_UNDER);
    assert_int_equal(sample_watch_needs(0, 0, 0.99, 0.95), 340);
    assert_int_equal(sample_watch_needs(0, 0, 0.95, 0.95), 67);
    const size_t needed = sample_watch_needs(120, 1, 0.99, 0.95); // one was over
    assert_int_equal(sample_bound_watch(needed - 1, 1, 0.99, 0.95).state, BOUND_OPEN);
    assert_int_equal(sample_bound_watch(needed, 1, 0.99, 0.95).state, BOUND_UNDER);
    // Invalid arguments give "open", never a proof.
    assert_int_equal(sample_bound_watch(10, 11, 0.5, 0.95).state, BOUND_OPEN);
    assert_int_equal(sample_bound_watch(10, 0, 1.5, 0.95).state, BOUND_OPEN);
    assert_int_equal(sample_bound_watch(10, 0, 0.5, NAN).state, BOUND_OPEN);
    assert_int_equal(sample_bound_watch(0, 0, 0.5, 0.95).state, BOUND_OPEN);
    assert_int_equal(sample_watch_needs(10, 11, 0.5, 0.95), 0);
    double all = 0;
    for (int look = 1; look <= 1000; look++)
        all += 1 - sample_look_confidence(0.95, look);
    assert_true(all < 0.05 && all > 0.0499);
}

// A heavy tail, as step times have: log-normal. Its true percentiles are known.
static double draw(uint64_t run, uint64_t i) {
    return exp(rng_normal(run, 7, i));
}
static double true_quantile(double p) { // of the log-normal, by bisection on erfc
    double low = -10, high = 10;
    for (int i = 0; i < 80; i++) {
        const double x = 0.5 * (low + high);
        if (0.5 * erfc(-x / sqrt(2)) < p)
            low = x;
        else
            high = x;
    }
    return exp(low);
}

enum { RUNS = 600 };

// Four standard deviations above the expected number of errors.
static double most_of(double rate) {
    return RUNS * rate + 4 * sqrt(RUNS * rate * (1 - rate));
}

// The bound of a percentile is below the true one in at most 1 - confidence of the runs.
static void test_error_rates_of_bounds(void **state) {
    (void)state;
    static const struct {
        double p, confidence;
        size_t n;
    } cases[] = {{0.5, 0.95, 40}, {0.95, 0.95, 120}, {0.95, 0.8, 200}, {0.99, 0.95, 500}};
    static double values[500];
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const double p = cases[c].p, q = true_quantile(p), allowed = 1 - cases[c].confidence;
        const size_t rank = sample_upper_rank(cases[c].n, p, cases[c].confidence);
        int wrong = 0;
        for (uint64_t run = 0; run < RUNS; run++) {
            for (size_t i = 0; i < cases[c].n; i++)
                values[i] = draw(run, i);
            sample_sort(values, cases[c].n);
            wrong += values[rank - 1] < q;
        }
        if (wrong > most_of(allowed))
            fail_msg("p%g at %g: %d of %d bounds are too low", 100 * p, cases[c].confidence, wrong,
                     RUNS);
        assert_true(wrong > 0); // errors do occur, so the case is hard enough
    }
}

// Looks after every step until something is proven. A look that was meant for one number of steps
// (no more steps over the budget than the bound allows) errs far more often than it states. The
// watch does not.
static void test_error_rates_of_many_looks(void **state) {
    (void)state;
    const double p = 0.95, q = true_quantile(p);
    int naive = 0, watch_under = 0, watch_over = 0;
    for (uint64_t run = 0; run < RUNS; run++) {
        bool wrong[3] = {false};
        size_t over = 0;
        for (size_t n = 1; n <= 400; n++) {
            over += draw(run, n) > q;
            const size_t rank = sample_upper_rank(n, p, 0.95);
            wrong[0] |= n % 20 == 0 && rank > 0 && over <= n - rank;
            const enum bound_state s = sample_bound_watch(n, over, p, 0.95).state;
            wrong[1] |= s == BOUND_UNDER;
            wrong[2] |= s == BOUND_OVER;
        }
        naive += wrong[0];
        watch_under += wrong[1];
        watch_over += wrong[2];
    }
    assert_true(naive > most_of(0.05)); // the reason for the watch
    if (watch_under > most_of(0.05) || watch_over > most_of(0.05))
        fail_msg("of %d runs: watch %d wrongly under, %d wrongly over", RUNS, watch_under,
                 watch_over);
}

// The purpose of the watch: a configuration that is over its budget far too often is ruled out long
// before 299 steps, and a good one is proven.
static void test_watch_decides(void **state) {
    (void)state;
    size_t steps = 0;
    int proven = 0;
    for (uint64_t run = 0; run < 200; run++) {
        size_t over = 0, n = 0;
        enum bound_state s = BOUND_OPEN;
        while (s == BOUND_OPEN && n < 2000) {
            over += rng_uniform(run, 9, n++) < 0.2; // p99 allows 0.01
            s = sample_bound_watch(n, over, 0.99, 0.95).state;
        }
        assert_int_equal(s, BOUND_OVER);
        steps += n;
        over = 0;
        for (n = 1; n <= 1500; n++)
            over += rng_uniform(run, 10, n) < 0.001;
        proven += sample_bound_watch(1500, over, 0.99, 0.95).state == BOUND_UNDER;
    }
    assert_true(steps / 200 < 40);
    assert_true(proven >= 190);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_match_binomials),
        cmocka_unit_test(test_known_numbers),
        cmocka_unit_test(test_error_rates_of_bounds),
        cmocka_unit_test(test_error_rates_of_many_looks),
        cmocka_unit_test(test_watch_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

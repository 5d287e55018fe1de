// test_bound.c - verdicts compared with binomials summed term by term; error rates by simulation.
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

static enum bound_state expected_state(size_t n, size_t over, double p, double confidence) {
    long double at_most = 0, at_least = 0;
    for (size_t j = 0; j <= n; j++) {
        const long double w = binomial(n, 1 - (long double)p, j);
        at_most += j <= over ? w : 0;
        at_least += j >= over ? w : 0;
    }
    if (at_most <= 1 - (long double)confidence)
        return BOUND_UNDER;
    return at_least <= 1 - (long double)confidence ? BOUND_OVER : BOUND_OPEN;
}

static void test_counts_match_binomials(void **state) {
    (void)state;
    static const double P[] = {0.5, 0.9, 0.95, 0.99}, C[] = {0.8, 0.95, 0.999};
    for (size_t i = 0; i < 4; i++)
        for (size_t c = 0; c < 3; c++)
            for (size_t n = 1; n < 420; n += n < 20 ? 1 : 57)
                for (size_t over = 0; over <= n; over += over < 12 ? 1 : 23) {
                    const struct bound_verdict v = sample_bound_counts(n, over, P[i], C[c]);
                    if (v.state != expected_state(n, over, P[i], C[c]))
                        fail_msg("p=%g confidence %g: %zu of %zu over: %d", P[i], C[c], over, n,
                                 v.state);
                }
}

static void test_known_numbers(void **state) {
    (void)state;
    // One sample fewer than 299 (59) cannot prove p99 (p95) at 95 %.
    assert_int_equal(sample_bound_counts(298, 0, 0.99, 0.95).state, BOUND_OPEN);
    assert_int_equal(sample_bound_counts(298, 0, 0.99, 0.95).n_needed, 299);
    assert_int_equal(sample_bound_counts(299, 0, 0.99, 0.95).state, BOUND_UNDER);
    assert_int_equal(sample_bound_counts(0, 0, 0.95, 0.95).n_needed, 59);
    assert_int_equal(sample_bound_counts(0, 0, 0.95, 0.95).n_likely, 59);
    // With one sample over, p99 needs 473: 0.99^473 + 473 * 0.01 * 0.99^472 < 0.05.
    assert_int_equal(sample_bound_counts(299, 1, 0.99, 0.95).n_needed, 473);
    assert_true(sample_bound_counts(299, 1, 0.99, 0.95).n_likely > 473);
    // Both of the first two are over. If p95 were within the budget, that would happen once in 400.
    assert_int_equal(sample_bound_counts(2, 2, 0.95, 0.95).state, BOUND_OVER);
    assert_int_equal(sample_bound_counts(2, 1, 0.95, 0.95).state, BOUND_OPEN);
    // Exactly at the limit, no proof is ever likely.
    assert_int_equal(sample_bound_counts(1000, 10, 0.99, 0.95).n_likely, 0);
    assert_int_equal(sample_bound_watch(339, 0, 0.99, 0.95).state, BOUND_OPEN);
    assert_int_equal(sample_bound_watch(340, 0, 0.99, 0.95).state, BOUND_UNDER);
    assert_int_equal(sample_watch_needs(0, 0, 0.99, 0.95), 340);
    assert_int_equal(sample_watch_needs(0, 0, 0.95, 0.95), 67);
    const size_t needed = sample_watch_needs(120, 1, 0.99, 0.95); // one was over
    assert_int_equal(sample_bound_watch(needed - 1, 1, 0.99, 0.95).state, BOUND_OPEN);
    assert_int_equal(sample_bound_watch(needed, 1, 0.99, 0.95).state, BOUND_UNDER);
    // Invalid arguments give "open", never a proof.
    assert_int_equal(sample_bound_counts(10, 11, 0.5, 0.95).state, BOUND_OPEN);
    assert_int_equal(sample_bound_counts(10, 0, 1.5, 0.95).state, BOUND_OPEN);
    assert_int_equal(sample_bound_counts(10, 0, 0.5, NAN).state, BOUND_OPEN);
    assert_int_equal(sample_bound_watch(10, 11, 0.5, 0.95).state, BOUND_OPEN);
    const double values[] = {1, 2, NAN, 3, 3.5}; // ties are not over, NaN is
    assert_int_equal(sample_bound_verdict(values, 5, 0.5, 3, 0.95).over, 2);
}

// n_needed and n_likely are where the proof first succeeds.
static void test_needed_is_enough(void **state) {
    (void)state;
    for (size_t n = 5; n < 400; n += 31)
        for (size_t over = 0; over < 6 && over < n; over++) {
            const struct bound_verdict v = sample_bound_counts(n, over, 0.95, 0.9);
            if (v.state != BOUND_OPEN)
                continue;
            assert_int_equal(sample_bound_counts(v.n_needed, over, 0.95, 0.9).state, BOUND_UNDER);
            assert_int_not_equal(sample_bound_counts(v.n_needed - 1, over, 0.95, 0.9).state,
                                 BOUND_UNDER);
        }
}

static void test_ranks_mirror(void **state) {
    (void)state;
    for (size_t n = 1; n < 900; n += 13) {
        assert_int_equal(sample_upper_rank(n, 0.95, 0.95), sample_bound_rank(n, 0.95));
        const size_t low = sample_lower_rank(n, 0.9, 0.95);
        // If the budget lies just below the sample of the lower bound, the percentile is proven
        // over.
        if (low > 0) {
            assert_int_equal(sample_bound_counts(n, n - low + 1, 0.9, 0.95).state, BOUND_OVER);
            assert_int_not_equal(sample_bound_counts(n, n - low, 0.9, 0.95).state, BOUND_OVER);
        }
        const size_t high = sample_upper_rank(n, 0.9, 0.95);
        if (high > 0) {
            assert_int_equal(sample_bound_counts(n, n - high, 0.9, 0.95).state, BOUND_UNDER);
            assert_int_not_equal(sample_bound_counts(n, n - high + 1, 0.9, 0.95).state,
                                 BOUND_UNDER);
        }
    }
    assert_int_equal(sample_lower_rank(1, 0.01, 0.95), 0);
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

// The budget lies just on the wrong side of the true percentile, so every proof is an error.
static void test_error_rates_of_one_look(void **state) {
    (void)state;
    static const struct {
        double p, confidence;
        size_t n;
    } cases[] = {{0.5, 0.95, 40}, {0.95, 0.95, 120}, {0.95, 0.8, 200}, {0.99, 0.95, 500}};
    static double values[500];
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const double p = cases[c].p, q = true_quantile(p), allowed = 1 - cases[c].confidence;
        int under = 0, over = 0;
        for (uint64_t run = 0; run < RUNS; run++) {
            for (size_t i = 0; i < cases[c].n; i++)
                values[i] = draw(run, i);
            const double confidence = cases[c].confidence;
            under +=
                sample_bound_verdict(values, cases[c].n, p, q * (1 - 1e-9), confidence).state ==
                BOUND_UNDER;
            over += sample_bound_verdict(values, cases[c].n, p, q * (1 + 1e-9), confidence).state ==
                    BOUND_OVER;
        }
        // Four standard deviations of a frequency in RUNS.
        const double most = RUNS * allowed + 4 * sqrt(RUNS * allowed * (1 - allowed));
        if (under > most || over > most)
            fail_msg("p%g at %g: of %d runs %d wrongly under, %d wrongly over", 100 * p,
                     cases[c].confidence, RUNS, under, over);
        assert_true(under > 0 && over > 0); // errors do occur, so the case is hard enough
    }
}

// Looks after every step until something is proven. The rule for one look errs far more often than
// it states. The watch does not, and neither do looks that share the error.
static void test_error_rates_of_many_looks(void **state) {
    (void)state;
    const double p = 0.95, q = true_quantile(p);
    int naive = 0, watch_under = 0, watch_over = 0, shared = 0;
    for (uint64_t run = 0; run < RUNS; run++) {
        bool wrong[4] = {false};
        size_t over = 0;
        int look = 1;
        for (size_t n = 1; n <= 400; n++) {
            over += draw(run, n) > q;
            if (n % 20 == 0)
                wrong[0] |= sample_bound_counts(n, over, p, 0.95).state == BOUND_OVER;
            const enum bound_state s = sample_bound_watch(n, over, p, 0.95).state;
            wrong[1] |= s == BOUND_UNDER;
            wrong[2] |= s == BOUND_OVER;
            if (n == (size_t)50 << (look - 1))
                wrong[3] |=
                    sample_bound_counts(n, over, p, sample_look_confidence(0.95, look++)).state ==
                    BOUND_UNDER;
        }
        naive += wrong[0];
        watch_under += wrong[1];
        watch_over += wrong[2];
        shared += wrong[3];
    }
    const double most = RUNS * 0.05 + 4 * sqrt(RUNS * 0.05 * 0.95);
    assert_true(naive > most); // the reason for the watch
    if (watch_under > most || watch_over > most || shared > most)
        fail_msg("of %d runs: watch %d wrongly under, %d wrongly over; shared looks %d", RUNS,
                 watch_under, watch_over, shared);
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
        cmocka_unit_test(test_counts_match_binomials),
        cmocka_unit_test(test_known_numbers),
        cmocka_unit_test(test_needed_is_enough),
        cmocka_unit_test(test_ranks_mirror),
        cmocka_unit_test(test_error_rates_of_one_look),
        cmocka_unit_test(test_error_rates_of_many_looks),
        cmocka_unit_test(test_watch_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

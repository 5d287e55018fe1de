// test_rate.c - a rate's value and interval by hand; how often intervals hold the truth on made-up
// data whose truth is known; and what pairing two models by their units buys.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "measure/rate.h"
#include "measure/sample.h"

#include <math.h>
#include <stdbool.h>

enum { UNITS = 120, DRAWS = 3000 };

static void assert_near(double x, double wanted) {
    if (!(fabs(x - wanted) <= 1e-12 * fmax(1, fabs(wanted))))
        fail_msg("%.17g is not %.17g", x, wanted);
}

// ---------------------------------------------------------------- by hand

static void test_value(void **state) {
    (void)state;
    static const double x[] = {2, 9, 4}, w[] = {1, 3, 2};
    // 15 / 6 = 2.5; residuals -0.5, 1.5, -1; their squares add up to 3.5.
    const struct rate r = rate_of(x, w, 3);
    const double half = 4.303 * sqrt(3.5 * 3 / 2) / 6;
    assert_near(r.value, 2.5);
    assert_near(r.low, 2.5 - half);
    assert_near(r.high, 2.5 + half);
    assert_int_equal(r.n, 3);
}

static void test_difference(void **state) {
    (void)state;
    static const double x[] = {2, 9, 4}, w[] = {1, 3, 2}, y[] = {3, 3, 4}, v[] = {2, 2, 1};
    // 2.5 - 2; residuals over the sums of weights: (-0.5, 1.5, -1) / 6 - (-1, -1, 2) / 5.
    const struct rate r = rate_difference(x, w, y, v, 3);
    const double d[] = {-0.5 / 6 + 0.2, 1.5 / 6 + 0.2, -1.0 / 6 - 0.4};
    const double half = 4.303 * sqrt((d[0] * d[0] + d[1] * d[1] + d[2] * d[2]) * 3 / 2);
    assert_near(r.value, 0.5);
    assert_near(r.low, 0.5 - half);
    assert_near(r.high, 0.5 + half);
}

static void test_edges(void **state) {
    (void)state;
    static const double x[] = {3, 6, 12}, w[] = {1, 2, 4}, zero[] = {0, 0, 0};
    struct rate r = rate_of(x, w, 3);
    assert_true(r.value == 3 && r.low == 3 && r.high == 3); // one rate in all units
    r = rate_of(x, w, 1);
    assert_true(r.value == 3 && isnan(r.low) && isnan(r.high));
    assert_int_equal(rate_direction(&r), 0);
    r = rate_of(x, w, 0);
    assert_true(isnan(r.value) && isnan(r.low) && r.n == 0);
    r = rate_of(x, zero, 3);
    assert_true(isnan(r.value) && isnan(r.high));
    r = rate_difference(x, w, x, w, 3);
    assert_true(r.value == 0 && r.low == 0 && r.high == 0);
    assert_int_equal(rate_direction(&r), 0);
    r = rate_difference(x, w, zero, w, 3);
    assert_int_equal(rate_direction(&r), 1);
    r = rate_difference(zero, w, x, w, 3);
    assert_int_equal(rate_direction(&r), -1);
}

// ---------------------------------------------------------------- made-up records

// A record has 5 to 204 tokens. All of them share what makes the record hard, so they are not
// independent; a little is each token's own. The loss per token of all records there could be is 2.
struct records {
    double tokens[UNITS], hardness[UNITS], nats[UNITS];
};

static void draw(struct records *r, uint64_t seed) {
    for (uint64_t i = 0; i < UNITS; i++) {
        r->tokens[i] = 5 + (double)rng_below(seed, 1, i, 200);
        r->hardness[i] = 2 + 0.4 * rng_normal(seed, 2, i);
        r->nats[i] = r->tokens[i] * r->hardness[i] + sqrt(r->tokens[i]) * rng_normal(seed, 3, i);
    }
}

// A model that differs from the one of draw() by `shift`, and on each record by chance.
static void other_model(const struct records *r, double shift, uint64_t seed, double out[UNITS]) {
    for (uint64_t i = 0; i < UNITS; i++)
        out[i] = r->nats[i] + r->tokens[i] * (shift + 0.05 * rng_normal(seed, 4, i));
}

static double share(int n) {
    return (double)n / DRAWS;
}

// 95 % of the intervals hold the truth. With tokens as units, far fewer would.
static void test_coverage(void **state) {
    (void)state;
    struct records r;
    int held = 0, held_by_tokens = 0;
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        draw(&r, seed);
        const struct rate x = rate_of(r.nats, r.tokens, UNITS);
        double n = 0;
        for (int i = 0; i < UNITS; i++)
            n += r.tokens[i];
        held += x.low <= 2 && 2 <= x.high;
        held_by_tokens += fabs(x.value - 2) <= 1.96 * sqrt((1 + 0.4 * 0.4) / n);
    }
    if (!(share(held) > 0.93 && share(held) < 0.965))
        fail_msg("%.3f of the intervals hold the truth", share(held));
    assert_true(share(held_by_tokens) < 0.6);
}

// Of two models that are equal, one in twenty pairs is called different: half of them each way.
static void test_equal_models(void **state) {
    (void)state;
    struct records r;
    double other[UNITS];
    int better = 0, worse = 0;
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        draw(&r, seed);
        other_model(&r, 0, seed, other);
        const struct rate d = rate_difference(other, r.tokens, r.nats, r.tokens, UNITS);
        better += rate_direction(&d) < 0;
        worse += rate_direction(&d) > 0;
    }
    if (!(share(better + worse) > 0.035 && share(better + worse) < 0.07))
        fail_msg("%.3f of equal models are called different", share(better + worse));
    assert_true(better > DRAWS / 100 && worse > DRAWS / 100);
}

// A difference far inside the models' own intervals is found, because hard records are hard for
// both.
static void test_pairing(void **state) {
    (void)state;
    struct records r;
    double other[UNITS];
    int found = 0, apart = 0, held = 0;
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        draw(&r, seed);
        other_model(&r, -0.03, seed, other);
        const struct rate a = rate_of(other, r.tokens, UNITS), b = rate_of(r.nats, r.tokens, UNITS);
        const struct rate d = rate_difference(other, r.tokens, r.nats, r.tokens, UNITS);
        apart += a.high < b.low;
        found += rate_direction(&d) < 0;
        held += d.low <= -0.03 && -0.03 <= d.high;
    }
    assert_int_equal(apart, 0);
    assert_true(share(found) > 0.99);
    assert_true(share(held) > 0.93 && share(held) < 0.965);
}

// Models with other tokenizers weigh the same records otherwise: bytes here, a little apart.
static void test_other_weights(void **state) {
    (void)state;
    struct records r;
    double other[UNITS], weights[UNITS];
    int held = 0;
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        draw(&r, seed);
        for (uint64_t i = 0; i < UNITS; i++) {
            weights[i] = 2 * r.tokens[i];
            other[i] = weights[i] * (r.hardness[i] - 0.1 + 0.05 * rng_normal(seed, 5, i));
        }
        const struct rate d = rate_difference(other, weights, r.nats, r.tokens, UNITS);
        held += d.low <= -0.1 && -0.1 <= d.high;
    }
    if (!(share(held) > 0.93 && share(held) < 0.965))
        fail_msg("%.3f of the intervals hold the difference", share(held));
}

static void test_student(void **state) {
    (void)state;
    assert_true(isnan(sample_student(0)));
    assert_true(fabs(sample_student(1) - 12.706) < 0.01);
    assert_true(fabs(sample_student(16) - 2.120) < 0.01);
    assert_true(fabs(sample_student(100) - 1.984) < 0.003);
    assert_true(fabs(sample_student(100000) - 1.960) < 0.001);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_value),         cmocka_unit_test(test_difference),
        cmocka_unit_test(test_edges),         cmocka_unit_test(test_coverage),
        cmocka_unit_test(test_equal_models),  cmocka_unit_test(test_pairing),
        cmocka_unit_test(test_other_weights), cmocka_unit_test(test_student),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

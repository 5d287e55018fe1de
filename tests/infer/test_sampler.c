// test_sampler.c - what each step of sampling leaves, and that draws follow the probabilities.
#include "expect.h"
#include "infer/sampler.h"

#include <math.h>
#include <string.h>

enum { V = 6, DRAWS = 20000 };
// Probabilities 0.4, 0.3, 0.15, 0.1, 0.04, 0.01, not in falling order of ids.
static const double probability[V] = {0.1, 0.4, 0.01, 0.3, 0.04, 0.15};

static struct sampling plain(double temperature) {
    return (struct sampling){
        .temperature = temperature, .top_p = 1, .repeat_penalty = 1, .seed = 7};
}

static int32_t choose(struct sampler *s, const struct sampling *how, const int32_t *there,
                      int64_t n, int64_t position) {
    struct err e = {0};
    float logits[V];
    int32_t id = -1;
    for (int i = 0; i < V; i++)
        logits[i] = (float)log(probability[i]) + 3;
    assert_worked(sampler_choose(s, how, logits, there, n, position, &id, &e), &e);
    return id;
}

static void count(const struct sampling *how, double share[V]) {
    struct err e = {0};
    struct sampler *s;
    assert_worked(sampler_open(&s, V, &e), &e);
    memset(share, 0, V * sizeof *share);
    for (int i = 0; i < DRAWS; i++)
        share[choose(s, how, NULL, 0, i)] += 1;
    for (int i = 0; i < V; i++)
        share[i] /= DRAWS;
    sampler_close(s);
}

// `kept`: the ids that may be drawn. Their shares are as probability^(1/temperature).
static void assert_shares(const struct sampling *how, const char *kept) {
    double share[V], expected[V] = {0}, sum = 0;
    count(how, share);
    for (int i = 0; i < V; i++) {
        expected[i] = strchr(kept, '0' + i) ? pow(probability[i], 1 / how->temperature) : 0;
        sum += expected[i];
    }
    for (int i = 0; i < V; i++) {
        const double p = expected[i] / sum, sigma = sqrt(p * (1 - p) / DRAWS);
        if (!(fabs(share[i] - p) <= 4.5 * sigma))
            fail_msg("id %d was drawn in %g of the draws, expected %g (kept: %s)", i, share[i], p,
                     kept);
    }
}

static void test_shares(void **state) {
    (void)state;
    struct sampling how = plain(1);
    assert_shares(&how, "012345");
    how.temperature = 2;
    assert_shares(&how, "012345");
    how = plain(0.5);
    how.top_k = 3;
    assert_shares(&how, "135");
    how.top_k = V + 5;
    assert_shares(&how, "012345");
    how = plain(1);
    how.top_p = 0.69; // 0.4 + 0.3
    assert_shares(&how, "13");
    how.top_p = 0.71;
    assert_shares(&how, "135");
    how.top_p = 0;
    assert_shares(&how, "1");
    how = plain(1);
    how.min_p = 0.24; // of 0.4: 0.096
    assert_shares(&how, "1350");
    how.min_p = 1;
    assert_shares(&how, "1");
    how = plain(1);
    how.top_k = 4, how.top_p = 0.8; // of 0.95: 0.4 + 0.3 + 0.15
    assert_shares(&how, "135");
}

static void test_draws(void **state) {
    (void)state;
    struct err e = {0};
    struct sampler *s;
    struct sampling how = plain(1), other = how;
    int same = 0;
    assert_worked(sampler_open(&s, V, &e), &e);
    other.stream = 1;
    for (int i = 0; i < 200; i++) {
        assert_int_equal(choose(s, &how, NULL, 0, i), choose(s, &how, NULL, 0, i));
        same += choose(s, &how, NULL, 0, i) == choose(s, &other, NULL, 0, i);
    }
    assert_true(same < 120); // by chance it is 0.28 of them
    sampler_close(s);
}

static void test_penalty(void **state) {
    (void)state;
    struct err e = {0};
    struct sampler *s;
    struct sampling how = plain(0);
    int32_t id;
    assert_true(sampling_is_greedy(&how));
    assert_worked(sampler_open(&s, 3, &e), &e);
    how.repeat_penalty = 2;
    assert_false(sampling_is_greedy(&how));
    float positive[3] = {4, 3, 1.5f};
    // Twice in the text, but penalized once; ids outside of the vocabulary do nothing.
    assert_worked(sampler_choose(s, &how, positive, (int32_t[]){0, 0, -1, 9}, 4, 4, &id, &e), &e);
    assert_int_equal(id, 1);
    assert_true(positive[0] == 2);
    float negative[3] = {-1, -1.5f, -4};
    assert_worked(sampler_choose(s, &how, negative, (int32_t[]){0}, 1, 1, &id, &e), &e);
    assert_int_equal(id, 1);
    float again[3] = {4, 3, 1}; // nothing is left of the calls before
    assert_worked(sampler_choose(s, &how, again, NULL, 0, 0, &id, &e), &e);
    assert_int_equal(id, 0);
    sampler_close(s);
}

static void test_not_finite(void **state) {
    (void)state;
    struct err e = {0};
    struct sampler *s;
    const struct sampling how = plain(1);
    int32_t id;
    assert_worked(sampler_open(&s, 3, &e), &e);
    float nan[3] = {1, NAN, 0}, none[3] = {-INFINITY, -INFINITY, -INFINITY},
          inf[3] = {1, INFINITY, 0}, some[3] = {-INFINITY, 1, -INFINITY};
    assert_error(sampler_choose(s, &how, nan, NULL, 0, 5, &id, &e), ERR_NUMERIC, &e, "token 5");
    assert_error(sampler_choose(s, &how, none, NULL, 0, 5, &id, &e), ERR_NUMERIC, &e, "not finite");
    assert_error(sampler_choose(s, &how, inf, NULL, 0, 5, &id, &e), ERR_NUMERIC, &e, "not finite");
    assert_worked(sampler_choose(s, &how, some, NULL, 0, 5, &id, &e), &e);
    assert_int_equal(id, 1);
    sampler_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_draws),
        cmocka_unit_test(test_penalty),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_scale.c - the policy of dynamic loss scaling, and that a scaled step is the same step.
#include "steps.h"

#include "train/scale.h"

static struct knobs fp16(void) {
    struct knobs k;
    knobs_init(&k);
    k.precision = PRECISION_FP16;
    k.scale_start = 1024, k.scale_growth = 3, k.scale_floor = 2;
    return k;
}

static void test_policy(void **state) {
    (void)state;
    struct err e = {0};
    struct knobs k = fp16();
    struct loss_scale s;
    loss_scale_start(&s, &k);
    assert_true(s.value == 1024);
    for (int i = 0; i < 2; i++)
        assert_int_equal(loss_scale_update(&s, &k, true, i, &e), 0);
    assert_true(s.value == 1024 && s.good_steps == 2);
    assert_int_equal(loss_scale_update(&s, &k, true, 2, &e), 0);
    assert_true(s.value == 2048 && s.good_steps == 0);
    loss_scale_update(&s, &k, true, 3, &e);
    assert_int_equal(loss_scale_update(&s, &k, false, 4, &e), 0);
    assert_true(s.value == 1024 && s.good_steps == 0); // a bad step starts the count again
    for (int i = 0; i < 9; i++)
        assert_int_equal(loss_scale_update(&s, &k, false, 5 + i, &e), 0);
    assert_true(s.value == 2);
    assert_failed(loss_scale_update(&s, &k, false, 99, &e), ERR_NUMERIC, &e,
                  "step 99|fp16|scale.floor=2|bf16");
    assert_true(s.value == 2);
}

static void test_bounds(void **state) {
    (void)state;
    struct err e = {0};
    struct knobs k = fp16();
    struct loss_scale s;
    k.scale_start = 1000, k.scale_growth = 1;
    loss_scale_start(&s, &k);
    assert_true(s.value == 512); // a power of two
    for (int i = 0; i < 100; i++)
        assert_int_equal(loss_scale_update(&s, &k, true, i, &e), 0);
    assert_true(s.value == SCALE_MOST);
    assert_true(loss_scale_valid(&s, &k));
    static const double bad[] = {0, -2, 3, 2 * SCALE_MOST, INFINITY, NAN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(loss_scale_valid(&(struct loss_scale){.value = bad[i]}, &k));
    k.precision = PRECISION_BF16;
    loss_scale_start(&s, &k);
    assert_true(s.value == 1 && loss_scale_valid(&s, &k));
    // Without fp16 the policy does nothing.
    assert_int_equal(loss_scale_update(&s, &k, false, 1, &e), 0);
    assert_true(s.value == 1);
}

// In float32 another power of two as the scale changes no digit of the update.
static void test_scaled_step(void **state) {
    struct scratch *x = *state;
    struct err e = {0};
    struct at_work s[2];
    for (int i = 0; i < 2; i++) {
        struct knobs k;
        double results[RESULT_COUNT], clip[CLIP_COUNT], scale = i ? 8192 : 0;
        steps_knobs(&k, x->nano, 2, 2, 16);
        assert_worked(steps_open(&s[i], &k, true, &e), &e);
        struct steps_batch b = steps_make_batch(&s[i], 0);
        double h[HYPER_COUNT] = {
            [HYPER_LR] = 1e-2,    [HYPER_BETA1] = 0.9,
            [HYPER_BETA2] = 0.95, [HYPER_EPS] = 1e-8,
            [HYPER_CLIP] = 0.5,   [HYPER_BIAS1] = 0.1,
            [HYPER_BIAS2] = 0.05, [HYPER_LOSS_FACTOR] = (i ? scale : 1) / (double)b.trained,
            [HYPER_SCALE] = scale};
        assert_worked(session_set_hyper(s[i].s, h, &e), &e);
        assert_worked(session_run(s[i].s, PLAN_TRAIN, steps_feed, &b, NULL, &e), &e);
        assert_worked(session_get_results(s[i].s, results, clip, &e), &e);
        assert_true(clip[CLIP_NORM] > 0.5 &&
                    clip[CLIP_NORM] < 100); // clipped, after division by the scale
        free(b.tokens);
    }
    steps_assert_same_weights(&s[0], &s[1]);
    at_work_close(&s[0]);
    at_work_close(&s[1]);
}

// Gradients too large for fp16: the update is skipped and everything stays unchanged.
static void test_overflow_skips(void **state) {
    struct scratch *x = *state;
    struct err e = {0};
    struct at_work s;
    struct knobs k;
    double clip[CLIP_COUNT], results[RESULT_COUNT];
    steps_knobs(&k, x->nano, 2, 1, 16);
    k.precision = PRECISION_FP16;
    assert_worked(steps_open(&s, &k, true, &e), &e);
    const struct tensor *t;
    const uint16_t *w = steps_tensor(&s, "model.embed_tokens.weight", &t);
    uint16_t *before = malloc(t->bytes);
    assert_non_null(before);
    memcpy(before, w, t->bytes);
    struct steps_batch b = steps_make_batch(&s, 0);
    double h[HYPER_COUNT] = {
        [HYPER_LR] = 1e-2,    [HYPER_BETA1] = 0.9,        [HYPER_BETA2] = 0.95,
        [HYPER_EPS] = 1e-8,   [HYPER_CLIP] = 1,           [HYPER_BIAS1] = 0.1,
        [HYPER_BIAS2] = 0.05, [HYPER_SCALE] = SCALE_MOST, [HYPER_LOSS_FACTOR] = SCALE_MOST};
    assert_worked(session_set_hyper(s.s, h, &e), &e);
    assert_worked(session_run(s.s, PLAN_TRAIN, steps_feed, &b, NULL, &e), &e);
    assert_worked(session_get_results(s.s, results, clip, &e), &e);
    assert_true(clip[CLIP_SKIP] != 0);
    assert_true(isfinite(results[RESULT_LOSS_SUM]));
    assert_memory_equal(before, w, t->bytes);
    free(before);
    free(b.tokens);
    at_work_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_scaled_step),
        cmocka_unit_test(test_overflow_skips),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

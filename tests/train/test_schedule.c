// test_schedule.c - learning rates and the optimizer's numbers, compared with values calculated by
// hand.
#include "harness.h"

#include "train/hyper.h"
#include "train/schedule.h"

struct row {
    const char *kind;
    int64_t steps, warmup;
    double min, decay;
    int64_t step;
    double factor; // of optim.lr
};

static const struct row rows[] = {
    // Warm-up: (s+1)/W; 0 and 1 start at the full rate.
    {"constant", 10, 4, 0.1, 0.2, 0, 0.25},
    {"constant", 10, 4, 0.1, 0.2, 2, 0.75},
    {"constant", 10, 4, 0.1, 0.2, 3, 1},
    {"constant", 10, 4, 0.1, 0.2, 9, 1},
    {"constant", 10, 0, 0.1, 0.2, 0, 1},
    {"constant", 10, 1, 0.1, 0.2, 0, 1},
    // Linear: full rate at W-1, the minimum at the last step, a straight line between them.
    {"linear", 11, 0, 0.0, 0.2, 0, 1},
    {"linear", 11, 0, 0.0, 0.2, 5, 0.5},
    {"linear", 11, 0, 0.0, 0.2, 10, 0},
    {"linear", 11, 1, 0.5, 0.2, 5, 0.75},
    {"linear", 14, 4, 0.0, 0.2, 3, 1},
    {"linear", 14, 4, 0.0, 0.2, 8, 0.5},
    {"linear", 14, 4, 0.0, 0.2, 13, 0},
    {"linear", 14, 4, 0.0, 0.2, 100, 0}, // past the end
    // Cosine: the same ends, halfway in the middle, cos 60 degrees at a third.
    {"cosine", 13, 0, 0.1, 0.2, 0, 1},
    {"cosine", 13, 0, 0.1, 0.2, 6, 0.55},
    {"cosine", 13, 0, 0.1, 0.2, 4, 0.775},
    {"cosine", 13, 0, 0.1, 0.2, 12, 0.1},
    {"cosine", 13, 0, 1.0, 0.2, 7, 1},
    // WSD: the rate falls in a straight line over the last decay x steps steps.
    {"wsd", 20, 2, 0.0, 0.25, 0, 0.5},
    {"wsd", 20, 2, 0.0, 0.25, 1, 1},
    {"wsd", 20, 2, 0.0, 0.25, 14, 1},
    {"wsd", 20, 2, 0.0, 0.25, 15, 0.8},
    {"wsd", 20, 2, 0.0, 0.25, 18, 0.2},
    {"wsd", 20, 2, 0.0, 0.25, 19, 0},
    {"wsd", 20, 2, 0.5, 0.0, 19, 1},  // decays over nothing
    {"wsd", 11, 0, 0.0, 1.0, 5, 0.5}, // decays from the beginning: linear
    {"wsd", 14, 4, 0.0, 1.0, 8, 0.5}, // warm-up comes first
    // Edge cases: a warm-up longer than the run never reaches the full rate; runs of one step or
    // none.
    {"cosine", 5, 10, 0.1, 0.2, 4, 0.5},
    {"linear", 5, 10, 0.1, 0.2, 0, 0.1},
    {"wsd", 5, 10, 0.1, 0.2, 4, 0.5},
    {"cosine", 5, 5, 0.1, 0.2, 4, 1}, // the last step ends the warm-up: no room to decay
    {"cosine", 1, 0, 0.1, 0.2, 0, 1},
    {"linear", 1, 1, 0.1, 0.2, 0, 1},
    {"wsd", 1, 0, 0.1, 1.0, 0, 1},
    {"cosine", 1, 20, 0.1, 0.2, 0, 0.05},
    {"cosine", 2, 0, 0.1, 0.2, 1, 0.1},
    {"linear", 0, 0, 0.1, 0.2, 0, 1},
    {"cosine", 0, 4, 0.1, 0.2, 0, 0.25},
    {"wsd", 0, 0, 0.1, 0.2, 0, 1},
    {"linear", 1000000000, 0, 0.1, 0.2, 999999999, 0.1},
};

static void test_rates(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *r = &rows[i];
        struct knobs k;
        struct err e = {0};
        knobs_init(&k);
        assert_worked(knobs_set(&k, "sched.kind", r->kind, SET_BY_RECIPE, &e), &e);
        k.steps = r->steps;
        k.sched_warmup = r->warmup;
        k.sched_min = r->min;
        k.sched_decay = r->decay;
        k.optim_lr = 0.002;
        double got = schedule_lr(&k, r->step), want = 0.002 * r->factor;
        if (fabs(got - want) > 1e-15)
            fail_msg("row %zu (%s, steps %lld, warmup %lld, step %lld): %.17g instead of %.17g", i,
                     r->kind, (long long)r->steps, (long long)r->warmup, (long long)r->step, got,
                     want);
    }
}

static void test_rates_never_leave_their_range(void **state) {
    (void)state;
    for (int kind = SCHED_CONSTANT; kind <= SCHED_WSD; kind++)
        for (int64_t steps = 0; steps < 12; steps++)
            for (int64_t warmup = 0; warmup < 14; warmup++)
                for (int d = 0; d <= 4; d++) {
                    struct knobs k;
                    knobs_init(&k);
                    k.sched_kind = (enum sched_kind)kind;
                    k.steps = steps;
                    k.sched_warmup = warmup;
                    k.sched_decay = d / 4.0;
                    double before = 0;
                    for (int64_t s = 0; s < steps + 2; s++) {
                        double lr = schedule_lr(&k, s);
                        assert_true(lr > 0 && lr <= k.optim_lr * (1 + 1e-15));
                        // Up until the warm-up ends, down from there.
                        assert_true(s >= warmup || s >= steps ? s == 0 || lr <= before * (1 + 1e-15)
                                                              : lr > before);
                        before = lr;
                    }
                }
}

static void test_hyper(void **state) {
    (void)state;
    struct knobs k;
    double h[HYPER_COUNT];
    knobs_init(&k);
    k.optim_beta1 = 0.9;
    k.optim_beta2 = 0.95;
    k.optim_lr = 1e-3;
    k.sched_warmup = 0;
    hyper_fill(&k,
               &(struct hyper_step){.step = 0, .update = 1, .trained_tokens = 512, .loss_scale = 1},
               h);
    assert_true(h[HYPER_LR] == 1e-3);
    assert_true(fabs(h[HYPER_BIAS1] - 0.1) < 1e-16);
    assert_true(fabs(h[HYPER_BIAS2] - 0.05) < 1e-16);
    assert_true(h[HYPER_LOSS_FACTOR] == 1.0 / 512);
    assert_true(h[HYPER_BETA1] == 0.9 && h[HYPER_BETA2] == 0.95 && h[HYPER_EPS] == 1e-8);
    assert_true(h[HYPER_DECAY] == 0.1 && h[HYPER_CLIP] == 1.0);
    // The key of a step's random draws is exact in a double and differs for every step and every
    // seed.
    double draw = h[HYPER_DRAW], again[HYPER_COUNT];
    assert_true(draw >= 0 && draw < 0x1p53 && draw == floor(draw));
    hyper_fill(&k, &(struct hyper_step){.step = 0, .update = 1, .trained_tokens = 1}, again);
    assert_true(again[HYPER_DRAW] == draw);
    hyper_fill(&k, &(struct hyper_step){.step = 1, .update = 1, .trained_tokens = 1}, again);
    assert_true(again[HYPER_DRAW] != draw);
    k.seed++;
    hyper_fill(&k, &(struct hyper_step){.step = 0, .update = 1, .trained_tokens = 1}, again);
    assert_true(again[HYPER_DRAW] != draw);
    // Steps that were skipped do not count as updates.
    hyper_fill(
        &k, &(struct hyper_step){.step = 9, .update = 2, .trained_tokens = 3, .loss_scale = 1}, h);
    assert_true(fabs(h[HYPER_BIAS1] - (1 - 0.81)) < 1e-15);
    assert_true(h[HYPER_LOSS_FACTOR] == 1.0 / 3);
    hyper_fill(
        &k,
        &(struct hyper_step){.step = 1, .update = 1000000000, .trained_tokens = 1, .loss_scale = 1},
        h);
    assert_true(h[HYPER_BIAS1] == 1 && h[HYPER_BIAS2] == 1);
}

static void test_hyper_edges(void **state) {
    (void)state;
    struct knobs k;
    double h[HYPER_COUNT];
    knobs_init(&k);
    k.optim_beta1 = 0;         // no memory: the first and every correction is 1
    k.optim_beta2 = 0.9999999; // 1 - beta2^1 = 1e-7, to all digits of beta2
    hyper_fill(
        &k, &(struct hyper_step){.step = 0, .update = 1, .trained_tokens = 0, .loss_scale = 1}, h);
    assert_true(h[HYPER_BIAS1] == 1);
    assert_true(fabs(h[HYPER_BIAS2] / (1 - 0.9999999) - 1) < 1e-14);
    assert_true(h[HYPER_LOSS_FACTOR] == 0); // not 1/0
    for (int i = 0; i < HYPER_COUNT; i++)
        assert_true(isfinite(h[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_rates_never_leave_their_range),
        cmocka_unit_test(test_hyper),
        cmocka_unit_test(test_hyper_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

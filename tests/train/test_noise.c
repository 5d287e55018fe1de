// test_noise.c - the gradient noise scale: for made-up gradients whose scale is known, in a
// program, and in runs that split one batch in different ways.
#include "steps.h"

#include "train/noise.h"
#include "train/trial.h"

// ---------------------------------------------------------------- made-up gradients

enum { DIMS = 30, RUNS = 200 };

// A gradient, and noise of a different strength in each direction.
struct truth {
    double gradient[DIMS], sigma[DIMS], square, trace;
};

static struct truth make_truth(double loudness) {
    struct truth t = {0};
    for (int i = 0; i < DIMS; i++) {
        t.gradient[i] = 0.1 * rng_normal(3, 1, (uint64_t)i);
        t.sigma[i] = loudness * exp(rng_normal(3, 2, (uint64_t)i));
        t.square += t.gradient[i] * t.gradient[i];
        t.trace += t.sigma[i] * t.sigma[i];
    }
    return t;
}

// The mean of noisy gradients over `tokens` is drawn from its distribution. The mean of the whole
// step is that of the first part and that of the rest, weighted by tokens.
static struct noise_sample draw(const struct truth *t, uint64_t seed, uint64_t step, double small,
                                double all) {
    struct noise_sample x = {.small_tokens = small, .all_tokens = all, .sequences = all / 4};
    for (uint64_t i = 0; i < DIMS; i++) {
        const double first =
            t->gradient[i] + t->sigma[i] / sqrt(small) * rng_normal(seed, 5, step * DIMS + i);
        const double rest =
            t->gradient[i] + t->sigma[i] / sqrt(all - small) * rng_normal(seed, 6, step * DIMS + i);
        const double mean = (small * first + (all - small) * rest) / all;
        x.small_square += first * first;
        x.all_square += mean * mean;
    }
    return x;
}

static void test_truth_is_found(void **state) {
    (void)state;
    static const struct {
        double loudness, small, all;
        int steps;
    } cases[] = {{1, 64, 128, 60}, {1, 16, 512, 60}, {0.3, 8, 64, 20}, {2, 512, 4096, 200}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const struct truth t = make_truth(cases[c].loudness);
        double trace = 0, trace2 = 0, square = 0, square2 = 0;
        int covered = 0, finite = 0;
        for (uint64_t run = 0; run < RUNS; run++) {
            struct noise_scale s = {0};
            struct noise_estimate x;
            for (uint64_t i = 0; i < (uint64_t)cases[c].steps; i++) {
                // The number of tokens varies from step to step, as that of trained tokens does.
                const double more = 1 + 0.5 * rng_uniform(run, 9, i);
                const struct noise_sample sample =
                    draw(&t, run, i, cases[c].small * more, cases[c].all * (0.5 + more));
                assert_true(noise_add(&s, &sample));
            }
            noise_estimate_of(&s, &x);
            trace += x.trace / RUNS, trace2 += x.trace * x.trace / RUNS;
            square += x.gradient_square / RUNS;
            square2 += x.gradient_square * x.gradient_square / RUNS;
            covered += x.tokens_low <= t.trace / t.square && t.trace / t.square <= x.tokens_high;
            finite += isfinite(x.tokens_high);
            if (!isnan(x.tokens))
                assert_true(fabs(x.sequences - x.tokens / 4) < 1e-9 * x.tokens);
        }
        // Unbiased: within four standard deviations of the mean over the runs.
        const double off_t = fabs(trace - t.trace) / sqrt((trace2 - trace * trace) / RUNS);
        const double off_g = fabs(square - t.square) / sqrt((square2 - square * square) / RUNS);
        // 95 % of the runs minus four standard deviations. The averages are not quite normal: 92 %.
        if (off_t > 4 || off_g > 4 || covered < 0.92 * RUNS - 8)
            fail_msg("case %zu: trace off by %.1f deviations, gradient by %.1f, covered %d of %d",
                     c, off_t, off_g, covered, RUNS);
        print_message("case %zu: scale %.0f tokens, covered %d of %d, bounded %d\n", c,
                      t.trace / t.square, covered, RUNS, finite);
    }
}

static void test_undetermined_is_said(void **state) {
    (void)state;
    struct noise_scale s = {0};
    struct noise_estimate x;
    char text[NOISE_TEXT_BYTES];
    noise_estimate_of(&s, &x);
    assert_true(x.n == 0 && isnan(x.tokens) && isnan(x.tokens_low));
    assert_string_equal(noise_text(text, &x), "not measured");
    const struct noise_sample bad[] = {{1, 1, 4, 4, 1},
                                       {1, 1, 0, 4, 1},
                                       {NAN, 1, 2, 4, 1},
                                       {1, INFINITY, 2, 4, 1},
                                       {1, 1, 5, 4, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(noise_add(&s, &bad[i]));
    assert_int_equal(s.n, 0);
    // A gradient a thousand times smaller than its noise: there is no upper bound, but the scale is
    // surely not small.
    struct truth t = make_truth(100);
    for (uint64_t i = 0; i < 50; i++) {
        const struct noise_sample sample = draw(&t, 1, i, 8, 64);
        assert_true(noise_add(&s, &sample));
    }
    noise_estimate_of(&s, &x);
    assert_true(isinf(x.tokens_high) && x.tokens_low > 64);
    assert_non_null(strstr(noise_text(text, &x), "no upper bound"));
    // Hardly any noise: the scale is small for every batch.
    s = (struct noise_scale){0};
    t = make_truth(0.001);
    for (uint64_t i = 0; i < 50; i++) {
        const struct noise_sample sample = draw(&t, 1, i, 8, 64);
        assert_true(noise_add(&s, &sample));
    }
    noise_estimate_of(&s, &x);
    assert_true(x.tokens_high < 1);
    assert_true(x.tokens_high < x.batch_tokens);
    // There is a text for each case, and a number that is not determined is never shown as 0.
    x.tokens = NAN;
    assert_non_null(strstr(noise_text(text, &x), "the noise is too small"));
    x.gradient_square = -1;
    assert_non_null(strstr(noise_text(text, &x), "hides the gradient"));
    x = (struct noise_estimate){.n = 9,
                                .tokens = 500,
                                .sequences = 5,
                                .tokens_low = 400,
                                .tokens_high = 900,
                                .batch_tokens = 100};
    assert_non_null(strstr(noise_text(text, &x), "a larger batch would still help"));
    x.batch_tokens = 1000;
    assert_non_null(strstr(noise_text(text, &x), "that is more than needed"));
}

// ---------------------------------------------------------------- the program

static void reference_model(char out[512], const char *model) {
    snprintf(out, 512, "%s/tests/reference/%s", HAGGLE_SOURCE_DIR, model);
}

// A step that measures gives the same bits as one that does not. What it measures is the norm of a
// step on only the first micro-batch, with the same loss factor.
static void test_step_that_measures(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2-odd", "llama-bias", "qwen3"};
    static const enum precision precisions[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_FP16};
    for (int m = 0; m < 3; m++)
        for (int p = 0; p < 3; p++) {
            struct err e = {0};
            struct knobs k;
            char model[512];
            reference_model(model, models[m]);
            struct at_work with, without, first;
            steps_knobs(&k, model, 2, 3, 11);
            k.precision = precisions[p];
            k.noise_every = 1;
            assert_worked(steps_open(&with, &k, false, &e), &e);
            k.noise_every = 0;
            assert_worked(steps_open(&without, &k, false, &e), &e);
            assert_true(plan_program(&with.plan, PLAN_NOISE) &&
                        !plan_program(&without.plan, PLAN_NOISE));
            k.batch_accum = 1;
            // A single micro-batch: nothing can be measured, so there is no such program.
            k.noise_every = 1;
            assert_worked(steps_open(&first, &k, false, &e), &e);
            assert_null(plan_program(&first.plan, PLAN_NOISE));

            struct steps_batch b = steps_make_batch(&without, 1);
            double clip[CLIP_COUNT], results[RESULT_COUNT], norm,
                h[HYPER_COUNT] = {
                    [HYPER_LR] = 1e-3,    [HYPER_BETA1] = 0.9,
                    [HYPER_BETA2] = 0.95, [HYPER_EPS] = 1e-8,
                    [HYPER_CLIP] = 1,     [HYPER_BIAS1] = 0.1,
                    [HYPER_BIAS2] = 0.05, [HYPER_LOSS_FACTOR] = 64.0 / (double)b.trained,
                    [HYPER_SCALE] = 64};
            struct at_work *all[] = {&with, &without, &first};
            for (int i = 0; i < 3; i++) {
                assert_worked(session_set_hyper(all[i]->s, h, &e), &e);
                assert_worked(session_run(all[i]->s, i == 0 ? PLAN_NOISE : PLAN_TRAIN, steps_feed,
                                          &b, NULL, &e),
                              &e);
            }
            steps_assert_same_weights(&with, &without);
            assert_worked(session_get_noise(with.s, &norm, NULL, &e), &e);
            assert_worked(session_get_results(first.s, results, clip, &e), &e);
            if (!(norm > 0) || norm != clip[CLIP_NORM])
                fail_msg("%s, precision %d: the first micro-batch's norm is %.17g, measured %.17g",
                         models[m], p, clip[CLIP_NORM], norm);
            free(b.tokens);
            for (int i = 0; i < 3; i++)
                at_work_close(all[i]);
        }
}

// It costs a few hundred bytes of the arena, and nothing in a checkpoint.
static void test_memory_of_measuring(void **state) {
    (void)state;
    struct err e = {0};
    struct knobs k;
    struct at_work with, without;
    steps_knobs(&k, "tiny", 2, 4, 32);
    k.noise_every = 10;
    struct plan_options o = {.knobs = &k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    assert_worked(at_work_plan(&with, &o, &e), &e);
    k.noise_every = 0;
    assert_worked(at_work_plan(&without, &o, &e), &e);
    assert_true(with.plan.layout.arena_bytes >= without.plan.layout.arena_bytes);
    assert_true(with.plan.layout.arena_bytes - without.plan.layout.arena_bytes <= 4096);
    at_work_close(&with);
    at_work_close(&without);
}

// ---------------------------------------------------------------- runs

static struct noise_estimate measure_split(const struct scratch *x, int64_t micro, int64_t accum) {
    struct run *r = malloc(sizeof *r);
    assert_non_null(r);
    char name[32];
    snprintf(name, sizeof name, "split%lld", (long long)micro);
    run_init(r, x, name);
    snprintf(r->knobs.model, sizeof r->knobs.model, "tiny");
    run_set(r, "seq=16");
    run_set(r, "steps=30");
    run_set(r, "optim.lr=0"); // the weights do not change, so all steps have the same true scale
    run_set(r, "noise.every=1");
    run_set(r, "save.every=0");
    run_set(r, "save.last=false");
    run_set(r, "threads=2");
    r->knobs.batch_micro = micro, r->knobs.batch_accum = accum;
    run_go(r);
    assert_ran(r);
    const struct noise_estimate n = r->result.noise;
    free(r);
    return n;
}

// The same batches, split in different ways: the estimates agree within their confidence intervals.
static void test_splits_agree(void **state) {
    const struct scratch *x = *state;
    struct noise_estimate n[3];
    for (int i = 0; i < 3; i++) {
        n[i] = measure_split(x, 1 << i, 8 >> i);
        print_message("micro-batches of %d: %.1f tokens, %.1f to %.1f\n", 1 << i, n[i].tokens,
                      n[i].tokens_low, n[i].tokens_high);
        assert_int_equal(n[i].n, 30);
        assert_true(n[i].tokens > 0 && isfinite(n[i].tokens_high));
        assert_true(fabs(n[i].batch_tokens - 8 * 16) < 1e-9);
    }
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            assert_true(n[i].tokens >= n[j].tokens_low && n[i].tokens <= n[j].tokens_high);
}

static int steps_told;
static int count_noise(void *arg, const struct train_step *step, struct err *e) {
    (void)arg;
    (void)e;
    assert_true((step->noise != NULL) == ((step->step - 1) % 3 == 0));
    steps_told += step->noise != NULL;
    return 0;
}

// Measured in every third step, beginning with the first. The losses are those of a run that
// measures nothing.
static void test_every(void **state) {
    const struct scratch *x = *state;
    struct run *plain = malloc(sizeof *plain), *r = malloc(sizeof *r);
    assert_true(plain && r);
    run_init(plain, x, "plain");
    run_set(plain, "batch.accum=2");
    run_set(plain, "steps=10");
    run_go(plain);
    assert_ran(plain);
    assert_int_equal(plain->result.noise.n, 0);
    assert_true(isnan(plain->result.noise.tokens));
    run_init(r, x, "every");
    run_set(r, "batch.accum=2");
    run_set(r, "steps=10");
    run_set(r, "noise.every=3");
    run_go(r);
    assert_ran(r);
    assert_int_equal(r->result.noise.n, 4);
    assert_memory_equal(r->losses, plain->losses, sizeof r->losses);
    assert_same_tensors(r->dir, plain->dir, 10);

    struct at_work s;
    struct err e = {0};
    struct plan_options so = {.knobs = &r->knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    struct trainer_options to = {.observer = {.on_step = count_noise}};
    struct trainer *t = NULL;
    r->knobs.run_dir[0] = '\0';
    r->knobs.save_every = 0;
    r->knobs.save_last = false;
    assert_worked(at_work_plan(&s, &so, &e), &e);
    assert_worked(trainer_at_work(&t, &s, &to, &e), &e);
    assert_worked(trainer_run(t, NULL, &e), &e);
    trainer_close(t);
    at_work_close(&s);
    assert_int_equal(steps_told, 4);
    // The result of a trial includes it, and the energy with a meter or a reason.
    struct trial_result trial;
    assert_worked(
        trial_run(&r->knobs, &(struct trial_options){.warmup = 1, .steps = 6}, &trial, &e), &e);
    assert_int_equal(trial.rc, 0);
    assert_int_equal(trial.noise.n, 3);
    assert_true(trial.energy.meter[0] ? trial.energy.joules > 0
                                      : isnan(trial.energy.joules) && trial.energy.why[0]);
    trial_free(&trial);
    free(plain);
    free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truth_is_found),     cmocka_unit_test(test_undetermined_is_said),
        cmocka_unit_test(test_step_that_measures), cmocka_unit_test(test_memory_of_measuring),
        cmocka_unit_test(test_splits_agree),       cmocka_unit_test(test_every),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

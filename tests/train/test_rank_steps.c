// test_rank_steps.c - what a step decides from the whole is decided alike on every rank: a step is
// skipped by all when one rank's gradients are not finite, gradients are clipped by the norm of the
// whole, the loss scale moves as one rank's does, and a validation has one result.
#include "ranks_job.h"

#include "train/crew.h"

// ---------------------------------------------------------------- one rank's gradients are bad

// The step changes no weight and no moment: it is as if it had not been there, and the steps after
// it are those of one rank with the same mishap.
static void check_skip(const struct knobs *k, const char *layout, int rank, const struct job *one) {
    char words[300];
    snprintf(words, sizeof words, "%s bad_step=2 bad_rank=%d", layout, rank);
    struct job *before = job_of(k, layout, 2), *bad = job_of(k, words, 3),
               *longer = job_of(k, words, 5);
    for (int s = 0; s < 3; s++)
        if (bad->skipped[0][s] != (s == 2) || isfinite(bad->norms[0][s]) != (s != 2))
            fail_msg("%s: step %d is%s skipped, its norm is %g", words, s + 1,
                     bad->skipped[0][s] ? "" : " not", bad->norms[0][s]);
    if (memcmp(before->weights, bad->weights, (size_t)elements(bad) * sizeof *bad->weights) != 0)
        fail_msg("%s: a skipped step has changed weights", words);
    assert_near(longer, one, words);
    job_end(before), job_end(bad), job_end(longer);
}

static void test_skip_together(void **state) {
    static const struct {
        const char *layout;
        int rank;
    } cases[] = {
        {"data=4 batch.accum=2", 2},
        {"data=4 batch.accum=2 zero=1", 3},
        {"data=4 batch.accum=2 zero=2", 1},
        {"data=4 batch.accum=2 zero=3", 0},
        {"data=4 batch.accum=2 zero=1 late bucket=0", 1},
        {"tensor=4", 3},
        {"pipe=4", 0},
        {"pipe=4", 2},
        {"data=2 tensor=2 pipe=2 batch.accum=4 zero=1", 5},
        {"data=2 tensor=2 batch.accum=4 zero=3", 2},
        {"data=2 batch.accum=4 optim.state=int8 zero=1", 1},
    };
    struct knobs k;
    base_knobs(&k, *state, "tiny", 127, 5);
    struct job *one = job_of(&k, "bad_step=2 bad_rank=0", 5);
    assert_true(one->skipped[0][2] && !one->skipped[0][3]);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_skip(&k, cases[i].layout, cases[i].rank, one);
    job_end(one);
}

// ---------------------------------------------------------------- runs of the trainer

enum { TRAINED = 16 };

struct heard { // by rank 0
    double loss[TRAINED], norm[TRAINED], scale[TRAINED], valid;
    bool skipped[TRAINED];
    int steps, valids;
};

static int hear_step(void *arg, const struct train_step *s, struct err *e) {
    struct heard *h = arg;
    (void)e;
    h->loss[s->step - 1] = s->loss;
    h->norm[s->step - 1] = s->grad_norm;
    h->scale[s->step - 1] = s->loss_scale;
    h->skipped[s->step - 1] = s->skipped;
    h->steps++;
    return 0;
}

static int hear_valid(void *arg, const struct train_eval *v, struct err *e) {
    struct heard *h = arg;
    (void)e;
    h->valid = v->loss;
    h->valids++;
    return 0;
}

static void train(const struct knobs *base, const char *settings, struct heard *h) {
    struct knobs k = *base;
    char copy[300], *rest = copy;
    struct err e = {0};
    const struct trainer_options o = {
        .observer = {.arg = h, .on_step = hear_step, .on_eval = hear_valid}};
    memset(h, 0, sizeof *h);
    snprintf(copy, sizeof copy, "%s", settings);
    for (char *one; (one = strsep(&rest, " ")) != NULL;)
        assert_worked(knobs_set_assignment(&k, one, SET_BY_COMMAND_LINE, &e), &e);
    if (crew_train(&k, &o, &e) != 0)
        fail_msg("%s: %s", settings, e.text);
    assert_int_equal(h->steps, TRAINED);
    assert_true(h->valids >= 2);
}

static void train_knobs(struct knobs *k, const struct scratch *s) {
    static const char *const words[] = {"steps=16",     "tokenizer=bytes", "data.cache=none",
                                        "data.val=0.1", "eval.every=8",    "eval.batches=5",
                                        "save.every=0", "save.last=false", "generate.tokens=0"};
    struct err e = {0};
    base_knobs(k, s, "tiny", 300, 5);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        assert_worked(knobs_set_assignment(k, words[i], SET_BY_COMMAND_LINE, &e), &e);
}

static const char *const layouts[] = {
    "parallel.data=4 batch.accum=2",
    "parallel.data=4 batch.accum=2 zero.stage=1 comm.bucket=64KiB",
    "parallel.data=2 batch.accum=4 zero.stage=3",
    "parallel.tensor=4 batch.accum=8",
    "parallel.pipe=2 batch.accum=8 pipe.schedule=interleaved",
    "parallel.data=2 parallel.tensor=2 parallel.pipe=2 batch.accum=4 zero.stage=1",
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void compare(const struct heard *a, const struct heard *one, double limit,
                    const char *settings) {
    for (int s = 0; s < TRAINED; s++) {
        if (a->skipped[s] != one->skipped[s] || a->scale[s] != one->scale[s])
            fail_msg("%s: step %d has scale %g and is%s skipped, with one rank scale %g", settings,
                     s + 1, a->scale[s], a->skipped[s] ? "" : " not", one->scale[s]);
        if (!(fabs(a->loss[s] / one->loss[s] - 1) <= limit))
            fail_msg("%s: step %d has loss %.9g, with one rank %.9g", settings, s + 1, a->loss[s],
                     one->loss[s]);
        if (!a->skipped[s] && !(fabs(a->norm[s] / one->norm[s] - 1) <= 10 * limit))
            fail_msg("%s: step %d has norm %.9g, with one rank %.9g", settings, s + 1, a->norm[s],
                     one->norm[s]);
    }
    if (!(fabs(a->valid / one->valid - 1) <= limit))
        fail_msg("%s: validation %.9g, with one rank %.9g", settings, a->valid, one->valid);
}

// The scale begins so high that gradients overflow, comes down by skipped steps and goes up again.
static void test_loss_scale(void **state) {
    struct knobs k;
    struct heard one, h;
    train_knobs(&k, *state);
    k.precision = PRECISION_FP16;
    k.scale_start = SCALE_MOST;
    k.scale_growth = 3;
    train(&k, "batch.accum=8", &one);
    int skipped = 0, grown = 0;
    for (int s = 0; s < TRAINED; s++) {
        skipped += one.skipped[s];
        grown += s > 0 && one.scale[s] > one.scale[s - 1];
    }
    assert_true(one.skipped[0] && skipped < TRAINED / 2 && grown > 0);
    for (int i = 0; i < LAYOUTS; i++) {
        train(&k, layouts[i], &h);
        compare(&h, &one, 1e-2, layouts[i]);
    }
}

// Clipped to a hundredth, the updates are wrong on a rank that clips by its own norm.
static void test_clip(void **state) {
    struct knobs k;
    struct heard one, h, free_of;
    train_knobs(&k, *state);
    k.optim_eps = 1e-2; // else AdamW hides the factor
    train(&k, "batch.accum=8 optim.clip=0", &free_of);
    k.optim_clip = 0.01;
    train(&k, "batch.accum=8", &one);
    assert_true(one.norm[0] > 20 * k.optim_clip);
    assert_true(fabs(one.loss[TRAINED - 1] / free_of.loss[TRAINED - 1] - 1) > 1e-3);
    for (int i = 0; i < LAYOUTS; i++) {
        train(&k, layouts[i], &h);
        compare(&h, &one, 1e-4, layouts[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_skip_together),
        cmocka_unit_test(test_loss_scale),
        cmocka_unit_test(test_clip),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

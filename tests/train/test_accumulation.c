// test_accumulation.c - any split of a step's samples into micro-batches gives the same step. The
// gradients of one step and the losses of twenty are compared. Rows differ in length, a fifth of
// the targets is masked, and one row has nothing to train at all.
#include "steps.h"

enum { ROWS = 8, SEQ = 13, STEPS = 20 };

static void open_split(struct at_work *s, const char *model, int64_t micro, bool gradients) {
    struct err e = {0};
    struct knobs k;
    char path[512];
    snprintf(path, sizeof path, "%s/tests/reference/%s", HAGGLE_SOURCE_DIR, model);
    steps_knobs(&k, path, micro, ROWS / micro, SEQ);
    struct plan_options o = {
        .knobs = &k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32, .keep_gradients = gradients};
    assert_worked(at_work_plan(s, &o, &e), &e);
    assert_worked(at_work_start(s, NULL, &e), &e);
}

static double global_norm(const struct at_work *s) {
    struct model_param p;
    double sum = 0, diff, norm;
    for (int64_t i = 0; model_param_at(&s->plan.shape, i, &p); i++) {
        steps_compare_gradient(s, s, p.name, &diff, &norm);
        sum += norm * norm;
    }
    return sqrt(sum);
}

// Returns the worst relative distance of a gradient. Gradients that are noise beside the others are
// listed.
static double worst_gradient(const struct at_work *a, const struct at_work *b, const char *model) {
    struct model_param p;
    double worst = 0, global = global_norm(a), diff, norm;
    for (int64_t i = 0; model_param_at(&a->plan.shape, i, &p); i++) {
        steps_compare_gradient(a, b, p.name, &diff, &norm);
        if (norm < 1e-7 * global) {
            print_message("%s: %s is %.1e of the global norm: excepted\n", model, p.name,
                          norm / global);
            continue;
        }
        worst = fmax(worst, diff / norm);
    }
    return worst;
}

static void test_gradients(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2-odd", "llama-bias", "llama3-scaled", "qwen2",
                                         "qwen3"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct at_work whole;
        open_split(&whole, models[m], ROWS, true);
        double loss = steps_take(&whole, 0), worst = 0;
        for (int64_t micro = ROWS / 2; micro >= 1; micro /= 2) {
            struct at_work s;
            open_split(&s, models[m], micro, true);
            double split = steps_take(&s, 0), off = worst_gradient(&whole, &s, models[m]);
            if (!(off <= 2e-6) || !(fabs(split - loss) <= 1e-6 * loss))
                fail_msg("%s, micro-batches of %lld: gradient off by %.2e, loss by %.2e", models[m],
                         (long long)micro, off, fabs(split - loss) / loss);
            worst = fmax(worst, off);
            at_work_close(&s);
        }
        print_message("%s: worst gradient %.1e\n", models[m], worst);
        at_work_close(&whole);
    }
}

static void test_losses(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2-odd", "qwen3"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        double losses[STEPS], worst = 0;
        for (int64_t micro = ROWS; micro >= 1; micro /= 2) {
            struct at_work s;
            open_split(&s, models[m], micro, false);
            for (int i = 0; i < STEPS; i++) {
                double loss = steps_take(&s, i);
                if (micro == ROWS)
                    losses[i] = loss;
                double off = fabs(loss - losses[i]) / losses[i];
                if (!(off <= 1e-6))
                    fail_msg("%s, micro-batches of %lld, step %d: %.9g and %.9g", models[m],
                             (long long)micro, i, loss, losses[i]);
                worst = fmax(worst, off);
            }
            at_work_close(&s);
        }
        print_message("%s: worst of %d losses %.1e\n", models[m], STEPS, worst);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

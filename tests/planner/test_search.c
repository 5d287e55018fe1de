// test_search.c - layouts that are found use all devices and fit, goals order them, recipes pin
// them.
#include "planner/search.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

struct asked {
    struct hardware h;
    struct planner_constants k;
    struct planner_question q;
};

static void ask(struct asked *x, const char *model, const char *cluster) {
    struct err e = {0};
    x->k = planner_constants_default();
    x->q = (struct planner_question){.math = PLANNER_BF16,
                                     .seq = 2048,
                                     .tokens = 2048 * 64,
                                     .profile = planner_profile_find("haggle"),
                                     .constants = &x->k};
    strcpy(x->q.model, model);
    if (model_shape_builtin(&x->q.shape, model, &e) != 0 || hardware_open(&x->h, &e) != 0 ||
        cluster_parse(&x->q.cluster, &x->h, cluster, &e) != 0)
        fail_msg("%s", e.text);
}

static void search(const struct asked *x, struct planner_answer *a) {
    struct err e = {0};
    if (planner_search(a, &x->q, &e) != 0)
        fail_msg("%s", e.text);
}

static void layouts_fit_and_use_all_devices(void **state) {
    struct asked x;
    struct planner_answer a;
    (void)state;
    ask(&x, "llama-3b", "8xa100-40g");
    search(&x, &a);
    assert_true(a.n > 20);
    assert_int_equal(a.chosen, 0);
    int fit = 0;
    for (int i = 0; i < a.n; i++) {
        const struct planner_option *o = &a.options[i];
        assert_int_equal(planner_devices(&o->setup), 8);
        assert_int_equal(planner_tokens(&o->setup), x.q.tokens);
        assert_true(o->e.fits && o->e.bytes <= 40 * 1073741824.0);
        assert_true(planner_mfu(&x.q, o) > 0.001 && planner_mfu(&x.q, o) < 0.9);
        assert_true(i == 0 || o->e.step_s >= a.options[i - 1].e.step_s);
    }
    for (int f = 0; f < LAYOUT_COUNT; f++) {
        const struct planner_tried *t = &a.families[f];
        assert_true(t->listed >= t->bounded + t->fit);
        fit += t->fit;
    }
    assert_int_equal(fit, a.n);
    planner_answer_free(&a);
    x.q.goal = PLANNER_INTERACTIVE;
    search(&x, &a);
    for (int i = 1; i < a.n; i++)
        assert_true(a.options[i].e.micro_s >= a.options[i - 1].e.micro_s);
    planner_answer_free(&a);
    hardware_free(&x.h);
}

// What a bound rules out does not fit: the estimate of the same layout needs more than the room.
static void bounds_rule_out_only_what_does_not_fit(void **state) {
    struct asked x;
    struct planner_answer a;
    (void)state;
    ask(&x, "llama-8b", "8xa100-80g");
    search(&x, &a);
    const double fits = a.n;
    planner_answer_free(&a);
    // The same devices with room for anything: nothing is bounded, and what then takes no more
    // than 80 GiB is what was found before.
    x.q.cluster.device.memory_gib = 1e5;
    search(&x, &a);
    int small = 0;
    for (int i = 0; i < a.n; i++)
        small += a.options[i].e.bytes <= 80 * 1073741824.0;
    for (int f = 0; f < LAYOUT_COUNT; f++)
        assert_int_equal(a.families[f].bounded, 0);
    assert_true(small == fits);
    planner_answer_free(&a);
    hardware_free(&x.h);
}

static void budgets_are_kept(void **state) {
    struct asked x;
    struct planner_answer a;
    (void)state;
    ask(&x, "llama-1b", "4xh100-80g");
    search(&x, &a);
    const double fastest = a.options[0].e.high_s;
    planner_answer_free(&a);
    x.q.p99_s = fastest * 1.01;
    search(&x, &a);
    assert_int_equal(a.chosen, 0);
    assert_true(a.options[0].e.high_s <= x.q.p99_s);
    planner_answer_free(&a);
    x.q.p99_s = fastest / 2;
    search(&x, &a);
    assert_true(a.n > 0 && a.chosen == -1);
    planner_answer_free(&a);
    hardware_free(&x.h);
}

static void a_recipe_pins_the_choice(void **state) {
    struct asked x;
    struct planner_answer a;
    struct knobs k;
    struct err e = {0};
    (void)state;
    ask(&x, "llama-3b", "8xa100-40g");
    search(&x, &a);
    for (int i = 0; i < a.n; i++) {
        knobs_init(&k);
        if (planner_pin(&x.q, &a.options[i], &k, &e) != 0)
            fail_msg("%s", e.text);
        const struct planner_setup *s = &a.options[i].setup;
        assert_true(k.batch_micro == s->micro && k.batch_accum == s->accum);
        assert_true(k.parallel_tensor == s->tensor && k.parallel_pipe == s->pipe);
        assert_true((int)k.zero_stage == s->zero && knobs_world(&k) == 8);
    }
    x.q.model[0] = '\0';
    assert_int_equal(planner_pin(&x.q, &a.options[0], &k, &e), ERR_UNSUPPORTED);
    planner_answer_free(&a);
    hardware_free(&x.h);
}

static void shapes_by_number(void **state) {
    struct model_shape s;
    struct err e = {0};
    (void)state;
    assert_int_equal(
        planner_shape_parse(&s, "layers=80,hidden=8192,heads=64,kv=8,ffn=28672,vocab=128256", &e),
        0);
    struct model_shape same;
    assert_int_equal(model_shape_builtin(&same, "llama-70b", &e), 0);
    assert_true(model_total_elements(&s) == model_total_elements(&same));
    static const char *const bad[] = {"",
                                      "layers=80",
                                      "layers=x,hidden=1,heads=1",
                                      "layers=1,hidden=100,heads=3",
                                      "layers=0,hidden=64,heads=1",
                                      "layers=1,hidden=64,heads=1,depth=3",
                                      "layers=1,,hidden=64",
                                      "layers=99999999999999999999,hidden=64,heads=1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_not_equal(planner_shape_parse(&s, bad[i], &e), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_fit_and_use_all_devices),
        cmocka_unit_test(bounds_rule_out_only_what_does_not_fit),
        cmocka_unit_test(budgets_are_kept),
        cmocka_unit_test(a_recipe_pins_the_choice),
        cmocka_unit_test(shapes_by_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

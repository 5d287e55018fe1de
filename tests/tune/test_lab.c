// test_lab.c - the laboratory on this machine: it opens, plans, measures and closes, whatever state
// it inherits from the process that started it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "predict/predictor.h"
#include "tune/lab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void assert_worked(int rc, const struct err *e) {
    if (rc != 0)
        fail_msg("unexpected error %d: %s", rc, e->text);
}

static struct lab *open_lab_of(struct knobs *k, bool calibrate, bool all_types) {
    struct lab *l;
    struct err e = {0};
    knobs_init(k);
    assert_worked(knobs_set_assignment(k, "device=cpu", SET_BY_RECIPE, &e), &e);
    assert_worked(knobs_set_assignment(k, "seq=16", SET_BY_RECIPE, &e), &e);
    const struct lab_options o = {
        .knobs = k, .time_s = calibrate ? 0.2 : 0, .all_types = all_types};
    assert_worked(lab_open(&l, &o, &e), &e);
    return l;
}

static struct lab *open_lab(struct knobs *k, bool calibrate) {
    return open_lab_of(k, calibrate, false);
}

static void try_it(struct lab *l, const struct knobs *k) {
    const struct tune_lab lab = lab_table(l);
    const struct tune_order order = {.warmup = 1, .steps = 3, .step_s = NAN};
    struct tune_plan plan = {0};
    struct tune_measured m = {0};
    struct err e = {0};
    assert_worked(lab.plan(lab.arg, k, &plan, &e), &e);
    assert_int_equal(plan.rc, 0);
    assert_true(plan.step_s > 0);
    assert_true(plan.need_bytes > 0 && plan.need_bytes < plan.have_bytes);
    assert_worked(lab.measure(lab.arg, k, &order, &m, &e), &e);
    assert_int_equal(m.rc, 0);
    assert_int_equal(m.n, 3);
    free(m.step_ns);
}

static void test_plans_and_measures(void **state) {
    struct knobs k;
    struct lab *l = open_lab(&k, true);
    (void)state;
    try_it(l, &k);
    lab_close(l);
}

// Ignored signals are inherited. A child's status is then not kept, and waiting for one fails.
static void test_ends_of_children_are_not_heard(void **state) {
    struct knobs k;
    (void)state;
    signal(SIGCHLD, SIG_IGN);
    alarm(60); // ends the test if the laboratory loops forever
    struct lab *l = open_lab(&k, true);
    try_it(l, &k);
    lab_close(l);
    alarm(0);
    signal(SIGCHLD, SIG_DFL);
}

static int count_timed(const struct knobs *k) {
    struct predictor *p;
    struct predictor_known known;
    struct err e = {0};
    assert_worked(predictor_open(&p, NULL, &e), &e);
    assert_worked(predictor_known(p, k, &known, &e), &e);
    predictor_close(p);
    return known.signatures;
}

// Element types that may be chosen are timed beforehand. (If they are not timed, the guessed share
// of a step depends on how long the ops take that all types share.)
static void test_types_that_may_be_chosen(void **state) {
    (void)state;
    int timed[2];
    for (int all = 0; all < 2; all++) {
        struct knobs k;
        struct lab *l = open_lab_of(&k, true, all);
        const struct tune_lab lab = lab_table(l);
        struct tune_plan plan = {0};
        struct err e = {0};
        k.precision = PRECISION_BF16;
        assert_worked(lab.plan(lab.arg, &k, &plan, &e), &e);
        assert_true(plan.step_s > 0 && !(all && plan.guessed));
        assert_true(lab_begin_ns(l) <= lab.clock_ns(lab.arg) && lab_begin_ns(l) > 0);
        timed[all] = count_timed(&k);
        lab_close(l);
    }
    assert_true(timed[0] > 0 && timed[1] > timed[0]);
}

static void test_a_budget_makes_no_memory(void **state) {
    (void)state;
    struct knobs k;
    struct lab *l = open_lab(&k, false);
    struct tune_plan plan = {0};
    struct err e = {0};
    assert_worked(lab_table(l).plan(l, &k, &plan, &e), &e);
    const uint64_t have = plan.have_bytes;
    lab_close(l);
    assert_worked(knobs_set_assignment(&k, "memory=1000000GiB", SET_BY_RECIPE, &e), &e);
    const struct lab_options o = {.knobs = &k};
    assert_worked(lab_open(&l, &o, &e), &e);
    assert_worked(lab_table(l).plan(l, &k, &plan, &e), &e);
    assert_true(plan.have_bytes < 2 * have);
    assert_non_null(strstr(lab_have_is(l), "less than the budget"));
    lab_close(l);
}

static int setup(void **state) {
    static char dir[256];
    *state = dir;
    int rc = file_make_temp_dir(dir, sizeof dir, "lab", NULL);
    setenv("XDG_CACHE_HOME", dir, 1);
    return rc;
}

static int teardown(void **state) {
    return file_remove_tree(*state, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_plans_and_measures, setup, teardown),
        cmocka_unit_test_setup_teardown(test_types_that_may_be_chosen, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_budget_makes_no_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ends_of_children_are_not_heard, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

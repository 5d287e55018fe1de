// test_gen_lab.c - the laboratory for generation on this machine: what it plans, what a visit
// measures of a real model, and that a visit which fails or dies is a result.
#include "tune/gen_lab.h"

#include "base/clock.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void assert_worked(int rc, const struct err *e) {
    if (rc != 0)
        fail_msg("unexpected error %d: %s", rc, e->text);
}

static struct gen_desk desk_of(int64_t prompt, int64_t output) {
    struct gen_desk d = {.prompt = prompt, .output = output, .seed = 1};
    struct err e = {0};
    for (int i = 0; i < 2; i++) {
        knobs_init(&d.knobs[i]);
        assert_worked(knobs_set_assignment(&d.knobs[i], "device=cpu", SET_BY_RECIPE, &e), &e);
    }
    assert_worked(knobs_set_assignment(&d.knobs[1], "precision=bf16", SET_BY_RECIPE, &e), &e);
    return d;
}

static void drop(struct gen_measured *m) {
    for (int l = 0; l < GEN_LIMITS; l++)
        free(m->ns[l]);
}

static void plans_what_a_setting_needs(void **state) {
    (void)state;
    struct gen_desk d = desk_of(16, 8);
    const struct gen_lab lab = gen_lab_of(&d);
    const struct gen_point one = {.threads = 1, .chunk = 16, .batch = 1},
                           many = {.threads = 1, .chunk = 256, .batch = 256},
                           narrow = {.format = 1, .threads = 1, .chunk = 16, .batch = 1},
                           none = {.threads = 1, .chunk = 8, .batch = 16};
    struct gen_plan a = {0}, b = {0}, c = {0}, x = {0};
    struct err e = {0};
    // A plan counts what the process has resident by now, which grows from plan to plan. So what
    // needs less is planned later in the first comparison and earlier in the second.
    assert_worked(lab.plan(lab.arg, &many, &b, &e), &e);
    assert_worked(lab.plan(lab.arg, &narrow, &c, &e), &e);
    assert_worked(lab.plan(lab.arg, &one, &a, &e), &e);
    assert_worked(lab.plan(lab.arg, &none, &x, &e), &e);
    assert_int_equal(a.rc, 0);
    assert_true(a.need_bytes > 0 && a.need_bytes < a.have_bytes);
    assert_true(b.need_bytes > a.need_bytes + 3000000); // the cache of 256 texts
    assert_true(c.need_bytes + 1000000 < a.need_bytes); // half of the weights' 3 MB
    assert_int_equal(x.rc, ERR_USAGE);
    assert_non_null(strstr(x.reason, "no room"));
    d.knobs[0].memory = 1000000;
    memset(&a, 0, sizeof a);
    assert_worked(lab.plan(lab.arg, &one, &a, &e), &e);
    assert_int_equal(a.rc, ERR_MEMORY);
    assert_int_equal(a.have_bytes, 1000000);
}

// A stretch between two ends has the tokens of one text and one prompt, with any number of texts.
static void a_visit_measures_whole_texts(void **state) {
    (void)state;
    enum { PROMPT = 24, OUTPUT = 12 };
    static const int64_t batches[] = {1, 3, 8};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        struct gen_desk d = desk_of(PROMPT, OUTPUT);
        const struct gen_point p = {.threads = 1, .chunk = 16, .batch = batches[i]};
        struct gen_measured m;
        struct err e = {0};
        const uint64_t begin = clock_ns();
        assert_worked(gen_lab_measure(&d, &p, 0.1, &m, &e), &e);
        const double whole = 1e-9 * (double)(clock_ns() - begin);
        assert_int_equal(m.rc, 0);
        assert_true(m.tokens > 0 && m.tokens % OUTPUT == 0);
        const double texts = (double)m.tokens / OUTPUT, made = (double)m.n[GEN_BETWEEN];
        // Texts under way at both ends of the visit count by their tokens.
        assert_true(fabs((double)m.n[GEN_FIRST] - texts) <= (double)p.batch);
        assert_true(fabs(made - texts * (OUTPUT - 1)) <= (double)(p.batch * OUTPUT));
        assert_true(m.wall_ns >= 100000000 && 1e-9 * (double)m.wall_ns <= whole);
        assert_true(m.whole_s >= 1e-9 * (double)m.wall_ns && m.whole_s <= whole);
        assert_true(m.memory_bytes > 3000000);
        double first = 0, between = 0;
        for (size_t k = 0; k < m.n[GEN_FIRST]; k++)
            first += m.ns[GEN_FIRST][k] / (double)m.n[GEN_FIRST];
        for (size_t k = 0; k < m.n[GEN_BETWEEN]; k++)
            between += m.ns[GEN_BETWEEN][k] / made;
        assert_true(first > 0 && between > 0);
        // Side by side: the texts of the batch share the time.
        const double all = (double)p.batch * (double)m.wall_ns;
        const double sum = first * texts + between * texts * (OUTPUT - 1);
        assert_true(sum > 0.5 * all && sum < 1.5 * all);
        drop(&m);
    }
}

static void a_visit_that_fails_is_a_result(void **state) {
    (void)state;
    struct gen_desk d = desk_of(500, 100); // tiny has 512 positions
    const struct gen_point p = {.threads = 1, .chunk = 64, .batch = 1};
    struct gen_measured m;
    struct err e = {0};
    assert_worked(gen_lab_measure(&d, &p, 0.1, &m, &e), &e);
    assert_int_equal(m.rc, ERR_USAGE);
    assert_non_null(strstr(m.reason, "512 positions"));
    assert_null(m.ns[GEN_FIRST]);
    d = desk_of(16, 8);
    d.knobs[0].memory = 1000000;
    assert_worked(gen_lab_measure(&d, &p, 0.1, &m, &e), &e);
    assert_int_equal(m.rc, ERR_MEMORY);
    drop(&m);
}

static void a_stop_request_ends_a_visit(void **state) {
    (void)state;
    struct gen_desk d = desk_of(16, 8);
    const volatile sig_atomic_t stop = 1;
    d.stop = &stop;
    const struct gen_point p = {.threads = 1, .chunk = 16, .batch = 1};
    struct gen_measured m;
    struct err e = {0};
    assert_int_equal(gen_lab_measure(&d, &p, 30, &m, &e), ERR_STOPPED);
    assert_null(m.ns[GEN_FIRST]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_what_a_setting_needs),
        cmocka_unit_test(a_visit_measures_whole_texts),
        cmocka_unit_test(a_visit_that_fails_is_a_result),
        cmocka_unit_test(a_stop_request_ends_a_visit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

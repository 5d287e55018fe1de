// test_advice_of_choice.c - the advice in the verdict on a search's choice: the search knows better
// than a rule about a knob that it moved, tried or refused, and a knob that it never looks at is no
// advice either.
#include "tune/again.h"
#include "tune/tuning.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char ADVICE[] = "first knob to try: ";
enum { STEPS = 20, STEP_NS = 10000000 };

// A search that has measured the recipe, whose steps spend most of their time in this part.
static struct tuning *searched(struct knobs *k, enum time_part part) {
    struct tuning *t = calloc(1, sizeof *t);
    double ns[STEPS];
    assert_non_null(t);
    knobs_init(k);
    k->data_prefetch = 0;
    t->base = *k;
    t->request = (struct tune_request){.goal = TUNE_BULK, .time_ns = 1000000000, .cpus = 2};
    assert_int_equal(tune_again_begin(&t->tune, k, &t->request, NULL), 0);
    struct tune_measured m = {.step_ns = ns, .n = STEPS, .joules = NAN, .busy = NAN};
    for (int i = 0; i < STEPS; i++)
        ns[i] = STEP_NS;
    m.wall_ns = (uint64_t)STEPS * STEP_NS;
    m.tokens = (uint64_t)(STEPS * k->batch_micro * k->batch_accum * k->seq);
    m.split = (struct time_split){.wall_ns = m.wall_ns, .steps = STEPS};
    m.split.ns[part] = m.wall_ns / 5 * 4;
    m.split.ns[part == TIME_OTHER ? TIME_MATMUL : TIME_OTHER] = m.wall_ns / 5;
    assert_int_equal(tune_again_visit(&t->tune, 0, &m, NULL), 0);
    return t;
}

static struct tuning *ended(struct tuning *t) {
    tune_again_end(&t->tune, 0);
    assert_int_equal(t->tune.chosen, 0);
    t->sentences.lines[0] = '\0';
    tuning_verdict(t);
    assert_non_null(strstr(t->sentences.lines, "keep what you have"));
    return t;
}

static void end(struct tuning *t) {
    tune_free(&t->tune);
    free(t);
}

static void test_untried(void **state) {
    struct knobs k;
    (void)state;
    struct tuning *t = ended(searched(&k, TIME_DATA_WAIT));
    assert_non_null(strstr(t->sentences.lines, "first knob to try: data.prefetch"));
    assert_string_equal(t->verdict.knob, "data.prefetch");
    end(t);
}

// Measured, refused, or only planned: the search has looked at another value.
static void test_tried(void **state) {
    static const enum tune_outcome outcomes[] = {TUNE_PLANNED, TUNE_REFUSED, TUNE_SLOWER};
    (void)state;
    for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++) {
        struct knobs k;
        struct tuning *t = searched(&k, TIME_DATA_WAIT);
        k.data_prefetch = 2;
        const int at = tune_again_add(&t->tune, &k, STAGE_DATA, NULL);
        assert_int_equal(at, 1);
        t->tune.settings[at].outcome = outcomes[i];
        ended(t);
        assert_null(strstr(t->sentences.lines, ADVICE));
        assert_null(t->verdict.knob);
        end(t);
    }
}

// The rule about attention names seq, which changes what is trained: no search moves it.
static void test_never_looked_at(void **state) {
    struct knobs k;
    struct verdict plain;
    (void)state;
    struct tuning *t = ended(searched(&k, TIME_ATTENTION));
    verdict_of(&plain, &t->tune.settings[0].split,
               &(struct verdict_facts){.threads = 1, .cpus = 1});
    assert_string_equal(plain.knob, "seq");
    assert_int_equal(t->verdict.dominant, TIME_ATTENTION);
    assert_null(strstr(t->sentences.lines, ADVICE));
    assert_null(t->verdict.knob);
    end(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_untried),
        cmocka_unit_test(test_tried),
        cmocka_unit_test(test_never_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

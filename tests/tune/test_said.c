// test_said.c - what a search says. Its advice: it knows better than a rule about a knob that it
// moved, tried or refused, and a knob that it never looks at is no advice either. What could be had
// instead of a budget that no setting keeps. Nothing about ranks that is not so.
#include "tune/again.h"
#include "tune/tune_impl.h"
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

// ---------------------------------------------------------------- searches over a made-up machine

static uint64_t now_ns;
static uint64_t dies; // bit n: the process of the n-th visit to the recipe as given dies
static int visits;    // to it

static uint64_t now(void *arg) {
    (void)arg;
    return now_ns;
}

// Every micro-batch costs something of its own, so that large ones are faster.
static double step_s(const struct knobs *k) {
    return 1e-3 + (double)k->batch_accum * (2e-3 + 1e-6 * (double)(k->batch_micro * k->seq));
}

static int plan(void *arg, const struct knobs *k, struct tune_plan *out, struct err *e) {
    (void)arg, (void)e;
    out->need_bytes = 1 << 20;
    out->have_bytes = 1 << 30;
    out->step_s = step_s(k);
    return 0;
}

static int measure(void *arg, const struct knobs *k, const struct tune_order *o,
                   struct tune_measured *out, struct err *e) {
    const struct knobs *given = arg;
    if (knobs_equal(k, given) && dies >> (visits < 63 ? visits++ : 63) & 1) {
        now_ns += 100000000;
        out->rc = ERR_MEMORY;
        snprintf(out->reason, sizeof out->reason, "the kernel killed its process");
        return 0;
    }
    out->step_ns = calloc((size_t)o->steps, sizeof *out->step_ns);
    if (!out->step_ns)
        return err_set(e, ERR_MEMORY, "out of memory for %lld samples", (long long)o->steps);
    do {
        out->step_ns[out->n++] = 1e9 * step_s(k);
        out->wall_ns += (uint64_t)(1e9 * step_s(k));
        out->tokens += (uint64_t)(k->batch_micro * k->batch_accum * k->seq);
    } while ((int64_t)out->n < o->steps &&
             o->judge(o->judge_arg, out->step_ns, out->n) == TUNE_GO_ON);
    now_ns += out->wall_ns;
    out->split = (struct time_split){.wall_ns = out->wall_ns, .steps = out->n};
    out->split.ns[TIME_MATMUL] = out->wall_ns;
    return 0;
}

static void search(struct tune *t, const struct knobs *k, enum tune_goal goal, uint64_t respond) {
    struct knobs given = *k;
    const struct tune_lab lab = {.arg = &given, .plan = plan, .measure = measure, .clock_ns = now};
    const struct tune_request r = {
        .goal = goal, .time_ns = 60000000000, .cpus = 2, .respond_ns = respond};
    struct err e = {0};
    if (tune_run(t, k, &r, &lab, &e) != 0)
        fail_msg("%s", e.text);
}

static void recipe(struct knobs *k) {
    knobs_init(k);
    k->batch_micro = 8, k->batch_accum = 4, k->seq = 128;
}

// What could be had is the least wait, which need not be that of the shortest step: many small
// micro-batches make a long step and let requests in soon.
static void test_the_least_wait(void **state) {
    struct knobs k;
    struct tune t;
    char said[TUNE_TEXT_BYTES];
    int wait = -1, step = -1;
    double least_s = INFINITY;
    (void)state;
    recipe(&k);
    search(&t, &k, TUNE_HYBRID, 1000);
    assert_int_equal(t.chosen, -1);
    for (int i = 0; i < t.n; i++) {
        const struct tune_setting *s = &t.settings[i];
        if (s->n == 0)
            continue;
        const double p95 = tune_quantile(s, 0.95).value,
                     wait_s = tune_wait_of(&t.request, &s->knobs, 1e-9 * p95);
        if (wait_s < least_s)
            least_s = wait_s, wait = i;
        if (step < 0 || p95 < tune_quantile(&t.settings[step], 0.95).value)
            step = i;
    }
    assert_true(wait >= 0 && wait != step);
    snprintf(said, sizeof said, "the least wait of a request that was measured is %.4g ms (%.100s,",
             1e3 * least_s, t.settings[wait].name);
    if (!strstr(t.why_none, said))
        fail_msg("'%s' is not in: %s", said, t.why_none);
    tune_free(&t);
}

// Layouts of ranks are not searched, and the search does not say that there is one rank.
static void test_ranks_stay(void **state) {
    struct knobs k;
    struct tune t;
    (void)state;
    recipe(&k);
    search(&t, &k, TUNE_BULK, 0);
    assert_non_null(strstr(t.stages[STAGE_COMM].text, "one rank"));
    tune_free(&t);
    k.parallel_data = 2;
    search(&t, &k, TUNE_BULK, 0);
    for (int i = 0; i < t.n; i++)
        assert_int_equal(knobs_world(&t.settings[i].knobs), 2);
    assert_non_null(strstr(t.stages[STAGE_COMM].text, "the recipe's stays"));
    tune_free(&t);
}

// A process that is killed once is no reason to leave the recipe as given: at the first visit or at
// any later one. One that is killed twice in a row is.
static void test_a_death_of_the_recipe(void **state) {
    struct knobs k;
    struct tune t;
    (void)state;
    recipe(&k);
    k.batch_micro = 32, k.batch_accum = 1; // nothing is faster
    for (int at = 0; at < 8; at++) {
        dies = UINT64_C(1) << at, visits = 0;
        search(&t, &k, TUNE_BULK, 0);
        if (t.chosen != 0 || t.why == TUNE_WHY_NEEDED)
            fail_msg("killed at visit %d, the choice is %d", at, t.chosen);
        assert_true(visits > at);
        tune_free(&t);
    }
    for (int at = 1; at < 6; at++) {
        dies = UINT64_C(3) << at, visits = 0;
        search(&t, &k, TUNE_BULK, 0);
        if (t.settings[0].outcome != TUNE_FAILED)
            fail_msg("killed at visits %d and %d of %d: %s", at, at + 1, visits,
                     t.settings[0].reason);
        assert_true(t.chosen > 0 && t.why == TUNE_WHY_NEEDED);
        tune_free(&t);
    }
    dies = 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_untried),         cmocka_unit_test(test_tried),
        cmocka_unit_test(test_never_looked_at), cmocka_unit_test(test_the_least_wait),
        cmocka_unit_test(test_ranks_stay),      cmocka_unit_test(test_a_death_of_the_recipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

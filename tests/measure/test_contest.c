// test_contest.c - rates of errors and of decisions on simulated machines, with noise, correlated
// steps and drift.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "measure/bound.h"
#include "measure/contest.h"

#include <math.h>
#include <string.h>

enum { STEPS_MOST = 4096 };

// A simulated machine. step: heavy-tailed noise of each step. lasting, keep: noise that lasts (an
// AR(1) process). round: noise of a whole round. walk: a random walk of the machine's speed that
// both sides share. trend: a steady drift.
struct machine {
    double step, lasting, keep, round, walk, trend;
};

struct game {
    double a[STEPS_MOST], b[STEPS_MOST];
    size_t n;
};

static double *side_of(struct game *g, int side) {
    return side == 0 ? g->a : g->b;
}

// Rounds of `steps` steps in turns: a, b, a, b, ... Side b takes `slower` times as long.
static void play(struct game *g, const struct machine *m, uint64_t seed, size_t rounds,
                 size_t steps, double slower) {
    double walk = 0, lasting = 0;
    uint64_t at = 0;
    g->n = rounds * steps;
    for (size_t r = 0; r < rounds; r++)
        for (int side = 0; side < 2; side++) {
            walk += m->walk * rng_normal(seed, 1, at);
            const double luck = m->round * rng_normal(seed, 2, at);
            for (size_t i = 0; i < steps; i++, at++) {
                const double u = rng_uniform(seed, 4, at);
                const double spike = u < 0.02 ? 10 * m->step : 0; // another process sometimes runs
                lasting = m->keep * lasting +
                          m->lasting * sqrt(1 - m->keep * m->keep) * rng_normal(seed, 3, at);
                side_of(g, side)[r * steps + i] =
                    1e6 * (side ? slower : 1) *
                    exp(walk + luck + lasting + m->trend * (double)at / (double)(2 * g->n) +
                        m->step * rng_normal(seed, 5, at) + spike);
            }
        }
}

// Separate runs: all of a, then all of b.
static void play_apart(struct game *g, const struct machine *m, uint64_t seed, size_t n,
                       double slower) {
    g->n = n;
    double lasting = 0;
    for (size_t at = 0; at < 2 * n; at++) {
        lasting =
            m->keep * lasting + m->lasting * sqrt(1 - m->keep * m->keep) * rng_normal(seed, 3, at);
        const double t = 1e6 * exp(lasting + m->trend * (double)at / (double)(2 * n) +
                                   m->step * rng_normal(seed, 5, at));
        if (at < n)
            g->a[at] = t;
        else
            g->b[at - n] = slower * t;
    }
}

static struct contest hold(const struct game *g, size_t rounds, struct contest_options o) {
    static double scratch[STEPS_MOST];
    struct contest c;
    const struct contest_side a = {g->a, g->n, rounds, 0}, b = {g->b, g->n, rounds, 0};
    o.scratch = scratch;
    contest_hold(&c, &a, &b, &o);
    return c;
}

static const struct machine machines[] = {
    {.step = 0.02},
    {.step = 0.02, .lasting = 0.03, .keep = 0.9},
    {.step = 0.02, .round = 0.03},
    {.step = 0.02, .walk = 0.02},
    {.step = 0.03, .lasting = 0.02, .keep = 0.98, .walk = 0.01, .round = 0.02},
};
enum { MACHINES = sizeof machines / sizeof *machines, RUNS = 600 };

static double most_of(int runs, double rate) {
    return runs * rate + 4 * sqrt(runs * rate * (1 - rate));
}

static void test_equals_are_rarely_told_apart(void **state) {
    (void)state;
    static struct game g;
    for (int m = 0; m < MACHINES; m++)
        for (int median = 0; median < 2; median++) {
            int wrong = 0;
            for (uint64_t run = 0; run < RUNS; run++) {
                play(&g, &machines[m], run, 10, 20, 1);
                const enum contest_state s =
                    hold(&g, 10,
                         (struct contest_options){.confidence = 0.95,
                                                  .paired = true,
                                                  .figure =
                                                      median ? CONTEST_MEDIAN : CONTEST_THROUGHPUT})
                        .state;
                wrong += s == CONTEST_FASTER || s == CONTEST_SLOWER;
            }
            if (wrong > most_of(RUNS, 0.05))
                fail_msg("machine %d, figure %d: %d of %d equals were told apart", m, median, wrong,
                         RUNS);
        }
}

static void test_differences_are_found(void **state) {
    (void)state;
    static struct game g;
    for (int m = 0; m < 3; m++) {
        int right = 0, covered = 0;
        for (uint64_t run = 0; run < 200; run++) {
            play(&g, &machines[m], run, 12, 20, 1.08);
            const struct contest c =
                hold(&g, 12, (struct contest_options){.confidence = 0.95, .paired = true});
            right += c.state == CONTEST_FASTER;
            covered += c.low <= 1.08 && 1.08 <= c.high;
            assert_true(c.state != CONTEST_SLOWER);
        }
        if (right < 180 || 200 - covered > most_of(200, 0.05))
            fail_msg("machine %d: found %d of 200, interval holds %d", m, right, covered);
    }
}

// Measures until the order is certain, with a growing number of rounds. All looks together keep the
// confidence.
static void test_looks_share_the_error(void **state) {
    (void)state;
    static struct game g;
    int wrong = 0;
    for (uint64_t run = 0; run < RUNS; run++) {
        play(&g, &machines[2], run, 64, 4, 1);
        for (int look = 1; look <= 4; look++) {
            struct game part = {.n = (size_t)4 * (8u << (look - 1))};
            memcpy(part.a, g.a, part.n * sizeof *part.a);
            memcpy(part.b, g.b, part.n * sizeof *part.b);
            const struct contest c =
                hold(&part, part.n / 4,
                     (struct contest_options){.confidence = sample_look_confidence(0.95, look),
                                              .paired = true});
            if (c.state == CONTEST_FASTER || c.state == CONTEST_SLOWER) {
                wrong++;
                break;
            }
        }
    }
    if (wrong > most_of(RUNS, 0.05))
        fail_msg("%d of %d equals were told apart in the end", wrong, RUNS);
}

// Separate runs: correlated steps do not make equal sides differ, a trend of the machine is not
// taken for a difference, and a large difference is found.
static void test_runs_apart(void **state) {
    (void)state;
    static struct game g;
    static const struct machine alike[] = {{.step = 0.02},
                                           {.step = 0.02, .lasting = 0.03, .keep = 0.9},
                                           {.step = 0.01, .lasting = 0.05, .keep = 0.99},
                                           {.step = 0.02, .trend = 0.10}};
    for (size_t m = 0; m < sizeof alike / sizeof *alike; m++) {
        int wrong = 0, right = 0;
        for (uint64_t run = 0; run < RUNS; run++) {
            play_apart(&g, &alike[m], run, 1000, 1);
            enum contest_state s = hold(&g, 1, (struct contest_options){.confidence = 0.95}).state;
            wrong += s == CONTEST_FASTER || s == CONTEST_SLOWER;
            play_apart(&g, &alike[m], run, 1000, 1.2);
            s = hold(&g, 1, (struct contest_options){.confidence = 0.95}).state;
            right += s == CONTEST_FASTER;
        }
        // Noise that lasts for a tenth of the run leaves too few blocks to detect it: 0.08
        // (measured 0.077).
        if (wrong > most_of(RUNS, m == 2 ? 0.08 : 0.05) || right < RUNS / 2)
            fail_msg("machine %zu: %d of %d equals were told apart, %d of as many found", m, wrong,
                     RUNS, right);
    }
}

static void test_equal_and_undecided(void **state) {
    (void)state;
    static struct game g;
    play(&g, &(struct machine){.step = 0.002}, 1, 12, 50, 1);
    struct contest_options o = {.confidence = 0.95, .tolerance = 0.01, .paired = true};
    assert_int_equal(hold(&g, 12, o).state, CONTEST_EQUAL);
    o.tolerance = 0;
    assert_int_equal(hold(&g, 12, o).state, CONTEST_UNDECIDED);
    play(&g, &(struct machine){.step = 0.002}, 1, 5, 50, 2);
    struct contest c = hold(&g, 5, o); // 2 * 2^-5 > 0.05
    assert_int_equal(c.state, CONTEST_UNDECIDED);
    assert_true(c.blocks == 5 && c.blocks_needed == 6 && isnan(c.low) && c.why[0]);
    play(&g, &(struct machine){.step = 0.002}, 1, 6, 50, 2);
    c = hold(&g, 6, o);
    assert_true(c.state == CONTEST_FASTER && fabs(c.speed_ratio - 2) < 0.02);
    o.confidence = 0.99;
    assert_int_equal(hold(&g, 6, o).state, CONTEST_UNDECIDED);
    o.confidence = 1;
    assert_int_equal(hold(&g, 6, o).state, CONTEST_UNDECIDED);
    // Numbers of rounds that do not match are reported, not guessed. Tokens per step count.
    const struct contest_side a = {g.a, 300, 6, 100}, b = {g.b, 300, 6, 200},
                              odd = {g.b, 300, 5, 0}, none = {g.b, 0, 0, 0};
    o.confidence = 0.95;
    contest_hold(&c, &a, &odd, &o);
    assert_true(c.state == CONTEST_UNDECIDED && c.why[0]);
    contest_hold(&c, &a, &none, &o);
    assert_true(c.state == CONTEST_UNDECIDED && c.why[0]);
    contest_hold(&c, &a, &b, &o); // twice the time for twice the tokens
    assert_true(fabs(c.speed_ratio - 1) < 0.01);
    // More rounds than blocks; fewer steps than blocks.
    play(&g, &(struct machine){.step = 0.01}, 2, 400, 2, 1.1);
    c = hold(&g, 400, o);
    assert_true(c.state == CONTEST_FASTER && c.blocks <= CONTEST_MOST_BLOCKS);
    g.n = 7;
    o.paired = false;
    assert_int_equal(hold(&g, 1, o).state, CONTEST_UNDECIDED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_are_rarely_told_apart),
        cmocka_unit_test(test_differences_are_found),
        cmocka_unit_test(test_looks_share_the_error),
        cmocka_unit_test(test_runs_apart),
        cmocka_unit_test(test_equal_and_undecided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

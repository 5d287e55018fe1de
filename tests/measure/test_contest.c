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
#include "measure/sample.h"

#include <math.h>
#include <string.h>

enum { STEPS_MOST = 4096, ROUNDS_MOST = 400 };

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

// What a round of n steps costs, from their sum or from their median.
static double cost_of(const double *step_ns, size_t n, bool median) {
    double sorted[STEPS_MOST], sum = 0;
    memcpy(sorted, step_ns, n * sizeof *sorted);
    for (size_t i = 0; i < n; i++)
        sum += step_ns[i];
    return log(median ? sample_median(sorted, n) : sum / (double)n);
}

static struct contest hold(const struct game *g, size_t rounds, bool median, double confidence,
                           double tolerance) {
    double a[ROUNDS_MOST], b[ROUNDS_MOST];
    const size_t steps = g->n / rounds;
    const struct contest_options o = {.confidence = confidence, .tolerance = tolerance};
    struct contest c;
    for (size_t r = 0; r < rounds; r++) {
        a[r] = cost_of(g->a + r * steps, steps, median);
        b[r] = cost_of(g->b + r * steps, steps, median);
    }
    contest_rounds(&c, a, b, rounds, &o);
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
                const enum contest_state s = hold(&g, 10, median, 0.95, 0).state;
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
            const struct contest c = hold(&g, 12, false, 0.95, 0);
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
                hold(&part, part.n / 4, false, sample_look_confidence(0.95, look), 0);
            if (c.state == CONTEST_FASTER || c.state == CONTEST_SLOWER) {
                wrong++;
                break;
            }
        }
    }
    if (wrong > most_of(RUNS, 0.05))
        fail_msg("%d of %d equals were told apart in the end", wrong, RUNS);
}

static void test_equal_and_undecided(void **state) {
    (void)state;
    static struct game g;
    play(&g, &(struct machine){.step = 0.002}, 1, 12, 50, 1);
    assert_int_equal(hold(&g, 12, false, 0.95, 0.01).state, CONTEST_EQUAL);
    assert_int_equal(hold(&g, 12, false, 0.95, 0).state, CONTEST_UNDECIDED);
    play(&g, &(struct machine){.step = 0.002}, 1, 5, 50, 2);
    struct contest c = hold(&g, 5, false, 0.95, 0); // 2 * 2^-5 > 0.05
    assert_true(c.state == CONTEST_UNDECIDED && isnan(c.low) && isnan(c.speed_ratio));
    play(&g, &(struct machine){.step = 0.002}, 1, 6, 50, 2);
    c = hold(&g, 6, false, 0.95, 0);
    assert_true(c.state == CONTEST_FASTER && fabs(c.speed_ratio - 2) < 0.02);
    assert_int_equal(hold(&g, 6, false, 0.99, 0).state, CONTEST_UNDECIDED);
    assert_int_equal(hold(&g, 6, false, 1, 0).state, CONTEST_UNDECIDED);
    // More rounds than are looked at. A round that one side lacks does not count.
    play(&g, &(struct machine){.step = 0.01}, 2, 400, 2, 1.1);
    assert_int_equal(hold(&g, 400, false, 0.95, 0).state, CONTEST_FASTER);
    const struct contest_options o = {.confidence = 0.95};
    double a[7] = {1, 1, 1, NAN, 1, 1, 1}, b[7] = {2, 2, 2, 2, 2, 2, 2};
    contest_rounds(&c, a, b, 7, &o);
    assert_true(c.state == CONTEST_FASTER && fabs(c.speed_ratio - exp(1)) < 1e-9);
    b[0] = NAN;
    contest_rounds(&c, a, b, 7, &o);
    assert_int_equal(c.state, CONTEST_UNDECIDED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_are_rarely_told_apart),
        cmocka_unit_test(test_differences_are_found),
        cmocka_unit_test(test_looks_share_the_error),
        cmocka_unit_test(test_equal_and_undecided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

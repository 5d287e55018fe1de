// test_judge.c - the best validation, and the rule by which a run has diverged: losses of sound
// runs (noise, outliers, spikes, humps, easy and hard documents) never end one, losses of diverged
// ones do, and soon.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "train/judge.h"

#include <math.h>

enum { SEEDS = 50, STEPS = 2000 };

static void test_best(void **state) {
    struct best_eval b = {0};
    (void)state;
    assert_false(best_see(&b, 5, NAN)); // not a number is never the best, and is waited for
    assert_int_equal(b.step, 0);
    assert_int_equal(b.waited, 1);
    assert_true(best_see(&b, 10, 3.0));
    assert_int_equal(b.waited, 0);
    b.kept = true;
    assert_false(best_see(&b, 20, 3.0)); // as good is not better
    assert_false(best_see(&b, 30, INFINITY));
    assert_int_equal(b.step, 10);
    assert_int_equal(b.waited, 2);
    assert_true(b.kept);
    assert_true(best_see(&b, 40, 2.999));
    assert_int_equal(b.step, 40);
    assert_int_equal(b.waited, 0);
    assert_false(b.kept); // the new one is not saved yet
}

// ---------------------------------------------------------------- made losses

static double uniform(uint64_t seed, int64_t step, uint64_t what) {
    return (double)(rng_u64(seed, what, (uint64_t)step) >> 11) * 0x1p-53;
}

static double normal(uint64_t seed, int64_t step) {
    return sqrt(-2 * log(uniform(seed, step, 1) + 1e-300)) *
           cos(2 * 3.14159265358979 * uniform(seed, step, 2));
}

typedef double loss_fn(uint64_t seed, int64_t step);

static double fresh(uint64_t seed, int64_t step) { // from ln 50257 down to 3
    return 3 + 7.8 * exp(-(double)step / 150) + 0.1 * normal(seed, step);
}
static double noisy(uint64_t seed, int64_t step) { // one short sequence per step
    return 2 * exp(normal(seed, step) - 0.5);
}
static double mixed(uint64_t seed, int64_t step) { // half of the steps easy, half hard
    return uniform(seed, step, 3) < 0.5 ? 0.05 : 6;
}
static double mostly_hard(uint64_t seed, int64_t step) {
    return uniform(seed, step, 3) < 0.4 ? 0.02 : 4.5;
}
static double outliers(uint64_t seed, int64_t step) {
    return step % 7 == 0 ? 1e4 : fresh(seed, step);
}
static double spikes(uint64_t seed,
                     int64_t step) { // up by 6, back within 60 steps, again and again
    return fresh(seed, step) + (step > 400 && step % 300 < 60 ? 6 - 0.1 * (double)(step % 300) : 0);
}
static double hump(uint64_t seed, int64_t step) { // a warm-up that overshoots
    return 1.5 + (step > 20 && step < 110 ? 4 : 0) + 0.2 * normal(seed, step);
}
static double learned_by_heart(uint64_t seed, int64_t step) { // then documents not seen before
    return step < 800 ? 2 * exp(-(double)step / 60) : 1.8 + 0.3 * normal(seed, step);
}
static double huge(uint64_t seed, int64_t step) { // of sums, not of means
    return 1e6 + normal(seed, step);
}

static double jumps(uint64_t seed, int64_t step) {
    return step < 500 ? fresh(seed, step) : 9 + normal(seed, step);
}
static double climbs(uint64_t seed, int64_t step) {
    return fresh(seed, step) + (step > 500 ? 0.02 * (double)(step - 500) : 0);
}
static double absurd(uint64_t seed, int64_t step) { // from the second step on
    return step == 1 ? 5.5 : 40 + 10 * normal(seed, step);
}
static double tuned_too_hard(uint64_t seed, int64_t step) {
    return step < 40 ? 1.4 + 0.2 * normal(seed, step) : 7.5 + normal(seed, step);
}

// The step at which the run has diverged; 0: never.
static int64_t ends_at(loss_fn *loss, uint64_t seed) {
    struct loss_watch w = {0};
    for (int64_t step = 1; step <= STEPS; step++) {
        loss_watch_see(&w, step, loss(seed, step));
        if (loss_watch_diverged(&w))
            return step;
    }
    return 0;
}

static void test_sound_runs_go_on(void **state) {
    static loss_fn *const sound[] = {
        fresh, noisy, mixed, mostly_hard, outliers, spikes, hump, learned_by_heart, huge};
    (void)state;
    for (size_t i = 0; i < sizeof sound / sizeof *sound; i++)
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            const int64_t step = ends_at(sound[i], seed);
            if (step != 0)
                fail_msg("sound run %zu with seed %d was ended at step %d", i, (int)seed,
                         (int)step);
        }
}

static void test_diverged_runs_end(void **state) {
    static const struct {
        loss_fn *loss;
        int64_t from, until;
    } cases[] = {
        {jumps, 599, 620}, {climbs, 700, 800}, {absurd, 101, 115}, {tuned_too_hard, 139, 150}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            const int64_t step = ends_at(cases[i].loss, seed);
            if (step < cases[i].from || step > cases[i].until)
                fail_msg("diverged run %zu with seed %d: ended at step %d, expected %d to %d", i,
                         (int)seed, (int)step, (int)cases[i].from, (int)cases[i].until);
        }
}

// What a checkpoint holds is all that there is: a run that is interrupted anywhere ends at the same
// step. Losses that are not finite change nothing.
static void test_state_is_all(void **state) {
    (void)state;
    struct loss_watch a = {0}, b = {0};
    for (int64_t step = 1; step <= 400; step++) {
        const double loss = tuned_too_hard(1, step);
        loss_watch_see(&a, step, loss);
        const struct loss_watch saved = b;
        b = saved;
        loss_watch_see(&b, step, NAN);
        assert_memory_equal(&b, &saved, sizeof b);
        loss_watch_see(&b, step, loss);
        loss_watch_see(&b, step, INFINITY);
        assert_memory_equal(&a, &b, sizeof a);
    }
    assert_true(loss_watch_diverged(&a));
    assert_in_range(a.since, 40, 42);
    assert_int_equal(a.high, 100); // it does not grow for ever
    for (int64_t step = 401; step <= 450; step++)
        loss_watch_see(&a, step, 1.4);
    assert_int_equal(a.high, 0); // and a run that recovers is sound again
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_sound_runs_go_on),
        cmocka_unit_test(test_diverged_runs_end),
        cmocka_unit_test(test_state_is_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

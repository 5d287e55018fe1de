// test_states.c - rounds while the CPUs move: which of them count, what is said of two settings,
// and in which words.
#include "base/rng.h"
#include "tune/again.h"
#include "tune/tune_impl.h"
#include "tune/tuning.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NEAR = 43, FAR = 370, MOVED = -1, UNKNOWN = 0, BUSY = -2 };

static struct tune_setting settings[2];
static struct tune tune;
static struct rounds rounds;

static void begin(void) {
    memset(settings, 0, sizeof settings);
    for (int i = 0; i < 2; i++)
        knobs_init(&settings[i].knobs);
    tune = (struct tune){.settings = settings,
                         .n = 2,
                         .request = {.cpus = 2},
                         .policy = &tune_policy_default,
                         .chosen = -1,
                         .rival = -1};
    rounds_begin(&rounds, &tune);
    rounds.n = 2;
    rounds.seats[1].at = 1;
}

static void put(struct seat *x, int round, int apart, double cost) {
    x->cost[round] = apart == BUSY ? NAN : log(cost);
    x->moved[round] = apart == MOVED;
    x->apart_ns[round] = apart > 0 ? apart * (1 + 0.01 * (round % 5)) : NAN;
}

// Setting 1 is so many times as fast as setting 0 in this round, give or take `noise`.
static void round_of(int apart_0, int apart_1, double ratio, double noise) {
    const int k = rounds.done++;
    put(&rounds.seats[0], k, apart_0, 1 + noise * rng_normal(1, 0, (uint64_t)k));
    put(&rounds.seats[1], k, apart_1, 1 / ratio);
}

static void play(int n, int apart, double ratio, double noise) {
    for (int i = 0; i < n; i++)
        round_of(apart, apart, ratio, noise);
}

static int said(struct tune_state of[TUNE_STATES_MOST], struct contest *c) {
    return rounds_states(&rounds, 1, 0, 0.95, of, c);
}

// What is announced holds at each distance, and both are told apart.
static void test_two_states(void **state) {
    (void)state;
    struct tune_state of[TUNE_STATES_MOST];
    struct contest c;
    begin();
    play(9, NEAR, 1.041, 0.01);
    play(7, FAR, 1.189, 0.01);
    assert_int_equal(said(of, &c), 2);
    assert_int_equal(rounds_pairs(&rounds, 1, 0), 16);
    assert_true(of[0].rounds == 9 && of[0].apart_ns > 40 && of[0].apart_ns < 46);
    assert_true(of[1].rounds == 7 && of[1].apart_ns > 360 && of[1].apart_ns < 390);
    assert_true(fabs(of[0].ratio - 1.041) < 0.02 && fabs(of[1].ratio - 1.189) < 0.02);
    assert_true(of[0].low < 1.041 && 1.041 < of[0].high && of[0].high < 1.1);
    assert_true(of[1].low < 1.189 && 1.189 < of[1].high && 1.14 < of[1].low);
    assert_true(c.low == of[0].low && c.high == of[1].high);
    assert_true(of[0].ratio < c.speed_ratio && c.speed_ratio < of[1].ratio);
    assert_int_equal(c.state, CONTEST_FASTER);
    // Slower near, faster far: nothing can be said.
    begin();
    play(9, NEAR, 0.96, 0.01);
    play(20, FAR, 1.19, 0.01);
    assert_int_equal(said(of, &c), 2);
    assert_int_equal(c.state, CONTEST_UNDECIDED);
}

// Rounds in which the CPUs moved, within a visit or between two, do not count.
static void test_what_counts(void **state) {
    (void)state;
    struct tune_state of[TUNE_STATES_MOST];
    struct contest c;
    begin();
    play(8, NEAR, 1.1, 0.01);
    round_of(NEAR, FAR, 5, 0);
    round_of(MOVED, NEAR, 5, 0);
    round_of(FAR, UNKNOWN, 5, 0); // it may have been near
    round_of(BUSY, NEAR, 5, 0);
    assert_int_equal(said(of, &c), 1);
    assert_int_equal(rounds_pairs(&rounds, 1, 0), 8);
    assert_true(c.high < 1.2);
    // Two rounds are too few for a state: they are not part of what is said.
    play(2, FAR, 5, 0);
    assert_int_equal(said(of, &c), 1);
    assert_int_equal(rounds_pairs(&rounds, 1, 0), 8);
    // Where no distance is known, every round counts.
    begin();
    play(8, UNKNOWN, 1.1, 0.01);
    assert_int_equal(said(of, &c), 1);
    assert_true(of[0].rounds == 8 && isnan(of[0].apart_ns));
    // Where most visits see a move, moving is how the machine is.
    begin();
    play(6, MOVED, 1.1, 0.01);
    play(4, NEAR, 1.1, 0.01);
    assert_int_equal(said(of, &c), 1);
    assert_int_equal(of[0].rounds, 10);
}

// A setting with one thread has no distance. The other's says in which state a round was.
static void test_one_thread(void **state) {
    (void)state;
    struct tune_state of[TUNE_STATES_MOST];
    struct contest c;
    begin();
    settings[1].knobs.threads = 1;
    for (int i = 0; i < 14; i++)
        round_of(i < 7 ? NEAR : FAR, UNKNOWN, i < 7 ? 0.6 : 0.8, 0.01);
    assert_int_equal(said(of, &c), 2);
    assert_true(of[0].rounds == 7 && of[1].rounds == 7);
    assert_int_equal(c.state, CONTEST_SLOWER);
    // Threads in other places have other distances, which is no move.
    begin();
    settings[1].knobs.cpu_pin = true;
    for (int i = 0; i < 10; i++)
        round_of(FAR, NEAR, 1.1, 0.01);
    assert_int_equal(said(of, &c), 1);
    assert_int_equal(of[0].rounds, 10);
}

// A state with few rounds has a wide interval, which belongs to what is announced. In a thousand
// draws the interval of each state holds its gain as often as it says.
static void test_few_rounds(void **state) {
    (void)state;
    struct tune_state of[TUNE_STATES_MOST];
    struct contest c;
    int held = 0, draws = 0, finite = 0;
    begin();
    play(20, NEAR, 1.2, 0.02);
    play(3, FAR, 1.2, 0.02);
    assert_int_equal(said(of, &c), 2);
    assert_true(of[1].high - of[1].low > 1.5 * (of[0].high - of[0].low));
    assert_true(c.low == fmin(of[0].low, of[1].low) && c.high == fmax(of[0].high, of[1].high));
    for (uint64_t draw = 0; draw < 1000; draw++) {
        const int few = 3 + (int)(draw % 4), many = few + (int)(draw % 9);
        begin();
        for (int i = 0; i < few + many; i++) {
            const bool far = i >= many;
            const int k = rounds.done++;
            const double noise = 0.03 * rng_normal(draw, 1, (uint64_t)k);
            put(&rounds.seats[0], k, far ? FAR : NEAR, 1);
            put(&rounds.seats[1], k, far ? FAR : NEAR, exp(noise) / (far ? 1.19 : 1.04));
        }
        assert_int_equal(said(of, &c), 2);
        draws += 2;
        for (int s = 0; s < 2; s++) {
            const double gain = s ? 1.19 : 1.04;
            finite += isfinite(of[s].low);
            held += of[s].low <= gain && gain <= of[s].high;
        }
    }
    assert_true(finite >= 0.9 * draws);
    if (held < 0.94 * finite)
        fail_msg("%d of %d intervals hold the gain", held, finite);
}

// The sentences of a search that saw both.
static void test_words(void **state) {
    (void)state;
    struct tuning *t = calloc(1, sizeof *t);
    struct knobs k, other;
    double ns[40];
    assert_non_null(t);
    knobs_init(&k);
    other = k;
    other.threads = 2;
    t->base = k;
    t->request = (struct tune_request){.goal = TUNE_BULK, .time_ns = 1000000000, .cpus = 2};
    assert_int_equal(tune_again_begin(&t->tune, &k, &t->request, NULL), 0);
    assert_int_equal(tune_again_add(&t->tune, &other, STAGE_DATA, NULL), 1);
    struct tune_measured m = {.step_ns = ns, .n = 40, .joules = NAN, .busy = NAN};
    for (int i = 0; i < 40; i++)
        ns[i] = 1e6, m.wall_ns += 1000000, m.tokens += 512;
    m.split = (struct time_split){.wall_ns = m.wall_ns, .steps = 40};
    m.split.ns[TIME_MATMUL] = m.wall_ns;
    m.cpus = (struct apart){42, 390};
    for (int i = 0; i < 2; i++)
        assert_int_equal(tune_again_visit(&t->tune, i, &m, NULL), 0);
    assert_true(t->tune.settings[1].blocks[0].moved &&
                isnan(t->tune.settings[1].blocks[0].apart_ns));
    t->tune.settings[0].turns = (struct tune_turns){.rounds = 16, .ratio = 1, .tokens_per_s = 1e5};
    t->tune.settings[1].turns =
        (struct tune_turns){.rounds = 16,
                            .ratio = 1.1,
                            .low = 1.02,
                            .high = 1.21,
                            .tokens_per_s = 1.1e5,
                            .n_states = 2,
                            .states = {{43, 9, 1.041, 1.02, 1.06}, {370, 7, 1.189, 1.16, 1.21}}};
    tune_again_end(&t->tune, 1);
    t->tune.why = TUNE_WHY_FASTER;
    t->tune.rival = 1;
    t->tune.moved = 3;
    tuning_verdict(t);
    assert_non_null(strstr(t->sentences.lines, "in 9 rounds the CPUs were near each other"));
    assert_non_null(strstr(t->sentences.lines, "back in 43 ns): +4.1 % (+2.0 to +6.0)"));
    assert_non_null(strstr(t->sentences.lines, "in 7 rounds the CPUs were far apart"));
    assert_non_null(strstr(t->sentences.lines, "back in 370 ns): +18.9 % (+16.0 to +21.0)"));
    assert_non_null(strstr(t->sentences.lines, "during 3 of 2 trials"));
    // All rounds at one distance, and the search has seen another.
    t->tune.settings[1].turns.n_states = 1;
    t->tune.cpus = (struct apart){42, 390};
    t->sentences.lines[0] = '\0';
    tuning_verdict(t);
    assert_non_null(
        strstr(t->sentences.lines, "back in 43 ns; in this search it also took 390 ns"));
    // Too few rounds count, and no other program was at work.
    t->tune.chosen = 0;
    t->tune.why = TUNE_WHY_TOO_BUSY;
    t->tune.busy = 0;
    t->sentences.lines[0] = '\0';
    tuning_verdict(t);
    assert_non_null(strstr(t->sentences.lines, "the CPUs moved nearer to each other or apart too"));
    assert_null(strstr(t->sentences.lines, "nan"));
    tune_free(&t->tune);
    free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_states), cmocka_unit_test(test_what_counts),
        cmocka_unit_test(test_one_thread), cmocka_unit_test(test_few_rounds),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_tradeoffs.c - the list of strategies is sound, and rules of thumb are judged by the interval
// of each comparison's own rounds. How strategies are measured is tested with the program (bench).
#include "bench/tradeoffs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static int find(const char *name) {
    for (size_t i = 0; i < strategy_count(); i++)
        if (strcmp(strategy_at(i)->name, name) == 0)
            return (int)i;
    return -1;
}

// Each is what some recipe can do: two micro-batches of two, from files.
static void test_list(void **state) {
    struct region texts = {0};
    (void)state;
    for (size_t i = 0; i < strategy_count(); i++) {
        const struct strategy *s = strategy_at(i);
        struct knobs k;
        struct err e = {0};
        bool baseline = i == 0 || i + 1 == strategy_count();
        knobs_init(&k);
        k.batch_micro = k.batch_accum = 2;
        const int64_t tokens = knobs_samples(&k) * k.seq;
        if (strncmp(s->settings, "fuse.", 5) == 0 && knob_find("fuse.norm") < 0)
            continue; // a build without them has no such rows
        const char *settings = strategy_settings(&texts, s, 1000, 2);
        assert_non_null(settings);
        if (grid_change(&k, settings, &e) != 0)
            fail_msg("%s: %s", s->name, e.text);
        assert_int_equal(find(s->name), i);
        assert_true(s->what[0] && (baseline || s->rule[0]));
        assert_int_equal(s->settings[0] == '\0', baseline);
        assert_true(!s->against || (find(s->against) >= 0 && find(s->against) < (int)i));
        // Tokens per step stay, where the strategy is not about them.
        assert_int_equal(tokens == knobs_samples(&k) * k.seq,
                         strcmp(s->name, "twice the batch") != 0);
    }
    region_free(&texts);
}

// Parts of names that no strategy has are refused before anything is measured.
static void test_only(void **state) {
    struct err e = {0};
    (void)state;
    assert_int_equal(tradeoffs_check_only(NULL, &e), 0);
    assert_int_equal(tradeoffs_check_only("recompute, zero 1,UNFUSED", &e), 0);
    assert_int_equal(tradeoffs_check_only("recompute,no such thing", &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "'no such thing'"));
    assert_int_equal(tradeoffs_check_only(" , ,", &e), ERR_USAGE);
    assert_int_equal(tradeoffs_check_only("", &e), ERR_USAGE);
}

// ---------------------------------------------------------------- judging

enum { ROUNDS = 5 };

struct world {
    struct tradeoffs t;
    struct bench_row rows[3];
    struct grid_setting settings[3];
    struct finding findings[3];
    struct bench_round rounds[3][ROUNDS];
};

static void fill_row(struct world *w, int i, const double speed[ROUNDS], uint64_t bytes) {
    struct bench_row *r = &w->rows[i];
    r->rounds = w->rounds[i];
    r->n_rounds = ROUNDS;
    for (int n = 0; n < ROUNDS; n++)
        r->rounds[n] = (struct bench_round){speed[n], 1000 / speed[n], (double)bytes};
    r->sum.memory_measured_bytes = bytes;
    r->sum.tokens = 1000;
    r->sum.steps = 10;
    r->loss_last = 2;
}

static const struct range any = {0, INFINITY}, faster = {1, INFINITY}, slower = {0, 1},
                          same = {0.95, 1.05}, twice = {1.6, 2.5};

// A strategy with a rule, its rounds, and those of the baseline.
static struct finding judge_with(struct range speed, struct range memory,
                                 const double rounds[ROUNDS], uint64_t bytes,
                                 const double baseline[ROUNDS], double others) {
    static struct world w;
    static struct strategy strategies[3] = {
        {.name = "baseline", .settings = "", .rule = "", .what = "x"},
        {.name = "it", .settings = "seq=1", .rule = "a rule", .what = "x"},
        {.name = "baseline again", .settings = "", .rule = "", .what = "x"}};
    static const double loud[ROUNDS] = {100, 130, 75, 100, 100};
    memset(&w, 0, sizeof w);
    strategies[1].speed = speed;
    strategies[1].memory = memory;
    for (int i = 0; i < 3; i++) {
        w.settings[i] = (struct grid_setting){strategies[i].name, ""};
        w.findings[i].strategy = &strategies[i];
    }
    fill_row(&w, 0, baseline, 1000000);
    fill_row(&w, 1, rounds, bytes);
    fill_row(&w, 2, loud, 1001000); // another row's noise must not matter
    w.rows[1].sum.others =
        (struct others){.seconds = 10, .waited = others, .cpus = 2 * others, .of_cpus = 2};
    w.t.bench.rows = w.rows;
    w.t.settings = w.settings;
    w.t.findings = w.findings;
    grid_from_list(&w.t.grid, w.settings, 3);
    w.t.bench.grid = &w.t.grid;
    tradeoffs_judge(&w.t);
    return w.findings[1];
}

static struct finding judge(struct range speed, struct range memory, const double rounds[ROUNDS],
                            uint64_t bytes) {
    static const double plain[ROUNDS] = {100, 101, 99, 100, 100};
    return judge_with(speed, memory, rounds, bytes, plain, 0);
}

static void test_judging(void **state) {
    (void)state;
    static const double quiet[] = {100, 101, 99, 100, 100}, loud[] = {100, 130, 75, 105, 90};
    static const double fast[] = {120, 118, 121, 119, 125}, slow[] = {80, 82, 78, 81, 79};
    static const double mixed[] = {130, 90, 99, 119, 105};
    struct finding f = judge(faster, any, fast, 1000000);
    assert_int_equal(f.agreement, RULE_HOLDS);
    assert_true(f.speed.low > 1.15 && f.speed.low < 1.2 && f.speed.high > 1.2 &&
                f.speed.high < 1.26);
    f = judge(slower, any, fast, 1000000);
    assert_int_equal(f.agreement, RULE_DIFFERS);
    assert_non_null(strstr(f.text, "faster here: 1.20x ("));
    assert_non_null(strstr(f.text, "), not slower"));
    // Rounds that contradict each other.
    f = judge(slower, any, mixed, 1000000);
    assert_int_equal(f.agreement, RULE_UNSEEN);
    assert_non_null(strstr(f.text, "no measurable difference in speed ("));
    assert_int_equal(judge(same, any, slow, 1000000).agreement, RULE_DIFFERS);
    assert_int_equal(judge(slower, slower, slow, 700000).agreement, RULE_HOLDS);
    // The same speed: said by rounds that lie together, not by rounds that lie apart.
    assert_int_equal(judge(same, any, quiet, 1000000).agreement, RULE_HOLDS);
    assert_int_equal(judge(same, any, loud, 1000000).agreement, RULE_UNSEEN);
    f = judge(slower, slower, slow, 1200000);
    assert_int_equal(f.agreement, RULE_DIFFERS);
    assert_non_null(strstr(f.text, "more memory here: 1.20x (1.19x to 1.21x), not less memory"));
    f = judge(slower, slower, slow, 1001000);
    assert_int_equal(f.agreement, RULE_UNSEEN);
    assert_string_equal(f.text, "no measurable difference in memory (0.99x to 1.01x)");
    assert_int_equal(judge(slower, any, slow, 700000).agreement, RULE_HOLDS);
}

// A difference is seen in a comparison's own rounds, however much another row varies, and though
// the machine itself becomes slower from round to round.
static void test_own_noise(void **state) {
    (void)state;
    static const double base[] = {100, 90, 70, 55, 60}, third[] = {32, 30, 22, 18, 19};
    struct finding f = judge_with(slower, any, third, 1000000, base, 0);
    assert_int_equal(f.agreement, RULE_HOLDS);
    assert_true(f.speed.high < 0.35);
    assert_string_equal(f.busy, "");
    f = judge_with(slower, any, third, 1000000, base, 0.3);
    assert_non_null(strstr(f.busy, "other programs used 0.6 of 2 CPUs"));
}

// Rounds are compared with the visits beside them, not with the other row's own rounds.
static void test_beside(void **state) {
    (void)state;
    struct bench_round own[4] = {{50, 20, 1}, {60, 17, 1}, {40, 25, 1}, {55, 18, 1}};
    struct bench_round beside[4] = {
        {100, 10, 2}, {120, 8, 2}, {80, 12, 2}, {0, 0, 0}}; // one failed
    struct bench_round elsewhere[4] = {{20, 50, 2}, {200, 5, 2}, {80, 12, 2}, {90, 11, 2}};
    const struct bench_row row = {.rounds = own, .n_rounds = 4, .beside = beside},
                           to = {.rounds = elsewhere, .n_rounds = 4};
    const struct ratio r = bench_ratio(&row, &to, BENCH_SPEED);
    assert_true(fabs(r.median - 0.5) < 1e-9 && fabs(r.low - 0.5) < 1e-9);
    assert_true(fabs(bench_ratio(&row, &to, BENCH_MEMORY).high - 0.5) < 1e-9);
}

// A rule that names a factor is not met by the direction alone.
static void test_factors(void **state) {
    (void)state;
    static const double little[] = {129, 130, 128, 129, 129}, two[] = {200, 205, 195, 202, 198};
    static const double between[] = {165, 150, 170, 160, 175}, none[] = {100, 101, 100, 99, 100};
    struct finding f = judge(twice, any, little, 1000000);
    assert_int_equal(f.agreement, RULE_DIFFERS);
    assert_non_null(strstr(f.text, "faster here: 1.29x ("));
    assert_non_null(strstr(f.text, "), not 1.60x to 2.50x"));
    assert_int_equal(judge(twice, any, two, 1000000).agreement, RULE_HOLDS);
    f = judge(twice, any, between, 1000000);
    assert_int_equal(f.agreement, RULE_UNSEEN);
    assert_non_null(strstr(f.text, "where the rule says 1.60x to 2.50x"));
    f = judge(twice, any, none, 1000000);
    assert_int_equal(f.agreement, RULE_DIFFERS);
    assert_non_null(strstr(f.text, "no measurable difference in speed"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),    cmocka_unit_test(test_only),
        cmocka_unit_test(test_judging), cmocka_unit_test(test_own_noise),
        cmocka_unit_test(test_beside),  cmocka_unit_test(test_factors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

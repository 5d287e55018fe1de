// test_tradeoffs.c - the list of strategies is sound, and rules of thumb are judged only by
// differences above the noise. How strategies are measured is tested with the program (bench).
#include "bench/tradeoffs.h"

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
    (void)state;
    for (size_t i = 0; i < strategy_count(); i++) {
        const struct strategy *s = strategy_at(i);
        struct knobs k;
        struct err e = {0};
        char settings[256];
        const char *mark = strstr(s->settings, "{rate}");
        bool baseline = i == 0 || i + 1 == strategy_count();
        knobs_init(&k);
        k.batch_micro = k.batch_accum = 2;
        snprintf(settings, sizeof settings, "%.*s%s%s",
                 mark ? (int)(mark - s->settings) : (int)strlen(s->settings), s->settings,
                 mark ? "1000" : "", mark ? mark + 6 : "");
        int64_t tokens = k.batch_micro * k.batch_accum * k.seq;
        if (strncmp(s->settings, "fuse.", 5) == 0 && knob_find("fuse.norm") < 0)
            continue; // a build without them has no such rows
        if (grid_change(&k, settings, &e) != 0)
            fail_msg("%s: %s", s->name, e.text);
        assert_int_equal(find(s->name), i);
        assert_true(s->what[0] && (baseline || s->rule[0]));
        assert_int_equal(s->settings[0] == '\0', baseline);
        assert_true(!s->against || (find(s->against) >= 0 && find(s->against) < (int)i));
        // Tokens per step stay, where the strategy is not about them.
        assert_int_equal(tokens == k.batch_micro * k.batch_accum * k.seq,
                         strcmp(s->name, "twice the batch") != 0);
    }
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
        r->rounds[n] = (struct bench_round){speed[n], 1000 / speed[n]};
    r->sum.memory_measured_bytes = bytes;
    r->sum.tokens = 1000;
    r->sum.steps = 10;
    r->loss_last = 2;
}

// A strategy with rule (speed, memory), its rounds, and the baseline's second visits.
static struct finding judge(int speed, int memory, const double rounds[ROUNDS], uint64_t bytes,
                            const double again[ROUNDS]) {
    static struct world w;
    static struct strategy strategies[3] = {
        {.name = "baseline", .settings = "", .rule = "", .what = "x"},
        {.name = "it", .settings = "seq=1", .rule = "a rule", .what = "x"},
        {.name = "baseline again", .settings = "", .rule = "", .what = "x"}};
    static const double plain[ROUNDS] = {100, 100, 100, 100, 100};
    memset(&w, 0, sizeof w);
    strategies[1].speed = speed;
    strategies[1].memory = memory;
    for (int i = 0; i < 3; i++) {
        w.settings[i] = (struct grid_setting){strategies[i].name, ""};
        w.findings[i].strategy = &strategies[i];
    }
    fill_row(&w, 0, plain, 1000000);
    fill_row(&w, 1, rounds, bytes);
    fill_row(&w, 2, again, 1001000);
    w.t.bench.rows = w.rows;
    w.t.settings = w.settings;
    w.t.findings = w.findings;
    grid_from_list(&w.t.grid, w.settings, 3);
    w.t.bench.grid = &w.t.grid;
    tradeoffs_judge(&w.t);
    return w.findings[1];
}

static void test_judging(void **state) {
    (void)state;
    static const double quiet[] = {100, 101, 99, 100, 100}, loud[] = {100, 130, 75, 100, 100};
    static const double fast[] = {120, 118, 121, 119, 125}, slow[] = {80, 82, 78, 81, 79};
    static const double mixed[] = {120, 118, 99, 119, 125};
    struct finding f = judge(1, 0, fast, 1000000, quiet);
    assert_int_equal(f.agreement, RULE_HOLDS);
    assert_true(f.speed.median == 1.2 && f.speed.low == 1.18 && f.speed.high == 1.25);
    f = judge(-1, 0, fast, 1000000, quiet);
    assert_int_equal(f.agreement, RULE_DIFFERS);
    assert_non_null(strstr(f.text, "faster here (1.20x), not slower"));
    // The same figures on a machine whose baseline differs from itself by more.
    f = judge(-1, 0, fast, 1000000, loud);
    assert_int_equal(f.agreement, RULE_UNSEEN);
    assert_non_null(strstr(f.text, "noise 30 %"));
    // A single round that says otherwise.
    assert_int_equal(judge(-1, 0, mixed, 1000000, quiet).agreement, RULE_UNSEEN);
    assert_int_equal(judge(0, 0, slow, 1000000, quiet).agreement, RULE_DIFFERS);
    assert_int_equal(judge(-1, -1, slow, 700000, quiet).agreement, RULE_HOLDS);
    // The same speed: said by a quiet machine, not by a loud one.
    assert_int_equal(judge(0, 0, quiet, 1000000, quiet).agreement, RULE_HOLDS);
    assert_int_equal(judge(0, 0, quiet, 1000000, loud).agreement, RULE_UNSEEN);
    f = judge(-1, -1, slow, 1200000, quiet);
    assert_int_equal(f.agreement, RULE_DIFFERS);
    assert_non_null(strstr(f.text, "more memory here (1.20x), not less memory"));
    assert_int_equal(judge(-1, -1, slow, 1001000, quiet).agreement, RULE_UNSEEN);
    assert_int_equal(judge(-1, RULE_IS_SILENT, slow, 700000, quiet).agreement, RULE_HOLDS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_judging),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_tune_print.c - a search in the terminal: which rows the table for people has and in which
// order, that each setting that looks better than the choice has a reason, the trade with its
// budgets, and the members for programs.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "report/tune_print.h"
#include "report/tune_words.h"
#include "tune/again.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *printed(const struct tuning *t, enum table_format format) {
    char *out = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&out, &bytes);
    assert_non_null(f);
    tune_print(t, format, f);
    assert_int_equal(fclose(f), 0);
    return out;
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what))
        n++;
    return n;
}

static void visit(struct tune *t, int i, double ms, size_t n) {
    double *ns = calloc(n, sizeof *ns);
    assert_non_null(ns);
    const struct knobs *k = &t->settings[i].knobs;
    struct tune_measured m = {.step_ns = ns, .n = n, .joules = NAN, .busy = NAN};
    for (size_t s = 0; s < n; s++)
        ns[s] = 1e6 * ms;
    m.wall_ns = (uint64_t)(1e6 * ms * (double)n);
    m.tokens = n * (uint64_t)(k->batch_micro * k->batch_accum * k->seq);
    assert_int_equal(tune_again_visit(t, i, &m, NULL), 0);
    t->settings[i].need_bytes = 100u << 20;
    t->settings[i].have_bytes = 150u << 20;
    free(ns);
}

// As given (1024 tokens per step, 1000 tokens/s in turns) and settings with other threads, which
// were glanced at: setting i has steps of ms[i].
static struct tuning *search(const double *ms, int n, size_t steps) {
    struct tuning *t = calloc(1, sizeof *t);
    assert_non_null(t);
    struct knobs k;
    knobs_init(&k);
    k.batch_micro = 4, k.batch_accum = 4, k.seq = 64;
    t->request = (struct tune_request){.goal = TUNE_BULK, .time_ns = 1000000000, .cpus = 2};
    assert_int_equal(tune_again_begin(&t->tune, &k, &t->request, NULL), 0);
    for (int i = 0; i < n; i++) {
        char threads[16];
        snprintf(threads, sizeof threads, "%d", i + 1);
        if (i > 0)
            assert_int_equal(knobs_set_at(&k, KNOB_threads, threads, SET_BY_TUNER, NULL), 0);
        assert_int_equal(tune_again_add(&t->tune, &k, STAGE_SPLIT, NULL), i);
        visit(&t->tune, i, ms[i], steps);
    }
    t->tune.settings[0].turns = (struct tune_turns){
        .rounds = 14, .ratio = 1, .low = NAN, .high = NAN, .tokens_per_s = 1000};
    return t;
}

static void end(struct tuning *t) {
    tune_free(&t->tune);
    free(t);
}

static const double all_ms[20] = {1000, 900, 800, 700, 600, 500, 480, 470, 460, 450,
                                  440,  430, 420, 410, 400, 390, 380, 370, 360, 350};

static void test_order(void **state) {
    (void)state;
    static const char *const rows[] = {"| chosen   | threads=4 ",  "| in turns | as given ",
                                       "| in turns | threads=3 ",  "| in turns | threads=2 ",
                                       "| glance   | threads=20 ", "| glance   | threads=19 "};
    struct tuning *t = search(all_ms, 20, 20);
    t->tune.settings[1].turns = (struct tune_turns){
        .rounds = 9, .ratio = 0.97, .low = 0.95, .high = 0.99, .tokens_per_s = 970};
    // These rounds were earlier than those of the choice, when the machine was half as fast.
    t->tune.settings[2].turns = (struct tune_turns){
        .rounds = 9, .ratio = 1.05, .low = 1.02, .high = 1.08, .tokens_per_s = 525};
    t->tune.settings[3].turns = (struct tune_turns){
        .rounds = 14, .ratio = 1.031, .low = 1.010, .high = 1.052, .tokens_per_s = 1031};
    t->tune.settings[19].outcome = TUNE_SLOWER;
    snprintf(t->tune.settings[19].reason, TUNE_TEXT_BYTES, "46.8 %% slower than the best then");
    tune_again_end(&t->tune, 3);
    t->tune.why = TUNE_WHY_FASTER;
    char *out = printed(t, TABLE_MARKDOWN);
    const char *at = out;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!(at = strstr(at, rows[i])))
            fail_msg("not there, or not in its place: %s\n%s", rows[i], out);
    assert_int_equal(count(out, "+3.1 % (+1.0 to +5.2) |"), 2);           // the table and the trade
    assert_non_null(strstr(out, "|     1050 | +5.0 % (+2.0 to +8.0) |")); // on the same base
    assert_int_equal(count(out, "| glance "), 15 - 4);
    assert_non_null(strstr(out, "5 more were measured: the page and --output csv list them"));
    assert_int_equal(count(out, "a glance of 7.0 s (n=20), not run in turns"), 1);
    assert_non_null(strstr(out, "| 46.8 % slower than the best then; a glance of")); // said once
    assert_null(strstr(out, "slower: "));
    assert_non_null(strstr(out, "not surely better than the choice"));
    assert_non_null(strstr(out,
                           "17 settings look faster than the choice and were not taken: 16 only "
                           "glanced at, not run in turns, 1 not surely better"));
    // All rows that look faster have a reason.
    for (int i = 0; i < 20; i++) {
        char why[TUNE_WORDS_BYTES];
        assert_true(!tune_looks_better(&t->tune, i) || tune_reason(why, &t->tune, i)[0]);
    }
    free(out);
    out = printed(t, TABLE_CSV);
    assert_int_equal(count(out, "\n"), 21);
    assert_non_null(strstr(out, "mark,setting,tokens/s,p50 ms,p99 ms,ms/sample,memory,steps,"
                                "J/token,why,rounds,ratio,ratio low,ratio high\n"));
    assert_non_null(strstr(out, ",14,1.0310,1.0100,1.0520\n"));
    free(out);
    end(t);
}

// Glances that hardly differ share a row.
static void test_alike(void **state) {
    (void)state;
    static const double ms[5] = {1000, 500, 501, 502, 300};
    struct tuning *t = search(ms, 5, 400);
    tune_again_end(&t->tune, 0);
    t->tune.why = TUNE_WHY_ALONE;
    char *out = printed(t, TABLE_MARKDOWN);
    assert_int_equal(count(out, "| glance "), 2);
    assert_int_equal(count(out, "; 2 more like it"), 1);
    assert_null(strstr(out, "? =")); // enough steps everywhere
    assert_null(strstr(out, "the trade"));
    free(out);
    end(t);
}

// Every budget has a row, whatever was chosen, and the question mark is explained where it stands.
static void test_trade(void **state) {
    (void)state;
    static const double ms[2] = {1000, 500};
    struct tuning *t = search(ms, 2, 30);
    t->tune.settings[1].turns = (struct tune_turns){
        .rounds = 14, .ratio = 2, .low = 1.9, .high = 2.1, .tokens_per_s = 2000};
    t->tune.settings[0].need_bytes = 400u << 20;
    t->base.memory = 200u << 20;
    t->tune.request.goal = TUNE_HYBRID;
    t->tune.request.respond_ns = 100000000;
    t->tune.request.limit_ns[TUNE_P50] = 600000000;
    t->tune.request.limit_ns[TUNE_P95] = 700000000;
    t->tune.request.limit_ns[TUNE_P99] = 800000000;
    t->tune.request.joules_per_token = 0.5;
    for (int chosen = 1; chosen >= 0; chosen--) {
        tune_again_end(&t->tune, chosen);
        t->tune.why = chosen ? TUNE_WHY_NEEDED : TUNE_WHY_EQUAL;
        char *out = printed(t, TABLE_MARKDOWN);
        const char *trade = strstr(out, "| the trade");
        assert_non_null(trade);
        assert_int_equal(count(trade, "at most "), 5);
        assert_non_null(strstr(trade, chosen ? "| at most 600 ms | kept, 95 % sure; as given: over"
                                             : "| at most 600 ms | over"));
        assert_non_null(strstr(trade, chosen ? "| at most 800 ms | kept, not proven; as given: over"
                                             : "| at most 800 ms | over"));
        assert_non_null(strstr(trade, "| at most 100 ms | over")); // of a request
        assert_non_null(strstr(trade, chosen ? "|     200.00 MiB | kept; as given: over"
                                             : "|     200.00 MiB | over"));
        assert_non_null(strstr(trade, "|  at most 0.5 J | not known"));
        assert_int_equal(count(trade, "? = too few"), 1);
        assert_int_equal(count(trade, "latency of a sample: its micro-batch's time"), 1);
        free(out);
    }
    end(t);
}

static void test_json(void **state) {
    (void)state;
    static const double ms[3] = {1000, 500, 400};
    struct tuning *t = search(ms, 3, 30);
    t->tune.settings[1].turns = (struct tune_turns){
        .rounds = 14, .ratio = 2, .low = 1.5, .high = 2.5, .tokens_per_s = 2000};
    t->tune.settings[1].turns.n_states = 2;
    t->tune.settings[1].turns.states[0] = (struct tune_state){43, 9, 1.6, 1.5, 1.7};
    t->tune.settings[1].turns.states[1] = (struct tune_state){370, 5, 2.4, 2.3, 2.5};
    t->tune.cpus = (struct apart){42, 390};
    t->tune.rival = 1;
    t->tune.busy = 3, t->tune.moved = 2;
    tune_again_end(&t->tune, 1);
    t->tune.why = TUNE_WHY_FASTER;
    char *out = printed(t, TABLE_JSONL);
    assert_non_null(strstr(out, "\"why\":\"faster\",\"rival\":\"threads=2\",\"gain\":{\"ratio\":2,"
                                "\"low\":1.5,\"high\":2.5,\"rounds\":14,\"states\":[{"
                                "\"apart_ns\":43,\"rounds\":9,\"ratio\":1.6,\"low\":1.5,"
                                "\"high\":1.7},{\"apart_ns\":370,\"rounds\":5,\"ratio\":2.4,"
                                "\"low\":2.3,\"high\":2.5}]},\"busy_visits\":3,"
                                "\"moved_visits\":2,\"apart_ns\":{\"least\":42,\"most\":390}"));
    assert_int_equal(count(out, "\"in_turns\":{\"ratio\":2,"), 2); // the choice, and in the list
    assert_int_equal(count(out, "\"in_turns\":null"), 1);
    free(out);
    t->tune.why = TUNE_WHY_TOO_BUSY;
    t->tune.chosen = 0;
    out = printed(t, TABLE_JSONL);
    assert_non_null(strstr(out, "\"why\":\"too busy\",\"rival\":\"threads=2\",\"gain\":null"));
    free(out);
    end(t);
    t = calloc(1, sizeof *t); // the search did not begin
    assert_non_null(t);
    t->tune.chosen = -1;
    out = printed(t, TABLE_JSONL);
    assert_non_null(strstr(out, "\"why\":\"none\",\"rival\":null,\"gain\":null"));
    free(out);
    end(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_alike),
        cmocka_unit_test(test_trade),
        cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

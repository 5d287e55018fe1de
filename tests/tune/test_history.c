// test_history.c - a search and its store: what is taken from earlier rows, and what a failed
// search leaves behind.
#include "../store/scratch.h"

#include "tune/again.h"
#include "tune/history.h"
#include "tune/stored.h"

#include <sqlite3.h>

static const struct tune_order first_look = {.steps = 400, .first = true};

struct search {
    struct history history;
    struct tune tune;
    struct knobs base;
};

static struct search *open_search(void) {
    struct search *s = calloc(1, sizeof *s);
    struct store_tuning row = {.goal = "bulk", .budgets = "{}", .key = "k"};
    struct err e = {0};
    assert_non_null(s);
    knobs_init(&s->base);
    struct history *h = &s->history;
    strcpy(h->key, "k");
    s->tune.chosen = -1;
    h->tune = &s->tune;
    h->store = scratch_store(STORE_WRITE);
    assert_int_equal(store_tuning_begin(h->store, &row, &h->id, &e), 0);
    return s;
}

static void close_search(struct search *s) {
    history_close(&s->history);
    free(s);
}

static void add_row(struct search *s, const struct knobs *k, double wall_s, int64_t tokens) {
    static const double step_ns[] = {1e6, 2e6, 1.5e6};
    char setting[HASH_TEXT_BYTES];
    struct store_trial row = scratch_trial(3);
    struct err e = {0};
    assert_int_equal(store_setting(k, setting, &e), 0);
    row.key = s->history.key;
    row.setting = setting;
    row.tuning = s->history.id;
    row.wall_s = wall_s;
    row.tokens = tokens;
    row.split.ms[TIME_MATMUL] = wall_s;
    row.memory_measured_bytes = -7;
    row.apart_least_ns = 44, row.apart_most_ns = 380;
    row.knobs = "";
    assert_int_equal(store_trial_add(s->history.store, &row, step_ns, 3, NULL, &e), 0);
}

static void a_row_without_a_speed_is_left(void **state) {
    (void)state;
    static const struct {
        double wall_s;
        int64_t tokens;
    } bad[] = {{NAN, 64}, {INFINITY, 64}, {-1, 64}, {0, 64}, {1e300, 64}, {1, 0}, {1, -64}};
    struct search *s = open_search();
    struct tune_measured m = {0};
    struct err e = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        add_row(s, &s->base, bad[i].wall_s, bad[i].tokens);
    assert_int_equal(history_recall(&s->history, &s->base, &first_look, &m, &e), 0);
    assert_int_equal(m.n, 0);
    add_row(s, &s->base, 0.004, 96);
    assert_int_equal(history_recall(&s->history, &s->base, &first_look, &m, &e), 0);
    assert_int_equal(m.n, 3);
    assert_true(m.reused && m.tokens == 96 && m.wall_ns == 4000000 && m.memory_bytes == 0);
    assert_int_equal(m.split.steps, 3);
    free(m.step_ns);
    m = (struct tune_measured){0};
    // Each row is used once.
    assert_int_equal(history_recall(&s->history, &s->base, &first_look, &m, &e), 0);
    assert_int_equal(m.n, 0);
    close_search(s);
}

struct seen {
    enum store_state state;
    char verdict[32];
};

static int see(void *arg, const struct store_tuning *t) {
    struct seen *seen = arg;
    seen->state = t->state;
    snprintf(seen->verdict, sizeof seen->verdict, "%s", t->verdict);
    return 0;
}

static void a_search_that_failed_can_be_continued(void **state) {
    (void)state;
    static const struct {
        int rc;
        enum store_state state;
    } cases[] = {{0, TUNING_DONE}, {ERR_STOPPED, TUNING_STOPPED}, {ERR_IO, TUNING_STOPPED}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct search *s = open_search();
        struct err e = {0};
        struct seen seen = {.state = TUNING_RUNNING};
        history_finish(&s->history, cases[i].rc, "fast\nlean");
        assert_int_equal(s->history.unrecorded.code, 0);
        assert_int_equal(store_tunings(s->history.store, s->history.id, NULL, see, &seen, &e), 0);
        assert_int_equal(seen.state, cases[i].state);
        assert_string_equal(seen.verdict, "fast\nlean");
        close_search(s);
    }
}

// How far the CPUs were from each other, in a trial and in the rounds, comes back from the store.
static void distances_of_cpus_come_back(void **state) {
    (void)state;
    struct search *s = open_search();
    const struct tune_request r = {.goal = TUNE_BULK, .cpus = 2};
    const struct tune_state states[] = {{43, 9, 1.04, 1.02, 1.06}, {370, 7, 1.19, NAN, NAN}};
    struct stored stored;
    struct tune_measured m = {0};
    struct err e = {0};
    add_row(s, &s->base, 0.004, 96);
    assert_int_equal(history_recall(&s->history, &s->base, &first_look, &m, &e), 0);
    assert_true(m.cpus.least_ns == 44 && m.cpus.most_ns == 380);
    free(m.step_ns);
    assert_int_equal(tune_again_begin(&s->tune, &s->base, &r, &e), 0);
    struct tune_turns *x = &s->tune.settings[0].turns;
    *x = (struct tune_turns){.rounds = 16, .ratio = 1.1, .low = 1.02, .high = 1.2};
    x->tokens_per_s = 1000, x->n_states = 2;
    memcpy(x->states, states, sizeof states);
    s->tune.cpus = (struct apart){42, 390};
    s->tune.moved = 3;
    history_finish(&s->history, 0, "fast");
    assert_int_equal(s->history.unrecorded.code, 0);
    tune_free(&s->tune);
    close_search(s);
    if (stored_open(&stored, "last", scratch_db, &e) != 0)
        fail_msg("%s", e.text);
    const struct tune_turns *y = &stored.tune.settings[0].turns;
    assert_int_equal(y->n_states, 2);
    assert_memory_equal(&y->states[0], &states[0], sizeof states[0]);
    assert_true(y->states[1].apart_ns == 370 && y->states[1].rounds == 7 &&
                isnan(y->states[1].low));
    assert_true(stored.tune.cpus.least_ns == 42 && stored.tune.cpus.most_ns == 390);
    assert_int_equal(stored.tune.moved, 3);
    assert_true(stored.tune.settings[0].blocks[0].moved);
    stored_close(&stored);
}

// Rounds of finalists are compared pair by pair, so a round of another length or of another search
// is not used.
static void a_round_is_of_this_search_and_as_long(void **state) {
    (void)state;
    const struct tune_order longer = {.steps = 4, .fresh = true},
                            same = {.steps = 3, .fresh = true};
    struct search *s = open_search();
    struct tune_measured m = {0};
    struct err e = {0};
    add_row(s, &s->base, 0.004, 96);
    const int64_t own = s->history.id;
    s->history.id = own + 1;
    assert_int_equal(history_recall(&s->history, &s->base, &same, &m, &e), 0);
    assert_int_equal(m.n, 0);
    s->history.id = own;
    assert_int_equal(history_recall(&s->history, &s->base, &longer, &m, &e), 0);
    assert_int_equal(m.n, 0);
    assert_int_equal(history_recall(&s->history, &s->base, &same, &m, &e), 0);
    assert_int_equal(m.n, 3);
    free(m.step_ns);
    close_search(s);
}

// A second trial of a setting, made because the first may have met a busy machine, is not taken
// from another search.
static void a_second_look_is_not_of_another_search(void **state) {
    (void)state;
    const struct tune_order second_look = {.steps = 400};
    struct search *s = open_search();
    struct tune_measured m = {0};
    struct err e = {0};
    add_row(s, &s->base, 0.004, 96);
    s->history.id++;
    assert_int_equal(history_recall(&s->history, &s->base, &second_look, &m, &e), 0);
    assert_int_equal(m.n, 0);
    assert_int_equal(history_recall(&s->history, &s->base, &first_look, &m, &e), 0);
    assert_int_equal(m.n, 3);
    free(m.step_ns);
    close_search(s);
}

static void what_cannot_be_read_is_measured(void **state) {
    (void)state;
    struct search *s = open_search();
    struct tune_measured m = {0};
    struct err e = {0};
    sqlite3 *db;
    add_row(s, &s->base, 0.004, 96);
    assert_int_equal(sqlite3_open(scratch_db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "UPDATE sample SET step_ns = x'0011'", NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(history_recall(&s->history, &s->base, &first_look, &m, &e), 0);
    assert_true(m.n == 0 && m.step_ns == NULL && s->history.unread.code != 0);
    add_row(s, &s->base, 0.004, 96);
    assert_int_equal(history_recall(&s->history, &s->base, &first_look, &m, &e), 0);
    assert_int_equal(m.n, 3);
    free(m.step_ns);
    close_search(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_open, scratch_close)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_row_without_a_speed_is_left),         TEST(a_round_is_of_this_search_and_as_long),
        TEST(a_search_that_failed_can_be_continued), TEST(a_second_look_is_not_of_another_search),
        TEST(what_cannot_be_read_is_measured),       TEST(distances_of_cpus_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// A search and its store: what is taken from earlier rows, and what is left behind by a search that failed.
#include "../store/scratch.h"

#include "api/tune.h"
#include "base/text.h"
#include "haggle.h"

#include <sqlite3.h>

static const struct tune_order first_look = {.steps = 400, .first = true};

static struct tuning *open_tuning(void) {
    struct tuning *t = calloc(1, sizeof *t);
    struct store_tuning row = {.goal = "bulk", .budgets = "{}", .key = "k"};
    struct err e = {0};
    assert_non_null(t);
    knobs_init(&t->base);
    strcpy(t->key, "k");
    t->tune.chosen = -1;
    t->store = scratch_store(STORE_WRITE);
    assert_int_equal(store_tuning_begin(t->store, &row, &t->id, &e), 0);
    return t;
}

static void close_tuning(struct tuning *t) {
    store_close(t->store);
    free(t->used);
    free(t);
}

static void add_row(struct tuning *t, const struct knobs *k, double wall_s, int64_t tokens) {
    static const double step_ns[] = {1e6, 2e6, 1.5e6};
    char setting[HASH_TEXT_BYTES];
    struct store_trial row = scratch_trial(3);
    struct err e = {0};
    assert_int_equal(store_setting(k, setting, &e), 0);
    row.key = t->key;
    row.setting = setting;
    row.tuning = t->id;
    row.wall_s = wall_s;
    row.tokens = tokens;
    row.split.ms[TIME_MATMUL] = wall_s;
    row.memory_measured_bytes = -7;
    assert_int_equal(store_trial_add(t->store, &row, step_ns, 3, NULL, &e), 0);
}

static void a_row_without_a_speed_is_left(void **state) {
    (void)state;
    static const struct {
        double wall_s;
        int64_t tokens;
    } bad[] = {{NAN, 64}, {INFINITY, 64}, {-1, 64}, {0, 64}, {1e300, 64}, {1, 0}, {1, -64}};
    struct tuning *t = open_tuning();
    struct tune_measured m = {0};
    struct err e = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        add_row(t, &t->base, bad[i].wall_s, bad[i].tokens);
    assert_int_equal(tune_store_recall(t, &t->base, &first_look, &m, &e), 0);
    assert_int_equal(m.n, 0);
    add_row(t, &t->base, 0.004, 96);
    assert_int_equal(tune_store_recall(t, &t->base, &first_look, &m, &e), 0);
    assert_int_equal(m.n, 3);
    assert_true(m.reused && m.tokens == 96 && m.wall_ns == 4000000 && m.memory_bytes == 0);
    assert_int_equal(m.split.steps, 3);
    free(m.step_ns);
    m = (struct tune_measured){0};
    assert_int_equal(tune_store_recall(t, &t->base, &first_look, &m, &e), 0); // once each
    assert_int_equal(m.n, 0);
    close_tuning(t);
}

static int see_state(void *arg, const struct store_tuning *t) {
    *(enum store_state *)arg = t->state;
    return 0;
}

static void a_search_that_failed_can_be_continued(void **state) {
    (void)state;
    static const struct {
        int rc;
        enum store_state state;
    } cases[] = {{0, TUNING_DONE}, {ERR_STOPPED, TUNING_STOPPED}, {ERR_IO, TUNING_STOPPED}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tuning *t = open_tuning();
        struct err e = {0};
        enum store_state seen = TUNING_RUNNING;
        tune_store_finish(t, cases[i].rc);
        assert_int_equal(t->unrecorded.code, 0);
        assert_int_equal(store_tunings(t->store, t->id, NULL, see_state, &seen, &e), 0);
        assert_int_equal(seen, cases[i].state);
        close_tuning(t);
    }
}

// Rounds of finalists are paired: one of another length, or of another search, is none.
static void a_round_is_of_this_search_and_as_long(void **state) {
    (void)state;
    const struct tune_order longer = {.steps = 4, .fresh = true},
                            same = {.steps = 3, .fresh = true};
    struct tuning *t = open_tuning();
    struct tune_measured m = {0};
    struct err e = {0};
    add_row(t, &t->base, 0.004, 96);
    const int64_t own = t->id;
    t->id = own + 1;
    assert_int_equal(tune_store_recall(t, &t->base, &same, &m, &e), 0);
    assert_int_equal(m.n, 0);
    t->id = own;
    assert_int_equal(tune_store_recall(t, &t->base, &longer, &m, &e), 0);
    assert_int_equal(m.n, 0);
    assert_int_equal(tune_store_recall(t, &t->base, &same, &m, &e), 0);
    assert_int_equal(m.n, 3);
    free(m.step_ns);
    close_tuning(t);
}

// One that found a busy machine is not mended by more of the same.
static void a_second_look_is_not_of_another_search(void **state) {
    (void)state;
    const struct tune_order second_look = {.steps = 400};
    struct tuning *t = open_tuning();
    struct tune_measured m = {0};
    struct err e = {0};
    add_row(t, &t->base, 0.004, 96);
    t->id++;
    assert_int_equal(tune_store_recall(t, &t->base, &second_look, &m, &e), 0);
    assert_int_equal(m.n, 0);
    assert_int_equal(tune_store_recall(t, &t->base, &first_look, &m, &e), 0);
    assert_int_equal(m.n, 3);
    free(m.step_ns);
    close_tuning(t);
}

static void what_cannot_be_read_is_measured(void **state) {
    (void)state;
    struct tuning *t = open_tuning();
    struct tune_measured m = {0};
    struct err e = {0};
    sqlite3 *db;
    add_row(t, &t->base, 0.004, 96);
    assert_int_equal(sqlite3_open(scratch_db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "UPDATE sample SET step_ns = x'0011'", NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(tune_store_recall(t, &t->base, &first_look, &m, &e), 0);
    assert_true(m.n == 0 && m.step_ns == NULL && t->unread.code != 0);
    add_row(t, &t->base, 0.004, 96);
    assert_int_equal(tune_store_recall(t, &t->base, &first_look, &m, &e), 0);
    assert_int_equal(m.n, 3);
    free(m.step_ns);
    close_tuning(t);
}

// ---------------------------------------------------------------- the page of a search that was kept

static char *page_of_last(void) {
    char path[300], *page;
    struct haggle_error e = {0};
    size_t bytes;
    snprintf(path, sizeof path, "%s/page.html", scratch_dir);
    if (haggle_report_tuning("last", scratch_db, path, &(struct haggle_sink){0}, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(file_read_all(path, 1 << 24, &page, &bytes, NULL), 0);
    return page;
}

// A search of one trial, which was chosen, as given.
static void keep_search(const char *recipe, const char *knobs, const char *budgets, double trial_at,
                        double stage_at) {
    static const double step_ns[] = {1e9, 1e9, 1e9};
    struct store *s = scratch_store(STORE_WRITE);
    struct store_tuning t = {.started_at = 1e9,
                             .goal = "bulk",
                             .budgets = budgets,
                             .key = "k",
                             .model = "tiny",
                             .recipe = recipe};
    struct store_stage stage = {.name = tune_stage_name(STAGE_PROFILE),
                                .decision = "it is",
                                .started_at = stage_at,
                                .ended_at = stage_at + 4};
    struct store_trial row = scratch_trial(3);
    struct err e = {0};
    int64_t trial;
    assert_int_equal(store_tuning_begin(s, &t, &row.tuning, &e), 0);
    row.started_at = trial_at;
    row.wall_s = 3;
    row.knobs = knobs;
    row.stage = stage.name;
    row.memory_predicted_bytes = 4 << 20;
    assert_int_equal(store_trial_add(s, &row, step_ns, 3, &trial, &e), 0);
    assert_int_equal(store_stage_add(s, row.tuning, &stage, &e), 0);
    assert_int_equal(store_tuning_finish(s, row.tuning, TUNING_DONE, trial, "fast; lean", &e), 0);
    store_close(s);
}

// Stopped on one day and continued on the next: what lies between is not the search's.
static void a_search_took_the_time_it_was_at_work(void **state) {
    (void)state;
    keep_search("", "", "{}", 1e9 + 1, 1e9 + 86400);
    char *page = page_of_last();
    assert_non_null(strstr(page, "in 1 trials, in 7.0 s"));
    assert_non_null(strstr(page, "<li>fast</li>\n<li>lean</li>"));
    free(page);
    keep_search("", "", "{\"memory_bytes\": 5242880}", 1e9 + 1, 1e9); // the trial is in the stage
    page = page_of_last();
    assert_non_null(strstr(page, "in 1 trials, in 4.0 s"));
    assert_non_null(strstr(page, "the budget is 5.00 MiB"));
    free(page);
}

// Trials do not have it, and a run does.
static void a_second_model_is_planned_again_or_missed(void **state) {
    (void)state;
    static const char second[] = "model: tiny\nseq: 16\n";
    char path[300], recipe[512], knobs[512], sum[32], text[TEXT_UNIT_BYTES];
    uint64_t bytes;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/second.yaml", scratch_dir);
    snprintf(recipe, sizeof recipe, "goal: hybrid\ninteractive: {recipe: \"%s\"}\n", path);
    snprintf(knobs, sizeof knobs, "goal=hybrid\ninteractive.recipe=%s", path);
    keep_search(recipe, knobs, "{}", 1e9, 1e9);
    char *page = page_of_last();
    assert_non_null(strstr(page, "The second model cannot be planned any more"));
    assert_non_null(strstr(page, path));
    assert_null(strstr(page, "title=\"second model"));
    free(page);
    assert_int_equal(file_write_atomic(path, second, strlen(second), &e), 0);
    struct knobs k;
    knobs_init(&k);
    assert_int_equal(knobs_set_assignment(&k, "goal=hybrid", SET_BY_RECIPE, &e), 0);
    assert_int_equal(knobs_set(&k, "interactive.recipe", path, SET_BY_RECIPE, &e), 0);
    assert_int_equal(tune_second_bytes(&k, &bytes, &e), 0);
    assert_true(bytes > 0);
    page = page_of_last();
    assert_null(strstr(page, "cannot be planned"));
    assert_non_null(strstr(page, "title=\"second model: "));
    snprintf(sum, sizeof sum, ">%s</td>", text_bytes(text, bytes + (4 << 20)));
    assert_non_null(strstr(page, sum)); // memory planned
    free(page);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_open, scratch_close)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_row_without_a_speed_is_left),
        TEST(a_round_is_of_this_search_and_as_long),
        TEST(a_search_that_failed_can_be_continued),
        TEST(a_second_look_is_not_of_another_search),
        TEST(what_cannot_be_read_is_measured),
        TEST(a_search_took_the_time_it_was_at_work),
        TEST(a_second_model_is_planned_again_or_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_tune_report.c - the page of a stored search, made from the rows of the store.
#include "../store/scratch.h"

#include "base/text.h"
#include "report/tune_report.h"

static char *page_of_last(void) {
    char path[300], *page;
    struct stored s;
    struct err e = {0};
    uint64_t written;
    size_t bytes;
    snprintf(path, sizeof path, "%s/page.html", scratch_dir);
    int rc = stored_open(&s, "last", scratch_db, &e);
    if (rc == 0)
        rc = tune_report_write_stored(&s, path, &written, &e);
    stored_close(&s);
    if (rc != 0)
        fail_msg("%s", e.text);
    assert_int_equal(file_read_all(path, 1 << 24, &page, &bytes, NULL), 0);
    assert_int_equal(bytes, written);
    return page;
}

// A search with one trial: the recipe as given, which was chosen.
static void keep_search(const char *recipe, const char *knobs, const char *budgets, double trial_at,
                        double stage_at, const char *verdict) {
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
    assert_int_equal(store_tuning_finish(s, row.tuning, TUNING_DONE, trial, verdict, "", &e), 0);
    store_close(s);
}

// Stopped on one day and continued on the next: the time between is not part of the search.
static void a_search_took_the_time_it_was_at_work(void **state) {
    (void)state;
    keep_search("", "", "{}", 1e9 + 1, 1e9 + 86400, "fast\nlean");
    char *page = page_of_last();
    assert_non_null(strstr(page, "in 1 trials, in 7.0 s"));
    assert_non_null(strstr(page, "<li>fast</li>\n<li>lean</li>"));
    free(page);
    keep_search("", "", "{\"memory_bytes\": 5242880}", 1e9 + 1, 1e9, // the trial is in the stage
                "fast; lean");                                       // as older stores have it
    page = page_of_last();
    assert_non_null(strstr(page, "<li>fast; lean</li>"));
    assert_non_null(strstr(page, "in 1 trials, in 4.0 s"));
    assert_non_null(strstr(page, "the budget is 5.00 MiB"));
    free(page);
}

// A run has it, trials do not.
static void a_second_model_is_planned_again_or_missed(void **state) {
    (void)state;
    static const char second[] = "model: tiny\nseq: 16\n";
    char path[300], recipe[512], knobs[512], sum[32], text[TEXT_UNIT_BYTES];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/second.yaml", scratch_dir);
    snprintf(recipe, sizeof recipe, "goal: hybrid\ninteractive: {recipe: \"%s\"}\n", path);
    snprintf(knobs, sizeof knobs, "goal=hybrid\ninteractive.recipe=%s", path);
    keep_search(recipe, knobs, "{}", 1e9, 1e9, "");
    char *page = page_of_last();
    assert_non_null(strstr(page, "The second model can no longer be planned"));
    assert_non_null(strstr(page, path));
    assert_null(strstr(page, "title=\"second model"));
    free(page);
    assert_int_equal(file_write_atomic(path, second, strlen(second), &e), 0);
    struct knobs k;
    knobs_init(&k);
    assert_int_equal(knobs_set_assignment(&k, "goal=hybrid", SET_BY_RECIPE, &e), 0);
    assert_int_equal(knobs_set(&k, "interactive.recipe", path, SET_BY_RECIPE, &e), 0);
    struct plan p;
    assert_int_equal(plan_run(&p, &k, &e), 0);
    const uint64_t bytes = plan_second_bytes(&p);
    plan_free(&p);
    assert_true(bytes > 0);
    page = page_of_last();
    assert_null(strstr(page, "can no longer be planned"));
    assert_non_null(strstr(page, "title=\"second model: "));
    snprintf(sum, sizeof sum, ">%s</td>", text_bytes(text, bytes + (4 << 20)));
    assert_non_null(strstr(page, sum)); // memory planned
    free(page);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_open, scratch_close)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_search_took_the_time_it_was_at_work),
        TEST(a_second_model_is_planned_again_or_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

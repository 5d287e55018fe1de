// test_trials.c - haggle_trials: the store in every format, for people and for programs, whatever
// its texts contain.
#include "haggle.h"

#include "../store/scratch.h"

static char *shown; // the last call's output, json and log
static char *json_text, *log_text;

static int show(struct haggle_trials t) {
    size_t n;
    struct haggle_error e = {0};
    free(shown), free(json_text), free(log_text);
    shown = json_text = log_text = NULL;
    FILE *out = open_memstream(&shown, &n), *json = open_memstream(&json_text, &n),
         *log = open_memstream(&log_text, &n);
    struct haggle_sink sink = {.out = out, .json = json, .log = log};
    t.store = scratch_db;
    int rc = haggle_trials(&t, &sink, &e);
    fclose(out), fclose(json), fclose(log);
    if (rc != 0) {
        free(log_text);
        log_text = strdup(e.text);
    }
    return rc;
}

static void says(const char *text, const char *words) {
    if (!strstr(text, words))
        fail_msg("'%s' is not in\n%s", words, text);
}

static int count_of(const char *text, const char *words) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, words)); at += strlen(words))
        n++;
    return n;
}

static bool is_json(const char *text) {
    struct region region = {0};
    struct json_reader r;
    json_reader_init(&r, "result", text, strlen(text), &region, NULL);
    json_skip(&r);
    bool ok = json_finish(&r) == 0;
    region_free(&region);
    return ok;
}

static void make_store_of(const char *reason, const char *verdict) {
    struct store *s = scratch_store(STORE_WRITE);
    struct store_tuning tuning = {.started_at = 1794770000,
                                  .goal = "bulk",
                                  .budgets = "{\"memory_bytes\": 6442450944}",
                                  .key = "k",
                                  .model = "tiny",
                                  .recipe = "seq: 64\n"};
    struct store_stage stage = {.name = "profile", .decision = "compute-bound"};
    struct err e = {0};
    int64_t id, chosen;
    assert_int_equal(store_tuning_begin(s, &tuning, &id, &e), 0);
    assert_int_equal(store_stage_add(s, id, &stage, &e), 0);
    struct store_trial t = scratch_trial(400);
    t.tuning = id;
    t.step_p50_ms = 12.25, t.step_p99_ms = 15.5, t.step_p99_upper95_ms = 16;
    t.knobs = "batch.micro=2\nseq=64";
    assert_int_equal(store_trial_add(s, &t, NULL, 0, &chosen, &e), 0);
    t.knobs = "seq=64"; // the other knob has its default
    t.step_p99_upper95_ms = NAN;
    assert_int_equal(store_trial_add(s, &t, NULL, 0, NULL, &e), 0);
    store_trial_init(&t);
    t.tuning = id;
    t.knobs = "seq=64\nbatch.micro=900\nlost.knob=1"; // from a version that had one more knob
    t.model = "tiny";
    t.outcome = OUTCOME_REFUSED;
    t.reason = reason;
    assert_int_equal(store_trial_add(s, &t, NULL, 0, NULL, &e), 0);
    t = scratch_trial(7);
    t.model = "other";
    assert_int_equal(store_trial_add(s, &t, NULL, 0, NULL, &e), 0);
    assert_int_equal(store_tuning_finish(s, id, TUNING_DONE, chosen, verdict, "", &e), 0);
    store_close(s);
}

static void make_store(const char *reason) {
    make_store_of(reason, "it pays");
}

static void tunings_are_listed(void **state) {
    (void)state;
    make_store("too large");
    assert_int_equal(show((struct haggle_trials){0}), 0);
    says(shown, "| bulk | {\"memory_bytes\": 6442450944} | tiny  | done  |      3 |        2 |");
    says(log_text, "1 trial outside any tuning");
    assert_true(is_json(json_text));
    says(json_text, "\"verdict\": [\n        \"it pays\"\n      ]");
    assert_int_equal(show((struct haggle_trials){.format = HAGGLE_CSV}), 0);
    says(shown, "tuning,started_at,ended_at,goal,budgets,");
    assert_int_equal(count_of(shown, "\n"), 2);
    assert_int_equal(show((struct haggle_trials){.model = "nobody"}), 0);
    assert_string_equal(shown, "");
    says(log_text, "no tuning of that kind");
}

static void a_tuning_whose_process_is_gone_is_interrupted(void **state) {
    (void)state;
    struct store *s = scratch_store(STORE_WRITE);
    struct store_tuning tuning = {.goal = "bulk", .budgets = "{}", .key = "k"};
    struct err e = {0};
    int64_t id;
    assert_int_equal(store_tuning_begin(s, &tuning, &id, &e), 0);
    assert_int_equal(show((struct haggle_trials){0}), 0);
    says(shown, "| running |");
    store_close(s);
    assert_int_equal(show((struct haggle_trials){0}), 0);
    says(shown, "| interrupted |");
}

static void trials_are_listed_with_their_reasons(void **state) {
    (void)state;
    make_store("too large");
    assert_int_equal(show((struct haggle_trials){.tuning = "1"}), 0);
    says(shown, "tuning    1: bulk of tiny");
    says(shown, "stage     1 profile: compute-bound");
    says(shown, "chosen    trial 1");
    says(shown, "verdict   it pays");
    says(shown, "all with seq=64\n");
    says(shown, "| batch.micro=2 "); // the knobs that differ between rows
    says(shown, "| batch.micro=4 "); // with their default if only other rows set them
    says(shown, "| batch.micro=900 lost.knob=1 |"); // and a knob that this version does not know
    says(shown, " 15.50 |");
    says(shown, " 15.50? |");
    says(shown, "| refused: too large |");
    says(shown, "p99 needs 299");
    assert_true(is_json(json_text));
    says(json_text, "\"stages\"");
    says(json_text, "\"reason\": \"too large\"");
    says(json_text, "\"batch.micro\": \"900\"");
    says(json_text, "\"step_p99_upper95_ms\": null");
    assert_int_equal(show((struct haggle_trials){.tuning = "all", .format = HAGGLE_CSV}), 0);
    assert_int_equal(count_of(shown, "\n"), 5);
    assert_int_equal(show((struct haggle_trials){.tuning = "none", .format = HAGGLE_JSON}), 0);
    assert_true(is_json(shown));
    assert_int_equal(count_of(shown, "\"outcome\""), 1);
    assert_int_equal(show((struct haggle_trials){.tuning = "1", .format = HAGGLE_JSONL}), 0);
    assert_int_equal(count_of(shown, "\n"), 3);
    assert_int_equal(show((struct haggle_trials){.outcome = "refused", .format = HAGGLE_JSONL}), 0);
    assert_int_equal(count_of(shown, "\n"), 1);
}

// One sentence per line, in each format. Older versions wrote a single line, which stays one
// sentence.
static void a_verdict_is_a_list(void **state) {
    (void)state;
    make_store_of("too large", "it pays, \"a lot\"\nthe end; \x1b[2Jreally");
    assert_int_equal(show((struct haggle_trials){.tuning = "1"}), 0);
    says(shown,
         "\nverdict   it pays, \"a lot\"\n          the end;  [2Jreally\nstage     1 profile");
    assert_true(is_json(json_text));
    says(json_text, "\"verdict\": [\n      \"it pays, \\\"a lot\\\"\",\n"
                    "      \"the end; \\u001b[2Jreally\"\n    ]");
    assert_int_equal(show((struct haggle_trials){.format = HAGGLE_CSV}), 0);
    says(shown, ",\"it pays, \"\"a lot\"\" the end;  [2Jreally\"\n");
    assert_int_equal(count_of(shown, "\n"), 2);
    assert_int_equal(show((struct haggle_trials){.format = HAGGLE_JSONL}), 0);
    says(shown, "\"verdict\":[\"it pays, \\\"a lot\\\"\",\"the end; \\u001b[2Jreally\"]}\n");
}

static void a_tuning_without_a_verdict(void **state) {
    (void)state;
    make_store_of("too large", "");
    assert_int_equal(show((struct haggle_trials){.tuning = "1"}), 0);
    assert_int_equal(count_of(shown, "verdict"), 0);
    says(json_text, "\"verdict\": []");
    assert_int_equal(show((struct haggle_trials){.format = HAGGLE_CSV}), 0);
    says(shown, ",1,\n"); // the last cell is empty
}

static void wishes_that_are_not_understood(void **state) {
    (void)state;
    make_store("too large");
    assert_int_equal(show((struct haggle_trials){.tuning = "9"}), HAGGLE_ERR_USAGE);
    says(log_text, "no tuning 9");
    says(json_text, "\"error\"");
    assert_true(is_json(json_text));
    assert_int_equal(show((struct haggle_trials){.tuning = "1x"}), HAGGLE_ERR_USAGE);
    says(log_text, "accepted");
    assert_int_equal(show((struct haggle_trials){.outcome = "good"}), HAGGLE_ERR_USAGE);
    says(log_text, "dominated");
}

// Texts come from a file: none controls the terminal, none breaks a row, and JSON stays valid.
static void hostile_texts_do_no_harm(void **state) {
    (void)state;
    make_store("\x1b[2Jgone | a bar\nand a line \xc2\x9b"
               "1m, \"quoted\" \xff\xfe");
    for (int format = HAGGLE_MARKDOWN; format <= HAGGLE_JSONL; format++) {
        assert_int_equal(
            show((struct haggle_trials){.tuning = "1", .format = (enum haggle_format)format}), 0);
        assert_null(strchr(shown, '\x1b'));
        if (format <= HAGGLE_CSV) // JSON is not printed to terminals
            assert_null(strchr(shown, '\x9b'));
        assert_true(is_json(json_text));
        if (format == HAGGLE_CSV)
            assert_int_equal(count_of(shown, "\n"), 4);
        if (format == HAGGLE_JSON)
            assert_true(is_json(shown));
    }
    assert_int_equal(show((struct haggle_trials){.tuning = "1"}), 0);
    says(shown, "gone   a bar and a line");
}

static int forget(void **state) {
    free(shown), free(json_text), free(log_text);
    shown = json_text = log_text = NULL;
    return scratch_close(state);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_open, forget)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(tunings_are_listed),
        TEST(a_tuning_whose_process_is_gone_is_interrupted),
        TEST(trials_are_listed_with_their_reasons),
        TEST(a_verdict_is_a_list),
        TEST(a_tuning_without_a_verdict),
        TEST(wishes_that_are_not_understood),
        TEST(hostile_texts_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

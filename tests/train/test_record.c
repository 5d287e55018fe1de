// test_record.c - a trial as a row of the store: its figures, its outcome, and a key that changes
// with everything that speed depends on.
#include "train/record.h"

#include "../store/scratch.h"

static void set(struct knobs *k, const char *name, const char *value) {
    struct err e = {0};
    if (knobs_set(k, name, value, SET_BY_COMMAND_LINE, &e) != 0)
        fail_msg("%s", e.text);
}

static struct knobs small(void) {
    struct knobs k;
    knobs_init(&k);
    set(&k, "device", "cpu");
    set(&k, "seq", "16");
    set(&k, "batch.micro", "2");
    set(&k, "threads", "1");
    return k;
}

static int keep(void *arg, const struct store_trial *t) {
    struct store_trial *out = arg;
    *out = *t;
    assert_string_equal(t->origin, "test");
    assert_string_equal(t->stage, "profile");
    assert_string_equal(t->model, "tiny");
    assert_string_equal(t->knobs, "seq=16\nbatch.micro=2\ndevice=cpu\nthreads=1");
    assert_int_equal(strlen(t->setting), HASH_TEXT_BYTES - 1);
    return 0;
}

static int check_refused(void *arg, const struct store_trial *t) {
    (void)arg;
    assert_int_equal(t->outcome, OUTCOME_REFUSED);
    assert_non_null(strstr(t->reason, "budget"));
    assert_true(isnan(t->tokens_per_s) && isnan(t->step_p50_ms) && isnan(t->utilization));
    assert_int_equal(t->memory_measured_bytes, 0); // the process ran nothing
    assert_true(t->memory_predicted_bytes > 1 << 20);
    return 0;
}

static int check_again(void *arg, const struct store_trial *t) {
    (void)arg;
    assert_true(t->mfu > 0 && t->mfu < t->hfu);
    return 0;
}

static void a_measured_trial_is_recorded(void **state) {
    (void)state;
    struct knobs k = small();
    struct trial_options o = {.warmup = 1, .steps = 8};
    struct trial_result t;
    struct store_trial row;
    struct err e = {0};
    double *step_ns;
    size_t n;
    int64_t id;
    char key[HASH_TEXT_BYTES];
    assert_int_equal(trial_run(&k, &o, &t, &e), 0);
    assert_int_equal(t.rc, 0);
    assert_int_equal(record_key(&k, key, &e), 0);
    struct record r = {.origin = "test",
                       .stage = "profile",
                       .key = key,
                       .outcome = record_outcome(&t),
                       .started_at = 5,
                       .predicted_step_s = 0.002,
                       .joules_per_token = NAN,
                       .peak_flops_per_s = 1e12};
    struct store *s = scratch_store(STORE_WRITE);
    assert_int_equal(record_trial(s, &r, &k, &t, &id, &e), 0);
    assert_int_equal(store_trials(s, &(struct store_filter){.key = key}, keep, &row, &e), 0);
    assert_int_equal(row.id, id);
    assert_int_equal(row.warmup, 1);
    assert_int_equal(row.outcome, OUTCOME_MEASURED);
    assert_int_equal(row.steps, 8);
    assert_int_equal(row.tokens, 8 * 2 * 16);
    double wall_s = 1e-9 * (double)t.wall_ns;
    assert_true(fabs(row.tokens_per_s - (double)row.tokens / wall_s) < 1e-6 * row.tokens_per_s);
    assert_true(row.step_p50_ms > 0 && row.step_p50_ms <= row.step_p99_ms);
    bool exact = false; // the nearest double to a step's time, so that it prints with few digits
    for (int i = 0; i < 8; i++)
        exact = exact || row.step_p50_ms == t.step_ns[i] / 1e6;
    assert_true(exact);
    assert_true(isfinite(row.step_p50_upper95_ms) && isnan(row.step_p99_upper95_ms)); // 8 steps
    assert_true(row.hfu > 0 && row.mfu == row.hfu); // nothing is recomputed
    assert_true(row.predicted_step_ms == 2 && isnan(row.joules_per_token));
    assert_true(row.memory_predicted_bytes > 0 && row.memory_measured_bytes > 0);
    assert_true(row.by_class.bytes[CLASS_WEIGHT] > 0 && row.split.ms[TIME_MATMUL] > 0);
    assert_true(row.loss_first > row.loss_last);
    assert_int_equal(store_samples(s, id, &step_ns, &n, &e), 0);
    assert_int_equal(n, 8);
    assert_memory_equal(step_ns, t.step_ns, n * sizeof *step_ns);
    free(step_ns);
    trial_free(&t);

    // Recomputed work counts as the machine's work, not as the model's.
    k.recompute_mode = RECOMPUTE_MODE_FULL;
    assert_int_equal(trial_run(&k, &o, &t, &e), 0);
    assert_int_equal(record_trial(s, &r, &k, &t, &id, &e), 0);
    assert_int_equal(store_trials(s, &(struct store_filter){.id = id}, check_again, NULL, &e), 0);
    trial_free(&t);

    // A setting that does not fit has no figures, but a reason.
    k.memory = 1 << 20;
    assert_int_equal(trial_run(&k, &o, &t, &e), 0);
    assert_int_equal(record_outcome(&t), OUTCOME_REFUSED);
    r.outcome = OUTCOME_REFUSED;
    r.stage = NULL, r.key = NULL;
    assert_int_equal(record_trial(s, &r, &k, &t, &id, &e), 0);
    assert_int_equal(store_trials(s, &(struct store_filter){.id = id}, check_refused, NULL, &e), 0);
    trial_free(&t);
    store_close(s);
}

static void outcomes_follow_from_results(void **state) {
    (void)state;
    struct trial_result t = {.rc = 0};
    assert_int_equal(record_outcome(&t), OUTCOME_MEASURED);
    t.rc = ERR_MEMORY; // the process sent nothing, because the kernel killed it
    assert_int_equal(record_outcome(&t), OUTCOME_KILLED);
    t.rc = ERR_INTERNAL;
    assert_int_equal(record_outcome(&t), OUTCOME_KILLED);
    t.by_class[CLASS_WEIGHT] = 100; // it had a plan
    assert_int_equal(record_outcome(&t), OUTCOME_FAILED);
    t.rc = ERR_MEMORY;
    assert_int_equal(record_outcome(&t), OUTCOME_REFUSED);
    t.rc = ERR_UNSUPPORTED;
    assert_int_equal(record_outcome(&t), OUTCOME_REFUSED);
    t.rc = ERR_NUMERIC;
    assert_int_equal(record_outcome(&t), OUTCOME_FAILED);
    t.rc = ERR_STOPPED;
    assert_int_equal(record_outcome(&t), OUTCOME_STOPPED);
}

static void write_text(const char *path, const char *text) {
    struct err e = {0};
    if (file_write_atomic(path, text, strlen(text), &e) != 0)
        fail_msg("%s", e.text);
}

static void keys_change_with_model_and_data(void **state) {
    (void)state;
    struct knobs k = small();
    struct err e = {0};
    char key[7][HASH_TEXT_BYTES], again[HASH_TEXT_BYTES], path[512];
    int n = 0;
    assert_int_equal(record_key(&k, key[n++], &e), 0);
    set(&k, "batch.micro", "8"); // part of the setting, not of the key
    set(&k, "optim.lr", "1e-5");
    set(&k, "data.prefetch", "4");
    assert_int_equal(record_key(&k, again, &e), 0);
    assert_string_equal(again, key[0]);
    set(&k, "model", "gpt2-124m");
    assert_int_equal(record_key(&k, key[n++], &e), 0);
    set(&k, "model", "tiny");
    set(&k, "data.pack", "none");
    assert_int_equal(record_key(&k, key[n++], &e), 0);
    snprintf(path, sizeof path, "%s/a.txt", scratch_dir);
    write_text(path, "some text");
    set(&k, "data.path", path);
    assert_int_equal(record_key(&k, key[n++], &e), 0);
    assert_int_equal(record_key(&k, again, &e), 0);
    assert_string_equal(again, key[n - 1]);
    write_text(path, "some other text");
    assert_int_equal(record_key(&k, key[n++], &e), 0);
    set(&k, "data.path", scratch_dir); // the same file, named by its folder
    assert_int_equal(record_key(&k, again, &e), 0);
    assert_string_equal(again, key[n - 1]);
    snprintf(path, sizeof path, "%s/b.txt", scratch_dir);
    write_text(path, "more");
    assert_int_equal(record_key(&k, key[n++], &e), 0);
    set(&k, "tokenizer", "bytes");
    assert_int_equal(record_key(&k, key[n++], &e), 0);
    assert_int_equal(n, 7);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(key[i], key[j]);
    set(&k, "model", "no-such-model");
    assert_int_not_equal(record_key(&k, again, &e), 0);
}

// A tokenizer or template that was edited in place has the same name but gives other documents.
static void keys_change_with_what_reads_the_data(void **state) {
    (void)state;
    static const struct {
        const char *knob, *named, *edited;
    } cases[] = {{"tokenizer", "words.json", "words.json"},
                 {"tokenizer", "words.json", "tokenizer_config.json"},
                 {"tokenizer", "", "tokenizer.json"},
                 {"tokenizer", "", "chat_template.jinja"},
                 {"data.template", "chat.jinja", "chat.jinja"}};
    struct err e = {0};
    char key[HASH_TEXT_BYTES], again[HASH_TEXT_BYTES], named[512], edited[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct knobs k = small();
        snprintf(named, sizeof named, "%s/%s", scratch_dir, cases[i].named);
        snprintf(edited, sizeof edited, "%s/%s", scratch_dir, cases[i].edited);
        write_text(edited, "{}");
        set(&k, cases[i].knob, named);
        assert_int_equal(record_key(&k, key, &e), 0);
        assert_int_equal(record_key(&k, again, &e), 0);
        assert_string_equal(key, again);
        write_text(edited, "{ }");
        assert_int_equal(record_key(&k, again, &e), 0);
        assert_string_not_equal(key, again);
    }
    struct knobs k = small(); // bytes need no file
    set(&k, "tokenizer", "bytes");
    assert_int_equal(record_key(&k, key, &e), 0);
    write_text(edited, "{  }");
    assert_int_equal(record_key(&k, again, &e), 0);
    assert_string_equal(key, again);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_open, scratch_close)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_measured_trial_is_recorded),
        TEST(outcomes_follow_from_results),
        TEST(keys_change_with_model_and_data),
        TEST(keys_change_with_what_reads_the_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

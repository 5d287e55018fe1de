// test_trainer.c - the step loop: it learns, resumes to the bit, stops when asked, and never trains
// on values that are not finite.
#include "harness.h"

#include "train/schedule.h"

#include <pthread.h>
#include <sys/wait.h>

static void test_learns(void **state) {
    struct run r;
    run_init(&r, *state, "learns");
    run_set(&r, "steps=60");
    run_set(&r, "eval.every=20");
    run_set(&r, "batch.accum=2");
    run_go(&r);
    assert_ran(&r);
    const struct train_result *x = &r.result;
    assert_int_equal(r.steps, 60);
    assert_int_equal(r.ends, 1);
    assert_int_equal(x->end, TRAIN_DONE);
    assert_int_equal(x->state.step, 60);
    assert_int_equal(x->state.position, 60 * 4);
    assert_int_equal(x->state.tokens, 60 * 4 * 16);
    assert_true(r.losses[0] > 5.5 && r.losses[0] < 6.1); // ln 320 = 5.77
    assert_true(r.losses[59] < 0.8 * r.losses[0]);
    for (int64_t s = 0; s < 60; s++)
        assert_true(r.lrs[s] == schedule_lr(&r.knobs, s));
    assert_int_equal(r.evals, 3); // 20, 40, and 60 only once
    assert_int_equal(r.eval.step, 60);
    assert_int_equal(r.eval.batches, 3);
    assert_int_equal(r.eval.trained_tokens, 3 * 2 * 16);
    assert_true(r.eval.complete && r.eval.loss < 5.2);
    assert_int_equal(r.eval.batch_p50.n, 3);
    assert_true(r.eval.batch_p99.value >= r.eval.batch_p50.value && r.eval.batch_p50.value > 0);
    assert_true((double)r.eval.total_ns >= 3 * 0.9 * r.eval.batch_p50.value / 2);
    assert_int_equal(r.saves, 1); // save.last
    assert_string_equal(x->checkpoint, step_file(r.dir, 60, ""));
    // Metrics leave out the warm-up and say how long it was.
    const struct run_metrics *m = &x->metrics;
    assert_int_equal(x->warmup_steps, 3);
    assert_int_equal(m->steps, 57);
    assert_int_equal(m->step_p50.n, 57);
    assert_int_equal(m->tokens, 57 * 64);
    assert_int_equal(m->split.steps, 57);
    assert_true(m->tokens_per_s > 0 && m->step_p99.value >= m->step_p50.value);
    assert_true(m->split.ns[TIME_MATMUL] > 0 && m->split.ns[TIME_OPTIMIZER] > 0);
    assert_true(m->utilization > 0 && m->utilization <= 1);
    assert_true(m->loss_first == r.losses[0] && m->loss_last == r.losses[59]);
    assert_true(m->memory_measured_bytes > 0 && m->memory_predicted_bytes > 0 && m->n_memory > 4);
    assert_true(isnan(m->mfu)); // no peak was given
    assert_true(x->eval_ns > 0 && x->save_ns > 0 &&
                x->wall_ns > x->eval_ns + x->save_ns + (uint64_t)(1e9 * m->wall_s) / 2);
}

static void test_every_split_of_a_batch_is_the_same_step(void **state) {
    struct run a, b;
    run_init(&a, *state, "split-a");
    run_init(&b, *state, "split-b");
    run_set(&a, "batch.micro=4");
    run_set(&b, "batch.micro=1");
    run_set(&b, "batch.accum=4");
    run_go(&a);
    run_go(&b);
    assert_ran(&a);
    assert_ran(&b);
    for (int i = 0; i < 6; i++)
        assert_true(fabs(a.losses[i] - b.losses[i]) < 1e-5 * a.losses[i]);
}

// 2N steps, and N steps + stop + N steps, give the same losses, weights and moments to the bit.
static void check_continuation(const struct scratch *s, bool reference, const char *const *sets,
                               int64_t steps, int64_t at) {
    struct run whole, part;
    static int number;
    char name[32];
    snprintf(name, sizeof name, "whole-%d", number);
    run_init(&whole, s, name);
    snprintf(name, sizeof name, "part-%d", number++);
    run_init(&part, s, name);
    for (int i = 0; sets[i] != NULL; i++) {
        run_set(&whole, sets[i]);
        run_set(&part, sets[i]);
    }
    whole.knobs.steps = part.knobs.steps = steps;
    whole.reference = part.reference = reference;
    run_go(&whole);
    assert_ran(&whole);
    part.stop_at = at;
    run_go(&part);
    assert_failed(part.rc, ERR_STOPPED, &part.e, "stopped on request after step");
    assert_int_equal(part.result.end, TRAIN_STOPPED);
    assert_int_equal(part.result.state.step, at);
    for (int64_t i = 0; i < at; i++)
        assert_true(part.losses[i] == whole.losses[i]);
    run_again(&part);
    assert_ran(&part);
    assert_int_equal(part.first, at);
    assert_int_equal(part.steps, steps - at);
    for (int64_t i = at; i < steps; i++) {
        assert_true(part.losses[i] == whole.losses[i]);
        assert_true(part.lrs[i] == whole.lrs[i]);
    }
    assert_same_tensors(whole.dir, part.dir, steps);
    assert_int_equal(part.result.state.position, whole.result.state.position);
    assert_int_equal(part.result.state.trained_tokens, whole.result.state.trained_tokens);
}

static void test_continues_to_the_bit(void **state) {
    static const char *const plain[] = {NULL};
    static const char *const busy[] = {"data.workers=3", "data.prefetch=5", "batch.accum=3",
                                       "eval.every=3",   "save.every=4",    NULL};
    static const char *const unhurried[] = {"data.prefetch=0", "sched.kind=wsd",
                                            "optim.decay_all=true", NULL};
    check_continuation(*state, false, plain, 24, 12);
    check_continuation(*state, false, busy, 14, 7);
    check_continuation(*state, false, unhurried, 12, 1);
    check_continuation(*state, true, plain, 10, 5);
}

static void test_continues_to_the_bit_tiny(void **state) {
    static const char *const one[] = {"model=tiny", "seq=32", NULL};
    static const char *const two[] = {"model=tiny", "seq=32", "threads=2", "cpu.blas=auto", NULL};
    check_continuation(*state, false, one, 6, 3);
    check_continuation(*state, false, two, 6, 3);
}

static void test_stop_flag(void **state) {
    struct run r;
    run_init(&r, *state, "flag");
    run_set(&r, "steps=50");
    run_set(&r, "eval.every=7");
    r.flag_at = 7;
    run_go(&r);
    assert_failed(r.rc, ERR_STOPPED, &r.e, "after step 7 of 50|the same command continues");
    assert_int_equal(r.evals, 0); // after a stop request there is no validation
    assert_int_equal(r.saves, 1);
    assert_true(file_exists(step_file(r.dir, 7, "manifest.json")));
    // A stop request before the first step: there is nothing to save, and nothing is lost.
    r.stop = 1;
    r.flag_at = 0;
    r.steps = r.saves = 0;
    run_go(&r);
    assert_failed(r.rc, ERR_STOPPED, &r.e, "stopped on request");
    assert_int_equal(r.steps + r.saves, 0);
    assert_int_equal(r.first, 7);
    // With saving off it stops as well and says that nothing was saved.
    run_init(&r, *state, "flag-off");
    run_set(&r, "save.every=0");
    run_set(&r, "save.last=false");
    r.flag_at = 2;
    run_go(&r);
    assert_failed(r.rc, ERR_STOPPED, &r.e, "after step 2 of 6|nothing was saved");
    assert_int_equal(rmdir(r.dir), 0); // nothing was created in its folder either
}

static void second_run_is_refused(struct run *r, const struct train_save *save) {
    (void)save;
    struct run *other = calloc(1, sizeof *other);
    assert_non_null(other);
    other->knobs = r->knobs;
    other->first = -1;
    run_go(other);
    assert_failed(other->rc, ERR_USAGE, &other->e, "another process|one-run'|run.dir");
    assert_int_equal(other->steps, 0);
    // Its observer was not started either, so it opened no files.
    assert_int_equal(other->first, -1);
    free(other);
}

// Logs are written to run.dir even without checkpoints, so a second run there is refused.
static void test_one_run_in_a_folder(void **state) {
    struct run r;
    run_init(&r, *state, "one-run");
    run_set(&r, "save.every=0");
    run_set(&r, "save.last=false");
    for (int resume = 0; resume < 2; resume++) {
        r.knobs.resume = resume;
        r.hook = second_run_is_refused;
        run_go(&r);
        assert_ran(&r);
        assert_int_equal(r.last, 6);
    }
    assert_int_equal(rmdir(r.dir), 0); // the lock leaves nothing behind
}

static void test_time_runs_out(void **state) {
    struct run r;
    run_init(&r, *state, "time");
    run_set(&r, "steps=512");
    run_set(&r, "time=1ns"); // at least one step, so that a chain of runs ends
    run_set(&r, "eval.every=1000");
    run_go(&r);
    assert_ran(&r);
    assert_int_equal(r.result.end, TRAIN_TIME);
    assert_int_equal(r.steps, 1);
    assert_int_equal(r.saves, 1);
    assert_int_equal(r.evals, 1);
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, 1);
    assert_int_equal(r.last, 2);
}

static void test_nothing_to_do(void **state) {
    struct run r;
    run_init(&r, *state, "nothing");
    run_set(&r, "steps=3");
    run_go(&r);
    assert_ran(&r);
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.steps + r.saves, 0);
    assert_non_null(strstr(r.said, "nothing to train: step 3 of 3 is done"));
    assert_true(isnan(r.result.metrics.step_p50.value) && isnan(r.result.metrics.tokens_per_s));
    // A longer run is legitimate: it is reported, but not as a warning.
    run_set(&r, "steps=5");
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, 3);
    assert_int_equal(r.last, 5);
    assert_non_null(strstr(r.said, "I steps was 3 and is 5 now"));
    assert_null(strstr(r.said, "W "));
    // No steps at all: the initial model is validated.
    run_init(&r, *state, "zero");
    run_set(&r, "steps=0");
    run_set(&r, "eval.every=1");
    run_go(&r);
    assert_ran(&r);
    assert_int_equal(r.evals, 1);
    assert_int_equal(r.steps + r.saves, 0);
    assert_true(r.eval.loss > 5.5);
}

// Weights that grow a thousandfold with each step: the run diverges after some good steps.
static void test_diverges(void **state) {
    struct run r;
    run_init(&r, *state, "diverges");
    static const char *const wild[] = {"optim.lr=100",        "optim.decay=10", "sched.warmup=0",
                                       "sched.kind=constant", "steps=60",       "save.every=1",
                                       "optim.decay_all=true"};
    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++)
        run_set(&r, wild[i]);
    run_go(&r);
    assert_failed(r.rc, ERR_NUMERIC, &r.e, "10 steps in a row|optim.lr");
    assert_int_equal(r.result.end, TRAIN_DIVERGED);
    assert_true(r.steps > 10 && r.steps < 60);
    assert_true(r.skipped >= 10 && r.skipped < r.steps);
    assert_int_equal(r.result.state.skipped_steps, r.skipped);
    // The last saves hold weights that no update has changed. They were set aside.
    const int64_t last = r.steps - 1;
    static const char *const files[] = {"optimizer.safetensors", "model.safetensors"};
    char newer[PATH_MAX], older[PATH_MAX];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(newer, sizeof newer, "%s.diverged/%s", step_file(r.dir, last, ""), files[i]);
        snprintf(older, sizeof older, "%s.diverged/%s", step_file(r.dir, last - 1, ""), files[i]);
        assert_same_file(newer, older);
    }
    struct err e = {0};
    struct manifest m;
    snprintf(newer, sizeof newer, "%s.diverged", step_file(r.dir, last, ""));
    assert_worked(checkpoint_verify(newer, &m, &e), &e);
    assert_int_equal(m.state.skipped_steps, r.skipped - 1);
    manifest_free(&m);
}

// A model that is broken from the start is refused when it is loaded, or at its first loss. No such
// run ends as a success or saves anything.
static void test_not_finite(void **state) {
    const struct scratch *s = *state;
    static const struct {
        enum poison poison;
        const char *says;
    } cases[] = {
        {POISON_NAN, "element 5 of tensor \"model.embed_tokens.weight\" is not a number|poison"},
        {POISON_HUGE, "the loss of step 1 is|before any update|precision=fp32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct run r;
        char folder[320];
        snprintf(folder, sizeof folder, "%s/poison-%zu", s->dir, i);
        make_nano(folder, 16, cases[i].poison);
        run_init(&r, s, i ? "not-finite-loss" : "not-finite-weight");
        snprintf(r.knobs.model, sizeof r.knobs.model, "%s", folder);
        run_set(&r, "steps=3");
        run_go(&r);
        assert_failed(r.rc, ERR_NUMERIC, &r.e, cases[i].says);
        assert_int_equal(r.result.end, TRAIN_FAILED);
        assert_int_equal(r.saves, 0);
        assert_string_equal(r.result.checkpoint, "");
    }
}

// Losses are finite, gradients never are: in fp16 with a loss scale that is too high for so few
// steps. Nothing was trained, which is no success. With more steps the scale comes down.
static void test_nothing_was_trained(void **state) {
    struct run r;
    run_init(&r, *state, "no-update");
    run_set(&r, "precision=fp16");
    run_set(&r, "scale.start=16777216");
    run_set(&r, "steps=1");
    run_go(&r);
    assert_failed(r.rc, ERR_NUMERIC, &r.e, "nothing was trained|all 1 steps|scale.start");
    assert_int_equal(r.saves, 0);
    run_set(&r, "steps=20");
    run_again(&r);
    assert_ran(&r);
    assert_true(r.skipped > 0 && r.skipped < 20);
}

static int refuse_step(void *arg, const struct train_step *step, struct err *e) {
    (void)arg;
    return step->step == 3 ? err_set(e, ERR_IO, "the log is full") : 0;
}

static void test_observer_ends_the_run(void **state) {
    const struct scratch *s = *state;
    struct run r;
    run_init(&r, s, "observer");
    struct at_work w;
    struct trainer *t;
    struct err e = {0};
    struct train_result result;
    struct plan_options so = {.knobs = &r.knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    struct trainer_options to = {.observer = {.on_step = refuse_step}};
    assert_worked(at_work_plan(&w, &so, &e), &e);
    assert_worked(trainer_at_work(&t, &w, &to, &e), &e);
    assert_true(w.plan.host.loader + w.plan.host.trace >
                3 * 4 * 2 * 16 * sizeof(int32_t)); // known before the start
    assert_string_equal(dataset_describe(trainer_dataset(t)), "built-in corpus, seed 1");
    assert_failed(trainer_run(t, &result, &e), ERR_IO, &e, "the log is full");
    assert_int_equal(result.end, TRAIN_FAILED);
    assert_int_equal(result.saves, 0);
    assert_failed(trainer_run(t, &result, &e), ERR_INTERNAL, &e, "runs once");
    trainer_close(t);
    at_work_close(&w);
}

static void test_text_data(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct err e = {0};
    char path[320], text[2000];
    snprintf(path, sizeof path, "%s/data.txt", s->dir);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i % 23 % 7);
    assert_worked(file_write_atomic(path, text, sizeof text, &e), &e);
    run_init(&r, s, "text");
    snprintf(r.knobs.data_path, sizeof r.knobs.data_path, "%s", path);
    run_set(&r, "steps=100"); // 119 windows for training, 200 samples: more than an epoch
    run_set(&r, "eval.every=50");
    run_set(&r, "data.val=0.05"); // 100 tokens: 7 windows, the last one overlapping
    run_set(&r, "eval.batches=100");
    r.stop_at = 77;
    run_go(&r);
    assert_failed(r.rc, ERR_STOPPED, &r.e, "77");
    assert_int_equal(r.eval.batches, 4); // 7 windows in batches of 2, each once
    assert_int_equal(r.eval.trained_tokens, 100);
    run_again(&r);
    assert_ran(&r);
    assert_true(r.losses[99] < 2.5);
    // Other data: there is a warning, and the run goes on.
    text[17] = 'z';
    assert_worked(file_write_atomic(path, text, sizeof text, &e), &e);
    run_set(&r, "steps=101");
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.steps, 1);
    assert_non_null(strstr(r.said, "W the data has changed since step 100 was saved"));
    // Data that was moved but not changed: no message.
    char moved[320];
    snprintf(moved, sizeof moved, "%s/moved.txt", s->dir);
    assert_int_equal(rename(path, moved), 0);
    snprintf(r.knobs.data_path, sizeof r.knobs.data_path, "%s", moved);
    run_set(&r, "steps=101");
    run_again(&r);
    assert_ran(&r);
    assert_null(strstr(r.said, "W "));
    // Without a validation split there is no validation, and a message says so.
    run_init(&r, s, "text-all");
    snprintf(r.knobs.data_path, sizeof r.knobs.data_path, "%s", moved);
    run_set(&r, "data.val=0");
    run_set(&r, "eval.every=2");
    run_go(&r);
    assert_ran(&r);
    assert_int_equal(r.evals, 0);
    assert_non_null(strstr(r.said, "W no validation"));
}

// Validation and saving before the first counted step are not part of the measured time.
static void test_pauses_are_not_counted(void **state) {
    struct run r;
    run_init(&r, *state, "pauses");
    run_set(&r, "eval.every=1");
    run_set(&r, "save.every=1");
    run_go(&r);
    assert_ran(&r);
    const struct run_metrics *m = &r.result.metrics;
    assert_true(m->steps > 0 && m->wall_s > 0 && m->wall_s <= 1e-9 * (double)r.result.wall_ns);
    assert_true(m->tokens_per_s > 1);
}

static void test_refusals(void **state) {
    const struct scratch *s = *state;
    struct run r;
    run_init(&r, s, "refuse");
    r.knobs.run_dir[0] = '\0';
    run_go(&r);
    assert_failed(r.rc, ERR_USAGE, &r.e, "run.dir is empty");
    assert_int_equal(r.result.end, TRAIN_FAILED);
    assert_int_equal(r.ends, 1);
    run_set(&r, "save.every=0");
    run_set(&r, "save.last=false"); // nothing to save and nothing to resume: no folder is needed
    run_again(&r);
    assert_ran(&r);
    run_init(&r, s, "refuse-memory");
    run_set(&r, "memory=1MiB");
    run_go(&r);
    assert_failed(r.rc, ERR_MEMORY, &r.e, "memory=|weights");
    run_init(&r, s, "refuse-data");
    snprintf(r.knobs.data_path, sizeof r.knobs.data_path, "%s/none.txt", s->dir);
    run_go(&r);
    assert_failed(r.rc, ERR_IO, &r.e, "none.txt");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_every_split_of_a_batch_is_the_same_step),
        cmocka_unit_test(test_continues_to_the_bit),
        cmocka_unit_test(test_continues_to_the_bit_tiny),
        cmocka_unit_test(test_stop_flag),
        cmocka_unit_test(test_one_run_in_a_folder),
        cmocka_unit_test(test_time_runs_out),
        cmocka_unit_test(test_nothing_to_do),
        cmocka_unit_test(test_diverges),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_nothing_was_trained),
        cmocka_unit_test(test_observer_ends_the_run),
        cmocka_unit_test(test_text_data),
        cmocka_unit_test(test_pauses_are_not_counted),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

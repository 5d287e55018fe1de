// test_second.c - a second model that answers the requests of a hybrid run. The bulk run does not
// change, the second model learns as in a separate run, both are saved together, and every byte is
// planned.
#include "host.h"

#include "plan/second.h"
#include "train/checkpoint_dir.h"
#include "train/hyper.h"
#include "train/snapshot.h"

enum { OTHER_SEQ = 24 };

static void write_recipe(const struct scratch *s, const char *name, const char *more,
                         char path[PATH_MAX]) {
    struct err e = {0};
    char text[2048];
    snprintf(path, PATH_MAX, "%s/%s", s->dir, name);
    snprintf(text, sizeof text,
             "model: %s/other\nseq: %d\nseed: 5\ntokenizer: bytes\nsteps: 20\n%s\n", s->dir,
             OTHER_SEQ, more);
    assert_worked(file_write_atomic(path, text, strlen(text), &e), &e);
}

// A run whose requests are answered by another model, with `more` added to its recipe.
static void second_init(struct run *r, struct knobs *second, struct host *h,
                        const struct scratch *s, const char *name, const char *more) {
    struct err e = {0};
    char path[PATH_MAX], file[64];
    snprintf(file, sizeof file, "%.40s.yaml", name);
    write_recipe(s, file, more, path);
    run_init(r, s, name);
    run_set(r, "goal=hybrid");
    run_set(r, "batch.accum=3");
    run_set(r, "data.prefetch=0"); // no wait for data, so that the questions can be counted
    assert_worked(knobs_set_at(&r->knobs, KNOB_interactive_recipe, path, SET_BY_DEFAULT, &e), &e);
    assert_worked(second_knobs(&r->knobs, second, &e), &e);
    host_init(h, OTHER_SEQ, OTHER_SEQ);
    h->run = r;
    r->guests = &h->source;
    r->second = second;
}

static int setup(void **state) {
    char dir[PATH_MAX];
    const int rc = scratch_setup(state);
    if (rc != 0)
        return rc;
    snprintf(dir, sizeof dir, "%s/other", ((const struct scratch *)*state)->dir);
    make_nano(dir, 24, POISON_NONE);
    return 0;
}

static const char *second_file(const struct run *r, int64_t step, const char *name) {
    char inner[128];
    snprintf(inner, sizeof inner, CHECKPOINT_SECOND "%s%s", *name ? "/" : "", name);
    return step_file(r->dir, step, inner);
}

static void assert_same_second(const struct run *a, const struct run *b, int64_t step) {
    assert_same_file(second_file(a, step, "model.safetensors"),
                     second_file(b, step, "model.safetensors"));
    assert_same_file(second_file(a, step, "optimizer.safetensors"),
                     second_file(b, step, "optimizer.safetensors"));
}

static struct manifest read_second(const struct run *r, int64_t step) {
    struct manifest m = {0};
    struct err e = {0};
    assert_worked(manifest_read(&m, second_file(r, step, MANIFEST_NAME), &e), &e);
    return m;
}

// ---------------------------------------------------------------- what it does

// With evaluations and training samples wherever they may run, the bulk run gives the same bits as
// a run without requests. Every op of both models is observed.
static void test_bulk_is_untouched(void **state) {
    static const char *const bulk[] = {"precision=fp32", "precision=bf16", "recompute.mode=full"};
    static const char *const beside[] = {"precision: bf16", "optim: {state: int8}",
                                         "recompute: {mode: full}"};
    for (size_t i = 0; i < sizeof bulk / sizeof *bulk; i++) {
        struct run plain, with;
        struct knobs second;
        static struct host host;
        char name[32];
        snprintf(name, sizeof name, "alone-%zu", i);
        run_init(&plain, *state, name);
        snprintf(name, sizeof name, "beside-%zu", i);
        second_init(&with, &second, &host, *state, name, beside[i]);
        run_set(&plain, "batch.accum=3");
        run_set(&plain, bulk[i]);
        run_set(&with, bulk[i]);
        run_set(&plain, "eval.every=3");
        run_set(&with, "eval.every=3");
        host.per_call = host.left = 1;
        host.train_after = 1;
        run_alone_and_with(&plain, &with, 6);
        // Training samples in the first step and after each step. 2 yield points in a step, 3
        // batches in each of 2 validations, 6 ends of steps, and at least one while the last
        // checkpoint is written.
        assert_int_equal(host.n_train, 7);
        assert_true(host.n >= 7 + 6 * 2 + 2 * 3 + 6 + 1);
        assert_int_equal(with.result.guests.updates, 7);
        // None of them belongs to the bulk model.
        assert_int_equal(with.result.state.guest_updates, 0);
        assert_int_equal(host.answers[host.n - 1].own_step, 7);
        assert_int_equal(host.answers[host.n - 1].step, 6);
        assert_true(host.answers[host.n - 1].loss < host.answers[0].loss);
        struct manifest m = read_second(&with, 6);
        assert_int_equal(m.state.step, 7);
        assert_int_equal(m.state.skipped_steps, 0);
        assert_int_equal(m.state.trained_tokens, 7 * OTHER_SEQ);
        manifest_free(&m);
    }
}

struct plain_feed {
    struct exec_batch rows;
};

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    (void)micro;
    (void)e;
    *out = ((const struct plain_feed *)arg)->rows;
    return 0;
}

// The same samples in a separate session, step by step as the trainer does it.
static void test_learns_as_a_run_of_its_own(void **state) {
    static const char *const recipes[] = {
        "optim: {lr: 0.002}\nsched: {warmup: 3}", "precision: bf16\noptim: {state: bf16}",
        "precision: fp16\nscale: {start: 16777216, growth: 2}", "optim: {state: int8, clip: 0.1}"};
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        struct run r;
        struct knobs second;
        static struct host host;
        struct err e = {0};
        char name[32], dir[PATH_MAX];
        snprintf(name, sizeof name, "own-%zu", i);
        second_init(&r, &second, &host, *state, name, recipes[i]);
        host.train_after = 1;
        run_go(&r);
        assert_ran(&r);
        assert_int_equal(host.n, 7);

        struct at_work s;
        struct plan_options so = {.knobs = &second, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
        struct train_state st = {0};
        struct plain_feed from = {{host.tokens, host.targets, host.positions, host.starts}};
        assert_worked(at_work_plan(&s, &so, &e), &e);
        assert_worked(at_work_start(&s, NULL, &e), &e);
        loss_scale_start(&st.scale, &second);
        for (int k = 0; k < host.n; k++) {
            double hyper[HYPER_COUNT], results[RESULT_COUNT], clip[CLIP_COUNT];
            const struct hyper_step at = {.step = st.step,
                                          .update = hyper_updates(&st) + 1,
                                          .trained_tokens = OTHER_SEQ,
                                          .loss_scale = st.scale.value};
            hyper_fill(&second, &at, hyper);
            assert_worked(session_set_hyper(s.s, hyper, &e), &e);
            assert_worked(session_run(s.s, PLAN_TRAIN, feed, &from, NULL, &e), &e);
            assert_worked(session_get_results(s.s, results, clip, &e), &e);
            const struct guest_answer *a = &host.answers[k];
            assert_true(a->loss == results[RESULT_LOSS_SUM] / results[RESULT_TOKENS]);
            assert_true(a->lr == hyper[HYPER_LR]);
            assert_memory_equal(&a->grad_norm, &clip[CLIP_NORM], sizeof a->grad_norm);
            assert_int_equal(a->skipped, clip[CLIP_SKIP] != 0);
            st.step++;
            st.skipped_steps += a->skipped;
            assert_worked(loss_scale_update(&st.scale, &second, !a->skipped, st.step, &e), &e);
        }
        if (second.precision == PRECISION_FP16)
            assert_true(host.answers[0].skipped); // this case occurs
        struct manifest_file files[MANIFEST_FILES];
        struct manifest m = read_second(&r, 6);
        snprintf(dir, sizeof dir, "%s/own-%zu-plain", ((const struct scratch *)*state)->dir, i);
        assert_worked(file_make_dirs(dir, &e), &e);
        assert_worked(snapshot_write(s.s, dir, NULL, files, &e), &e);
        assert_string_equal(files[MANIFEST_MODEL].hash, m.files[MANIFEST_MODEL].hash);
        assert_string_equal(files[MANIFEST_OPTIMIZER].hash, m.files[MANIFEST_OPTIMIZER].hash);
        assert_true(m.state.scale.value == st.scale.value);
        manifest_free(&m);
        at_work_close(&s);
    }
}

// ---------------------------------------------------------------- saved as one

static void resume(struct run *r, struct host *again) {
    host_init(again, OTHER_SEQ, OTHER_SEQ);
    again->run = r;
    again->train_after = 1;
    again->trained_at = 0; // the harness counts steps of this process from 0
    r->guests = &again->source;
    run_again(r);
}

static void test_resumes_to_the_bit(void **state) {
    struct run whole, part;
    struct knobs a, b;
    static struct host host, first, then;
    second_init(&whole, &a, &host, *state, "whole", "optim: {state: bf16}");
    second_init(&part, &b, &first, *state, "part", "optim: {state: bf16}");
    host.train_after = first.train_after = 1;
    run_go(&whole);
    assert_ran(&whole);
    part.stop_at = 3;
    run_go(&part);
    assert_failed(part.rc, ERR_STOPPED, &part.e, "stopped on request after step 3");
    resume(&part, &then);
    assert_ran(&part);
    assert_int_equal(part.first, 3);
    assert_string_equal(part.said, "");
    assert_int_equal(first.n_train + then.n_train, host.n_train);
    assert_int_equal(then.answers[0].own_step, first.n_train + 1);
    assert_same_tensors(whole.dir, part.dir, 6);
    assert_same_second(&whole, &part, 6);
}

// If anything is wrong with the second model, the whole checkpoint counts as damaged, and the one
// before is used.
static void test_damage_falls_back_to_a_pair(void **state) {
    enum { MISSING, CHANGED, FOLDER, OLDER, WAYS };
    struct run whole;
    struct knobs second;
    static struct host host, then;
    struct err e = {0};
    second_init(&whole, &second, &host, *state, "undamaged", "");
    host.train_after = 1;
    run_go(&whole);
    assert_ran(&whole);
    for (int way = 0; way < WAYS; way++) {
        struct run r;
        struct knobs own;
        static struct host first;
        char name[32], text[8];
        snprintf(name, sizeof name, "damaged-%d", way);
        second_init(&r, &own, &first, *state, name, "");
        run_set(&r, "save.every=2");
        run_set(&r, "save.keep=2");
        first.train_after = 1;
        r.stop_at = 4;
        run_go(&r);
        assert_int_equal(r.rc, ERR_STOPPED);
        assert_worked(checkpoint_verify(step_file(r.dir, 4, ""), NULL, &e), &e);
        char path[PATH_MAX], from[PATH_MAX];
        snprintf(path, sizeof path, "%s", second_file(&r, 4, "optimizer.safetensors"));
        if (way == MISSING) {
            assert_int_equal(unlink(path), 0);
        } else if (way == CHANGED) {
            FILE *f = fopen(path, "r+");
            assert_non_null(f);
            assert_int_equal(fseek(f, -4, SEEK_END), 0);
            assert_int_equal(fread(text, 1, 1, f), 1);
            text[0] ^= 1;
            assert_int_equal(fseek(f, -4, SEEK_END), 0);
            assert_int_equal(fwrite(text, 1, 1, f), 1);
            assert_int_equal(fclose(f), 0);
        } else {
            snprintf(path, sizeof path, "%s", second_file(&r, 4, ""));
            assert_worked(file_remove_tree(path, &e), &e);
            snprintf(from, sizeof from, "%s", second_file(&r, 2, ""));
            if (way == OLDER) // valid by itself, but of another step
                assert_int_equal(symlink(from, path), 0);
        }
        assert_int_equal(checkpoint_verify(step_file(r.dir, 4, ""), NULL, &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "its second model"));
        resume(&r, &then);
        assert_ran(&r);
        assert_int_equal(r.first, 2);
        assert_non_null(strstr(r.said, "is damaged: its second model"));
        assert_int_equal(then.answers[0].own_step, 4); // the checkpoint contains 3
        assert_same_tensors(whole.dir, r.dir, 6);
        assert_same_second(&whole, &r, 6);
        err_clear(&e);
    }
}

static void test_one_side_only_is_said(void **state) {
    struct run r;
    struct knobs second, other;
    static struct host host, then;
    second_init(&r, &second, &host, *state, "sides", "");
    r.guests = NULL;
    r.second = NULL;
    r.stop_at = 2;
    run_go(&r);
    assert_int_equal(r.rc, ERR_STOPPED);
    assert_false(file_exists(second_file(&r, 2, "")));
    r.second = &second;
    resume(&r, &then);
    assert_ran(&r);
    assert_non_null(strstr(r.said, "W '"));
    assert_non_null(strstr(r.said, "holds no second model; the one in interactive.recipe starts "
                                   "from its initial weights"));
    assert_int_equal(then.answers[0].own_step, 1);
    // A knob of the second model's mathematics that differs is named, with the model it belongs to.
    run_set(&r, "steps=7");
    other = second;
    other.optim_lr = 1e-2;
    r.second = &other;
    resume(&r, &then);
    assert_ran(&r);
    assert_non_null(strstr(r.said, "W the second model: optim.lr was "));
    r.second = NULL;
    r.guests = NULL;
    run_set(&r, "steps=8");
    run_again(&r);
    assert_ran(&r);
    assert_non_null(strstr(r.said, "holds a second model, which this run does not have"));
    // Another model in place of the second one is refused.
    run_set(&r, "steps=9");
    run_set(&r, "resume=true");
    r.second = &second;
    r.guests = &host.source;
    run_again(&r);
    assert_ran(&r);
    run_set(&r, "steps=10");
    snprintf(other.model, sizeof other.model, "%s", r.knobs.model);
    r.second = &other;
    run_again(&r);
    assert_failed(r.rc, ERR_MISMATCH, &r.e, CHECKPOINT_SECOND "' holds another model");
}

// ---------------------------------------------------------------- memory

static uint64_t arena_peak(const struct at_work *s) {
    struct mem_line lines[16];
    const size_t n = mem_lines(s->engine->mem, lines, 16);
    for (size_t i = 0; i < n; i++)
        if (strcmp(lines[i].class_name, "arena") == 0)
            return lines[i].peak_bytes;
    return 0;
}

static void test_memory_is_one_plan(void **state) {
    struct run r;
    struct knobs second;
    static struct host host;
    struct err e = {0};
    second_init(&r, &second, &host, *state, "plan", "");
    struct at_work s, alone, bulk;
    struct knobs records = second; // each sequence is one record, as in requests
    snprintf(records.data_path, sizeof records.data_path, "records.jsonl");
    records.data_pack = DATA_PACK_NONE;
    struct plan_options so = {
        .knobs = &records, .programs = {PLAN_TRAIN, PLAN_EVAL}, .real = DTYPE_F32};
    assert_worked(at_work_plan(&alone, &so, &e), &e);
    so.knobs = &r.knobs;
    assert_worked(at_work_plan(&bulk, &so, &e), &e);
    so.second = &second;
    assert_worked(at_work_plan(&s, &so, &e), &e);
    // The bulk model's arena is as large as without requests, and the second one's as large as
    // alone.
    assert_int_equal(s.plan.layout.arena_bytes, bulk.plan.layout.arena_bytes);
    assert_int_equal(plan_second_bytes(&s.plan), alone.plan.layout.arena_bytes);
    assert_int_equal(plan_arena_bytes(&s.plan),
                     s.plan.layout.arena_bytes + alone.plan.layout.arena_bytes);
    assert_true(plan_program(&s.plan, PLAN_TRAIN)->yields);
    struct plan_part parts[PLAN_PARTS];
    uint64_t sum = 0;
    assert_worked(at_work_start(&s, NULL, &e), &e);
    const int n = plan_parts(&s.plan, engine_on_device(s.engine), parts);
    for (int i = 0; i < n; i++)
        sum += parts[i].bytes;
    assert_int_equal(sum, engine_total_bytes(s.engine, &s.plan));
    assert_int_equal(arena_peak(&s), plan_arena_bytes(&s.plan));
    assert_true(s.s->second->engine == s.engine && s.s->second->plan == s.plan.second);
    at_work_close(&s);
    // One budget for both models: if only the bulk model fits, the run is refused, and the second
    // one is named.
    char text[64];
    assert_worked(at_work_ready(&bulk, NULL, &e), &e);
    snprintf(text, sizeof text, "memory=%llu",
             (unsigned long long)(engine_total_bytes(bulk.engine, &bulk.plan) +
                                  alone.plan.layout.arena_bytes / 4));
    run_set(&r, text);
    bulk.plan.knobs.memory = r.knobs.memory;
    assert_worked(at_work_ready(&bulk, NULL, &e), &e);
    at_work_close(&bulk);
    assert_worked(at_work_plan(&s, &so, &e), &e);
    assert_failed(at_work_ready(&s, NULL, &e), ERR_MEMORY, &e, "second model |process ");
    at_work_close(&s);
    at_work_close(&alone);
}

// ---------------------------------------------------------------- recipes

static void refused(const struct run *r, const char *path, int code, const char *parts) {
    struct knobs bulk = r->knobs, out;
    struct err e = {0};
    assert_worked(knobs_set_at(&bulk, KNOB_interactive_recipe, path, SET_BY_DEFAULT, &e), &e);
    err_clear(&e);
    assert_failed(second_knobs(&bulk, &out, &e), code, &e, parts);
}

static void test_recipes(void **state) {
    struct run r;
    struct knobs second, out;
    static struct host host;
    struct err e = {0};
    char path[PATH_MAX];
    second_init(&r, &second, &host, *state, "recipes", "threads: 64\nbatch: {micro: 7, accum: 9}");
    // Machine and requests come from the bulk run's knobs, the mathematics from the second recipe.
    assert_int_equal(second.threads, r.knobs.threads);
    assert_int_equal(second.batch_micro, 1);
    assert_int_equal(second.batch_accum, 1);
    assert_int_equal(second.seq, OTHER_SEQ);
    assert_int_equal(second.seed, 5);
    assert_int_equal(second.interactive_queue, r.knobs.interactive_queue);
    assert_true(second_wanted(&r.knobs));
    // A checkpoint of the second model can be named as its model.
    second_recipe(&second, &out);
    snprintf(path, sizeof path, "%s/again.yaml", ((const struct scratch *)*state)->dir);
    assert_worked(knobs_save_recipe(&out, path, &e), &e);
    struct knobs bulk = r.knobs;
    assert_worked(knobs_set_at(&bulk, KNOB_interactive_recipe, path, SET_BY_DEFAULT, &e), &e);
    assert_worked(second_knobs(&bulk, &out, &e), &e);
    assert_true(knobs_equal(&out, &second));

    refused(&r, "/nonexistent/second.yaml", ERR_IO, "interactive.recipe|/nonexistent/second.yaml");
    write_recipe(*state, "bad.yaml", "goal: hybrid", path);
    refused(&r, path, ERR_USAGE, "bad.yaml has goal=hybrid");
    write_recipe(*state, "bad.yaml", "interactive: {micro: 2}", path);
    refused(&r, path, ERR_USAGE, "bad.yaml has interactive.micro=2");
    write_recipe(*state, "bad.yaml", "interactive: {recipe: x.yaml}", path);
    refused(&r, path, ERR_USAGE, "bad.yaml has interactive.recipe=x.yaml");
    write_recipe(*state, "bad.yaml", "interactive: {micro: 1}\ngoal: interactive", path);
    assert_worked(knobs_set_at(&bulk, KNOB_interactive_recipe, path, SET_BY_DEFAULT, &e), &e);
    assert_worked(second_knobs(&bulk, &out, &e), &e); // values as they are
    write_recipe(*state, "bad.yaml", "no_such_knob: 1", path);
    refused(&r, path, ERR_USAGE, "interactive.recipe|bad.yaml:6|no_such_knob");
    run_set(&r, "device=cpu");
    write_recipe(*state, "bad.yaml", "device: cuda", path);
    refused(&r, path, ERR_USAGE, "bad.yaml has device=cuda but the run is on cpu");

    // Lengths: the recipe's, and those that the bulk run asks for.
    struct at_work s;
    struct plan_options so = {
        .knobs = &r.knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F32, .second = &second};
    second.seq = 65;
    assert_failed(at_work_plan(&s, &so, &e), ERR_USAGE, &e,
                  "interactive.recipe=|seq=65 is more than the 64 positions");
    at_work_close(&s);
    second.interactive_seq = 70;
    second.seq = 70;
    assert_failed(at_work_plan(&s, &so, &e), ERR_USAGE, &e,
                  "interactive.seq=70 is more than the 64 positions");
    at_work_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bulk_is_untouched),
        cmocka_unit_test(test_learns_as_a_run_of_its_own),
        cmocka_unit_test(test_resumes_to_the_bit),
        cmocka_unit_test(test_damage_falls_back_to_a_pair),
        cmocka_unit_test(test_one_side_only_is_said),
        cmocka_unit_test(test_memory_is_one_plan),
        cmocka_unit_test(test_recipes),
    };
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}

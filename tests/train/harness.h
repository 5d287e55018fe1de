// harness.h - shared by the tests of src/train: a scratch folder, a model small enough to save and
// load thousands of times, and a run of the trainer in one call.
#ifndef HAGGLE_TESTS_TRAIN_HARNESS_H
#define HAGGLE_TESTS_TRAIN_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "at_work.h"
#include "base/file.h"
#include "model/safetensors.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
enum { UNDER_SANITIZER = 1 };
#else
enum { UNDER_SANITIZER = 0 };
#endif

enum { RUN_STEPS_MOST = 2048, SAID_BYTES = 16384 };

struct scratch {
    char dir[256];
    char nano[300]; // the small model's folder
};

static inline void assert_worked(int rc, const struct err *e) {
    if (rc != 0)
        fail_msg("unexpected error %d: %s", rc, e->text);
}

// Checks that the call failed with this code and a message that contains every part (separated by
// '|').
static inline void assert_failed(int rc, int code, const struct err *e, const char *parts) {
    if (rc != code || e->code != rc)
        fail_msg("expected %s with '%s', got %s (e: %d): %s", err_name(code), parts, err_name(rc),
                 e->code, e->text);
    char copy[512];
    snprintf(copy, sizeof copy, "%s", parts);
    char *rest = copy;
    for (char *part; (part = strsep(&rest, "|")) != NULL;)
        if (strstr(e->text, part) == NULL)
            fail_msg("the message lacks '%s': %s", part, e->text);
}

// ---------------------------------------------------------------- folders

// What is wrong with the weights of a model: nothing; the embedding has a NaN at element 5; the
// last norm is so large that logits are infinite.
enum poison { POISON_NONE, POISON_NAN, POISON_HUGE };

static inline void write_model(const char *dir, const struct model_shape *s, enum poison poison) {
    struct err e = {0};
    char path[PATH_MAX];
    assert_worked(file_make_dirs(dir, &e), &e);
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_worked(model_shape_write_config(s, f, &e), &e);
    assert_int_equal(fclose(f), 0);
    struct safetensors_writer *w;
    struct model_param p;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_worked(safetensors_writer_open(&w, path, &e), &e);
    for (int64_t i = 0; model_param_at(s, i, &p); i++)
        assert_worked(safetensors_writer_declare(w, p.name, DTYPE_F32, p.rank, p.dims, &e), &e);
    for (int64_t i = 0; model_param_at(s, i, &p); i++) {
        int64_t n = p.dims[0] * (p.rank > 1 ? p.dims[1] : 1);
        float *data = malloc((size_t)n * sizeof *data);
        assert_non_null(data);
        model_param_init(&p, 7, 0, n, data);
        if (poison == POISON_NAN && p.role == ROLE_WTE)
            data[5] = NAN;
        for (int64_t k = 0; poison == POISON_HUGE && p.role == ROLE_NORMF_W && k < n; k++)
            data[k] = 3e38f;
        assert_worked(safetensors_writer_put(w, data, (size_t)n * sizeof *data, &e), &e);
        free(data);
    }
    assert_worked(safetensors_writer_close(w, NULL, NULL, &e), &e);
}

// A Llama of 10,000 parameters.
static inline void make_nano(const char *dir, int64_t width, enum poison poison) {
    struct err e = {0};
    struct model_shape s;
    assert_worked(model_shape_builtin(&s, "tiny", &e), &e);
    s.width = width;
    s.layers = 2;
    s.heads = 2;
    s.kv_heads = 1;
    s.head_dim = 8;
    s.ffn = 32;
    s.max_positions = 64;
    write_model(dir, &s, poison);
}

static inline int scratch_setup(void **state) {
    struct scratch *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -1;
    *state = s;
    if (file_make_temp_dir(s->dir, sizeof s->dir, "train", NULL) != 0)
        return -1;
    snprintf(s->nano, sizeof s->nano, "%s/nano", s->dir);
    make_nano(s->nano, 16, POISON_NONE);
    return 0;
}

static inline int scratch_teardown(void **state) {
    struct scratch *s = *state;
    struct err e = {0};
    int rc = file_remove_tree(s->dir, &e);
    free(s);
    return rc;
}

// The path dir/checkpoints/step-.../name of a run, valid until the fourth next call. name "": the
// folder.
static inline const char *step_file(const char *run, int64_t step, const char *name) {
    static char paths[4][PATH_MAX];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s/checkpoints/step-%09lld%s%s", run, (long long)step,
             *name ? "/" : "", name);
    return path;
}

static inline void assert_same_file(const char *a, const char *b) {
    struct err e = {0};
    char *x, *y;
    size_t n, m;
    assert_worked(file_read_all(a, (size_t)1 << 30, &x, &n, &e), &e);
    assert_worked(file_read_all(b, (size_t)1 << 30, &y, &m, &e), &e);
    if (n != m || memcmp(x, y, n) != 0)
        fail_msg("%s and %s differ", a, b);
    free(x);
    free(y);
}

// Compares weights and both moments of step `step`, bit for bit.
static inline void assert_same_tensors(const char *run_a, const char *run_b, int64_t step) {
    assert_same_file(step_file(run_a, step, "model.safetensors"),
                     step_file(run_b, step, "model.safetensors"));
    assert_same_file(step_file(run_a, step, "optimizer.safetensors"),
                     step_file(run_b, step, "optimizer.safetensors"));
}

// ---------------------------------------------------------------- runs

struct run {
    struct knobs knobs;
    char dir[300];
    bool reference;
    volatile sig_atomic_t stop;
    int64_t stop_at;                   // the observer asks to stop after this step; 0: never
    int64_t flag_at;                   // the flag is set after this step, as by a signal; 0: never
    int save_pipe;                     // > 0: each saved step is written there (int64_t)
    const struct guest_source *guests; // NULL: none
    const struct knobs *second;        // of a second model that answers them; NULL: none
    bool checking;                     // every op is observed
    // Called after a step (save NULL), just before it is saved, and after each save.
    void (*hook)(struct run *r, const struct train_save *save);
    // What was seen:
    double losses[RUN_STEPS_MOST], lrs[RUN_STEPS_MOST]; // by step, counted from 0
    uint64_t step_ns, data_wait_ns, source_wait_ns;     // of all steps
    int64_t first, last, steps, skipped;
    int starts, evals, saves, failed_saves, ends;
    struct train_eval eval;
    double eval_losses[RUN_STEPS_MOST]; // by validation
    int64_t eval_steps[RUN_STEPS_MOST];
    char said[SAID_BYTES]; // every message, with its level's letter
    struct train_result result;
    struct err e;
    int rc;
};

static inline void run_set(struct run *r, const char *assignment) {
    struct err e = {0};
    assert_worked(knobs_set_assignment(&r->knobs, assignment, SET_BY_COMMAND_LINE, &e), &e);
}

// A run named `name` in the scratch folder, on the small model, that saves nothing until its end.
static inline void run_init(struct run *r, const struct scratch *s, const char *name) {
    memset(r, 0, sizeof *r);
    knobs_init(&r->knobs);
    snprintf(r->dir, sizeof r->dir, "%s/%.30s", s->dir, name);
    snprintf(r->knobs.model, sizeof r->knobs.model, "%s", s->nano);
    snprintf(r->knobs.run_dir, sizeof r->knobs.run_dir, "%s", r->dir);
    run_set(r, "seq=16");
    run_set(r, "batch.micro=2");
    run_set(r, "steps=6");
    run_set(r, "sched.warmup=2");
    run_set(r, "optim.lr=3e-3");
    run_set(r, "eval.every=0");
    run_set(r, "eval.batches=3");
    run_set(r, "threads=1");
    run_set(r, "cpu.blas=builtin");
    run_set(r, "tokenizer=bytes"); // the small model has no tokenizer.json
    run_set(r, "data.cache=none");
}

static inline int run_on_start(void *arg, const struct train_start *start, struct err *e) {
    struct run *r = arg;
    (void)e;
    r->first = start->state.step;
    r->starts++;
    return 0;
}

static inline int run_on_step(void *arg, const struct train_step *step, struct err *e) {
    struct run *r = arg;
    assert_true(step->step >= 1 && step->step <= RUN_STEPS_MOST);
    r->losses[step->step - 1] = step->loss;
    r->lrs[step->step - 1] = step->lr;
    r->last = step->step;
    r->steps++;
    r->skipped += step->skipped;
    r->step_ns += step->step_ns;
    r->data_wait_ns += step->data_wait_ns;
    r->source_wait_ns += step->data.source_wait_ns;
    if (r->flag_at == step->step)
        r->stop = 1;
    if (r->hook != NULL)
        r->hook(r, NULL);
    return r->stop_at == step->step ? err_set(e, ERR_STOPPED, "enough") : 0;
}

static inline int run_on_eval(void *arg, const struct train_eval *eval, struct err *e) {
    struct run *r = arg;
    (void)e;
    assert_in_range(r->evals, 0, RUN_STEPS_MOST - 1);
    r->eval_losses[r->evals] = eval->loss;
    r->eval_steps[r->evals] = eval->step;
    r->evals++;
    r->eval = *eval;
    return 0;
}

static inline int run_on_save(void *arg, const struct train_save *save, struct err *e) {
    struct run *r = arg;
    (void)e;
    if (r->hook != NULL)
        r->hook(r, save);
    if (save->rc == 0) {
        r->saves++;
        assert_int_equal(save->error[0], '\0');
        if (r->save_pipe > 0)
            assert_int_equal(write(r->save_pipe, &save->step, sizeof save->step),
                             sizeof save->step);
    } else {
        r->failed_saves++;
        assert_int_not_equal(save->error[0], '\0');
    }
    return 0;
}

static inline void run_on_message(void *arg, enum log_level level, const char *text) {
    struct run *r = arg;
    size_t n = strlen(r->said);
    snprintf(r->said + n, sizeof r->said - n, "%c %s\n", "IWE"[level], text);
}

static inline void run_on_end(void *arg, const struct train_result *result) {
    struct run *r = arg;
    (void)result;
    r->ends++;
}

// Opens a trainer for the plan, in a new engine unless one is open.
static inline int trainer_at_work(struct trainer **out, struct at_work *w,
                                  const struct trainer_options *o, struct err *e) {
    *out = NULL;
    TRY(at_work_open(w, NULL, e));
    return trainer_open(out, &w->plan, w->engine, o, e);
}

// Plans, trains and closes. Fills r->rc, r->e, r->result and what the observer saw.
static inline void run_go(struct run *r) {
    struct at_work s;
    const bool guests = r->guests && !r->second;
    const struct plan_options po = {
        .knobs = &r->knobs,
        .programs = {PLAN_TRAIN, r->knobs.eval_every > 0 ? PLAN_EVAL : NULL,
                     guests ? PLAN_GUEST_EVAL : NULL, guests ? PLAN_GUEST_TRAIN : NULL},
        .second = r->second,
        .real = DTYPE_F32};
    const struct engine_options eo = {.checking = r->checking, .reference = r->reference};
    struct trainer_options to = {.observer = {.arg = r,
                                              .on_start = run_on_start,
                                              .on_step = run_on_step,
                                              .on_eval = run_on_eval,
                                              .on_save = run_on_save,
                                              .on_message = run_on_message,
                                              .on_end = run_on_end},
                                 .stop = &r->stop,
                                 .guests = r->guests};
    struct trainer *t = NULL;
    err_clear(&r->e);
    r->rc = at_work_plan(&s, &po, &r->e);
    if (r->rc == 0)
        r->rc = at_work_open(&s, &eo, &r->e);
    if (r->rc == 0)
        r->rc = trainer_open(&t, &s.plan, s.engine, &to, &r->e);
    if (r->rc == 0)
        r->rc = trainer_run(t, &r->result, &r->e);
    trainer_close(t);
    at_work_close(&s);
}

// Runs again with the same knobs, as the same command would.
static inline void run_again(struct run *r) {
    struct knobs knobs = r->knobs;
    char dir[sizeof r->dir];
    bool reference = r->reference;
    const struct guest_source *guests = r->guests;
    const struct knobs *second = r->second;
    memcpy(dir, r->dir, sizeof dir);
    memset(r, 0, sizeof *r);
    r->knobs = knobs;
    r->reference = reference;
    r->guests = guests;
    r->second = second;
    memcpy(r->dir, dir, sizeof dir);
    run_go(r);
}

static inline void assert_ran(const struct run *r) {
    assert_worked(r->rc, &r->e);
}

#endif

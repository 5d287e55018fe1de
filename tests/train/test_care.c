// test_care.c - a run that is taken care of: the best checkpoint stays and is the best, patience
// ends a run, a run that diverges ends with a sound checkpoint, and no sound run is ended. On one
// rank and on two.
#include "harness.h"

#include "train/crew.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>

// Like run_go, on as many ranks as the knobs say.
static void keep_result(void *arg, const struct train_result *result) {
    struct run *r = arg;
    r->result = *result;
    r->ends++;
}

static void go(struct run *r) {
    const struct trainer_options to = {.observer = {.arg = r,
                                                    .on_start = run_on_start,
                                                    .on_step = run_on_step,
                                                    .on_eval = run_on_eval,
                                                    .on_save = run_on_save,
                                                    .on_message = run_on_message,
                                                    .on_end = keep_result},
                                       .stop = &r->stop};
    err_clear(&r->e);
    r->rc = crew_train(&r->knobs, &to, &r->e);
}

static void again(struct run *r) {
    struct run next = {.knobs = r->knobs, .hook = r->hook};
    memcpy(next.dir, r->dir, sizeof next.dir);
    *r = next;
    go(r);
}

static void set_all(struct run *r, const char *settings) {
    char copy[512], *rest = copy;
    snprintf(copy, sizeof copy, "%s", settings);
    for (char *one; (one = strsep(&rest, " ")) != NULL;)
        if (*one != '\0')
            run_set(r, one);
}

static void init(struct run *r, const struct scratch *s, const char *name, const char *settings) {
    run_init(r, s, name);
    run_set(r, "generate.tokens=0");
    set_all(r, settings);
}

static void says(const char *said, const char *text) {
    if (strstr(said, text) == NULL)
        fail_msg("'%s' was not said: %s", text, said);
}

// The checkpoints in a run's folder, with those that were set aside.
static int count_checkpoints(const char *run, const char *ending) {
    char path[PATH_MAX];
    int n = 0;
    snprintf(path, sizeof path, "%s/checkpoints", run);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *x; (x = readdir(d)) != NULL;) {
        const char *dot = strchr(x->d_name, '.');
        n += strncmp(x->d_name, "step-", 5) == 0 && strcmp(dot ? dot : "", ending) == 0;
    }
    closedir(d);
    return n;
}

static int best_of(const struct run *r) {
    int best = 0;
    for (int i = 1; i < r->evals; i++)
        if (r->eval_losses[i] < r->eval_losses[best])
            best = i;
    return best;
}

// A learning rate that soon is too high: validations get better, then worse.
static const char WAVE[] = "steps=40 eval.every=2 save.every=4 save.keep=1 optim.lr=0.3 "
                           "sched.warmup=40 stop.diverged=false save.best=true";

// The best checkpoint is the one with the lowest loss, stays beside the newest, and has the weights
// that gave that loss.
static void assert_best_kept(const struct scratch *s, const struct run *r) {
    struct err e = {0};
    char path[PATH_MAX];
    const int best = best_of(r);
    const int64_t step = r->eval_steps[best];
    assert_int_equal(r->result.state.best.step, step);
    assert_true(r->result.state.best.loss == r->eval_losses[best]);
    assert_int_equal(r->result.state.best.waited, r->evals - 1 - best);
    assert_string_equal(r->result.best, step_file(r->dir, step, ""));
    assert_worked(checkpoint_find_best(r->dir, &(struct checkpoint_listener){0}, path, &e), &e);
    assert_string_equal(path, step_file(r->dir, step, ""));
    assert_worked(checkpoint_verify(path, NULL, &e), &e);
    struct run look;
    init(&look, s, "look", "steps=0 eval.every=1 save.last=false resume=false");
    snprintf(look.knobs.model, sizeof look.knobs.model, "%.900s", path);
    go(&look);
    assert_ran(&look);
    assert_true(look.eval.loss == r->eval_losses[best]);
}

static void test_best(void **state) {
    const struct scratch *s = *state;
    struct run r, cut;
    init(&r, s, "best", WAVE);
    go(&r);
    assert_ran(&r);
    const int best = best_of(&r);
    assert_in_range(best, 1, r.evals - 3); // else this tests nothing
    assert_best_kept(s, &r);
    assert_int_equal(count_checkpoints(r.dir, ""), 2); // the newest and the best
    // A resumed run knows the best so far, wherever it was cut.
    for (int64_t at = r.eval_steps[best] - 1; at <= r.eval_steps[best] + 3; at += 2) {
        char name[32];
        snprintf(name, sizeof name, "best-cut-%d", (int)at);
        init(&cut, s, name, WAVE);
        cut.stop_at = at;
        go(&cut);
        assert_int_equal(cut.rc, ERR_STOPPED);
        const int before = cut.evals;
        double losses[RUN_STEPS_MOST];
        int64_t steps[RUN_STEPS_MOST];
        memcpy(losses, cut.eval_losses, sizeof losses);
        memcpy(steps, cut.eval_steps, sizeof steps);
        again(&cut);
        assert_ran(&cut);
        assert_int_equal(cut.first, at);
        assert_int_equal(before + cut.evals, r.evals);
        memmove(cut.eval_losses + before, cut.eval_losses, (size_t)cut.evals * sizeof *losses);
        memmove(cut.eval_steps + before, cut.eval_steps, (size_t)cut.evals * sizeof *steps);
        memcpy(cut.eval_losses, losses, (size_t)before * sizeof *losses);
        memcpy(cut.eval_steps, steps, (size_t)before * sizeof *steps);
        cut.evals += before;
        assert_best_kept(s, &cut);
        assert_same_tensors(r.dir, cut.dir, r.eval_steps[best]);
    }
}

// Nothing else is saved: only validations decide.
static void test_best_alone(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct err e = {0};
    char path[PATH_MAX];
    init(&r, s, "alone", WAVE);
    set_all(&r, "save.every=0 save.last=false");
    go(&r);
    assert_ran(&r);
    assert_best_kept(s, &r);
    assert_int_equal(count_checkpoints(r.dir, ""), 1);
    // Without save.best there is none, also when the checkpoints are there.
    init(&r, s, "none", "save.best=false");
    go(&r);
    assert_ran(&r);
    assert_failed(checkpoint_find_best(r.dir, &(struct checkpoint_listener){0}, path, &e),
                  ERR_USAGE, &e, "no best checkpoint|save.best=true");
}

// A best one that someone has removed is said to be gone, and the next validation is the best.
static void test_best_is_gone(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct err e = {0};
    init(&r, s, "gone", WAVE);
    go(&r);
    assert_ran(&r);
    assert_worked(file_remove_tree(r.result.best, &e), &e);
    set_all(&r, "steps=44");
    again(&r);
    assert_ran(&r);
    says(r.said, "is gone; the next validation counts as the best");
    assert_best_kept(s, &r);
}

// The disk is full when the second validation is the best: files cannot grow.
static void fill_disk(struct run *r, const struct train_save *save) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = save == NULL && r->last == 4 ? 20000 : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    if (save == NULL || r->last != 4)
        return;
    assert_int_not_equal(save->rc, 0);
    assert_false(save->best);
    assert_worked(checkpoint_verify(step_file(r->dir, 2, ""), NULL, &r->e), &r->e);
    assert_int_equal(count_checkpoints(r->dir, ""), 1);
}

// A best one that cannot be saved does not cost the one before it, and counts no more.
static void test_best_not_saved(void **state) {
    struct run r;
    init(&r, *state, "full", WAVE);
    set_all(&r, "save.every=0 save.last=false");
    r.hook = fill_disk;
    signal(SIGXFSZ, SIG_IGN);
    go(&r);
    signal(SIGXFSZ, SIG_DFL);
    assert_ran(&r);
    assert_int_equal(r.failed_saves, 1);
    assert_true(r.eval_steps[1] == 4 && r.eval_losses[1] < r.eval_losses[0]);
    assert_best_kept(*state, &r);
}

// ---------------------------------------------------------------- patience

static void test_patience(void **state) {
    const struct scratch *s = *state;
    struct run r;
    init(&r, s, "patience", WAVE);
    set_all(&r, "save.best=false save.last=false save.every=0 stop.patience=3 save.every=1000");
    go(&r);
    assert_ran(&r);
    const int best = best_of(&r);
    assert_int_equal(r.result.end, TRAIN_PATIENCE);
    assert_int_equal(r.result.state.best.waited, 3);
    assert_int_equal(best, r.evals - 4);
    assert_int_equal(r.last, r.eval_steps[best] + 6);
    says(r.said, "I the last 3 validations had no better loss (the best is ");
    says(r.said, "of step ");
    assert_true(checkpoint_verify(step_file(r.dir, r.last, ""), NULL, &r.e) == 0);
    const int64_t ended = r.last;
    again(&r); // the same command has nothing to do
    assert_ran(&r);
    assert_int_equal(r.steps, 0);
    assert_int_equal(r.result.end, TRAIN_PATIENCE);
    assert_int_equal(r.result.state.step, ended);
    run_set(&r, "stop.patience=5");
    again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, ended);
    assert_int_equal(r.result.end, TRAIN_PATIENCE);
    assert_int_equal(r.last, ended + 4); // two more validations
    run_set(&r, "stop.patience=0");
    again(&r);
    assert_ran(&r);
    assert_int_equal(r.result.end, TRAIN_DONE);
    assert_int_equal(r.last, 40);
}

static void test_refusals(void **state) {
    const struct scratch *s = *state;
    static const struct {
        const char *settings, *says;
    } cases[] = {{"save.best=true", "save.best looks at validations|eval.every"},
                 {"stop.patience=2", "stop.patience looks at validations|eval.every"},
                 {"save.best=true eval.every=2 data.val=0 data.path=", "data.val"}};
    char text[300];
    struct err e = {0};
    snprintf(text, sizeof text, "%.250s/text.txt", s->dir);
    FILE *f = fopen(text, "w");
    assert_non_null(f);
    for (int i = 0; i < 400; i++)
        fprintf(f, "line %d of a text without a validation part\n", i);
    fclose(f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct run r;
        init(&r, s, "refused", cases[i].settings);
        if (i == 2)
            snprintf(r.knobs.data_path, sizeof r.knobs.data_path, "%s", text);
        go(&r);
        assert_failed(r.rc, ERR_USAGE, &r.e, cases[i].says);
        assert_int_equal(r.starts, 0);
        assert_false(file_is_dir(r.dir));
        err_clear(&e);
    }
}

// ---------------------------------------------------------------- runs that diverge

// Sound for 60 steps; then, resumed, with a learning rate that ruins the weights at once.
static const char CALM[] = "steps=60 save.every=20 save.keep=1 sched.kind=constant";
static const char WILD[] = "steps=400 optim.lr=3 optim.decay=0 sched.warmup=0";

static void test_diverges(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct err e = {0};
    init(&r, s, "diverges", CALM);
    go(&r);
    assert_ran(&r);
    assert_int_equal(count_checkpoints(r.dir, ""), 1);
    set_all(&r, WILD);
    again(&r);
    assert_failed(r.rc, ERR_NUMERIC, &r.e,
                  "since step 6|the loss has nearly always been above|the run has "
                  "diverged|optim.lr, such as 1.5|step-000000060' is sound");
    assert_int_equal(r.result.end, TRAIN_DIVERGED);
    assert_in_range(r.last, 160, 175);
    // The sound one stays, although one checkpoint is kept and newer ones were saved. They do not
    // count any more.
    assert_worked(checkpoint_verify(step_file(r.dir, 60, ""), NULL, &e), &e);
    assert_int_equal(count_checkpoints(r.dir, ""), 1);
    assert_int_equal(count_checkpoints(r.dir, ".diverged"), 1);
    // The advice is good: the same run with a lower rate goes on from there.
    set_all(&r, "optim.lr=1e-3 steps=80");
    again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, 60);
    assert_int_equal(count_checkpoints(r.dir, ""), 1);
}

// Ruined from the first step on: no checkpoint is sound, and the next run begins anew.
static void test_diverges_at_once(void **state) {
    const struct scratch *s = *state;
    struct run r;
    init(&r, s, "at-once", WILD);
    set_all(&r, "save.every=30");
    go(&r);
    assert_failed(r.rc, ERR_NUMERIC, &r.e, "diverged|No checkpoint is known to be sound|anew");
    assert_int_equal(count_checkpoints(r.dir, ""), 0);
    assert_true(r.last < 400);
    set_all(&r, "stop.diverged=false"); // goes on all the same
    again(&r);
    assert_ran(&r);
    assert_int_equal(r.last, 400);
    set_all(&r, "optim.lr=1e-3 steps=20 stop.diverged=true resume=false");
    again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, 0);
}

// A run that is stopped while it diverges, and continued, ends as one that was not stopped.
static void test_resumed_while_diverging(void **state) {
    const struct scratch *s = *state;
    struct run whole, cut;
    init(&whole, s, "whole", CALM);
    go(&whole);
    init(&cut, s, "cut", CALM);
    go(&cut);
    set_all(&whole, WILD);
    again(&whole);
    set_all(&cut, WILD);
    cut.knobs.steps = 100;
    again(&cut);
    assert_ran(&cut); // too few steps to tell
    cut.knobs.steps = 400;
    again(&cut);
    assert_int_equal(cut.first, 100);
    assert_int_equal(cut.rc, ERR_NUMERIC);
    assert_int_equal(cut.last, whole.last);
}

// What must not be ended: several seeds; a warm-up of one step; one short sequence per step; fp16,
// whose first steps are skipped; the models of the references.
static void test_sound_runs_go_on(void **state) {
    static const char *const settings[] = {
        "steps=150 optim.lr=3e-3",
        "steps=150 optim.lr=1e-2 sched.warmup=0 batch.micro=1 seq=4",
        "steps=150 precision=bf16 optim.lr=1e-2 sched.warmup=1",
        "steps=150 precision=fp16 scale.start=16777216 scale.growth=20",
    };
    static const char *const models[] = {NULL, "tiny", "qwen2", "gpt2-odd", "llama3-scaled"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
            for (int seed = 1; seed <= (m == 0 ? 4 : 1); seed++) {
                struct run r;
                init(&r, *state, "sound", settings[i]);
                r.knobs.seed = seed;
                set_all(&r, "save.every=0 save.last=false resume=false");
                if (m == 1)
                    run_set(&r, "model=tiny");
                else if (m > 1)
                    snprintf(r.knobs.model, sizeof r.knobs.model,
                             HAGGLE_SOURCE_DIR "/tests/reference/%s", models[m]);
                go(&r);
                if (r.rc != 0 || r.last != 150)
                    fail_msg("model %zu, settings %zu, seed %d: ended at step %d: %s", m, i, seed,
                             (int)r.last, r.e.text);
                if (strstr(settings[i], "fp16") != NULL)
                    assert_true(r.skipped > 0);
            }
}

// ---------------------------------------------------------------- two ranks

// Two ranks decide as one, whichever way they share the work: the run ends, and no rank waits for
// another that has ended.
static void test_ranks(void **state) {
    static const char *const layouts[] = {"parallel.data=2", "parallel.pipe=2",
                                          "parallel.data=2 comm.every=2"};
    const struct scratch *s = *state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct run r;
        char name[32];
        snprintf(name, sizeof name, "ranks-%zu", i);
        init(&r, s, name, WAVE);
        set_all(&r, "comm.engine=thread comm.timeout=60s");
        set_all(&r, layouts[i]);
        go(&r);
        assert_ran(&r);
        assert_in_range(best_of(&r), 1, r.evals - 3);
        assert_best_kept(s, &r);
        set_all(&r, "resume=false stop.patience=2");
        again(&r);
        assert_ran(&r);
        assert_int_equal(r.result.end, TRAIN_PATIENCE);
        assert_int_equal(best_of(&r), r.evals - 3);
        set_all(&r, "resume=false stop.patience=0 stop.diverged=true save.best=false eval.every=0");
        set_all(&r, WILD);
        again(&r);
        assert_failed(r.rc, ERR_NUMERIC, &r.e, "the run has diverged|No checkpoint");
        assert_int_equal(count_checkpoints(r.dir, ""), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_best_alone),
        cmocka_unit_test(test_best_is_gone),
        cmocka_unit_test(test_best_not_saved),
        cmocka_unit_test(test_patience),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_diverges),
        cmocka_unit_test(test_diverges_at_once),
        cmocka_unit_test(test_resumed_while_diverging),
        cmocka_unit_test(test_sound_runs_go_on),
        cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

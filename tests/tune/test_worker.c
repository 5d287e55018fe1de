// test_worker.c - workers: they measure what a new process measures, report their steps, end a
// trial when asked, and are replaced when they are lost.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tune/worker.h"
#include "skips.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
enum { UNDER_SANITIZER = 1 };
#else
enum { UNDER_SANITIZER = 0 };
#endif

enum { WARMUP = 1, STEPS = 6 };
static const uint64_t SECOND = 1000000000;

// ---------------------------------------------------------------- helpers

static void assert_worked(int rc, const struct err *e) {
    if (rc != 0)
        fail_msg("unexpected error %d: %s", rc, e->text);
}

static struct knobs small(const char *more) {
    struct knobs k;
    struct err e = {0};
    char copy[512], *rest = copy;
    knobs_init(&k);
    snprintf(copy, sizeof copy, "device=cpu seq=16 batch.micro=2 threads=1 %s", more);
    for (char *one; (one = strsep(&rest, " ")) != NULL;)
        if (*one)
            assert_worked(knobs_set_assignment(&k, one, SET_BY_COMMAND_LINE, &e), &e);
    return k;
}

static struct worker *open_worker(void (*fault)(void *, const struct knobs *, int64_t)) {
    const struct worker_options o = {.fault = fault};
    struct worker *w;
    struct err e = {0};
    assert_worked(worker_open(&w, &o, &e), &e);
    return w;
}

static void run_steps(struct worker *w, const char *text, int64_t steps, struct trial_result *out) {
    const struct knobs k = small(text);
    const struct worker_job job = {.knobs = &k, .warmup = WARMUP, .steps = steps};
    struct err e = {0};
    assert_worked(worker_run(w, &job, out, &e), &e);
}

static void run(struct worker *w, const char *text, struct trial_result *out) {
    run_steps(w, text, STEPS, out);
}

static void run_well(struct worker *w, const char *text, struct trial_result *out) {
    run(w, text, out);
    if (out->rc != 0)
        fail_msg("%s: not measured: %s", text, out->reason);
    assert_int_equal(out->steps, STEPS);
    assert_int_equal(out->warmup, WARMUP);
}

static void run_fresh(const char *text, int64_t steps, struct trial_result *out) {
    const struct knobs k = small(text);
    const struct trial_options o = {.warmup = WARMUP, .steps = steps};
    struct err e = {0};
    assert_worked(trial_run(&k, &o, out, &e), &e);
    if (out->rc != 0)
        fail_msg("%s: not measured: %s", text, out->reason);
}

static bool is_running(pid_t pid) { // a zombie that was not waited for yet has ended
    char path[64], line[256] = "", state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    const char *end = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    fclose(f);
    return end && sscanf(end, ") %c", &state) == 1 && state != 'Z' && state != 'X';
}

static void assert_ends(pid_t pid) {
    for (int i = 0; i < 1000 && is_running(pid); i++)
        usleep(10000);
    assert_false(is_running(pid));
}

// ---------------------------------------------------------------- the same figures

// Losses show, to the bit, whether a trial began with the same weights as in a new process.
static void assert_as_fresh(struct worker *w, const char *text) {
    struct trial_result a, b;
    run_fresh(text, STEPS, &a);
    run_well(w, text, &b);
    assert_false(b.kept_weights);
    if (a.loss_first != b.loss_first || a.loss_last != b.loss_last)
        fail_msg("%s: losses %.17g to %.17g, fresh %.17g to %.17g", text, b.loss_first, b.loss_last,
                 a.loss_first, a.loss_last);
    assert_int_equal(a.tokens, b.tokens);
    assert_int_equal(a.trained_tokens, b.trained_tokens);
    assert_int_equal(b.split.steps, STEPS);
    assert_memory_equal(a.by_class, b.by_class, sizeof a.by_class);
    assert_memory_equal(&a.cost, &b.cost, sizeof a.cost);
    trial_free(&a);
    trial_free(&b);
}

static void test_begins_as_a_fresh_process(void **state) {
    // Each setting differs from the one before in the places or types of its weights, or in its
    // model. No state can be kept, and leftovers must not have an effect.
    static const char *const settings[] = {
        "batch.micro=3",
        "precision=bf16",
        "batch.accum=2 recompute.mode=full",
        "optim.state=int8 threads=2 cpu.pin=true",
        "precision=fp16 data.workers=2",
        "seq=24 data.prefetch=0",
        "precision=bf16 optim.state=bf16 seed=4 cpu.isa=generic",
    };
    struct worker *w = open_worker(NULL);
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        assert_as_fresh(w, settings[i]);
    assert_int_equal(worker_starts(w), 1);
    worker_close(w);
}

static void test_keeps_weights_and_says_so(void **state) {
    struct worker *w = open_worker(NULL);
    struct trial_result a, b;
    (void)state;
    run_well(w, "", &a);
    assert_false(a.kept_weights);
    // More and fewer activations, other data and threads: the weights stay at the same places.
    static const char *const others[] = {"batch.micro=8", "batch.micro=1 batch.accum=3",
                                         "recompute.mode=full", "threads=2", "seq=32 seed=2"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        run_well(w, others[i], &b);
        assert_true(b.kept_weights);
        assert_true(isfinite(b.loss_first) && isfinite(b.loss_last));
        trial_free(&b);
    }
    run_well(w, "", &b);
    assert_true(b.kept_weights);
    assert_true(b.loss_first < a.loss_first); // it has learned in the meantime
    assert_int_equal(a.tokens, b.tokens);
    trial_free(&a);
    trial_free(&b);
    worker_close(w);
}

static void test_bad_weights_are_not_kept(void **state) {
    struct worker *w = open_worker(NULL);
    struct trial_result r;
    (void)state;
    // Only the gradients of the first update are finite. The loss stays finite.
    run_well(w, "optim.lr=100 optim.decay=10 optim.clip=0 sched.warmup=0", &r);
    assert_true(r.loss_last > 1000);
    trial_free(&r);
    assert_as_fresh(w, "");
    worker_close(w);
}

// Memory that a larger trial left in the process does not count in the figure.
static void test_memory_is_the_trials_own(void **state) {
    static const char *const settings[] = {
        "seq=128 batch.micro=2", "seq=128 batch.micro=12", "seq=128 batch.micro=2",
        "seq=128 batch.micro=16 recompute.mode=full", "seq=128 batch.micro=4"};
    struct worker *w = open_worker(NULL);
    (void)state;
    if (UNDER_SANITIZER) { // a sanitizer's shadow memory and quarantine are resident, too
        worker_close(w);
        skip_because("a sanitizer's memory would be measured");
    }
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct trial_result fresh, kept;
        run_fresh(settings[i], 1, &fresh);
        run_steps(w, settings[i], 1, &kept);
        assert_int_equal(kept.rc, 0);
        const double a = (double)fresh.memory_measured_bytes,
                     b = (double)kept.memory_measured_bytes,
                     p = (double)fresh.memory_predicted_bytes,
                     q = (double)kept.memory_predicted_bytes;
        if (a == 0)
            fail_msg("%s: memory was not measured", settings[i]);
        if (fabs(a - b) > 0.02 * a + (8 << 20) || fabs(p - q) > 0.02 * p + (8 << 20))
            fail_msg("%s: measured %.1f MiB, fresh %.1f; predicted %.1f, fresh %.1f", settings[i],
                     b / (1 << 20), a / (1 << 20), q / (1 << 20), p / (1 << 20));
        trial_free(&fresh);
        trial_free(&kept);
    }
    assert_int_equal(worker_starts(w), 1);
    worker_close(w);
}

// The buffers of a library stay in the process, so a setting without the library gets a new
// process.
static void test_a_library_gets_a_process_of_its_own(void **state) {
    struct worker *w = open_worker(NULL);
    struct trial_result r;
    (void)state;
    run_well(w, "", &r);
    trial_free(&r);
    run_well(w, "cpu.blas=builtin", &r);
    trial_free(&r);
    assert_int_equal(worker_starts(w), 2);
    worker_close(w);
}

// ---------------------------------------------------------------- the judge

struct judge {
    int64_t enough, calls, seen; // enough: steps after which the judge stops the trial; 0: never
    const volatile struct worker *w;
    volatile sig_atomic_t *stop;
};

static bool judge(void *arg, const struct trial_sample *samples, int64_t n,
                  char reason[WORKER_REASON_BYTES]) {
    struct judge *j = arg;
    j->calls++;
    j->seen = n;
    for (int64_t i = 0; i < n; i++) {
        assert_true(samples[i].step_ns > 0 && samples[i].data_wait_ns <= samples[i].step_ns);
        assert_true(isfinite(samples[i].loss));
        assert_int_equal(samples[i].warmup, i < WARMUP);
        assert_true(i == 0 ||
                    samples[i].begin_ns >= samples[i - 1].begin_ns + samples[i - 1].step_ns);
    }
    if (j->stop)
        *j->stop = 1;
    if (j->enough == 0 || n < j->enough)
        return false;
    snprintf(reason, WORKER_REASON_BYTES, "dominated after %d", (int)n);
    return true;
}

static void test_judge_sees_every_step(void **state) {
    struct worker *w = open_worker(NULL);
    const struct knobs k = small("");
    struct judge j = {0};
    const struct worker_job job = {
        .knobs = &k, .warmup = WARMUP, .steps = 100, .judge = judge, .judge_arg = &j};
    struct trial_result r;
    struct err e = {0};
    (void)state;
    assert_worked(worker_run(w, &job, &r, &e), &e);
    assert_int_equal(r.rc, 0);
    assert_int_equal(j.seen, WARMUP + 100);
    assert_true(j.calls > 1); // during the trial, not only at its end
    assert_false(r.ended_early);
    assert_string_equal(r.reason, "");
    trial_free(&r);
    worker_close(w);
}

static void test_judge_ends_a_trial(void **state) {
    struct worker *w = open_worker(NULL);
    const struct knobs k = small("");
    struct trial_result r;
    struct err e = {0};
    (void)state;
    const pid_t pid = worker_pid(w);
    for (int64_t enough = 1; enough <= 4; enough += 3) { // in the warm-up, then later
        struct judge j = {.enough = enough};
        const struct worker_job job = {
            .knobs = &k, .warmup = WARMUP, .steps = 20000, .judge = judge, .judge_arg = &j};
        assert_worked(worker_run(w, &job, &r, &e), &e);
        assert_int_equal(r.rc, 0);
        assert_true(r.ended_early);
        assert_true(r.steps < 20000 && r.steps + WARMUP >= enough);
        assert_non_null(strstr(r.reason, "dominated after "));
        if (enough > WARMUP) {
            assert_true(r.split.steps > 0 && r.wall_ns > 0 && r.tokens > 0);
            assert_int_equal((int64_t)r.split.steps, r.steps);
        }
        assert_true(r.by_class[CLASS_WEIGHT] > 0);
        if (!UNDER_SANITIZER)
            assert_true(r.memory_measured_bytes > 0);
        trial_free(&r);
    }
    run_well(w, "", &r); // a stop that came too late has no effect
    assert_true(r.kept_weights);
    assert_int_equal(worker_pid(w), pid);
    trial_free(&r);
    worker_close(w);
}

// ---------------------------------------------------------------- what goes wrong

enum fault { FAULT_NONE, FAULT_KILL, FAULT_SEGV, FAULT_EXIT, FAULT_HANG };

// Faults depend on the seed, so that one process serves good and bad settings.
static void fault(void *arg, const struct knobs *k, int64_t step) {
    (void)arg;
    if (step != WARMUP + 3)
        return;
    switch (k->seed - 100) {
    case FAULT_KILL:
        raise(SIGKILL);
        break;
    case FAULT_SEGV:
        signal(SIGSEGV, SIG_DFL); // a sanitizer's handler would exit instead
        raise(SIGSEGV);
        break;
    case FAULT_EXIT:
        _exit(3);
    case FAULT_HANG:
        for (;;)
            pause();
    default:
        break;
    }
}

// A process that is stopped before its first step costs a few times what a start took, not the ten
// seconds that are allowed while no start was seen.
static void test_a_stopped_start_costs_little(void **state) {
    struct worker *w = open_worker(NULL);
    struct knobs k = small("");
    struct worker_job job = {.knobs = &k, .warmup = WARMUP, .steps = STEPS};
    struct trial_result r;
    struct err e = {0};
    (void)state;
    assert_worked(worker_run(w, &job, &r, &e), &e);
    assert_int_equal(r.rc, 0);
    trial_free(&r);
    kill(worker_pid(w), SIGSTOP);
    job.end_ns = clock_ns();
    assert_worked(worker_run(w, &job, &r, &e), &e);
    assert_int_equal(r.rc, ERR_INTERNAL);
    assert_non_null(strstr(r.reason, "before the first step"));
    assert_true(clock_ns() - job.end_ns < 9 * SECOND);
    trial_free(&r);
    worker_close(w);
}

static void test_a_lost_process_costs_one_trial(void **state) {
    static const struct {
        enum fault fault;
        int rc;
        const char *reason;
    } cases[] = {{FAULT_KILL, ERR_MEMORY, "killed its process, most likely because memory ran out"},
                 {FAULT_SEGV, ERR_INTERNAL, "signal 11"},
                 {FAULT_EXIT, ERR_INTERNAL, "status 3"},
                 {FAULT_HANG, ERR_INTERNAL, "hung"}};
    struct worker *w = open_worker(fault);
    struct trial_result r;
    struct err e = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct knobs k = small("");
        k.seed = 100 + cases[i].fault;
        const struct worker_job job = {.knobs = &k,
                                       .warmup = WARMUP,
                                       .steps = STEPS,
                                       .start_limit_ns = 300 * SECOND,
                                       .step_limit_ns =
                                           cases[i].fault == FAULT_HANG ? SECOND : 300 * SECOND};
        const pid_t pid = worker_pid(w);
        const uint64_t begin_ns = clock_ns();
        assert_worked(worker_run(w, &job, &r, &e), &e);
        if (r.rc != cases[i].rc || !strstr(r.reason, cases[i].reason))
            fail_msg("expected %s with '%s', got %s: %s", err_name(cases[i].rc), cases[i].reason,
                     err_name(r.rc), r.reason);
        assert_true(r.steps < STEPS);
        if (cases[i].fault == FAULT_HANG)
            assert_true(clock_ns() - begin_ns >= SECOND);
        trial_free(&r);
        assert_false(is_running(pid));
        assert_int_equal(worker_pid(w), -1);
        run_well(w, "", &r);
        assert_false(r.kept_weights);
        trial_free(&r);
        assert_int_equal(worker_starts(w), (int64_t)i + 2);
    }
    worker_close(w);
}

// A hang before the first step has a separate limit.
static void hang_at_once(void *arg, const struct knobs *k, int64_t step) {
    (void)arg, (void)k, (void)step;
    for (;;)
        pause();
}

static void test_a_start_that_hangs(void **state) {
    struct worker *w = open_worker(hang_at_once);
    const struct knobs k = small("");
    const struct worker_job job = {
        .knobs = &k, .warmup = 0, .steps = 1, .start_limit_ns = 2 * SECOND, .step_limit_ns = 1};
    struct trial_result r;
    struct err e = {0};
    (void)state;
    assert_worked(worker_run(w, &job, &r, &e), &e);
    assert_int_equal(r.rc, ERR_INTERNAL);
    assert_non_null(strstr(r.reason, "before the first step"));
    trial_free(&r);
    worker_close(w);
}

// A process that is silent when the caller's time is over is killed soon after, whatever the limit
// of a step is. One that goes on is not.
static void test_silent_at_the_end(void **state) {
    struct worker *w = open_worker(fault);
    struct trial_result r;
    struct err e = {0};
    (void)state;
    for (int hangs = 0; hangs < 2; hangs++) {
        struct knobs k = small("");
        k.seed = hangs ? 100 + FAULT_HANG : 1;
        const uint64_t begin_ns = clock_ns();
        const struct worker_job job = {.knobs = &k,
                                       .warmup = WARMUP,
                                       .steps = STEPS,
                                       .start_limit_ns = 300 * SECOND,
                                       .step_limit_ns = 300 * SECOND,
                                       .end_ns = begin_ns + (hangs ? SECOND : 1)};
        assert_worked(worker_run(w, &job, &r, &e), &e);
        assert_int_equal(r.rc, hangs ? ERR_INTERNAL : 0);
        assert_true(hangs ? strstr(r.reason, "hung") != NULL : r.steps == STEPS);
        assert_true(clock_ns() - begin_ns < 60 * SECOND);
        trial_free(&r);
    }
    worker_close(w);
}

static void test_lost_between_trials(void **state) {
    struct worker *w = open_worker(NULL);
    struct trial_result r;
    (void)state;
    run_well(w, "", &r);
    trial_free(&r);
    const pid_t pid = worker_pid(w);
    kill(pid, SIGKILL);
    assert_ends(pid);
    run_well(w, "", &r);
    trial_free(&r);
    assert_int_equal(worker_starts(w), 2);
    worker_close(w);
}

static void test_refusals_keep_the_process(void **state) {
    static const struct {
        const char *text, *reason;
        int rc;
    } cases[] = {{"memory=1MiB", "the budget (memory=)", ERR_MEMORY},
                 {"seq=100000", "positions", ERR_USAGE},
                 {"data.path=/nowhere/at/all.txt", "/nowhere/at/all.txt", ERR_IO}};
    struct worker *w = open_worker(NULL);
    struct trial_result r;
    (void)state;
    run_well(w, "", &r);
    trial_free(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run(w, cases[i].text, &r);
        if (r.rc != cases[i].rc || !strstr(r.reason, cases[i].reason))
            fail_msg("%s: got %s: %s", cases[i].text, err_name(r.rc), r.reason);
        assert_false(r.started);
        assert_int_equal(r.steps, 0);
        trial_free(&r);
    }
    run_well(w, "", &r);
    assert_true(r.kept_weights); // nothing was taken and nothing was lost
    trial_free(&r);
    assert_int_equal(worker_starts(w), 1);
    worker_close(w);
}

static void test_stop_ends_it_at_once(void **state) {
    struct worker *w = open_worker(NULL);
    const struct knobs k = small("");
    volatile sig_atomic_t stop = 0;
    struct judge j = {.stop = &stop};
    const struct worker_job job = {.knobs = &k,
                                   .warmup = WARMUP,
                                   .steps = 1000000,
                                   .stop = &stop,
                                   .judge = judge,
                                   .judge_arg = &j};
    struct trial_result r;
    struct err e = {0};
    (void)state;
    const pid_t pid = worker_pid(w);
    assert_int_equal(worker_run(w, &job, &r, &e), ERR_STOPPED);
    assert_false(is_running(pid));
    trial_free(&r);
    worker_close(w);
}

// ---------------------------------------------------------------- processes

static void test_no_orphans(void **state) {
    int ends[2];
    pid_t pids[2] = {-1, -1};
    (void)state;
    assert_int_equal(pipe(ends), 0);
    const pid_t owner = fork();
    assert_true(owner >= 0);
    if (owner == 0) { // an owner with one idle worker and one that is measuring
        struct worker *idle = open_worker(NULL), *busy = open_worker(NULL);
        const struct knobs k = small("");
        const struct worker_job job = {.knobs = &k, .warmup = 0, .steps = 1000000};
        struct trial_result r;
        struct err e = {0};
        pids[0] = worker_pid(idle), pids[1] = worker_pid(busy);
        if (write(ends[1], pids, sizeof pids) != sizeof pids)
            _exit(2);
        worker_run(busy, &job, &r, &e);
        _exit(1);
    }
    assert_int_equal(read(ends[0], pids, sizeof pids), sizeof pids);
    usleep(200000);
    assert_true(is_running(pids[0]) && is_running(pids[1]));
    kill(owner, SIGKILL);
    waitpid(owner, NULL, 0);
    assert_ends(pids[0]);
    assert_ends(pids[1]);
    close(ends[0]);
    close(ends[1]);
}

static void test_several_at_a_time(void **state) {
    struct worker *a = open_worker(fault), *b = open_worker(NULL);
    struct knobs bad = small("");
    const struct worker_job job = {.knobs = &bad, .warmup = WARMUP, .steps = STEPS};
    struct trial_result r;
    struct err e = {0};
    (void)state;
    bad.seed = 100 + FAULT_SEGV;
    const pid_t pid = worker_pid(b);
    assert_worked(worker_run(a, &job, &r, &e), &e);
    assert_int_equal(r.rc, ERR_INTERNAL);
    trial_free(&r);
    run_well(b, "", &r);
    trial_free(&r);
    run_well(a, "", &r);
    trial_free(&r);
    worker_close(a);
    run_well(b, "", &r);
    trial_free(&r);
    assert_int_equal(worker_pid(b), pid);
    worker_close(b);
    assert_false(is_running(pid));
}

static void test_is_first_for_the_oom_killer(void **state) {
    struct worker *w = open_worker(NULL);
    struct trial_result r;
    char path[64];
    int score = 0;
    (void)state;
    run_well(w, "", &r); // the process is running
    trial_free(&r);
    snprintf(path, sizeof path, "/proc/%d/oom_score_adj", (int)worker_pid(w));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &score), 1);
    fclose(f);
    assert_int_equal(score, 1000);
    worker_close(w);
}

static void test_bad_counts_are_refused(void **state) {
    struct worker *w = open_worker(NULL);
    const struct knobs k = small("");
    struct worker_job job = {.knobs = &k, .warmup = 0, .steps = 0};
    struct trial_result r;
    struct err e = {0};
    (void)state;
    assert_int_equal(worker_run(w, &job, &r, &e), ERR_USAGE);
    trial_free(&r);
    worker_close(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_begins_as_a_fresh_process),
        cmocka_unit_test(test_keeps_weights_and_says_so),
        cmocka_unit_test(test_bad_weights_are_not_kept),
        cmocka_unit_test(test_memory_is_the_trials_own),
        cmocka_unit_test(test_a_library_gets_a_process_of_its_own),
        cmocka_unit_test(test_judge_sees_every_step),
        cmocka_unit_test(test_judge_ends_a_trial),
        cmocka_unit_test(test_a_stopped_start_costs_little),
        cmocka_unit_test(test_a_lost_process_costs_one_trial),
        cmocka_unit_test(test_a_start_that_hangs),
        cmocka_unit_test(test_silent_at_the_end),
        cmocka_unit_test(test_lost_between_trials),
        cmocka_unit_test(test_refusals_keep_the_process),
        cmocka_unit_test(test_stop_ends_it_at_once),
        cmocka_unit_test(test_no_orphans),
        cmocka_unit_test(test_several_at_a_time),
        cmocka_unit_test(test_is_first_for_the_oom_killer),
        cmocka_unit_test(test_bad_counts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

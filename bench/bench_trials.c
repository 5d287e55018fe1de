// bench_trials.c - what a trial costs beyond its steps: in a process of its own (trial_run) and in one that
// stays (tune/worker.h), the same settings in turns.
//
// A trial's steps are its measured ones as long as they took, and its warm-up at their median; the rest of
// its wall time is what starting costs. Prints the median of that, trials per minute, and the two's step times, whose ratio
// says whether a worker measures the same thing.
//
// usage: bench_trials [--rounds N] [--steps N] [MODEL [KNOB=VALUE ...]]
#include "base/clock.h"
#include "measure/sample.h"
#include "tune/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARMUP = 2, MOST_ROUNDS = 100 };

// What a search varies from trial to trial.
static const char *const settings[][3] = {
    {"batch.micro=2", "recompute.mode=none", "batch.accum=2"},
    {"batch.micro=4", "recompute.mode=none", "batch.accum=1"},
    {"batch.micro=4", "recompute.mode=full", "batch.accum=1"},
    {"batch.micro=1", "recompute.mode=none", "batch.accum=4"},
};
enum { SETTINGS = sizeof settings / sizeof *settings, TRIALS = SETTINGS * MOST_ROUNDS };

struct way {
    const char *name;
    double rest_s[TRIALS], step_s[TRIALS], wall_s;
    int n;
};

static double median(double *x, int n) {
    struct spread s;
    double copy[TRIALS];
    memcpy(copy, x, sizeof *x * (size_t)n);
    sample_spread_of(copy, (size_t)n, &s);
    return s.median;
}

static int note(struct way *y, struct trial_result *r, uint64_t begin_ns, struct err *e) {
    const double wall = 1e-9 * (double)(clock_ns() - begin_ns);
    struct spread s;
    if (r->rc != 0)
        return err_set(e, r->rc, "%s", r->reason);
    sample_spread_of(r->step_ns, (size_t)r->steps, &s);
    y->step_s[y->n] = 1e-9 * s.median;
    y->rest_s[y->n++] = wall - 1e-9 * ((double)r->wall_ns + WARMUP * s.median);
    y->wall_s += wall;
    return 0;
}

static int forked(struct way *y, const struct knobs *k, int64_t steps, struct err *e) {
    const struct trial_options o = {.warmup = WARMUP, .steps = steps};
    struct trial_result r;
    const uint64_t begin_ns = clock_ns();
    int rc = trial_run(k, &o, &r, e);
    if (rc == 0)
        rc = note(y, &r, begin_ns, e);
    trial_free(&r);
    return rc;
}

static int served(struct way *y, struct worker *w, const struct knobs *k, int64_t steps,
                  struct err *e) {
    const struct worker_job job = {.knobs = k, .warmup = WARMUP, .steps = steps};
    struct trial_result r;
    const uint64_t begin_ns = clock_ns();
    int rc = worker_run(w, &job, &r, e);
    if (rc == 0)
        rc = note(y, &r, begin_ns, e);
    trial_free(&r);
    return rc;
}

static void print_way(struct way *y) {
    printf("%-8s %5d trials  %8.1f a minute  %9.2f ms a trial beyond its steps\n", y->name, y->n,
           60 * y->n / y->wall_s, 1e3 * median(y->rest_s, y->n));
}

static int bench(const struct knobs *base, int rounds, int64_t steps, struct err *e) {
    static struct way a = {.name = "forked"}, b = {.name = "worker"};
    const struct worker_options none = {0};
    struct worker *w;
    double ratio[TRIALS];
    TRY(worker_open(&w, &none, e));
    int rc = 0;
    for (int round = 0; rc == 0 && round < rounds; round++)
        for (int i = 0; rc == 0 && i < SETTINGS; i++) {
            struct knobs k = *base;
            for (int j = 0; rc == 0 && j < 3; j++)
                rc = knobs_set_assignment(&k, settings[i][j], SET_BY_TUNER, e);
            if (rc == 0 && (round + i) % 2)
                rc = forked(&a, &k, steps, e);
            if (rc == 0)
                rc = served(&b, w, &k, steps, e);
            if (rc == 0 && (round + i) % 2 == 0)
                rc = forked(&a, &k, steps, e);
        }
    worker_close(w);
    TRY(rc);
    for (int i = 0; i < b.n; i++)
        ratio[i] = b.step_s[i] / a.step_s[i];
    printf("%s, %lld steps after %d of warm-up\n", base->model, (long long)steps, WARMUP);
    print_way(&a);
    print_way(&b);
    printf("first trial of the worker: %.2f ms beyond its steps\n", 1e3 * b.rest_s[0]);
    printf("step time, worker to forked: median %.3f of %d pairs\n", median(ratio, b.n), b.n);
    return 0;
}

int main(int argc, char **argv) {
    struct knobs k;
    struct err e = {0};
    int rounds = 5, at = 1, rc = 0;
    int64_t steps = 20;
    knobs_init(&k);
    for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
        if (strcmp(argv[at], "--rounds") == 0)
            rounds = atoi(argv[at + 1]);
        else
            steps = atoll(argv[at + 1]);
    }
    rounds = rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    if (at < argc)
        snprintf(k.model, sizeof k.model, "%s", argv[at++]);
    for (; rc == 0 && at < argc; at++)
        rc = knobs_set_assignment(&k, argv[at], SET_BY_COMMAND_LINE, &e);
    if (rc == 0)
        rc = bench(&k, rounds, steps, &e);
    if (rc != 0)
        fprintf(stderr, "bench_trials: %s\n", e.text);
    return rc != 0;
}

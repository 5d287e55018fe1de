// bench_trials.c - the cost of a trial beyond its steps: in a new process (trial_run) and in a
// worker process that stays (tune/worker.h), with the same settings in turns.
//
// The time of a trial's steps is that of its measured steps, plus its warm-up steps at their
// median. The rest of its wall time is the cost of starting, including pages that are touched for
// the first time. The CPU time of whole trials is a second measure, for a busy machine: steps take
// the same CPU time, so the difference is the cost of starting. Step times and memory are compared
// too, because a worker must measure the same as a new process.
//
// usage: bench_trials [--rounds N] [--steps N] [MODEL [KNOB=VALUE ...]]
#include "base/clock.h"
#include "measure/sample.h"
#include "tune/worker.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { WARMUP = 2, MOST_ROUNDS = 100 };

// Settings that a search changes from trial to trial.
static const char *const settings[][3] = {
    {"batch.micro=2", "recompute.mode=none", "batch.accum=2"},
    {"batch.micro=4", "recompute.mode=none", "batch.accum=1"},
    {"batch.micro=4", "recompute.mode=full", "batch.accum=1"},
    {"batch.micro=1", "recompute.mode=none", "batch.accum=4"},
};
enum { SETTINGS = sizeof settings / sizeof *settings, TRIALS = SETTINGS * MOST_ROUNDS };

struct way {
    const char *name;
    double rest_s[TRIALS], cpu_s[TRIALS], step_s[TRIALS], mib[TRIALS], wall_s;
    int n;
};

static double median(double *x, int n) {
    double copy[TRIALS];
    memcpy(copy, x, sizeof *x * (size_t)n);
    return sample_median(copy, (size_t)n);
}

static double bound(const double *x, int n, double (*choose)(double, double)) {
    double y = x[0];
    for (int i = 1; i < n; i++)
        y = choose(y, x[i]);
    return y;
}

static double children_cpu(void) { // of children that have ended
    struct rusage u;
    getrusage(RUSAGE_CHILDREN, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static double process_cpu(pid_t pid) {
    struct timespec t = {0};
    clockid_t clock;
    if (clock_getcpuclockid(pid, &clock) == 0)
        clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int note(struct way *y, struct trial_result *r, uint64_t begin_ns, struct err *e) {
    const double wall = 1e-9 * (double)(clock_ns() - begin_ns);
    struct spread s;
    if (r->rc != 0)
        return err_set(e, r->rc, "%s", r->reason);
    sample_spread_of(r->step_ns, (size_t)r->steps, &s);
    y->step_s[y->n] = 1e-9 * s.median;
    y->mib[y->n] = (double)r->memory_measured_bytes / (1 << 20);
    y->rest_s[y->n++] = wall - 1e-9 * ((double)r->wall_ns + WARMUP * s.median);
    y->wall_s += wall;
    return 0;
}

static int forked(struct way *y, const struct knobs *k, int64_t steps, struct err *e) {
    const struct trial_options o = {.warmup = WARMUP, .steps = steps};
    struct trial_result r;
    const uint64_t begin_ns = clock_ns();
    const double cpu = children_cpu();
    int rc = trial_run(k, &o, &r, e);
    y->cpu_s[y->n] = children_cpu() - cpu;
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
    const double cpu = process_cpu(worker_pid(w));
    int rc = worker_run(w, &job, &r, e);
    y->cpu_s[y->n] = process_cpu(worker_pid(w)) - cpu;
    if (rc == 0)
        rc = note(y, &r, begin_ns, e);
    trial_free(&r);
    return rc;
}

static void print_way(struct way *y) {
    printf("%-8s %5d trials  %8.1f a minute  %9.2f ms a trial beyond its steps  %9.2f ms of CPU "
           "time a trial\n",
           y->name, y->n, 60 * y->n / y->wall_s, 1e3 * median(y->rest_s, y->n),
           1e3 * median(y->cpu_s, y->n));
}

static int bench(const struct knobs *base, int rounds, int64_t steps, struct err *e) {
    static struct way a = {.name = "forked"}, b = {.name = "worker"};
    const struct worker_options none = {0};
    struct worker *w;
    double ratio[TRIALS], less[TRIALS], off = 0;
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
    for (int i = 0; i < b.n; i++) {
        ratio[i] = b.step_s[i] / a.step_s[i];
        less[i] = a.cpu_s[i] - b.cpu_s[i];
        off = fmax(off, fabs(b.mib[i] - a.mib[i]));
    }
    printf("%s, %lld steps after %d of warm-up\n", base->model, (long long)steps, WARMUP);
    print_way(&a);
    print_way(&b);
    printf("first trial of the worker: %.2f ms beyond its steps\n", 1e3 * b.rest_s[0]);
    printf("step time, worker to forked: median %.3f of %d pairs\n", median(ratio, b.n), b.n);
    printf("CPU time, forked less worker: median %.1f ms a trial\n", 1e3 * median(less, b.n));
    printf("memory: %.1f to %.1f MiB, worker and forked at most %.1f MiB apart\n",
           bound(a.mib, a.n, fmin), bound(a.mib, a.n, fmax), off);
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

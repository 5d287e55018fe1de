// bench_train.c - a training step of gpt2-124m against its floor and against PyTorch, side by side
// in one run.
//
//   floor     the step's own matrix products (same shapes, transposes, count), run alone back to
//             back by the fastest library tried
//   haggle    the whole step, loader and update included
//   torch     Debian's PyTorch (bench/torch_gpt2.py), where installed, in its own process, idle
//             while the others run
//
// Rounds are interleaved: floor, haggle, torch, floor, haggle, torch, ... so that a slow minute of
// the machine affects all of them. A run is void (exit 1) if the floor drifts by more than 10 %
// between the first and the last third of the rounds.
//
// usage: bench_train [--rounds N] [--steps N] [--threads N] [--script FILE] [--no-torch]
#include "base/clock.h"
#include "base/text.h"
#include "stepper.h"
#include "measure/sample.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ROUNDS = 200 };
static const char *const libraries[] = {"builtin", "onednn", "openblas", "blis"};
enum { N_LIBRARIES = sizeof libraries / sizeof *libraries };

static double median(const double *values, int n) {
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, sizeof *sorted * (size_t)n);
    return sample_median(sorted, (size_t)n);
}

static void print_row(const char *name, const double *ms, int n, double base) {
    double sorted[MAX_ROUNDS], m = median(ms, n);
    memcpy(sorted, ms, sizeof *sorted * (size_t)n);
    sample_sort(sorted, (size_t)n);
    printf("  %-10s %9.1f ms   %8.1f .. %-8.1f  %6.3f   n=%d\n", name, m, sorted[0], sorted[n - 1],
           base / m, n);
}

// ---------------------------------------------------------------- haggle

static int timed_steps(struct stepper *g, int n, double *ms, struct err *e) {
    for (int i = 0; i < n; i++) {
        uint64_t begin = clock_ns();
        TRY(stepper_step(g, NULL, e));
        ms[i] = (double)(clock_ns() - begin) / 1e6;
    }
    return 0;
}

static int timed_floor(struct stepper *g, int n, double *ms, struct err *e) {
    for (int i = 0; i < n; i++) {
        uint64_t begin = clock_ns();
        TRY(exec_run_category(g->work.s->exec, plan_find(&g->work.plan, PLAN_TRAIN), CAT_MATMUL,
                              e));
        ms[i] = (double)(clock_ns() - begin) / 1e6;
    }
    return 0;
}

// ---------------------------------------------------------------- PyTorch

struct peer {
    pid_t pid;
    FILE *to, *from;
    double peak_bytes;
};

static int peer_open(struct peer *p, const char *script, int64_t B, int64_t T, int threads,
                     const char *loop, const char *zero) {
    int down[2], up[2];
    char b[32], t[32], n[32], line[256];
    snprintf(b, sizeof b, "%lld", (long long)B);
    snprintf(t, sizeof t, "%lld", (long long)T);
    snprintf(n, sizeof n, "%d", threads);
    memset(p, 0, sizeof *p);
    if (pipe(down) != 0 || pipe(up) != 0)
        return -1;
    p->pid = fork();
    if (p->pid == 0) {
        dup2(down[0], 0);
        dup2(up[1], 1);
        close(down[0]), close(down[1]), close(up[0]), close(up[1]);
        setenv("OMP_NUM_THREADS", n, 1);
        setenv("LD_LIBRARY_PATH", "/usr/lib/x86_64-linux-gnu/openblas-openmp",
               1); // PyTorch's best BLAS in Debian
        execl("/usr/bin/python3", "python3", script, b, t, n, loop, zero, (char *)NULL);
        _exit(127);
    }
    close(down[0]), close(up[1]);
    p->to = fdopen(down[1], "w");
    p->from = fdopen(up[0], "r");
    if (p->pid < 0 || !p->to || !p->from || !fgets(line, sizeof line, p->from) ||
        strcmp(line, "ready\n") != 0)
        return -1;
    return 0;
}

static int peer_steps(struct peer *p, int n, double *ms) {
    fprintf(p->to, "%d\n", n);
    fflush(p->to);
    for (int i = 0; i < n; i++)
        if (fscanf(p->from, "%lf", &ms[i]) != 1)
            return -1;
    return 0;
}

static void peer_close(struct peer *p) {
    if (p->to)
        fclose(p->to);
    if (p->from) {
        if (fscanf(p->from, " peak %lf", &p->peak_bytes) != 1)
            p->peak_bytes = NAN;
        fclose(p->from);
    }
    if (p->pid > 0)
        waitpid(p->pid, NULL, 0);
}

// ---------------------------------------------------------------- the comparison

struct options {
    int rounds, steps, threads;
    bool torch;
    const char *script;
};

// The fastest library for this step's products: three passes each, the best counts.
static int choose_floor(int64_t B, int64_t T, int threads, const char **best, struct err *e) {
    double fastest = INFINITY;
    printf("  matrix products alone, best of 3:");
    for (int i = 0; i < N_LIBRARIES; i++) {
        struct stepper g = {0};
        double ms[4];
        int rc = stepper_open(&g, "gpt2-124m", libraries[i], B, T, threads, e);
        if (rc == 0)
            rc = timed_floor(&g, 4, ms, e);
        double flops = g.work.plan.flops.model;
        stepper_close(&g);
        if (rc == ERR_UNSUPPORTED || rc == ERR_USAGE || rc == ERR_IO) {
            printf(" %s (not here)", libraries[i]);
            continue;
        }
        TRY(rc);
        double least = fmin(ms[1], fmin(ms[2], ms[3]));
        printf(" %s %.0f ms (%.0f GFLOP/s)", libraries[i], least, flops / least / 1e6);
        fflush(stdout);
        if (least < fastest)
            fastest = least, *best = libraries[i];
    }
    printf("\n");
    return 0;
}

// PyTorch's best setting for this size: three steps each, the best counts.
static bool choose_torch(int64_t B, int64_t T, const struct options *o, const char **loop,
                         const char **zero) {
    static const char *const variants[][2] = {
        {"default", "zero"}, {"default", "none"}, {"foreach", "zero"}, {"foreach", "none"}};
    double fastest = INFINITY, ms[4];
    printf("  torch's AdamW loop and gradient reset, best of 3:");
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        struct peer p = {0};
        int rc = peer_open(&p, o->script, B, T, o->threads, variants[i][0], variants[i][1]);
        if (rc == 0)
            rc = peer_steps(&p, 4, ms);
        peer_close(&p);
        if (rc != 0)
            break;
        double least = fmin(ms[1], fmin(ms[2], ms[3]));
        printf(" %s/%s %.0f ms", variants[i][0], variants[i][1], least);
        fflush(stdout);
        if (least < fastest)
            fastest = least, *loop = variants[i][0], *zero = variants[i][1];
    }
    printf(isfinite(fastest) ? "\n" : " not here\n");
    return isfinite(fastest);
}

static int compare(int64_t B, int64_t T, const struct options *o, bool *valid, struct err *e) {
    const char *best = "builtin";
    printf("gpt2-124m, fp32, B=%lld, T=%lld, %d threads\n", (long long)B, (long long)T, o->threads);
    TRY(choose_floor(B, T, o->threads, &best, e));
    struct stepper haggle = {0}, floor_engine = {0};
    struct peer torch = {0};
    double floor_ms[MAX_ROUNDS], haggle_ms[MAX_ROUNDS], torch_ms[MAX_ROUNDS], scratch[MAX_ROUNDS];
    int n = 0;
    const char *loop = "default", *zero = "zero";
    bool with_torch = o->torch && choose_torch(B, T, o, &loop, &zero) &&
                      peer_open(&torch, o->script, B, T, o->threads, loop, zero) == 0;
    int rc = stepper_open(&haggle, "gpt2-124m", "auto", B, T, o->threads, e);
    uint64_t predicted = rc == 0 ? plan_total_bytes(&haggle.work.plan) : 0;
    if (rc == 0)
        rc = stepper_open(&floor_engine, "gpt2-124m", best, B, T, o->threads, e);
    if (rc == 0)
        rc = timed_steps(&haggle, 2, scratch, e); // warm-up
    if (rc == 0)
        rc = timed_floor(&floor_engine, 1, scratch, e);
    if (rc == 0 && with_torch && peer_steps(&torch, 2, scratch) != 0)
        with_torch = false;
    for (int r = 0; rc == 0 && r < o->rounds && n + o->steps <= MAX_ROUNDS; r++, n += o->steps) {
        rc = timed_floor(&floor_engine, o->steps, floor_ms + n, e);
        if (rc == 0)
            rc = timed_steps(&haggle, o->steps, haggle_ms + n, e);
        if (rc == 0 && with_torch && peer_steps(&torch, o->steps, torch_ms + n) != 0)
            with_torch = false;
    }
    stepper_close(&haggle);
    stepper_close(&floor_engine);
    peer_close(&torch);
    TRY(rc);
    double f = median(floor_ms, n), h = median(haggle_ms, n);
    printf("  %-10s %12s   %-21s  %s\n", "", "median", "least .. most", "floor/it");
    print_row("floor", floor_ms, n, f);
    print_row("haggle", haggle_ms, n, f);
    if (with_torch) {
        print_row("torch", torch_ms, n, f);
        printf("  haggle is %.2f x as fast as torch\n", median(torch_ms, n) / h);
    } else {
        printf("  torch: not measured (needs python3-torch)\n");
    }
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    printf("  memory: haggle predicted %s", text_bytes(a, predicted));
    printf(with_torch ? ", torch peak %s\n" : "%s\n",
           with_torch ? text_bytes(b, (uint64_t)torch.peak_bytes) : "");
    int third = n / 3 > 0 ? n / 3 : 1;
    double early = median(floor_ms, third), late = median(floor_ms + n - third, third),
           drift = fabs(late / early - 1);
    printf("  floor drift %.1f %%%s\n\n", 100 * drift,
           drift > 0.10 ? ": VOID, the machine was not quiet" : "");
    *valid = *valid && drift <= 0.10;
    return 0;
}

int main(int argc, char **argv) {
    struct options o = {
        .rounds = 8, .steps = 1, .threads = 2, .torch = true, .script = "bench/torch_gpt2.py"};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            o.rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc)
            o.steps = atoi(argv[++i]);
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            o.threads = atoi(argv[++i]);
        else if (strcmp(argv[i], "--script") == 0 && i + 1 < argc)
            o.script = argv[++i];
        else if (strcmp(argv[i], "--no-torch") == 0)
            o.torch = false;
        else {
            fprintf(stderr, "usage: bench_train [--rounds N] [--steps N] [--threads N] [--script "
                            "FILE] [--no-torch]\n");
            return 2;
        }
    }
    signal(SIGPIPE, SIG_IGN);
    struct err e = {0};
    bool valid = true;
    static const int64_t sizes[][2] = {{4, 64}, {4, 256}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (compare(sizes[i][0], sizes[i][1], &o, &valid, &e) != 0) {
            fprintf(stderr, "error: %s\n", e.text);
            return 1;
        }
    return valid ? 0 : 1;
}

// bench_precision.c - a training step of gpt2-124m on the CPU in each precision, for every
// instruction set of the CPU, in one run.
//
// For each instruction set the steps of the precisions are interleaved (fp32, bf16, fp16, fp32,
// ...), so that a slow minute of the machine affects all of them. A row's ratio is its time
// divided by that of fp32 in the same round, as the median over rounds. `products` is the same for
// the step's matrix products alone. The floor is the products' arithmetic at the rate of a loop
// that touches registers only: fused multiply-adds, and for bf16 vdpbf16ps if the CPU has it.
// (AMX's rate is not measured.)
//
// --clock cpu uses the CPU time of the process instead of wall time. With one thread that is
// meaningful on a busy machine too.
//
// usage: bench_precision [--rounds N] [--threads N] [--isa NAME]... [--seq N]... [--clock wall|cpu]
#include "base/clock.h"
#include "base/pool.h"
#include "base/text.h"
#include "stepper.h"
#include "measure/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MAX_ROUNDS = 100, MAX_LIST = 8, MAX_THREADS = 256, BATCH = 4 };
static const char *const precisions[] = {"fp32", "bf16", "fp16"};
enum { N_PRECISIONS = sizeof precisions / sizeof *precisions };

struct options {
    int rounds, threads, n_isas, n_seqs;
    bool cpu_clock;
    const char *isas[MAX_LIST];
    int64_t seqs[MAX_LIST];
};

static uint64_t cpu_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double median(const double *values, int n) {
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, sizeof *sorted * (size_t)n);
    return sample_median(sorted, (size_t)n);
}

// ---------------------------------------------------------------- peaks

struct peak {
    double fma, pairs; // GFLOP/s of all threads; 0: the CPU has no such instruction
};

#if defined(__x86_64__)

enum { SUMS = 14, PEAK_STEPS = 4000000 };

__attribute__((target("avx512f"))) static void spin_fma(void *arg, int thread, int threads) {
    (void)threads;
    uint64_t begin = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    __m512 sum[SUMS], x = _mm512_set1_ps(1e-9f), y = _mm512_set1_ps(0.5f);
#pragma GCC unroll 14
    for (int i = 0; i < SUMS; i++)
        sum[i] = x;
    for (int l = 0; l < PEAK_STEPS; l++)
#pragma GCC unroll 14
        for (int i = 0; i < SUMS; i++) {
            sum[i] = _mm512_fmadd_ps(x, y, sum[i]);
            __asm__ volatile("" : "+v"(sum[i])); // keeps the compiler from removing the loop
        }
    ((uint64_t *)arg)[thread] = cpu_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
}

__attribute__((target("avx512f,avx512bf16"))) static void spin_pairs(void *arg, int thread,
                                                                     int threads) {
    (void)threads;
    uint64_t begin = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    __m512 sum[SUMS], x = _mm512_set1_ps(1e-9f), y = _mm512_set1_ps(0.5f);
#pragma GCC unroll 14
    for (int i = 0; i < SUMS; i++)
        sum[i] = x;
    for (int l = 0; l < PEAK_STEPS; l++)
#pragma GCC unroll 14
        for (int i = 0; i < SUMS; i++) {
            sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)x, (__m512bh)y);
            __asm__ volatile("" : "+v"(sum[i]));
        }
    ((uint64_t *)arg)[thread] = cpu_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
}

// The sum of the threads' rates. Each is measured in the thread's CPU time, so that other programs
// on the cores do not count.
static double best_rate(struct pool *pool, pool_fn *fn, int threads, double flops) {
    double best = 0;
    uint64_t ns[MAX_THREADS];
    for (int i = 0; i < 5; i++) {
        double rate = 0;
        pool_run(pool, fn, ns);
        for (int t = 0; t < threads; t++)
            rate += flops / (double)ns[t];
        best = fmax(best, rate);
    }
    return best;
}

static struct peak measure_peak(int threads, struct err *e) {
    struct peak p = {0};
    struct pool *pool;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512f") || pool_open(&pool, threads, 0, e) != 0)
        return p;
    double steps = (double)SUMS * PEAK_STEPS;
    p.fma = best_rate(pool, spin_fma, threads, steps * 32);
    if (__builtin_cpu_supports("avx512bf16"))
        p.pairs = best_rate(pool, spin_pairs, threads, steps * 64);
    pool_close(pool);
    return p;
}

#else

static struct peak measure_peak(int threads, struct err *e) {
    (void)threads, (void)e;
    return (struct peak){0};
}

#endif

// ---------------------------------------------------------------- steps

struct row {
    struct stepper g;
    bool here;
    double step_ms[MAX_ROUNDS], products_ms[MAX_ROUNDS];
};

static uint64_t now_ns(bool cpu_clock) {
    return cpu_clock ? cpu_ns(CLOCK_PROCESS_CPUTIME_ID) : clock_ns();
}

static int timed_round(struct row *r, int round, bool cpu_clock, struct err *e) {
    uint64_t begin = now_ns(cpu_clock);
    TRY(stepper_step(&r->g, NULL, e));
    uint64_t middle = now_ns(cpu_clock);
    TRY(exec_run_category(r->g.work.s->exec, plan_find(&r->g.work.plan, PLAN_TRAIN), CAT_MATMUL,
                          e));
    r->step_ms[round] = (double)(middle - begin) / 1e6;
    r->products_ms[round] = (double)(now_ns(cpu_clock) - middle) / 1e6;
    return 0;
}

static int open_rows(struct row *rows, const char *isa, int64_t seq, int threads, struct err *e) {
    for (int i = 0; i < N_PRECISIONS; i++) {
        int rc =
            stepper_open_cpu(&rows[i].g, "gpt2-124m", precisions[i], isa, BATCH, seq, threads, e);
        rows[i].here = rc == 0;
        if (rc == 0)
            rc = stepper_step(&rows[i].g, NULL, e); // warm-up
        else
            stepper_close(&rows[i].g);
        if (rc == ERR_USAGE && i > 0) // a precision that this build has no name for
            rc = 0;
        TRY(rc);
    }
    return 0;
}

static void print_row(const struct row *rows, int i, int n, const struct peak *peak) {
    static const enum dtype types[N_PRECISIONS] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    const struct row *r = &rows[i];
    double ratio[MAX_ROUNDS], products[MAX_ROUNDS], flops = r->g.work.plan.flops.model;
    for (int k = 0; k < n; k++) {
        ratio[k] = r->step_ms[k] / rows[0].step_ms[k];
        products[k] = r->products_ms[k] / rows[0].products_ms[k];
    }
    const char *how = r->g.work.engine->backend->products[types[i]];
    double rate = strcmp(how, "avx512_bf16") == 0 ? peak->pairs : peak->fma;
    char bytes[TEXT_UNIT_BYTES];
    printf("  %-5s %9.1f ms  %5.3f   products %9.1f ms  %5.3f  %5.0f GFLOP/s", precisions[i],
           median(r->step_ms, n), median(ratio, n), median(r->products_ms, n), median(products, n),
           flops / median(r->products_ms, n) / 1e6);
    printf("  floor %7.1f ms  arena %s  (%s)\n", rate > 0 ? flops / rate / 1e6 : NAN,
           text_bytes(bytes, r->g.work.plan.layout.arena_bytes), how);
}

static int compare(const char *isa, int64_t seq, const struct options *o, const struct peak *peak,
                   struct err *e) {
    static struct row rows[N_PRECISIONS];
    memset(rows, 0, sizeof rows);
    int rc = open_rows(rows, isa, seq, o->threads, e);
    for (int n = 0; rc == 0 && n < o->rounds; n++)
        for (int i = 0; rc == 0 && i < N_PRECISIONS; i++)
            if (rows[i].here)
                rc = timed_round(&rows[i], n, o->cpu_clock, e);
    if (rc == 0) {
        printf("cpu.isa=%s, B=%d, T=%lld, %d threads, %d rounds: median step, of fp32's\n", isa,
               (int)BATCH, (long long)seq, o->threads, o->rounds);
        for (int i = 0; i < N_PRECISIONS; i++)
            if (rows[i].here)
                print_row(rows, i, o->rounds, peak);
        fflush(stdout);
    }
    for (int i = 0; i < N_PRECISIONS; i++)
        if (rows[i].here)
            stepper_close(&rows[i].g);
    return rc;
}

static bool parse(struct options *o, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (i + 1 >= argc)
            return false;
        const char *key = argv[i], *value = argv[++i];
        if (strcmp(key, "--rounds") == 0)
            o->rounds = atoi(value);
        else if (strcmp(key, "--threads") == 0)
            o->threads = atoi(value);
        else if (strcmp(key, "--isa") == 0 && o->n_isas < MAX_LIST)
            o->isas[o->n_isas++] = value;
        else if (strcmp(key, "--seq") == 0 && o->n_seqs < MAX_LIST)
            o->seqs[o->n_seqs++] = atoll(value);
        else if (strcmp(key, "--clock") == 0)
            o->cpu_clock = strcmp(value, "cpu") == 0;
        else
            return false;
    }
    return o->rounds >= 1 && o->rounds <= MAX_ROUNDS && o->threads >= 1 &&
           o->threads <= MAX_THREADS;
}

int main(int argc, char **argv) {
    static const char *const all[] = {"amx", "avx512_bf16", "avx512", "avx2"};
    struct options o = {.rounds = 6, .threads = 2};
    struct err e = {0};
    if (!parse(&o, argc, argv)) {
        fprintf(stderr, "usage: bench_precision [--rounds N] [--threads N] [--isa NAME]... "
                        "[--seq N]... [--clock wall|cpu]\n");
        return 2;
    }
    for (size_t i = 0, none = o.n_isas == 0; none && i < sizeof all / sizeof *all; i++)
        o.isas[o.n_isas++] = all[i];
    if (o.n_seqs == 0)
        o.seqs[o.n_seqs++] = 64, o.seqs[o.n_seqs++] = 256;
    struct peak peak = measure_peak(o.threads, &e);
    printf("%d threads, registers only: fma %.0f GFLOP/s, vdpbf16ps %.0f GFLOP/s\n", o.threads,
           peak.fma, peak.pairs);
    for (int i = 0; i < o.n_isas; i++)
        for (int k = 0; k < o.n_seqs; k++) {
            int rc = compare(o.isas[i], o.seqs[k], &o, &peak, &e);
            if (rc == ERR_UNSUPPORTED) {
                printf("cpu.isa=%s: %s\n", o.isas[i], e.text);
                break;
            }
            if (rc != 0) {
                fprintf(stderr, "error: %s\n", e.text);
                return 1;
            }
        }
    return 0;
}

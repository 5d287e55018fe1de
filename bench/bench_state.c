// bench_state.c - what narrow moments cost and gain in the optimizer: AdamW over N elements with
// moments in fp32, bf16 and int8, in turn, on the fast CPU backend.
//
// usage: bench_state [N [THREADS [ROUNDS [ISA]]]]
#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include "measure/sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 3, MAX_ROUNDS = 1000 };
static const enum op_kind kinds[KINDS] = {OP_ADAMW, OP_ADAMW_BF16, OP_ADAMW_INT8};
static const enum dtype types[KINDS][2] = {
    {DTYPE_F32, DTYPE_F32}, {DTYPE_BF16, DTYPE_BF16}, {DTYPE_I8, DTYPE_U8}};

struct bench {
    struct mem *mem;
    struct pool *pool;
    struct backend *backend;
    int64_t n;
    float *w, *g, *scales;
    void *m, *v;
    double hyper[HYPER_COUNT], clip[CLIP_COUNT];
};

static int take(struct bench *b, const char *what, size_t bytes, void **out, struct err *e) {
    TRY(mem_take(b->mem, "arena", what, bytes, out, e));
    memset(*out, 0, bytes);
    return 0;
}

static int open_bench(struct bench *b, int threads, const char *isa, struct err *e) {
    struct cpu_options options = {.blas = "builtin", .isa = isa};
    size_t n = (size_t)b->n;
    TRY(mem_open(&b->mem, e));
    TRY(pool_open(&b->pool, threads, 0, e));
    TRY(cpu_backend_open(&b->backend, b->mem, b->pool, &options, e));
    TRY(take(b, "weights", n * sizeof(float), (void **)&b->w, e));
    TRY(take(b, "gradients", n * sizeof(float), (void **)&b->g, e));
    TRY(take(b, "m", n * sizeof(float), &b->m, e));
    TRY(take(b, "v", n * sizeof(float), &b->v, e));
    TRY(take(b, "scales", (n / ADAMW_BLOCK + 1) * 2 * sizeof(float), (void **)&b->scales, e));
    for (size_t i = 0; i < n; i++)
        b->g[i] = (float)((i * 2654435761u >> 8 & 0xffff) + 1) * 1e-6f;
    b->hyper[HYPER_LR] = 1e-4, b->hyper[HYPER_BETA1] = 0.9, b->hyper[HYPER_BETA2] = 0.95;
    b->hyper[HYPER_EPS] = 1e-8, b->hyper[HYPER_DECAY] = 0.1;
    b->hyper[HYPER_BIAS1] = b->hyper[HYPER_BIAS2] = 1, b->clip[CLIP_FACTOR] = 1;
    return 0;
}

// A few steps in a row, so that data of another kind in the caches hardly counts.
static int steps(struct bench *b, int kind, int count, double *ms, struct err *e) {
    struct op op = {.kind = kinds[kind], .flags = OP_DECAY, .n = b->n, .n_in = 8, .n_out = 5};
    struct operand w = {b->w, b->n, DTYPE_F32, 1, b->n, {0}},
                   m = {b->m, b->n, types[kind][0], 1, b->n, {0}};
    struct operand v = {b->v, b->n, types[kind][1], 1, b->n, {0}}, none = {0};
    struct operand s = kind == 2 ? (struct operand){b->scales, 2, DTYPE_F32, 1, 2, {0}} : none;
    struct op_call c = {.op = &op,
                        .in = {{b->g, b->n, DTYPE_F32, 1, b->n, {0}},
                               {b->hyper, 1, DTYPE_F64, 1, 1, {0}},
                               {b->clip, 1, DTYPE_F64, 1, 1, {0}},
                               w,
                               m,
                               v,
                               none,
                               s},
                        .out = {w, m, v, none, s}};
    uint64_t begin = clock_ns();
    for (int i = 0; i < count; i++) {
        b->hyper[HYPER_DRAW] += 1;
        TRY(b->backend->run[op.kind](b->backend, &c, e));
    }
    *ms = (double)(clock_ns() - begin) / 1e6 / count;
    return 0;
}

static int run(struct bench *b, int threads, int rounds, const char *isa, struct err *e) {
    static double ms[KINDS][MAX_ROUNDS];
    static const char *const names[KINDS] = {"fp32", "bf16", "int8"};
    static const double bytes[KINDS] = {28, 20, 16 + 16.0 / ADAMW_BLOCK}; // g w w m m v v, scales
    double scratch;
    TRY(open_bench(b, threads, isa, e));
    for (int i = 0; i < rounds; i++)
        for (int k = 0; k < KINDS; k++) {
            // The kinds share memory, so each begins with moments in its format.
            memset(b->m, 0, (size_t)b->n * 4), memset(b->v, 0, (size_t)b->n * 4);
            TRY(steps(b, k, 1, &scratch, e));
            TRY(steps(b, k, 3, &ms[k][i], e));
        }
    printf("%lld elements, %s, %d threads, %d rounds\n", (long long)b->n, b->backend->isa, threads,
           rounds);
    for (int k = 0; k < KINDS; k++) {
        sample_sort(ms[k], (size_t)rounds);
        double median = ms[k][rounds / 2];
        printf("%s  %8.3f ms (%.3f .. %.3f)  %.2f ns/element/thread  %.1f GB/s  %.2f x fp32\n",
               names[k], median, ms[k][0], ms[k][rounds - 1], median * 1e6 * threads / (double)b->n,
               bytes[k] * (double)b->n / median / 1e6, median / ms[0][rounds / 2]);
    }
    return 0;
}

int main(int argc, char **argv) {
    struct bench b = {.n = argc > 1 ? atoll(argv[1]) : 32 << 20};
    int threads = argc > 2 ? atoi(argv[2]) : 2, rounds = argc > 3 ? atoi(argv[3]) : 15;
    struct err e = {0};
    rounds = rounds < 1 ? 1 : rounds > MAX_ROUNDS ? (int)MAX_ROUNDS : rounds;
    int rc = run(&b, threads, rounds, argc > 4 ? argv[4] : "auto", &e);
    if (rc != 0)
        fprintf(stderr, "bench_state: %s\n", e.text);
    return rc != 0;
}

// bench_cuda.c - a training step on the GPU next to its floor, both measured in one run.
//
//   gemm      rate of a large matrix product (the MATMUL op, 8192 cubed) on random numbers, in the
//             precision of the step
//   copy      bandwidth of a device-to-device copy, bytes read and written
//   floor     the step's matrix products and attention at the gemm rate, plus the fewest bytes that
//             its other ops can move at the copy's bandwidth, one after the other
//   products  the step's matrix products alone, back to back
//   step      the whole step, loader and update included: launched op by op, then as graphs
//
// usage: bench_cuda [--model NAME] [--seq T] [--steps N] [--micro B,B,...] [--precision fp32|bf16]
#include "backend/plugin.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/text.h"
#include "stepper.h"
#include "measure/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 1000, WARMUP = 4, GEMM_SIZE = 8192, TRIALS = 5 };
enum { SCRATCH_BYTES = 64 << 20 };

// ---------------------------------------------------------------- what the device can do

// Seconds of one call: the median of a few.
static int timed_call(struct backend *b, const struct op_call *call, double *seconds,
                      struct err *e) {
    double s[TRIALS];
    for (int i = -1; i < TRIALS; i++) { // the first is not counted
        TRY(b->turn_begin(b, e));
        TRY(b->run[call->op->kind](b, call, e));
        TRY(b->turn_end(b, e));
        TRY(b->sync(b, e));
        if (i >= 0)
            s[i] = 1e-9 * (double)b->busy_ns(b);
    }
    *seconds = sample_median(s, TRIALS);
    return 0;
}

static int timed_op(struct backend *b, struct op_call *call, double *seconds, struct err *e) {
    int rc = b->make(b, call, e);
    if (rc == 0)
        rc = timed_call(b, call, seconds, e);
    b->unmake(b, call);
    return rc;
}

// Inputs are random, because a GPU at its power limit is faster on zeros.
static int measure(struct backend *b, enum dtype type, double *gemm, double *bandwidth,
                   struct err *e) {
    const int64_t n = GEMM_SIZE, elements = n * n;
    const uint64_t bytes = (uint64_t)elements * dtype_bytes(type);
    void *arena;
    double seconds;
    TRY(b->arena_take(b, 3 * bytes + SCRATCH_BYTES, &arena, e));
    float *x = malloc((size_t)elements * sizeof *x);
    void *typed = malloc(bytes);
    char *device = arena;
    int rc = x && typed ? 0 : err_set(e, ERR_MEMORY, "no memory for random numbers");
    for (int64_t i = 0; rc == 0 && i < elements; i++)
        x[i] = (float)(rng_below(1, 1, (uint64_t)i, 2001)) / 1000.0f - 1.0f;
    if (rc == 0)
        dtype_convert(typed, type, x, DTYPE_F32, (size_t)elements);
    for (int i = 0; rc == 0 && i < 2; i++)
        rc = b->copy_in(b, device + i * bytes, typed, bytes, e);
    free(x);
    free(typed);
    struct op op = op_make(OP_MATMUL);
    op.m = op.n = op.k = n;
    struct op_call call = {
        .op = &op,
        .in = {{device, n, type, n, n}, {device + bytes, n, type, n, n}},
        .out = {{device + 2 * bytes, n, type, n, n}},
        .scratch = {device + 3 * bytes, SCRATCH_BYTES, DTYPE_U8, 1, SCRATCH_BYTES}};
    if (rc == 0)
        rc = timed_op(b, &call, &seconds, e);
    if (rc == 0)
        *gemm = 2.0 * (double)n * (double)n * (double)n / seconds;
    op = op_make(OP_COPY);
    op.m = 1, op.n = elements;
    call = (struct op_call){.op = &op,
                            .in = {{device, elements, type, 1, elements}},
                            .out = {{device + bytes, elements, type, 1, elements}}};
    if (rc == 0)
        rc = timed_op(b, &call, &seconds, e);
    if (rc == 0)
        *bandwidth = 2.0 * (double)bytes / seconds;
    b->arena_give(b, arena);
    return rc;
}

// ---------------------------------------------------------------- the step

struct needs {
    double matmul_flops, attention_flops, other_bytes;
};

static struct needs needs_of(const struct program *p) {
    struct needs n = {0};
    for (int i = 0; i < p->n_order; i++) {
        const struct segment *seg = &p->segments[p->order[i].segment];
        for (int k = 0; k < seg->n_ops; k++) {
            struct op_cost c = op_cost_of(p, &seg->ops[k]);
            enum op_category category = op_info(seg->ops[k].kind)->category;
            if (category == CAT_MATMUL)
                n.matmul_flops += c.flops;
            else if (category == CAT_ATTENTION)
                n.attention_flops += c.flops;
            else if (category != CAT_DATA)
                n.other_bytes += c.bytes;
        }
    }
    return n;
}

static int timed_steps(struct stepper *g, int n, double *ms, double *busy, struct err *e) {
    for (int i = -WARMUP; i < n; i++) {
        uint64_t begin = clock_ns();
        TRY(stepper_step(g, NULL, e));
        if (i < 0)
            continue;
        ms[i] = 1e-6 * (double)(clock_ns() - begin);
        busy[i] = 1e-6 * (double)exec_busy_ns(g->work.s->exec);
    }
    return 0;
}

static void print_step(const char *name, double *ms, double *busy, int n, double floor_ms,
                       double tokens) {
    double step = sample_median(ms, (size_t)n), device = sample_median(busy, (size_t)n);
    printf("  %-9s %9.2f ms   %8.2f .. %-8.2f  device %8.2f ms  floor/step %5.3f  %8.0f tokens/s\n",
           name, step, ms[0], ms[n - 1], device, floor_ms / step, 1e3 * tokens / step);
}

// Where the time goes, op by op, from one traced step.
static int print_split(struct stepper *g, struct err *e) {
    struct trace t;
    struct time_split split;
    TRY(trace_open(&t, g->work.engine->mem, 0, e));
    int rc = 0;
    for (int i = 0; rc == 0 && i < 3; i++) {
        trace_begin_step(&t, (uint32_t)i, clock_ns());
        rc = stepper_step(g, &t, e);
        trace_end_step(&t, clock_ns());
    }
    trace_last(&t, &split);
    printf("  split    ");
    for (int i = 0; rc == 0 && i < TIME_COUNT; i++)
        if (split.ns[i])
            printf(" %s %.2f ms", time_part_name((enum time_part)i), 1e-6 * (double)split.ns[i]);
    printf("\n");
    trace_close(&t);
    return rc;
}

struct options {
    const char *model, *precision; // NULL: all of them
    int64_t seq, micro[16];
    int n_micro, steps;
};

static int bench(const struct options *o, const char *precision, int64_t B, double gemm,
                 double bandwidth, struct err *e) {
    static double ms[MAX_STEPS], busy[MAX_STEPS];
    double products[TRIALS], tokens = (double)(B * o->seq), floor_ms = NAN;
    char a[TEXT_UNIT_BYTES];
    for (int graphs = 0; graphs < 2; graphs++) {
        struct stepper g = {0};
        int rc = stepper_open_cuda(&g, o->model, precision, B, o->seq, graphs, e);
        if (rc == 0 && !graphs) {
            struct needs n = needs_of(plan_program(&g.work.plan, PLAN_TRAIN));
            double matmul = 1e3 * n.matmul_flops / gemm, attention = 1e3 * n.attention_flops / gemm;
            double bytes = 1e3 * n.other_bytes / bandwidth;
            floor_ms = matmul + attention + bytes;
            printf("%s, %s, B=%lld, T=%lld: arena %s\n", o->model, precision, (long long)B,
                   (long long)o->seq, text_bytes(a, g.work.plan.layout.arena_bytes));
            printf("  floor     %9.2f ms   products %.2f + attention %.2f + bytes %.2f\n", floor_ms,
                   matmul, attention, bytes);
        }
        if (rc == 0)
            rc = timed_steps(&g, o->steps, ms, busy, e);
        if (rc == 0)
            print_step(graphs ? "graphs" : "step", ms, busy, o->steps, floor_ms, tokens);
        if (rc == 0 && !graphs)
            rc = print_split(&g, e);
        for (int i = 0; rc == 0 && !graphs && i < TRIALS; i++) {
            uint64_t begin = clock_ns();
            rc = exec_run_category(g.work.s->exec, plan_find(&g.work.plan, PLAN_TRAIN), CAT_MATMUL,
                                   e);
            products[i] = 1e-6 * (double)(clock_ns() - begin);
        }
        if (rc == 0 && !graphs)
            printf("  products  %9.2f ms   alone\n", sample_median(products, TRIALS));
        fflush(stdout);
        stepper_close(&g);
        TRY(rc);
    }
    return 0;
}

static int run(const struct options *o, const char *precision, enum dtype type, struct err *e) {
    struct backend *b;
    double gemm = 0, bandwidth = 0;
    const struct plugin_options p = {0};
    TRY(plugin_open("cuda", &p, &b, e));
    printf("%s\n", b->info.text);
    int rc = measure(b, type, &gemm, &bandwidth, e);
    b->close(b);
    TRY(rc);
    printf("gemm %.1f TFLOP/s (%s, %d cubed), copy %.2f TB/s\n", 1e-12 * gemm, precision, GEMM_SIZE,
           1e-12 * bandwidth);
    for (int i = 0; i < o->n_micro; i++)
        TRY(bench(o, precision, o->micro[i], gemm, bandwidth, e));
    return 0;
}

int main(int argc, char **argv) {
    struct options o = {
        .model = "gpt2-124m", .seq = 1024, .steps = 20, .micro = {4, 16}, .n_micro = 2};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--model") == 0 && i + 1 < argc)
            o.model = argv[++i];
        else if (strcmp(argv[i], "--seq") == 0 && i + 1 < argc)
            o.seq = atoll(argv[++i]);
        else if (strcmp(argv[i], "--precision") == 0 && i + 1 < argc)
            o.precision = argv[++i];
        else if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc)
            o.steps = atoi(argv[++i]);
        else if (strcmp(argv[i], "--micro") == 0 && i + 1 < argc) {
            o.n_micro = 0;
            for (char *at = argv[++i]; *at && o.n_micro < 16; at += *at == ',')
                o.micro[o.n_micro++] = strtoll(at, &at, 10);
        } else {
            fprintf(stderr,
                    "usage: bench_cuda [--model NAME] [--seq T] [--steps N] [--micro B,B,...] "
                    "[--precision fp32|bf16]\n");
            return 2;
        }
    }
    if (o.steps < 1 || o.steps > MAX_STEPS) {
        fprintf(stderr, "bench_cuda: --steps takes 1 to %d\n", MAX_STEPS);
        return 2;
    }
    struct err e = {0};
    static const struct {
        const char *name;
        enum dtype type;
    } precisions[] = {{"fp32", DTYPE_F32}, {"bf16", DTYPE_BF16}};
    for (int i = 0; i < 2; i++) {
        if (o.precision && strcmp(o.precision, precisions[i].name) != 0)
            continue;
        if (run(&o, precisions[i].name, precisions[i].type, &e) != 0) {
            fprintf(stderr, "error: %s\n", e.text);
            return 1;
        }
    }
    return 0;
}

// bench_cuda.c - a training step on the GPU next to its floor, both measured in one run.
//
//   gemm      rate of a large matrix product (the MATMUL op, 8192 cubed) on random numbers, in the
//             precision of the step
//   copy      bandwidth of a device-to-device copy, bytes read and written
//   floor     the step's matrix products and attention at the gemm rate, plus the fewest bytes that
//             its other ops can move at the copy's bandwidth, one after the other
//   products  the step's matrix products alone, back to back
//   step      the whole step, loader and update included: launched op by op, then as graphs
//   account   for each kind and size of op: its calls in a step, their time, and their floor, those
//             that lose most first
//
// usage: bench_cuda [--model NAME] [--seq T] [--steps N] [--micro B,B,...] [--precision fp32|bf16]
//                   [--account ROWS] [KNOB=VALUE ...]
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
enum { MAX_SETTINGS = 16 };
enum { SCRATCH_BYTES = 64 << 20, MAX_ROWS = 256 };

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

// ---------------------------------------------------------------- the account

struct row {
    struct op op; // the kind and sizes that its calls share
    int calls;
    double ms, floor_ms;
};

struct account {
    struct row rows[MAX_ROWS];
    int n;
};

static struct row *row_of(struct account *a, const struct op *op) {
    for (int i = 0; i < a->n; i++) {
        const struct op *r = &a->rows[i].op;
        if (r->kind == op->kind && r->m == op->m && r->n == op->n && r->k == op->k &&
            r->flags == op->flags)
            return &a->rows[i];
    }
    if (a->n == MAX_ROWS)
        return NULL;
    a->rows[a->n] = (struct row){.op = *op};
    return &a->rows[a->n++];
}

static double floor_of(const struct program *p, const struct op *op, double gemm,
                       double bandwidth) {
    const struct op_cost c = op_cost_of(p, op);
    const enum op_category category = op_info(op->kind)->category;
    const double bytes = 1e3 * c.bytes / bandwidth, flops = 1e3 * c.flops / gemm;
    if (category == CAT_ATTENTION)
        return flops;
    return category == CAT_MATMUL && flops > bytes ? flops : bytes;
}

// The events of a traced step are the ops of the compute stream, in order.
static void add_step(struct account *a, const struct program *p, const struct trace *t, double gemm,
                     double bandwidth) {
    size_t at = 0;
    for (int i = 0; i < p->n_order; i++) {
        const struct segment *seg = &p->segments[p->order[i].segment];
        for (int k = 0; k < seg->n_ops; k++) {
            const struct op *op = &seg->ops[k];
            if (op->stream != STREAM_COMPUTE || op->kind == OP_LOAD)
                continue;
            while (at < trace_count(t) && trace_at(t, at)->what != (uint16_t)op->kind)
                at++;
            struct row *row = row_of(a, op);
            if (at == trace_count(t) || !row)
                return;
            row->calls++;
            row->ms += 1e-6 * (double)trace_at(t, at++)->duration_ns;
            row->floor_ms += floor_of(p, op, gemm, bandwidth);
        }
    }
}

static int by_loss(const void *a, const void *b) {
    const struct row *x = a, *y = b;
    const double d = (y->ms - y->floor_ms) - (x->ms - x->floor_ms);
    return d > 0 ? 1 : d < 0 ? -1 : 0;
}

static void print_account(struct account *a, int rows) {
    double ms = 0, floor_ms = 0;
    qsort(a->rows, (size_t)a->n, sizeof *a->rows, by_loss);
    printf("  %-18s %8s %8s %8s %5s  %9s %9s %9s %6s\n", "account", "m", "n", "k", "calls", "ms",
           "floor ms", "lost ms", "floor");
    for (int i = 0; i < a->n; i++) {
        const struct row *r = &a->rows[i];
        ms += r->ms, floor_ms += r->floor_ms;
        if (i < rows)
            printf("  %-18s %8lld %8lld %8lld %5d  %9.3f %9.3f %9.3f %5.0f%%\n",
                   op_info(r->op.kind)->name, (long long)r->op.m, (long long)r->op.n,
                   (long long)r->op.k, r->calls, r->ms, r->floor_ms, r->ms - r->floor_ms,
                   r->ms > 0 ? 100 * r->floor_ms / r->ms : 0);
    }
    printf("  %-18s %8s %8s %8s %5s  %9.3f %9.3f %9.3f %5.0f%%\n", "all", "", "", "", "", ms,
           floor_ms, ms - floor_ms, ms > 0 ? 100 * floor_ms / ms : 0);
}

// Where the time goes, op by op, from the last of a few traced steps.
static int print_split(struct stepper *g, int rows, double gemm, double bandwidth, struct err *e) {
    static struct account account;
    struct trace t;
    struct time_split split;
    account.n = 0;
    TRY(trace_open(&t, g->work.engine->mem, 1 << 15, e));
    int rc = 0;
    for (int i = 0; rc == 0 && i < 3; i++) {
        trace_clear(&t);
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
    if (rc == 0 && rows > 0) {
        add_step(&account, plan_program(&g->work.plan, PLAN_TRAIN), &t, gemm, bandwidth);
        print_account(&account, rows);
    }
    trace_close(&t);
    return rc;
}

struct options {
    const char *model, *precision; // NULL: all of them
    int64_t seq, micro[16];
    int n_micro, steps, rows;
    char *settings[MAX_SETTINGS + 1];
};

static int bench(const struct options *o, const char *precision, int64_t B, double gemm,
                 double bandwidth, struct err *e) {
    static double ms[MAX_STEPS], busy[MAX_STEPS];
    double products[TRIALS], tokens = (double)(B * o->seq), floor_ms = NAN;
    char a[TEXT_UNIT_BYTES];
    for (int graphs = 0; graphs < 2; graphs++) {
        struct stepper g = {0};
        int rc = stepper_open_cuda(&g, o->model, precision, B, o->seq, graphs, o->settings, e);
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
            rc = print_split(&g, o->rows, gemm, bandwidth, e);
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
        .model = "gpt2-124m", .seq = 1024, .steps = 20, .micro = {4, 16}, .n_micro = 2, .rows = 30};
    int n_settings = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--model") == 0 && i + 1 < argc)
            o.model = argv[++i];
        else if (strcmp(argv[i], "--seq") == 0 && i + 1 < argc)
            o.seq = atoll(argv[++i]);
        else if (strcmp(argv[i], "--precision") == 0 && i + 1 < argc)
            o.precision = argv[++i];
        else if (strcmp(argv[i], "--account") == 0 && i + 1 < argc)
            o.rows = atoi(argv[++i]);
        else if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc)
            o.steps = atoi(argv[++i]);
        else if (strcmp(argv[i], "--micro") == 0 && i + 1 < argc) {
            o.n_micro = 0;
            for (char *at = argv[++i]; *at && o.n_micro < 16; at += *at == ',')
                o.micro[o.n_micro++] = strtoll(at, &at, 10);
        } else if (strchr(argv[i], '=') && n_settings < MAX_SETTINGS) {
            o.settings[n_settings++] = argv[i];
        } else {
            fprintf(stderr,
                    "usage: bench_cuda [--model NAME] [--seq T] [--steps N] [--micro B,B,...] "
                    "[--precision fp32|bf16] [--account ROWS] [KNOB=VALUE ...]\n");
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

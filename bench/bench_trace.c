// bench_trace.c - what tracing costs: the same steps with and without it, in turn.
//
// The first two columns (off, off again) measure the same thing and show the noise. The third is
// the time with tracing.
//
// usage: bench_trace [MODEL [B [T [ROUNDS]]]]
#include "base/clock.h"
#include "stepper.h"
#include "measure/sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROUNDS = 4000 };

static int timed(struct stepper *g, struct trace *trace, double *ms, struct err *e) {
    uint64_t begin = clock_ns();
    if (trace)
        trace_begin_step(trace, (uint32_t)g->step, begin);
    TRY(stepper_step(g, trace, e));
    if (trace)
        trace_end_step(trace, clock_ns());
    *ms = (double)(clock_ns() - begin) / 1e6;
    return 0;
}

static int run(const char *model, int64_t B, int64_t T, int rounds, struct err *e) {
    static double ms[3][MAX_ROUNDS];
    static const char *const names[3] = {"off", "off again", "on"};
    struct stepper g = {0};
    struct trace trace = {0};
    double scratch;
    int rc = stepper_open(&g, model, "auto", B, T, 0, e);
    if (rc == 0)
        rc = trace_open(&trace, g.work.engine->mem, 1 << 16, e);
    for (int i = 0; rc == 0 && i < 3; i++)
        rc = timed(&g, NULL, &scratch, e);
    for (int i = 0; rc == 0 && i < rounds; i++)
        for (int k = 0; rc == 0 && k < 3; k++) {
            int which = (i + k) % 3; // each goes first in turn
            rc = timed(&g, which == 2 ? &trace : NULL, &ms[which][i], e);
        }
    int ops = 0;
    const struct program *p = rc == 0 ? plan_program(&g.work.plan, PLAN_TRAIN) : NULL;
    for (int i = 0; p && i < p->n_order; i++)
        ops += p->segments[p->order[i].segment].n_ops;
    trace_close(&trace);
    stepper_close(&g);
    TRY(rc);
    printf("%s, B=%lld, T=%lld: %d ops per step, %d rounds\n", model, (long long)B, (long long)T,
           ops, rounds);
    double base = 0;
    for (int k = 0; k < 3; k++) {
        sample_sort(ms[k], (size_t)rounds);
        double median = ms[k][rounds / 2];
        base = k == 0 ? median : base;
        printf("  tracing %-10s median %9.3f ms, quartiles %9.3f .. %9.3f, ratio %.4f\n", names[k],
               median, ms[k][rounds / 4], ms[k][3 * rounds / 4], median / base);
    }
    return 0;
}

int main(int argc, char **argv) {
    struct err e = {0};
    int rounds = argc > 4 ? atoi(argv[4]) : 200;
    if (rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "bench_trace: 1 to %d rounds are accepted\n", MAX_ROUNDS);
        return 2;
    }
    if (run(argc > 1 ? argv[1] : "tiny", argc > 2 ? atoi(argv[2]) : 4,
            argc > 3 ? atoi(argv[3]) : 128, rounds, &e) != 0) {
        fprintf(stderr, "error: %s\n", e.text);
        return 1;
    }
    return 0;
}

// bench.h - rows of a benchmark, between the code that measures them and the code that prints them.
#ifndef HAGGLE_API_BENCH_H
#define HAGGLE_API_BENCH_H

#include "api/api.h"
#include "api/grid.h"
#include "store/store.h"
#include "train/trial.h"

struct bench_round { // one visit to a configuration
    double tokens_per_s, step_p50_ms;
};

struct bench_row {
    int rc; // 0: measured
    char reason[ERR_TEXT_BYTES];
    struct knobs knobs;
    struct samples step_ns; // of all rounds
    struct bench_round *rounds;
    int n_rounds;
    double spread; // of the rounds' tokens/s: (most - least) / mean; NaN below two
    double utilization;
    double loss_first, loss_last; // of the last round
    struct trial_result sum;      // counts and times of all rounds; memory: the largest
    struct run_metrics metrics;   // of all rounds
};

struct bench {
    const struct grid *grid;
    struct bench_row *rows; // grid->n of them
    int64_t steps, warmup;
    int rounds;
    struct machine machine;
    // Every trial goes there as it ends, where a store was named. What kept one from being recorded
    // is said at the end: it is no reason to stop measuring.
    struct store *store;
    struct err unrecorded;
};

int bench_print(const struct bench *b, enum haggle_format format, FILE *f, struct err *e);
void bench_put_json(const struct bench *b, struct json_writer *w); // an array with a row each

#endif

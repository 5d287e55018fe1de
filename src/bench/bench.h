// bench.h - rows of a benchmark: bench.c measures them, report/bench_print.c prints them.
#ifndef HAGGLE_BENCH_BENCH_H
#define HAGGLE_BENCH_BENCH_H

#include "base/log.h"
#include "bench/grid.h"
#include "measure/metrics.h"
#include "predict/machine.h"
#include "store/store.h"
#include "train/trial.h"

#include <signal.h>

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
    double spread; // of tokens/s between rounds: (most - least) / mean; NaN for one round
    double utilization;
    double loss_first, loss_last; // of the last round
    struct trial_result sum;      // counts and times of all rounds; the largest memory
    struct run_metrics metrics;   // of all rounds
};

struct bench {
    const struct grid *grid;
    struct bench_row *rows; // grid->n of them
    int64_t steps, warmup;
    int rounds;
    bool there_and_back; // every second round runs backwards, which cancels a steady drift
    struct machine machine;
    const volatile sig_atomic_t *stop; // not 0: stop after the current step
    // If not NULL, every trial is recorded there as it ends. A failure to record goes into
    // `unrecorded` and is reported at the end; measuring goes on.
    struct store *store;
    struct err unrecorded;
};

// Call these in order, and bench_close in every case. The caller first fills all but rows and
// machine.
int bench_open(struct bench *b, const struct knobs *base, struct err *e);
int bench_measure(struct bench *b, struct log *log, struct err *e); // all rounds
// Reads the machine's rates and computes every row's metrics. seconds: how long measuring took.
int bench_finish(struct bench *b, const struct knobs *base, double seconds, struct err *e);
void bench_close(struct bench *b);
size_t bench_rows_measured(const struct bench *b);
// The predictor of this machine remembers the steps of every measured row. A failure is ignored: its
// tables are a cache.
void bench_teach(const struct bench *b);
// Logs the fastest row, its lead over the second, and what limits it. Silent without measured rows.
void bench_say_best(const struct bench *b, struct log *log);
void bench_refuse(struct bench_row *row, int rc, const char *reason); // marks it as not measured

struct ratio {                // of one row to another, over the rounds both have
    double median, low, high; // NaN: not known
};
// The ratio of tokens/s or, with `latency`, of the rounds' median step time.
struct ratio bench_ratio(const struct bench_row *row, const struct bench_row *to, bool latency);
// The distance from 1 of the furthest round. For two rows of the same setting this is the noise.
double ratio_noise(const struct ratio *r);
// 1 (or -1): every round is above (below) 1, and the median is further from 1 than the noise.
// 0: no measurable difference, or fewer than three rounds.
int ratio_direction(const struct ratio *r, int rounds, double noise);
// The measured bytes; the predicted bytes if they could not be measured.
double bench_memory(const struct bench_row *row);

#endif

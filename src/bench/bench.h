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
    double memory_bytes; // measured, or planned if it could not be measured
};

struct bench_row {
    int rc; // 0: measured
    char reason[ERR_TEXT_BYTES];
    struct knobs knobs;
    struct samples step_ns; // of all rounds
    struct bench_round *rounds;
    int n_rounds;
    struct bench_round *beside; // visits to the row it is compared with, one beside each round
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
    // For each row, the row that it is compared with; -1: none. That row is visited again beside
    // each visit, before or after it in turns, because a busy machine changes within a round. NULL:
    // rows are compared as they come.
    const int *against;
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
// The predictor of this machine remembers the steps of every measured row. A failure is ignored:
// its tables are a cache.
void bench_teach(const struct bench *b);
// Logs the fastest row, its lead over the second, and what limits it. Silent without measured rows.
void bench_say_best(const struct bench *b, struct log *log);
void bench_refuse(struct bench_row *row, int rc, const char *reason); // marks it as not measured

enum bench_figure { BENCH_SPEED, BENCH_STEP, BENCH_MEMORY }; // tokens/s, median step, bytes
// The ratio of one row to another, over the rounds that both have, or over the row's own pairs of
// visits (beside). Its noise is its own: rounds of other rows do not matter.
struct ratio bench_ratio(const struct bench_row *row, const struct bench_row *to,
                         enum bench_figure figure);
// Says what other programs took while the two rows were measured. NULL: nothing notable.
const char *bench_busy(char out[OTHERS_TEXT_BYTES], const struct bench_row *row,
                       const struct bench_row *to);
// The measured bytes; the predicted bytes if they could not be measured.
double bench_memory(const struct bench_row *row);

#endif

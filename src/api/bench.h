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
    bool there_and_back; // every second round runs backwards: a steady drift cancels out
    struct machine machine;
    // Every trial goes there as it ends, where a store was named. What kept one from being recorded
    // is said at the end: it is no reason to stop measuring.
    struct store *store;
    struct err unrecorded;
};

// In this order; bench_close in every case. The caller fills all but rows and machine first.
int bench_open(struct bench *b, const struct knobs *base, struct err *e);
int bench_measure(struct bench *b, struct call *c, struct err *e); // all rounds
// The machine's rates, and every row's metrics. seconds: how long measuring took.
int bench_finish(struct bench *b, const struct knobs *base, double seconds, struct err *e);
void bench_close(struct bench *b);
void bench_refuse(struct bench_row *row, int rc, const char *reason); // it is not measured

struct ratio {                // of one row to another, over the rounds both have
    double median, low, high; // NaN: not known
};
// Of tokens/s, or of the rounds' median step time.
struct ratio bench_ratio(const struct bench_row *row, const struct bench_row *to, bool latency);
// How far the furthest round is from 1: what a row differs from itself by is noise.
double ratio_noise(const struct ratio *r);
// 1, -1: every round says more (less) than 1, and the median is further from it than noise; 0: no
// measurable difference. Fewer than three rounds say nothing.
int ratio_direction(const struct ratio *r, int rounds, double noise);
// As measured; where nobody could measure, as predicted.
double bench_memory(const struct bench_row *row);

int bench_print(const struct bench *b, enum haggle_format format, FILE *f, struct err *e);
// Members of a row's object: measured, reason, the metrics, spread, rounds.
void bench_put_members(const struct bench_row *row, struct json_writer *w);
void bench_put_csv(const char *text, FILE *f);      // quoted where needed
void bench_put_markdown(const char *text, FILE *f); // a cell: without bars and line breaks
void bench_put_json(const struct bench *b, struct json_writer *w); // an array with a row each

#endif

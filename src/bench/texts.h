// texts.h - how fast texts are made: a grid of knobs, lengths of prompts, lengths of texts, and
// texts side by side. report/bench_texts.c prints it.
//
// Each row is measured in a separate process. A round has two parts. First all prompts are computed
// and each makes one token: that is prefill, and the time to the first token. Then the same
// prompts, which the cache now holds, are continued: those turns hold one token of each text and
// nothing else. Prompts are random ids, which cost the same as any others. One round before is not
// counted.
#ifndef HAGGLE_BENCH_TEXTS_H
#define HAGGLE_BENCH_TEXTS_H

#include "base/log.h"
#include "bench/grid.h"
#include "measure/sample.h"

#include <signal.h>

enum { TEXTS_LIST_MOST = 64 };
struct texts_list {
    int64_t values[TEXTS_LIST_MOST];
    size_t n;
};
// "16,128,512"; what: the flag, for messages.
int texts_list_read(struct texts_list *l, const char *text, const char *what, struct err *e);

struct texts_row {
    size_t config; // of the grid
    int64_t prompt, output, batch;
    int rc; // 0: measured
    char reason[ERR_TEXT_BYTES];
    struct knobs knobs;
    int threads;
    double *prefill, *decode;      // tokens/s of each round; decode NaN where a text has one token
    struct samples first, between; // ns
    uint64_t planned_bytes, measured_bytes, cache_bytes; // measured 0: not known
};

struct texts_bench {
    const struct grid *grid;
    struct texts_list prompts, outputs, batches;
    int rounds;
    int64_t chunk; // tokens of prompts in one turn
    const volatile sig_atomic_t *stop;
    struct texts_row *rows;
    size_t n;
};

// Call these in order, and texts_bench_close in every case. The caller first fills all but rows.
int texts_bench_open(struct texts_bench *b, const struct knobs *base, struct err *e);
int texts_bench_measure(struct texts_bench *b, struct log *log, struct err *e);
void texts_bench_close(struct texts_bench *b);
size_t texts_bench_measured(const struct texts_bench *b);
// Median of the rounds, and (most - least) / mean: NaN for one round.
double texts_bench_median(const double *rates, int rounds);
double texts_bench_spread(const double *rates, int rounds);

#endif

// tradeoffs.h - strategies, the usual rule of thumb for each, and what was measured here.
//
// Place in the flow: tradeoffs.c measures the list with the machinery of bench.h and judges each
// strategy against its baseline; report/tradeoffs_print.c prints the tables.
//
// Invariants: a strategy is an entry in a table. What was seen is the 95 % interval of the ratios
// of two rows' own rounds. A rule of thumb holds if that interval lies in the range that the rule
// names, and differs if it lies outside.
#ifndef HAGGLE_BENCH_TRADEOFFS_H
#define HAGGLE_BENCH_TRADEOFFS_H

#include "bench/bench.h"

struct range { // of a ratio; both ends are left out
    double low, high;
};

struct strategy {
    const char *name;
    // For grid_change. {rate} is half of the rate that the baseline reads, {ranks} the number of
    // ranks that was asked for.
    const char *settings;
    const char *against;        // the strategy it is compared with; NULL: the baseline
    struct range speed, memory; // what the rule says about the ratios of tokens/s and bytes
    const char *rule;           // the rule of thumb, in words
    const char *what;           // what the strategy does, in one line
};

size_t strategy_count(void);
const struct strategy *strategy_at(size_t i); // the first and the last are the baseline
// The strategy's settings with {rate} and {ranks} filled in, in the region. NULL: it is full.
const char *strategy_settings(struct region *r, const struct strategy *s, uint64_t rate,
                              int64_t ranks);

enum agreement { RULE_HOLDS, RULE_DIFFERS, RULE_UNSEEN, RULE_NONE };

enum { FINDING_BYTES = 320 };
struct finding {
    const struct strategy *strategy;
    int against; // index of the row it is compared with; -1: none
    struct ratio speed, p50, memory;
    double p99;       // ratio of the figures of all rounds
    double sample;    // ratio of a micro-batch's time, by p50
    double loss;      // minus the baseline's; NaN: other batches, or not known
    bool other_batch; // tokens per step differ from the baseline's
    enum agreement agreement;
    char text[FINDING_BYTES];     // "as the rule says", or what was seen instead
    char busy[OTHERS_TEXT_BYTES]; // what other programs took meanwhile; "": nothing notable
};

struct tradeoffs {
    struct bench bench;
    const char *only;  // parts of names, separated by commas: only these strategies; NULL: all
    struct knobs base; // the baseline: as given, on one rank
    int64_t ranks;     // that were asked for; rows with several ranks need 2 or more
    struct grid grid;
    struct grid_setting *settings; // one per row
    struct finding *findings;
    int *against;       // findings[i].against
    double speed_noise; // how far the interval of the baseline against itself reaches from 1
};

// What --only calls the rows of tradeoffs_texts.h.
#define TRADEOFFS_GENERATION "generation"
// Whether an item of `only` is part of the name; `only` NULL: all are wanted.
bool tradeoffs_wants(const char *only, const char *name);
// Refuses an item of `only` that no strategy's name contains. NULL is fine.
int tradeoffs_check_only(const char *only, struct err *e);
// The caller first fills rounds, steps, warmup and stop of t->bench, and t->only. Measures the
// baseline once, for the rate of slow sources, and makes the rows. Call
// bench_measure(&t->bench, ...) next, and tradeoffs_close in every case.
int tradeoffs_open(struct tradeoffs *t, const struct knobs *base, struct err *e);
// Computes the figures and the findings. seconds: how long measuring took.
int tradeoffs_finish(struct tradeoffs *t, const struct knobs *base, double seconds, struct err *e);
void tradeoffs_close(struct tradeoffs *t);
// Compares speed and memory with what the strategy's rule says: agreement and text.
void finding_judge(struct finding *f);
// Fills the findings from the measured rows.
void tradeoffs_judge(struct tradeoffs *t);

#endif

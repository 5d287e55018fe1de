// tradeoffs.h - strategies beside what is usually said of them, and what was measured here.
//
// Place in the flow: tradeoffs.c measures the list with the machinery of bench.h and judges each
// strategy against its baseline; tradeoffs_print.c makes tables of it.
//
// Invariants: the list is data: a strategy is a line. Whether a rule of thumb holds is decided by
// directions beyond noise, and noise is the difference of the baseline from itself.
#ifndef HAGGLE_API_TRADEOFFS_H
#define HAGGLE_API_TRADEOFFS_H

#include "api/bench.h"

enum { RULE_IS_SILENT = 2 };

struct strategy {
    const char *name;
    const char *settings; // as grid_change takes them; {rate} is half of what the source must give
    const char *against;  // the strategy it is compared with; NULL: the baseline
    int speed, memory;    // what the rule of thumb expects of tokens/s and bytes: -1, 0, 1, or:
    const char *rule;     // the rule of thumb, in words
    const char *what;     // what it does, in a line
};

size_t strategy_count(void);
const struct strategy *strategy_at(size_t i); // 0 is the baseline, the last one is it again

enum agreement { RULE_HOLDS, RULE_DIFFERS, RULE_UNSEEN, RULE_NONE };

enum { FINDING_BYTES = 320 };
struct finding {
    const struct strategy *strategy;
    int against; // index of the row it is compared with; -1: none
    struct ratio speed, p50;
    double p99, sample, memory; // ratios of the figures of all rounds
    double loss;                // less the baseline's; NaN: other batches, or not known
    bool other_batch;           // tokens per step are not the baseline's
    enum agreement agreement;
    char text[FINDING_BYTES]; // "as the rule says", or where it differs
};

struct tradeoffs {
    struct bench bench;
    struct grid grid;
    struct grid_setting *settings; // one per row
    struct finding *findings;
    double speed_noise, memory_noise; // largest |ratio - 1| of the baseline to itself
};

// Fills findings and noise from the measured rows.
void tradeoffs_judge(struct tradeoffs *t);
int tradeoffs_print(const struct tradeoffs *t, const struct knobs *base, enum haggle_format format,
                    FILE *f, struct err *e);
void tradeoffs_put_json(const struct tradeoffs *t, struct json_writer *w); // an array of rows

#endif

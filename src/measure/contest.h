// contest.h - which of two configurations is faster, at a stated confidence, or that it is not
// known yet.
//
// Place: the tuner measures its finalists in turns until their order is certain. bench says whether
// the best is better than the second. sample_compare answers the same question for independent
// samples. Steps of one process are not independent, and machines drift, so blocks are compared
// here.
//
// How: steps are summed in blocks (rounds, if the two configurations took turns). Only blocks are
// compared, by rank tests with exact distributions.
//   paired rounds  Wilcoxon's signed ranks of the differences of round i. Slow drifts cancel.
//   separate runs  Mann and Whitney's test of 16 blocks of each run, or 8 if neighbouring blocks
//                  are alike. If a run has a trend, the other run may be shifted by as much, so the
//                  interval grows by that amount.
//
// Invariants: no randomness, no allocation. If nothing can be said, the result is undecided, with
// the reason. The chance to call one of two equal configurations faster is at most 1 - confidence
// for one look. For several looks use sample_look_confidence (bound.h). Differences between two
// separate processes that do not show within them (another placement in memory, a new neighbour on
// the machine) cannot be detected: take turns.
#ifndef HAGGLE_MEASURE_CONTEST_H
#define HAGGLE_MEASURE_CONTEST_H

#include <stdbool.h>
#include <stddef.h>

enum contest_state { CONTEST_UNDECIDED, CONTEST_FASTER, CONTEST_SLOWER, CONTEST_EQUAL };
// How a block is summarised: its throughput (steps over time), or its median step, which a few slow
// steps do not change.
enum contest_figure { CONTEST_THROUGHPUT, CONTEST_MEDIAN };

struct contest_side {
    const double *step_ns; // in time order; each > 0
    size_t n;
    size_t rounds;          // number of rounds of equal length; 0 or 1: one run
    double tokens_per_step; // makes different step sizes comparable; 0 means 1
};

struct contest_options {
    double confidence; // 0.95
    double tolerance;  // 0.01: differences within 1 % count as equal; 0: never CONTEST_EQUAL
    enum contest_figure figure;
    bool paired;     // round i of one side was measured next to round i of the other
    double *scratch; // for CONTEST_MEDIAN: room for the steps of the longer side
};

struct contest {
    enum contest_state state;      // of a against b
    double speed_ratio, low, high; // a's tokens/s over b's, and its interval; NaN: too few blocks
    size_t blocks;                 // blocks compared per side (the smaller number if they differ)
    size_t blocks_needed;          // smallest number that can decide at this confidence
    double drift;    // the larger trend of the two runs, as a fraction; 0: none, or paired
    const char *why; // why it is undecided; "" if decided
};

enum { CONTEST_MOST_BLOCKS = 64 };

// The same for paired rounds that the caller has summarised: a[i] and b[i] are the logarithms of
// what round i cost each side (seconds per token, say). A round in which either is NaN does not
// count. At most CONTEST_MOST_BLOCKS rounds are looked at. Of the options only confidence and
// tolerance matter.
void contest_rounds(struct contest *out, const double *a, const double *b, size_t rounds,
                    const struct contest_options *o);

void contest_hold(struct contest *out, const struct contest_side *a, const struct contest_side *b,
                  const struct contest_options *o);

#endif

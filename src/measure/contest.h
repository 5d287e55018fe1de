// contest.h - which of two configurations is faster, at a stated confidence, or that it is not known yet.
//
// Place: the tuner measures its finalists in turns until their order is certain; bench says whether the
// best is better than the second. sample_compare answers the same for independent samples; steps of one
// process are not independent, and machines drift: hence blocks.
//
// How: steps are summed up in blocks (rounds, where two configurations took turns), and only blocks are
// compared, by rank tests with exact distributions. Paired rounds: Wilcoxon's signed ranks of the
// differences of round i, from which slow drifts cancel. Runs one after the other: Mann and
// Whitney's test of 16 blocks of each, fewer while neighbouring blocks resemble each other; and where a
// run has a trend, the other one is suspected to have been shifted by as much.
//
// Invariants: no randomness, no allocation. What cannot be told is undecided, with the reason. The chance to
// call one of two equals faster is at most 1 - confidence, for one look; for several ask
// sample_look_confidence (bound.h). What happens between two separate processes and not within them
// (another placement in memory, a neighbour that came) cannot be seen by anything: take turns.
#ifndef HAGGLE_MEASURE_CONTEST_H
#define HAGGLE_MEASURE_CONTEST_H

#include <stdbool.h>
#include <stddef.h>

enum contest_state { CONTEST_UNDECIDED, CONTEST_FASTER, CONTEST_SLOWER, CONTEST_EQUAL };
// What a block is summed up as: its throughput (steps over time), or its median step, which a few slow
// steps do not move.
enum contest_figure { CONTEST_THROUGHPUT, CONTEST_MEDIAN };

struct contest_side {
    const double *step_ns; // in the order of time; > 0
    size_t n;
    size_t rounds;          // visits of equal length they came in; 0 and 1: one run
    double tokens_per_step; // so that configurations of different step sizes compare; 0: 1
};

struct contest_options {
    double confidence; // 0.95
    double tolerance;  // 0.01: a difference below 1 % is as good as none; 0: never EQUAL
    enum contest_figure figure;
    bool paired;     // round i of one side was measured beside round i of the other
    double *scratch; // for CONTEST_MEDIAN: room for the longer side's steps
};

struct contest {
    enum contest_state state;      // of a against b
    double speed_ratio, low, high; // a's tokens/s over b's, and its interval; NaN: too few blocks
    size_t blocks;                 // of each side that were compared (the fewer, where they differ)
    size_t blocks_needed;          // fewest that can decide at this confidence
    double drift;    // of a run, as a fraction, where it has a trend; 0 else and when paired
    const char *why; // undecided, in words; "" else
};

enum { CONTEST_MOST_BLOCKS = 64 };

void contest_hold(struct contest *out, const struct contest_side *a, const struct contest_side *b,
                  const struct contest_options *o);

#endif

// contest.h - which of two configurations is faster, at a stated confidence, or that it is not
// known yet.
//
// Place: the tuner measures its finalists in turns until their order is certain. sample_compare
// answers the same question for independent samples. Steps of one process are not independent, and
// machines drift, so rounds of steps are compared here: round i of one side was measured next to
// round i of the other. Slow drifts cancel.
//
// How: Wilcoxon's signed ranks of the differences of the rounds, with the exact distribution.
//
// Invariants: no randomness, no allocation. The chance to call one of two equal configurations
// faster is at most 1 - confidence for one look. For several looks use sample_look_confidence
// (bound.h).
#ifndef HAGGLE_MEASURE_CONTEST_H
#define HAGGLE_MEASURE_CONTEST_H

#include <stddef.h>

enum contest_state { CONTEST_UNDECIDED, CONTEST_FASTER, CONTEST_SLOWER, CONTEST_EQUAL };

struct contest_options {
    double confidence; // 0.95
    double tolerance;  // 0.01: differences within 1 % count as equal; 0: never CONTEST_EQUAL
};

struct contest {
    enum contest_state state;      // of a against b
    double speed_ratio, low, high; // a's tokens/s over b's, and its interval; NaN: too few rounds
};

enum { CONTEST_MOST_BLOCKS = 64 };

// a[i] and b[i] are the logarithms of what round i cost each side (seconds per token, say). A round
// in which either is NaN does not count. At most CONTEST_MOST_BLOCKS rounds are looked at. If
// neighbouring rounds are alike, the interval grows, because they are not independent.
void contest_rounds(struct contest *out, const double *a, const double *b, size_t rounds,
                    const struct contest_options *o);

#endif

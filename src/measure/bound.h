// bound.h - is a percentile under a budget? Proven, disproven or open, from exact samples.
//
// Place: sample.h says what a percentile is and bounds it at 95 %; the tuner asks here, at the confidence
// it states, whether a configuration keeps its budget, while trials are still running.
//
// How: of n independent samples, those at most `budget` are Bin(n, F(budget)) whatever the distribution.
// The percentile p is at most the budget exactly when F(budget) >= p, so counting is all there is to do.
//
// Invariants:
//   1. Distribution-free, and exact for ties. Samples are taken to be independent: where steps share their
//      luck (a busy minute), it is the caller who spreads them over rounds.
//   2. sample_bound_verdict holds for one look at a number of samples fixed before. Who looks again and
//      again until it pleases errs more often than stated: sample_bound_watch is for looking after every
//      step; or each look gets its share of the error (sample_look_confidence).
#ifndef HAGGLE_MEASURE_BOUND_H
#define HAGGLE_MEASURE_BOUND_H

#include <stddef.h>

enum bound_state { BOUND_OPEN, BOUND_UNDER, BOUND_OVER };

struct bound_verdict {
    enum bound_state state; // of the percentile, at the stated confidence
    size_t n, over;         // samples; of them more than the budget
    // When open. Fewest samples in all that could prove it under, if none of the further ones is over;
    // and in all if things go on as they went so far, for either proof. 0: not within BOUND_MOST.
    size_t n_needed, n_likely;
};
#define BOUND_MOST ((size_t)1 << 30)

// Of a percentile p (0.99) and a budget in the unit of the values. One look. NaN counts as over.
struct bound_verdict sample_bound_verdict(const double *values, size_t n, double p, double budget,
                                          double confidence);
// The same from counts.
struct bound_verdict sample_bound_counts(size_t n, size_t over, double p, double confidence);
// Valid however often it is asked, after any number of samples and until one likes: the chance that it
// ever says something wrong is at most 1 - confidence per side. Costs more samples: 340 instead
// of 299 to prove p99 at 95 % when none is over. n_needed and n_likely are 0.
struct bound_verdict sample_bound_watch(size_t n, size_t over, double p, double confidence);
// Fewest samples in all at which it says "under", if none of the further ones is over.
size_t sample_watch_needs(size_t n, size_t over, double p, double confidence);

// Ranks (1-based) of the order statistics that bound the percentile from above and from below with this
// one-sided confidence; 0: n is too small for one. sample_upper_rank(n, p, 0.95) is sample_bound_rank.
size_t sample_upper_rank(size_t n, double p, double confidence);
size_t sample_lower_rank(size_t n, double p, double confidence);
// Fewest samples with an upper bound: p^n <= 1 - confidence.
size_t sample_upper_needs(double p, double confidence);

// For looks 1, 2, 3, ... at growing data: the confidence each must ask for so that all of them together
// err with at most 1 - confidence: look k may err with (1 - confidence) / (k (k + 1)), which adds up.
double sample_look_confidence(double confidence, int look);

#endif

// bound.h - is a percentile under a budget? The answer is proven, disproven or open, from exact
// samples.
//
// Place: sample.h defines percentiles and bounds them at 95 %. The tuner asks here, at a confidence
// that it states and while trials are running, whether a configuration keeps its budget.
//
// How: of n independent samples, the number that are at most `budget` is Bin(n, F(budget)), for any
// distribution F. The percentile p is at most the budget exactly when F(budget) >= p. So it is
// enough to count samples.
//
// Invariants:
//   1. The bounds are distribution-free and exact for ties. Samples are assumed to be independent.
//      Where steps are not (a busy minute slows many of them), the caller spreads them over rounds.
//   2. sample_bound_verdict holds for one look at a number of samples that was fixed before.
//      Looking repeatedly until the answer is as wished errs more often than stated. Use
//      sample_bound_watch to look after every step, or give each look a share of the error
//      (sample_look_confidence).
#ifndef HAGGLE_MEASURE_BOUND_H
#define HAGGLE_MEASURE_BOUND_H

#include <stddef.h>

enum bound_state { BOUND_OPEN, BOUND_UNDER, BOUND_OVER };

struct bound_verdict {
    enum bound_state state; // of the percentile, at the stated confidence
    size_t n, over;         // number of samples; how many of them are over the budget
    // Only when open. n_needed: the smallest total number of samples that could prove "under", if
    // no further sample is over. n_likely: the total number for either proof if the rate stays as
    // it is. 0: more than BOUND_MOST.
    size_t n_needed, n_likely;
};
#define BOUND_MOST ((size_t)1 << 30)

// One look. p: the percentile, for example 0.99. budget: in the unit of the values. NaN counts as
// over.
struct bound_verdict sample_bound_verdict(const double *values, size_t n, double p, double budget,
                                          double confidence);
// The same from counts.
struct bound_verdict sample_bound_counts(size_t n, size_t over, double p, double confidence);
// Valid for any number of looks, at any time. The chance that it is ever wrong is at most 1 -
// confidence per side. It needs more samples: 340 instead of 299 to prove p99 at 95 % when none is
// over. n_needed and n_likely are 0.
struct bound_verdict sample_bound_watch(size_t n, size_t over, double p, double confidence);
// The smallest total number of samples at which sample_bound_watch says "under", if no further
// sample is over.
size_t sample_watch_needs(size_t n, size_t over, double p, double confidence);

// Ranks (1-based) of the order statistics that bound the percentile from above and from below with
// this one-sided confidence. 0: n is too small. sample_upper_rank(n, p, 0.95) is sample_bound_rank.
size_t sample_upper_rank(size_t n, double p, double confidence);
size_t sample_lower_rank(size_t n, double p, double confidence);
// The smallest number of samples that has an upper bound: p^n <= 1 - confidence.
size_t sample_upper_needs(double p, double confidence);

// The confidence that look 1, 2, 3, ... at growing data must ask for, so that all looks together
// err with probability at most 1 - confidence. Look k may err with (1 - confidence) / (k (k + 1)).
// The sum over all k is 1 - confidence.
double sample_look_confidence(double confidence, int look);

#endif

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
// Invariant: the answers hold for any distribution, and exactly for ties. Samples are assumed to be
// independent. Where steps are not (a busy minute slows many of them), the caller spreads them over
// rounds.
#ifndef HAGGLE_MEASURE_BOUND_H
#define HAGGLE_MEASURE_BOUND_H

#include <stddef.h>

enum bound_state { BOUND_OPEN, BOUND_UNDER, BOUND_OVER };

struct bound_verdict {
    enum bound_state state; // of the percentile, at the stated confidence
    size_t n, over;         // number of samples; how many of them are over the budget
};

// May be asked after every step: the chance that it is ever wrong is at most 1 - confidence per
// side. p: the percentile, for example 0.99. A proof of p99 at 95 % needs 340 samples if none is
// over the budget.
struct bound_verdict sample_bound_watch(size_t n, size_t over, double p, double confidence);
// The smallest total number of samples at which sample_bound_watch says "under", if no further
// sample is over. 0: more than 2^30.
size_t sample_watch_needs(size_t n, size_t over, double p, double confidence);

// Rank (1-based) of the order statistic that bounds the percentile from above with this one-sided
// confidence, at one look. 0: n is too small.
size_t sample_upper_rank(size_t n, double p, double confidence);
// The smallest number of samples that has an upper bound: p^n <= 1 - confidence.
size_t sample_upper_needs(double p, double confidence);

// The confidence that look 1, 2, 3, ... at growing data must ask for, so that all looks together
// err with probability at most 1 - confidence. Look k may err with (1 - confidence) / (k (k + 1)).
// The sum over all k is 1 - confidence.
double sample_look_confidence(double confidence, int look);

#endif

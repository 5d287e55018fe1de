// rate.h - a sum over units divided by another sum over the same units, as a loss per token is, and
// how far another draw of units might have moved it.
//
// Place: the scores of models (train/score.h) use it. A unit is what was drawn independently: a
// record of the data. What lies inside a unit is not independent (the tokens of one story), so only
// the differences between units count for the interval. Two models that were given the same units
// are compared unit by unit: what makes a record hard for both cancels.
//
// Invariants: no randomness, no allocation, one order of summation.
#ifndef HAGGLE_MEASURE_RATE_H
#define HAGGLE_MEASURE_RATE_H

#include <stddef.h>

struct rate {
    double value;     // NaN: the weights' sum is 0
    double low, high; // 95 % interval; NaN: fewer than two units
    size_t n;         // units
};

// The sum of x over the sum of w. The interval is Student's, of the residuals x[i] - value w[i].
struct rate rate_of(const double *x, const double *w, size_t n);
// rate_of(x, w) - rate_of(y, v) of the same units.
struct rate rate_difference(const double *x, const double *w, const double *y, const double *v,
                            size_t n);
// 1 (or -1): the whole interval lies above (below) 0. 0: it holds 0, or is not known.
int rate_direction(const struct rate *r);

#endif

// sample.h - exact samples of a duration (one per optimizer step), and what can be said about them.
//
// Place: train/ and bench add one value per step. metrics.h and report/ read quantiles. The caller
// chooses the unit. The formatting helpers expect nanoseconds.
//
// Invariants:
//   1. Nothing is allocated after samples_open: adding and sorting use memory taken there.
//   2. Every value is kept, up to `capacity`. After that the newest `capacity` values are kept (a
//      ring), and samples.seen says how many there were in all.
//   3. A quantile is the nearest-rank order statistic: always a value that was measured.
//   4. A bound is distribution-free: it holds for independent samples of any distribution. If n is
//      too small, the bound is reported as absent, with the n it would need, and never guessed.
#ifndef HAGGLE_MEASURE_SAMPLE_H
#define HAGGLE_MEASURE_SAMPLE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// 2^20 steps of 8 bytes, twice (values and sorted copy). Pages are touched only when used.
enum { SAMPLES_DEFAULT_CAPACITY = 1 << 20 };

struct samples {
    double *values, *sorted; // values: a ring; sorted: scratch of the same size
    size_t capacity;
    uint64_t seen; // number added in all; the newest min(seen, capacity) are kept
};

int samples_open(struct samples *s, size_t capacity, struct err *e);
void samples_close(struct samples *s);
void samples_clear(struct samples *s); // forgets all values (after warm-up); keeps the memory
void samples_add(struct samples *s, double value);
size_t samples_count(const struct samples *s); // number of values kept
// Copies the newest `last` values (0: all that are kept), oldest first, into out. Returns how many.
size_t samples_copy(const struct samples *s, size_t last, double *out);

struct quantile {
    double p;        // 0.99
    double value;    // nearest rank; NaN when n is 0
    double upper95;  // one-sided 95 % upper bound of the true quantile; NaN: n is too small
    size_t n;        // samples used
    size_t n_needed; // smallest n that allows the bound: 5, 59, 299 for p50, p95, p99
};
static inline bool quantile_has_bound(const struct quantile *q) {
    return q->n >= q->n_needed;
}

// Quantiles of the newest `last` samples (0: all that are kept; the live line uses a few hundred).
// Sorts once.
void samples_quantiles(struct samples *s, size_t last, const double *p, size_t count,
                       struct quantile *out);

struct spread {
    size_t n;
    double median, mad;   // median absolute deviation from the median
    double q1, q3;        // nearest-rank quartiles
    double low95, high95; // at least 95 % confidence interval of the median; NaN when n < 6
    double mean, min, max;
};
void samples_spread(struct samples *s, size_t last, struct spread *out);
// The same for a plain array. The array is sorted in place, then overwritten with deviations from
// the median.
void sample_spread_of(double *values, size_t n, struct spread *out);
void sample_sort(double *values, size_t n); // ascending, in place, without allocating
// Sorts the values and returns the median: for even n the mean of the two middle values, NaN for n
// = 0.
double sample_median(double *values, size_t n);

enum comparison { COMPARE_LOWER = -1, COMPARE_SAME = 0, COMPARE_HIGHER = 1, COMPARE_UNKNOWN = 2 };
// Whether `a` is lower or higher than `b`. Only if the 95 % intervals of the medians do not touch.
// UNKNOWN if either has fewer than 6 samples.
enum comparison sample_compare(const struct spread *a, const struct spread *b);

// The ratio a / b of two settings that ran in turns: a[i] and b[i] were measured one after the
// other, so slow drifts of the machine cancel.
struct ratio {
    double median;
    double low, high; // 95 % interval; NaN: fewer than RATIO_ROUNDS pairs
};
enum { RATIO_ROUNDS = 3 };
// The interval is Student's, of the logarithms of a[i] / b[i]. All values must be positive.
struct ratio sample_ratio(const double *a, const double *b, size_t n);
// 1 (or -1): the whole interval lies above (below) 1. 0: it holds 1, or is not known.
int ratio_direction(const struct ratio *r);

// The 97.5 % quantile of Student's distribution: half a 95 % interval, in standard errors. NaN for
// 0 degrees of freedom.
double sample_student(size_t freedom);

// The order statistic (1-based) of n samples that bounds quantile p from above with 95 %
// confidence: the smallest k with P(Bin(n, p) < k) >= 0.95. 0 if n is too small.
size_t sample_bound_rank(size_t n, double p);
size_t sample_bound_needs(double p); // smallest n with a bound: p^n <= 0.05

enum { QUANTILE_TEXT_BYTES = 128 };
// Formats a quantile of nanoseconds: "p99 41.2 ms (n=120, no 95 % bound; need 299)" or "p99 41.2 ms
// (n=400, at most 43.0 ms with 95 % confidence)". Returns out.
const char *quantile_text(char out[QUANTILE_TEXT_BYTES], const struct quantile *q);

#endif

// sample.c - quantiles, their distribution-free bounds, and comparison of two sets of samples.
//
// The bounds are order statistics (bound.c). With n independent samples, the number that fall below
// the true quantile q_p is Bin(n, p), for any distribution. So the k-th smallest sample exceeds q_p
// with probability P(Bin(n, p) < k).
#include "measure/sample.h"

#include "base/text.h"
#include "measure/bound.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double CONFIDENCE = 0.95;
enum { MEDIAN_CI_MIN = 6 }; // smallest n for a 95 % interval of the median: 2 * 0.5^6 <= 0.05

int samples_open(struct samples *s, size_t capacity, struct err *e) {
    *s = (struct samples){0};
    if (capacity == 0 || capacity > SIZE_MAX / 2 / sizeof(double))
        return err_set(e, ERR_USAGE, "samples: a capacity of %zu is not in 1 to %zu", capacity,
                       SIZE_MAX / 2 / sizeof(double));
    // One block for both arrays, values first. It is not cleared, so unused pages are never
    // touched.
    s->values = malloc(2 * capacity * sizeof(double));
    if (s->values == NULL)
        return err_set(e, ERR_MEMORY, "samples: out of memory for %zu values", capacity);
    s->sorted = s->values + capacity;
    s->capacity = capacity;
    return 0;
}

void samples_close(struct samples *s) {
    free(s->values);
    *s = (struct samples){0};
}

void samples_clear(struct samples *s) {
    s->seen = 0;
}

void samples_add(struct samples *s, double value) {
    s->values[s->seen % s->capacity] = value;
    s->seen++;
}

size_t samples_count(const struct samples *s) {
    return s->seen < s->capacity ? (size_t)s->seen : s->capacity;
}

size_t samples_copy(const struct samples *s, size_t last, double *out) {
    size_t n = samples_count(s);
    if (last != 0 && last < n)
        n = last;
    for (size_t i = 0; i < n; i++)
        out[i] = s->values[(s->seen - n + i) % s->capacity];
    return n;
}

// Heapsort in place. The C library's qsort may allocate, and the live line sorts between two steps.
static void sift_down(double *heap, size_t root, size_t n) {
    for (size_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && heap[child + 1] > heap[child])
            child++;
        if (heap[root] >= heap[child])
            return;
        double swap = heap[root];
        heap[root] = heap[child];
        heap[child] = swap;
    }
}

void sample_sort(double *values, size_t n) {
    for (size_t i = n / 2; i-- > 0;)
        sift_down(values, i, n);
    while (n > 1) {
        double top = values[0];
        values[0] = values[--n];
        values[n] = top;
        sift_down(values, 0, n);
    }
}

size_t sample_bound_rank(size_t n, double p) {
    return sample_upper_rank(n, p, CONFIDENCE);
}

size_t sample_bound_needs(double p) {
    return sample_upper_needs(p, CONFIDENCE);
}

// Nearest rank: the smallest value such that at least a share p of the samples does not exceed it.
static double nearest_rank(const double *sorted, size_t n, double p) {
    if (n == 0)
        return NAN;
    // The small subtraction keeps 0.95 * 20 = 19.000000000000004 from becoming rank 20.
    double rank = ceil(p * (double)n - 1e-9);
    size_t k = rank < 1 ? 1 : (size_t)rank;
    return sorted[(k > n ? n : k) - 1];
}

void samples_quantiles(struct samples *s, size_t last, const double *p, size_t count,
                       struct quantile *out) {
    size_t n = samples_copy(s, last, s->sorted);
    sample_sort(s->sorted, n);
    for (size_t i = 0; i < count; i++) {
        size_t k = sample_bound_rank(n, p[i]);
        out[i] = (struct quantile){
            .p = p[i],
            .value = nearest_rank(s->sorted, n, p[i]),
            .upper95 = k > 0 ? s->sorted[k - 1] : NAN,
            .n = n,
            .n_needed = sample_bound_needs(p[i]),
        };
    }
}

// ---------------------------------------------------------------- spread and comparison

static double median_of_sorted(const double *sorted, size_t n) {
    if (n == 0)
        return NAN;
    return n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

double sample_median(double *values, size_t n) {
    sample_sort(values, n);
    return median_of_sorted(values, n);
}

// Largest l with P(Bin(n, 1/2) < l) <= 0.025. Samples l and n + 1 - l then enclose the median with
// at least 95 % confidence. The terms are summed from the middle outwards, using the symmetry.
static size_t median_rank(size_t n) {
    if (n < MEDIAN_CI_MIN)
        return 0;
    double total = 0, w = 1;
    size_t middle = n / 2;
    for (size_t j = middle; j <= n && w > 1e-18; j++) {
        total += w;
        w *= (double)(n - j) / (double)(j + 1);
    }
    double below = 0; // sum over j < middle
    w = 1;
    for (size_t j = middle; j > 0 && w > 1e-18; j--) {
        w *= (double)j / (double)(n - j + 1);
        below += w;
    }
    const double allowed = 0.025 * (total + below);
    size_t l = middle; // below is P(Bin < l), scaled
    w = 1;
    while (l > 0 && below > allowed) {
        w *= (double)l / (double)(n - l + 1);
        below -= w;
        l--;
    }
    return l;
}

void sample_spread_of(double *values, size_t n, struct spread *out) {
    // All but n is unknown until it is set below.
    *out = (struct spread){n, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    if (n == 0)
        return;
    sample_sort(values, n);
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += values[i];
    out->mean = sum / (double)n;
    out->min = values[0];
    out->max = values[n - 1];
    out->median = median_of_sorted(values, n);
    out->q1 = nearest_rank(values, n, 0.25);
    out->q3 = nearest_rank(values, n, 0.75);
    size_t l = median_rank(n);
    if (l > 0) {
        out->low95 = values[l - 1];
        out->high95 = values[n - l];
    }
    // Last, because the deviations overwrite the values.
    for (size_t i = 0; i < n; i++)
        values[i] = fabs(values[i] - out->median);
    sample_sort(values, n);
    out->mad = median_of_sorted(values, n);
}

void samples_spread(struct samples *s, size_t last, struct spread *out) {
    size_t n = samples_copy(s, last, s->sorted);
    sample_spread_of(s->sorted, n, out);
}

enum comparison sample_compare(const struct spread *a, const struct spread *b) {
    if (a->n < MEDIAN_CI_MIN || b->n < MEDIAN_CI_MIN)
        return COMPARE_UNKNOWN;
    if (a->high95 < b->low95)
        return COMPARE_LOWER;
    if (a->low95 > b->high95)
        return COMPARE_HIGHER;
    return COMPARE_SAME;
}

double sample_student(size_t freedom) {
    static const double table[] = {NAN,   12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                                   2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131};
    return freedom < sizeof table / sizeof *table ? table[freedom] : 1.96 + 2.5 / (double)freedom;
}

struct ratio sample_ratio(const double *a, const double *b, size_t n) {
    struct ratio out = {NAN, NAN, NAN};
    double *logs = malloc((n + 1) * sizeof *logs), sum = 0, squares = 0;
    if (!logs)
        return out;
    for (size_t i = 0; i < n; i++)
        sum += logs[i] = log(a[i] / b[i]);
    const double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (logs[i] - mean) * (logs[i] - mean);
    const double median = sample_median(logs, n);
    free(logs);
    out.median = exp(median);
    if (n < RATIO_ROUNDS)
        return out;
    const double half = sample_student(n - 1) * sqrt(squares / (double)(n - 1) / (double)n);
    out.low = exp(fmin(mean - half, median)); // one far round may pull the mean off the median
    out.high = exp(fmax(mean + half, median));
    return out;
}

int ratio_direction(const struct ratio *r) {
    return r->low > 1 ? 1 : r->high < 1 ? -1 : 0;
}

const char *quantile_text(char out[QUANTILE_TEXT_BYTES], const struct quantile *q) {
    char value[TEXT_UNIT_BYTES], bound[TEXT_UNIT_BYTES];
    if (q->n == 0)
        snprintf(out, QUANTILE_TEXT_BYTES, "p%.4g not measured (n=0)", 100 * q->p);
    else if (isnan(q->upper95))
        snprintf(out, QUANTILE_TEXT_BYTES, "p%.4g %s (n=%zu, no 95 %% bound; need %zu)", 100 * q->p,
                 text_duration(value, q->value * 1e-9), q->n, q->n_needed);
    else
        snprintf(out, QUANTILE_TEXT_BYTES, "p%.4g %s (n=%zu, at most %s with 95 %% confidence)",
                 100 * q->p, text_duration(value, q->value * 1e-9), q->n,
                 text_duration(bound, q->upper95 * 1e-9));
    return out;
}

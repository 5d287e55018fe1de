// bound.c - exact binomial tails for the bounds of percentiles, a mixture of likelihood ratios for
// budgets. See bound.h.
#include "measure/bound.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define MOST_SAMPLES ((size_t)1 << 30)

// ---------------------------------------------------------------- tails of the binomial

// P(Bin(n, q) <= k). The terms are computed relative to the term at the mode, outwards until they
// no longer matter. So there are no factorials, nothing underflows, and it takes about sqrt(n)
// steps.
static double at_most(size_t n, size_t k, double q) {
    if (k >= n)
        return 1;
    const double odds = q / (1 - q), negligible = 1e-18;
    size_t mode = (size_t)(((double)n + 1) * q);
    if (mode > n)
        mode = n;
    double all = 1, part = mode <= k ? 1 : 0, w = 1;
    for (size_t j = mode; j > 0 && w > negligible; j--) {
        w *= (double)j / ((double)(n - j + 1) * odds);
        all += w;
        part += j - 1 <= k ? w : 0;
    }
    w = 1;
    for (size_t j = mode; j < n && w > negligible; j++) {
        w *= (double)(n - j) * odds / (double)(j + 1);
        all += w;
        part += j + 1 <= k ? w : 0;
    }
    return part / all;
}

static bool sensible(double p, double confidence) {
    return p > 0 && p < 1 && confidence > 0 && confidence < 1;
}

size_t sample_upper_needs(double p, double confidence) {
    if (!sensible(p, confidence))
        return SIZE_MAX;
    return (size_t)ceil(log(1 - confidence) / log(p));
}

// The k-th smallest sample is above the percentile unless k or more samples lie below it, which is
// the same as at most n - k above it.
size_t sample_upper_rank(size_t n, double p, double confidence) {
    if (!sensible(p, confidence) || n == 0 || at_most(n, 0, 1 - p) > 1 - confidence)
        return 0;
    size_t low = 0, high = n; // false at low, true at high: the tail shrinks as k grows
    while (low + 1 < high) {
        const size_t k = low + (high - low) / 2;
        if (at_most(n, n - k, 1 - p) <= 1 - confidence)
            high = k;
        else
            low = k;
    }
    return high;
}

double sample_look_confidence(double confidence, int look) {
    const double k = look > 1 ? look : 1;
    return 1 - (1 - confidence) / (k * (k + 1));
}

// ---------------------------------------------------------------- many looks

// Let q be the limit for the rate of samples over the budget, and r an alternative rate. If the
// true rate is q, the likelihood ratio (r/q)^over ((1-r)/(1-q))^(n-over) is a martingale. If the
// true rate is on the other side of q than r, the ratio only falls on average. The same holds for a
// mixture over several r. Ville's inequality bounds the chance that the mixture ever exceeds 1 / (1
// - confidence). Alternatives far from the limit are proven after few samples, near ones after
// many. The mixture contains both.
static double log_ratio(size_t n, size_t over, double r, double q) {
    const double a = over > 0 ? (double)over * log(r / q) : 0;
    const double b = n > over ? (double)(n - over) * (log1p(-r) - log1p(-q)) : 0;
    return a + b;
}

static bool exceeds(const double *logs, const double *weights, int count, double confidence) {
    double most = logs[0], sum = 0;
    for (int i = 1; i < count; i++)
        most = fmax(most, logs[i]);
    if (most == -INFINITY)
        return false;
    for (int i = 0; i < count; i++)
        sum += weights[i] * exp(logs[i] - most);
    return most + log(sum) >= -log(1 - confidence);
}

// Alternatives below the limit. Rate 0 has half of the weight, because it is the usual case.
static bool watch_under(size_t n, size_t over, double q, double confidence) {
    static const double share[] = {0, 0.06, 0.12, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9};
    enum { COUNT = sizeof share / sizeof *share };
    double logs[COUNT], weights[COUNT];
    for (int i = 0; i < COUNT; i++) {
        logs[i] = i == 0 && over > 0 ? -INFINITY : log_ratio(n, over, q * share[i], q);
        weights[i] = i == 0 ? 0.5 : 0.5 / (COUNT - 1);
    }
    return exceeds(logs, weights, COUNT, confidence);
}

// Alternatives above the limit, with equal weights: from nearly 1 down to a quarter above the limit
// of p99.
static bool watch_over(size_t n, size_t over, double q, double confidence) {
    enum { ALTERNATIVES = 12 };
    double logs[ALTERNATIVES], weights[ALTERNATIVES];
    for (int i = 0; i < ALTERNATIVES; i++) {
        logs[i] = log_ratio(n, over, q + (1 - q) * exp2(-0.75 * i - 0.25), q);
        weights[i] = 1.0 / ALTERNATIVES;
    }
    return exceeds(logs, weights, ALTERNATIVES, confidence);
}

struct bound_verdict sample_bound_watch(size_t n, size_t over, double p, double confidence) {
    struct bound_verdict v = {.state = BOUND_OPEN, .n = n, .over = over};
    if (!sensible(p, confidence) || over > n || n == 0)
        return v;
    if (watch_under(n, over, 1 - p, confidence))
        v.state = BOUND_UNDER;
    else if (watch_over(n, over, 1 - p, confidence))
        v.state = BOUND_OVER;
    return v;
}

// By doubling, then bisection: with `over` fixed, more samples only make the proof stronger.
size_t sample_watch_needs(size_t n, size_t over, double p, double confidence) {
    size_t low = n > 0 ? n : 1, high = low;
    if (!sensible(p, confidence) || over > n)
        return 0;
    while (!watch_under(high, over, 1 - p, confidence)) {
        low = high;
        if ((high *= 2) > MOST_SAMPLES)
            return 0;
    }
    while (low + 1 < high) {
        const size_t middle = low + (high - low) / 2;
        if (watch_under(middle, over, 1 - p, confidence))
            high = middle;
        else
            low = middle;
    }
    return high;
}

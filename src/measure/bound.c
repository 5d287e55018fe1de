// bound.c - exact binomial tests for one look, a mixture of likelihood ratios for many looks. See
// bound.h.
#include "measure/bound.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

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

// P(Bin(n, q) >= k), summed directly: 1 - at_most would lose the digits of small tails.
static double at_least(size_t n, size_t k, double q) {
    return k == 0 ? 1 : k > n ? 0 : at_most(n, n - k, 1 - q);
}

static bool sensible(double p, double confidence) {
    return p > 0 && p < 1 && confidence > 0 && confidence < 1;
}

// proves_under: so few samples are over the budget that a rate of 1 - p or more is very unlikely.
// proves_over: so many are over that a rate of 1 - p or less is very unlikely.
static bool proves_under(size_t n, size_t over, double p, double confidence) {
    return n > 0 && at_most(n, over, 1 - p) <= 1 - confidence;
}
static bool proves_over(size_t n, size_t over, double p, double confidence) {
    return n > 0 && at_least(n, over, 1 - p) <= 1 - confidence;
}

// ---------------------------------------------------------------- one look

// Expected number of samples over the budget among n: none more, or at the same rate as so far.
static size_t carried_on(size_t n, const struct bound_verdict *v, bool none_more) {
    if (none_more)
        return v->over;
    return (size_t)ceil((double)v->over * ((double)n / (double)v->n) - 1e-9);
}

typedef bool proof_fn(size_t n, size_t over, double p, double confidence);

// The smallest n at which the proof succeeds, found by doubling and then bisection. Because `over`
// grows in steps, the proof may fail again just beyond a success. The answer is then one of several
// values near each other.
static size_t fewest(const struct bound_verdict *v, bool none_more, proof_fn *proves, double p,
                     double confidence) {
    size_t low = v->n > 0 ? v->n : 1, high = low;
    while (!proves(high, carried_on(high, v, none_more), p, confidence)) {
        low = high;
        if ((high *= 2) > BOUND_MOST)
            return 0;
    }
    while (low + 1 < high) {
        const size_t middle = low + (high - low) / 2;
        if (proves(middle, carried_on(middle, v, none_more), p, confidence))
            high = middle;
        else
            low = middle;
    }
    return high;
}

struct bound_verdict sample_bound_counts(size_t n, size_t over, double p, double confidence) {
    struct bound_verdict v = {.state = BOUND_OPEN, .n = n, .over = over};
    if (!sensible(p, confidence) || over > n)
        return v;
    if (proves_under(n, over, p, confidence))
        v.state = BOUND_UNDER;
    else if (proves_over(n, over, p, confidence))
        v.state = BOUND_OVER;
    if (v.state != BOUND_OPEN)
        return v;
    v.n_needed = fewest(&v, true, proves_under, p, confidence);
    if (n == 0)
        v.n_likely = v.n_needed;
    else if ((double)over < (1 - p) * (double)n)
        v.n_likely = fewest(&v, false, proves_under, p, confidence);
    else if ((double)over > (1 - p) * (double)n)
        v.n_likely = fewest(&v, false, proves_over, p, confidence);
    return v;
}

struct bound_verdict sample_bound_verdict(const double *values, size_t n, double p, double budget,
                                          double confidence) {
    size_t over = 0;
    for (size_t i = 0; i < n; i++)
        over += !(values[i] <= budget);
    return sample_bound_counts(n, over, p, confidence);
}

size_t sample_upper_needs(double p, double confidence) {
    if (!sensible(p, confidence))
        return SIZE_MAX;
    return (size_t)ceil(log(1 - confidence) / log(p));
}

// The k-th smallest sample is above the percentile unless k or more samples lie below it.
size_t sample_upper_rank(size_t n, double p, double confidence) {
    if (!sensible(p, confidence) || n == 0 || at_least(n, n, p) > 1 - confidence)
        return 0;
    size_t low = 0, high = n; // false at low, true at high: the tail shrinks as k grows
    while (low + 1 < high) {
        const size_t k = low + (high - low) / 2;
        if (at_least(n, k, p) <= 1 - confidence)
            high = k;
        else
            low = k;
    }
    return high;
}

// The k-th smallest sample is below the percentile unless fewer than k samples are. By symmetry.
size_t sample_lower_rank(size_t n, double p, double confidence) {
    const size_t k = sample_upper_rank(n, 1 - p, confidence);
    return k == 0 ? 0 : n + 1 - k;
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

static bool watch_proves_under(size_t n, size_t over, double p, double confidence) {
    return watch_under(n, over, 1 - p, confidence);
}

struct bound_verdict sample_bound_watch(size_t n, size_t over, double p, double confidence) {
    struct bound_verdict v = {.state = BOUND_OPEN, .n = n, .over = over};
    if (!sensible(p, confidence) || over > n)
        return v;
    if (n > 0 && watch_under(n, over, 1 - p, confidence))
        v.state = BOUND_UNDER;
    else if (n > 0 && watch_over(n, over, 1 - p, confidence))
        v.state = BOUND_OVER;
    return v;
}

size_t sample_watch_needs(size_t n, size_t over, double p, double confidence) {
    const struct bound_verdict v = {.n = n, .over = over};
    return sensible(p, confidence) && over <= n
               ? fewest(&v, true, watch_proves_under, p, confidence)
               : 0;
}

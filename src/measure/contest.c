// contest.c - a rank test of the differences of rounds. See contest.h.
#include "measure/contest.h"

#include "measure/sample.h"

#include <math.h>

enum { MOST_PAIRS = CONTEST_MOST_BLOCKS * (CONTEST_MOST_BLOCKS + 1) / 2 };

struct differences {
    double y[CONTEST_MOST_BLOCKS]; // of logarithms of seconds per token, in time order
    size_t n;
};

// Correlation of the ranks of neighbouring rounds. Ranks, because a single round that another
// program disturbed would outweigh all others. For independent rounds the mean is -1/n, which is
// corrected.
static double likeness(const struct differences *d) {
    const double middle = 0.5 * (double)(d->n - 1);
    double rank[CONTEST_MOST_BLOCKS], square = 0, next = 0;
    for (size_t i = 0; i < d->n; i++) {
        rank[i] = -middle;
        for (size_t j = 0; j < d->n; j++)
            rank[i] += j == i ? 0 : d->y[j] < d->y[i] ? 1 : d->y[j] == d->y[i] ? 0.5 : 0;
    }
    for (size_t i = 0; i < d->n; i++) {
        square += rank[i] * rank[i];
        next += i + 1 < d->n ? rank[i] * rank[i + 1] : 0;
    }
    return square > 0 ? next / square + 1 / (double)d->n : 0;
}

// ---------------------------------------------------------------- the rank test

// Wilcoxon's signed ranks: each of 1 .. n is in the sum with probability 1/2. Returns the largest c
// with P(sum <= c - 1) <= tail: the c-th smallest and the c-th largest average of two differences
// enclose the true one. 0: even the extremes are too likely.
static size_t signed_rank(size_t n, double tail) {
    double p[MOST_PAIRS + 1] = {1}, sum = 0;
    size_t c = 0;
    for (size_t i = 1; i <= n; i++)
        for (size_t s = i * (i + 1) / 2 + 1; s-- > 0;)
            p[s] = 0.5 * (p[s] + (s >= i ? p[s - i] : 0));
    while (c <= n * (n + 1) / 2 && (sum += p[c]) <= tail)
        c++;
    return c;
}

// Interval and middle of log(seconds of a / seconds of b).
struct shift {
    double low, middle, high;
};

// From the averages of all pairs of differences. False: there are too few for this tail.
static bool enclose(struct shift *out, const struct differences *d, double tail) {
    double averages[MOST_PAIRS];
    const size_t c = signed_rank(d->n, tail);
    size_t count = 0;
    for (size_t i = 0; i < d->n; i++)
        for (size_t j = i; j < d->n; j++)
            averages[count++] = 0.5 * (d->y[i] + d->y[j]);
    if (c == 0 || count == 0)
        return false;
    out->middle = sample_median(averages, count); // sorts them
    out->low = averages[c - 1];
    out->high = averages[count - c];
    return true;
}

// Rounds that are like their neighbours are worth fewer. If they are more alike than chance makes
// independent rounds (one-sided 5 %), the interval grows as that of the mean of an AR(1) process
// would.
static void widen(struct shift *s, const struct differences *d) {
    const double r = fmin(likeness(d), 0.8);
    if (d->n < 2 || r <= 1.645 / sqrt((double)d->n))
        return;
    const double factor = sqrt((1 + r) / (1 - r));
    s->low = s->middle - factor * (s->middle - s->low);
    s->high = s->middle + factor * (s->high - s->middle);
}

// ---------------------------------------------------------------- the contest

static void decide(struct contest *out, const struct shift *s, double tolerance) {
    const double near = log1p(tolerance);
    out->speed_ratio = exp(-s->middle);
    out->low = exp(-s->high);
    out->high = exp(-s->low);
    if (s->high < 0)
        out->state = CONTEST_FASTER;
    else if (s->low > 0)
        out->state = CONTEST_SLOWER;
    else if (tolerance > 0 && s->low >= -near && s->high <= near)
        out->state = CONTEST_EQUAL;
}

void contest_rounds(struct contest *out, const double *a, const double *b, size_t rounds,
                    const struct contest_options *o) {
    const double tail = 0.5 * (1 - o->confidence);
    struct differences d = {.n = 0};
    struct shift s;
    *out = (struct contest){.speed_ratio = NAN, .low = NAN, .high = NAN};
    if (!(o->confidence > 0 && o->confidence < 1))
        return;
    for (size_t i = 0; i < rounds && d.n < CONTEST_MOST_BLOCKS; i++)
        if (isfinite(a[i] - b[i]))
            d.y[d.n++] = a[i] - b[i];
    if (enclose(&s, &d, tail)) {
        widen(&s, &d);
        decide(out, &s, o->tolerance);
    }
}

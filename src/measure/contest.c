// contest.c - blocks of steps, and rank tests between them. See contest.h.
#include "measure/contest.h"

#include "measure/sample.h"

#include <math.h>

// A run is cut into blocks long enough to be nearly independent. 10 to 30 blocks work best
// (Schmeiser, 1982).
enum { RUN_BLOCKS = 16, LEAST_BLOCKS = 8 };
enum { MOST_PAIRS = CONTEST_MOST_BLOCKS * (CONTEST_MOST_BLOCKS + 1) / 2 };

struct blocks {
    double y[CONTEST_MOST_BLOCKS]; // logarithms of seconds per token
    size_t n;
};

// ---------------------------------------------------------------- from steps to blocks

static double block_of(const struct contest_side *s, size_t begin, size_t end,
                       const struct contest_options *o) {
    const double tokens = s->tokens_per_step > 0 ? s->tokens_per_step : 1;
    double figure = 0;
    if (o->figure == CONTEST_MEDIAN && o->scratch != NULL) {
        struct spread spread;
        for (size_t i = begin; i < end; i++)
            o->scratch[i - begin] = s->step_ns[i];
        sample_spread_of(o->scratch, end - begin, &spread);
        figure = spread.median;
    } else {
        for (size_t i = begin; i < end; i++)
            figure += s->step_ns[i];
        figure /= (double)(end - begin);
    }
    return log(figure / tokens);
}

// Cuts the steps into `pieces` of equal length (to within one step), and joins neighbours until
// there are at most `most` blocks.
static void cut(struct blocks *out, const struct contest_side *s, size_t pieces, size_t most,
                const struct contest_options *o) {
    if (pieces > s->n)
        pieces = s->n;
    out->n = pieces < most ? pieces : most;
    for (size_t i = 0; i < out->n; i++) {
        const size_t first = i * pieces / out->n, last = (i + 1) * pieces / out->n;
        out->y[i] = block_of(s, first * s->n / pieces, last * s->n / pieces, o);
    }
}

static void halve(struct blocks *b) {
    for (size_t i = 0; i < b->n / 2; i++)
        b->y[i] = 0.5 * (b->y[2 * i] + b->y[2 * i + 1]);
    b->n /= 2;
}

// Correlation of neighbouring blocks. For independent blocks its mean is -1/n, which is corrected.
static double likeness(const struct blocks *b) {
    double mean = 0, square = 0, next = 0;
    for (size_t i = 0; i < b->n; i++)
        mean += b->y[i] / (double)b->n;
    for (size_t i = 0; i < b->n; i++) {
        const double d = b->y[i] - mean;
        square += d * d;
        next += i + 1 < b->n ? d * (b->y[i + 1] - mean) : 0;
    }
    return square > 0 ? next / square + 1 / (double)b->n : 0;
}

// True if the correlation is larger than chance gives for independent blocks (one-sided 5 %).
static bool resemble(const struct blocks *b) {
    return likeness(b) > 1.645 / sqrt((double)b->n);
}

// Total change over the run, from the median of all slopes, if Kendall's test (5 %, two-sided)
// finds a trend; else 0.
static double trend(const struct blocks *b) {
    double slopes[MOST_PAIRS], score = 0;
    size_t pairs = 0;
    for (size_t i = 0; i < b->n; i++)
        for (size_t j = i + 1; j < b->n; j++) {
            const double d = b->y[j] - b->y[i];
            score += (d > 0) - (d < 0);
            slopes[pairs++] = d / (double)(j - i);
        }
    const double n = (double)b->n, deviation = sqrt(n * (n - 1) * (2 * n + 5) / 18);
    if (b->n < LEAST_BLOCKS || fabs(score) - 1 < 1.96 * deviation)
        return 0;
    struct spread s;
    sample_spread_of(slopes, pairs, &s);
    return s.median * n;
}

// ---------------------------------------------------------------- rank tests

// Largest c with P(statistic <= c - 1) <= tail, from the probabilities of 0, 1, 2, ... The c-th
// smallest and the c-th largest difference enclose the true one. 0: even the extremes are too
// likely.
static size_t rank_of_tail(const double *probability, size_t count, double tail) {
    double sum = 0;
    size_t c = 0;
    while (c < count && (sum += probability[c]) <= tail)
        c++;
    return c;
}

// Wilcoxon's signed ranks: each of 1 .. n is in the sum with probability 1/2.
static size_t signed_rank(size_t n, double tail) {
    double p[MOST_PAIRS + 1] = {1};
    for (size_t i = 1; i <= n; i++)
        for (size_t s = i * (i + 1) / 2 + 1; s-- > 0;)
            p[s] = 0.5 * (p[s] + (s >= i ? p[s - i] : 0));
    return rank_of_tail(p, n * (n + 1) / 2 + 1, tail);
}

// Mann and Whitney's statistic of m and n values. Its generating function is the product of (1 -
// x^(m+i)) / (1 - x^i) for i = 1 .. n, divided by the number of ways.
static size_t two_sample_rank(size_t m, size_t n, double tail) {
    double p[RUN_BLOCKS * RUN_BLOCKS + 1] = {1}, ways = 1;
    const size_t top = m * n;
    for (size_t i = 1; i <= n; i++) {
        for (size_t s = top + 1; s-- > m + i;)
            p[s] -= p[s - m - i];
        for (size_t s = i; s <= top; s++)
            p[s] += p[s - i];
        ways *= (double)(m + i) / (double)i;
    }
    for (size_t s = 0; s <= top; s++)
        p[s] /= ways;
    return rank_of_tail(p, top + 1, tail);
}

// Interval and middle of log(seconds of a / seconds of b), from sorted differences.
struct shift {
    double low, middle, high;
};

static bool enclose(struct shift *out, double *differences, size_t count, size_t c) {
    struct spread s;
    if (c == 0 || count == 0)
        return false;
    sample_sort(differences, count);
    out->low = differences[c - 1];
    out->high = differences[count - c];
    sample_spread_of(differences, count, &s);
    out->middle = s.median;
    return true;
}

static bool shift_paired(struct shift *out, const struct blocks *d, double tail) {
    double averages[MOST_PAIRS];
    size_t count = 0;
    for (size_t i = 0; i < d->n; i++)
        for (size_t j = i; j < d->n; j++)
            averages[count++] = 0.5 * (d->y[i] + d->y[j]);
    return enclose(out, averages, count, signed_rank(d->n, tail));
}

static bool shift_separate(struct shift *out, const struct blocks *a, const struct blocks *b,
                           double tail) {
    double differences[RUN_BLOCKS * RUN_BLOCKS];
    size_t count = 0;
    for (size_t i = 0; i < a->n; i++)
        for (size_t j = 0; j < b->n; j++)
            differences[count++] = a->y[i] - b->y[j];
    return enclose(out, differences, count, two_sample_rank(a->n, b->n, tail));
}

// ---------------------------------------------------------------- the contest

static const char TOO_FEW[] = "too few blocks of steps for this confidence";
static const char ALIKE[] =
    "neighbouring steps are too alike: there are too few independent blocks";

static void decide(struct contest *out, const struct shift *s, double allowance, double tolerance) {
    const double low = s->low - allowance, high = s->high + allowance, near = log1p(tolerance);
    out->speed_ratio = exp(-s->middle);
    out->low = exp(-high);
    out->high = exp(-low);
    if (high < 0)
        out->state = CONTEST_FASTER;
    else if (low > 0)
        out->state = CONTEST_SLOWER;
    else if (tolerance > 0 && low >= -near && high <= near)
        out->state = CONTEST_EQUAL;
    else
        out->why = allowance > 0 && (s->high < 0 || s->low > 0)
                       ? "the machine's speed drifts by as much as the difference: measure in turns"
                       : "the difference is within the noise so far";
}

// Decides from the differences of paired rounds. Neighbours that are alike are joined, because they
// are not independent.
static void hold_differences(struct contest *out, struct blocks *d, const struct contest_options *o,
                             double tail) {
    struct shift s;
    while (d->n / 2 >= out->blocks_needed && resemble(d))
        halve(d);
    out->blocks = d->n;
    if (shift_paired(&s, d, tail))
        decide(out, &s, 0, o->tolerance);
    else
        out->why = TOO_FEW;
}

static void hold_paired(struct contest *out, const struct contest_side *a,
                        const struct contest_side *b, const struct contest_options *o,
                        double tail) {
    const size_t rounds_a = a->rounds > 1 ? a->rounds : 1, rounds_b = b->rounds > 1 ? b->rounds : 1;
    struct blocks x, y;
    cut(&x, a, rounds_a, CONTEST_MOST_BLOCKS, o);
    cut(&y, b, rounds_b, CONTEST_MOST_BLOCKS, o);
    if (rounds_a != rounds_b || x.n != y.n) {
        out->why = "the two sides have different numbers of rounds";
        return;
    }
    for (size_t i = 0; i < x.n; i++)
        x.y[i] -= y.y[i];
    hold_differences(out, &x, o, tail);
}

// A correlation too small for the test still makes n blocks worth fewer. The interval grows as that
// of the mean of an AR(1) process would.
static void widen(struct shift *s, const struct blocks *a, const struct blocks *b) {
    const double r = fmin(fmax(0.5 * (likeness(a) + likeness(b)), 0), 0.9);
    const double factor = sqrt((1 + r) / (1 - r));
    s->low = s->middle - factor * (s->middle - s->low);
    s->high = s->middle + factor * (s->high - s->middle);
}

static void hold_separate(struct contest *out, const struct contest_side *a,
                          const struct contest_side *b, const struct contest_options *o,
                          double tail) {
    struct blocks x, y;
    struct shift s;
    cut(&x, a, a->n, RUN_BLOCKS, o);
    cut(&y, b, b->n, RUN_BLOCKS, o);
    out->blocks = x.n < y.n ? x.n : y.n;
    if (out->blocks < LEAST_BLOCKS) {
        out->why = TOO_FEW;
        return;
    }
    const double drift_a = trend(&x), drift_b = trend(&y);
    out->drift = fabs(drift_a) > fabs(drift_b) ? expm1(drift_a) : expm1(drift_b);
    // A trend also makes neighbouring blocks alike. It is handled as a trend.
    if (drift_a == 0 && drift_b == 0 && (resemble(&x) || resemble(&y))) {
        halve(&x);
        halve(&y);
        out->blocks = x.n < y.n ? x.n : y.n;
        if (out->blocks < LEAST_BLOCKS || resemble(&x) || resemble(&y)) {
            out->why = ALIKE;
            return;
        }
    }
    if (!shift_separate(&s, &x, &y, tail)) {
        out->why = TOO_FEW;
        return;
    }
    if (drift_a == 0 && drift_b == 0)
        widen(&s, &x, &y);
    decide(out, &s, fmax(fabs(drift_a), fabs(drift_b)), o->tolerance);
}

// Clears *out. False: the options are not usable.
static bool begin(struct contest *out, const struct contest_options *o, bool paired, double *tail) {
    *out = (struct contest){.speed_ratio = NAN, .low = NAN, .high = NAN, .why = ""};
    if (!(o->confidence > 0 && o->confidence < 1)) {
        out->why = "the confidence is not between 0 and 1";
        return false;
    }
    *tail = 0.5 * (1 - o->confidence);
    // Paired: all n differences have the same sign by chance with probability 2^-n per side.
    out->blocks_needed = paired ? (size_t)ceil(-log2(*tail) - 1e-9) : LEAST_BLOCKS;
    return true;
}

void contest_rounds(struct contest *out, const double *a, const double *b, size_t rounds,
                    const struct contest_options *o) {
    struct blocks d = {.n = 0};
    double tail;
    if (!begin(out, o, true, &tail))
        return;
    for (size_t i = 0; i < rounds && d.n < CONTEST_MOST_BLOCKS; i++)
        if (isfinite(a[i] - b[i]))
            d.y[d.n++] = a[i] - b[i];
    hold_differences(out, &d, o, tail);
}

void contest_hold(struct contest *out, const struct contest_side *a, const struct contest_side *b,
                  const struct contest_options *o) {
    double tail;
    if (!begin(out, o, o->paired, &tail))
        return;
    if (a->n == 0 || b->n == 0)
        out->why = "one side has no samples";
    else if (o->paired)
        hold_paired(out, a, b, o, tail);
    else
        hold_separate(out, a, b, o, tail);
}

// belief.c - what a setting is expected to cost, from the predictions of all settings and the
// measurements of some.
//
// The predictor is off by a factor. The more knobs two settings share, the more alike their factors
// are. So log(measured / predicted) is modelled as a Gaussian process: an offset common to all
// settings (this model on this machine) plus a part that fades with every knob that differs. A
// setting near a measured one is then known well, one far away less. The search weighs "looks best"
// against "hardly known" by the expected improvement. There are a few dozen measurements, so the
// algebra is exact.
#include "tune/tune_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Distance in one knob: for numbers the doublings between them, at most 3; else 1.
static double knob_distance(const struct knobs *a, const struct knobs *b, int id) {
    const struct knob_info *info = knob_info(id);
    const char *pa = (const char *)a + info->offset, *pb = (const char *)b + info->offset;
    double x, y;
    if (info->type == KNOB_INT)
        x = (double)*(const int64_t *)pa, y = (double)*(const int64_t *)pb;
    else if (info->type == KNOB_BYTES || info->type == KNOB_DURATION)
        x = (double)*(const uint64_t *)pa, y = (double)*(const uint64_t *)pb;
    else
        return 1;
    // 0 stands for "all" or "none", not for a number.
    return x <= 0 || y <= 0 ? 1 : fmin(fabs(log2(x / y)), 3);
}

// Covariance of log(measured / predicted) of two settings.
static double likeness(const struct tune_policy *p, const struct knobs *a, const struct knobs *b) {
    double distance = 0;
    for (int id = 0; id < KNOB_COUNT; id++)
        if (!knobs_same(a, b, id))
            distance += knob_distance(a, b, id);
    return p->belief.offset_log * p->belief.offset_log +
           p->belief.apart_log * p->belief.apart_log * exp(-p->belief.fade_per_change * distance);
}

struct process {
    const struct tune *t;
    int *at; // indices of the measured settings
    int n;
    double *lower;    // Cholesky factor of the covariance, n x n
    double *residual; // log(measured / predicted)
    double *weight;   // covariance^-1 residual
    double *column;   // scratch
};

// Without a prediction this is 0, and the process learns the cost itself.
static double predicted_log(const struct tune *t, const struct tune_setting *s) {
    double c = tune_predicted_cost(t, &s->knobs, s->predicted_s);
    return c > 0 ? log(c) : 0;
}

// Variance of the logarithm of a measured cost. The noise of visits averages out. That of busy
// visits does not: other programs only ever add time.
static double noise_of(const struct tune_policy *p, const struct tune_setting *s) {
    return s->quiet > 0 ? p->belief.noise_log * p->belief.noise_log / s->quiet
                        : p->busy.noise_log * p->busy.noise_log;
}

static int factor(struct process *p, struct err *e) {
    const int n = p->n;
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            const struct tune_setting *a = &p->t->settings[p->at[i]],
                                      *b = &p->t->settings[p->at[j]];
            double sum = likeness(p->t->policy, &a->knobs, &b->knobs);
            if (i == j)
                sum += noise_of(p->t->policy, a);
            for (int k = 0; k < j; k++)
                sum -= p->lower[i * n + k] * p->lower[j * n + k];
            if (i == j && !(sum > 0))
                return err_set(e, ERR_NUMERIC,
                               "the covariance of %d measured settings is not positive definite",
                               n);
            p->lower[i * n + j] = i == j ? sqrt(sum) : sum / p->lower[j * n + j];
        }
    return 0;
}

// x = (L L')^-1 b, in place.
static void solve(const struct process *p, double *x) {
    const int n = p->n;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++)
            x[i] -= p->lower[i * n + k] * x[k];
        x[i] /= p->lower[i * n + i];
    }
    for (int i = n - 1; i >= 0; i--) {
        for (int k = i + 1; k < n; k++)
            x[i] -= p->lower[k * n + i] * x[k];
        x[i] /= p->lower[i * n + i];
    }
}

static struct belief expect(struct process *p, const struct tune_setting *s) {
    struct belief b = {.mean = predicted_log(p->t, s)};
    double variance = likeness(p->t->policy, &s->knobs, &s->knobs);
    for (int i = 0; i < p->n; i++) {
        p->column[i] = likeness(p->t->policy, &s->knobs, &p->t->settings[p->at[i]].knobs);
        b.mean += p->column[i] * p->weight[i];
    }
    // variance - c' K^-1 c needs only the forward substitution.
    for (int i = 0; i < p->n; i++) {
        for (int k = 0; k < i; k++)
            p->column[i] -= p->lower[i * p->n + k] * p->column[k];
        p->column[i] /= p->lower[i * p->n + i];
        variance -= p->column[i] * p->column[i];
    }
    b.deviation = variance > 1e-12 ? sqrt(variance) : 1e-6;
    return b;
}

static int learn(struct process *p, struct err *e) {
    const struct tune *t = p->t;
    const size_t n = (size_t)t->n + 1;
    p->at = calloc(n, sizeof *p->at);
    for (int i = 0; p->at && i < t->n; i++)
        if (tune_cost(t, &t->settings[i]) > 0 && isfinite(tune_cost(t, &t->settings[i])))
            p->at[p->n++] = i;
    const size_t m = (size_t)p->n + 1;
    p->lower = calloc(m * m, sizeof *p->lower);
    p->residual = calloc(m, sizeof *p->residual);
    p->weight = calloc(m, sizeof *p->weight);
    p->column = calloc(m, sizeof *p->column);
    if (!p->at || !p->lower || !p->residual || !p->weight || !p->column)
        return err_set(e, ERR_MEMORY, "out of memory for %d measured settings", p->n);
    TRY(factor(p, e));
    for (int i = 0; i < p->n; i++) {
        const struct tune_setting *s = &t->settings[p->at[i]];
        p->residual[i] = log(tune_cost(t, s)) - predicted_log(t, s);
    }
    memcpy(p->weight, p->residual, (size_t)p->n * sizeof *p->weight);
    solve(p, p->weight);
    return 0;
}

int belief_update(const struct tune *t, struct belief *out, struct err *e) {
    struct process p = {.t = t};
    int rc = learn(&p, e);
    for (int i = 0; rc == 0 && i < t->n; i++)
        out[i] = expect(&p, &t->settings[i]);
    free(p.at);
    free(p.lower);
    free(p.residual);
    free(p.weight);
    free(p.column);
    return rc;
}

double belief_gain(const struct belief *b, double best) {
    if (!(best > 0) || !isfinite(b->mean))
        return INFINITY;
    double z = (log(best) - b->mean) / b->deviation;
    double density = exp(-0.5 * z * z) / sqrt(2 * M_PI), below = 0.5 * erfc(-z / sqrt(2));
    return b->deviation * (z * below + density);
}

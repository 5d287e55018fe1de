// costs_fit.c - see costs_fit.h.
#include "predict/costs_fit.h"

#include <math.h>
#include <string.h>

// Relative errors on times of tiny and gpt2-124m that were left out and then estimated by these
// functions: between two knots, per doubling of rows beyond the last one, and from a plane.
static const double SPREAD_BETWEEN = 0.05, SPREAD_PER_DOUBLING = 0.08, SPREAD_FITTED = 0.1;

// ---------------------------------------------------------------- between rows

// Makes times rise with rows (pool adjacent violators): neighbours that fall are replaced by their
// mean, until none falls.
static void make_rising(struct fit_knot *knots, int n) {
    int weight[FIT_MOST_KNOTS];
    double mean[FIT_MOST_KNOTS];
    int blocks = 0;
    for (int i = 0; i < n; i++) {
        mean[blocks] = knots[i].seconds;
        weight[blocks++] = 1;
        while (blocks > 1 && mean[blocks - 2] > mean[blocks - 1]) {
            int a = weight[blocks - 2], b = weight[blocks - 1];
            mean[blocks - 2] = (a * mean[blocks - 2] + b * mean[blocks - 1]) / (a + b);
            weight[blocks - 2] = a + b;
            blocks--;
        }
    }
    for (int i = 0, k = 0; i < blocks; i++)
        for (int j = 0; j < weight[i]; j++)
            knots[k++].seconds = mean[i];
}

static double clamp(double x, double least, double most) {
    return x < least ? least : x > most ? most : x;
}

// Beyond the ends the nearest line continues, but time never falls with rows and grows at most in
// proportion to them.
static double beyond(const struct fit_knot *near, const struct fit_knot *next, double rows) {
    double slope = (next->seconds - near->seconds) / (next->rows - near->rows);
    return near->seconds + clamp(slope, 0, near->seconds / near->rows) * (rows - near->rows);
}

double fit_between(struct fit_knot *knots, int n, double rows, double roof, double *spread) {
    const struct fit_knot *last = &knots[n - 1];
    make_rising(knots, n);
    int i = 0;
    while (i < n && knots[i].rows < rows)
        i++;
    *spread = SPREAD_BETWEEN;
    if (i < n && knots[i].rows == rows)
        return knots[i].seconds;
    if (i > 0 && i < n) {
        const struct fit_knot *a = &knots[i - 1], *b = &knots[i];
        return a->seconds + (b->seconds - a->seconds) * (rows - a->rows) / (b->rows - a->rows);
    }
    const struct fit_knot *near = i == 0 ? &knots[0] : last;
    *spread += SPREAD_PER_DOUBLING * fabs(log2(rows / near->rows));
    if (n == 1 || near->rows <= 0)
        return near->seconds * roof / near->roof;
    return fmax(beyond(near, i == 0 ? &knots[1] : &knots[n - 2], rows), 1e-12);
}

// ---------------------------------------------------------------- a plane

enum { TERMS = 3 };

// Solves the normal equations for the terms whose bits are set in `use`. False if they are
// singular.
static bool solve(const double a[TERMS][TERMS], const double b[TERMS], unsigned use,
                  double out[TERMS]) {
    double m[TERMS][TERMS + 1];
    int of[TERMS], n = 0;
    for (int i = 0; i < TERMS; i++)
        if (use >> i & 1)
            of[n++] = i;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n; k++)
            m[i][k] = a[of[i]][of[k]];
        m[i][n] = b[of[i]];
    }
    for (int i = 0; i < n; i++) {
        if (!(m[i][i] > 1e-10 * a[of[i]][of[i]])) // a combination of the terms before it
            return false;
        for (int r = i + 1; r < n; r++) {
            double f = m[r][i] / m[i][i];
            for (int k = i; k <= n; k++)
                m[r][k] -= f * m[i][k];
        }
    }
    memset(out, 0, TERMS * sizeof *out);
    for (int i = n - 1; i >= 0; i--) {
        double x = m[i][n];
        for (int k = i + 1; k < n; k++)
            x -= m[i][k] * out[of[k]];
        out[of[i]] = x / m[i][i];
    }
    return true;
}

static void terms_of(const struct fit_row *r, double t[TERMS]) {
    t[0] = 1 / r->seconds;
    t[1] = r->flops / r->seconds;
    t[2] = r->bytes / r->seconds;
}

static double error_of(const struct fit_row *rows, int n, const double x[TERMS]) {
    double sum = 0, t[TERMS];
    for (int i = 0; i < n; i++) {
        terms_of(&rows[i], t);
        double d = x[0] * t[0] + x[1] * t[1] + x[2] * t[2] - 1;
        sum += d * d;
    }
    return sum;
}

// Tries all seven choices of which terms are not zero, and takes the best one without a negative
// coefficient.
bool fit_plane_of(const struct fit_row *rows, int n, struct fit_plane *out) {
    double a[TERMS][TERMS] = {{0}}, b[TERMS] = {0}, t[TERMS], x[TERMS];
    double best = INFINITY, scale[TERMS] = {0};
    // FLOP and seconds differ by ten orders of magnitude, so columns are scaled to length one.
    for (int i = 0; i < n; i++) {
        terms_of(&rows[i], t);
        for (int k = 0; k < TERMS; k++)
            scale[k] += t[k] * t[k];
    }
    for (int k = 0; k < TERMS; k++)
        scale[k] = scale[k] > 0 ? 1 / sqrt(scale[k]) : 0;
    for (int i = 0; i < n; i++) {
        terms_of(&rows[i], t);
        for (int k = 0; k < TERMS; k++) {
            b[k] += t[k] * scale[k];
            for (int j = 0; j < TERMS; j++)
                a[k][j] += t[k] * scale[k] * t[j] * scale[j];
        }
    }
    for (unsigned use = 1; use < 1u << TERMS; use++) {
        if (__builtin_popcount(use) > n || !solve(a, b, use, x))
            continue;
        for (int k = 0; k < TERMS; k++)
            x[k] *= scale[k];
        if (x[0] < 0 || x[1] < 0 || x[2] < 0)
            continue;
        double error = error_of(rows, n, x);
        if (error < best * (1 - 1e-9)) {
            best = error;
            *out = (struct fit_plane){x[0], x[1], x[2], 0};
        }
    }
    if (!isfinite(best))
        return false;
    out->spread = SPREAD_FITTED + sqrt(best / n) + 0.5 / n;
    return true;
}

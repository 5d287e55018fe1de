// costs_fit.h - the arithmetic of costs.c: interpolation between measured numbers of rows, and a
// plane fitted to the times of one kind of op.
#ifndef HAGGLE_PREDICT_COSTS_FIT_H
#define HAGGLE_PREDICT_COSTS_FIT_H

#include <stdbool.h>

enum { FIT_MOST_KNOTS = 64, FIT_MOST_ROWS = 256 };

struct fit_knot {
    double rows, seconds;
    double roof; // seconds by the roofline; shows how time grows if there is only one knot
};

// The time at `rows`. It never falls as rows grow. Knots are in ascending order of rows, and there
// is at least one. roof is the roofline's time at `rows`. Knots that fall because of noise are
// evened out in place.
double fit_between(struct fit_knot *knots, int n, double rows, double roof, double *spread);

struct fit_row {
    double flops, bytes, seconds;
};
struct fit_plane {
    double constant_s, per_flop_s, per_byte_s; // none is negative
    double spread;                             // relative error, with a margin for few rows
};
// Least squares of relative errors. False if there are no rows.
bool fit_plane_of(const struct fit_row *rows, int n, struct fit_plane *out);

#endif

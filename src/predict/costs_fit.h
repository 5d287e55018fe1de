// costs_fit.h - the arithmetic of costs.c: times between measured rows, and a plane through a kind's
// times.
#ifndef HAGGLE_PREDICT_COSTS_FIT_H
#define HAGGLE_PREDICT_COSTS_FIT_H

#include <stdbool.h>

enum { FIT_MOST_KNOTS = 64, FIT_MOST_ROWS = 256 };

struct fit_knot {
    double rows, seconds;
    double roof; // what a roofline says of it: how time grows where one knot is all there is
};

// Knots in rising order of rows; more than none. roof: the roofline at `rows`. Never falls as rows grow.
// knots are evened out in place where noise made them fall.
double fit_between(struct fit_knot *knots, int n, double rows, double roof, double *spread);

struct fit_row {
    double flops, bytes, seconds;
};
struct fit_plane {
    double constant_s, per_flop_s, per_byte_s; // none negative
    double spread;                             // relative, of what it was fitted to
};
// Least squares of relative errors. False without rows.
bool fit_plane_of(const struct fit_row *rows, int n, struct fit_plane *out);

#endif

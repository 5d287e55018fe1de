// rate.c - see rate.h.
#include "measure/rate.h"

#include "measure/sample.h"

#include <math.h>

static double sum_of(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

// A ratio moves with a unit as its linear approximation does: by the unit's residual over the sum
// of the weights. The second pair is absent (NULL) for a single ratio.
static struct rate estimate(const double *x, const double *w, const double *y, const double *v,
                            size_t n) {
    const double of_x = sum_of(w, n), of_y = v ? sum_of(v, n) : 1;
    const double first = sum_of(x, n) / of_x, second = y ? sum_of(y, n) / of_y : 0;
    struct rate out = {NAN, NAN, NAN, n};
    double squares = 0;
    if (!(of_x > 0 && of_y > 0))
        return out;
    out.value = first - second;
    if (n < 2)
        return out;
    for (size_t i = 0; i < n; i++) {
        double d = (x[i] - first * w[i]) / of_x;
        if (y)
            d -= (y[i] - second * v[i]) / of_y;
        squares += d * d;
    }
    const double half = sample_student(n - 1) * sqrt(squares * (double)n / (double)(n - 1));
    out.low = out.value - half;
    out.high = out.value + half;
    return out;
}

struct rate rate_of(const double *x, const double *w, size_t n) {
    return estimate(x, w, NULL, NULL, n);
}

struct rate rate_difference(const double *x, const double *w, const double *y, const double *v,
                            size_t n) {
    return estimate(x, w, y, v, n);
}

int rate_direction(const struct rate *r) {
    return r->low > 0 ? 1 : r->high < 0 ? -1 : 0;
}

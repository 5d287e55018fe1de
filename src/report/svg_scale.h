// svg_scale.h - axes: the place of a value, ticks at round numbers, and their labels.
//
// Place: svg.h draws plots with these. The pages decide the ranges.
//
// Invariants, for any input:
//   1. A scale has lo < hi, both finite, and both positive if it is logarithmic.
//   2. svg_place is in [0, 1] for every value. It is 0 for NaN.
//   3. Ticks lie within the scale and ascend. There are at most as many as asked for.
#ifndef HAGGLE_REPORT_SVG_SCALE_H
#define HAGGLE_REPORT_SVG_SCALE_H

#include <stdbool.h>

struct svg_scale {
    double lo, hi;
    bool log;
};

// The range as it is, for an x axis. An empty range is widened.
struct svg_scale svg_scale_exact(double lo, double hi);
// Rounded outwards to ticks, for a y axis.
struct svg_scale svg_scale_round(double lo, double hi, int ticks);
// Logarithmic, rounded outwards to 1, 2 or 5 times a power of ten. A range that is not positive
// gives svg_scale_round.
struct svg_scale svg_scale_log(double lo, double hi);

double svg_place(const struct svg_scale *s, double value); // 0 at lo, 1 at hi, clamped

enum { SVG_TICKS_MOST = 12, SVG_NUMBER_BYTES = 32 };
// At most `most` (2 to SVG_TICKS_MOST) ticks; returns how many.
int svg_ticks(const struct svg_scale *s, int most, double out[SVG_TICKS_MOST]);
// "20k", "0.25", "3e-4": with as many digits as ticks at distance `step` need. step 0: about four
// digits. Returns out.
const char *svg_number(char out[SVG_NUMBER_BYTES], double value, double step);

#endif

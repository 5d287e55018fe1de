// svg_scale.c - see svg_scale.h.
#include "report/svg_scale.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// Values are limited to this range, so that differences cannot overflow.
static const double VALUE_MOST = 1e100, VALUE_LEAST = 1e-100;

static double tame(double x) {
    if (isnan(x))
        return 0;
    return fmin(fmax(x, -VALUE_MOST), VALUE_MOST);
}

struct svg_scale svg_scale_exact(double lo, double hi) {
    lo = tame(lo);
    hi = tame(hi);
    if (hi < lo) {
        double swap = lo;
        lo = hi;
        hi = swap;
    }
    // A range too narrow to be divided in doubles is treated as empty.
    double least = fmax(fabs(lo), fabs(hi)) * 1e-9;
    if (!(hi - lo > least)) {
        double half = fmax(fabs(hi) * 0.05, hi == 0 ? 0.5 : VALUE_LEAST);
        lo -= half;
        hi += half;
    }
    return (struct svg_scale){.lo = lo, .hi = hi};
}

// The smallest number that is at least x and is 1, 2 or 5 times a power of ten.
static double round_step(double x) {
    static const double nice[] = {1, 2, 5, 10};
    double power = pow(10, floor(log10(x)));
    for (int i = 0; i < 4; i++)
        if (nice[i] * power >= x * (1 - 1e-9))
            return nice[i] * power;
    return 10 * power;
}

struct svg_scale svg_scale_round(double lo, double hi, int ticks) {
    struct svg_scale s = svg_scale_exact(lo, hi);
    double step = round_step((s.hi - s.lo) / (ticks > 2 ? ticks - 1 : 2));
    s.lo = step * floor(s.lo / step + 1e-9);
    s.hi = step * ceil(s.hi / step - 1e-9);
    return s;
}

struct svg_scale svg_scale_log(double lo, double hi) {
    static const double nice[] = {1, 2, 5, 10};
    if (!(lo >= VALUE_LEAST && hi >= lo && hi <= VALUE_MOST))
        return svg_scale_round(lo, hi, 5);
    double below = pow(10, floor(log10(lo) + 1e-9)), above = pow(10, floor(log10(hi) - 1e-9));
    struct svg_scale s = {.lo = below, .hi = 10 * above, .log = true};
    for (int i = 0; i < 4; i++)
        if (nice[i] * below <= lo * (1 + 1e-9))
            s.lo = nice[i] * below;
    for (int i = 3; i >= 0; i--)
        if (nice[i] * above >= hi * (1 - 1e-9))
            s.hi = nice[i] * above;
    if (!(s.hi > s.lo)) {
        s.lo = lo / 2;
        s.hi = hi * 2;
    }
    return s;
}

double svg_place(const struct svg_scale *s, double value) {
    double at;
    if (s->log)
        at = value > 0 ? log(value / s->lo) / log(s->hi / s->lo) : 0;
    else
        at = (value - s->lo) / (s->hi - s->lo);
    return isnan(at) ? 0 : fmin(fmax(at, 0), 1);
}

// ---------------------------------------------------------------- ticks

static int linear_ticks(const struct svg_scale *s, int most, double *out) {
    double step = round_step((s->hi - s->lo) / (most - 1));
    int n = 0;
    double first = ceil(s->lo / step - 1e-9);
    for (int i = 0; n < most; i++) {
        double at = (first + i) * step;
        if (at > s->hi + 1e-9 * (s->hi - s->lo))
            break;
        out[n++] = fabs(at) < step * 1e-6 ? 0 : at; // 0, not 1e-17
    }
    return n;
}

// Ticks at 1, 2 and 5 times the powers of ten if they fit. Otherwise at the powers, at every second
// power, at every third, and so on.
static int log_ticks(const struct svg_scale *s, int most, double *out) {
    static const double dense[] = {1, 2, 5};
    int low = (int)floor(log10(s->lo) + 1e-9), high = (int)ceil(log10(s->hi) - 1e-9);
    for (int way = 0;; way++) {
        int per = way == 0 ? 3 : 1, stride = way > 1 ? way : 1, n = 0;
        bool fits = true;
        for (int p = low; p <= high && fits; p += stride)
            for (int i = 0; i < per && fits; i++) {
                double at = dense[i] * pow(10, p);
                if (at < s->lo * (1 - 1e-9) || at > s->hi * (1 + 1e-9))
                    continue;
                fits = n < most;
                if (fits)
                    out[n++] = at;
            }
        if (fits)
            return n;
    }
}

int svg_ticks(const struct svg_scale *s, int most, double out[SVG_TICKS_MOST]) {
    most = most < 2 ? 2 : most > SVG_TICKS_MOST ? SVG_TICKS_MOST : most;
    return s->log ? log_ticks(s, most, out) : linear_ticks(s, most, out);
}

// ---------------------------------------------------------------- labels

// Drops zeros after a point: "2.50" is "2.5", "2.00" is "2".
static void trim(char *text) {
    char *point = strchr(text, '.');
    if (!point)
        return;
    char *end = text + strlen(text);
    while (end > point + 1 && end[-1] == '0')
        *--end = '\0';
    if (end == point + 1)
        *point = '\0';
}

static int decimals(int digits) {
    return digits < 0 ? 0 : digits > 6 ? 6 : digits;
}

const char *svg_number(char out[SVG_NUMBER_BYTES], double value, double step) {
    static const struct {
        double unit;
        const char *suffix;
    } large[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    double size = fabs(value);
    if (!(size <= VALUE_MOST) || size < VALUE_LEAST) {
        snprintf(out, SVG_NUMBER_BYTES, "%s",
                 isnan(value)        ? "not known"
                 : size > VALUE_MOST ? "too large"
                                     : "0");
        return out;
    }
    if (!(step > 0))
        step = pow(10, floor(log10(size)) - 3);
    if (size >= 1e15 || size < 1e-2) { // 3e-4, 2.5e-4
        int power = (int)floor(log10(size) + 1e-9);
        int digits = power - (int)floor(log10(step) + 1e-9);
        char mantissa[24];
        snprintf(mantissa, sizeof mantissa, "%.*f", decimals(digits), value / pow(10, power));
        trim(mantissa);
        snprintf(out, SVG_NUMBER_BYTES, "%se%d", mantissa, power);
        return out;
    }
    const char *suffix = "";
    for (size_t i = 0; i < sizeof large / sizeof *large && size >= 1e4; i++)
        if (size >= large[i].unit) {
            value /= large[i].unit;
            step /= large[i].unit;
            suffix = large[i].suffix;
            break;
        }
    int digits = -(int)floor(log10(step) + 1e-9);
    snprintf(out, SVG_NUMBER_BYTES - 2, "%.*f", decimals(digits), value);
    trim(out);
    strcat(out, suffix);
    return out;
}

// quantize.c - see quantize.h.
#include "model/quantize.h"

#include <math.h>
#include <string.h>

enum { GROUP_MOST = 128 };

static const float HALF_MOST = 65504; // the largest float16

static float as_half(float x) {
    return dtype_f16_to_f32(dtype_f32_to_f16(x));
}

static int nearest(float x, int least, int most) {
    const float r = rintf(x);
    return r < (float)least ? least : r > (float)most ? most : (int)r;
}

// ---------------------------------------------------------------- int8

static int round_int8(const float *x, int64_t n, int8_t *codes, float *scale,
                      struct quantize_error *sum) {
    float largest = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    *scale = largest / STORAGE_INT8_MOST;
    const float by = *scale > 0 ? 1 / *scale : 0;
    for (int64_t i = 0; i < n; i++) {
        codes[i] =
            (int8_t)(isfinite(by) ? nearest(x[i] * by, -STORAGE_INT8_MOST, STORAGE_INT8_MOST) : 0);
        const double off = (double)x[i] - (double)codes[i] * (double)*scale;
        sum->error += off * off;
        sum->power += (double)x[i] * (double)x[i];
    }
    return 0;
}

// ---------------------------------------------------------------- int4

// A way to write a group: value = code * scale + least.
struct way {
    float scale, least;
};

// The codes of a group, and the sum of squared errors.
static float try_way(const float *x, int n, struct way w, uint8_t *codes) {
    const float by = w.scale > 0 ? 1 / w.scale : 0;
    float error = 0;
    for (int i = 0; i < n; i++) {
        const int code = isfinite(by) ? nearest((x[i] - w.least) * by, 0, 15) : 0;
        const float off = x[i] - ((float)code * w.scale + w.least);
        codes[i] = (uint8_t)code;
        error += off * off;
    }
    return error;
}

// The candidates: largest / 7 fits every value, smaller scales cut off a few large ones and are
// finer for the others. Between 7 and 8 only a positive value is cut off.
static struct way symmetric(float largest, int i) {
    const float scale = as_half(largest / (6.5f + 0.25f * (float)i));
    return (struct way){scale, -8 * scale};
}
enum { SYMMETRIC_WAYS = 19 }; // up to largest / 11

// The range of the group, and narrower ones around the same middle.
static struct way ranged(float low, float high, int i) {
    const float cut = (high - low) / 2 * 0.04f * (float)i;
    const float least = as_half(low + cut);
    return (struct way){as_half((high - cut - least) / 15), least};
}
enum { RANGED_WAYS = 10 };

static int round_group(const float *x, int n, bool minima, uint8_t *best_codes, struct way *best,
                       struct quantize_error *sum) {
    float low = x[0], high = x[0], least_error = INFINITY;
    for (int i = 0; i < n; i++) {
        low = fminf(low, x[i]), high = fmaxf(high, x[i]);
        sum->power += (double)x[i] * (double)x[i];
    }
    const float largest = fmaxf(-low, high);
    if (largest > HALF_MOST)
        return ERR_NUMERIC;
    for (int i = 0; i < (minima ? RANGED_WAYS : SYMMETRIC_WAYS); i++) {
        uint8_t codes[GROUP_MOST];
        const struct way w = minima ? ranged(low, high, i) : symmetric(largest, i);
        const float error = try_way(x, n, w, codes);
        if (error < least_error) {
            least_error = error;
            *best = w;
            memcpy(best_codes, codes, (size_t)n);
        }
    }
    sum->error += (double)least_error;
    return 0;
}

// ---------------------------------------------------------------- by activations

// The error of a group as the output of the product sees it: each column counts by the power of
// what it is multiplied with, so the columns of large activations are kept nearest.
static double weighted(const float *x, const float *power, const uint8_t *codes, int n,
                       struct way w) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const double off = (double)x[i] - ((double)codes[i] * (double)w.scale + (double)w.least);
        sum += (double)power[i] * off * off;
    }
    return sum;
}

// The scale, and the minimum where there is one, with the smallest weighted error for these codes.
static struct way fit(const float *x, const float *power, const uint8_t *codes, int n, bool minima,
                      struct way was) {
    double p = 0, c = 0, cc = 0, v = 0, cv = 0;
    for (int i = 0; i < n; i++) {
        const double code = (double)codes[i] - (minima ? 0 : 8), w = (double)power[i];
        p += w, c += w * code, cc += w * code * code;
        v += w * (double)x[i], cv += w * code * (double)x[i];
    }
    const double det = minima ? p * cc - c * c : cc;
    const double scale = (minima ? p * cv - c * v : cv) / det;
    if (!(det > 0) || !(scale > 0) || !(scale < (double)HALF_MOST))
        return was;
    const float half = as_half((float)scale);
    const float least = minima ? as_half((float)((v - (double)half * c) / p)) : -8 * half;
    return isfinite(least) ? (struct way){half, least} : was;
}

enum { FIT_ROUNDS = 4 };

static int choose_group(const float *x, const float *power, int n, bool minima, uint8_t *best_codes,
                        struct way *best, struct quantize_error *sum) {
    float low = x[0], high = x[0];
    double least_error = INFINITY;
    for (int i = 0; i < n; i++) {
        low = fminf(low, x[i]), high = fmaxf(high, x[i]);
        sum->power += (double)x[i] * (double)x[i];
    }
    const float largest = fmaxf(-low, high);
    if (largest > HALF_MOST)
        return ERR_NUMERIC;
    for (int i = 0; i < (minima ? RANGED_WAYS : SYMMETRIC_WAYS); i++) {
        struct way w = minima ? ranged(low, high, i) : symmetric(largest, i);
        for (int round = 0; round < FIT_ROUNDS; round++) {
            uint8_t codes[GROUP_MOST];
            try_way(x, n, w, codes);
            const double error = weighted(x, power, codes, n, w);
            if (error < least_error) {
                least_error = error;
                *best = w;
                memcpy(best_codes, codes, (size_t)n);
            }
            w = fit(x, power, codes, n, minima, w);
        }
    }
    for (int i = 0; i < n; i++) {
        const double off =
            (double)x[i] - ((double)best_codes[i] * (double)best->scale + (double)best->least);
        sum->error += off * off;
    }
    return 0;
}

// ---------------------------------------------------------------- a row

static void put_half(void *matrix, uint64_t part, int64_t index, float x) {
    const uint16_t bits = dtype_f32_to_f16(x);
    memcpy((char *)matrix + part + (uint64_t)index * sizeof bits, &bits, sizeof bits);
}

// power: of what each column is multiplied with; NULL: every column counts the same.
static int round_int4(const struct quantize_options *o, const struct storage_parts *parts,
                      const float *power, const float *x, int64_t cols, int64_t row, void *matrix,
                      struct quantize_error *sum) {
    const int group = o->storage.group;
    uint8_t *codes = (uint8_t *)matrix + parts->codes + (uint64_t)row * parts->row_bytes;
    for (int64_t at = 0; at < cols; at += group) {
        const int64_t index = row * parts->groups + at / group;
        uint8_t own[GROUP_MOST];
        struct way way = {0};
        TRY(power ? choose_group(x + at, power + at, group, o->storage.minima, own, &way, sum)
                  : round_group(x + at, group, o->storage.minima, own, &way, sum));
        for (int b = 0; b < group; b += STORAGE_BLOCK)
            storage_pack_block(own + b, codes + (at + b) / 2);
        put_half(matrix, parts->scales, index, way.scale);
        if (o->storage.minima)
            put_half(matrix, parts->minima, index, way.least);
    }
    return 0;
}

// Scales of a whole row that cut off more and more of its largest values.
enum { ROW_WAYS = 12 };

static int choose_int8(const float *x, const float *power, int64_t n, int8_t *codes, float *scale,
                       struct quantize_error *sum) {
    struct quantize_error plain = {0};
    TRY(round_int8(x, n, codes, scale, &plain));
    const float most = *scale;
    double least_error = INFINITY;
    float best = most;
    for (int way = 0; way < ROW_WAYS && most > 0 && isfinite(1 / most); way++) {
        const float s = most * (1 - 0.02f * (float)way);
        double error = 0;
        for (int64_t i = 0; i < n; i++) {
            const int code = nearest(x[i] / s, -STORAGE_INT8_MOST, STORAGE_INT8_MOST);
            const double off = (double)x[i] - (double)code * (double)s;
            error += (double)power[i] * off * off;
        }
        if (error < least_error)
            least_error = error, best = s;
    }
    *scale = best;
    for (int64_t i = 0; i < n; i++) {
        if (best != most)
            codes[i] = (int8_t)nearest(x[i] / best, -STORAGE_INT8_MOST, STORAGE_INT8_MOST);
        const double off = (double)x[i] - (double)codes[i] * (double)best;
        sum->error += off * off;
    }
    sum->power += plain.power;
    return 0;
}

// ---------------------------------------------------------------- methods

static int round_row(const struct quantize_options *o, const struct storage_parts *parts,
                     const float *power, int64_t cols, const float *x, int64_t row, void *matrix,
                     struct quantize_error *sum) {
    if (o->storage.kind == STORAGE_INT4)
        return round_int4(o, parts, power, x, cols, row, matrix, sum);
    float scale;
    int8_t *codes = (int8_t *)matrix + parts->codes + (uint64_t)row * parts->row_bytes;
    TRY(power ? choose_int8(x, power, cols, codes, &scale, sum)
              : round_int8(x, cols, codes, &scale, sum));
    memcpy((char *)matrix + parts->scales + (uint64_t)row * sizeof scale, &scale, sizeof scale);
    return 0;
}

static int rtn(const struct quantize_options *o, const struct storage_parts *parts, int64_t cols,
               const float *x, int64_t row, void *matrix, struct quantize_error *sum) {
    return round_row(o, parts, NULL, cols, x, row, matrix, sum);
}

// Without powers (of a table that multiplies nothing) all columns count the same.
static int awq(const struct quantize_options *o, const struct storage_parts *parts, int64_t cols,
               const float *x, int64_t row, void *matrix, struct quantize_error *sum) {
    return round_row(o, parts, o->power, cols, x, row, matrix, sum);
}

static const struct {
    const char *name;
    int (*row)(const struct quantize_options *o, const struct storage_parts *parts, int64_t cols,
               const float *x, int64_t row, void *matrix, struct quantize_error *sum);
} methods[QUANTIZE_METHODS] = {
    [QUANTIZE_RTN] = {"rtn", rtn},
    [QUANTIZE_AWQ] = {"awq", awq},
    [QUANTIZE_TUNED] = {"tuned", awq}, // where tuning begins
};

const char *quantize_method_name(enum quantize_method m) {
    return methods[m].name;
}

int quantize_find_method(const char *name, enum quantize_method *out, struct err *e) {
    for (int i = 0; i < QUANTIZE_METHODS; i++)
        if (strcmp(name, methods[i].name) == 0) {
            *out = (enum quantize_method)i;
            return 0;
        }
    return err_set(e, ERR_USAGE, "--method %.64s is not accepted; accepted: rtn, awq, tuned", name);
}

int quantize_rows(const struct quantize_options *o, const struct storage_parts *parts, int64_t cols,
                  const float *rows, int64_t first, int64_t n, void *matrix,
                  struct quantize_error *sum, struct err *e) {
    for (int64_t i = 0; i < n; i++) {
        const float *x = rows + i * cols;
        const int64_t bad = dtype_first_not_finite(x, DTYPE_F32, (size_t)cols);
        if (bad >= 0)
            return err_set(e, ERR_NUMERIC,
                           "element [%lld, %lld] is %g; every weight must be finite",
                           (long long)(first + i), (long long)bad, (double)x[bad]);
        if (methods[o->method].row(o, parts, cols, x, first + i, matrix, sum) != 0)
            return err_set(e, ERR_NUMERIC,
                           "row %lld has a value beyond %g, the largest float16, which scales are",
                           (long long)(first + i), (double)HALF_MOST);
    }
    return 0;
}

// quantize.h - chooses the codes and scales of a matrix: one function per method.
//
//   rtn   round to nearest. int8: the largest magnitude of a row is 127. int4: of a few scales
//         (with minima: ranges) for each group, the one with the smallest squared error.
//
//   awq   activation-aware: the same choice, and scales (and minima) fitted to the codes, by the
//         squared error in which each column counts by the mean square of what it is multiplied
//         with. So the columns of large activations are kept nearest. No weight is scaled, so
//         nothing has to be folded into other tensors, and every matrix of any family can have it.
//   tuned begins as awq; then scales and minima are trained (train/tuned.h).
#ifndef HAGGLE_MODEL_QUANTIZE_H
#define HAGGLE_MODEL_QUANTIZE_H

#include "base/err.h"
#include "base/storage.h"

enum quantize_method { QUANTIZE_RTN, QUANTIZE_AWQ, QUANTIZE_TUNED, QUANTIZE_METHODS };

struct quantize_options {
    enum quantize_method method;
    struct storage storage;
    // Per column, the mean square of what it is multiplied with (train/powers.h); NULL: not known.
    const float *power;
};

// What rounding changed, as sums of squares.
struct quantize_error {
    double error, power; // of the differences, of the values
};

// ERR_USAGE with the methods there are.
int quantize_find_method(const char *name, enum quantize_method *out, struct err *e);
const char *quantize_method_name(enum quantize_method m);

// Rounds rows [first, first + n) of a matrix, whose values are `rows`, into its bytes. Different
// rows may be rounded by different threads. ERR_NUMERIC: a value is not finite, or too large for a
// scale of the format.
int quantize_rows(const struct quantize_options *o, const struct storage_parts *parts, int64_t cols,
                  const float *rows, int64_t first, int64_t n, void *matrix,
                  struct quantize_error *sum, struct err *e);

#endif

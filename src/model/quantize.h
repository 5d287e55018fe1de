// quantize.h - chooses the codes and scales of a matrix: one function per method.
//
//   rtn   round to nearest. int8: the largest magnitude of a row is 127. int4: of a few scales
//         (with minima: ranges) for each group, the one with the smallest squared error.
//
// Other methods have their place in the table of quantize.c. They may look at what the matrix is
// multiplied with, which is why they get the whole struct of options.
#ifndef HAGGLE_MODEL_QUANTIZE_H
#define HAGGLE_MODEL_QUANTIZE_H

#include "base/err.h"
#include "base/storage.h"

enum quantize_method { QUANTIZE_RTN, QUANTIZE_METHODS };

struct quantize_options {
    enum quantize_method method;
    struct storage storage;
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

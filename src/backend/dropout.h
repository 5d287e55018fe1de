// dropout.h - which elements dropout keeps. Every backend and the tests share this file;
// kernels_moments.inc has the draws in vectors.
//
// A draw is a function of (step, op, row number, column), so the backward draws again what the
// forward drew, and so do a recomputed forward and a row that another rank computes.
#ifndef HAGGLE_BACKEND_DROPOUT_H
#define HAGGLE_BACKEND_DROPOUT_H

#include "backend/moments.h"

// Draws below `limit` become 0; the others are multiplied by `factor`, so that the mean stays.
struct dropout {
    struct moments_key key;
    uint32_t limit;
    float factor;
};

// draw: hyper[HYPER_DRAW]. part: op->scale, which is below 1.
MOMENTS_FN struct dropout dropout_of(double draw, uint32_t salt, double part) {
    struct dropout d = {moments_key(draw, salt), (uint32_t)(part * 4294967296.0),
                        (float)(1 / (1 - part))};
    return d;
}

// The key of a row: the draws of a row are those of its columns under this key.
MOMENTS_FN struct moments_key dropout_row(struct dropout d, int32_t number) {
    struct moments_key out = {moments_bits(d.key, (uint32_t)number),
                              moments_bits(d.key, ~(uint32_t)number)};
    return out;
}

MOMENTS_FN float dropout_factor(struct dropout d, struct moments_key row, int64_t column) {
    return moments_bits(row, (uint32_t)column) < d.limit ? 0 : d.factor;
}

#endif

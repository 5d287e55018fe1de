// rounded.h - a matrix of a loaded model, its quantized bytes, and the values of these bytes in the
// model's place.
//
// Place: tuned.c trains scales of such matrices, sensitive.c asks what one of them alone does to
// the model. Both compute with a session whose weights are plain float32 (student_knobs), so the
// values of the quantized bytes are written where the model's own values were.
#ifndef HAGGLE_TRAIN_ROUNDED_H
#define HAGGLE_TRAIN_ROUNDED_H

#include "train/score.h"

struct rounded {
    struct model_param param; // [out, in]
    bool in_out;              // the model holds it [in, out]
    struct storage storage;
    struct storage_parts parts;
    void *bytes; // parts.bytes of them
    int tensor;  // in the first program of the plan
};

// The matrices of a model that are stored as `s` says and not plain, in order, with their bytes
// allocated. Free with rounded_free, also after a failure.
int rounded_list(struct rounded **out, int *n, const struct plan *p, const struct quantized *s,
                 struct err *e);
void rounded_free(struct rounded *all, int n);
int64_t rounded_elements(const struct rounded *r);
int64_t rounded_largest(const struct rounded *all, int n); // elements

// Writes the values of the bytes into the session's weight. `values`: room for all its elements.
int rounded_put(const struct rounded *r, struct session *s, float *values, struct err *e);
// A tensor of the matrix' shape as the model holds it: the weight, or its gradient.
int rounded_read(const struct rounded *r, struct session *s, int tensor, float *out, struct err *e);
int rounded_write(const struct rounded *r, struct session *s, const float *values, struct err *e);
// Where element [row, column] of the matrix is in what rounded_read gives.
static inline int64_t rounded_at(const struct rounded *r, int64_t row, int64_t column) {
    return r->in_out ? column * r->param.dims[0] + row : row * r->param.dims[1] + column;
}

// Makes knobs those of a model whose weights are read and written one by one: float32, every weight
// a tensor of its own, `sequences` of k->seq tokens in a turn.
void student_knobs(struct knobs *k, int64_t sequences);

#endif

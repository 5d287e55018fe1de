// adapter_merge.h - a model with its adapter as one model: W + scale B A, a few elements at a time.
#ifndef HAGGLE_MODEL_ADAPTER_MERGE_H
#define HAGGLE_MODEL_ADAPTER_MERGE_H

#include "model/adapter.h"

// Reads elements [first, first + n) of a tensor.
typedef int adapter_read_fn(void *arg, const struct model_param *p, int64_t first, int64_t n,
                            float *out, struct err *e);

struct adapter_merge;
// base gives weights of the base (and those that were trained as a whole), pair the tensors of the
// adapter. Holds the pair of one weight at a time.
int adapter_merge_open(struct adapter_merge **out, const struct adapter *a,
                       const struct model_shape *s, adapter_read_fn *base, adapter_read_fn *pair,
                       void *arg, struct err *e);
void adapter_merge_close(struct adapter_merge *m); // NULL is accepted
// Elements [first, first + n) of a weight of the merged model, computed in float32. The same
// elements have the same bits whatever first and n are.
int adapter_merge_read(struct adapter_merge *m, const struct model_param *weight, int64_t first,
                       int64_t n, float *out, struct err *e);

#endif

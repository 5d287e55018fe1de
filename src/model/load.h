// load.h - finds a model's parameters among the tensors of its files, under the names that
// different versions of the tools write.
#ifndef HAGGLE_MODEL_LOAD_H
#define HAGGLE_MODEL_LOAD_H

#include "base/hash.h"
#include "model/safetensors.h"
#include "model/shape.h"

// The tensor that holds parameter p, with type (F32, F64, BF16, F16) and dimensions checked.
// Otherwise NULL and a message in e. It tries the Hugging Face name, and the name without the
// head's prefix ("transformer." or "model."), as in base models and the published GPT-2 files. A
// tied embedding may be stored as the head instead.
const struct safetensors_entry *weights_find_param(const struct weights *w,
                                                   const struct model_shape *s,
                                                   const struct model_param *p, struct err *e);

// Checks that a tensor has the dimensions of p, and a type that can be read as one of its weights.
int weights_check_param(const struct safetensors_entry *t, const struct model_param *p,
                        struct err *e);

// Refuses files that hold more than the parameters: ERR_MISMATCH names the first few tensors and
// counts them. Accepted are tensors that hold no weights (rotary tables, attention masks), and the
// head of a tied model when it equals the embedding.
// `quantized`: which of the parameters are quantized; NULL: none.
struct quantized;
int weights_refuse_extra(struct weights *w, const struct model_shape *s,
                         const struct quantized *quantized, struct err *e);

// A hash of the parameters: their names, types and stored values, in the model's order.
int weights_hash(struct weights *w, const struct model_shape *s, char out[HASH_TEXT_BYTES],
                 struct err *e);

#endif

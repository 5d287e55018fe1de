// load.h - a model's parameters among the tensors of its files: names as written by different
// versions of the tools.
#ifndef HAGGLE_MODEL_LOAD_H
#define HAGGLE_MODEL_LOAD_H

#include "model/safetensors.h"
#include "model/shape.h"

// The tensor that holds parameter p, checked for type (F32, F64, BF16, F16) and dimensions; NULL
// with a sentence in e otherwise. Tried are the HF name and the name without the head's prefix
// ("transformer." or "model."), as base models and the published GPT-2 files have it; a tied
// embedding may be stored as the head instead. Other tensors (attention masks, rotary tables, the
// head of a tied model) are never looked at.
const struct safetensors_entry *weights_find_param(const struct weights *w,
                                                   const struct model_shape *s,
                                                   const struct model_param *p, struct err *e);

#endif

// load.h - finds a model's parameters among the tensors of its files, under the names that
// different versions of the tools write.
#ifndef HAGGLE_MODEL_LOAD_H
#define HAGGLE_MODEL_LOAD_H

#include "model/safetensors.h"
#include "model/shape.h"

// The tensor that holds parameter p, with type (F32, F64, BF16, F16) and dimensions checked.
// Otherwise NULL and a message in e. It tries the Hugging Face name, and the name without the
// head's prefix ("transformer." or "model."), as in base models and the published GPT-2 files. A
// tied embedding may be stored as the head instead. Other tensors (attention masks, rotary tables,
// the head of a tied model) are ignored.
const struct safetensors_entry *weights_find_param(const struct weights *w,
                                                   const struct model_shape *s,
                                                   const struct model_param *p, struct err *e);

#endif

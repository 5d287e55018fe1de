// chosen.h - which weights a run trains: all of them, or those of an adapter and some by name.
#ifndef HAGGLE_MODEL_CHOSEN_H
#define HAGGLE_MODEL_CHOSEN_H

#include "model/adapter.h"

// Lists of names are separated by commas. A name is a tensor's, or a part of it between dots:
// "lm_head", "layers.0", "self_attn", "model.norm.weight". NULL and "" choose nothing.
struct chosen {
    const struct adapter *adapter; // rank 0, or NULL: none, and all weights train
    const char *also;              // weights that train in full beside an adapter
    const char *freeze;            // weights that do not train; also tensors of an adapter
};

bool chosen_has_adapter(const struct chosen *c);
// Whether the list names a tensor.
bool chosen_lists(const char *list, const char *tensor);
// Whether a weight of the model, or a tensor of the adapter, trains.
bool chosen_trains(const struct chosen *c, const char *tensor, bool of_adapter);
// Checks that every name stands for a tensor, that no list contradicts the other, and that
// something trains.
int chosen_check(const struct chosen *c, const struct model_shape *s, struct err *e);
// The i-th tensor that a checkpoint of such a run holds: all weights without an adapter, else those
// that train and then the adapter's. *of_adapter says which it is. False past the end.
bool chosen_at(const struct chosen *c, const struct model_shape *s, int64_t i,
               struct model_param *out, bool *of_adapter);

#endif

// family.h - what all models of a family have in common. Used by the files of this folder that make
// shapes.
#ifndef HAGGLE_MODEL_FAMILY_H
#define HAGGLE_MODEL_FAMILY_H

#include "model/shape.h"

// Sets `family` and every switch that follows from it (norm, activation, biases, matrix layout).
// The caller sets sizes, rope numbers, and switches that a configuration may change
// (attention_bias, mlp_bias).
void family_set_switches(struct model_shape *s, enum model_family family);
const char *family_model_type(enum model_family family);   // "gpt2"
const char *family_architecture(enum model_family family); // "GPT2LMHeadModel"
// Chooses between the two names of a configuration key: GPT-2 has different names than the others.
const char *family_key(enum model_family family, const char *gpt2, const char *others);

#endif

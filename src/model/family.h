// family.h - what all models of a family have in common, for the files of this folder that make
// shapes.
#ifndef HAGGLE_MODEL_FAMILY_H
#define HAGGLE_MODEL_FAMILY_H

#include "model/shape.h"

// Sets `family` and every switch that follows from it alone (norm, activation, biases, matrix
// layout); sizes, rope numbers and the switches a configuration may still turn (attention_bias,
// mlp_bias) are the caller's.
void family_set_switches(struct model_shape *s, enum model_family family);
const char *family_model_type(enum model_family family);   // "gpt2"
const char *family_architecture(enum model_family family); // "GPT2LMHeadModel"
// The configuration keys of a family, for messages and for writing: GPT-2 has its own spelling.
const char *family_key(enum model_family family, const char *gpt2, const char *others);

#endif

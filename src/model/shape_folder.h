// shape_folder.h - a model folder of a shape: config.json and its initial weights, as any reader of
// model folders takes it.
//
// Place: a shape has no weights in a file. What works on folders (quantizing) is measured on one
// that was made of the shape, with the weights that training would begin with.
#ifndef HAGGLE_MODEL_SHAPE_FOLDER_H
#define HAGGLE_MODEL_SHAPE_FOLDER_H

#include "model/shape.h"

// Writes into a folder that exists. The weights are float32 and pass through memory in pieces.
int shape_folder_write(const struct model_shape *s, uint64_t seed, const char *dir, struct err *e);

#endif

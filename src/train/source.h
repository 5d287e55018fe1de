// source.h - where a model comes from: a run's checkpoint has weights and a configuration, but its
// tokenizer is in the folder at the beginning of the chain of runs that led to it.
#ifndef HAGGLE_TRAIN_SOURCE_H
#define HAGGLE_TRAIN_SOURCE_H

#include "base/err.h"
#include "knob/knob.h"

#include <limits.h>

// `model` is a knob's value: a built-in shape, a folder, or a checkpoint of a run that began from one
// of these. *dir becomes the folder that is no checkpoint; "" for a built-in shape. ERR_IO when a
// folder on the way is gone, ERR_FORMAT when there are more than a few dozen on it.
int source_follow(const char *model, char dir[PATH_MAX], struct err *e);

// For reading and writing text of k->model, which may be a checkpoint: sets k->tokenizer to what its
// run was given, where that was something, and dir to the folder whose tokenizer it is ("": bytes).
int source_tokenizer(struct knobs *k, char dir[PATH_MAX], struct err *e);

#endif

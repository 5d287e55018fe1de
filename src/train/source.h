// source.h - finds the folder that a model was trained from. A checkpoint has weights and a
// configuration. Its tokenizer is in the folder at the beginning of the chain of runs that led to
// it.
#ifndef HAGGLE_TRAIN_SOURCE_H
#define HAGGLE_TRAIN_SOURCE_H

#include "base/err.h"
#include "knob/knob.h"

#include <limits.h>

// `model` is a value of the knob model: a built-in shape, a folder, or a checkpoint of a run that
// began from one of these. dir receives the first folder of the chain, which is not a checkpoint;
// "" for a built-in shape. ERR_IO when a folder of the chain is missing, ERR_FORMAT when the chain
// has more than a few dozen.
int source_follow(const char *model, char dir[PATH_MAX], struct err *e);

// For reading and writing text of k->model, which may be a checkpoint. Sets k->tokenizer to that of
// the checkpoint's run, if the run had one, and dir to the folder that has the tokenizer ("":
// bytes).
int source_tokenizer(struct knobs *k, char dir[PATH_MAX], struct err *e);

// For conversations with the model in `folder`. If that is a checkpoint, data.template and
// data.system become those of its run, unless they were set, and *of_run is true.
int source_chat(struct knobs *k, const char *folder, bool *of_run, struct err *e);

#endif

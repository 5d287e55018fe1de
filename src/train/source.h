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

// If k->model is a checkpoint, conversations are written as its run wrote them: data.template and
// data.system become the run's, unless they are set already. of_run: whether it is one.
int source_template(struct knobs *k, bool *of_run, struct err *e);

#endif

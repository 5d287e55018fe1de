// hub.h - models that other tools have downloaded from the Hugging Face hub, by the name they have
// there ("Qwen/Qwen3-0.6B"). Nothing is downloaded here.
#ifndef HAGGLE_MODEL_HUB_H
#define HAGGLE_MODEL_HUB_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

// Replaces the name of a model on the hub by its folder in the local cache: the snapshot that
// refs/main names. Built-in names and folders stay as they are, and so does what cannot be a name
// on the hub. The cache is $HF_HUB_CACHE, else $HF_HOME/hub, else huggingface/hub in the user's
// cache folder. ERR_IO says how to download a model that is not there. *replaced may be NULL.
int hub_resolve(char *name, size_t bytes, bool *replaced, struct err *e);

#endif

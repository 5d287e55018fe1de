// adapted.h - adapters and the weights that they belong to. A checkpoint of an adapter holds the
// adapter alone. What it computes depends on its base, so it names the base by a hash of its
// weights, and is used with no other.
#ifndef HAGGLE_TRAIN_ADAPTED_H
#define HAGGLE_TRAIN_ADAPTED_H

#include "engine/session.h"
#include "train/manifest.h"

#include <limits.h>

// The hash of the base of a session: of the names, types and values in its folder, or of a built-in
// model's name and seed. It is the same however the folder divides its tensors into files. It is
// computed once per session, from the files.
int adapted_base(struct session *s, const char **hash, struct err *e);
// ERR_MISMATCH if a checkpoint's adapter belongs to another base than the session's. `path` is the
// checkpoint's, for the message.
int adapted_compare(const struct manifest *m, struct session *s, const char *path, struct err *e);

// Whether a folder is a checkpoint of an adapter. Then the knobs get what the base and the adapter
// are.
int adapted_find(const char *folder, struct knobs *k, bool *found, struct err *e);
// Compares the base, and gives the session the adapter of such a folder.
int adapted_fill(struct session *s, const char *folder, struct err *e);

#endif

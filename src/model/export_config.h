// export_config.h - the JSON of a model folder that goes out: a config.json that says what the
// weights beside it are, and a generation_config.json that goes with it.
//
// Place: train/export.c. A source folder's config.json is edited in its text, so that members haggle
// knows nothing of arrive as they were, down to the spelling of a number.
#ifndef HAGGLE_MODEL_EXPORT_CONFIG_H
#define HAGGLE_MODEL_EXPORT_CONFIG_H

#include "base/dtype.h"
#include "model/shape.h"

// "bfloat16": the element type as config.json spells it; NULL for types it has no name for.
const char *export_config_dtype(enum dtype t);

// A config.json's text (name is for messages) with the family's architecture and the element type;
// dtype NULL leaves the latter as it is. Only values that differ are replaced, and what is missing is
// put first. floats: quantities that are real numbers are spelled as such (10000.0), for readers that
// hold a configuration to its types; for texts of our own making. *out is malloc'd, with a NUL after
// the last byte.
int export_config_edit(const char *name, const char *text, size_t bytes, enum model_family family,
                       const char *dtype, bool floats, char **out, size_t *out_bytes,
                       struct err *e);

// generation_config.json for a folder that has none: greedy, and the token ids of its config.json as
// they are spelled there (lists too).
int export_config_generation(const char *name, const char *text, size_t bytes, char **out,
                             size_t *out_bytes, struct err *e);

#endif

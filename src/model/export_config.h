// export_config.h - the JSON files of an exported model folder: a config.json that describes the
// exported weights, and a generation_config.json.
//
// Place: export/export.c calls this. The text of the source folder's config.json is edited in
// place, so that members which haggle does not know stay exactly as they were, down to the spelling
// of a number.
#ifndef HAGGLE_MODEL_EXPORT_CONFIG_H
#define HAGGLE_MODEL_EXPORT_CONFIG_H

#include "base/dtype.h"
#include "model/shape.h"

// The element type as config.json spells it, such as "bfloat16". NULL for types without a name.
const char *export_config_dtype(enum dtype t);

// Sets the architecture and the element type in the text of a config.json (name is for messages).
// With dtype NULL the element type stays as it is. Only values that differ are replaced. Missing
// members are added in front. With floats, real-valued quantities are spelled as such (10000.0),
// for readers that check types; use it only for texts that haggle wrote. *out is malloc'd, with a
// NUL after the last byte.
int export_config_edit(const char *name, const char *text, size_t bytes, enum model_family family,
                       const char *dtype, bool floats, char **out, size_t *out_bytes,
                       struct err *e);

// Sets a member of a JSON object to a value (JSON text), or adds it in front. With only_missing a
// member stays if it is there and not null. *out as above.
int export_config_set(const char *name, const char *text, size_t bytes, const char *key,
                      const char *value, bool only_missing, char **out, size_t *out_bytes,
                      struct err *e);
// Sees to it that a member holds these token ids. Where it lacks one, it becomes a list of its ids
// and the missing ones, or, without `list`, the first of `ids`.
int export_config_ids(const char *name, const char *text, size_t bytes, const char *key,
                      const int32_t *ids, size_t n, bool list, char **out, size_t *out_bytes,
                      struct err *e);
// Makes a generation_config.json for a folder that has none: greedy, with the token ids of its
// config.json as they are spelled there, lists included.
int export_config_generation(const char *name, const char *text, size_t bytes, char **out,
                             size_t *out_bytes, struct err *e);

#endif

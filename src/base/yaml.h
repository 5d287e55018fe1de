// yaml.h - recipes: a YAML mapping of scalars, flattened to dotted keys, each with its line.
//
//     batch:
//       micro: 4        ->  "batch.micro" = "4" (line 2)
//
// Only what a recipe needs is accepted: one document with mappings, plain or quoted scalars, and
// sequences of scalars (joined with commas). Anchors, aliases, tags, duplicate keys, several
// documents and nesting beyond 8 levels are errors that name file and line.
//
// A text that may have been cut off is an error too. If a prefix of a valid file is accepted, each
// of its settings has the same value as in the whole file. The one exception is a sequence written
// as lines, which may lose whole items. For this reason the last line must end with a newline, the
// last key must have a value, and a value of several lines must be in quotes.
#ifndef HAGGLE_BASE_YAML_H
#define HAGGLE_BASE_YAML_H

#include "base/err.h"
#include "base/region.h"

struct yaml_entry {
    const char *key, *value;
    int line;
};

int yaml_read_file(const char *path, struct region *r, struct yaml_entry **entries, size_t *count,
                   struct err *e);
int yaml_read_text(const char *name, const char *text, size_t bytes, struct region *r,
                   struct yaml_entry **entries, size_t *count, struct err *e);

#endif

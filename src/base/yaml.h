// yaml.h - recipes: a YAML mapping of scalars, flattened to dotted keys, each with its line.
//
//     batch:
//       micro: 4        ->  "batch.micro" = "4" (line 2)
//
// Only what a recipe needs is accepted: one document, mappings and plain or quoted scalars,
// sequences of scalars (joined with commas). Anchors, aliases, tags, duplicate keys, several
// documents and nesting beyond 8 are errors with file and line. So is a text that may have been cut
// off: each setting of a prefix of a good file is as it was in the whole file, or the prefix is
// refused (of a sequence written as lines, whole items may be missing). Therefore the last line ends
// with a newline, the last key has a value, and values of several lines are written in quotes.
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

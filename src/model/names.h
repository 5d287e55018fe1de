// names.h - names that come from files: a table to find them, and how to show them in messages.
//
// The table does not copy names. The owner keeps them alive as long as the table. A hostile file
// can choose its names. The table therefore bounds the work per name (names made to collide are
// refused), and messages never contain a control character.
#ifndef HAGGLE_MODEL_NAMES_H
#define HAGGLE_MODEL_NAMES_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct names_slot {
    const char *name; // NULL: free
    uint32_t tag;     // high half of the hash, which avoids most comparisons of names
    uint32_t value;
};

// A zeroed struct names is an empty table.
struct names {
    struct names_slot *slots;
    size_t capacity, count; // capacity is 0 or a power of two, at least twice count
};

// Adds name -> value and sets *fresh. If the name is already there, sets *fresh to false and
// changes nothing else.
int names_put(struct names *t, const char *name, uint32_t value, bool *fresh, struct err *e);
// Makes room for `count` names in an empty table at once. Growing by doubling would hold the old
// and the new table at the same time, and the memory that a file can make haggle use is bounded.
int names_reserve(struct names *t, size_t count, struct err *e);
bool names_find(const struct names *t, const char *name, uint32_t *value);
void names_free(struct names *t);

// A name as shown to people: in quotes, with control characters as '?', cut with "..." when long.
// Returns out.
enum { NAMES_QUOTE_BYTES = 128 };
const char *names_quote(char out[NAMES_QUOTE_BYTES], const char *name);

#endif

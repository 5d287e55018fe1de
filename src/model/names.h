// names.h - names that come from files: a table to find them by, and how to show them.
//
// Names are borrowed, not copied: the owner keeps them alive as long as the table. A hostile file
// can choose its names, so the table bounds the work per name (names made to collide are refused)
// and messages never carry a control character to a terminal.
#ifndef HAGGLE_MODEL_NAMES_H
#define HAGGLE_MODEL_NAMES_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct names_slot {
    const char *name; // NULL: free
    uint32_t
        tag; // high half of the hash: most strangers are told apart without touching their name
    uint32_t value;
};

// A zeroed struct names is an empty table.
struct names {
    struct names_slot *slots;
    size_t capacity, count; // capacity is 0 or a power of two, at least twice count
};

// Adds name -> value, or leaves the table as it is and sets *fresh to false when the name is
// already there.
int names_put(struct names *t, const char *name, uint32_t value, bool *fresh, struct err *e);
// Room for `count` names in an empty table, taken at once: growing by doubling would hold the old and
// the new table together, and what a file can make us take is bounded.
int names_reserve(struct names *t, size_t count, struct err *e);
bool names_find(const struct names *t, const char *name, uint32_t *value);
void names_free(struct names *t);

// A name as shown to people: in quotes, control characters as '?', cut with "..." when long.
// Returns out.
enum { NAMES_QUOTE_BYTES = 128 };
const char *names_quote(char out[NAMES_QUOTE_BYTES], const char *name);

#endif

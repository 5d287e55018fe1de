// region.h - many small objects with one owner and one lifetime: bump allocation, all freed at
// once.
//
// Used for program data (tensors, ops, names), parsed configurations and the like. Large memory
// never comes from here. It is planned and taken once, through mem.h.
#ifndef HAGGLE_BASE_REGION_H
#define HAGGLE_BASE_REGION_H

#include "base/err.h"

#include <stddef.h>

struct region {
    struct region_chunk *chunk; // newest first
    size_t bytes;               // handed out so far
};

// A zeroed struct region is ready to use. Memory is zeroed and aligned to 16 bytes. These functions
// return NULL when out of memory.
void *region_alloc(struct region *r, size_t bytes);
char *region_copy(struct region *r, const char *text);
char *region_printf(struct region *r, const char *format, ...) ERR_PRINTF(2, 3);
// Grows an array that lives in the region. Returns `old` when count < *capacity, else a copy of
// twice the size. The old copy stays until the region is freed.
void *region_grow(struct region *r, void *old, size_t count, size_t *capacity,
                  size_t element_bytes);
void region_free(struct region *r);

#endif

// array.c - see array.h.
#include "base/array.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool array_grow(void *array, size_t n, size_t more, size_t *capacity, size_t element_bytes,
                size_t least) {
    if (more > SIZE_MAX / 2 / element_bytes || n > SIZE_MAX / 2 / element_bytes - more)
        return false;
    size_t wider = *capacity + *capacity / 2;
    wider = wider > n + more ? wider : n + more;
    wider = wider > least ? wider : least;
    void *moved;
    memcpy(&moved, array, sizeof moved); // a pointer to any type, so no void ** may point to it
    moved = realloc(moved, wider * element_bytes);
    if (!moved)
        return false;
    memcpy(array, &moved, sizeof moved);
    *capacity = wider;
    return true;
}

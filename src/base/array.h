// array.h - arrays on the heap that grow.
#ifndef HAGGLE_BASE_ARRAY_H
#define HAGGLE_BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>

// array_room for an array that is too small.
bool array_grow(void *array, size_t n, size_t more, size_t *capacity, size_t element_bytes,
                size_t least);
// Makes room for `more` elements behind the first n. `array` is the address of the pointer to the
// elements, which realloc moves. The array grows by half, to at least `least` elements. False when
// there is no memory: the array is then unchanged.
static inline bool array_room(void *array, size_t n, size_t more, size_t *capacity,
                              size_t element_bytes, size_t least) {
    return more <= *capacity - n || array_grow(array, n, more, capacity, element_bytes, least);
}

#endif

// heap.h - the heap of the program under test, watched and made to fail.
//
// heap.c is linked with --wrap for malloc, calloc, realloc, aligned_alloc, free and strdup, and takes the
// place of libyaml's own allocation functions, so that every allocation of haggle's parsers passes here
// (the C library's inner ones, such as those of open_memstream, do not).
#ifndef HAGGLE_TESTS_HOSTILE_HEAP_H
#define HAGGLE_TESTS_HOSTILE_HEAP_H

#include <stdbool.h>
#include <stddef.h>

// From here on: bytes held more than now, at most. Blocks count as large as the heap made them.
void heap_watch(void);
size_t heap_peak_bytes(void);
long heap_blocks(void);    // blocks held more than at heap_watch; 0 when nothing leaked
size_t heap_calls(void);   // allocations since heap_watch
bool heap_sees_yaml(void); // whether libyaml's allocations have passed here since the start

// The n-th allocation from now on (1: the next) fails; with `onwards` all after it too. 0: none.
void heap_fail(size_t n, bool onwards);
bool heap_failed(void); // whether one has failed since heap_fail

#endif

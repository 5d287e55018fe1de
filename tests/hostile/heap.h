// heap.h - watches the heap of the program under test and makes allocations fail.
//
// heap.c is linked with --wrap for malloc, calloc, realloc, aligned_alloc, free and strdup. It also
// replaces libyaml's allocation functions. Every allocation of haggle's parsers therefore passes
// through it. Allocations inside the C library, such as those of open_memstream, do not.
#ifndef HAGGLE_TESTS_HOSTILE_HEAP_H
#define HAGGLE_TESTS_HOSTILE_HEAP_H

#include <stdbool.h>
#include <stddef.h>

// Begins a measurement.
void heap_watch(void);
size_t heap_peak_bytes(void); // most bytes held above those at heap_watch, in usable block sizes
long heap_blocks(void);       // blocks held above those at heap_watch; 0 when nothing leaked
size_t heap_calls(void);      // allocations since heap_watch
bool heap_sees_yaml(void);    // whether an allocation of libyaml has ever passed through here

// Makes the n-th allocation from now on fail (1: the next one). With `onwards` all later ones fail
// too. 0 turns this off.
void heap_fail(size_t n, bool onwards);
bool heap_failed(void); // whether one has failed since heap_fail

#endif

// layout.h - where every tensor lies in the arena, to the byte, before anything is allocated.
#ifndef HAGGLE_PROGRAM_LAYOUT_H
#define HAGGLE_PROGRAM_LAYOUT_H

#include "program/program.h"

struct layout {
    uint64_t arena_bytes;      // persistent + transient; the last byte is one that a turn writes
    uint64_t persistent_bytes; // weights, optimizer state, inputs: the same place in every program
                               // of the set
    uint64_t held_bytes;       // the most that one that yields has kept while a guest runs
    uint64_t transient_bytes;  // one region as large as the neediest program's, held bytes included
    uint64_t by_class[CLASS_COUNT]; // persistent tensors, what is held, and what is alive at the
                                    // transient peak
    uint64_t slack_bytes;           // alignment and holes: arena = sum of by_class + slack
    int neediest;                   // index of the program that sets transient_bytes
};

// Lays out a set of programs over one arena and fills tensor.offset in each. Persistent tensors of
// one name must agree in type, shape and slice (ERR_MISMATCH names the two). What lives
// across a program's yield points comes first in the transient region; guests begin behind the most that any
// program of the set holds so. Those that neither yield nor are guests use the region from its beginning.
int layout_set(struct program *const *programs, int n, struct layout *out, struct err *e);

#endif

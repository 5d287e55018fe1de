// layout.h - where every tensor lies in the arena, to the byte, before anything is allocated.
#ifndef HAGGLE_PROGRAM_LAYOUT_H
#define HAGGLE_PROGRAM_LAYOUT_H

#include "program/program.h"

struct layout {
    uint64_t arena_bytes;      // persistent + transient; a turn writes the last byte
    uint64_t persistent_bytes; // weights, optimizer state, inputs: at the same place in every
                               // program of the set
    uint64_t held_bytes;       // the most bytes that a yielding program holds while a guest runs
    uint64_t transient_bytes;  // one region, as large as the neediest program's, with held bytes
    uint64_t by_class[CLASS_COUNT]; // persistent tensors, held tensors, and the tensors alive at
                                    // the transient peak
    uint64_t slack_bytes;           // alignment and holes: arena = sum of by_class + slack
    int neediest;                   // index of the program that sets transient_bytes
};

// Lays out a set of programs over one arena and fills tensor.offset in each. Persistent tensors of
// the same name must agree in type, shape and slice, else ERR_MISMATCH names the two programs.
// Tensors alive across a program's yield points come first in the transient region. Guests begin
// behind the most bytes that any program of the set holds. Programs that neither yield nor are
// guests use the region from its start.
int layout_set(struct program *const *programs, int n, struct layout *out, struct err *e);

#endif

// check.h - proofs about programs. Every program is checked, however it was built.
#ifndef HAGGLE_PROGRAM_CHECK_H
#define HAGGLE_PROGRAM_CHECK_H

#include "program/program.h"

// Walks the whole order and proves: indices and slots are in range; within every life the first
// access is a write, so every read was written; every access waits for the accesses it depends on,
// also across streams. Works before and after layout.
int check_program(const struct program *p, struct err *e);
// After layout. Proves: no two lives share a byte unless one happens before the other; nothing lies
// outside the arena. (check_program proves that views lie inside their roots.) Walks the whole
// order, not the shortened order that layout used.
int check_layout(const struct program *p, uint64_t arena_bytes, struct err *e);
// After layout, for a set of programs. Proves that a guest writes nothing that a yielding program
// still needs at its yield points: no tensor alive across a yield point shares a byte with a
// guest's tensor, and no guest writes a persistent tensor that the program touches. Walks the whole
// order.
int check_guests(struct program *const *programs, int n, struct err *e);
// For the programs of all ranks of one world. Proves: every send has a receive with the same bytes
// at the same place in its channel; every rank of a group issues the same sequence of collectives
// with the same sizes.
int check_world(struct program *const *programs, int n, struct err *e);

#endif

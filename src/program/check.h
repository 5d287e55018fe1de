// check.h - proofs about programs: nothing is believed because a builder meant well.
#ifndef HAGGLE_PROGRAM_CHECK_H
#define HAGGLE_PROGRAM_CHECK_H

#include "program/program.h"

// Over the whole order: indices and slots are in range; within every life the first access is a
// write (every read was written); every access waits for what it depends on, across streams too.
// Works before and after layout.
int check_program(const struct program *p, struct err *e);
// After layout: no two lives that are not ordered by happens-before share a byte; nothing lies
// outside the arena; views lie inside their roots. Walks the whole order, independent of the
// shortened one layout used.
int check_layout(const struct program *p, uint64_t arena_bytes, struct err *e);
// After layout, for a set: whatever a guest writes, a program that yields has no use for at its yield
// points. No tensor that lives across one shares a byte with a guest's, and no persistent tensor that the
// program touches is written by a guest. Walks the whole order, as check_layout.
int check_guests(struct program *const *programs, int n, struct err *e);
// The programs of all ranks of one world: every send has its receive (same bytes, same place in its
// channel), and every rank of a group issues the same sequence of collectives with the same sizes.
int check_world(struct program *const *programs, int n, struct err *e);

#endif

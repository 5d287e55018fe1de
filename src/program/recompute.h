// recompute.h - what the backward computes again instead of having kept it; see recompute.c.
#ifndef HAGGLE_PROGRAM_RECOMPUTE_H
#define HAGGLE_PROGRAM_RECOMPUTE_H

#include "program/program.h"

enum recompute_kind { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL };

struct recompute_rule {
    enum recompute_kind kind;
    int every;             // of full: each k-th block; 1: all of them
    double bytes_per_flop; // of selective: the least that must be saved
};

// Edits the backward. Ops issued again carry OP_AGAIN.
int recompute_apply(struct program *p, int forward, int backward, const struct recompute_rule *rule,
                    int layers, struct err *e);

#endif

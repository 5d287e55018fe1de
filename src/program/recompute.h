// recompute.h - computing tensors again in the backward instead of keeping them; see recompute.c.
#ifndef HAGGLE_PROGRAM_RECOMPUTE_H
#define HAGGLE_PROGRAM_RECOMPUTE_H

#include "program/program.h"

enum recompute_kind { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL };

struct recompute_rule {
    enum recompute_kind kind;
    int every;             // full: each k-th block; 1: all of them
    double bytes_per_flop; // selective: fewest bytes saved per floating-point operation
};

// Edits the backward. Ops issued again carry OP_AGAIN.
int recompute_apply(struct program *p, int forward, int backward, const struct recompute_rule *rule,
                    int layers, struct err *e);

#endif

// state.h - the element type of Adam's moments; see state.c.
#ifndef HAGGLE_PROGRAM_STATE_H
#define HAGGLE_PROGRAM_STATE_H

#include "program/program.h"

enum state_type { STATE_FP32, STATE_BF16, STATE_INT8 };

// Edits the ADAMW ops of the update and their moments.
int state_apply(struct program *p, int update, enum state_type type, struct err *e);

#endif

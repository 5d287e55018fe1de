// sync.h - record and wait for every cross-stream dependency. See sync.c.
#ifndef HAGGLE_PROGRAM_SYNC_H
#define HAGGLE_PROGRAM_SYNC_H

#include "program/program.h"

int sync_derive(struct program *p, struct err *e); // 0, or a negative code

#endif

// sync.h - adds record and wait for every dependency between streams; see sync.c.
#ifndef HAGGLE_PROGRAM_SYNC_H
#define HAGGLE_PROGRAM_SYNC_H

#include "program/program.h"

int sync_derive(struct program *p, struct err *e); // 0, or a negative code

#endif

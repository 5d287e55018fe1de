// lines.h - the lines of a file, one after the other, in bounded memory.
//
// Place: what reads JSONL walks a file with it; it knows nothing of JSON.
//
// Invariants:
//   1. The file is read, never mapped: one that shrinks meanwhile is an error, not a signal. What was
//      appended after lines_open is not seen, so two walks of one opening see the same bytes.
//   2. Memory is one buffer of at most the longest line accepted, LINES_MAX_BYTES, and some.
//   3. A line comes without its end (LF or CRLF); the last one needs none. A byte order mark in front
//      of the first line is dropped. Lines are numbered from 1; blank ones are lines, too.
#ifndef HAGGLE_DATA_LINES_H
#define HAGGLE_DATA_LINES_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { LINES_MAX_BYTES = 16 << 20 }; // a longer line is a damaged file, not a record

struct lines;
// ERR_IO; ERR_FORMAT for what is not a regular file.
int lines_open(struct lines **out, const char *path, struct err *e);
void lines_close(struct lines *l); // NULL is fine
// The next line, valid until the next call and followed by a readable byte (not counted); *text is
// NULL after the last one. ERR_FORMAT for a line that is too long, ERR_IO for a file that shrank or
// cannot be read; after an error every call gives an error.
int lines_next(struct lines *l, const char **text, size_t *bytes, uint64_t *number, struct err *e);
uint64_t lines_file_bytes(const struct lines *l); // size at lines_open
uint64_t lines_offset(const struct lines *l);     // where in the file the next line begins

#endif

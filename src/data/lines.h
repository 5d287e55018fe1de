// lines.h - reads the lines of a file one after the other, in bounded memory.
//
// Place: readers of JSONL use it. It does not parse JSON.
//
// Invariants:
//   1. The file is read, never mapped: a file that shrinks meanwhile is an error, not a signal.
//      Bytes appended after lines_open are not seen, so two passes over one opening see the same
//      bytes.
//   2. Memory is one buffer of at most about twice the longest accepted line, LINES_MAX_BYTES.
//   3. A line comes without its end (LF or CRLF). The last line needs no end. A byte order mark in
//      front of the first line is dropped. Lines are numbered from 1, blank lines included.
#ifndef HAGGLE_DATA_LINES_H
#define HAGGLE_DATA_LINES_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { LINES_MAX_BYTES = 16 << 20 }; // a longer line means a damaged file

struct lines;
// ERR_IO when it cannot be opened, ERR_FORMAT when it is not a regular file.
int lines_open(struct lines **out, const char *path, struct err *e);
void lines_close(struct lines *l); // NULL is fine
// Returns the next line, valid until the next call and followed by a readable byte (not counted).
// *text is NULL after the last line. ERR_FORMAT for a line that is too long, ERR_IO for a file that
// shrank or cannot be read. After an error every call returns an error.
int lines_next(struct lines *l, const char **text, size_t *bytes, uint64_t *number, struct err *e);
uint64_t lines_offset(const struct lines *l); // where the next line begins in the file

#endif

// text.h - numbers and units as people write them, both ways, and suggestions for misspelt names.
#ifndef HAGGLE_BASE_TEXT_H
#define HAGGLE_BASE_TEXT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TEXT_UNIT_BYTES = 32 };
// "1.50 GiB", "812 B"; returns out.
const char *text_bytes(char out[TEXT_UNIT_BYTES], uint64_t bytes);
const char *text_count(char out[TEXT_UNIT_BYTES], double n); // "124.4M", "1.02G", "812"
const char *text_duration(char out[TEXT_UNIT_BYTES],
                          double seconds); // "812 us", "41.2 ms", "3.1 s", "4m 07s"
// Parsers take the whole string or fail with ERR_USAGE and what is accepted. Suffixes: bytes K M G
// T (powers of 1000), KiB MiB GiB TiB; durations ns us ms s m h (a unit is required, except for 0).
int text_parse_i64(const char *s, int64_t *out, struct err *e);
int text_parse_double(const char *s, double *out, struct err *e);
int text_parse_bytes(const char *s, uint64_t *out, struct err *e);
int text_parse_duration_ns(const char *s, uint64_t *out, struct err *e);
int text_parse_bool(const char *s, bool *out, struct err *e); // true/false, yes/no, on/off, 1/0
// The nearest of n names by edit distance, or NULL when none is near enough to be a likely slip.
const char *text_suggest(const char *word, const char *const *names, size_t n);

#endif

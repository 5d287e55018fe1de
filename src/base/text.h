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
// "812 us", "41.2 ms", "3.1 s", "4m 07s"
const char *text_duration(char out[TEXT_UNIT_BYTES], double seconds);
// The value exactly, in the unit that gives the smallest whole number: "6GiB", "90s", "1500ms".
const char *text_exact_bytes(char out[TEXT_UNIT_BYTES], uint64_t bytes);
const char *text_exact_ns(char out[TEXT_UNIT_BYTES], uint64_t ns);
// The parsers accept only the whole string. Otherwise they fail with ERR_USAGE and say what is
// accepted. Units of bytes: K M G T (powers of 1000) and KiB MiB GiB TiB. Units of durations: ns us
// ms s m h. A duration needs a unit, except for 0.
int text_parse_i64(const char *s, int64_t *out, struct err *e);
int text_parse_double(const char *s, double *out, struct err *e);
int text_parse_bytes(const char *s, uint64_t *out, struct err *e);
int text_parse_duration_ns(const char *s, uint64_t *out, struct err *e);
int text_parse_bool(const char *s, bool *out, struct err *e); // true/false, yes/no, on/off, 1/0
// The next item of a list that is separated by commas, without the spaces around it: n characters
// from *item. *at moves on; NULL is an empty list. False at its end.
bool text_next_item(const char **at, const char **item, size_t *n);
int text_hex_digit(int c); // 0 to 15, or -1
// The value of the n (at most 7) hexadecimal digits at p, or -1 when they are not all there.
int32_t text_hex(const char *p, const char *end, int n);
// The nearest of n names by edit distance, or NULL when none is close enough to be a likely typo.
const char *text_suggest(const char *word, const char *const *names, size_t n);

#endif

// json.h - strict JSON (RFC 8259): a pull reader over a buffer, and a writer.
//
// Reading: the caller walks the text value by value; nothing is built, nothing is allocated but
// unescaped strings in a caller's region, so memory is bounded by what the caller keeps, whatever
// the file says. Every error names line, column and byte. Strings are checked UTF-8; lone
// surrogates, control characters, leading zeros, NaN, comments, trailing commas and trailing bytes
// are refused. Depth is at most 64. The reader remembers its first error: after it, every call
// returns it, so a loop needs one check at the end.
#ifndef HAGGLE_BASE_JSON_H
#define HAGGLE_BASE_JSON_H

#include "base/err.h"
#include "base/region.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum json_type {
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT,
    JSON_INVALID
};

struct json_reader {
    const char *text, *at, *end;
    const char *name;       // of the file, for messages
    struct region *strings; // unescaped strings and keys go here
    struct err *e;
    int rc; // 0 or the first error
    int depth;
    uint64_t first_bits, object_bits; // per depth: no element seen yet; is an object
};

void json_reader_init(struct json_reader *r, const char *name, const char *text, size_t bytes,
                      struct region *strings, struct err *e);
// Type of the value that comes next; JSON_INVALID (and the reader's error) when none does. After an
// error every output is harmless: "", 0, false.
enum json_type json_peek(struct json_reader *r);
int json_enter_object(struct json_reader *r);
int json_enter_array(struct json_reader *r);
// In an object: true and the key when there is a further member (its value comes next); false at
// the end (the object is then left) or on error. Keys longer than a region string can hold do not
// exist: memory is the caller's region.
bool json_next_key(struct json_reader *r, const char **key);
// In an array: true when there is a further element (it comes next); false at the end (array left)
// or on error.
bool json_next_element(struct json_reader *r);
int json_read_string(struct json_reader *r, const char **out,
                     size_t *out_bytes); // out_bytes may be NULL; then NUL inside is an error
int json_read_double(struct json_reader *r, double *out); // finite only
int json_read_i64(struct json_reader *r,
                  int64_t *out); // an integer, exact; "1.0" and 1e3 are accepted when exact
int json_read_bool(struct json_reader *r, bool *out);
int json_read_null(struct json_reader *r);
int json_skip(struct json_reader *r); // any value, checked all the same
int json_finish(
    struct json_reader *r); // only whitespace may follow; returns the first error if there was one
// Fails at the current position with the caller's sentence.
int json_fail(struct json_reader *r, int code, const char *format, ...) ERR_PRINTF(3, 4);

// Writing. Numbers are shortest round-trip; non-finite numbers become null. indent 0 = one line.
struct json_writer {
    FILE *f;      // either a stream ...
    char *buffer; // ... or a growing buffer (malloc'd, NUL-terminated)
    size_t bytes, capacity;
    int indent, depth, failed;
    uint64_t has_element_bits;
    bool after_key;
};
void json_writer_to_file(struct json_writer *w, FILE *f, int indent);
void json_writer_to_buffer(struct json_writer *w, int indent);
void json_put_object_begin(struct json_writer *w);
void json_put_object_end(struct json_writer *w);
void json_put_array_begin(struct json_writer *w);
void json_put_array_end(struct json_writer *w);
void json_put_key(struct json_writer *w, const char *key);
void json_put_string(struct json_writer *w, const char *s);
void json_put_string_n(struct json_writer *w, const char *s, size_t bytes);
void json_put_double(struct json_writer *w, double x);
void json_put_i64(struct json_writer *w, int64_t x);
void json_put_bool(struct json_writer *w, bool x);
void json_put_null(struct json_writer *w);
// Shorthands for object members.
void json_member_string(struct json_writer *w, const char *key, const char *s);
void json_member_double(struct json_writer *w, const char *key, double x);
void json_member_i64(struct json_writer *w, const char *key, int64_t x);
void json_member_bool(struct json_writer *w, const char *key, bool x);
// 0, or ERR_IO / ERR_MEMORY when any put failed, ERR_INTERNAL when brackets or keys do not balance
// or nest deeper than 64. Adds no newline. Frees nothing: a buffer belongs to the caller.
int json_writer_finish(struct json_writer *w, struct err *e);

#endif

// json.h - strict JSON (RFC 8259): a pull reader over a buffer, and a writer.
//
// Reading: the caller walks the text value by value. The reader builds no tree and allocates only
// unescaped strings, in the caller's region. Memory is therefore bounded by what the caller keeps,
// whatever the file contains. Every error names line, column and byte. Strings must be valid UTF-8.
// Lone surrogates, control characters, leading zeros, NaN, comments, trailing commas and trailing
// bytes are refused. The depth is at most 64. After the first error every call returns that error,
// so a loop needs one check at the end.
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
    uint64_t first_bits;  // one bit per depth: no element has been read yet
    uint64_t object_bits; // one bit per depth: this level is an object
};

void json_reader_init(struct json_reader *r, const char *name, const char *text, size_t bytes,
                      struct region *strings, struct err *e);
// The type of the next value. JSON_INVALID, with the reader's error set, when there is none. After
// an error every output is harmless: "", 0 or false.
enum json_type json_peek(struct json_reader *r);
int json_enter_object(struct json_reader *r);
int json_enter_array(struct json_reader *r);
// In an object: returns true and the key when there is another member, whose value comes next.
// Returns false on an error, or at the end of the object, which the reader then leaves. The key is
// stored in the caller's region.
bool json_next_key(struct json_reader *r, const char **key);
// In an array: returns true when there is another element, which comes next. Returns false on an
// error, or at the end of the array, which the reader then leaves.
bool json_next_element(struct json_reader *r);
// out_bytes may be NULL. A NUL inside the string is then an error.
int json_read_string(struct json_reader *r, const char **out, size_t *out_bytes);
int json_read_double(struct json_reader *r, double *out); // finite only
// Accepts every number that is exactly an integer, including 1.0 and 1e3.
int json_read_i64(struct json_reader *r, int64_t *out);
int json_read_bool(struct json_reader *r, bool *out);
int json_read_null(struct json_reader *r);
int json_skip(struct json_reader *r); // skips any value, but still checks it
// Checks that only whitespace follows. Returns the first error if there was one.
int json_finish(struct json_reader *r);
// Reports an error at the current position, with the caller's sentence.
int json_fail(struct json_reader *r, int code, const char *format, ...) ERR_PRINTF(3, 4);

// Writing. Doubles are written with the fewest digits (15 to 17) that read back to the same value.
// Non-finite numbers become null. indent 0 writes everything on one line.
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
void json_member_null(struct json_writer *w, const char *key);
void json_member_object(struct json_writer *w, const char *key); // begins it
void json_member_array(struct json_writer *w, const char *key);  // begins it
// Returns 0, or ERR_IO or ERR_MEMORY when any put failed, or ERR_INTERNAL when brackets or keys do
// not balance or nest deeper than 64. Adds no newline. Frees nothing: the caller owns the buffer.
int json_writer_finish(struct json_writer *w, struct err *e);

#endif

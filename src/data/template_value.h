// template_value.h - the values that a chat template computes with. Strings know where each of
// their bytes came from.
//
// Place: record.c makes values from a line's messages, the template interpreter (template.c)
// computes with them, render_chat.c reads where the text of each message went.
//
// Invariants:
//   1. Every byte of a string has an origin: 0 is the template's text, k + 1 the text of message k,
//      ORIGIN_RECORD other text of the record. No operation loses or changes an origin, so text of
//      a record can never pass for the template's.
//   2. Strings are valid UTF-8 and never change. Lists and dicts only grow while they are made.
//   3. All memory comes from one region with a limit, and all work is counted in steps with a
//      limit. So a hostile template or record soon ends in an error.
#ifndef HAGGLE_DATA_TEMPLATE_VALUE_H
#define HAGGLE_DATA_TEMPLATE_VALUE_H

#include "base/err.h"
#include "base/json.h"
#include "base/region.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ORIGIN_TEMPLATE UINT32_C(0)
#define ORIGIN_RECORD   UINT32_MAX

struct marked_span {
    size_t end; // end of the bytes with this origin; they begin where the span before ends
    uint32_t origin;
};
struct marked { // a string
    const char *bytes;
    size_t n;
    const struct marked_span *spans; // NULL: all bytes have `origin`
    size_t n_spans;
    uint32_t origin;
};

enum value_type {
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_DICT,
    VALUE_LOOP,
    VALUE_MACRO,
};

struct value {
    enum value_type type;
    union {
        const char *missing; // UNDEFINED: the name that was looked up, for messages
        bool b;
        int64_t i;
        double f;
        const struct marked *s;
        struct value_list *list;
        struct value_dict *dict;
        const struct template_loop *loop;
        const struct template_node *macro;
    };
};
struct value_list {
    struct value *items;
    size_t n, capacity;
};
struct value_pair {
    const struct marked *key;
    struct value value;
};
struct value_dict { // in the order of insertion, as in Python
    struct value_pair *pairs;
    size_t n, capacity;
    bool is_namespace; // the only kind of value whose members a template may set
};

// Memory and work, with their limits.
struct value_heap {
    struct region *region;
    size_t limit_bytes; // limit of the region
    int64_t steps;      // steps left
    struct err *e;
};
int value_spend(struct value_heap *h, size_t steps); // ERR_FORMAT when none are left
// Returns zeroed memory, or NULL and sets the error when there is none or the limit is reached.
void *value_alloc(struct value_heap *h, size_t bytes);
// Makes room for one more element in `array` (a pointer to the pointer to its n elements) by
// doubling it. The first time there is room for `least`.
int value_make_room(struct value_heap *h, void *array, size_t n, size_t *capacity,
                    size_t element_bytes, size_t least);

const char *value_type_name(const struct value *v); // "a string", for messages
struct value value_bool(bool b);
struct value value_int(int64_t i);
struct value value_none(void);
struct value value_undefined(const char *missing);
// Makes a string; the bytes are not copied.
int value_string(struct value_heap *h, const char *bytes, size_t n, uint32_t origin,
                 struct value *out);
int value_slice(struct value_heap *h, const struct marked *s, size_t begin, size_t end,
                struct value *out);
int value_list_new(struct value_heap *h, struct value *out);
int value_list_add(struct value_heap *h, struct value_list *l, struct value v);
int value_dict_new(struct value_heap *h, struct value *out);
// Replaces the member with that name or adds one.
int value_dict_set(struct value_heap *h, struct value_dict *d, const struct marked *key,
                   struct value v);
const struct value *value_dict_get(const struct value_dict *d, const char *key, size_t n);

// A string that is being built.
struct marked_builder {
    char *bytes;
    size_t n, capacity;
    struct marked_span *spans;
    size_t n_spans, span_capacity;
};
int marked_add(struct value_heap *h, struct marked_builder *b, const struct marked *s);
int marked_add_bytes(struct value_heap *h, struct marked_builder *b, const char *bytes, size_t n,
                     uint32_t origin);
int marked_finish(struct value_heap *h, const struct marked_builder *b, struct value *out);
// Returns the span of bytes with one origin around `at`. at < n.
struct marked_span marked_span_at(const struct marked *s, size_t at);
bool marked_equals(const struct marked *s, const char *text);

// Reads any JSON value. Every string in it gets this origin. ERR_FORMAT for a duplicate member.
int value_read_json(struct value_heap *h, struct json_reader *r, uint32_t origin,
                    struct value *out);
// Writes JSON as Python's json.dumps(ensure_ascii=False) does; indent < 0: one line. Text keeps its
// origin.
int value_write_json(struct value_heap *h, const struct value *v, int indent,
                     struct marked_builder *out);
// Writes numbers, booleans, None and strings as Python's str() does. ERR_FORMAT for lists and
// dicts, because no chat format prints them as they are.
int value_write_text(struct value_heap *h, const struct value *v, struct marked_builder *out);

#endif

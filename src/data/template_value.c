// template_value.c - values of chat templates: memory, strings with origins, JSON both ways.
#include "data/template_value.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int value_spend(struct value_heap *h, size_t steps) {
    if (h->steps < 0 || steps > (size_t)h->steps) {
        h->steps = -1;
        return err_set(h->e, ERR_FORMAT,
                       "takes too long: a chat template may not do this much work");
    }
    h->steps -= (int64_t)steps;
    return 0;
}

void *value_alloc(struct value_heap *h, size_t bytes) {
    if (bytes > h->limit_bytes || h->region->bytes > h->limit_bytes - bytes) {
        err_set(h->e, ERR_FORMAT, "needs more than %zu bytes of memory", h->limit_bytes);
        return NULL;
    }
    void *p = region_alloc(h->region, bytes);
    if (p == NULL)
        err_set(h->e, ERR_MEMORY, "no memory to render a record");
    return p;
}

// Returns the code of a failed value_alloc, also when there is no err to read it from.
static int out_of_memory(const struct value_heap *h) {
    return h->e != NULL && h->e->code != 0 ? h->e->code : ERR_MEMORY;
}

int value_make_room(struct value_heap *h, void *array, size_t n, size_t *capacity,
                    size_t element_bytes, size_t least) {
    if (n < *capacity)
        return 0;
    void **items = array;
    size_t wider = *capacity ? 2 * *capacity : least; // a region holds no more than SIZE_MAX / 2
    void *moved = value_alloc(h, wider * element_bytes);
    if (moved == NULL)
        return out_of_memory(h);
    if (n > 0)
        memcpy(moved, *items, n * element_bytes);
    *items = moved;
    *capacity = wider;
    return 0;
}

// ---------------------------------------------------------------- simple values

const char *value_type_name(const struct value *v) {
    static const char *const names[] = {
        [VALUE_UNDEFINED] = "undefined", [VALUE_NONE] = "none",      [VALUE_BOOL] = "a boolean",
        [VALUE_INT] = "a number",        [VALUE_FLOAT] = "a number", [VALUE_STRING] = "a string",
        [VALUE_LIST] = "a list",         [VALUE_DICT] = "an object", [VALUE_LOOP] = "the loop",
        [VALUE_MACRO] = "a macro",
    };
    return names[v->type];
}

struct value value_bool(bool b) {
    return (struct value){.type = VALUE_BOOL, .b = b};
}
struct value value_int(int64_t i) {
    return (struct value){.type = VALUE_INT, .i = i};
}
struct value value_none(void) {
    return (struct value){.type = VALUE_NONE};
}
struct value value_undefined(const char *missing) {
    return (struct value){.type = VALUE_UNDEFINED, .missing = missing};
}

int value_string(struct value_heap *h, const char *bytes, size_t n, uint32_t origin,
                 struct value *out) {
    struct marked *s = value_alloc(h, sizeof *s);
    if (s == NULL)
        return out_of_memory(h);
    *s = (struct marked){.bytes = bytes, .n = n, .origin = origin};
    *out = (struct value){.type = VALUE_STRING, .s = s};
    return 0;
}

int value_list_new(struct value_heap *h, struct value *out) {
    struct value_list *l = value_alloc(h, sizeof *l);
    *out = (struct value){.type = VALUE_LIST, .list = l};
    return l == NULL ? out_of_memory(h) : 0;
}

int value_list_add(struct value_heap *h, struct value_list *l, struct value v) {
    TRY(value_make_room(h, &l->items, l->n, &l->capacity, sizeof *l->items, 4));
    l->items[l->n++] = v;
    return 0;
}

int value_dict_new(struct value_heap *h, struct value *out) {
    struct value_dict *d = value_alloc(h, sizeof *d);
    *out = (struct value){.type = VALUE_DICT, .dict = d};
    return d == NULL ? out_of_memory(h) : 0;
}

const struct value *value_dict_get(const struct value_dict *d, const char *key, size_t n) {
    for (size_t i = 0; i < d->n; i++)
        if (d->pairs[i].key->n == n && memcmp(d->pairs[i].key->bytes, key, n) == 0)
            return &d->pairs[i].value;
    return NULL;
}

static int dict_append(struct value_heap *h, struct value_dict *d, const struct marked *key,
                       struct value v) {
    TRY(value_make_room(h, &d->pairs, d->n, &d->capacity, sizeof *d->pairs, 4));
    d->pairs[d->n++] = (struct value_pair){.key = key, .value = v};
    return 0;
}

int value_dict_set(struct value_heap *h, struct value_dict *d, const struct marked *key,
                   struct value v) {
    TRY(value_spend(h, 1 + d->n));
    for (size_t i = 0; i < d->n; i++) {
        const struct marked *k = d->pairs[i].key;
        if (k->n == key->n && memcmp(k->bytes, key->bytes, k->n) == 0) {
            d->pairs[i].value = v;
            return 0;
        }
    }
    return dict_append(h, d, key, v);
}

// ---------------------------------------------------------------- strings with origins

// Index of the span that holds byte `at`.
static size_t span_at(const struct marked *s, size_t at) {
    size_t low = 0, high = s->n_spans - 1;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (s->spans[middle].end > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct marked_span marked_span_at(const struct marked *s, size_t at) {
    if (s->spans == NULL)
        return (struct marked_span){.end = s->n, .origin = s->origin};
    return s->spans[span_at(s, at)];
}

bool marked_equals(const struct marked *s, const char *text) {
    return strlen(text) == s->n && memcmp(s->bytes, text, s->n) == 0;
}

int value_slice(struct value_heap *h, const struct marked *s, size_t begin, size_t end,
                struct value *out) {
    if (end <= begin)
        return value_string(h, "", 0, ORIGIN_TEMPLATE, out);
    TRY(value_string(h, s->bytes + begin, end - begin, s->origin, out));
    if (s->spans == NULL)
        return 0;
    size_t first = span_at(s, begin), last = span_at(s, end - 1), n = last - first + 1;
    struct marked *made = (struct marked *)out->s; // just allocated, not shared
    made->origin = s->spans[first].origin;
    if (n == 1)
        return 0;
    TRY(value_spend(h, n));
    struct marked_span *spans = value_alloc(h, n * sizeof *spans);
    if (spans == NULL)
        return out_of_memory(h);
    for (size_t i = 0; i < n; i++)
        spans[i] = (struct marked_span){.end = s->spans[first + i].end - begin,
                                        .origin = s->spans[first + i].origin};
    spans[n - 1].end = end - begin;
    made->spans = spans;
    made->n_spans = n;
    return 0;
}

static int grow_bytes(struct value_heap *h, struct marked_builder *b, size_t more) {
    if (more <= b->capacity - b->n)
        return 0;
    // Both strings are in memory, so their sum is far from SIZE_MAX.
    size_t wider = 2 * b->capacity > b->n + more ? 2 * b->capacity : b->n + more;
    char *moved = value_alloc(h, wider < 64 ? 64 : wider);
    if (moved == NULL)
        return out_of_memory(h);
    if (b->n > 0)
        memcpy(moved, b->bytes, b->n);
    b->bytes = moved;
    b->capacity = wider < 64 ? 64 : wider;
    return 0;
}

int marked_add_bytes(struct value_heap *h, struct marked_builder *b, const char *bytes, size_t n,
                     uint32_t origin) {
    if (n == 0)
        return 0;
    TRY(value_spend(h, 1 + n / 64));
    TRY(grow_bytes(h, b, n));
    memcpy(b->bytes + b->n, bytes, n);
    if (b->n_spans > 0 && b->spans[b->n_spans - 1].origin == origin) {
        b->n += n;
        b->spans[b->n_spans - 1].end = b->n;
        return 0;
    }
    TRY(value_make_room(h, &b->spans, b->n_spans, &b->span_capacity, sizeof *b->spans, 4));
    b->n += n;
    b->spans[b->n_spans++] = (struct marked_span){.end = b->n, .origin = origin};
    return 0;
}

int marked_add(struct value_heap *h, struct marked_builder *b, const struct marked *s) {
    if (s->spans == NULL)
        return marked_add_bytes(h, b, s->bytes, s->n, s->origin);
    for (size_t i = 0, begin = 0; i < s->n_spans; begin = s->spans[i++].end)
        TRY(marked_add_bytes(h, b, s->bytes + begin, s->spans[i].end - begin, s->spans[i].origin));
    return 0;
}

int marked_finish(struct value_heap *h, const struct marked_builder *b, struct value *out) {
    TRY(value_string(h, b->n > 0 ? b->bytes : "", b->n, ORIGIN_TEMPLATE, out));
    struct marked *s = (struct marked *)out->s;
    if (b->n_spans > 0)
        s->origin = b->spans[0].origin;
    if (b->n_spans > 1) {
        s->spans = b->spans;
        s->n_spans = b->n_spans;
    }
    return 0;
}

// ---------------------------------------------------------------- JSON in

static int compare_keys(const void *a, const void *b) {
    const struct marked *x = *(const struct marked *const *)a,
                        *y = *(const struct marked *const *)b;
    int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

// Finds equal keys by sorting, so that no order of members makes this slow.
static int refuse_duplicates(struct value_heap *h, struct json_reader *r,
                             const struct value_dict *d) {
    if (d->n < 2)
        return 0;
    const struct marked **keys = value_alloc(h, d->n * sizeof *keys);
    if (keys == NULL)
        return out_of_memory(h);
    for (size_t i = 0; i < d->n; i++)
        keys[i] = d->pairs[i].key;
    qsort(keys, d->n, sizeof *keys, compare_keys);
    for (size_t i = 1; i < d->n; i++)
        if (compare_keys(&keys[i - 1], &keys[i]) == 0)
            return json_fail(r, ERR_FORMAT, "the member \"%.60s\" appears twice in one object",
                             keys[i]->bytes);
    return 0;
}

static int read_object(struct value_heap *h, struct json_reader *r, uint32_t origin,
                       struct value *out) {
    TRY(value_dict_new(h, out));
    TRY(json_enter_object(r));
    const char *key;
    while (json_next_key(r, &key)) {
        struct value name, member;
        TRY(value_string(h, key, strlen(key), origin, &name));
        TRY(value_read_json(h, r, origin, &member));
        TRY(dict_append(h, out->dict, name.s, member));
    }
    TRY(r->rc);
    return refuse_duplicates(h, r, out->dict);
}

static int read_array(struct value_heap *h, struct json_reader *r, uint32_t origin,
                      struct value *out) {
    TRY(value_list_new(h, out));
    TRY(json_enter_array(r));
    while (json_next_element(r)) {
        struct value item;
        TRY(value_read_json(h, r, origin, &item));
        TRY(value_list_add(h, out->list, item));
    }
    return r->rc;
}

// An integer when it is written as one and fits, else a double.
static int read_number(struct json_reader *r, struct value *out) {
    bool whole = true;
    for (const char *p = r->at; p < r->end && whole && strchr("+-.eE0123456789", *p) && *p; p++)
        whole = *p == '-' || (*p >= '0' && *p <= '9');
    const char *digits = r->at + (*r->at == '-');
    size_t n = 0;
    while (digits + n < r->end && digits[n] >= '0' && digits[n] <= '9')
        n++;
    out->type = whole && n <= 18 ? VALUE_INT : VALUE_FLOAT;
    return out->type == VALUE_INT ? json_read_i64(r, &out->i) : json_read_double(r, &out->f);
}

int value_read_json(struct value_heap *h, struct json_reader *r, uint32_t origin,
                    struct value *out) {
    *out = value_none();
    const char *text;
    size_t n;
    switch (json_peek(r)) {
    case JSON_NULL:
        return json_read_null(r);
    case JSON_BOOL:
        out->type = VALUE_BOOL;
        return json_read_bool(r, &out->b);
    case JSON_NUMBER:
        return read_number(r, out);
    case JSON_STRING:
        TRY(json_read_string(r, &text, &n));
        return value_string(h, text, n, origin, out);
    case JSON_ARRAY: // the JSON reader limits nesting to 64 levels
        return read_array(h, r, origin, out);
    case JSON_OBJECT:
        return read_object(h, r, origin, out);
    default:
        return r->rc;
    }
}

// ---------------------------------------------------------------- text and JSON out

static int put(struct value_heap *h, struct marked_builder *out, const char *text) {
    return marked_add_bytes(h, out, text, strlen(text), ORIGIN_TEMPLATE);
}

// Writes the shortest digits that read back the same, in Python's layout: an exponent below 1e-4
// and from 1e16 on, otherwise at least one digit after the point.
static void float_text(char text[40], double x) {
    if (!isfinite(x)) {
        snprintf(text, 40, "%s", isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
        return;
    }
    int digits = 1;
    do
        snprintf(text, 40, "%.*e", digits - 1, x);
    while (strtod(text, NULL) != x && ++digits <= 17);
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent < -4 || exponent >= 16)
        return;
    int decimals = digits - 1 - exponent;
    snprintf(text, 40, "%.*f", decimals < 1 ? 1 : decimals, x);
}

static int write_number(struct value_heap *h, const struct value *v, struct marked_builder *out) {
    char text[40];
    if (v->type == VALUE_INT)
        snprintf(text, sizeof text, "%" PRId64, v->i);
    else
        float_text(text, v->f);
    return put(h, out, text);
}

static int write_quoted(struct value_heap *h, const struct marked *s, struct marked_builder *out) {
    TRY(put(h, out, "\""));
    size_t run = 0;
    for (size_t i = 0; i <= s->n; i++) {
        unsigned char c = i < s->n ? (unsigned char)s->bytes[i] : 0;
        if (i < s->n && c >= 0x20 && c != '"' && c != '\\')
            continue;
        struct value plain;
        TRY(value_slice(h, s, run, i, &plain));
        TRY(marked_add(h, out, plain.s));
        run = i + 1;
        if (i == s->n)
            break;
        const char *at = strchr("\"\"\\\\\nn\rr\tt\bb\ff", c); // pairs: character, letter
        char escape[8];
        if (c != 0 && at != NULL)
            snprintf(escape, sizeof escape, "\\%c", at[1]);
        else
            snprintf(escape, sizeof escape, "\\u%04x", c);
        TRY(marked_add_bytes(h, out, escape, strlen(escape), marked_span_at(s, i).origin));
    }
    return put(h, out, "\"");
}

static int write_break(struct value_heap *h, int indent, int depth, struct marked_builder *out) {
    if (indent < 0)
        return 0;
    TRY(put(h, out, "\n"));
    for (int i = 0; i < indent * depth; i++)
        TRY(put(h, out, " "));
    return 0;
}

static int write_json(struct value_heap *h, const struct value *v, int indent, int depth,
                      struct marked_builder *out);

static int write_container(struct value_heap *h, const struct value *v, int indent, int depth,
                           struct marked_builder *out) {
    bool dict = v->type == VALUE_DICT;
    size_t n = dict ? v->dict->n : v->list->n;
    TRY(put(h, out, dict ? "{" : "["));
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            TRY(put(h, out, indent < 0 ? ", " : ","));
        TRY(write_break(h, indent, depth + 1, out));
        if (dict) {
            TRY(write_quoted(h, v->dict->pairs[i].key, out));
            TRY(put(h, out, ": "));
        }
        TRY(write_json(h, dict ? &v->dict->pairs[i].value : &v->list->items[i], indent, depth + 1,
                       out));
    }
    if (n > 0)
        TRY(write_break(h, indent, depth, out));
    return put(h, out, dict ? "}" : "]");
}

static int write_json(struct value_heap *h, const struct value *v, int indent, int depth,
                      struct marked_builder *out) {
    TRY(value_spend(h, 1));
    if (depth > 80) // deeper than any JSON that is read: the template built nested lists
        return err_set(h->e, ERR_FORMAT, "tojson: nested deeper than 80 levels");
    switch (v->type) {
    case VALUE_NONE:
        return put(h, out, "null");
    case VALUE_BOOL:
        return put(h, out, v->b ? "true" : "false");
    case VALUE_FLOAT:
        if (!isfinite(v->f)) // Python's spelling of values that JSON does not have
            return put(h, out, isnan(v->f) ? "NaN" : v->f > 0 ? "Infinity" : "-Infinity");
        return write_number(h, v, out);
    case VALUE_INT:
        return write_number(h, v, out);
    case VALUE_STRING:
        return write_quoted(h, v->s, out);
    case VALUE_LIST:
    case VALUE_DICT:
        return write_container(h, v, indent, depth, out);
    default:
        return err_set(h->e, ERR_FORMAT, "tojson: %s cannot be written as JSON",
                       value_type_name(v));
    }
}

int value_write_json(struct value_heap *h, const struct value *v, int indent,
                     struct marked_builder *out) {
    return write_json(h, v, indent, 0, out);
}

int value_write_text(struct value_heap *h, const struct value *v, struct marked_builder *out) {
    switch (v->type) {
    case VALUE_UNDEFINED:
        return 0;
    case VALUE_NONE:
        return put(h, out, "None");
    case VALUE_BOOL:
        return put(h, out, v->b ? "True" : "False");
    case VALUE_INT:
    case VALUE_FLOAT:
        return write_number(h, v, out);
    case VALUE_STRING:
        return marked_add(h, out, v->s);
    default:
        return err_set(h->e, ERR_FORMAT, "cannot print %s", value_type_name(v));
    }
}

// template_ops.c - truth, order, parts and members of a template's values.
#include "data/template_ops.h"

#include <string.h>

enum { COMPARE_DEPTH_MAX = 80 };

// ---------------------------------------------------------------- truth and order

bool ops_truth(const struct value *v) {
    switch (v->type) {
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
        return v->b;
    case VALUE_INT:
        return v->i != 0;
    case VALUE_FLOAT:
        return v->f != 0;
    case VALUE_STRING:
        return v->s->n > 0;
    case VALUE_LIST:
        return v->list->n > 0;
    case VALUE_DICT:
        return v->dict->n > 0 || v->dict->is_namespace;
    default:
        return true;
    }
}

static bool is_number(const struct value *v) {
    return v->type == VALUE_INT || v->type == VALUE_FLOAT || v->type == VALUE_BOOL;
}
static double number_of(const struct value *v) {
    return v->type == VALUE_INT ? (double)v->i : v->type == VALUE_BOOL ? (double)v->b : v->f;
}

static int compare_bytes(const struct marked *a, const struct marked *b) {
    int order = memcmp(a->bytes, b->bytes, a->n < b->n ? a->n : b->n);
    return order != 0 ? (order > 0) - (order < 0) : (a->n > b->n) - (a->n < b->n);
}

static int equal(struct value_heap *h, const struct value *a, const struct value *b, int depth,
                 bool *out) {
    TRY(value_spend(h, 1));
    if (depth > COMPARE_DEPTH_MAX)
        return err_set(h->e, ERR_FORMAT, "compares values nested too deep");
    *out = false;
    if (is_number(a) && is_number(b)) {
        *out = a->type == VALUE_INT && b->type == VALUE_INT ? a->i == b->i
                                                            : number_of(a) == number_of(b);
        return 0;
    }
    if (a->type != b->type)
        return 0;
    if (a->type == VALUE_STRING) {
        *out = a->s->n == b->s->n && compare_bytes(a->s, b->s) == 0;
        return value_spend(h, a->s->n / 64);
    }
    if (a->type == VALUE_LIST) {
        *out = a->list->n == b->list->n;
        for (size_t i = 0; i < a->list->n && *out; i++)
            TRY(equal(h, &a->list->items[i], &b->list->items[i], depth + 1, out));
        return 0;
    }
    if (a->type == VALUE_DICT) {
        *out = a->dict->n == b->dict->n;
        for (size_t i = 0; i < a->dict->n && *out; i++) {
            const struct value_pair *p = &a->dict->pairs[i];
            const struct value *other = value_dict_get(b->dict, p->key->bytes, p->key->n);
            TRY(value_spend(h, 1 + b->dict->n));
            *out = other != NULL;
            if (other != NULL)
                TRY(equal(h, &p->value, other, depth + 1, out));
        }
        return 0;
    }
    *out = a->type == VALUE_NONE || a->type == VALUE_UNDEFINED;
    return 0;
}

int ops_equal(struct value_heap *h, const struct value *a, const struct value *b, bool *out) {
    return equal(h, a, b, 0, out);
}

int ops_order(struct value_heap *h, const struct value *a, const struct value *b, int *out) {
    if (a->type == VALUE_STRING && b->type == VALUE_STRING) {
        *out = compare_bytes(a->s, b->s); // in UTF-8, byte order is the order of characters
        return 0;
    }
    if (!is_number(a) || !is_number(b))
        return err_set(h->e, ERR_FORMAT, "%s and %s have no order", value_type_name(a),
                       value_type_name(b));
    double x = number_of(a), y = number_of(b);
    *out = (x > y) - (x < y);
    if (a->type == VALUE_INT && b->type == VALUE_INT) // doubles cannot distinguish all integers
        *out = (a->i > b->i) - (a->i < b->i);
    return 0;
}

int ops_contains(struct value_heap *h, const struct value *in, const struct value *what,
                 bool *out) {
    *out = false;
    if (in->type == VALUE_STRING && what->type == VALUE_STRING) {
        *out = memmem(in->s->bytes, in->s->n, what->s->bytes, what->s->n) != NULL;
        return value_spend(h, 1 + in->s->n / 64);
    }
    if (in->type == VALUE_DICT) {
        *out = what->type == VALUE_STRING &&
               value_dict_get(in->dict, what->s->bytes, what->s->n) != NULL;
        return value_spend(h, 1 + in->dict->n);
    }
    if (in->type == VALUE_LIST) {
        for (size_t i = 0; i < in->list->n && !*out; i++)
            TRY(ops_equal(h, &in->list->items[i], what, out));
        return 0;
    }
    if (in->type == VALUE_UNDEFINED)
        return 0;
    return err_set(h->e, ERR_FORMAT, "cannot search for %s in %s", value_type_name(what),
                   value_type_name(in));
}

// ---------------------------------------------------------------- parts

int ops_elements(struct value_heap *h, const struct value *of, struct value *out) {
    const struct value given = *of, *v = &given; // `of` and `out` may be the same
    if (v->type == VALUE_LIST) {
        *out = given;
        return 0;
    }
    TRY(value_list_new(h, out));
    if (v->type == VALUE_UNDEFINED)
        return 0;
    if (v->type == VALUE_DICT) {
        for (size_t i = 0; i < v->dict->n; i++)
            TRY(value_list_add(h, out->list,
                               (struct value){.type = VALUE_STRING, .s = v->dict->pairs[i].key}));
        return 0;
    }
    if (v->type != VALUE_STRING)
        return err_set(h->e, ERR_FORMAT, "%s has no elements", value_type_name(v));
    for (size_t at = 0; at < v->s->n;) {
        size_t next = at + 1;
        while (next < v->s->n && ((unsigned char)v->s->bytes[next] & 0xC0) == 0x80)
            next++;
        struct value character;
        TRY(value_slice(h, v->s, at, next, &character));
        TRY(value_list_add(h, out->list, character));
        at = next;
    }
    return 0;
}

int ops_length(struct value_heap *h, const struct value *v, size_t *out) {
    *out = 0;
    if (v->type == VALUE_LIST)
        *out = v->list->n;
    else if (v->type == VALUE_DICT)
        *out = v->dict->n;
    else if (v->type == VALUE_STRING)
        *out = ops_characters(v->s);
    else if (v->type != VALUE_UNDEFINED)
        return err_set(h->e, ERR_FORMAT, "%s has no length", value_type_name(v));
    return v->type == VALUE_STRING ? value_spend(h, 1 + v->s->n / 64) : 0;
}

static int undefined_has_no(struct value_heap *h, const struct value *of, const char *name,
                            size_t n) {
    // Names point into the source and are not terminated.
    size_t known =
        strspn(of->missing, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
    return err_set(h->e, ERR_FORMAT, "\"%.*s\" is undefined and has no \"%.*s\"",
                   (int)(known < 40 ? known : 40), of->missing, (int)(n < 40 ? n : 40), name);
}

int ops_attribute(struct value_heap *h, const struct value *of, const char *name, size_t n,
                  struct value *out) {
    TRY(value_spend(h, 1));
    if (of->type == VALUE_UNDEFINED)
        return undefined_has_no(h, of, name, n);
    const struct value *found = NULL;
    if (of->type == VALUE_DICT) {
        TRY(value_spend(h, of->dict->n));
        found = value_dict_get(of->dict, name, n);
    }
    *out = found != NULL ? *found : value_undefined("it");
    return 0;
}

int ops_index(struct value_heap *h, const struct value *of, const struct value *which,
              struct value *out) {
    *out = value_undefined("it");
    if (of->type == VALUE_UNDEFINED)
        return undefined_has_no(h, of, "element", 7);
    if (which->type == VALUE_STRING)
        return ops_attribute(h, of, which->s->bytes, which->s->n, out);
    if (which->type != VALUE_INT || (of->type != VALUE_LIST && of->type != VALUE_STRING))
        return 0;
    size_t n;
    TRY(ops_length(h, of, &n));
    int64_t i = which->i < 0 ? which->i + (int64_t)n : which->i;
    if (i < 0 || i >= (int64_t)n)
        return 0;
    if (of->type == VALUE_LIST) {
        *out = of->list->items[i];
        return 0;
    }
    size_t begin = ops_byte_of_character(of->s, (size_t)i);
    return value_slice(h, of->s, begin, ops_byte_of_character(of->s, (size_t)i + 1), out);
}

// Brings a bound of a slice into [low, high].
static int slice_bound(struct value_heap *h, const struct value *v, int64_t otherwise, int64_t n,
                       int64_t low, int64_t high, int64_t *out) {
    *out = otherwise;
    if (v == NULL || v->type == VALUE_NONE)
        return 0;
    if (v->type != VALUE_INT)
        return err_set(h->e, ERR_FORMAT, "a slice with a bound that is %s", value_type_name(v));
    int64_t i = v->i < -n - 1 ? -1 : v->i < 0 ? v->i + n : v->i;
    *out = i < low ? low : i > high ? high : i;
    return 0;
}

static int slice_elements(struct value_heap *h, const struct value_list *l, int64_t from,
                          int64_t to, int64_t step, struct value *out) {
    TRY(value_list_new(h, out));
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        TRY(value_spend(h, 1));
        TRY(value_list_add(h, out->list, l->items[i]));
    }
    return 0;
}

int ops_slice(struct value_heap *h, const struct value *of, const struct value *from,
              const struct value *to, const struct value *step, struct value *out) {
    if (of->type != VALUE_LIST && of->type != VALUE_STRING)
        return err_set(h->e, ERR_FORMAT, "%s cannot be sliced", value_type_name(of));
    int64_t by = 1, begin, end;
    if (step != NULL && step->type != VALUE_INT && step->type != VALUE_NONE)
        return err_set(h->e, ERR_FORMAT, "a slice with a step that is %s", value_type_name(step));
    if (step != NULL && step->type == VALUE_INT)
        by = step->i;
    if (by == 0 || by > INT32_MAX || by < -INT32_MAX)
        return err_set(h->e, ERR_FORMAT, "a slice with a step of %lld", (long long)by);
    size_t length;
    TRY(ops_length(h, of, &length));
    int64_t n = (int64_t)length, low = by > 0 ? 0 : -1, high = by > 0 ? n : n - 1;
    TRY(slice_bound(h, from, by > 0 ? 0 : n - 1, n, low, high, &begin));
    TRY(slice_bound(h, to, by > 0 ? n : -1, n, low, high, &end));
    if (of->type == VALUE_LIST)
        return slice_elements(h, of->list, begin, end, by, out);
    if (by == 1)
        return value_slice(h, of->s, ops_byte_of_character(of->s, (size_t)begin),
                           ops_byte_of_character(of->s, (size_t)(end > begin ? end : begin)), out);
    struct value characters;
    struct marked_builder b = {0};
    TRY(ops_elements(h, of, &characters));
    TRY(slice_elements(h, characters.list, begin, end, by, &characters));
    for (size_t i = 0; i < characters.list->n; i++)
        TRY(marked_add(h, &b, characters.list->items[i].s));
    return marked_finish(h, &b, out);
}

int ops_concatenate(struct value_heap *h, const struct value *a, const struct value *b,
                    struct value *out) {
    struct marked_builder made = {0};
    TRY(value_write_text(h, a, &made));
    TRY(value_write_text(h, b, &made));
    return marked_finish(h, &made, out);
}

// ---------------------------------------------------------------- methods of dicts

static int pairs_of(struct value_heap *h, const struct value_dict *d, bool keys, bool values,
                    struct value *out) {
    TRY(value_list_new(h, out));
    for (size_t i = 0; i < d->n; i++) {
        struct value key = {.type = VALUE_STRING, .s = d->pairs[i].key}, item = key;
        TRY(value_spend(h, 1));
        if (keys && values) {
            TRY(value_list_new(h, &item));
            TRY(value_list_add(h, item.list, key));
            TRY(value_list_add(h, item.list, d->pairs[i].value));
        } else if (values) {
            item = d->pairs[i].value;
        }
        TRY(value_list_add(h, out->list, item));
    }
    return 0;
}

int ops_method(struct value_heap *h, const struct value *of, const char *name, size_t n,
               const struct ops_arguments *args, struct value *out) {
    struct marked method = {.bytes = name, .n = n};
    if (of->type == VALUE_UNDEFINED)
        return undefined_has_no(h, of, name, n);
    if (of->type == VALUE_STRING)
        return ops_string_method(h, of->s, name, n, args, out);
    if (of->type == VALUE_DICT) {
        bool get = marked_equals(&method, "get"), parts = marked_equals(&method, "items") ||
                                                          marked_equals(&method, "keys") ||
                                                          marked_equals(&method, "values");
        if (get || parts)
            TRY(ops_check_arguments(h, name, n, args, get ? 2 : 0, ""));
        if (parts)
            return pairs_of(h, of->dict, name[0] != 'v', name[0] != 'k', out);
        const struct value *key = ops_argument(args, 0, NULL), *otherwise;
        if (get && key != NULL && key->type == VALUE_STRING) {
            const struct value *found = value_dict_get(of->dict, key->s->bytes, key->s->n);
            otherwise = ops_argument(args, 1, NULL);
            *out = found != NULL ? *found : otherwise != NULL ? *otherwise : value_none();
            return value_spend(h, 1 + of->dict->n);
        }
    }
    return err_set(h->e, ERR_FORMAT, "the method %.*s of %s is not understood",
                   (int)(n < 40 ? n : 40), name, value_type_name(of));
}

// template_filter.c - filters and tests of chat templates.
#include "data/template_ops.h"

#include <math.h>
#include <string.h>

// ---------------------------------------------------------------- tests

enum test {
#define TESTS(X)                                                                                   \
    X(DEFINED, "defined")                                                                          \
    X(UNDEFINED, "undefined")                                                                      \
    X(NONE, "none")                                                                                \
    X(STRING, "string")                                                                            \
    X(MAPPING, "mapping")                                                                          \
    X(ITERABLE, "iterable")                                                                        \
    X(SEQUENCE, "sequence")                                                                        \
    X(NUMBER, "number")                                                                            \
    X(INTEGER, "integer")                                                                          \
    X(FLOAT, "float")                                                                              \
    X(BOOLEAN, "boolean")                                                                          \
    X(TRUE, "true")                                                                                \
    X(FALSE, "false")                                                                              \
    X(SAME, "sameas")                                                                              \
    X(EQUAL, "equalto")                                                                            \
    X(EQ, "eq")                                                                                    \
    X(SYMBOL, "==")                                                                                \
    X(NE, "ne")                                                                                    \
    X(IN, "in")                                                                                    \
    X(ODD, "odd")                                                                                  \
    X(EVEN, "even")                                                                                \
    X(DIVISIBLE, "divisibleby")
#define X(id, name) TEST_##id,
    TESTS(X)
#undef X
        TEST_COUNT
};

static enum test find_test(const char *name, size_t n) {
    static const char *const names[] = {
#define X(id, text) text,
        TESTS(X)
#undef X
    };
    struct marked wanted = {.bytes = name, .n = n};
    for (int t = 0; t < TEST_COUNT; t++)
        if (marked_equals(&wanted, names[t]))
            return (enum test)t;
    return TEST_COUNT;
}

static int test_number(struct value_heap *h, enum test t, const struct value *v,
                       const struct value *by, bool *out) {
    int64_t divisor = t == TEST_DIVISIBLE && by != NULL && by->type == VALUE_INT ? by->i : 2;
    if (v->type != VALUE_INT || divisor == 0)
        return err_set(h->e, ERR_FORMAT, "%s is asked whether it is even", value_type_name(v));
    *out = divisor == -1 || (v->i % divisor == 0) == (t != TEST_ODD);
    return 0;
}

int ops_test(struct value_heap *h, const char *name, size_t n, const struct value *v,
             const struct ops_arguments *args, bool *out) {
    const struct value *other = ops_argument(args, 0, NULL);
    enum test t = find_test(name, n);
    bool sized = v->type == VALUE_LIST || v->type == VALUE_DICT || v->type == VALUE_STRING;
    switch (t) {
    case TEST_DEFINED:
    case TEST_UNDEFINED:
        *out = (v->type == VALUE_UNDEFINED) == (t == TEST_UNDEFINED);
        return 0;
    case TEST_NONE:
        *out = v->type == VALUE_NONE;
        return 0;
    case TEST_STRING:
        *out = v->type == VALUE_STRING;
        return 0;
    case TEST_MAPPING:
        *out = v->type == VALUE_DICT;
        return 0;
    case TEST_ITERABLE:
        *out = sized || v->type == VALUE_UNDEFINED;
        return 0;
    case TEST_SEQUENCE:
        *out = sized || v->type == VALUE_UNDEFINED;
        return 0;
    case TEST_NUMBER:
        *out = v->type == VALUE_INT || v->type == VALUE_FLOAT || v->type == VALUE_BOOL;
        return 0;
    case TEST_INTEGER:
        *out = v->type == VALUE_INT;
        return 0;
    case TEST_FLOAT:
        *out = v->type == VALUE_FLOAT;
        return 0;
    case TEST_BOOLEAN:
        *out = v->type == VALUE_BOOL;
        return 0;
    case TEST_TRUE:
    case TEST_FALSE:
        *out = v->type == VALUE_BOOL && v->b == (t == TEST_TRUE);
        return 0;
    case TEST_ODD:
    case TEST_EVEN:
    case TEST_DIVISIBLE:
        return test_number(h, t, v, other, out);
    default:
        break;
    }
    if (t == TEST_COUNT || other == NULL)
        return err_set(h->e, ERR_FORMAT, "the test %.*s is not understood%s",
                       (int)(n < 40 ? n : 40), name, t == TEST_COUNT ? "" : " without an argument");
    if (t == TEST_IN)
        return ops_contains(h, other, v, out);
    TRY(ops_equal(h, v, other, out));
    if (t == TEST_SAME) // of values that are one by nature: true, false, none, small numbers
        *out = *out && v->type == other->type;
    *out = *out == (t != TEST_NE);
    return 0;
}

// ---------------------------------------------------------------- filters

typedef int filter_fn(struct value_heap *h, const struct value *v, const struct ops_arguments *args,
                      struct value *out);

static int as_text(struct value_heap *h, const struct value *v, const struct marked **out) {
    struct marked_builder b = {0};
    struct value text;
    if (v->type == VALUE_STRING) {
        *out = v->s;
        return 0;
    }
    TRY(value_write_text(h, v, &b));
    TRY(marked_finish(h, &b, &text));
    *out = text.s;
    return 0;
}

// The filters that are methods of strings by another name.
static int string_filter(struct value_heap *h, const char *method, const struct value *v,
                         const struct ops_arguments *args, struct value *out) {
    const struct marked *s;
    TRY(as_text(h, v, &s));
    return ops_string_method(h, s, method, strlen(method), args, out);
}
static int filter_trim(struct value_heap *h, const struct value *v,
                       const struct ops_arguments *args, struct value *out) {
    return string_filter(h, "strip", v, args, out);
}
static int filter_upper(struct value_heap *h, const struct value *v,
                        const struct ops_arguments *args, struct value *out) {
    return string_filter(h, "upper", v, args, out);
}
static int filter_lower(struct value_heap *h, const struct value *v,
                        const struct ops_arguments *args, struct value *out) {
    return string_filter(h, "lower", v, args, out);
}
static int filter_title(struct value_heap *h, const struct value *v,
                        const struct ops_arguments *args, struct value *out) {
    return string_filter(h, "title", v, args, out);
}
static int filter_capitalize(struct value_heap *h, const struct value *v,
                             const struct ops_arguments *args, struct value *out) {
    return string_filter(h, "capitalize", v, args, out);
}
static int filter_replace(struct value_heap *h, const struct value *v,
                          const struct ops_arguments *args, struct value *out) {
    return string_filter(h, "replace", v, args, out);
}

static int filter_string(struct value_heap *h, const struct value *v,
                         const struct ops_arguments *args, struct value *out) {
    (void)args;
    const struct marked *s;
    TRY(as_text(h, v, &s));
    return value_slice(h, s, 0, s->n, out);
}

static int filter_length(struct value_heap *h, const struct value *v,
                         const struct ops_arguments *args, struct value *out) {
    (void)args;
    size_t n;
    TRY(ops_length(h, v, &n));
    *out = value_int((int64_t)n);
    return 0;
}

static int filter_tojson(struct value_heap *h, const struct value *v,
                         const struct ops_arguments *args, struct value *out) {
    const struct value *indent = ops_argument(args, 0, "indent");
    struct marked_builder b = {0};
    for (size_t i = 0; i < args->n; i++) {
        struct marked name = {.bytes = args->names[i], .n = args->name_bytes[i]};
        bool known = args->names[i] == NULL || marked_equals(&name, "indent") ||
                     ((marked_equals(&name, "ensure_ascii") || marked_equals(&name, "sort_keys")) &&
                      !ops_truth(&args->items[i]));
        if (!known)
            return err_set(h->e, ERR_FORMAT, "tojson with %.*s is not understood", (int)name.n,
                           name.bytes);
    }
    bool given = indent != NULL && indent->type == VALUE_INT;
    if (given && (indent->i < 0 || indent->i > 16))
        return err_set(h->e, ERR_FORMAT, "tojson with an indent of %lld", (long long)indent->i);
    TRY(value_write_json(h, v, given ? (int)indent->i : -1, &b));
    return marked_finish(h, &b, out);
}

static int filter_default(struct value_heap *h, const struct value *v,
                          const struct ops_arguments *args, struct value *out) {
    const struct value *other = ops_argument(args, 0, "default_value"),
                       *falsy = ops_argument(args, 1, "boolean");
    bool missing =
        v->type == VALUE_UNDEFINED || (falsy != NULL && ops_truth(falsy) && !ops_truth(v));
    if (!missing)
        *out = *v;
    else if (other != NULL)
        *out = *other;
    else
        return value_string(h, "", 0, ORIGIN_TEMPLATE, out);
    return 0;
}

static int filter_list(struct value_heap *h, const struct value *v,
                       const struct ops_arguments *args, struct value *out) {
    (void)args;
    return ops_elements(h, v, out);
}

static int edge(struct value_heap *h, const struct value *v, bool last, struct value *out) {
    struct value list;
    TRY(ops_elements(h, v, &list));
    *out =
        list.list->n == 0 ? value_undefined("it") : list.list->items[last ? list.list->n - 1 : 0];
    return 0;
}
static int filter_first(struct value_heap *h, const struct value *v,
                        const struct ops_arguments *args, struct value *out) {
    (void)args;
    return edge(h, v, false, out);
}
static int filter_last(struct value_heap *h, const struct value *v,
                       const struct ops_arguments *args, struct value *out) {
    (void)args;
    return edge(h, v, true, out);
}

static int filter_reverse(struct value_heap *h, const struct value *v,
                          const struct ops_arguments *args, struct value *out) {
    (void)args;
    struct value back = value_int(-1);
    return ops_slice(h, v, NULL, NULL, &back, out);
}

static int filter_join(struct value_heap *h, const struct value *v,
                       const struct ops_arguments *args, struct value *out) {
    const struct value *separator = ops_argument(args, 0, "d");
    struct marked nothing = {.bytes = ""};
    if (ops_argument(args, 1, "attribute") != NULL)
        return err_set(h->e, ERR_FORMAT, "join with attribute is not understood");
    if (separator != NULL && separator->type != VALUE_STRING)
        return err_set(h->e, ERR_FORMAT, "join with %s", value_type_name(separator));
    struct ops_arguments list = {.items = {*v}, .n = 1, .n_positional = 1};
    return ops_string_method(h, separator != NULL ? separator->s : &nothing, "join", 4, &list, out);
}

static int filter_items(struct value_heap *h, const struct value *v,
                        const struct ops_arguments *args, struct value *out) {
    if (v->type == VALUE_UNDEFINED)
        return value_list_new(h, out);
    if (v->type != VALUE_DICT)
        return err_set(h->e, ERR_FORMAT, "%s has no items", value_type_name(v));
    return ops_method(h, v, "items", 5, args, out);
}

static int filter_int(struct value_heap *h, const struct value *v, const struct ops_arguments *args,
                      struct value *out) {
    (void)args;
    *out = value_int(v->type == VALUE_INT ? v->i : v->type == VALUE_BOOL ? v->b : 0);
    if (v->type == VALUE_FLOAT && fabs(v->f) < 9e15)
        out->i = (int64_t)v->f;
    else if (v->type != VALUE_INT && v->type != VALUE_BOOL)
        return err_set(h->e, ERR_FORMAT, "int of %s is not understood", value_type_name(v));
    return 0;
}

static int filter_float(struct value_heap *h, const struct value *v,
                        const struct ops_arguments *args, struct value *out) {
    (void)args;
    if (v->type != VALUE_INT && v->type != VALUE_FLOAT)
        return err_set(h->e, ERR_FORMAT, "float of %s is not understood", value_type_name(v));
    *out = (struct value){.type = VALUE_FLOAT, .f = v->type == VALUE_INT ? (double)v->i : v->f};
    return 0;
}

// Capitals and small letters are one, as in Jinja; what has the same name otherwise keeps its order.
static int compare_names(const struct marked *a, const struct marked *b) {
    size_t n = a->n < b->n ? a->n : b->n;
    for (size_t i = 0; i < n; i++) {
        unsigned char x = (unsigned char)a->bytes[i], y = (unsigned char)b->bytes[i];
        x = x >= 'A' && x <= 'Z' ? x | 0x20 : x;
        y = y >= 'A' && y <= 'Z' ? y | 0x20 : y;
        if (x != y)
            return x < y ? -1 : 1;
    }
    return (a->n > b->n) - (a->n < b->n);
}

static int filter_dictsort(struct value_heap *h, const struct value *v,
                           const struct ops_arguments *args, struct value *out) {
    if (args->n > 0 || v->type != VALUE_DICT)
        return err_set(h->e, ERR_FORMAT, "dictsort with arguments, or of %s", value_type_name(v));
    TRY(ops_method(h, v, "items", 5, args, out));
    struct value *items = out->list->items;
    for (size_t i = 1; i < out->list->n; i++) // few members: insertion keeps equal names in order
        for (size_t k = i;
             k > 0 && compare_names(items[k - 1].list->items[0].s, items[k].list->items[0].s) > 0;
             k--) {
            TRY(value_spend(h, 1));
            struct value other = items[k];
            items[k] = items[k - 1];
            items[k - 1] = other;
        }
    return 0;
}

static int filter_abs(struct value_heap *h, const struct value *v, const struct ops_arguments *args,
                      struct value *out) {
    (void)args;
    if (v->type != VALUE_INT || v->i == INT64_MIN)
        return err_set(h->e, ERR_FORMAT, "abs of %s is not understood", value_type_name(v));
    *out = value_int(v->i < 0 ? -v->i : v->i);
    return 0;
}

// safe, and others that change nothing where nothing is escaped.
static int filter_same(struct value_heap *h, const struct value *v,
                       const struct ops_arguments *args, struct value *out) {
    (void)h, (void)args;
    *out = *v;
    return 0;
}

// The argument that names an attribute or test.
static int name_argument(struct value_heap *h, const struct value *v, const struct marked **out) {
    *out = NULL;
    if (v == NULL || v->type != VALUE_STRING)
        return err_set(h->e, ERR_FORMAT, "the name of an attribute or test is expected");
    *out = v->s;
    return 0;
}

// select, reject, selectattr, rejectattr: elements (whose attribute) pass a test, or are true.
static int choose(struct value_heap *h, const struct value *v, const struct ops_arguments *args,
                  bool attribute, bool keep, struct value *out) {
    struct value list, part;
    const struct marked *name, *test;
    const struct value *by = ops_argument(args, attribute ? 1 : 0, NULL),
                       *other = ops_argument(args, attribute ? 2 : 1, NULL);
    struct ops_arguments rest = {0};
    if (other != NULL) {
        rest.items[0] = *other;
        rest.n = rest.n_positional = 1;
    }
    TRY(ops_elements(h, v, &list));
    TRY(value_list_new(h, out));
    for (size_t i = 0; i < list.list->n; i++) {
        part = list.list->items[i];
        if (attribute) {
            TRY(name_argument(h, ops_argument(args, 0, NULL), &name));
            TRY(ops_attribute(h, &part, name->bytes, name->n, &part));
        }
        bool yes = ops_truth(&part);
        if (by != NULL) {
            TRY(name_argument(h, by, &test));
            TRY(ops_test(h, test->bytes, test->n, &part, &rest, &yes));
        }
        if (yes == keep)
            TRY(value_list_add(h, out->list, list.list->items[i]));
    }
    return 0;
}
static int filter_select(struct value_heap *h, const struct value *v,
                         const struct ops_arguments *args, struct value *out) {
    return choose(h, v, args, false, true, out);
}
static int filter_reject(struct value_heap *h, const struct value *v,
                         const struct ops_arguments *args, struct value *out) {
    return choose(h, v, args, false, false, out);
}
static int filter_selectattr(struct value_heap *h, const struct value *v,
                             const struct ops_arguments *args, struct value *out) {
    return choose(h, v, args, true, true, out);
}
static int filter_rejectattr(struct value_heap *h, const struct value *v,
                             const struct ops_arguments *args, struct value *out) {
    return choose(h, v, args, true, false, out);
}

// map(attribute="x"), map("trim").
static int filter_map(struct value_heap *h, const struct value *v, const struct ops_arguments *args,
                      struct value *out) {
    const struct value *attribute = ops_argument(args, OPS_MAX_ARGUMENTS, "attribute");
    const struct marked *name;
    struct value list, part;
    struct ops_arguments rest = {0};
    TRY(name_argument(h, attribute != NULL ? attribute : ops_argument(args, 0, NULL), &name));
    if (args->n != 1)
        return err_set(h->e, ERR_FORMAT, "map with these arguments is not understood");
    TRY(ops_elements(h, v, &list));
    TRY(value_list_new(h, out));
    for (size_t i = 0; i < list.list->n; i++) {
        if (attribute != NULL)
            TRY(ops_attribute(h, &list.list->items[i], name->bytes, name->n, &part));
        else if (marked_equals(name, "map"))
            return err_set(h->e, ERR_FORMAT, "map of map is not understood");
        else
            TRY(ops_filter(h, name->bytes, name->n, &list.list->items[i], &rest, &part));
        TRY(value_list_add(h, out->list, part));
    }
    return 0;
}

static filter_fn *find_filter(const char *name, size_t n) {
    static const struct {
        const char *name;
        filter_fn *fn;
    } filters[] = {
        {"trim", filter_trim},
        {"upper", filter_upper},
        {"lower", filter_lower},
        {"title", filter_title},
        {"capitalize", filter_capitalize},
        {"replace", filter_replace},
        {"string", filter_string},
        {"length", filter_length},
        {"count", filter_length},
        {"tojson", filter_tojson},
        {"default", filter_default},
        {"d", filter_default},
        {"list", filter_list},
        {"first", filter_first},
        {"last", filter_last},
        {"reverse", filter_reverse},
        {"join", filter_join},
        {"items", filter_items},
        {"int", filter_int},
        {"float", filter_float},
        {"dictsort", filter_dictsort},
        {"abs", filter_abs},
        {"safe", filter_same},
        {"select", filter_select},
        {"reject", filter_reject},
        {"selectattr", filter_selectattr},
        {"rejectattr", filter_rejectattr},
        {"map", filter_map},
    };
    struct marked wanted = {.bytes = name, .n = n};
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (marked_equals(&wanted, filters[i].name))
            return filters[i].fn;
    return NULL;
}

int ops_filter(struct value_heap *h, const char *name, size_t n, const struct value *v,
               const struct ops_arguments *args, struct value *out) {
    filter_fn *fn = find_filter(name, n);
    TRY(value_spend(h, 1));
    if (fn == NULL)
        return err_set(h->e, ERR_FORMAT, "the filter %.*s is not understood",
                       (int)(n < 40 ? n : 40), name);
    return fn(h, v, args, out);
}

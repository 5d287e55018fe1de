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

static bool takes_argument(enum test t) {
    return t == TEST_SAME || t == TEST_EQUAL || t == TEST_EQ || t == TEST_SYMBOL || t == TEST_NE ||
           t == TEST_IN || t == TEST_DIVISIBLE || t == TEST_COUNT;
}

static int test_number(struct value_heap *h, enum test t, const struct value *v,
                       const struct value *by, bool *out) {
    if (v->type != VALUE_INT)
        return err_set(h->e, ERR_FORMAT, "%s is asked whether it is even", value_type_name(v));
    if (t == TEST_DIVISIBLE && (by == NULL || by->type != VALUE_INT || by->i == 0))
        return err_set(h->e, ERR_FORMAT, "divisibleby needs a whole number that is not 0");
    int64_t divisor = t == TEST_DIVISIBLE ? by->i : 2;
    *out = divisor == -1 || (v->i % divisor == 0) == (t != TEST_ODD);
    return 0;
}

int ops_test(struct value_heap *h, const char *name, size_t n, const struct value *v,
             const struct ops_arguments *args, bool *out) {
    const struct value *other = ops_argument(args, 0, NULL);
    enum test t = find_test(name, n);
    bool sized = v->type == VALUE_LIST || v->type == VALUE_DICT || v->type == VALUE_STRING;
    TRY(ops_check_arguments(h, name, n, args, takes_argument(t) ? 1 : 0, ""));
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
    if (t == TEST_SAME && v->type == other->type &&
        (v->type == VALUE_LIST || v->type == VALUE_DICT)) {
        *out = v->type == VALUE_LIST ? v->list == other->list : v->dict == other->dict;
        return 0;
    }
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
    (void)args;
    const struct marked *s;
    TRY(as_text(h, v, &s));
    return ops_change_case(h, s, 'T', out);
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

// The arguments are those that transformers gives the filter, in its order; Jinja's own has others.
static int filter_tojson(struct value_heap *h, const struct value *v,
                         const struct ops_arguments *args, struct value *out) {
    static const char *const others[] = {"ensure_ascii", NULL, "separators", "sort_keys"};
    struct marked_builder b = {0};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const struct value *given = others[i] != NULL ? ops_argument(args, i, others[i]) : NULL;
        if (given != NULL && ops_truth(given))
            return err_set(h->e, ERR_FORMAT, "tojson with %s is not understood", others[i]);
    }
    const struct value *indent = ops_argument(args, 1, "indent");
    bool given = indent != NULL && indent->type != VALUE_NONE;
    if (given && indent->type != VALUE_INT)
        return err_set(h->e, ERR_FORMAT, "tojson with an indent that is %s",
                       value_type_name(indent));
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
    if (v->type != VALUE_DICT)
        return err_set(h->e, ERR_FORMAT, "dictsort of %s", value_type_name(v));
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

// "a.b.0": the member a, of it b, of it the first element, as Jinja's filters read such names.
static int attribute_path(struct value_heap *h, const struct value *of, const struct marked *path,
                          struct value *out) {
    *out = *of;
    for (size_t at = 0, n; at <= path->n; at += n + 1) {
        const char *part = path->bytes + at, *dot = memchr(part, '.', path->n - at);
        n = dot != NULL ? (size_t)(dot - part) : path->n - at;
        struct value from = *out, which = value_int(0);
        size_t digits = 0;
        for (; digits < n && part[digits] >= '0' && part[digits] <= '9'; digits++)
            which.i = which.i < INT32_MAX ? 10 * which.i + (part[digits] - '0') : which.i;
        if (n > 0 && digits == n)
            TRY(ops_index(h, &from, &which, out));
        else
            TRY(ops_attribute(h, &from, part, n, out));
    }
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
            TRY(attribute_path(h, &list.list->items[i], name, &part));
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
    TRY(ops_elements(h, v, &list));
    TRY(value_list_new(h, out));
    for (size_t i = 0; i < list.list->n; i++) {
        if (attribute != NULL)
            TRY(attribute_path(h, &list.list->items[i], name, &part));
        else if (marked_equals(name, "map"))
            return err_set(h->e, ERR_FORMAT, "map of map is not understood");
        else
            TRY(ops_filter(h, name->bytes, name->n, &list.list->items[i], &rest, &part));
        TRY(value_list_add(h, out->list, part));
    }
    return 0;
}

struct filter {
    const char *name;
    filter_fn *fn;
    size_t most; // arguments by position
    const char *names;
};

static const struct filter *find_filter(const char *name, size_t n) {
    static const struct filter filters[] = {
        {"trim", filter_trim, 1, "chars"},
        {"upper", filter_upper, 0, ""},
        {"lower", filter_lower, 0, ""},
        {"title", filter_title, 0, ""},
        {"capitalize", filter_capitalize, 0, ""},
        {"replace", filter_replace, 3, "old new count"},
        {"string", filter_string, 0, ""},
        {"length", filter_length, 0, ""},
        {"count", filter_length, 0, ""},
        {"tojson", filter_tojson, 4, "ensure_ascii indent separators sort_keys"},
        {"default", filter_default, 2, "default_value boolean"},
        {"d", filter_default, 2, "default_value boolean"},
        {"list", filter_list, 0, ""},
        {"first", filter_first, 0, ""},
        {"last", filter_last, 0, ""},
        {"reverse", filter_reverse, 0, ""},
        {"join", filter_join, 2, "d attribute"},
        {"items", filter_items, 0, ""},
        {"int", filter_int, 2, "default base"}, // for what is no number
        {"float", filter_float, 1, "default"},
        {"dictsort", filter_dictsort, 0, ""},
        {"abs", filter_abs, 0, ""},
        {"safe", filter_same, 0, ""},
        {"select", filter_select, 2, ""},
        {"reject", filter_reject, 2, ""},
        {"selectattr", filter_selectattr, 3, ""},
        {"rejectattr", filter_rejectattr, 3, ""},
        {"map", filter_map, 1, "attribute"},
    };
    struct marked wanted = {.bytes = name, .n = n};
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (marked_equals(&wanted, filters[i].name))
            return &filters[i];
    return NULL;
}

int ops_filter(struct value_heap *h, const char *name, size_t n, const struct value *v,
               const struct ops_arguments *args, struct value *out) {
    const struct filter *f = find_filter(name, n);
    TRY(value_spend(h, 1));
    if (f == NULL)
        return err_set(h->e, ERR_FORMAT, "the filter %.*s is not understood",
                       (int)(n < 40 ? n : 40), name);
    TRY(ops_check_arguments(h, name, n, args, f->most, f->names));
    return f->fn(h, v, args, out);
}

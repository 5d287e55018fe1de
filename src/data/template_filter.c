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
        return err_set(h->e, ERR_FORMAT, "odd, even and divisibleby expect a whole number, not %s",
                       value_type_name(v));
    if (t == TEST_DIVISIBLE && (by == NULL || by->type != VALUE_INT || by->i == 0))
        return err_set(h->e, ERR_FORMAT, "divisibleby needs a whole number other than 0");
    int64_t divisor = t == TEST_DIVISIBLE ? by->i : 2;
    *out = divisor == -1 || (v->i % divisor == 0) == (t != TEST_ODD);
    return 0;
}

// The type that a test asks for. VALUE_UNDEFINED: the test asks for more than a type.
static const enum value_type types[TEST_COUNT + 1] = {
    [TEST_NONE] = VALUE_NONE,   [TEST_STRING] = VALUE_STRING, [TEST_MAPPING] = VALUE_DICT,
    [TEST_INTEGER] = VALUE_INT, [TEST_FLOAT] = VALUE_FLOAT,   [TEST_BOOLEAN] = VALUE_BOOL,
};

int ops_test(struct value_heap *h, const char *name, size_t n, const struct value *v,
             const struct ops_arguments *args, bool *out) {
    const struct value *other = ops_argument(args, 0, NULL);
    enum test t = find_test(name, n);
    bool sized = v->type == VALUE_LIST || v->type == VALUE_DICT || v->type == VALUE_STRING;
    TRY(ops_check_arguments(h, name, n, args, takes_argument(t) ? 1 : 0, ""));
    if (types[t] != VALUE_UNDEFINED) {
        *out = v->type == types[t];
        return 0;
    }
    switch (t) {
    case TEST_DEFINED:
    case TEST_UNDEFINED:
        *out = (v->type == VALUE_UNDEFINED) == (t == TEST_UNDEFINED);
        return 0;
    case TEST_ITERABLE:
    case TEST_SEQUENCE:
        *out = sized || v->type == VALUE_UNDEFINED;
        return 0;
    case TEST_NUMBER:
        *out = v->type == VALUE_INT || v->type == VALUE_FLOAT || v->type == VALUE_BOOL;
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
    if (t == TEST_SAME) // for true, false, none and small numbers, which Python has only once
        *out = *out && v->type == other->type;
    *out = *out == (t != TEST_NE);
    return 0;
}

// ---------------------------------------------------------------- filters

struct filter_call {
    struct value_heap *h;
    const char *name;
    const struct value *v;
    const struct ops_arguments *args;
    struct value *out;
};
typedef int filter_fn(const struct filter_call *c);

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

// Runs a filter that is a method of strings.
static int string_filter(struct value_heap *h, const char *method, const struct value *v,
                         const struct ops_arguments *args, struct value *out) {
    const struct marked *s;
    TRY(as_text(h, v, &s));
    return ops_string_method(h, s, method, strlen(method), args, out);
}
static int filter_title(const struct filter_call *c) {
    const struct marked *s;
    TRY(as_text(c->h, c->v, &s));
    return ops_change_case(c->h, s, 'T', c->out);
}

static int filter_string(const struct filter_call *c) {
    const struct marked *s;
    TRY(as_text(c->h, c->v, &s));
    return value_slice(c->h, s, 0, s->n, c->out);
}

static int filter_length(const struct filter_call *c) {
    size_t n;
    TRY(ops_length(c->h, c->v, &n));
    *c->out = value_int((int64_t)n);
    return 0;
}

// The arguments are those of transformers' filter, in its order. Jinja's own filter has others.
static int filter_tojson(const struct filter_call *c) {
    static const char *const others[] = {"ensure_ascii", NULL, "separators", "sort_keys"};
    struct marked_builder b = {0};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const struct value *given = others[i] != NULL ? ops_argument(c->args, i, others[i]) : NULL;
        if (given != NULL && ops_truth(given))
            return err_set(c->h->e, ERR_FORMAT, "tojson with %s is not understood", others[i]);
    }
    const struct value *indent = ops_argument(c->args, 1, "indent");
    bool given = indent != NULL && indent->type != VALUE_NONE;
    if (given && indent->type != VALUE_INT)
        return err_set(c->h->e, ERR_FORMAT, "tojson with an indent that is %s",
                       value_type_name(indent));
    if (given && (indent->i < 0 || indent->i > 16))
        return err_set(c->h->e, ERR_FORMAT, "tojson with an indent of %lld", (long long)indent->i);
    TRY(value_write_json(c->h, c->v, given ? (int)indent->i : -1, &b));
    return marked_finish(c->h, &b, c->out);
}

static int filter_default(const struct filter_call *c) {
    const struct value *other = ops_argument(c->args, 0, "default_value"),
                       *falsy = ops_argument(c->args, 1, "boolean");
    bool missing =
        c->v->type == VALUE_UNDEFINED || (falsy != NULL && ops_truth(falsy) && !ops_truth(c->v));
    if (!missing)
        *c->out = *c->v;
    else if (other != NULL)
        *c->out = *other;
    else
        return value_string(c->h, "", 0, ORIGIN_TEMPLATE, c->out);
    return 0;
}

static int filter_list(const struct filter_call *c) {
    return ops_elements(c->h, c->v, c->out);
}

// first or last
static int filter_edge(const struct filter_call *c) {
    struct value list;
    TRY(ops_elements(c->h, c->v, &list));
    size_t at = c->name[0] == 'l' ? list.list->n - 1 : 0;
    *c->out = list.list->n == 0 ? value_undefined("it") : list.list->items[at];
    return 0;
}

static int filter_reverse(const struct filter_call *c) {
    struct value back = value_int(-1);
    return ops_slice(c->h, c->v, NULL, NULL, &back, c->out);
}

static int filter_join(const struct filter_call *c) {
    const struct value *separator = ops_argument(c->args, 0, "d");
    struct marked nothing = {.bytes = ""};
    if (ops_argument(c->args, 1, "attribute") != NULL)
        return err_set(c->h->e, ERR_FORMAT, "join with attribute is not understood");
    if (separator != NULL && separator->type != VALUE_STRING)
        return err_set(c->h->e, ERR_FORMAT, "join with %s", value_type_name(separator));
    struct ops_arguments list = {.items = {*c->v}, .n = 1, .n_positional = 1};
    return ops_string_method(c->h, separator != NULL ? separator->s : &nothing, "join", 4, &list,
                             c->out);
}

static int filter_items(const struct filter_call *c) {
    if (c->v->type == VALUE_UNDEFINED)
        return value_list_new(c->h, c->out);
    if (c->v->type != VALUE_DICT)
        return err_set(c->h->e, ERR_FORMAT, "%s has no items", value_type_name(c->v));
    return ops_method(c->h, c->v, "items", 5, c->args, c->out);
}

static int filter_int(const struct filter_call *c) {
    *c->out = value_int(c->v->type == VALUE_INT ? c->v->i : c->v->type == VALUE_BOOL ? c->v->b : 0);
    if (c->v->type == VALUE_FLOAT && fabs(c->v->f) < 9e15)
        c->out->i = (int64_t)c->v->f;
    else if (c->v->type != VALUE_INT && c->v->type != VALUE_BOOL)
        return err_set(c->h->e, ERR_FORMAT, "int of %s is not understood", value_type_name(c->v));
    return 0;
}

static int filter_float(const struct filter_call *c) {
    if (c->v->type != VALUE_INT && c->v->type != VALUE_FLOAT)
        return err_set(c->h->e, ERR_FORMAT, "float of %s is not understood", value_type_name(c->v));
    *c->out = (struct value){.type = VALUE_FLOAT,
                             .f = c->v->type == VALUE_INT ? (double)c->v->i : c->v->f};
    return 0;
}

// Compares without regard to case, as Jinja does.
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

static int filter_dictsort(const struct filter_call *c) {
    if (c->v->type != VALUE_DICT)
        return err_set(c->h->e, ERR_FORMAT, "dictsort of %s", value_type_name(c->v));
    TRY(ops_method(c->h, c->v, "items", 5, c->args, c->out));
    struct value *items = c->out->list->items;
    // There are few members. Insertion keeps equal names in order.
    for (size_t i = 1; i < c->out->list->n; i++)
        for (size_t k = i;
             k > 0 && compare_names(items[k - 1].list->items[0].s, items[k].list->items[0].s) > 0;
             k--) {
            TRY(value_spend(c->h, 1));
            struct value other = items[k];
            items[k] = items[k - 1];
            items[k - 1] = other;
        }
    return 0;
}

static int filter_abs(const struct filter_call *c) {
    if (c->v->type != VALUE_INT)
        return err_set(c->h->e, ERR_FORMAT, "abs of %s is not understood", value_type_name(c->v));
    if (c->v->i == INT64_MIN)
        return err_set(c->h->e, ERR_FORMAT, "a number is too large (more than 64 bits)");
    *c->out = value_int(c->v->i < 0 ? -c->v->i : c->v->i);
    return 0;
}

// For safe, which changes nothing because nothing is escaped here.
static int filter_same(const struct filter_call *c) {
    *c->out = *c->v;
    return 0;
}

// Reads an argument that names an attribute or a test.
static int name_argument(struct value_heap *h, const struct value *v, const struct marked **out) {
    *out = NULL;
    if (v == NULL || v->type != VALUE_STRING)
        return err_set(h->e, ERR_FORMAT, "the name of an attribute or test is expected");
    *out = v->s;
    return 0;
}

// Follows a path as Jinja's filters do. "a.b.0": the member a, its member b, the first element of
// that.
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

// select, reject, selectattr, rejectattr: keep or drop elements that pass a test, or are true. With
// attr, the test applies to an attribute of the element.
static int filter_choose(const struct filter_call *c) {
    const bool keep = c->name[0] == 's', attribute = strlen(c->name) > strlen("select");
    struct value list, part;
    const struct marked *name, *test;
    const struct value *by = ops_argument(c->args, attribute ? 1 : 0, NULL),
                       *other = ops_argument(c->args, attribute ? 2 : 1, NULL);
    struct ops_arguments rest = {0};
    if (other != NULL) {
        rest.items[0] = *other;
        rest.n = rest.n_positional = 1;
    }
    TRY(ops_elements(c->h, c->v, &list));
    TRY(value_list_new(c->h, c->out));
    for (size_t i = 0; i < list.list->n; i++) {
        part = list.list->items[i];
        if (attribute) {
            TRY(name_argument(c->h, ops_argument(c->args, 0, NULL), &name));
            TRY(attribute_path(c->h, &list.list->items[i], name, &part));
        }
        bool yes = ops_truth(&part);
        if (by != NULL) {
            TRY(name_argument(c->h, by, &test));
            TRY(ops_test(c->h, test->bytes, test->n, &part, &rest, &yes));
        }
        if (yes == keep)
            TRY(value_list_add(c->h, c->out->list, list.list->items[i]));
    }
    return 0;
}

// map(attribute="x") or map("trim").
static int filter_map(const struct filter_call *c) {
    const struct value *attribute = ops_argument(c->args, OPS_MAX_ARGUMENTS, "attribute");
    const struct marked *name;
    struct value list, part;
    struct ops_arguments rest = {0};
    TRY(name_argument(c->h, attribute != NULL ? attribute : ops_argument(c->args, 0, NULL), &name));
    TRY(ops_elements(c->h, c->v, &list));
    TRY(value_list_new(c->h, c->out));
    for (size_t i = 0; i < list.list->n; i++) {
        if (attribute != NULL)
            TRY(attribute_path(c->h, &list.list->items[i], name, &part));
        else if (marked_equals(name, "map"))
            return err_set(c->h->e, ERR_FORMAT, "map of map is not understood");
        else
            TRY(ops_filter(c->h, name->bytes, name->n, &list.list->items[i], &rest, &part));
        TRY(value_list_add(c->h, c->out->list, part));
    }
    return 0;
}

struct filter {
    const char *name;
    filter_fn *fn; // NULL: a method of strings
    size_t most;   // positional arguments
    const char *names;
};

static const struct filter *find_filter(const char *name, size_t n) {
    static const struct filter filters[] = {
        {"trim", NULL, 1, "chars"},
        {"upper", NULL, 0, ""},
        {"lower", NULL, 0, ""},
        {"title", filter_title, 0, ""},
        {"capitalize", NULL, 0, ""},
        {"replace", NULL, 3, "old new count"},
        {"string", filter_string, 0, ""},
        {"length", filter_length, 0, ""},
        {"count", filter_length, 0, ""},
        {"tojson", filter_tojson, 4, "ensure_ascii indent separators sort_keys"},
        {"default", filter_default, 2, "default_value boolean"},
        {"d", filter_default, 2, "default_value boolean"},
        {"list", filter_list, 0, ""},
        {"first", filter_edge, 0, ""},
        {"last", filter_edge, 0, ""},
        {"reverse", filter_reverse, 0, ""},
        {"join", filter_join, 2, "d attribute"},
        {"items", filter_items, 0, ""},
        {"int", filter_int, 2, "default base"}, // both only for non-numbers
        {"float", filter_float, 1, "default"},
        {"dictsort", filter_dictsort, 0, ""},
        {"abs", filter_abs, 0, ""},
        {"safe", filter_same, 0, ""},
        {"select", filter_choose, 2, ""},
        {"reject", filter_choose, 2, ""},
        {"selectattr", filter_choose, 3, ""},
        {"rejectattr", filter_choose, 3, ""},
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
    if (f->fn == NULL) // trim is strip in Python; the other names are the same
        return string_filter(h, f->name[0] == 't' ? "strip" : f->name, v, args, out);
    return f->fn(&(struct filter_call){h, f->name, v, args, out});
}

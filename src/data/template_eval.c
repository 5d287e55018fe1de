// template_eval.c - evaluates expressions of chat templates.
#include "data/template_run.h"

#include <stdio.h>
#include <string.h>

typedef struct template_node node;
enum { RANGE_MAX = 100000 };

static bool named(const node *n, const char *name) {
    return n->name_bytes == strlen(name) && memcmp(n->name, name, n->name_bytes) == 0;
}

// ---------------------------------------------------------------- calls

static int read_arguments(struct template_run *r, const node *call, struct ops_arguments *out) {
    *out = (struct ops_arguments){0};
    if (call->n_items > OPS_MAX_ARGUMENTS)
        return err_set(r->h->e, ERR_FORMAT, "more than %d arguments", OPS_MAX_ARGUMENTS);
    for (size_t i = 0; i < call->n_items; i++) {
        const node *item = call->items[i];
        bool has_name = item->kind == NODE_KEYWORD;
        if (!has_name && out->n_positional < out->n)
            return err_set(r->h->e, ERR_FORMAT, "a positional argument follows a named one");
        TRY(run_eval(r, has_name ? item->a : item, &out->items[i]));
        out->names[i] = has_name ? item->name : NULL;
        out->name_bytes[i] = has_name ? item->name_bytes : 0;
        out->n++;
        out->n_positional += !has_name;
    }
    return 0;
}

static int call_range(struct value_heap *h, const struct ops_arguments *a, struct value *out) {
    int64_t v[3] = {0, 0, 1};
    for (size_t i = 0; i < a->n; i++) {
        if (i >= 3 || a->items[i].type != VALUE_INT)
            return err_set(h->e, ERR_FORMAT, "range: up to three numbers are expected");
        v[i] = a->items[i].i;
    }
    if (a->n == 1)
        v[1] = v[0], v[0] = 0;
    if (a->n == 0 || v[2] == 0)
        return err_set(h->e, ERR_FORMAT, "range: an end, and a step other than 0, are expected");
    TRY(value_list_new(h, out));
    for (int64_t i = v[0]; v[2] > 0 ? i < v[1] : i > v[1];) {
        TRY(value_spend(h, 1));
        if (out->list->n == RANGE_MAX)
            return err_set(h->e, ERR_FORMAT, "range: more than %d numbers", RANGE_MAX);
        TRY(value_list_add(h, out->list, value_int(i)));
        if (__builtin_add_overflow(i, v[2], &i))
            break;
    }
    return 0;
}

// Calls namespace(x=1) or dict(x=1). Both may begin with another dict.
static int call_dict(struct value_heap *h, const struct ops_arguments *a, bool is_namespace,
                     struct value *out) {
    TRY(value_dict_new(h, out));
    out->dict->is_namespace = is_namespace;
    for (size_t i = 0; i < a->n; i++) {
        struct value key;
        if (a->names[i] != NULL) {
            TRY(value_string(h, a->names[i], a->name_bytes[i], ORIGIN_TEMPLATE, &key));
            TRY(value_dict_set(h, out->dict, key.s, a->items[i]));
        } else if (a->items[i].type == VALUE_DICT) {
            const struct value_dict *from = a->items[i].dict;
            for (size_t k = 0; k < from->n; k++)
                TRY(value_dict_set(h, out->dict, from->pairs[k].key, from->pairs[k].value));
        } else {
            return err_set(h->e, ERR_FORMAT, "cannot make an object from %s",
                           value_type_name(&a->items[i]));
        }
    }
    return 0;
}

static int call_raise(struct value_heap *h, const struct ops_arguments *a) {
    const struct value *v = ops_argument(a, 0, "message");
    bool text = v != NULL && v->type == VALUE_STRING;
    return err_set(h->e, ERR_FORMAT, "the template refuses this conversation: %.*s",
                   text ? (int)(v->s->n < 300 ? v->s->n : 300) : 0, text ? v->s->bytes : "");
}

// The date is constant, so that the same data gives the same tokens on every day.
static int call_date(struct value_heap *h, const struct ops_arguments *a, struct value *out) {
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    const struct value *v = ops_argument(a, 0, "format");
    struct marked_builder b = {0};
    const char *month = months[TEMPLATE_DATE_MONTH - 1];
    if (v == NULL || v->type != VALUE_STRING)
        return err_set(h->e, ERR_FORMAT, "strftime_now: a format is expected");
    for (size_t i = 0; i < v->s->n; i++) {
        char text[32] = {v->s->bytes[i], '\0'};
        const uint32_t origin = marked_span_at(v->s, i).origin;
        char letter = i + 1 < v->s->n ? v->s->bytes[i + 1] : '\0';
        if (text[0] == '%') {
            i++;
            if (letter == 'd')
                snprintf(text, sizeof text, "%02d", TEMPLATE_DATE_DAY);
            else if (letter == 'm')
                snprintf(text, sizeof text, "%02d", TEMPLATE_DATE_MONTH);
            else if (letter == 'Y')
                snprintf(text, sizeof text, "%d", TEMPLATE_DATE_YEAR);
            else if (letter == 'B' || letter == 'b')
                snprintf(text, sizeof text, letter == 'B' ? "%s" : "%.3s", month);
            else
                return err_set(h->e, ERR_FORMAT, "strftime_now: %%%c is not understood", letter);
        }
        TRY(marked_add_bytes(h, &b, text, strlen(text), origin));
    }
    return marked_finish(h, &b, out);
}

static int bind_parameters(struct template_run *r, const node *macro,
                           const struct ops_arguments *a) {
    size_t used = 0;
    for (size_t i = 0; i < macro->n_items; i++) {
        const node *parameter = macro->items[i];
        struct value v = value_undefined(parameter->name);
        const struct value *given = NULL;
        for (size_t k = a->n_positional; k < a->n; k++)
            if (a->name_bytes[k] == parameter->name_bytes &&
                memcmp(a->names[k], parameter->name, parameter->name_bytes) == 0)
                given = &a->items[k];
        if (i < a->n_positional)
            given = &a->items[i];
        used += given != NULL;
        if (given != NULL)
            v = *given;
        else if (parameter->a != NULL)
            TRY(run_eval(r, parameter->a, &v));
        TRY(run_set(r, parameter->name, parameter->name_bytes, v));
    }
    return used == a->n ? 0
                        : err_set(r->h->e, ERR_FORMAT,
                                  "a macro is called with an argument that it does not have");
}

static int call_macro(struct template_run *r, const node *macro, const struct ops_arguments *a,
                      struct value *out) {
    struct run_scope own = {.parent = r->globals}, *before = r->scope;
    r->scope = &own;
    int rc = bind_parameters(r, macro, a);
    if (rc == 0)
        rc = run_capture(r, macro->a, out);
    r->scope = before;
    return rc;
}

static int call_function(struct template_run *r, const node *n, const struct ops_arguments *a,
                         struct value *out) {
    if (named(n, "range"))
        return call_range(r->h, a, out);
    if (named(n, "namespace") || named(n, "dict"))
        return call_dict(r->h, a, named(n, "namespace"), out);
    if (named(n, "raise_exception"))
        return call_raise(r->h, a);
    if (named(n, "strftime_now"))
        return call_date(r->h, a, out);
    return err_set(r->h->e, ERR_FORMAT, "the function %.*s is not understood",
                   (int)(n->name_bytes < 40 ? n->name_bytes : 40), n->name);
}

static int eval_call(struct template_run *r, const node *n, struct value *out) {
    struct ops_arguments a;
    struct value what;
    if (n->a->kind == NODE_ATTR) {
        TRY(run_eval(r, n->a->a, &what));
        TRY(read_arguments(r, n, &a));
        return ops_method(r->h, &what, n->a->name, n->a->name_bytes, &a, out);
    }
    TRY(read_arguments(r, n, &a));
    if (n->a->kind == NODE_NAME) {
        const struct value *found = run_find(r, n->a->name, n->a->name_bytes);
        if (found == NULL)
            return call_function(r, n->a, &a, out);
        if (found->type == VALUE_MACRO)
            return call_macro(r, found->macro, &a, out);
    }
    return err_set(r->h->e, ERR_FORMAT, "calls a value that is not a function");
}

// ---------------------------------------------------------------- operators

static int add_lists(struct value_heap *h, const struct value *a, const struct value *b,
                     struct value *out) {
    TRY(value_list_new(h, out));
    TRY(value_spend(h, 1 + a->list->n + b->list->n));
    for (size_t i = 0; i < a->list->n; i++)
        TRY(value_list_add(h, out->list, a->list->items[i]));
    for (size_t i = 0; i < b->list->n; i++)
        TRY(value_list_add(h, out->list, b->list->items[i]));
    return 0;
}

static int repeat(struct value_heap *h, const struct marked *s, int64_t times, struct value *out) {
    struct marked_builder b = {0};
    for (int64_t i = 0; i < times && s->n > 0; i++)
        TRY(marked_add(h, &b, s));
    return marked_finish(h, &b, out);
}

static int64_t floor_divide(int64_t a, int64_t b) {
    int64_t q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

static int integers(struct value_heap *h, char op, int64_t a, int64_t b, struct value *out) {
    int64_t v = 0;
    bool bad = false;
    if ((op == 'f' || op == '%') && b == 0)
        return err_set(h->e, ERR_FORMAT, "divides by zero");
    if (op == 'p')
        return err_set(h->e, ERR_FORMAT, "a power is computed, which is not understood");
    if (op == '+')
        bad = __builtin_add_overflow(a, b, &v);
    else if (op == '-')
        bad = __builtin_sub_overflow(a, b, &v);
    else if (op == '*')
        bad = __builtin_mul_overflow(a, b, &v);
    else if (b == -1) // the smallest number has no opposite
        bad = op == 'f' && __builtin_sub_overflow(0, a, &v);
    else if (op == 'f')
        v = floor_divide(a, b);
    else
        v = a - floor_divide(a, b) * b;
    if (bad)
        return err_set(h->e, ERR_FORMAT, "a number is too large (more than 64 bits)");
    *out = value_int(v);
    return 0;
}

static int floats(struct value_heap *h, char op, double a, double b, struct value *out) {
    *out = (struct value){.type = VALUE_FLOAT};
    if (op == '+')
        out->f = a + b;
    else if (op == '-')
        out->f = a - b;
    else if (op == '*')
        out->f = a * b;
    else if (op == '/' && b != 0)
        out->f = a / b;
    else if (op != 'p' && b == 0)
        return err_set(h->e, ERR_FORMAT, "divides by zero");
    else
        return err_set(h->e, ERR_FORMAT, "an operation on numbers is not understood");
    return 0;
}

static bool is_number(const struct value *v) {
    return v->type == VALUE_INT || v->type == VALUE_FLOAT;
}

static int eval_binary(struct template_run *r, const node *n, struct value *out) {
    struct value a, b;
    TRY(run_eval(r, n->a, &a));
    TRY(run_eval(r, n->b, &b));
    if (n->op == '~' || (n->op == '+' && a.type == VALUE_STRING && b.type == VALUE_STRING))
        return ops_concatenate(r->h, &a, &b, out);
    if (n->op == '+' && a.type == VALUE_LIST && b.type == VALUE_LIST)
        return add_lists(r->h, &a, &b, out);
    if (n->op == '*' && a.type == VALUE_STRING && b.type == VALUE_INT)
        return repeat(r->h, a.s, b.i, out);
    if (a.type == VALUE_INT && b.type == VALUE_INT && n->op != '/')
        return integers(r->h, n->op, a.i, b.i, out);
    if (is_number(&a) && is_number(&b))
        return floats(r->h, n->op, a.type == VALUE_INT ? (double)a.i : a.f,
                      b.type == VALUE_INT ? (double)b.i : b.f, out);
    return err_set(r->h->e, ERR_FORMAT, "cannot compute '%c' of %s and %s",
                   n->op == 'f' ? '/' : n->op, value_type_name(&a), value_type_name(&b));
}

static int compare(struct value_heap *h, const node *op, const struct value *a,
                   const struct value *b, bool *out) {
    int order;
    if (named(op, "==") || named(op, "!=")) {
        TRY(ops_equal(h, a, b, out));
        *out = *out == (op->name[0] == '=');
        return 0;
    }
    if (named(op, "in") || named(op, "not in")) {
        TRY(ops_contains(h, b, a, out));
        *out = *out == (op->name[0] == 'i');
        return 0;
    }
    TRY(ops_order(h, a, b, &order));
    bool or_equal = op->name_bytes == 2;
    *out = op->name[0] == '<' ? order < 0 || (or_equal && order == 0)
                              : order > 0 || (or_equal && order == 0);
    return 0;
}

// a < b < c holds when each pair does.
static int eval_compare(struct template_run *r, const node *n, struct value *out) {
    struct value left, right;
    bool holds = true;
    TRY(run_eval(r, n->a, &left));
    for (size_t i = 0; i < n->n_items && holds; i++) {
        TRY(run_eval(r, n->items[i]->a, &right));
        TRY(compare(r->h, n->items[i], &left, &right, &holds));
        left = right;
    }
    *out = value_bool(holds);
    return 0;
}

static int eval_negate(struct template_run *r, const node *n, struct value *out) {
    TRY(run_eval(r, n->a, out));
    if (out->type == VALUE_FLOAT)
        out->f = -out->f;
    else if (out->type == VALUE_INT && out->i != INT64_MIN)
        out->i = -out->i;
    else if (out->type == VALUE_INT)
        return err_set(r->h->e, ERR_FORMAT, "a number is too large (more than 64 bits)");
    else
        return err_set(r->h->e, ERR_FORMAT, "cannot negate %s", value_type_name(out));
    return 0;
}

// ---------------------------------------------------------------- parts

static int loop_member(struct template_run *r, const struct template_loop *l, const node *n,
                       struct value *out) {
    int64_t i = (int64_t)l->index, count = (int64_t)l->n;
    if (named(n, "index") || named(n, "index0"))
        *out = value_int(i + (named(n, "index") ? 1 : 0));
    else if (named(n, "revindex") || named(n, "revindex0"))
        *out = value_int(count - i - (named(n, "revindex") ? 0 : 1));
    else if (named(n, "first") || named(n, "last"))
        *out = value_bool(named(n, "first") ? i == 0 : i == count - 1);
    else if (named(n, "length"))
        *out = value_int(count);
    else if (named(n, "previtem"))
        *out = i > 0 ? l->items[i - 1] : value_undefined("previtem");
    else if (named(n, "nextitem"))
        *out = i + 1 < count ? l->items[i + 1] : value_undefined("nextitem");
    else
        return err_set(r->h->e, ERR_FORMAT, "loop.%.*s is not understood",
                       (int)(n->name_bytes < 40 ? n->name_bytes : 40), n->name);
    return 0;
}

// In Python d.items is a method even if d has a member "items". A template that means the member
// would be wrong there, too.
static bool is_dict_method(const node *n) {
    static const char *const names[] = {"items",      "keys",    "values",  "get",
                                        "pop",        "update",  "copy",    "clear",
                                        "setdefault", "popitem", "fromkeys"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (named(n, names[i]))
            return true;
    return false;
}

static int eval_attribute(struct template_run *r, const node *n, struct value *out) {
    struct value of;
    TRY(run_eval(r, n->a, &of));
    if (of.type == VALUE_LOOP)
        return loop_member(r, of.loop, n, out);
    if (of.type == VALUE_DICT && !of.dict->is_namespace && is_dict_method(n))
        return err_set(r->h->e, ERR_FORMAT, "a method is used without a call");
    TRY(ops_attribute(r->h, &of, n->name, n->name_bytes, out));
    if (out->type == VALUE_UNDEFINED)
        out->missing = n->name;
    return 0;
}

static int eval_index(struct template_run *r, const node *n, struct value *out) {
    struct value of, which;
    TRY(run_eval(r, n->a, &of));
    TRY(run_eval(r, n->b, &which));
    return ops_index(r->h, &of, &which, out);
}

static int eval_slice(struct template_run *r, const node *n, struct value *out) {
    struct value of, from = value_none(), to = from, step = from;
    TRY(run_eval(r, n->a, &of));
    if (n->b != NULL)
        TRY(run_eval(r, n->b, &from));
    if (n->c != NULL)
        TRY(run_eval(r, n->c, &to));
    if (n->d != NULL)
        TRY(run_eval(r, n->d, &step));
    return ops_slice(r->h, &of, &from, &to, &step, out);
}

static int eval_list(struct template_run *r, const node *n, struct value *out) {
    TRY(value_list_new(r->h, out));
    for (size_t i = 0; i < n->n_items; i++) {
        struct value item;
        TRY(run_eval(r, n->items[i], &item));
        TRY(value_list_add(r->h, out->list, item));
    }
    return 0;
}

static int eval_dict(struct template_run *r, const node *n, struct value *out) {
    TRY(value_dict_new(r->h, out));
    for (size_t i = 0; i + 1 < n->n_items; i += 2) {
        struct value key, v;
        TRY(run_eval(r, n->items[i], &key));
        TRY(run_eval(r, n->items[i + 1], &v));
        if (key.type != VALUE_STRING)
            return err_set(r->h->e, ERR_FORMAT, "%s is the name of a member; a string is expected",
                           value_type_name(&key));
        TRY(value_dict_set(r->h, out->dict, key.s, v));
    }
    return 0;
}

static int eval_const(struct template_run *r, const node *n, struct value *out) {
    (void)r;
    *out = n->constant;
    return 0;
}

static int eval_name(struct template_run *r, const node *n, struct value *out) {
    const struct value *found = run_find(r, n->name, n->name_bytes);
    *out = found != NULL ? *found : value_undefined(n->name);
    return 0;
}

// ---------------------------------------------------------------- all expressions

static int eval_filter(struct template_run *r, const node *n, struct value *out) {
    struct value v;
    struct ops_arguments a;
    bool yes;
    TRY(run_eval(r, n->a, &v));
    TRY(read_arguments(r, n, &a));
    if (n->kind == NODE_FILTER)
        return ops_filter(r->h, n->name, n->name_bytes, &v, &a, out);
    TRY(ops_test(r->h, n->name, n->name_bytes, &v, &a, &yes));
    *out = value_bool(yes);
    return 0;
}

static int eval_logic(struct template_run *r, const node *n, struct value *out) {
    if (n->kind == NODE_CHOICE) {
        TRY(run_eval(r, n->b, out));
        const node *chosen = ops_truth(out) ? n->a : n->c;
        *out = value_undefined("it");
        return chosen != NULL ? run_eval(r, chosen, out) : 0;
    }
    TRY(run_eval(r, n->a, out));
    if (n->kind == NODE_NOT)
        *out = value_bool(!ops_truth(out));
    else if (ops_truth(out) == (n->kind == NODE_AND))
        return run_eval(r, n->b, out);
    return 0;
}

typedef int eval_fn(struct template_run *r, const node *n, struct value *out);
static eval_fn *const evals[NODE_KINDS] = {
    [NODE_CONST] = eval_const,   [NODE_NAME] = eval_name,       [NODE_LIST] = eval_list,
    [NODE_DICT] = eval_dict,     [NODE_ATTR] = eval_attribute,  [NODE_INDEX] = eval_index,
    [NODE_SLICE] = eval_slice,   [NODE_CALL] = eval_call,       [NODE_FILTER] = eval_filter,
    [NODE_TEST] = eval_filter,   [NODE_NOT] = eval_logic,       [NODE_AND] = eval_logic,
    [NODE_OR] = eval_logic,      [NODE_CHOICE] = eval_logic,    [NODE_NEGATE] = eval_negate,
    [NODE_BINARY] = eval_binary, [NODE_COMPARE] = eval_compare,
};

int run_eval(struct template_run *r, const struct template_node *n, struct value *out) {
    *out = value_none();
    TRY(run_enter(r, n));
    if (evals[n->kind] == NULL)
        return err_set(r->h->e, ERR_INTERNAL, "a statement where an expression should be");
    TRY(evals[n->kind](r, n, out));
    r->depth--;
    return 0;
}

// template_parse.c - turns the tokens of a chat template into a tree.
//
// Recursive descent, with the precedences of Jinja. Nesting is counted: a template nested deeper
// than DEPTH_MAX is refused before it can exhaust the stack. Chains (a + b + c, a.b.c, elif) are
// loops here. template.c counts the depth of the tree they make when it runs.
#include "data/template_parse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 100 };

struct parser {
    const struct template_token *at;
    struct region *r;
    int depth, loops;
    bool in_macro;
    bool *generation;
    struct err *e;
};
typedef struct template_node node;

// ---------------------------------------------------------------- tokens and nodes

static int refuse(struct parser *p, const char *what) {
    const struct template_token *t = p->at;
    if (t->kind == TOKEN_END)
        return err_set(p->e, ERR_UNSUPPORTED, "line %u: %s at the end of the template", t->line,
                       what);
    return err_set(p->e, ERR_UNSUPPORTED, "line %u: %s at \"%.*s\"", t->line, what,
                   (int)(t->n < 40 ? t->n : 40), t->bytes);
}

static bool token_is(const struct template_token *t, enum template_token_kind kind,
                     const char *text) {
    return t->kind == kind && t->n == strlen(text) && memcmp(t->bytes, text, t->n) == 0;
}
static bool at_name(const struct parser *p, const char *name) {
    return token_is(p->at, TOKEN_NAME, name);
}
static bool at_op(const struct parser *p, const char *op) {
    return token_is(p->at, TOKEN_OPERATOR, op);
}
static bool take_name(struct parser *p, const char *name) {
    bool yes = at_name(p, name);
    p->at += yes;
    return yes;
}
static bool take_op(struct parser *p, const char *op) {
    bool yes = at_op(p, op);
    p->at += yes;
    return yes;
}
static int expect_op(struct parser *p, const char *op) {
    char what[32] = "expected ";
    strcat(what, op);
    return take_op(p, op) ? 0 : refuse(p, what);
}
static int expect(struct parser *p, enum template_token_kind kind, const char *what) {
    if (p->at->kind != kind)
        return refuse(p, what);
    p->at++;
    return 0;
}

static int make(struct parser *p, enum template_node_kind kind, node **out) {
    node *n = *out = region_alloc(p->r, sizeof *n);
    if (n == NULL)
        return err_set(p->e, ERR_MEMORY, "no memory for a chat template");
    n->kind = kind;
    n->line = p->at->line;
    return 0;
}

static int add_item(struct parser *p, node *list, node *item) {
    node **items =
        region_grow(p->r, list->items, list->n_items, &list->item_capacity, sizeof *items);
    if (items == NULL)
        return err_set(p->e, ERR_MEMORY, "no memory for a chat template");
    list->items = items;
    items[list->n_items++] = item;
    return 0;
}

static int make_of(struct parser *p, enum template_node_kind kind, node *a, node *b, node **out) {
    TRY(make(p, kind, out));
    (*out)->a = a;
    (*out)->b = b;
    return 0;
}

// Makes a node with the name at the cursor and consumes the name.
static int make_named(struct parser *p, enum template_node_kind kind, node **out) {
    *out = NULL;
    if (p->at->kind != TOKEN_NAME)
        return refuse(p, "expected a name");
    TRY(make(p, kind, out));
    (*out)->name = p->at->bytes;
    (*out)->name_bytes = p->at->n;
    p->at++;
    return 0;
}

static int parse_expression(struct parser *p, node **out);
static int parse_unary(struct parser *p, bool filters, node **out);
static int parse_or(struct parser *p, node **out);
static int parse_body(struct parser *p, const char *const *ends, node **out);

static int deeper(struct parser *p) {
    if (++p->depth > DEPTH_MAX)
        return refuse(p, "nested too deep");
    return 0;
}

// ---------------------------------------------------------------- literals

static int make_const(struct parser *p, struct value v, node **out) {
    TRY(make(p, NODE_CONST, out));
    (*out)->constant = v;
    return 0;
}

static int parse_number(struct parser *p, node **out) {
    char text[40];
    const struct template_token *t = p->at;
    if (t->n >= sizeof text)
        return refuse(p, "a number is too long");
    memcpy(text, t->bytes, t->n);
    text[t->n] = '\0';
    errno = 0;
    struct value v = {.type = VALUE_FLOAT};
    if (t->kind == TOKEN_INT)
        v = value_int(strtoll(text, NULL, 10));
    else
        v.f = strtod(text, NULL);
    if (errno != 0)
        return refuse(p, "a number is too large");
    TRY(make_const(p, v, out));
    p->at++;
    return 0;
}

// Adjacent strings are joined.
static int parse_string(struct parser *p, node **out) {
    size_t n = 0;
    for (const struct template_token *t = p->at; t->kind == TOKEN_STRING; t++)
        n += t->n;
    char *text = region_alloc(p->r, n + 1);
    struct marked *s = region_alloc(p->r, sizeof *s);
    if (text == NULL || s == NULL)
        return err_set(p->e, ERR_MEMORY, "no memory for a chat template");
    s->bytes = text;
    for (; p->at->kind == TOKEN_STRING; p->at++) {
        memcpy(text + s->n, p->at->bytes, p->at->n);
        s->n += p->at->n;
    }
    return make_const(p, (struct value){.type = VALUE_STRING, .s = s}, out);
}

// Parses elements up to `close`; the opening bracket was consumed.
static int parse_elements(struct parser *p, const char *close, node *list, bool *comma) {
    while (!take_op(p, close)) {
        node *item;
        TRY(parse_expression(p, &item));
        TRY(add_item(p, list, item));
        if (take_op(p, close))
            return 0;
        TRY(expect_op(p, ","));
        *comma = true;
    }
    return 0;
}

static int parse_list(struct parser *p, node **out) {
    bool comma = false;
    TRY(make(p, NODE_LIST, out));
    return parse_elements(p, "]", *out, &comma);
}

// (x) is x; (x, y), (x,) and () are tuples, which are lists here.
static int parse_parenthesis(struct parser *p, node **out) {
    bool comma = false;
    TRY(make(p, NODE_LIST, out));
    TRY(parse_elements(p, ")", *out, &comma));
    if ((*out)->n_items == 1 && !comma)
        *out = (*out)->items[0];
    return 0;
}

static int parse_dict(struct parser *p, node **out) {
    TRY(make(p, NODE_DICT, out));
    while (!take_op(p, "}")) {
        node *key, *value;
        TRY(parse_expression(p, &key));
        TRY(expect_op(p, ":"));
        TRY(parse_expression(p, &value));
        TRY(add_item(p, *out, key));
        TRY(add_item(p, *out, value));
        if (take_op(p, "}"))
            return 0;
        TRY(expect_op(p, ","));
    }
    return 0;
}

static int parse_primary(struct parser *p, node **out) {
    static const struct {
        const char *name;
        struct value v;
    } words[] = {
        {"true", {.type = VALUE_BOOL, .b = true}},
        {"True", {.type = VALUE_BOOL, .b = true}},
        {"false", {.type = VALUE_BOOL, .b = false}},
        {"False", {.type = VALUE_BOOL, .b = false}},
        {"none", {.type = VALUE_NONE}},
        {"None", {.type = VALUE_NONE}},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (take_name(p, words[i].name))
            return make_const(p, words[i].v, out);
    if (p->at->kind == TOKEN_NAME)
        return make_named(p, NODE_NAME, out);
    if (p->at->kind == TOKEN_STRING)
        return parse_string(p, out);
    if (p->at->kind == TOKEN_INT || p->at->kind == TOKEN_FLOAT)
        return parse_number(p, out);
    if (take_op(p, "("))
        return parse_parenthesis(p, out);
    if (take_op(p, "["))
        return parse_list(p, out);
    if (take_op(p, "{"))
        return parse_dict(p, out);
    return refuse(p, "expected an expression");
}

// ---------------------------------------------------------------- postfix, filters, tests

// Parses arguments up to ")"; the "(" was consumed.
static int parse_arguments(struct parser *p, node *call) {
    while (!take_op(p, ")")) {
        node *item, *value;
        if (p->at->kind == TOKEN_NAME && token_is(p->at + 1, TOKEN_OPERATOR, "=")) {
            TRY(make_named(p, NODE_KEYWORD, &item));
            p->at++;
            TRY(parse_expression(p, &value));
            item->a = value;
        } else {
            TRY(parse_expression(p, &item));
        }
        TRY(add_item(p, call, item));
        if (take_op(p, ")"))
            return 0;
        TRY(expect_op(p, ","));
    }
    return 0;
}

static int parse_call(struct parser *p, node *what, node **out) {
    p->at++;
    TRY(make_of(p, NODE_CALL, what, NULL, out));
    return parse_arguments(p, *out);
}

// Parses one of the three parts of a slice; NULL when it is left out.
static int parse_part(struct parser *p, node **out) {
    *out = NULL;
    return at_op(p, ":") || at_op(p, "]") ? 0 : parse_expression(p, out);
}

static int parse_subscript(struct parser *p, node *what, node **out) {
    node *first, *made;
    p->at++;
    TRY(parse_part(p, &first));
    TRY(make_of(p, at_op(p, ":") ? NODE_SLICE : NODE_INDEX, what, first, &made));
    if (take_op(p, ":")) {
        TRY(parse_part(p, &made->c));
        if (take_op(p, ":"))
            TRY(parse_part(p, &made->d));
    } else if (first == NULL) {
        return refuse(p, "expected an index");
    }
    *out = made;
    return expect_op(p, "]");
}

static int parse_dot(struct parser *p, node *what, node **out) {
    p->at++;
    if (p->at->kind == TOKEN_INT) {
        node *index;
        TRY(parse_number(p, &index));
        return make_of(p, NODE_INDEX, what, index, out);
    }
    TRY(make_named(p, NODE_ATTR, out));
    (*out)->a = what;
    return 0;
}

static int parse_postfix(struct parser *p, node **out) {
    for (;;) {
        if (at_op(p, "."))
            TRY(parse_dot(p, *out, out));
        else if (at_op(p, "["))
            TRY(parse_subscript(p, *out, out));
        else if (at_op(p, "("))
            TRY(parse_call(p, *out, out));
        else
            return 0;
    }
}

static int parse_filter(struct parser *p, node *what, node **out) {
    p->at++;
    TRY(make_named(p, NODE_FILTER, out));
    (*out)->a = what;
    return take_op(p, "(") ? parse_arguments(p, *out) : 0;
}

static bool begins_argument(const struct parser *p) {
    if (p->at->kind == TOKEN_NAME)
        return !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and") &&
               !at_name(p, "if") && !at_name(p, "is") && !at_name(p, "not") && !at_name(p, "in");
    return p->at->kind == TOKEN_STRING || p->at->kind == TOKEN_INT || p->at->kind == TOKEN_FLOAT ||
           at_op(p, "[") || at_op(p, "{");
}

static int parse_test(struct parser *p, node *what, node **out) {
    node *test, *argument;
    p->at++;
    bool negated = take_name(p, "not");
    TRY(make_named(p, NODE_TEST, &test));
    test->a = what;
    if (take_op(p, "(")) {
        TRY(parse_arguments(p, test));
    } else if (begins_argument(p)) {
        TRY(parse_primary(p, &argument));
        TRY(parse_postfix(p, &argument));
        TRY(add_item(p, test, argument));
    }
    *out = test;
    return negated ? make_of(p, NODE_NOT, test, NULL, out) : 0;
}

static int parse_unary_here(struct parser *p, bool filters, node **out) {
    if (take_op(p, "-")) {
        node *inner;
        TRY(parse_unary(p, false, &inner));
        TRY(make_of(p, NODE_NEGATE, inner, NULL, out));
    } else {
        take_op(p, "+");
        TRY(parse_primary(p, out));
    }
    TRY(parse_postfix(p, out));
    while (filters) {
        if (at_op(p, "|"))
            TRY(parse_filter(p, *out, out));
        else if (at_name(p, "is"))
            TRY(parse_test(p, *out, out));
        else if (at_op(p, "("))
            TRY(parse_call(p, *out, out));
        else
            break;
    }
    return 0;
}

static int parse_unary(struct parser *p, bool filters, node **out) {
    TRY(deeper(p));
    TRY(parse_unary_here(p, filters, out));
    p->depth--;
    return 0;
}

// ---------------------------------------------------------------- operators

// From the tightest binding: ** ; * / // % ; ~ ; + -
static const struct {
    const char *text;
    char op;
    int level;
} operators[] = {{"**", 'p', 0}, {"*", '*', 1}, {"/", '/', 1}, {"//", 'f', 1},
                 {"%", '%', 1},  {"~", '~', 2}, {"+", '+', 3}, {"-", '-', 3}};

static int parse_binary(struct parser *p, int level, node **out) {
    if (level < 0)
        return parse_unary(p, true, out);
    TRY(parse_binary(p, level - 1, out));
    for (;;) {
        char op = 0;
        for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
            if (operators[i].level == level && at_op(p, operators[i].text))
                op = operators[i].op;
        if (op == 0)
            return 0;
        node *right;
        p->at++;
        TRY(parse_binary(p, level - 1, &right));
        TRY(make_of(p, NODE_BINARY, *out, right, out));
        (*out)->op = op;
    }
}

// Consumes and returns the comparison at the cursor; NULL: none.
static const char *take_comparison(struct parser *p) {
    static const char *const symbols[] = {"==", "!=", "<", "<=", ">", ">="};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (take_op(p, symbols[i]))
            return symbols[i];
    if (take_name(p, "in"))
        return "in";
    if (at_name(p, "not") && token_is(p->at + 1, TOKEN_NAME, "in")) {
        p->at += 2;
        return "not in";
    }
    return NULL;
}

static int parse_compare(struct parser *p, node **out) {
    node *first, *part;
    TRY(parse_binary(p, 3, &first));
    *out = first;
    for (const char *op; (op = take_comparison(p)) != NULL;) {
        if (*out == first)
            TRY(make_of(p, NODE_COMPARE, first, NULL, out));
        TRY(make(p, NODE_KEYWORD, &part));
        part->name = op;
        part->name_bytes = strlen(op);
        TRY(parse_binary(p, 3, &part->a));
        TRY(add_item(p, *out, part));
    }
    return 0;
}

static int parse_not(struct parser *p, node **out) {
    if (!take_name(p, "not"))
        return parse_compare(p, out);
    node *inner;
    TRY(deeper(p));
    TRY(parse_not(p, &inner));
    p->depth--;
    return make_of(p, NODE_NOT, inner, NULL, out);
}

static int parse_and(struct parser *p, node **out) {
    TRY(parse_not(p, out));
    while (take_name(p, "and")) {
        node *right;
        TRY(parse_not(p, &right));
        TRY(make_of(p, NODE_AND, *out, right, out));
    }
    return 0;
}

static int parse_or(struct parser *p, node **out) {
    TRY(parse_and(p, out));
    while (take_name(p, "or")) {
        node *right;
        TRY(parse_and(p, &right));
        TRY(make_of(p, NODE_OR, *out, right, out));
    }
    return 0;
}

static int parse_choice(struct parser *p, node **out) {
    TRY(parse_or(p, out));
    while (take_name(p, "if")) {
        node *made;
        TRY(make_of(p, NODE_CHOICE, *out, NULL, &made));
        TRY(parse_or(p, &made->b));
        if (take_name(p, "else"))
            TRY(parse_expression(p, &made->c));
        *out = made;
    }
    return 0;
}

static int parse_expression(struct parser *p, node **out) {
    TRY(deeper(p));
    TRY(parse_choice(p, out));
    p->depth--;
    return 0;
}

// ---------------------------------------------------------------- statements

static int end_tag(struct parser *p) {
    return expect(p, TOKEN_BLOCK_END, "expected %}");
}

// Consumes "{% name %}" that ends a body. parse_body left the cursor on the name.
static int close_block(struct parser *p, const char *name) {
    return take_name(p, name) ? end_tag(p) : refuse(p, "a block does not end");
}

static int parse_targets(struct parser *p, node *statement) {
    do {
        node *target;
        TRY(make_named(p, NODE_NAME, &target));
        TRY(add_item(p, statement, target));
    } while (take_op(p, ","));
    return 0;
}

static int parse_for(struct parser *p, node **out) {
    static const char *const ends[] = {"endfor", "else", NULL}, *const last[] = {"endfor", NULL};
    TRY(make(p, NODE_FOR, out));
    bool bracket = take_op(p, "(");
    TRY(parse_targets(p, *out));
    if (bracket)
        TRY(expect_op(p, ")"));
    if (!take_name(p, "in"))
        return refuse(p, "expected in");
    TRY(parse_or(p, &(*out)->a));
    if (take_name(p, "if"))
        TRY(parse_expression(p, &(*out)->b));
    if (at_name(p, "recursive"))
        return refuse(p, "recursive loops are not understood");
    TRY(end_tag(p));
    p->loops++;
    TRY(parse_body(p, ends, &(*out)->c));
    p->loops--;
    if (take_name(p, "else")) {
        TRY(end_tag(p));
        TRY(parse_body(p, last, &(*out)->d));
    }
    return close_block(p, "endfor");
}

static int parse_if(struct parser *p, node **out) {
    static const char *const ends[] = {"endif", "elif", "else", NULL}, *const last[] = {"endif",
                                                                                        NULL};
    TRY(make(p, NODE_IF, out));
    do {
        node *condition, *body;
        TRY(parse_expression(p, &condition));
        TRY(end_tag(p));
        TRY(parse_body(p, ends, &body));
        TRY(add_item(p, *out, condition));
        TRY(add_item(p, *out, body));
    } while (take_name(p, "elif"));
    if (take_name(p, "else")) {
        TRY(end_tag(p));
        TRY(parse_body(p, last, &(*out)->a));
    }
    return close_block(p, "endif");
}

// Parses  x, y = ..  or  namespace.x = ..  or  x %} body {% endset
static int parse_set(struct parser *p, node **out) {
    static const char *const ends[] = {"endset", NULL};
    node *set, *value;
    TRY(make(p, NODE_SET, &set));
    *out = set;
    if (p->at->kind == TOKEN_NAME && token_is(p->at + 1, TOKEN_OPERATOR, ".")) {
        node *target;
        TRY(make_named(p, NODE_NAME, &target));
        TRY(parse_dot(p, target, &target));
        TRY(add_item(p, set, target));
    } else {
        TRY(parse_targets(p, set));
    }
    if (!take_op(p, "=")) {
        set->kind = NODE_SET_BLOCK;
        if (set->n_items != 1)
            return refuse(p, "expected =");
        TRY(end_tag(p));
        TRY(parse_body(p, ends, &set->a));
        return close_block(p, "endset");
    }
    TRY(parse_expression(p, &set->a));
    if (at_op(p, ",")) { // a tuple without brackets
        node *tuple;
        TRY(make(p, NODE_LIST, &tuple));
        TRY(add_item(p, tuple, set->a));
        while (take_op(p, ",")) {
            TRY(parse_expression(p, &value));
            TRY(add_item(p, tuple, value));
        }
        set->a = tuple;
    }
    return end_tag(p);
}

static int parse_macro(struct parser *p, node **out) {
    static const char *const ends[] = {"endmacro", NULL};
    if (p->in_macro)
        return refuse(p, "a macro inside a macro is not understood");
    TRY(make_named(p, NODE_MACRO, out));
    TRY(expect_op(p, "("));
    while (!take_op(p, ")")) {
        node *parameter;
        TRY(make_named(p, NODE_KEYWORD, &parameter));
        if (take_op(p, "="))
            TRY(parse_expression(p, &parameter->a));
        TRY(add_item(p, *out, parameter));
        if (!at_op(p, ")"))
            TRY(expect_op(p, ","));
    }
    TRY(end_tag(p));
    int loops = p->loops;
    p->loops = 0;
    p->in_macro = true;
    TRY(parse_body(p, ends, &(*out)->a));
    p->loops = loops;
    p->in_macro = false;
    take_name(p, "endmacro");
    if (p->at->kind == TOKEN_NAME) // its name may be repeated
        p->at++;
    return end_tag(p);
}

static int parse_generation(struct parser *p, node **out) {
    static const char *const ends[] = {"endgeneration", NULL};
    TRY(make(p, NODE_GENERATION, out));
    TRY(end_tag(p));
    *p->generation = true;
    TRY(parse_body(p, ends, &(*out)->a));
    return close_block(p, "endgeneration");
}

static int parse_statement(struct parser *p, node **out) {
    if (take_name(p, "for"))
        return parse_for(p, out);
    if (take_name(p, "if"))
        return parse_if(p, out);
    if (take_name(p, "set"))
        return parse_set(p, out);
    if (take_name(p, "macro"))
        return parse_macro(p, out);
    if (take_name(p, "generation"))
        return parse_generation(p, out);
    bool leaves = at_name(p, "break");
    if (leaves || at_name(p, "continue")) {
        if (p->loops == 0)
            return refuse(p, "outside of a loop");
        p->at++;
        TRY(make(p, leaves ? NODE_BREAK : NODE_CONTINUE, out));
        return end_tag(p);
    }
    return refuse(p, "a statement is not understood");
}

static int parse_item(struct parser *p, node **out) {
    const struct template_token *t = p->at;
    if (t->kind == TOKEN_TEXT) {
        TRY(make(p, NODE_TEXT, out));
        (*out)->name = t->bytes;
        (*out)->name_bytes = t->n;
        p->at++;
        return 0;
    }
    p->at++;
    if (t->kind == TOKEN_BLOCK)
        return parse_statement(p, out);
    TRY(make(p, NODE_PRINT, out));
    TRY(parse_expression(p, &(*out)->a));
    return expect(p, TOKEN_PRINT_END, "expected }}");
}

static bool at_end(const struct parser *p, const char *const *ends) {
    for (; ends != NULL && *ends != NULL; ends++)
        if (p->at->kind == TOKEN_BLOCK && token_is(p->at + 1, TOKEN_NAME, *ends))
            return true;
    return false;
}

// Parses statements up to a block with one of these names and leaves the cursor on the name.
// Without names, parses to the end of the template.
static int parse_body(struct parser *p, const char *const *ends, node **out) {
    TRY(deeper(p));
    TRY(make(p, NODE_BODY, out));
    while (!at_end(p, ends)) {
        node *item;
        if (p->at->kind == TOKEN_END) {
            if (ends != NULL)
                return refuse(p, "a block does not end");
            break;
        }
        TRY(parse_item(p, &item));
        TRY(add_item(p, *out, item));
    }
    if (ends != NULL)
        p->at++;
    p->depth--;
    return 0;
}

int template_parse(const struct template_token *tokens, struct region *r,
                   struct template_node **out, bool *generation, struct err *e) {
    struct parser p = {.at = tokens, .r = r, .generation = generation, .e = e};
    *generation = false;
    return parse_body(&p, NULL, out);
}

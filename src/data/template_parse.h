// template_parse.h - a chat template as tokens, and as a tree.
//
// Place: template_lex.c cuts the source into tokens, template_parse.c makes the tree, template.c
// runs it. A tree never changes after it is made, so threads share it.
#ifndef HAGGLE_DATA_TEMPLATE_PARSE_H
#define HAGGLE_DATA_TEMPLATE_PARSE_H

#include "data/template_value.h"

enum template_token_kind {
    TOKEN_TEXT,      // outside of tags
    TOKEN_PRINT,     // {{
    TOKEN_PRINT_END, // }}
    TOKEN_BLOCK,     // {%
    TOKEN_BLOCK_END, // %}
    TOKEN_NAME,
    TOKEN_STRING, // bytes: without escapes
    TOKEN_INT,
    TOKEN_FLOAT,
    TOKEN_OPERATOR,
    TOKEN_END,
};
struct template_token {
    enum template_token_kind kind;
    unsigned line;
    const char *bytes;
    size_t n;
};
// The last token is TOKEN_END. Memory comes from the region, and tokens point into it.
int template_lex(const char *source, size_t bytes, struct region *r, struct template_token **out,
                 struct err *e);

enum template_node_kind {
    // statements
    NODE_BODY,  // items
    NODE_TEXT,  // name
    NODE_PRINT, // a
    NODE_FOR,   // items: targets (NAME); a: what; b: condition or NULL; c: body; d: else or NULL
    NODE_IF,    // items: condition, body, condition, body ..; a: else or NULL
    NODE_SET,   // items: targets (NAME, or one ATTR of a NAME); a: value
    NODE_SET_BLOCK,  // items: one target; a: body
    NODE_MACRO,      // name; items: parameters (KEYWORD, a: default or NULL); a: body
    NODE_GENERATION, // a: body
    NODE_BREAK,
    NODE_CONTINUE,
    // expressions
    NODE_CONST,   // constant
    NODE_NAME,    // name
    NODE_LIST,    // items
    NODE_DICT,    // items: key, value, key, value ..
    NODE_ATTR,    // a: of what; name
    NODE_INDEX,   // a: of what; b: which
    NODE_SLICE,   // a: of what; b, c, d: from, to, step or NULL
    NODE_CALL,    // a: what; items: arguments (KEYWORD for named ones)
    NODE_FILTER,  // a: of what; name; items: arguments
    NODE_TEST,    // a: of what; name; items: arguments
    NODE_KEYWORD, // name; a
    NODE_NOT,     // a
    NODE_NEGATE,  // a
    NODE_AND,     // a, b
    NODE_OR,      // a, b
    NODE_BINARY,  // op; a, b
    NODE_COMPARE, // a; items: KEYWORDs whose name is the operator
    NODE_CHOICE,  // a if b else c (NULL: undefined)
    NODE_KINDS
};
struct template_node {
    enum template_node_kind kind;
    unsigned line;
    char op; // for NODE_BINARY: + - * / % ~, 'f' for //, 'p' for **
    const char *name;
    size_t name_bytes;
    struct value constant;
    struct template_node *a, *b, *c, *d;
    struct template_node **items;
    size_t n_items, item_capacity;
};

// `generation` becomes true when the template marks the text that the assistant writes.
int template_parse(const struct template_token *tokens, struct region *r,
                   struct template_node **out, bool *generation, struct err *e);

#endif

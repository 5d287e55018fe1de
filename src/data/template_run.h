// template_run.h - a running template: shared by template.c (statements) and template_eval.c
// (expressions).
#ifndef HAGGLE_DATA_TEMPLATE_RUN_H
#define HAGGLE_DATA_TEMPLATE_RUN_H

#include "data/template.h"
#include "data/template_ops.h"
#include "data/template_parse.h"

// The tree is walked recursively. This limit keeps the deepest walk that a template can cause
// within the stack of a small thread.
enum { RUN_DEPTH_MAX = 300 };

struct run_variable {
    const char *name;
    size_t bytes;
    struct value value;
};
struct run_scope { // one for each loop body and macro body; an if uses the scope around it
    struct run_scope *parent;
    struct run_variable *variables;
    size_t n, capacity;
};
struct template_loop {
    const struct value *items;
    size_t index, n;
};
struct template_run {
    const struct template *t;
    struct value_heap *h;
    struct run_scope *scope, *globals;
    struct marked_builder *out;      // receives what is printed now
    struct marked_builder *document; // receives what the whole template prints
    struct template_range *ranges;
    size_t n_ranges, range_capacity;
    int depth;
    unsigned line; // last line seen, for messages
    enum { RUN_ON, RUN_BREAK, RUN_CONTINUE } flow;
};

int run_enter(struct template_run *r, const struct template_node *n); // counts depth and steps
const struct value *run_find(const struct template_run *r, const char *name, size_t bytes);
int run_set(struct template_run *r, const char *name, size_t bytes, struct value v);
int run_body(struct template_run *r, const struct template_node *body);
// Runs a body and returns what it printed.
int run_capture(struct template_run *r, const struct template_node *body, struct value *out);
int run_eval(struct template_run *r, const struct template_node *n, struct value *out);

#endif

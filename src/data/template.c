// template.c - chat templates: compiles them and runs their statements.
//
// After an error, depth, scope and output are not restored: the run is over.
#include "data/template.h"

#include "base/utf8.h"
#include "data/template_run.h"

#include <stdlib.h>
#include <string.h>

typedef struct template_node node;

struct template {
    struct region region;
    const char *name;
    struct template_node *body;
    bool generation;
};

// ---------------------------------------------------------------- open

static bool valid_utf8(const char *text, size_t bytes) {
    const uint8_t *p = (const uint8_t *)text, *end = p + bytes;
    for (unsigned n; p < end; p += n)
        if (utf8_decode(p, end, &n) == UTF8_BAD)
            return false;
    return true;
}

static int compile(struct template *t, const char *name, const char *source, size_t bytes,
                   struct err *e) {
    struct template_token *tokens;
    t->name = region_copy(&t->region, name);
    if (t->name == NULL)
        return err_set(e, ERR_MEMORY, "no memory for a chat template");
    if (bytes > TEMPLATE_MAX_BYTES)
        return err_set(e, ERR_UNSUPPORTED, "longer than %d bytes", TEMPLATE_MAX_BYTES);
    if (!valid_utf8(source, bytes))
        return err_set(e, ERR_UNSUPPORTED, "is not valid UTF-8");
    TRY(template_lex(source, bytes, &t->region, &tokens, e));
    return template_parse(tokens, &t->region, &t->body, &t->generation, e);
}

int template_open(struct template **out, const char *name, const char *source, size_t bytes,
                  struct err *e) {
    struct err own;
    e = e != NULL ? e : &own;
    *out = NULL;
    struct template *t = calloc(1, sizeof *t);
    if (t == NULL)
        return err_set(e, ERR_MEMORY, "no memory for a chat template");
    int rc = compile(t, name, source, bytes, e);
    if (rc != 0) {
        template_close(t);
        return err_context(e, "chat template %.200s", name);
    }
    *out = t;
    return 0;
}

void template_close(struct template *t) {
    if (t == NULL)
        return;
    region_free(&t->region);
    free(t);
}

bool template_marks_generation(const struct template *t) {
    return t->generation;
}

// ---------------------------------------------------------------- variables

const struct value *run_find(const struct template_run *r, const char *name, size_t bytes) {
    for (const struct run_scope *s = r->scope; s != NULL; s = s->parent)
        for (size_t i = s->n; i-- > 0;)
            if (s->variables[i].bytes == bytes && memcmp(s->variables[i].name, name, bytes) == 0)
                return &s->variables[i].value;
    return NULL;
}

int run_set(struct template_run *r, const char *name, size_t bytes, struct value v) {
    struct run_scope *s = r->scope;
    for (size_t i = 0; i < s->n; i++)
        if (s->variables[i].bytes == bytes && memcmp(s->variables[i].name, name, bytes) == 0) {
            s->variables[i].value = v;
            return 0;
        }
    if (value_make_room(r->h, &s->variables, s->n, &s->capacity, sizeof *s->variables, 8) != 0)
        return err_context(r->h->e, "variables");
    s->variables[s->n++] = (struct run_variable){.name = name, .bytes = bytes, .value = v};
    return 0;
}

// Assigns one value to one name, or the elements of a list to as many names.
static int set_targets(struct template_run *r, node *const *targets, size_t n, struct value v) {
    if (n == 1)
        return run_set(r, targets[0]->name, targets[0]->name_bytes, v);
    if (v.type != VALUE_LIST || v.list->n != n)
        return err_set(r->h->e, ERR_FORMAT, "cannot unpack %s into %zu names", value_type_name(&v),
                       n);
    for (size_t i = 0; i < n; i++)
        TRY(run_set(r, targets[i]->name, targets[i]->name_bytes, v.list->items[i]));
    return 0;
}

// ---------------------------------------------------------------- statements

int run_enter(struct template_run *r, const node *n) {
    r->line = n->line;
    if (++r->depth > RUN_DEPTH_MAX)
        return err_set(r->h->e, ERR_FORMAT, "nested deeper than %d levels", RUN_DEPTH_MAX);
    return value_spend(r->h, 1);
}

// Keeps the elements for which a loop's condition is true.
static int filter_items(struct template_run *r, const node *n, struct value *list) {
    struct value kept, yes;
    TRY(value_list_new(r->h, &kept));
    for (size_t i = 0; i < list->list->n; i++) {
        r->scope->n = 0;
        TRY(set_targets(r, n->items, n->n_items, list->list->items[i]));
        TRY(run_eval(r, n->b, &yes));
        if (ops_truth(&yes))
            TRY(value_list_add(r->h, kept.list, list->list->items[i]));
    }
    *list = kept;
    return 0;
}

static int run_for(struct template_run *r, const node *n) {
    struct value list;
    TRY(run_eval(r, n->a, &list));
    TRY(ops_elements(r->h, &list, &list));
    struct run_scope own = {.parent = r->scope}, *before = r->scope;
    r->scope = &own;
    if (n->b != NULL)
        TRY(filter_items(r, n, &list));
    struct template_loop *loop = value_alloc(r->h, sizeof *loop); // a value may outlive its loop
    if (loop == NULL)
        return err_context(r->h->e, "a loop");
    *loop = (struct template_loop){.items = list.list->items, .n = list.list->n};
    for (; loop->index < loop->n && r->flow != RUN_BREAK; loop->index++) {
        own.n = 0; // variables set in the previous round are gone
        struct value l = {.type = VALUE_LOOP, .loop = loop};
        TRY(run_set(r, "loop", 4, l));
        TRY(set_targets(r, n->items, n->n_items, list.list->items[loop->index]));
        r->flow = RUN_ON;
        TRY(run_body(r, n->c));
    }
    r->flow = RUN_ON;
    r->scope = before;
    return loop->n == 0 && n->d != NULL ? run_body(r, n->d) : 0;
}

static int run_if(struct template_run *r, const node *n) {
    for (size_t i = 0; i + 1 < n->n_items; i += 2) {
        struct value yes;
        TRY(run_eval(r, n->items[i], &yes));
        if (ops_truth(&yes))
            return run_body(r, n->items[i + 1]);
    }
    return n->a != NULL ? run_body(r, n->a) : 0;
}

static int assign(struct template_run *r, const node *n, struct value v) {
    const node *target = n->items[0];
    if (target->kind != NODE_ATTR)
        return set_targets(r, n->items, n->n_items, v);
    const struct value *space = run_find(r, target->a->name, target->a->name_bytes);
    if (space == NULL || space->type != VALUE_DICT || !space->dict->is_namespace)
        return err_set(r->h->e, ERR_FORMAT, "only members of a namespace can be set");
    struct value key;
    TRY(value_string(r->h, target->name, target->name_bytes, ORIGIN_TEMPLATE, &key));
    return value_dict_set(r->h, space->dict, key.s, v);
}

static int run_assign(struct template_run *r, const node *n) {
    struct value v;
    if (n->kind == NODE_SET)
        TRY(run_eval(r, n->a, &v));
    else
        TRY(run_capture(r, n->a, &v));
    return assign(r, n, v);
}

int run_capture(struct template_run *r, const node *body, struct value *out) {
    struct marked_builder own = {0}, *before = r->out;
    r->out = &own;
    TRY(run_body(r, body));
    r->out = before;
    return marked_finish(r->h, &own, out);
}

static int run_generation(struct template_run *r, const node *n) {
    if (r->out != r->document)
        return err_set(r->h->e, ERR_FORMAT, "generation inside a macro or a set block");
    size_t begin = r->document->n;
    TRY(run_body(r, n->a));
    if (r->document->n == begin)
        return 0;
    if (value_make_room(r->h, &r->ranges, r->n_ranges, &r->range_capacity, sizeof *r->ranges, 8))
        return err_context(r->h->e, "generation");
    if (r->n_ranges > 0 && begin < r->ranges[r->n_ranges - 1].end)
        return err_set(r->h->e, ERR_FORMAT, "generation inside generation");
    r->ranges[r->n_ranges++] = (struct template_range){begin, r->document->n};
    return 0;
}

static int run_print(struct template_run *r, const node *n) {
    struct value v;
    TRY(run_eval(r, n->a, &v));
    return value_write_text(r->h, &v, r->out);
}

static int run_statement(struct template_run *r, const node *n) {
    switch (n->kind) {
    case NODE_TEXT:
        return marked_add_bytes(r->h, r->out, n->name, n->name_bytes, ORIGIN_TEMPLATE);
    case NODE_PRINT:
        return run_print(r, n);
    case NODE_FOR:
        return run_for(r, n);
    case NODE_IF:
        return run_if(r, n);
    case NODE_SET:
    case NODE_SET_BLOCK:
        return run_assign(r, n);
    case NODE_MACRO:
        return run_set(r, n->name, n->name_bytes, (struct value){.type = VALUE_MACRO, .macro = n});
    case NODE_GENERATION:
        return run_generation(r, n);
    case NODE_BREAK:
    case NODE_CONTINUE:
        r->flow = n->kind == NODE_BREAK ? RUN_BREAK : RUN_CONTINUE;
        return 0;
    default:
        return err_set(r->h->e, ERR_INTERNAL, "an expression where a statement should be");
    }
}

int run_body(struct template_run *r, const node *body) {
    for (size_t i = 0; i < body->n_items && r->flow == RUN_ON; i++) {
        TRY(run_enter(r, body->items[i]));
        TRY(run_statement(r, body->items[i]));
        r->depth--;
    }
    return 0;
}

// ---------------------------------------------------------------- a whole run

static int render(struct template_run *r, const struct template_variable *variables, size_t n,
                  struct template_output *out) {
    struct value text;
    for (size_t i = 0; i < n; i++)
        if (variables[i].value.type != VALUE_UNDEFINED)
            TRY(run_set(r, variables[i].name, strlen(variables[i].name), variables[i].value));
    TRY(run_body(r, r->t->body));
    TRY(marked_finish(r->h, r->document, &text));
    out->text = text.s;
    out->generation = r->ranges;
    out->n_generation = r->n_ranges;
    return 0;
}

int template_render(const struct template *t, const struct template_variable *variables, size_t n,
                    struct value_heap *h, struct template_output *out) {
    struct marked_builder document = {0};
    struct run_scope globals = {0};
    struct template_run r = {.t = t,
                             .h = h,
                             .scope = &globals,
                             .globals = &globals,
                             .out = &document,
                             .document = &document};
    int rc = render(&r, variables, n, out);
    return rc == 0 ? 0 : err_context(h->e, "chat template %.200s, line %u", t->name, r.line);
}

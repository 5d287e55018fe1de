// config.c - haggle_config and its knobs, and the documentation that is generated from tables.
#include "api/api.h"

#include "base/text.h"
#include "bench/tradeoffs.h"
#include "program/print.h"

#include <stdlib.h>
#include <string.h>

int haggle_config_new(struct haggle_config **out, struct haggle_error *e) {
    struct err err = {0};
    *out = calloc(1, sizeof **out);
    if (!*out) {
        err_set(&err, ERR_MEMORY, "out of memory for a configuration");
        return api_error(e, &err);
    }
    knobs_init(&(*out)->knobs);
    return 0;
}

void haggle_config_free(struct haggle_config *c) {
    free(c);
}

int haggle_config_load_recipe(struct haggle_config *c, const char *path, struct haggle_error *e) {
    struct call call;
    call_begin(&call, NULL);
    if (strlen(path) >= sizeof c->recipe)
        err_set(&call.err, ERR_USAGE, "the recipe's path is longer than %zu bytes: %.80s...",
                sizeof c->recipe - 1, path);
    else if (knobs_load_recipe(&c->knobs, path, &call.err) == 0)
        strcpy(c->recipe, path);
    // A recipe is an argument, so a mistake inside it (a duplicate key) is an error of usage.
    if (call.err.code == ERR_FORMAT)
        call.err.code = ERR_USAGE;
    return call_end(&call, call.err.code, e);
}

int haggle_config_set(struct haggle_config *c, const char *name, const char *value,
                      struct haggle_error *e) {
    struct call call;
    call_begin(&call, NULL);
    return call_end(&call, knobs_set(&c->knobs, name, value, SET_BY_COMMAND_LINE, &call.err), e);
}

int haggle_config_get(const struct haggle_config *c, const char *name, char *out, size_t out_bytes,
                      struct haggle_error *e) {
    struct call call;
    char value[KNOB_VALUE_BYTES];
    call_begin(&call, NULL);
    const int id = knob_find_or_suggest(name, &call.err);
    if (id < 0)
        return call_end(&call, id, e);
    const size_t bytes = strlen(knobs_value(&c->knobs, id, value)) + 1;
    if (bytes > out_bytes)
        err_set(&call.err, ERR_USAGE, "the value of %s takes %zu bytes; the buffer has %zu", name,
                bytes, out_bytes);
    else
        memcpy(out, value, bytes);
    return call_end(&call, call.err.code, e);
}

int haggle_config_write(const struct haggle_config *c, FILE *f, struct haggle_error *e) {
    struct call call;
    call_begin(&call, NULL);
    return call_end(&call, knobs_write_recipe(&c->knobs, f, &call.err), e);
}

size_t haggle_knob_count(void) {
    return KNOB_COUNT;
}

const char *haggle_knob_name(size_t i) {
    return i < KNOB_COUNT ? knob_info((int)i)->name : NULL;
}

const char *haggle_knob_help(size_t i) {
    return i < KNOB_COUNT ? knob_info((int)i)->help : NULL;
}

bool haggle_knob_stands_alone(const char *name, const char *next) {
    const int id = knob_find(name);
    bool on;
    return id >= 0 && knob_info(id)->type == KNOB_BOOL &&
           (!next || text_parse_bool(next, &on, NULL) != 0);
}

// What the usual rules say about changing the knob.
static void print_rules(int id, FILE *f) {
    const char *name = knob_info(id)->name, *head = "trades";
    const size_t n = strlen(name);
    for (size_t i = 0; i < strategy_count(); i++) {
        const struct strategy *s = strategy_at(i);
        const char *at = strstr(s->settings, name);
        if (s->against || !at || !strchr("=*/", at[n]))
            continue;
        fprintf(f, "  %-10s%s: %s\n", head, s->name, s->rule);
        head = "";
    }
    if (!*head)
        fprintf(f, "  %-10s(usual rules; 'haggle bench tradeoffs' measures them here)\n", "");
    if (knob_info(id)->flags & (KNOB_SPEED | KNOB_MEMORY | KNOB_MATH))
        fprintf(f, "  %-10shaggle knobs --check %s\n", "measure", name);
}

static void explain(const struct knobs *k, const char *const *names, size_t n,
                    const bool selected[KNOB_COUNT], FILE *f) {
    const char *between = "";
    for (size_t i = 0; i < n; i++)
        if (knob_find(names[i]) < 0 && knob_elsewhere_id(names[i]) >= 0)
            fprintf(f, "'%.60s' is %s here.\n\n", names[i],
                    knob_info(knob_elsewhere_id(names[i]))->name);
    for (int i = 0; i < KNOB_COUNT; i++) {
        if (!selected[i])
            continue;
        fputs(between, f);
        knob_explain(k, i, f);
        print_rules(i, f);
        between = "\n";
    }
}

// Names of single knobs are explained. A group, which selects more than was named, is a table.
static int list(const struct haggle_config *c, const char *const *names, size_t n,
                bool only_changed, struct call *call) {
    const struct knobs *k = &c->knobs;
    bool selected[KNOB_COUNT];
    size_t count = 0;
    TRY(knobs_select(names, n, selected, &call->err));
    for (int i = 0; i < KNOB_COUNT; i++) {
        selected[i] = selected[i] && !(only_changed && k->by[i] == SET_BY_DEFAULT);
        count += selected[i];
    }
    if (call->out && n > 0 && count <= n)
        explain(k, names, n, selected, call->out);
    else if (call->out)
        TRY(knobs_print(k, selected, call->out, &call->err));
    if (call_json_begin(call, "knobs", NULL)) {
        json_put_key(&call->json, "knobs");
        knobs_put_json_table(k, selected, &call->json);
        json_put_object_end(&call->json);
    }
    return 0;
}

int haggle_knobs_list(const struct haggle_config *c, bool only_changed,
                      const struct haggle_sink *sink, struct haggle_error *e) {
    struct call call;
    call_begin(&call, sink);
    return call_end(&call, list(c, NULL, 0, only_changed, &call), e);
}

int haggle_knobs_explain(const struct haggle_config *c, const char *const *names, size_t n,
                         const struct haggle_sink *sink, struct haggle_error *e) {
    struct call call;
    call_begin(&call, sink);
    return call_end(&call, list(c, names, n, false, &call), e);
}

int haggle_docs(const char *kind, FILE *f, struct haggle_error *e) {
    static const char *const kinds[] = {"knobs", "ops"};
    struct call call;
    call_begin(&call, NULL);
    if (strcmp(kind, "knobs") == 0)
        return call_end(&call, knobs_write_markdown(f, &call.err), e);
    if (strcmp(kind, "ops") == 0)
        return call_end(&call, program_write_ops_markdown(f, &call.err), e);
    const char *near = text_suggest(kind, kinds, 2);
    err_set(&call.err, ERR_USAGE, "there is no page '%s'; accepted: knobs, ops%s%s%s", kind,
            near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    return call_end(&call, ERR_USAGE, e);
}

const char *haggle_suggest(const char *word, const char *const *names, size_t n) {
    return text_suggest(word, names, n);
}

_Static_assert((int)KNOB_ELSEWHERE_BYTES <= (int)HAGGLE_TEXT_BYTES, "a sentence fits");
bool haggle_knob_elsewhere(const char *name, const char *value, char out[HAGGLE_TEXT_BYTES]) {
    return knob_elsewhere(name, value, SET_BY_COMMAND_LINE, out) != NULL;
}

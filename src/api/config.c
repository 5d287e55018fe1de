// config.c - haggle_config: the knobs behind the public name, and what is generated from their
// list.
#include "api/api.h"

#include "base/text.h"
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
    struct err err = {0};
    const locale_t before = c_locale_enter();
    if (strlen(path) >= sizeof c->recipe)
        err_set(&err, ERR_USAGE, "the recipe's path is longer than %zu bytes: %.80s...",
                sizeof c->recipe - 1, path);
    else if (knobs_load_recipe(&c->knobs, path, &err) == 0)
        strcpy(c->recipe, path);
    c_locale_leave(before);
    if (err.code == 0)
        return 0;
    // A recipe is an argument: what is wrong inside it, a duplicate key too, was not understood.
    if (err.code == ERR_FORMAT)
        err.code = ERR_USAGE;
    return api_error(e, &err);
}

int haggle_config_set(struct haggle_config *c, const char *name, const char *value,
                      struct haggle_error *e) {
    struct err err = {0};
    const locale_t before = c_locale_enter();
    const int rc = knobs_set(&c->knobs, name, value, SET_BY_COMMAND_LINE, &err);
    c_locale_leave(before);
    return rc == 0 ? 0 : api_error(e, &err);
}

int haggle_config_get(const struct haggle_config *c, const char *name, char *out, size_t out_bytes,
                      struct haggle_error *e) {
    struct err err = {0};
    char value[KNOB_VALUE_BYTES];
    int id = knob_find_or_suggest(name, &err);
    if (id < 0)
        return api_error(e, &err);
    const locale_t before = c_locale_enter();
    knobs_value(&c->knobs, id, value);
    c_locale_leave(before);
    size_t bytes = strlen(value) + 1;
    if (bytes > out_bytes) {
        err_set(&err, ERR_USAGE, "the value of %s takes %zu bytes; %zu were given", name, bytes,
                out_bytes);
        return api_error(e, &err);
    }
    memcpy(out, value, bytes);
    return 0;
}

int haggle_config_write(const struct haggle_config *c, FILE *f, struct haggle_error *e) {
    struct err err = {0};
    const locale_t before = c_locale_enter();
    const int rc = knobs_write_recipe(&c->knobs, f, &err);
    c_locale_leave(before);
    return rc == 0 ? 0 : api_error(e, &err);
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

int haggle_knobs_list(const struct haggle_config *c, bool only_changed,
                      const struct haggle_sink *sink, struct haggle_error *e) {
    struct call call;
    call_begin(&call, sink);
    int rc = 0;
    if (call.out)
        rc = knobs_print(&c->knobs, call.out, only_changed, &call.err);
    if (rc == 0 && call.wants_json) {
        call_json_begin(&call, "knobs", NULL);
        json_put_key(&call.json, "knobs");
        knobs_put_json_table(&c->knobs, &call.json);
        json_put_object_end(&call.json);
    }
    return call_end(&call, rc, e);
}

int haggle_docs(const char *kind, FILE *f, struct haggle_error *e) {
    static const char *const kinds[] = {"knobs", "ops"};
    struct err err = {0};
    const locale_t before = c_locale_enter();
    int rc;
    if (strcmp(kind, "knobs") == 0)
        rc = knobs_write_markdown(f, &err);
    else if (strcmp(kind, "ops") == 0)
        rc = program_write_ops_markdown(f, &err);
    else {
        const char *near = text_suggest(kind, kinds, 2);
        rc = err_set(&err, ERR_USAGE, "there is no page '%s'; accepted: knobs, ops%s%s%s", kind,
                     near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    c_locale_leave(before);
    return rc == 0 ? 0 : api_error(e, &err);
}

const char *haggle_suggest(const char *word, const char *const *names, size_t n) {
    return text_suggest(word, names, n);
}

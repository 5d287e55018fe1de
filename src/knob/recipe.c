// recipe.c - reads knobs from YAML and writes them to YAML.
//
// Reading uses base/yaml.h, which gives dotted keys with their lines. Writing groups knobs by the
// part before the first dot, as a person would. What is written reads back to equal values.
#include "knob/knob.h"

#include "base/file.h"
#include "base/region.h"
#include "base/yaml.h"

#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- reading

// Applies all entries or none, because half of a recipe is worse than none.
static int apply(struct knobs *k, const char *name, const struct yaml_entry *entries, size_t n,
                 struct err *e) {
    struct knobs next = *k;
    for (size_t i = 0; i < n; i++) {
        int rc = knobs_set(&next, entries[i].key, entries[i].value, SET_BY_RECIPE, e);
        if (rc != 0) {
            err_context(e, "%s:%d", name, entries[i].line);
            return rc;
        }
    }
    *k = next;
    return 0;
}

int knobs_load_recipe(struct knobs *k, const char *path, struct err *e) {
    struct region r = {0};
    struct yaml_entry *entries = NULL;
    size_t n = 0;
    int rc = yaml_read_file(path, &r, &entries, &n, e);
    if (rc == 0)
        rc = apply(k, path, entries, n, e);
    region_free(&r);
    return rc;
}

int knobs_load_recipe_text(struct knobs *k, const char *name, const char *text, size_t bytes,
                           struct err *e) {
    struct region r = {0};
    struct yaml_entry *entries = NULL;
    size_t n = 0;
    int rc = yaml_read_text(name, text, bytes, &r, &entries, &n, e);
    if (rc == 0)
        rc = apply(k, name, entries, n, e);
    region_free(&r);
    return rc;
}

// ---------------------------------------------------------------- writing

// Writes a value and returns its width. Strings are always quoted, because other YAML readers would
// not read an unquoted yes, 1e3 or empty value as a string. knobs_set has refused control
// characters, so two escapes are enough.
static int write_value(FILE *f, enum knob_type type, const char *value) {
    if (type != KNOB_STRING)
        return fprintf(f, "%s", value);
    int width = 2;
    fputc('"', f);
    for (const char *p = value; *p; p++) {
        if (*p == '"' || *p == '\\') {
            fputc('\\', f);
            width++;
        }
        fputc(*p, f);
        width++;
    }
    fputc('"', f);
    return width;
}

int knobs_write_recipe(const struct knobs *k, FILE *f, struct err *e) {
    enum { COMMENT_COLUMN = 34 };
    const char *group = "";
    size_t group_length = 0;
    fputs("# Every knob of a run. The comment says where its value comes from. 'haggle knobs' "
          "explains each.\n",
          f);
    for (int i = 0; i < KNOB_COUNT; i++) {
        const struct knob_info *info = knob_info(i);
        const char *dot = strchr(info->name, '.'), *key = dot ? dot + 1 : info->name;
        size_t length = dot ? (size_t)(dot - info->name) : 0;
        if (dot && (length != group_length || memcmp(group, info->name, length) != 0))
            fprintf(f, "%.*s:\n", (int)length, info->name);
        group = info->name;
        group_length = length;
        char value[KNOB_VALUE_BYTES];
        if (i == KNOB_steps && k->epochs > 0) { // a recipe may not have both
            fprintf(f, "# steps follows from epochs\n");
            continue;
        }
        int column = fprintf(f, "%s%s: ", dot ? "  " : "", key);
        column += write_value(f, info->type, knobs_value(k, i, value));
        int gap = column < COMMENT_COLUMN ? COMMENT_COLUMN - column : 1;
        fprintf(f, "%*s# %s\n", gap, "", knob_set_by_name(k->by[i]));
    }
    if (fflush(f) != 0 || ferror(f))
        return err_set(e, ERR_IO, "the recipe could not be written");
    return 0;
}

char *knobs_recipe_text(const struct knobs *k) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return NULL;
    int rc = knobs_write_recipe(k, f, NULL);
    if (fclose(f) != 0 || rc != 0) {
        free(text);
        return NULL;
    }
    return text;
}

int knobs_save_recipe(const struct knobs *k, const char *path, struct err *e) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return err_set(e, ERR_MEMORY, "no memory to write the recipe %s", path);
    int rc = knobs_write_recipe(k, f, e);
    if (fclose(f) != 0 && rc == 0)
        rc = err_set(e, ERR_MEMORY, "no memory to write the recipe %s", path);
    if (rc == 0)
        rc = file_write_atomic(path, text, bytes, e);
    free(text);
    return rc;
}

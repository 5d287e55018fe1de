// run_read.c - a run's folder as a whole, and its recipe; see run_read.h.
#include "report/run_read.h"

#include "base/file.h"
#include "base/yaml.h"
#include "knob/knob.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECIPE_BYTES = 1 << 20 };

void run_problem(struct run_read *r, const char *format, ...) {
    if (r->n_problems == RUN_PROBLEMS_MOST)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(r->problems[r->n_problems++], RUN_SENTENCE_BYTES, format, args);
    va_end(args);
}

void run_copy(char *out, size_t out_bytes, const char *text) {
    size_t n = strlen(text);
    if (n >= out_bytes) {
        n = out_bytes - 1;
        while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) // inside a character
            n--;
    }
    memcpy(out, text, n);
    out[n] = '\0';
}

// "runs/gpt2/" is named gpt2. "." and ".." get the name of the folder they stand for.
static void name_run(struct run_read *r) {
    char path[PATH_MAX];
    run_copy(path, sizeof path, r->dir);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = '\0';
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
    char *real = strcmp(last, ".") == 0 || strcmp(last, "..") == 0 ? realpath(path, NULL) : NULL;
    if (real && strrchr(real, '/') && strrchr(real, '/')[1])
        last = strrchr(real, '/') + 1;
    run_copy(r->name, sizeof r->name, *last ? last : path);
    free(real);
}

// ---------------------------------------------------------------- recipe.yaml

// The comment at the end of a line says where the value came from. The YAML reader drops comments,
// so it is read from the text.
static const char *set_by(const char *text, int line) {
    for (int i = 1; i < line && text; i++) {
        text = strchr(text, '\n');
        text = text ? text + 1 : NULL;
    }
    if (!text)
        return "";
    size_t n = strcspn(text, "\r\n");
    for (int by = 0; by < SET_BY_COUNT; by++) {
        const char *name = knob_set_by_name((enum set_by)by);
        size_t k = strlen(name);
        if (n > k + 2 && memcmp(text + n - k, name, k) == 0 &&
            memcmp(text + n - k - 2, "# ", 2) == 0)
            return name;
    }
    return "";
}

// The value as this program writes it, so that 1e-3 and 0.001 are the same. A value that is not
// accepted stays as it is.
static const char *plain_value(struct knobs *scratch, int id, const char *value,
                               char out[KNOB_VALUE_BYTES]) {
    if (knobs_set_at(scratch, id, value, SET_BY_RECIPE, NULL) != 0)
        return value;
    return knobs_value(scratch, id, out);
}

static int add_setting(struct run_read *r, size_t *capacity, struct run_setting s) {
    s.name = region_copy(&r->region, s.name);
    s.value = region_copy(&r->region, s.value);
    s.initial = region_copy(&r->region, s.initial);
    struct run_setting *grown =
        region_grow(&r->region, r->settings, r->n_settings, capacity, sizeof *grown);
    if (!s.name || !s.value || !s.initial || !grown)
        return ERR_MEMORY;
    r->settings = grown;
    r->settings[r->n_settings++] = s;
    return 0;
}

static int compare(struct run_read *r, struct knobs *scratch, const char *text,
                   const struct yaml_entry *entries, size_t n, struct err *e) {
    size_t capacity = 0;
    for (size_t i = 0; i < n; i++) {
        char value[KNOB_VALUE_BYTES], initial[KNOB_VALUE_BYTES];
        int id = knob_find(entries[i].key);
        struct run_setting s = {.name = entries[i].key,
                                .value = entries[i].value,
                                .initial = "not known to this version",
                                .by = set_by(text, entries[i].line)};
        if (id >= 0) {
            s.value = plain_value(scratch, id, s.value, value);
            s.initial = knob_default(id, initial);
            if (strcmp(s.value, s.initial) == 0)
                continue;
        }
        if (add_setting(r, &capacity, s) != 0)
            return err_set(e, ERR_MEMORY, "no memory for the settings of %s", r->dir);
    }
    return 0;
}

static int read_recipe(struct run_read *r, const char *path, struct err *e) {
    struct err why = {0};
    struct region lines = {0};
    struct yaml_entry *entries = NULL;
    size_t n = 0, bytes = 0;
    char *text = NULL;
    struct knobs *scratch = malloc(sizeof *scratch);
    int rc = 0;
    if (!scratch)
        return err_set(e, ERR_MEMORY, "no memory for the settings of %s", r->dir);
    knobs_init(scratch);
    if (!file_exists(path))
        run_problem(r, "There is no recipe.yaml, so the settings are not known.");
    else if (file_read_all(path, RECIPE_BYTES, &text, &bytes, &why) != 0 ||
             yaml_read_text("recipe.yaml", text, bytes, &lines, &entries, &n, &why) != 0)
        run_problem(r, "The settings could not be read: %.400s.", why.text);
    else {
        rc = compare(r, scratch, text, entries, n, e);
        r->has_settings = true;
    }
    free(text);
    free(scratch);
    region_free(&lines);
    return rc;
}

// ---------------------------------------------------------------- all

int run_read_open(struct run_read *r, const char *dir, struct err *e) {
    char path[PATH_MAX];
    *r = (struct run_read){0};
    if (strlen(dir) >= sizeof r->dir)
        return err_set(e, ERR_USAGE,
                       "a folder's path of %zu characters is not accepted; at most %zu",
                       strlen(dir), sizeof r->dir - 1);
    run_copy(r->dir, sizeof r->dir, dir);
    name_run(r);
    if (!file_is_dir(dir))
        return err_set(e, ERR_IO, "'%s' is not a folder; accepted: the run.dir of a training run",
                       dir);
    TRY(file_join(path, sizeof path, dir, "log.jsonl", e));
    if (!file_exists(path))
        return err_set(e, ERR_IO, "'%s' has no log.jsonl; accepted: the run.dir of a training run",
                       dir);
    TRY(file_join(path, sizeof path, dir, "result.json", e));
    run_read_result(r, path);
    TRY(file_join(path, sizeof path, dir, "log.jsonl", e));
    TRY(run_read_log(r, path, e));
    TRY(file_join(path, sizeof path, dir, "recipe.yaml", e));
    return read_recipe(r, path, e);
}

void run_read_close(struct run_read *r) {
    samples_close(&r->log.step_ns);
    free(r->log.columns);
    r->log.columns = NULL;
    region_free(&r->region);
}

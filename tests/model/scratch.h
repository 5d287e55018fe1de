// scratch.h - shared by the tests of src/model: a temporary folder, files with given bytes, error
// checks.
#ifndef HAGGLE_TESTS_MODEL_SCRATCH_H
#define HAGGLE_TESTS_MODEL_SCRATCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/file.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HF_FIXTURES HAGGLE_SOURCE_DIR "/../shared/fixtures/hf"

struct scratch {
    char dir[256];
};

static inline int scratch_setup(void **state) {
    struct scratch *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -1;
    *state = s;
    return file_make_temp_dir(s->dir, sizeof s->dir, "test", NULL);
}

static inline int scratch_teardown(void **state) {
    struct scratch *s = *state;
    struct err e = {0};
    int rc = file_remove_tree(s->dir, &e);
    free(s);
    return rc;
}

// The path of a file in the scratch folder. It is valid until the fourth next call.
static inline const char *scratch_path(const struct scratch *s, const char *name) {
    static char paths[4][PATH_MAX];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s/%s", s->dir, name);
    return path;
}

// Writes a file without fsync, because the tests write thousands of files.
static inline const char *scratch_put(const struct scratch *s, const char *name, const void *data,
                                      size_t bytes) {
    const char *path = scratch_path(s, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
    return path;
}

static inline const char *scratch_text(const struct scratch *s, const char *name,
                                       const char *text) {
    return scratch_put(s, name, text, strlen(text));
}

// Checks that a call failed with a negative code, and with a message that contains every part.
// Parts are separated by '|'.
static inline void assert_failed(int rc, const struct err *e, const char *parts, const char *what) {
    if (rc >= 0 || e->code != rc || e->text[0] == '\0')
        fail_msg("%s: expected an error with '%s', got code %d, text '%s'", what, parts, rc,
                 e->text);
    char copy[512];
    snprintf(copy, sizeof copy, "%s", parts);
    char *rest = copy;
    for (char *part; (part = strsep(&rest, "|")) != NULL;)
        if (strstr(e->text, part) == NULL)
            fail_msg("%s: the message lacks '%s': %s", what, part, e->text);
}

static inline void assert_worked(int rc, const struct err *e) {
    if (rc != 0)
        fail_msg("unexpected error %d: %s", rc, e->text);
}

#endif

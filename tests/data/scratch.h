// scratch.h - a temporary folder per test, and files in it.
#ifndef HAGGLE_TESTS_DATA_SCRATCH_H
#define HAGGLE_TESTS_DATA_SCRATCH_H

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct folder {
    char path[128];
    char name[8][256]; // results of folder_file, used in turn
    int next;
};

static inline int folder_setup(void **state) {
    struct folder *f = calloc(1, sizeof *f);
    if (f == NULL)
        return -1;
    *state = f;
    return file_make_temp_dir(f->path, sizeof f->path, "data", NULL);
}

static inline int folder_teardown(void **state) {
    struct folder *f = *state;
    int rc = file_remove_tree(f->path, NULL);
    free(f);
    return rc;
}

static inline const char *folder_path(struct folder *f, const char *name) {
    char joined[sizeof f->name[0]], *out = f->name[f->next++ % 8];
    snprintf(joined, sizeof joined, "%s/%s", f->path, name);
    return memcpy(out, joined, sizeof joined);
}

// Writes a file and returns its path.
static inline const char *folder_file(struct folder *f, const char *name, const void *data,
                                      size_t bytes) {
    const char *path = folder_path(f, name);
    return file_write_atomic(path, data, bytes, NULL) == 0 ? path : "cannot be written";
}

#endif

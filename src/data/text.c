// text.c - finding, mapping and checking text files.
#include "data/text.h"

#include "base/json.h"
#include "base/region.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { EDGE_BYTES = 1 << 20 };            // of a file's start and end that the fingerprint reads
enum { JSONL_LINE_MAX_BYTES = 16 << 20 }; // a longer line is a damaged file, not a document

static int no_memory(struct err *e, const char *path) {
    return err_set(e, ERR_MEMORY, "%s: no memory to list the documents", path);
}

// Makes room for one more element; returns NULL when out of memory and leaves the array as it was.
static void *grown(void *array, size_t count, size_t *capacity, size_t element_bytes) {
    if (count < *capacity)
        return array;
    size_t wider = *capacity ? 2 * *capacity : 16;
    void *moved = wider <= SIZE_MAX / element_bytes ? realloc(array, wider * element_bytes) : NULL;
    if (moved != NULL)
        *capacity = wider;
    return moved;
}

static int add_document(struct text_files *t, const unsigned char *data, size_t bytes,
                        struct err *e) {
    struct text_document *documents =
        grown(t->documents, t->count, &t->capacity, sizeof *t->documents);
    if (documents == NULL)
        return no_memory(e, t->files[t->n_files - 1].path);
    t->documents = documents;
    documents[t->count++] =
        (struct text_document){.data = data, .bytes = bytes, .file = t->n_files - 1};
    t->bytes += bytes;
    return 0;
}

static bool has_suffix(const char *name, const char *suffix) {
    size_t n = strlen(name), s = strlen(suffix);
    return n > s && strcmp(name + n - s, suffix) == 0;
}

// ---------------------------------------------------------------- JSONL

// One line: its "text", unescaped, appended at *at. strings is emptied by the caller.
static int read_line(struct text_files *t, const char *name, const char *line, size_t bytes,
                     struct region *strings, char **at, struct err *e) {
    struct json_reader r;
    json_reader_init(&r, name, line, bytes, strings, e);
    const char *key, *text = NULL;
    size_t text_bytes = 0;
    if (json_peek(&r) != JSON_OBJECT)
        json_fail(&r, ERR_FORMAT, "expected an object with a \"text\" member");
    json_enter_object(&r);
    while (json_next_key(&r, &key)) {
        if (strcmp(key, "text") != 0)
            json_skip(&r);
        else if (text != NULL)
            json_fail(&r, ERR_FORMAT, "\"text\" is given twice");
        else
            json_read_string(&r, &text, &text_bytes);
    }
    TRY(json_finish(&r));
    if (text == NULL)
        return err_set(e, ERR_FORMAT,
                       "%s: there is no \"text\" member; only {\"text\": \"...\"} lines are read",
                       name);
    if (text_bytes == 0) {
        t->skipped_empty++;
        return 0;
    }
    memcpy(*at, text, text_bytes);
    TRY(add_document(t, (const unsigned char *)*at, text_bytes, e));
    *at += text_bytes;
    return 0;
}

static int read_lines(struct text_files *t, struct text_file *f, struct err *e) {
    const char *at = (const char *)f->map.data, *end = at + f->map.bytes;
    // Unescaping never lengthens: a line's text is shorter than the line.
    char *out = f->decoded = malloc(f->map.bytes);
    if (out == NULL)
        return err_set(e, ERR_MEMORY, "%s: no memory for its %zu bytes of text", f->path,
                       f->map.bytes);
    if (f->map.bytes >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0)
        at += 3;
    size_t before = t->count;
    for (size_t number = 1; at < end; number++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline != NULL ? newline : end;
        size_t bytes = (size_t)(stop - at);
        if (bytes > 0 && at[bytes - 1] == '\r')
            bytes--;
        char name[1100];
        snprintf(name, sizeof name, "%s line %zu", f->path, number);
        if (bytes > JSONL_LINE_MAX_BYTES)
            return err_set(e, ERR_FORMAT, "%s: has %zu bytes; at most %d are accepted", name, bytes,
                           JSONL_LINE_MAX_BYTES);
        if (bytes > 0) {
            struct region strings = {0};
            int rc = read_line(t, name, at, bytes, &strings, &out, e);
            region_free(&strings);
            TRY(rc);
        }
        at = newline != NULL ? newline + 1 : end;
    }
    if (t->count == before)
        return err_set(e, ERR_USAGE, "%s: has no document that is not empty", f->path);
    return 0;
}

// ---------------------------------------------------------------- paths

static int add_file(struct text_files *t, const char *path, bool named, struct err *e) {
    struct text_file *files = grown(t->files, t->n_files, &t->file_capacity, sizeof *t->files);
    char *copy = strdup(path);
    if (files != NULL)
        t->files = files;
    if (files == NULL || copy == NULL) {
        free(copy);
        return no_memory(e, path);
    }
    struct text_file *f = &t->files[t->n_files++]; // from here text_files_close owns it
    *f = (struct text_file){.path = copy};
    TRY(file_map_open(&f->map, path, e));
    f->bytes = f->map.bytes;
    if (f->bytes == 0) {
        if (named)
            return err_set(e, ERR_USAGE, "%s: the file is empty", path);
        t->skipped_empty++;
        return 0;
    }
    if (!has_suffix(path, ".jsonl"))
        return add_document(t, f->map.data, f->map.bytes, e);
    int rc = read_lines(t, f, e);
    file_map_close(&f->map);
    return rc;
}

struct folder {
    struct text_files *t;
    const char *path;
    struct err *e;
};

static int visit(void *arg, const char *name) {
    struct folder *folder = arg;
    if (!has_suffix(name, ".txt") && !has_suffix(name, ".jsonl"))
        return 0;
    char path[4096];
    TRY(file_join(path, sizeof path, folder->path, name, folder->e));
    if (file_is_dir(path))
        return 0;
    return add_file(folder->t, path, false, folder->e);
}

static int add_path(struct text_files *t, const char *path, struct err *e) {
    struct stat st;
    if (stat(path, &st) != 0)
        return err_set(e, ERR_IO, "%s: %s", path,
                       errno == ENOENT ? "there is no such file or folder" : strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return add_file(t, path, true, e);
    size_t before = t->count;
    struct folder folder = {t, path, e};
    TRY(file_list_dir(path, visit, &folder, e));
    if (t->count == before)
        return err_set(e, ERR_USAGE, "%s: the folder holds no .txt or .jsonl file with text", path);
    return 0;
}

int text_files_open(struct text_files *t, const char *paths, struct err *e) {
    *t = (struct text_files){0};
    int rc = 0;
    // A name that has a comma in it and exists is meant as it stands.
    if (strchr(paths, ',') == NULL || file_exists(paths)) {
        rc = add_path(t, paths, e);
    } else {
        char *copy = strdup(paths), *rest = NULL;
        if (copy == NULL)
            rc = no_memory(e, paths);
        for (char *path = copy ? strtok_r(copy, ",", &rest) : NULL; path != NULL && rc == 0;
             path = strtok_r(NULL, ",", &rest))
            rc = add_path(t, path, e);
        free(copy);
    }
    if (rc == 0 && t->count == 0)
        rc = err_set(e, ERR_USAGE, "data.path '%s' names no file", paths);
    if (rc != 0)
        text_files_close(t);
    return rc;
}

void text_files_close(struct text_files *t) {
    for (size_t i = 0; i < t->n_files; i++) {
        file_map_close(&t->files[i].map);
        free(t->files[i].decoded);
        free(t->files[i].path);
    }
    free(t->files);
    free(t->documents);
    *t = (struct text_files){0};
}

// Reading a mapped page past the end of a file that was cut short kills the process with SIGBUS.
// Asking for the size first leaves a window of a microsecond instead of the whole run.
int text_files_check(const struct text_files *t, size_t document, struct err *e) {
    const struct text_file *f = &t->files[t->documents[document].file];
    if (f->map.data == NULL)
        return 0;
    struct stat st;
    if (stat(f->path, &st) != 0)
        return err_set(e, ERR_MISMATCH, "%s: is gone: %s; data must not change during a run",
                       f->path, strerror(errno));
    if ((uint64_t)st.st_size != f->bytes)
        return err_set(e, ERR_MISMATCH,
                       "%s: had %llu bytes when the run began and has %llu now; data must not "
                       "change during a run",
                       f->path, (unsigned long long)f->bytes, (unsigned long long)st.st_size);
    return 0;
}

int text_files_fingerprint(const struct text_files *t, char out[HASH_TEXT_BYTES], struct err *e) {
    struct hash *h = hash_new();
    if (h == NULL)
        return err_set(e, ERR_MEMORY, "data: no memory for a hash");
    for (size_t i = 0; i < t->count; i++) {
        const struct text_document *d = &t->documents[i];
        const struct text_file *f = &t->files[d->file];
        const uint64_t bytes = d->bytes;
        hash_add(h, &bytes, sizeof bytes);
        if (f->map.data == NULL || d->bytes <= 2 * EDGE_BYTES) {
            hash_add(h, d->data, d->bytes);
        } else {
            hash_add(h, d->data, EDGE_BYTES);
            hash_add(h, d->data + d->bytes - EDGE_BYTES, EDGE_BYTES);
        }
    }
    hash_text(h, out);
    hash_free(h);
    return 0;
}

// readers.h - every parser of untrusted files behind one signature. A reader reads the file (or
// folder) completely, frees everything, and returns what the parser returned.
#ifndef HAGGLE_TESTS_HOSTILE_READERS_H
#define HAGGLE_TESTS_HOSTILE_READERS_H

#include "base/err.h"

#include <stddef.h>

struct reader {
    const char *name;
    const char *file; // the file's name; if `folder` is set, the folder of this file is read
    int folder;
    int (*read)(const char *path, struct err *e);
};

enum {
    READ_SAFETENSORS,
    READ_INDEX,
    READ_CONFIG,
    READ_ADAPTER,
    READ_MANIFEST,
    READ_RECIPE,
    READ_GGUF,
    READERS
};
extern const struct reader readers[READERS];

// The most bytes that reading may hold on the heap at any time: 16 MiB plus four times the file.
size_t reader_heap_limit(size_t file_bytes);
// Runs a reader and checks what must hold for every file: the heap stays within the limit, nothing
// leaks, and an error has a code and a message. Returns the parser's result.
int reader_run(const struct reader *r, const char *path, size_t file_bytes, struct err *e);

// Writes a manifest as haggle writes it to `out`, NUL-terminated. `dir` is a folder for temporary
// files.
size_t manifest_sample(const char *dir, char *out, size_t room);
// Writes a small GGUF file to out. *head: bytes in front of the data.
size_t gguf_sample(char *out, size_t room, size_t *head);
// Sets the hash of a manifest's text to the correct one.
void manifest_fix_hash(char *text, size_t bytes);

#endif

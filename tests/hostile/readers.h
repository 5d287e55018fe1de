// readers.h - every parser of files that others write, behind one signature: read the file (or folder)
// all the way, give everything back, return what the parser returned.
#ifndef HAGGLE_TESTS_HOSTILE_READERS_H
#define HAGGLE_TESTS_HOSTILE_READERS_H

#include "base/err.h"

#include <stddef.h>

struct reader {
    const char *name;
    const char *file; // how the file is called; its folder is what is read when `folder` is set
    int folder;
    int (*read)(const char *path, struct err *e);
};

enum { READ_SAFETENSORS, READ_INDEX, READ_CONFIG, READ_MANIFEST, READ_RECIPE, READERS };
extern const struct reader readers[READERS];

// 16 MiB and four times what the file has: what reading may hold on the heap at any time.
size_t reader_heap_limit(size_t file_bytes);
// Reads and checks what must hold whatever the file says: the heap stays within the limit, nothing
// leaks, a refusal has its code and a sentence. Returns the parser's result.
int reader_run(const struct reader *r, const char *path, size_t file_bytes, struct err *e);

// A manifest as haggle writes it, in `out` (NUL-terminated); `dir` is a folder to write in.
size_t manifest_sample(const char *dir, char *out, size_t room);
// Gives a manifest's text (opening included) the hash that fits.
void manifest_fix_hash(char *text, size_t bytes);

#endif

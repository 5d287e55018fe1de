// fuzz.h - shared by the fuzz targets.
//
// A target is fuzz_<what>.c. It passes its input to one parser and checks what must hold when the
// input is accepted. It runs in two ways: under libFuzzer (scripts/fuzz.sh, clang), and with
// replay.c as an ordinary program that CTest runs over seeds/<what> in every build, sanitizers
// included. Parsers that read a file by name get a file in memory, so that the disk does not slow
// them down.
#ifndef HAGGLE_TESTS_FUZZ_FUZZ_H
#define HAGGLE_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
// A target defines these only if it must prepare something, or must correct a length or hash after
// a mutation.
int LLVMFuzzerInitialize(int *argc, char ***argv);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t most, unsigned seed);
// Provided by libFuzzer, or by replay.c.
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t most);

// Checks for errors that a sanitizer does not find.
#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);         \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

// A failed call must have set a code and a message. A macro, so that this file need not include
// err.h.
#define FUZZ_CHECK_RESULT(rc, e)                                                                   \
    FUZZ_CHECK((rc) == 0 || ((rc) < 0 && (e)->code == (rc) && (e)->text[0] != '\0'))

struct fuzz_file {
    int fd; // 0: not made yet
    char path[64];
};

// Sets the content of the file. The name stays the same from call to call.
static inline const char *fuzz_file_set(struct fuzz_file *f, const void *data, size_t bytes) {
    if (f->fd == 0) {
        f->fd = memfd_create("fuzz", MFD_CLOEXEC);
        FUZZ_CHECK(f->fd > 0);
        snprintf(f->path, sizeof f->path, "/proc/self/fd/%d", f->fd);
    }
    FUZZ_CHECK(ftruncate(f->fd, 0) == 0);
    FUZZ_CHECK(bytes == 0 || pwrite(f->fd, data, bytes, 0) == (ssize_t)bytes);
    return f->path;
}

#endif

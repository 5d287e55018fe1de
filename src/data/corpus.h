// corpus.h - the built-in corpus: English-like text that is generated, endless and learnable.
//
// Place: dataset.c reads it when no data is named. Document i is a function of (seed, i): any
// thread can make any part on demand, and nothing is stored.
//
// The kinds get harder step by step, so that a small byte-level model keeps improving for a long
// time. Spelling and grammar come in seconds. Counting and the agreement of names and pronouns come
// next, then copying, sums, recall of a value named earlier, and reversal.
//
// Invariants:
//   1. Documents are ASCII, lines end in '\n', the length is in [CORPUS_MIN_BYTES,
//      CORPUS_MAX_BYTES].
//   2. Every statement is true: sums are right, recalled values are the given ones, pronouns agree.
#ifndef HAGGLE_DATA_CORPUS_H
#define HAGGLE_DATA_CORPUS_H

#include <stddef.h>
#include <stdint.h>

enum { CORPUS_MIN_BYTES = 100, CORPUS_MAX_BYTES = 640 };

// Changes when any document changes. It is part of the fingerprint.
enum { CORPUS_VERSION = 1 };

// enum, heading in the first line
#define CORPUS_LIST(X)                                                                             \
    X(CORPUS_STORY, "Story")                                                                       \
    X(CORPUS_COUNT_UP, "Count")                                                                    \
    X(CORPUS_SUM, "Sums")                                                                          \
    X(CORPUS_COPY, "Copy")                                                                         \
    X(CORPUS_REVERSE, "Reverse")                                                                   \
    X(CORPUS_RECALL, "Recall")

enum corpus_kind {
#define X(name, heading) name,
    CORPUS_LIST(X)
#undef X
        CORPUS_KINDS
};
const char *corpus_heading(enum corpus_kind kind);

// Writes document `index` and returns its length. No NUL is added.
size_t corpus_write(uint64_t seed, uint64_t index, char out[CORPUS_MAX_BYTES]);

#endif

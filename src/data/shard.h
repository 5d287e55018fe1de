// shard.h - a file's documents as token ids: written once, mapped, and reused for as long as the
// file, the tokenizer and the rendering stay the same.
//
// Place: render.h turns a record into tokens, shard_obtain does so for a whole file (threads,
// progress) and keeps the result; pack.c and dataset.c read it.
//
//   <cache>/<key>.shard    header | ids (16 or 32 bits) | trained bits | document offsets
//
// The key is a hash of the file's contents, the fingerprints of tokenizer and renderer, and this
// format's version: a copy of a file elsewhere is the same shard, and nothing has to be compared.
//
// Invariants:
//   1. A shard is believed only after its header, the sizes that follow from it, the hash of all its
//      bytes, its offsets and its ids have been checked. One that fails is made anew, with a line
//      that says so.
//   2. It is written under a name of its own, made durable and renamed: a crash leaves no half, and
//      two processes that make the same one at once both succeed.
//   3. Source files are read, not mapped, and must be the same before, during and after. A shard that
//      changes under its mapping is an error of shard_check, not a crash.
//   4. What is made does not depend on the number of threads.
#ifndef HAGGLE_DATA_SHARD_H
#define HAGGLE_DATA_SHARD_H

#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/render.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum { SHARD_VERSION = 1 };

struct shard_counts {
    uint64_t documents, tokens;
    uint64_t trained;      // tokens that are targets
    uint64_t end_trained;  // documents that train the token they end with
    uint64_t untrained;    // documents without a target
    uint64_t source_bytes; // of the file
};

struct shard {
    char key[HASH_TEXT_BYTES];
    char path[1024]; // "" when in memory only
    struct shard_counts counts;
    enum render_shape shape; // RENDER_AUTO: a plain document, not records
    int32_t vocab;           // ids are below
    // The mapping
    int fd;
    struct stat identity;
    void *map;
    size_t bytes;
    bool wide; // ids of 32 bits, else 16
    const void *ids;
    const uint64_t *trained; // bit i % 64 of word i / 64
    const uint64_t *offsets; // [documents + 1]
    // How it came about
    bool reused;
    double seconds; // hashing, checking, rendering, writing: all of shard_obtain
};

// Opens and checks a shard file. ERR_FORMAT says what is wrong with it.
int shard_open(struct shard *s, const char *path, const char *key, struct err *e);
void shard_close(struct shard *s);
// ERR_MISMATCH when the file behind the mapping was cut or written to.
int shard_check(const struct shard *s, struct err *e);

// Takes the pages read so far out of the process (they stay in the system's cache): checking and
// packing read everything once, and a run's memory should not be judged by that.
void shard_forget_pages(const struct shard *s);

static inline int32_t shard_id(const struct shard *s, uint64_t at) {
    return s->wide ? ((const int32_t *)s->ids)[at] : (int32_t)((const uint16_t *)s->ids)[at];
}
static inline bool shard_is_trained(const struct shard *s, uint64_t at) {
    return s->trained[at / 64] >> at % 64 & 1;
}
// Trained tokens in [at, at + n).
uint64_t shard_count_trained(const struct shard *s, uint64_t at, uint64_t n);

// ---------------------------------------------------------------- writing

// What a shard is made of, in order: pieces of documents. Used by shard_build.c and by tests.
struct shard_writer;
struct shard_header_info {
    const char *key;
    enum render_shape shape;
    int32_t vocab;
    uint64_t source_bytes;
};
// path NULL: in memory. The file appears when shard_writer_end returns 0.
int shard_writer_open(struct shard_writer **out, const char *path, struct err *e);
// wide: n ids of 32 bits, else of 16. trained: a byte each, NULL: all are.
int shard_writer_put(struct shard_writer *w, const int32_t *ids, const unsigned char *trained,
                     size_t n, bool wide, struct err *e);
// Ends the document of the tokens put since the last one ended.
int shard_writer_end_document(struct shard_writer *w, bool end_trained, struct err *e);
// Finishes the file and opens it as *out. The writer is gone either way.
int shard_writer_end(struct shard_writer *w, const struct shard_header_info *info,
                     struct shard *out, struct err *e);
void shard_writer_abort(struct shard_writer *w); // NULL is fine

// ---------------------------------------------------------------- obtaining (shard_obtain.c)

struct shard_progress {
    const char *path; // of the source
    uint64_t bytes, of_bytes, tokens;
    double seconds;
};

struct shard_listener { // any member may be NULL; called from the thread that called
    void *arg;
    void (*say)(void *arg, enum log_level level, const char *text);
    void (*progress)(void *arg, const struct shard_progress *p); // ten times a second at most
    // Not 0: give up with ERR_STOPPED.
    int (*stop)(void *arg);
};

struct shard_options {
    const struct tokenizer *tokenizer;
    const struct renderer *renderer;
    enum render_shape shape; // of records; RENDER_AUTO: by the first of each file
    const char *cache;       // folder; NULL: kept in memory
    int threads;             // >= 1
    struct shard_listener listener;
};

struct shard_source {
    const char *path; // NULL: documents 0 .. corpus_documents - 1 of the built-in corpus
    bool records;     // a record per line, else one plain document
    uint64_t corpus_seed, corpus_documents;
};

// The shard of a source: found, or made. ERR_FORMAT with file and line for a bad record.
int shard_obtain(struct shard *out, const struct shard_source *source,
                 const struct shard_options *o, struct err *e);
// $XDG_CACHE_HOME/haggle/shards, else ~/.cache/haggle/shards; ERR_UNSUPPORTED without either.
int shard_default_cache(char *out, size_t bytes, struct err *e);

#endif

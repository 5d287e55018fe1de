// shard.h - a file's documents as token ids. Written once, mapped, and reused while the file, the
// tokenizer and the rendering stay the same.
//
// Place: render.h turns a record into tokens. shard_obtain does so for a whole file (with threads
// and progress) and keeps the result. pack.c and dataset.c read it.
//
//   <cache>/<key>.shard    header | ids (16 or 32 bits) | trained bits | document offsets
//
// The key is a hash of the file's contents, the fingerprints of tokenizer and renderer, and the
// version of this format. So a copy of a file elsewhere has the same shard, and nothing else has to
// be compared.
//
// Invariants:
//   1. A shard is used only after its header, the sizes that follow from it, the hash of all its
//      bytes, its offsets and its ids have been checked. A shard that fails is made again, and a
//      message says so.
//   2. A shard is written under a unique name, synced to disk and renamed. So a crash leaves no
//      partial shard, and two processes that make the same shard at once both succeed.
//   3. Source files are read, not mapped, and must stay the same before, during and after. A shard
//      that changes while it is mapped is an error of shard_check, not a crash.
//   4. The shard does not depend on the number of threads.
#ifndef HAGGLE_DATA_SHARD_H
#define HAGGLE_DATA_SHARD_H

#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/render.h"
#include "knob/knob.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum { SHARD_VERSION = 2 };

struct shard_counts {
    uint64_t documents, tokens;
    uint64_t trained;      // tokens that are targets
    uint64_t end_trained;  // documents whose last token is trained
    uint64_t untrained;    // documents without a target
    uint64_t source_bytes; // size of the source file
    uint64_t bad;          // lines that were left out because they are no records
};

struct shard {
    char key[HASH_TEXT_BYTES];
    char path[1024]; // "" when only in memory
    struct shard_counts counts;
    enum render_shape shape; // RENDER_AUTO: a plain document, not records
    int32_t vocab;           // ids are below this
    // The mapping
    int fd;
    struct stat identity;
    void *map;
    size_t bytes;
    bool wide; // true: ids of 32 bits; false: 16
    const void *ids;
    const uint64_t *trained; // bit i % 64 of word i / 64 is token i
    const uint64_t *offsets; // [documents + 1]
    // How it was obtained
    bool reused;
    double seconds; // of the whole shard_obtain: hashing, checking, rendering, writing
};

// Opens and checks a shard file. ERR_FORMAT says what is wrong with it.
int shard_open(struct shard *s, const char *path, const char *key, struct err *e);
void shard_close(struct shard *s);
// ERR_MISMATCH when the mapped file was truncated or written to.
int shard_check(const struct shard *s, struct err *e);

// Removes the pages read so far from the process; they stay in the system's cache. Checking and
// packing read everything once, which should not count as the run's memory.
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

// Writes a shard from pieces of documents, in order. Used by shard_build.c and by tests.
struct shard_writer;
struct shard_header_info {
    const char *key;
    enum render_shape shape;
    int32_t vocab;
    uint64_t source_bytes, bad;
};
// path NULL: in memory. The file appears only when shard_writer_end returns 0.
int shard_writer_open(struct shard_writer **out, const char *path, struct err *e);
// wide: the shard stores ids of 32 bits, else of 16. trained: one byte per id; NULL: all are
// trained.
int shard_writer_put(struct shard_writer *w, const int32_t *ids, const unsigned char *trained,
                     size_t n, bool wide, struct err *e);
// Ends a document: it has the tokens put since the previous document ended.
int shard_writer_end_document(struct shard_writer *w, bool end_trained, struct err *e);
// Finishes the file and opens it as *out. The writer is freed in any case.
int shard_writer_end(struct shard_writer *w, const struct shard_header_info *info,
                     struct shard *out, struct err *e);
void shard_writer_abort(struct shard_writer *w); // NULL is fine

// ---------------------------------------------------------------- obtaining (shard_obtain.c)

struct shard_progress {
    const char *path; // path of the source
    uint64_t bytes, of_bytes, tokens;
    double seconds;
};

struct shard_listener { // any member may be NULL; called in the thread of shard_obtain
    void *arg;
    void (*say)(void *arg, enum log_level level, const char *text);
    void (*progress)(void *arg, const struct shard_progress *p); // at most ten times a second
    // Returns non-zero to stop with ERR_STOPPED.
    int (*stop)(void *arg);
};

struct shard_options {
    const struct tokenizer *tokenizer;
    const struct renderer *renderer;
    enum render_shape shape; // of records; RENDER_AUTO: found from the first record of a file
    enum data_bad bad;       // what happens to lines that are no records
    const char *cache;       // folder; NULL: the shard stays in memory
    int threads;             // >= 1
    struct shard_listener listener;
};

struct shard_source {
    const char *path; // NULL: documents 0 .. corpus_documents - 1 of the built-in corpus
    bool records;     // one record per line; else one plain document
    uint64_t corpus_seed, corpus_documents;
};

// Finds or makes the shard of a source. Lines that are no records are ERR_FORMAT with file and
// line. When there are several, the listener hears of each, up to SHARD_BAD_TOLD. With
// DATA_BAD_SKIP they are left out: they are written to <cache>/<key>.bad.jsonl, and the listener
// hears how many they are. A file without any good line is an error in either case.
enum { SHARD_BAD_TOLD = 20 };
int shard_obtain(struct shard *out, const struct shard_source *source,
                 const struct shard_options *o, struct err *e);
// $XDG_CACHE_HOME/haggle/shards, else ~/.cache/haggle/shards; ERR_UNSUPPORTED without either.
int shard_default_cache(char *out, size_t bytes, struct err *e);

#endif

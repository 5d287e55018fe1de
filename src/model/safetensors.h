// safetensors.h - reads and writes Hugging Face weight files. The files are untrusted input.
//
// The header is read by the strict JSON reader (base/json.h) under the rules of the format: a
// length of at most 100,000,000, offsets contiguous from 0 to the end of the file without overlap,
// shape x dtype equal to the range, no duplicate names. Data is read with pread into the caller's
// buffer, so that a file that shrinks gives an error and not a signal.
#ifndef HAGGLE_MODEL_SAFETENSORS_H
#define HAGGLE_MODEL_SAFETENSORS_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/file.h"

#include <stdint.h>

enum { SAFETENSORS_MAX_RANK = 8 };

struct safetensors_entry {
    const char *name;
    enum dtype dtype; // DTYPE_COUNT: valid in the format (BOOL, I16, ...) but not read by haggle
    int rank;
    int64_t dims[SAFETENSORS_MAX_RANK];
    int64_t elements;
    uint64_t begin, bytes;  // inside the data part
    const char *dtype_name; // as the file spells it
};

struct safetensors; // one open file

// ERR_UNSUPPORTED when the path has the extension of a pickle file (.bin, .pt, ...), whether or not
// the file exists. The message names safetensors as the accepted format.
int safetensors_refuse_pickle(const char *path, struct err *e);

int safetensors_open(struct safetensors **out, const char *path, struct err *e);
void safetensors_close(struct safetensors *st);
size_t safetensors_count(const struct safetensors *st);
uint64_t safetensors_data_start(const struct safetensors *st); // where the data part begins
// The i-th tensor in the order of the data. NULL when i is past the end.
const struct safetensors_entry *safetensors_at(const struct safetensors *st, size_t i);
// NULL when there is no tensor of that name.
const struct safetensors_entry *safetensors_find(const struct safetensors *st, const char *name);
// Reads elements [first, first+n) and converts them to out_type. Floating-point types can be
// converted to each other, integers only to the same type. Several threads may call this at once.
int safetensors_read(struct safetensors *st, const struct safetensors_entry *t, int64_t first,
                     int64_t n, void *out, enum dtype out_type, struct err *e);

// The weights of a model folder: one model.safetensors, or the shards of
// model.safetensors.index.json. Shards must be inside the folder, or in the blobs of the Hugging
// Face cache that it belongs to. Pickle files (.bin, .pt) are refused by name.
struct weights;
int weights_open(struct weights **out, const char *dir, struct err *e);
void weights_close(struct weights *w);
const struct safetensors_entry *weights_find(const struct weights *w, const char *name);
size_t weights_count(const struct weights *w);
const struct safetensors_entry *weights_at(const struct weights *w, size_t i);
int weights_read(struct weights *w, const struct safetensors_entry *t, int64_t first, int64_t n,
                 void *out, enum dtype out_type, struct err *e);

// Writing: declare all tensors, then put their data in the same order. After any failure call
// abort. close frees the writer only when it returns 0.
struct safetensors_writer;
int safetensors_writer_open(struct safetensors_writer **out, const char *path, struct err *e);
int safetensors_writer_declare(struct safetensors_writer *w, const char *name, enum dtype dtype,
                               int rank, const int64_t *dims, struct err *e);
// Appends bytes. The first put writes the header. Each tensor must be filled exactly before the
// next one begins. A put that would run past the end of a tensor is an error.
int safetensors_writer_put(struct safetensors_writer *w, const void *data, size_t bytes,
                           struct err *e);
// Several processes may write one file. One of them declares all tensors, reserves the file and
// tells the others the path of the unfinished file; all of them fill parts; then it closes the
// writer, which reads the file for its fingerprint.
int safetensors_writer_reserve(struct safetensors_writer *w, struct err *e);
const char *safetensors_writer_unfinished(const struct safetensors_writer *w);
struct safetensors_filler;
int safetensors_filler_open(struct safetensors_filler **out, const char *unfinished, struct err *e);
// Elements [first, first + n) of a tensor.
int safetensors_filler_put(struct safetensors_filler *f, const char *name, int64_t first, int64_t n,
                           const void *data, struct err *e);
// Makes durable what was put. Frees the filler also after a failure. NULL is accepted.
int safetensors_filler_close(struct safetensors_filler *f, struct err *e);

// Finishes the file durably. hash (HASH_TEXT_BYTES, may be NULL) receives its fingerprint and bytes
// (may be NULL) its size.
int safetensors_writer_close(struct safetensors_writer *w, char *hash, uint64_t *bytes,
                             struct err *e);
// Removes the unfinished file. NULL is accepted.
void safetensors_writer_abort(struct safetensors_writer *w);

#endif

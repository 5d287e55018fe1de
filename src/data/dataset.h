// dataset.h - data as numbered windows of T tokens: one interface over files and the built-in corpus.
//
// Place: loader.c asks for windows by sample number; checkpoints store one counter.
//
// Files become shards (shard.h), their documents windows (pack.h). targets[t] is the next token of
// the same document, or DATASET_NOT_TRAINED where that token is not to be learned; attention and
// positions restart at each document: doc_start[t] is the column where the document of column t
// begins in this window (0 when it began before), positions[t] = t - doc_start[t]. Padding at a
// window's end is not trained and each of its columns is a document of its own, which nothing sees.
//
// Invariants:
//   1. Sample i is a function of (data, options, split, i): no state, any thread, any order.
//   2. An epoch uses every window once, in an order drawn from (seed, epoch); pools with weights are
//      mixed as mix.h says. Windows of one text stream have no padding: where T does not divide the
//      tokens, the last one starts early and its repeated columns are not trained.
//   3. No target of the validation split is a target of the training split. Records are drawn one by
//      one, by (seed, number of the record); plain text keeps its last tokens; the corpus other
//      documents.
//   4. Every window of files has a trained column: documents without any are counted and left out.
#ifndef HAGGLE_DATA_DATASET_H
#define HAGGLE_DATA_DATASET_H

#include "base/err.h"
#include "base/hash.h"
#include "data/pack.h"
#include "data/shard.h"
#include "knob/knob.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dataset;

#define DATASET_SYNTHETIC "synthetic" // the name of the built-in corpus
enum { DATASET_NOT_TRAINED = -1 };    // target of a column that is context only
#define DATASET_ENDLESS UINT64_MAX

enum dataset_split { SPLIT_TRAIN, SPLIT_VALIDATION, SPLITS };

struct dataset_options {
    const char *paths; // NULL, "" or DATASET_SYNTHETIC: the corpus; else as in text.h
    uint64_t seed;     // of the order and the split (files) or of the documents (corpus)
    int64_t seq;       // T
    // Share of the data kept for validation; in [0, 0.5]. 0: none. The corpus in bytes always has a
    // validation split.
    double validation_fraction;
    // What follows may stay zero.
    const char *validation_paths; // validation data of its own; the fraction is then not used
    // NULL: the built-in bytes, opened by the dataset itself. Else both, which outlive it.
    const struct tokenizer *tokenizer;
    const struct renderer *renderer;
    enum render_shape shape;
    enum data_pack pack;
    enum data_long long_;
    const char *cache; // folder of shards; NULL: in memory
    int threads;       // that tokenize; 0: one
    struct shard_listener listener;
};

// ERR_USAGE when there is too little data for a window of each split, with the numbers.
int dataset_open(struct dataset **out, const struct dataset_options *o, struct err *e);
// The same from knobs: finds tokenizer, template and cache. model_dir is the model's folder, NULL for
// a built-in shape; vocab what the model has ids for (ERR_MISMATCH when the tokenizer has more; 0:
// not checked).
int dataset_open_knobs(struct dataset **out, const struct knobs *k, const char *model_dir,
                       int64_t vocab, const struct shard_listener *listener, struct err *e);
// The tokenizer that reads text with these knobs: `tokenizer`, else the folder's tokenizer.json,
// else bytes for a built-in shape (and for the built-in corpus). ERR_USAGE when a folder has none. With
// a renderer that uses it: how documents begin and end. Close the renderer first.
int dataset_open_renderer(struct tokenizer **t, struct renderer **r, const struct knobs *k,
                          const char *model_dir, struct err *e);
void dataset_close(struct dataset *d);

int64_t dataset_seq(const struct dataset *d);
int32_t dataset_vocab(const struct dataset *d); // ids are in [0, vocab)
// Windows of one epoch (all windows of all pools) and tokens trained in it; DATASET_ENDLESS for the
// corpus in bytes, 0 for a split that is not there.
uint64_t dataset_windows(const struct dataset *d, enum dataset_split split);
uint64_t dataset_tokens(const struct dataset *d, enum dataset_split split);
// For people: "2 files, 5000 documents, 1.2M tokens, 40.0 % trained" or "built-in corpus, seed 1".
const char *dataset_describe(const struct dataset *d);
// For checkpoints: a hash of the shards and their weights, or of the corpus' version and seed.
// Resuming with another fingerprint is resuming on other data.
const char *dataset_fingerprint(const struct dataset *d); // 32 hex digits

struct dataset_window { // each holds T
    int32_t *tokens, *targets, *positions, *doc_start;
};

// A reader's memory between calls: what one thread needs to make windows without allocating. Bytes
// needed, then cleared once; each thread has its own.
size_t dataset_scratch_bytes(const struct dataset *d);
void dataset_scratch_clear(const struct dataset *d, void *scratch);

// Fills the window of `sample` (any number: epochs follow one another).
int dataset_fetch(const struct dataset *d, enum dataset_split split, uint64_t sample, void *scratch,
                  const struct dataset_window *out, struct err *e);
// Trained columns of that window, without making it: ranks agree on a step's total by arithmetic.
int64_t dataset_trained(const struct dataset *d, enum dataset_split split, uint64_t sample);
// Columns of that window that are not padding.
int64_t dataset_real(const struct dataset *d, enum dataset_split split, uint64_t sample);

// All that is known of a window without making it.
struct dataset_about {
    uint64_t window; // which of the split's: below dataset_windows; of an endless one the sample
    int64_t trained, real;
    // That making it reads: its tokens, with the one behind each document that is a target only, at
    // their width in the shard (2 or 4 bytes); of the corpus in bytes one for each.
    uint64_t source_bytes;
};
struct dataset_about dataset_about(const struct dataset *d, enum dataset_split split,
                                   uint64_t sample);
uint64_t dataset_seed(const struct dataset *d);

// ---------------------------------------------------------------- windows kept in memory

// A window in short: tokens and targets, at 2 bytes each where the vocabulary allows. Where documents
// begin is known without reading them. Not for an endless split.
size_t dataset_kept_bytes(const struct dataset *d);
void dataset_keep(const struct dataset *d, const struct dataset_window *w, void *kept);
// The same window again, for the sample it was made of or another with the same number.
void dataset_fetch_kept(const struct dataset *d, enum dataset_split split, uint64_t sample,
                        const void *kept, const struct dataset_window *out);

// ---------------------------------------------------------------- looking at it

size_t dataset_files(const struct dataset *d); // 0 for the corpus in bytes
const char *dataset_file_path(const struct dataset *d, size_t i);
const struct shard *dataset_file_shard(const struct dataset *d, size_t i);
double dataset_file_share(const struct dataset *d, size_t i);   // of training samples, of its pool
bool dataset_file_validates(const struct dataset *d, size_t i); // is of validation_paths
enum data_pack dataset_pack_mode(const struct dataset *d, size_t file); // auto resolved
// Sums over the pools of a split.
struct pack_stats dataset_stats(const struct dataset *d, enum dataset_split split);
// What packing the training split otherwise would give: stats, and windows.
int dataset_try_pack(const struct dataset *d, enum data_pack mode, struct pack_stats *stats,
                     uint64_t *windows, struct err *e);
const struct tokenizer *dataset_tokenizer(const struct dataset *d);
const struct renderer *dataset_renderer(const struct dataset *d);

#endif

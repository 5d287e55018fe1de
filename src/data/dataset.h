// dataset.h - data as numbered windows of T tokens, from files or from the built-in corpus.
//
// Place: loader.c asks for windows by sample number. Checkpoints store one counter.
//
// Files become shards (shard.h), and documents of shards become windows (pack.h). For column t of a
// window:
//   targets[t]    the next token of the same document, or DATASET_NOT_TRAINED where that token is
//                 not to be learned
//   doc_start[t]  the column where the document of column t begins in this window (0 when it began
//                 in an earlier window)
//   positions[t]  t - doc_start[t]: attention and positions restart at each document
// Padding at a window's end is not trained. Each padding column is a separate document, so no other
// column attends to it.
//
// Invariants:
//   1. Sample i is a function of (data, options, split, i): no state, any thread, any order.
//   2. An epoch uses every window once, in an order drawn from (seed, epoch). Pools with weights
//      are mixed as mix.h says. Windows of one text stream have no padding: where T does not divide
//      the tokens, the last window starts early and its repeated columns are not trained.
//   3. No target of the validation split is a target of the training split. Records are drawn one
//      by one, by (seed, number of the record). Plain text keeps its last tokens for validation.
//      The corpus uses other documents.
//   4. Every window of files has a trained column. Documents without any are counted and left out.
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
    uint64_t seed;     // files: of the order and the split; corpus: of the documents
    int64_t seq;       // T
    // Share of the data kept for validation, in [0, 0.5]. 0: none. The corpus in bytes always has a
    // validation split.
    double validation_fraction;
    // The rest may stay zero.
    const char *validation_paths; // separate validation data; the fraction is then not used
    // NULL: the built-in bytes, opened by the dataset. Otherwise both are given and outlive the
    // dataset.
    const struct tokenizer *tokenizer;
    const struct renderer *renderer;
    // Nothing trains: all of `paths` is the validation split, and with data.long=auto every record
    // is cut to one piece. Not for the built-in corpus.
    bool whole;
    // Records are divided by their tokens and not by draws: equal ones are on one side, in whatever
    // files and order.
    bool by_text;
    enum render_shape shape;
    enum data_pack pack;
    enum data_long long_;
    enum data_bad bad;
    const char *cache; // folder of shards; NULL: in memory
    int threads;       // threads that tokenize; 0: one
    struct shard_listener listener;
};

// Returns ERR_USAGE with the numbers when there is too little data for a window of each split.
int dataset_open(struct dataset **out, const struct dataset_options *o, struct err *e);
// The same from knobs. It finds the tokenizer, the template and the cache. model_dir is the model's
// folder, NULL for a built-in shape. vocab is the number of ids the model has: ERR_MISMATCH when
// the tokenizer has more, 0: not checked.
int dataset_open_knobs(struct dataset **out, const struct knobs *k, const char *model_dir,
                       int64_t vocab, const struct shard_listener *listener, struct err *e);
// The same with options.whole, to measure a model on all of k->data_path.
int dataset_open_whole(struct dataset **out, const struct knobs *k, const char *model_dir,
                       int64_t vocab, const struct shard_listener *listener, struct err *e);
// Opens the tokenizer that reads text with these knobs: `tokenizer`, else the folder's
// tokenizer.json, else bytes (for a built-in shape and for the built-in corpus), else ids without
// text (tokenizer_is_ids). Also opens a renderer that uses the tokenizer; it knows how documents
// begin and end. Close the renderer first. vocab: the number of ids the model has.
int dataset_open_renderer(struct tokenizer **t, struct renderer **r, const struct knobs *k,
                          const char *model_dir, int64_t vocab, struct err *e);
// The same with options.by_text: a share of the records is the validation split.
int dataset_open_divided(struct dataset **out, const struct knobs *k, double validation_fraction,
                         const char *model_dir, int64_t vocab,
                         const struct shard_listener *listener, struct err *e);
void dataset_close(struct dataset *d);

int64_t dataset_seq(const struct dataset *d);
int32_t dataset_vocab(const struct dataset *d); // ids are in [0, vocab)
// Windows of one epoch (all windows of all pools). DATASET_ENDLESS for the corpus in bytes, 0 for a
// split that does not exist.
uint64_t dataset_windows(const struct dataset *d, enum dataset_split split);
// For people: "2 files, 5000 documents, 1.2M tokens, 40.0 % trained" or "built-in corpus, seed 1".
const char *dataset_describe(const struct dataset *d);
// For checkpoints: a hash of the shards and their weights, or of the corpus' version and seed.
// Resuming with another fingerprint means resuming on other data.
const char *dataset_fingerprint(const struct dataset *d); // 32 hex digits

struct dataset_window { // each array holds T elements
    int32_t *tokens, *targets, *positions, *doc_start;
};

// Scratch memory that one thread needs to make windows without allocating, kept between calls.
// Allocate the bytes, clear them once; each thread has separate scratch memory.
size_t dataset_scratch_bytes(const struct dataset *d);
void dataset_scratch_clear(const struct dataset *d, void *scratch);

// Fills the window of `sample`. Any number is accepted: epochs follow one another.
int dataset_fetch(const struct dataset *d, enum dataset_split split, uint64_t sample, void *scratch,
                  const struct dataset_window *out, struct err *e);
// Trained columns of that window, without making it. Ranks use it to compute a step's total without
// communication.
int64_t dataset_trained(const struct dataset *d, enum dataset_split split, uint64_t sample);

// All that is known about a window without making it.
struct dataset_about {
    uint64_t window; // its number in the split, below dataset_windows; endless split: the sample
    int64_t trained, real; // columns; real: not padding
    // Bytes read to make the window. It counts each token, plus one per document for the last
    // target, at the width in the shard (2 or 4 bytes). For the corpus in bytes: 1 byte per token.
    uint64_t source_bytes;
};
struct dataset_about dataset_about(const struct dataset *d, enum dataset_split split,
                                   uint64_t sample);
uint64_t dataset_seed(const struct dataset *d);

// A run of a document's columns in a window.
struct dataset_piece {
    size_t file;
    uint64_t document, first; // of the file; which of the document's columns is the first
    uint32_t column, columns; // where they are in the window
    size_t next;              // the number of the next piece
};
// Moves on to the next piece of a window of files; begin with {0}. False past the last one.
bool dataset_next_piece(const struct dataset *d, enum dataset_split split, uint64_t sample,
                        struct dataset_piece *p);

// ---------------------------------------------------------------- windows kept in memory

// A window in compact form: tokens and targets only, at 2 bytes each where the vocabulary allows.
// Where documents begin is known from the packing. Not for an endless split.
size_t dataset_kept_bytes(const struct dataset *d);
void dataset_keep(const struct dataset *d, const struct dataset_window *w, void *kept);
// Restores the window, for the sample it was made from or any sample with the same window number.
void dataset_fetch_kept(const struct dataset *d, enum dataset_split split, uint64_t sample,
                        const void *kept, const struct dataset_window *out);

// ---------------------------------------------------------------- looking at it

size_t dataset_files(const struct dataset *d); // 0 for the corpus in bytes
const char *dataset_file_path(const struct dataset *d, size_t i);
const struct shard *dataset_file_shard(const struct dataset *d, size_t i);
double dataset_file_share(const struct dataset *d, size_t i);   // share of its pool in training
bool dataset_file_validates(const struct dataset *d, size_t i); // comes from validation_paths
enum data_pack dataset_pack_mode(const struct dataset *d, size_t file); // auto is resolved
// Whether a record of `a` has the tokens of a record of `b`, both read by the same tokenizer. Plain
// texts are not compared. *file and *document of `b`: the first one; false: there is none.
int dataset_shared(const struct dataset *a, const struct dataset *b, bool *found, size_t *file,
                   uint64_t *document, struct err *e);
// Sums over the pools of a split.
struct pack_stats dataset_stats(const struct dataset *d, enum dataset_split split);
// The stats and windows that another way of packing the training split would give.
int dataset_try_pack(const struct dataset *d, enum data_pack mode, struct pack_stats *stats,
                     uint64_t *windows, struct err *e);
const struct tokenizer *dataset_tokenizer(const struct dataset *d);
const struct renderer *dataset_renderer(const struct dataset *d);

#endif

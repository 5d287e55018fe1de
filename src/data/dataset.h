// dataset.h - data as numbered windows of T tokens: one interface over text files and the built-in
// corpus.
//
// Place: loader.c asks for windows by sample number; checkpoints store one counter.
//
// Documents are laid end to end, each opened by END_OF_TEXT (bytes.h), and the stream is cut in
// windows of T. targets[t] is the next token of the same document (END_OF_TEXT after its last);
// attention and positions restart at each document: doc_start[t] is the column where the document
// of column t begins in this window (0 when it began before), positions[t] = t - doc_start[t].
//
// Invariants:
//   1. Sample i is a function of (data, seed, T, split, i): no state, any thread, any order.
//   2. An epoch of text trains on every token once, in an order drawn from (seed, epoch). When T
//      does not divide the tokens, the last window starts early and its repeated columns have
//      target -1 (not trained): all tokens are real, there is no padding.
//   3. No target of the validation split is a target of the training split: text keeps its last
//      tokens for validation, the corpus other documents.
#ifndef HAGGLE_DATA_DATASET_H
#define HAGGLE_DATA_DATASET_H

#include "base/err.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dataset;

#define DATASET_SYNTHETIC "synthetic" // the name of the built-in corpus
enum { DATASET_NOT_TRAINED = -1 };    // target of a column that is context only
#define DATASET_ENDLESS UINT64_MAX

enum dataset_split { SPLIT_TRAIN, SPLIT_VALIDATION };

struct dataset_options {
    const char *paths; // NULL, "" or DATASET_SYNTHETIC: the corpus; else as in text.h
    uint64_t seed;     // of the order (text) or of the documents (corpus)
    int64_t seq;       // T
    // Of text: share of the tokens, at the end, kept for validation; in [0, 0.5]. 0: none. The
    // corpus always has a validation split.
    double validation_fraction;
};

// ERR_USAGE when a split has fewer than T tokens, with both numbers.
int dataset_open(struct dataset **out, const struct dataset_options *o, struct err *e);
void dataset_close(struct dataset *d);

int64_t dataset_seq(const struct dataset *d);
int32_t dataset_vocab(const struct dataset *d); // ids are in [0, vocab)
// Windows of one epoch and tokens trained in it; DATASET_ENDLESS for the corpus, 0 for a split that
// is not there.
uint64_t dataset_windows(const struct dataset *d, enum dataset_split split);
uint64_t dataset_tokens(const struct dataset *d, enum dataset_split split);
// For people: "3 files, 1.20 MiB" or "built-in corpus, seed 1".
const char *dataset_describe(const struct dataset *d);
// For checkpoints: a hash of the contents (see text_files_fingerprint), or of the corpus' version
// and seed. Resuming with another fingerprint is resuming on other data.
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

#endif

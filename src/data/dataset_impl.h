// dataset_impl.h - shared by dataset.c (windows) and dataset_files.c (opening files).
#ifndef HAGGLE_DATA_DATASET_IMPL_H
#define HAGGLE_DATA_DATASET_IMPL_H

#include "data/dataset.h"
#include "data/mix.h"
#include "data/text.h"

struct source { // a file
    struct shard shard;
    char *path;
    bool records;
    size_t pool;
};

struct pool {
    size_t first, n;     // its files
    bool plain;          // only plain documents: one stream, the end of which validates
    bool own_validation; // the whole pool is validation data
    enum data_pack mode;
    struct pack packs[SPLITS];
};

struct dataset {
    bool synthetic; // the corpus in bytes, made on demand
    uint64_t seed;
    uint64_t seq;
    double validation_fraction;
    bool whole; // nothing trains: every pool is validation data
    bool by_text;
    enum data_long long_;
    // Files
    struct source *sources;
    size_t n_sources;
    struct pool *pools;
    size_t n_pools, n_trained_pools; // pools that train come first
    struct mix mix;                  // over the pools that train
    uint64_t windows[SPLITS];
    bool ordered_validation; // one text: validation windows stay in text order
    int32_t pad_id;
    // Corpus
    uint64_t block_windows, block_documents;

    const struct tokenizer *tokenizer;
    const struct renderer *renderer;
    struct tokenizer *own_tokenizer; // NULL: the caller owns it
    struct renderer *own_renderer;
    char description[256];
    char fingerprint[HASH_TEXT_BYTES];
};

// Opens, tokenizes, splits and packs the files of o. dataset_close frees what exists, also on
// error.
int dataset_open_files(struct dataset *d, const struct dataset_options *o, bool corpus,
                       struct err *e);
void dataset_close_files(struct dataset *d);
// Of a record's tokens and of which of them are trained (dataset_records.c).
uint64_t dataset_record_hash(const struct shard *s, uint64_t at, uint64_t tokens);

#endif

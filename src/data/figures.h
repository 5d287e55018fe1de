// figures.h - a dataset in figures: documents, tokens, lengths, packing, speed.
//
// Place: api/data.c measures a dataset that was opened exactly as training does (same shards, split
// and packing), so the figures are those of a run with these knobs.
#ifndef HAGGLE_DATA_FIGURES_H
#define HAGGLE_DATA_FIGURES_H

#include "data/dataset.h"

enum {
    FIGURES_BUCKETS = 33, // of lengths: bucket b has 2^(b-1) + 1 to 2^b tokens
    FIGURES_MODES = 3
};

struct data_figures {
    struct shard_counts all; // over the files
    struct pack_stats train; // as training would use it
    uint64_t windows[SPLITS];
    uint64_t histogram[FIGURES_BUCKETS];
    uint64_t least, p50, p95, p99, most; // tokens per document
    uint64_t cut_documents;              // longer than seq and cut off, over both splits
    struct {
        enum data_pack mode;
        uint64_t windows;
        double padding; // share of columns; NaN: that packing is not possible here
    } modes[FIGURES_MODES];
    uint64_t made_tokens, made_bytes; // tokenized now, not reused
    double made_seconds, all_seconds; // of those; of all files
    double loader_tokens_per_s;
};

double figures_share(uint64_t part, uint64_t of); // 0 of nothing
// d is of files. Takes about a tenth of a second, to measure how fast batches are made.
int figures_measure(struct data_figures *f, const struct dataset *d, int64_t seq, struct err *e);

#endif

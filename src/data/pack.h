// pack.h - documents into windows of T columns.
//
// Place: dataset.c packs the documents of a split once, when it opens; fetching a window is then
// copying its pieces.
//
// A document of n tokens has n - 1 columns: column c reads token c and its target is token c + 1. A
// span is what there is to place (a document, or the part of one that belongs to the split); a piece
// is a run of a span's columns in one window; a window is pieces and then padding.
//
//   best_fit  spans in order of decreasing length, each into the fullest window that has room for it
//   stream    spans end to end, cut every T columns; the last window begins early and its repeated
//             columns are not trained, so there is no padding
//   none      one piece per window
//
// What is longer than T is cut in pieces, cut off, or dropped (stream cuts nothing off). Pieces
// without a target are left out and counted: they would cost time and teach nothing.
//
// Invariants: the result is a function of spans and options; every trained column that is neither
// cut off nor dropped is in exactly one window, untrained ones at most once more (stream); no window
// has 0 trained columns; best_fit takes O(n log T) steps.
#ifndef HAGGLE_DATA_PACK_H
#define HAGGLE_DATA_PACK_H

#include "base/err.h"
#include "knob/knob.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pack_span {
    uint64_t at;      // token of its first column in its shard
    uint64_t columns; // > 0
    uint32_t shard;
    bool splits; // under data.long=auto, what is too long is cut in pieces, not cut off
};

struct pack_piece {
    uint64_t at;
    uint32_t shard, columns;
};

struct pack_window {
    uint64_t first; // of its pieces; they end where the next window's begin
    uint32_t columns, trained;
    uint32_t repeated; // leading columns that are context only
};

struct pack_stats {
    uint64_t spans, columns, trained;     // as given
    uint64_t truncated, cut_columns;      // spans that were cut off, and what was lost of them
    uint64_t cut_trained;                 // of the columns lost, trained ones
    uint64_t dropped;                     // spans that were too long
    uint64_t untrained;                   // spans without any target, left out
    uint64_t untrained_pieces;            // pieces, or windows of a stream, without any target
    uint64_t padding, used, used_trained; // columns of all windows
};

struct pack {
    struct pack_piece *pieces;
    struct pack_window *windows; // [n_windows + 1]: the last one only ends the pieces
    size_t n_pieces, n_windows;
    size_t piece_capacity, window_capacity;
    struct pack_stats stats;
};

struct pack_options {
    uint64_t seq;        // T, at most 2^31 - 1
    enum data_pack mode; // not auto
    enum data_long long_;
    // Trained columns among `columns` from token `at` of a shard on.
    uint64_t (*trained)(const void *arg, uint32_t shard, uint64_t at, uint64_t columns);
    const void *arg;
};

// Call pack_free either way.
int pack_build(struct pack *out, const struct pack_span *spans, size_t n,
               const struct pack_options *o, struct err *e);
void pack_free(struct pack *p);

#endif

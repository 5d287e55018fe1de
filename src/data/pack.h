// pack.h - arranges documents in windows of T columns.
//
// Place: dataset.c packs the documents of a split once, at open. To fetch a window, it copies the
// pieces.
//
// A document of n tokens has n - 1 columns: column c reads token c, and its target is token c + 1.
// A span is what has to be placed: a document, or the part of one that belongs to the split. A
// piece is a run of a span's columns in one window. A window is a list of pieces followed by
// padding.
//
//   best_fit  places spans in order of decreasing length, each in the fullest window that has room
//   stream    lays spans end to end and cuts every T columns. The last window begins early and its
//             repeated columns are not trained, so there is no padding
//   none      places one piece per window
//
// A span longer than T is split into pieces, truncated, or dropped (stream does not truncate).
// Pieces without a target are left out and counted: they would cost time and teach nothing.
//
// Invariants:
//   1. The result is a function of spans and options.
//   2. Every trained column that is neither cut off nor dropped is in exactly one window. Untrained
//      columns are repeated at most once (stream).
//   3. No window has 0 trained columns.
//   4. best_fit takes O(n log T) steps.
#ifndef HAGGLE_DATA_PACK_H
#define HAGGLE_DATA_PACK_H

#include "base/err.h"
#include "knob/knob.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pack_span {
    uint64_t at;      // token of its first column in the shard
    uint64_t columns; // > 0
    uint32_t shard;
    bool splits; // under data.long=auto: split into pieces when too long, not truncated
};

struct pack_piece {
    uint64_t at;
    uint32_t shard, columns;
};

struct pack_window {
    uint64_t first; // index of its first piece; its pieces end where the next window's begin
    uint32_t columns, trained;
    uint32_t repeated; // leading columns that are context only
};

struct pack_stats {
    uint64_t spans, columns, trained;     // as given
    uint64_t truncated, cut_columns;      // spans that were truncated; columns lost
    uint64_t cut_trained;                 // trained columns lost
    uint64_t dropped;                     // spans that were too long
    uint64_t untrained;                   // spans without any target, left out
    uint64_t untrained_pieces;            // pieces, or windows of a stream, without any target
    uint64_t padding, used, used_trained; // columns of all windows
};

struct pack {
    struct pack_piece *pieces;
    struct pack_window *windows; // [n_windows + 1]: the last one only marks the end of the pieces
    size_t n_pieces, n_windows;
    size_t piece_capacity, window_capacity;
    struct pack_stats stats;
};

struct pack_options {
    uint64_t seq;        // T, at most 2^31 - 1
    enum data_pack mode; // not auto
    enum data_long long_;
    // Counts the trained columns among `columns`, starting at token `at` of a shard.
    uint64_t (*trained)(const void *arg, uint32_t shard, uint64_t at, uint64_t columns);
    const void *arg;
};

// Call pack_free also after an error.
int pack_build(struct pack *out, const struct pack_span *spans, size_t n,
               const struct pack_options *o, struct err *e);
void pack_free(struct pack *p);

#endif

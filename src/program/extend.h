// extend.h - the names and sizes of programs that extend sequences, one turn at a time.
//
// A turn has a fixed number of rows. A row is a token of some sequence, at a position behind those
// whose keys and values are in the cache. Rows of one turn may belong to one sequence (a part of
// its prompt), to many (one token of each), or to both kinds. A row may attend to rows of the same
// turn, because all of them are in the cache before attention reads it. A set of such programs with
// different numbers of rows shares weights and cache; the host takes the one that fits.
#ifndef HAGGLE_PROGRAM_EXTEND_H
#define HAGGLE_PROGRAM_EXTEND_H

#include <stdint.h>

// Names that a number of rows follows. The input holds four arrays, one after another:
// tokens, positions, sequences (negative: the row is idle), and which rows are asked for logits.
#define NAME_EXTEND    "in.extend."
#define NAME_SEQUENCES "in.sequences"
#define NAME_ASKED     "out.logits." // [asked, V] float32
#define NAME_IDS       "out.ids."    // [asked] int32: the likeliest ids

// Rows of a turn that get logits: each sequence asks for one at most.
static inline int64_t extend_asked(int64_t rows, int64_t sequences) {
    return rows < sequences ? rows : sequences;
}

#endif

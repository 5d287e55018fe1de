// tokenize.h - a stream of JSONL as lines of token ids, and back.
//
// Lines are read in batches and handed out one by one to the threads. Results are written in the
// order of the lines. A bad line ends the call, after everything before it was written.
#ifndef HAGGLE_DATA_TOKENIZE_H
#define HAGGLE_DATA_TOKENIZE_H

#include "model/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct tokenize_options {
    bool decode; // arrays of ids in, {"text": ...} out; else {"text": ...} in, arrays of ids out
    bool plain;  // special tokens are text; with decode they are left out
    int threads; // 1 or more
};

struct tokenize_counts {
    uint64_t lines, blank;  // blank lines are skipped
    uint64_t tokens, bytes; // bytes: of text
};

// out may be NULL. tokens and bytes are counted when all lines were good.
int tokenize_lines(const struct tokenizer *t, const struct tokenize_options *o, FILE *in, FILE *out,
                   struct tokenize_counts *counts, struct err *e);

#endif

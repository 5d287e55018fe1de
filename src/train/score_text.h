// score_text.h - a plain text in stretches of as many bytes, whatever tokens it is read as.
//
// Place: score.c scores a plain text in sequences of tokens. Models that read it as other tokens
// have other sequences, so their losses are also summed over stretches, which are the same text to
// every model. score_compare.c compares them.
//
// Invariant: a token belongs to the stretch in which it ends.
#ifndef HAGGLE_TRAIN_SCORE_TEXT_H
#define HAGGLE_TRAIN_SCORE_TEXT_H

#include "data/shard.h"
#include "train/score.h"

enum { SCORE_STRETCH_BYTES = 2048 }; // about as much as a sequence of 512 tokens

struct score_text {
    struct score_unit *stretches; // [n]; cut: not all of its tokens are scored
    uint64_t *borders;            // [n + 1]: the first token of each, counted from the document's
    size_t n;                     // 0: not a plain text
};

// Cuts the only document of a shard. Call score_text_close also after a failure.
int score_text_open(struct score_text *x, const struct shard *s, const struct tokenizer *t,
                    struct err *e);
void score_text_close(struct score_text *x);
// Counts tokens [first, first + n) of the document that are scored.
void score_text_count(struct score_text *x, const struct shard *s, uint64_t first, uint64_t n);
void score_text_settle(struct score_text *x, const struct shard *s); // after all were counted
// The losses of tokens [first, first + n).
void score_text_add(struct score_text *x, const float *losses, uint64_t first, uint64_t n);

#endif

// decoder.h - makes texts: several sequences side by side, each with a prompt, a way of sampling,
// and an end of its own.
//
// A turn (session_extend) takes one token of every sequence that is being continued, and fills what
// room it has left with prompts, in chunks. So a long prompt does not stop the others, and a
// sequence that ends makes room for the next one. All memory is taken when the decoder opens.
//
// Invariants:
//   1. A sequence's tokens do not depend on what runs beside it, up to the rounding of products
//      with other numbers of rows.
//   2. The cache of a sequence holds the keys and values of all its tokens but the newest. They
//      stay when the sequence ends: a prompt that begins with the same tokens goes on behind them.
#ifndef HAGGLE_INFER_DECODER_H
#define HAGGLE_INFER_DECODER_H

#include "engine/session.h"
#include "infer/sampler.h"
#include "measure/sample.h"

struct decoder;

enum { DECODER_ENDS_MOST = 8 };
struct decoder_request {
    const int32_t *prompt; // copied
    int64_t n, most;       // tokens of the prompt; most tokens to make
    struct sampling how;
    int32_t ends[DECODER_ENDS_MOST]; // tokens that end the text; they are not part of it
    int n_ends;
    void *tag; // for the caller
};

enum decoder_end { DECODER_GOES_ON, DECODER_ENDED, DECODER_LENGTH, DECODER_FULL, DECODER_STOPPED };

// A token was made (id >= 0), or the sequence ended without one (id < 0). `end` says whether it
// goes on. Returns 0, DECODER_STOP to end this sequence here, or a negative error, which ends the
// turn.
enum { DECODER_STOP = 1 };
typedef int decoder_token_fn(void *arg, void *tag, int32_t id, enum decoder_end end, struct err *e);

// The session's plan has PLAN_EXTEND and outlives the decoder. `most`: room for times of tokens.
int decoder_open(struct decoder **out, struct session *s, size_t most, struct err *e);
void decoder_close(struct decoder *d);
uint64_t decoder_bytes(const struct plan *p, size_t most); // what it takes, with its sampler
int64_t decoder_free(const struct decoder *d);             // sequences that may be added now
bool decoder_busy(const struct decoder *d);                // some sequence is not at its end
// ERR_USAGE if the prompt is empty or does not fit the cache. Needs a free sequence. Takes the one
// whose cache has most of the prompt, and computes the rest of it: at least the last token.
int decoder_add(struct decoder *d, const struct decoder_request *r, struct err *e);
// One turn. Calls fn for every token that it made.
int decoder_turn(struct decoder *d, decoder_token_fn *fn, void *arg, struct err *e);

// What the turns so far took.
struct decoder_times {
    int64_t prompt_tokens; // computed
    int64_t cached_tokens; // of prompts; they were in a cache already
    int64_t made_tokens;
    uint64_t prompt_ns;     // turns with rows of prompts
    uint64_t decode_ns;     // turns with none
    int64_t decode_tokens;  // made in those
    struct samples first;   // ns from decoder_add to a sequence's first token
    struct samples between; // ns between two tokens of a sequence
};
struct decoder_times *decoder_times(struct decoder *d);

#endif

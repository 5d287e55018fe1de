// sampler.h - chooses the next token from logits.
//
// The order of the steps is that of Hugging Face transformers: repetition penalty, temperature, top
// k, top p, min p, draw. A draw is a function of (seed, prompt's number, position), so a text does
// not depend on which other texts are made beside it, nor on the number of threads.
#ifndef HAGGLE_INFER_SAMPLER_H
#define HAGGLE_INFER_SAMPLER_H

#include "base/err.h"
#include "knob/knob.h"

#include <stdbool.h>
#include <stdint.h>

struct sampling {
    double temperature;    // 0: always the likeliest token
    int64_t top_k;         // only this many likeliest tokens; 0: all
    double top_p;          // only the likeliest whose probabilities add up to this; 1: all
    double min_p;          // only those at least this part as likely as the likeliest; 0: all
    double repeat_penalty; // logits of tokens that are there already are divided by it (below 0:
                           // multiplied); 1: none
    uint64_t seed, stream; // of the draws; the stream is the prompt's number
};
// As the knobs generate.* and seed say.
struct sampling sampling_of(const struct knobs *k);
// Whether the likeliest token is chosen, as it is: then no logits are needed.
bool sampling_is_greedy(const struct sampling *s);

struct sampler; // memory for one choice at a time
int sampler_open(struct sampler **out, int64_t vocab, struct err *e);
void sampler_close(struct sampler *s);
uint64_t sampler_bytes(int64_t vocab);
// Changes the logits. `there`: the tokens of prompt and text so far. `position`: of the new token.
// ERR_NUMERIC if a logit is not a number or none is finite.
int sampler_choose(struct sampler *s, const struct sampling *how, float *logits,
                   const int32_t *there, int64_t n, int64_t position, int32_t *out, struct err *e);

#endif

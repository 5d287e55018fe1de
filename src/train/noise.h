// noise.h - the gradient noise scale: how many tokens a step should train before more of them stop paying.
//
// Place: trainer.c measures it every noise.every steps and tells observers; the tuner compares it with the
// tokens per step that it is allowed to choose. docs/measuring.md has the derivation.
//
// With G the true gradient and Sigma the covariance of one token's, a mean over B tokens has
//     E |G_B|^2 = |G|^2 + tr(Sigma) / B.
// A step knows two such means: of its first micro-batch (b tokens) and of all of it (B). Solved,
//     tr(Sigma) ~ (|G_b|^2 - |G_B|^2) / (1/b - 1/B),   |G|^2 ~ (B |G_B|^2 - b |G_b|^2) / (B - b)
// are unbiased, and B_simple = tr(Sigma) / |G|^2 (McCandlish et al., "An Empirical Model of Large-Batch
// Training", 2018, appendix A.1). One step's pair is mostly noise: both are averaged exponentially, each by
// itself, and only then divided.
//
// Invariants: a token here stands for its share of a sequence. Micro-batches are whole sequences, so tokens
// that resemble their neighbours make Sigma as large as it is for whole sequences, and every
// split of a batch has the same expectation. What the data does not determine is NaN (or an interval
// without an end), never a guess. State is a few doubles; it is not part of a checkpoint.
#ifndef HAGGLE_TRAIN_NOISE_H
#define HAGGLE_TRAIN_NOISE_H

#include "base/json.h"

#include <stdbool.h>
#include <stdint.h>

// One step: squares of the norms of the mean gradients, and how many tokens each is the mean of.
struct noise_sample {
    double small_square, all_square;
    double small_tokens, all_tokens; // trained ones; small < all
    double sequences;                // of the whole step
};

struct noise_scale {
    int64_t n;
    double weight, weight2;   // sums of the weights of averages, and of their squares
    double trace, gradient;   // averages of the two estimates
    double var_t, var_g, cov; // of single estimates around them
    double tokens, sequences; // of all samples
    double batch;             // average of all_tokens
};

struct noise_estimate {
    int64_t n;                      // measurements
    double tokens, sequences;       // the scale; NaN: not determined (yet)
    double tokens_low, tokens_high; // 95 % interval; high may be infinite; NaN below NOISE_LEAST
    double trace, gradient_square;  // averages of both estimates; may be negative
    double batch_tokens;            // that a step trained, on average
};
enum { NOISE_LEAST = 5 }; // fewer measurements have no interval worth the name

// false: the sample says nothing (not finite, no tokens, b not less than B) and is left out.
bool noise_add(struct noise_scale *s, const struct noise_sample *x);
void noise_estimate_of(const struct noise_scale *s, struct noise_estimate *out);

enum { NOISE_TEXT_BYTES = 320 };
// "12.3k tokens (96 sequences), 95 % between 9k and 17k, 40 measurements; ...". Returns out.
const char *noise_text(char out[NOISE_TEXT_BYTES], const struct noise_estimate *x);
// Members of an object; numbers that are not determined are null.
void noise_put_members(const struct noise_estimate *x, struct json_writer *w);

#endif

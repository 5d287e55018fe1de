// noise.h - the gradient noise scale: the number of trained tokens per step beyond which larger
// batches add little learning per step.
//
// Place: trainer.c measures it every noise.every steps and tells observers. The tuner compares it
// with the tokens per step that it may choose. docs/measuring.md has the derivation.
//
// Let G be the true gradient and Sigma the covariance of one token's gradient. A mean over B tokens
// has
//     E |G_B|^2 = |G|^2 + tr(Sigma) / B.
// A step gives two such means: of its first micro-batch (b tokens) and of the whole step (B).
// Solving for the two unknowns gives the unbiased estimates
//     tr(Sigma) ~ (|G_b|^2 - |G_B|^2) / (1/b - 1/B),   |G|^2 ~ (B |G_B|^2 - b |G_b|^2) / (B - b),
// and the scale is B_simple = tr(Sigma) / |G|^2 (McCandlish et al., "An Empirical Model of
// Large-Batch Training", 2018, appendix A.1). The pair of a single step is mostly noise. So each of
// the two is averaged exponentially over steps, and only then are they divided.
//
// Invariants:
//   1. A token here stands for its share of a sequence. Micro-batches are whole sequences, so
//      tokens that resemble their neighbours make Sigma as large as it is for whole sequences, and
//      every split of a batch has the same expectation.
//   2. What the data does not determine is NaN (or an interval without an end), never a guess.
//   3. The state is a few doubles and not part of a checkpoint.
#ifndef HAGGLE_TRAIN_NOISE_H
#define HAGGLE_TRAIN_NOISE_H

#include "base/json.h"

#include <stdbool.h>
#include <stdint.h>

// One step: the squared norms of two mean gradients, and the number of tokens that each is the mean
// of. `small` is the first micro-batch, `all` the whole step. With replicas each is the mean over
// pairs of the two, and 1 / tokens is the mean of theirs.
struct noise_sample {
    double small_square, all_square;
    double small_tokens, all_tokens; // trained tokens; small < all
    double sequences;                // in the whole step
};

struct noise_scale {
    int64_t n;
    double weight, weight2;   // sums of the averages' weights, and of the squares of these weights
    double trace, gradient;   // averages of the two estimates
    double var_t, var_g, cov; // variances and covariance of single estimates
    double tokens, sequences; // sums over all samples
    double batch;             // average of all_tokens
};

struct noise_estimate {
    int64_t n;                      // measurements
    double tokens, sequences;       // the scale; NaN: not determined (yet)
    double tokens_low, tokens_high; // 95 % interval; high may be infinite; NaN below NOISE_LEAST
    double trace, gradient_square;  // averages of both estimates; may be negative
    double batch_tokens;            // trained tokens per step, on average
};
enum { NOISE_LEAST = 5 }; // measurements below which no interval is given

// False: the sample is unusable (not finite, no tokens, b not less than B) and was left out.
bool noise_add(struct noise_scale *s, const struct noise_sample *x);
void noise_estimate_of(const struct noise_scale *s, struct noise_estimate *out);

enum { NOISE_TEXT_BYTES = 320 };
// "12.3k tokens (96 sequences), 95 % between 9k and 17k, 40 measurements; ...". Returns out.
const char *noise_text(char out[NOISE_TEXT_BYTES], const struct noise_estimate *x);
// Writes members of an object. Numbers that are not determined are null.
void noise_put_members(const struct noise_estimate *x, struct json_writer *w);

#endif

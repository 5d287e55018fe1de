// verify.h - checks that this engine computes correctly: compares it with what a reference computed
// on the same checkpoint.
//
// It reads a Hugging Face model folder that also has
//     ref.safetensors   tokens [B,T+1]; logits [B,T,V]; grad.<parameter> of the mean loss;
//                       greedy [B,N], the greedy continuation of the first 16 tokens
//     ref.json          loss, grad_norm, losses of AdamW steps with their settings
// With the knob lora.from these two files are in the adapter's folder, for the model with it.
#ifndef HAGGLE_TRAIN_VERIFY_H
#define HAGGLE_TRAIN_VERIFY_H

#include "base/json.h"
#include "exec/exec.h"
#include "knob/knob.h"

#include <stdbool.h>
#include <stdio.h>

enum { VERIFY_PROMPT = 16, VERIFY_MAX_LOSSES = 1024, VERIFY_FP16_SCALE = 4096 };

// The largest accepted differences, by precision. docs/numerics.md explains them.
struct verify_limits {
    double loss;   // relative
    double logits; // L2 norm of the difference, divided by that of the reference
    double grad;   // the same, per parameter
    double norm;   // of all gradients, relative
    double steps;  // relative, for each loss of the AdamW steps; more where rounding the weights
                   // alone leads further away
    double greedy; // share of the continuation's tokens that may differ
    // A gradient that is zero in exact arithmetic is rounding noise in both engines (a key bias
    // without rotary positions shifts all scores of a row alike). So if a parameter's gradient is
    // below `small` times the global norm, its difference is divided by the global norm instead of
    // its own, and `noise` is the limit.
    double small, noise;
};
const struct verify_limits *verify_limits(enum precision p);

struct verify_figure {
    char name[160];
    double value, limit;
    bool ok;
};

struct verify_result {
    char dir[512];
    int64_t batch, seq, vocab;
    enum precision precision;
    struct verify_figure *figures; // loss, logits, each gradient, gradient norm, steps, greedy
    size_t n_figures, capacity;
    bool ok;
    // With VERIFY_CHECKING (exec.h), else zero:
    struct exec_check checked;
    uint64_t arena_bytes;
};

// VERIFY_REFERENCE: the plain backend instead of the fast one. VERIFY_CHECKING: every op is
// observed, and a broken rule is ERR_INTERNAL.
enum verify_how { VERIFY_REFERENCE = 1 << 0, VERIFY_CHECKING = 1 << 1 };

// ERR_NUMERIC when a figure exceeds its limit; the result is then complete. Other codes mean that
// the comparison could not be made. Call verify_free afterwards.
int verify_folder(const char *dir, const struct knobs *k, unsigned how, struct verify_result *out,
                  struct err *e);
void verify_free(struct verify_result *r);
// One line per figure. Without `all`, only the worst gradient and those over their limit are shown.
void verify_print(const struct verify_result *r, FILE *f, bool all);
void verify_put_json(const struct verify_result *r, struct json_writer *w);

#endif

// verify.h - is this engine right? Compares it with what a reference computed on the same
// checkpoint.
//
// A folder of the form: an HF model folder plus ref.safetensors (tokens [B,T+1]; logits [B,T,V];
// grad.<parameter> of the mean loss; greedy [B,N], the greedy continuation of the first 16 tokens)
// and ref.json (loss, grad_norm, losses of AdamW steps with their settings).
#ifndef HAGGLE_TRAIN_VERIFY_H
#define HAGGLE_TRAIN_VERIFY_H

#include "base/json.h"
#include "exec/exec.h"
#include "knob/knob.h"

#include <stdbool.h>
#include <stdio.h>

enum { VERIFY_PROMPT = 16, VERIFY_MAX_LOSSES = 1024, VERIFY_FP16_SCALE = 4096 };

// What is tolerated, by precision; docs/numerics.md says why.
struct verify_limits {
    double loss;   // relative
    double logits; // L2 of the difference over L2 of the reference
    double grad;   // the same, per parameter
    double norm;   // of all gradients, relative
    double steps;  // relative, each of the losses
    double greedy; // share of the continuation's tokens that may differ
    // A gradient that is zero in exact arithmetic (a key bias, without rotary positions, shifts all
    // scores of a row alike) is rounding noise in both engines. So a parameter whose gradient is
    // below `small` of the global norm is compared with the global norm instead of its own, and
    // `noise` is the limit.
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
    // Of a checking run (exec.h), zero otherwise:
    struct exec_check checked;
    uint64_t arena_bytes;
};

// How: the plain backend instead of the fast one; every op observed (a rule that is broken is
// ERR_INTERNAL).
enum verify_how { VERIFY_REFERENCE = 1 << 0, VERIFY_CHECKING = 1 << 1 };

// ERR_NUMERIC when any figure is off (the result is then complete); other codes when the comparison
// could not be made.
int verify_folder(const char *dir, const struct knobs *k, unsigned how, struct verify_result *out,
                  struct err *e);
void verify_free(struct verify_result *r);
// One line per figure; with `all` unset, gradients are summed up by the worst one.
void verify_print(const struct verify_result *r, FILE *f, bool all);
void verify_put_json(const struct verify_result *r, struct json_writer *w);

#endif

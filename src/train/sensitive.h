// sensitive.h - what each matrix of a quantized folder does to the model when it alone is
// quantized: the divergence (KL) of that model from the source, on some tokens of text.
//
// Place: `haggle quantize` names the worst matrix by it, and chooses those that should stay wider.
// It is the effect itself and no estimate from weights: the source is loaded once, its logits are
// kept, and for each matrix in turn the values of its quantized bytes are written in its place, the
// text is computed again, and the matrix is put back.
//
// So it costs a forward of the text for every matrix. SENSITIVE_WORK bounds it: large models get
// fewer tokens.
#ifndef HAGGLE_TRAIN_SENSITIVE_H
#define HAGGLE_TRAIN_SENSITIVE_H

#include "model/quantized.h"
#include "train/score.h"

enum { SENSITIVE_LEAST = 64, SENSITIVE_MOST = 1024 }; // tokens
#define SENSITIVE_WORK 4e13                           // FLOP

struct sensitive_matrix {
    char name[128];
    double kl; // nats per token
    int64_t elements;
};

struct sensitive {
    struct sensitive_matrix *all; // the one with the largest divergence first
    int n;
    double sum;      // of the divergences
    uint64_t tokens; // each is measured on
};

// `data` is opened for the source. dir: the quantized folder.
int sensitive_measure(struct sensitive *out, const struct score *data, enum dataset_split split,
                      const char *dir, const struct score_listener *l, struct err *e);
void sensitive_free(struct sensitive *s); // also after a failure

// How many matrices should be wider so that `kl`, the divergence of the whole model, comes to
// `limit`, if divergences add up; at least `least`. Sorts the list: those with the most divergence
// per element, so per byte that a wider one costs, come first.
int sensitive_choose(struct sensitive *s, double kl, double limit, int least);

#endif

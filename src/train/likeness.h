// likeness.h - how alike two models are on data, token by token: the divergence of their
// distributions, the tokens for which both find the same one likeliest, and the loss of each.
//
// Place: `haggle quantize` compares what it wrote with what it read. Both models are loaded at
// once and compute the same windows of the same data (train/score.h opens it).
//
// Invariant: only scored tokens count, each once.
#ifndef HAGGLE_TRAIN_LIKENESS_H
#define HAGGLE_TRAIN_LIKENESS_H

#include "train/score.h"

struct likeness {
    struct rate kl;         // nats per token: of the second model's distribution from the first's
    struct rate loss[2];    // nats per token
    struct rate difference; // of the losses: the second's minus the first's
    double same_top;        // share of the tokens for which both have the same likeliest one
    double kl_largest;      // of a token
    uint64_t tokens, windows;
};

// `data` is opened for the first model. `other`: the folder of the second one, with the same
// vocabulary. ERR_NUMERIC when a logit is not finite.
int likeness_measure(const struct score *data, const char *other, const struct score_listener *l,
                     struct likeness *out, struct err *e);
// The same model in another precision (a value of the knob) as the second one.
int likeness_of_precision(const struct score *data, const char *precision,
                          const struct score_listener *l, struct likeness *out, struct err *e);

#endif

// build.h - from a model shape and the sizes of a turn to a program: forward, its derivative, the
// update, the order.
//
// build_* make the plain single-device program; apply.c then lets the techniques edit it and
// finishes it (sync, checks). Most callers want apply.h.
#ifndef HAGGLE_PROGRAM_BUILD_H
#define HAGGLE_PROGRAM_BUILD_H

#include "model/shape.h"
#include "program/program.h"

enum build_kind {
    BUILD_TRAIN,    // forward with loss; grad.c and update.c add the rest
    BUILD_EVAL,     // forward with loss, nothing kept
    BUILD_GENERATE, // forward over the whole prefix, greedy choice at one row per sequence
    BUILD_DECODE,   // one row per sequence, keys and values from a cache
};

struct build {
    enum build_kind kind;
    const struct model_shape *shape;
    int64_t batch, seq; // of one micro-batch; for BUILD_DECODE seq is the cache's capacity
    enum dtype real;    // of weights and activations; DTYPE_F64 serves gradient checks
    bool decay_all;     // weight decay on norms and biases too
    bool keep_gradients,
        keep_logits; // readable after the turn (verification): they live for the whole run
    bool guest;      // runs while another program's turn is interrupted (program.h)
};

// Creates weights and inputs and appends the forward ops to a new segment; returns its index
// (negative: error code).
int build_forward(struct program *p, const struct build *b, struct err *e);
// Appends the segment "begin" that clears the turn's sums; returns its index.
int build_begin(struct program *p);

// grad.c: derives the backward of a forward segment for every trainable weight; returns the new
// segment's index. Weight gradients are created as it goes (tensor.grad). Contributions that a
// later micro-batch must add to carry OP_FIRST_GRAD.
int grad_derive(struct program *p, int forward, const struct build *b, struct err *e);

// update.c: gradient norm, clipping and AdamW for every trainable weight of the program; returns
// the segment's index. With more than one rank the sum of squares is reduced over `world_group`
// first.
int build_update(struct program *p, int world_group, struct err *e);

#endif

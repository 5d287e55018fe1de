// build.h - from a model shape and the sizes of a turn to a program: forward, derivative, update.
//
// The functions here make the plain single-device program. apply.c then lets the techniques edit it
// and finishes it (order, sync, checks). Most callers want apply.h.
#ifndef HAGGLE_PROGRAM_BUILD_H
#define HAGGLE_PROGRAM_BUILD_H

#include "model/shape.h"
#include "model/quantized.h"
#include "program/program.h"

struct apply_ranks; // apply.h

enum build_kind {
    BUILD_TRAIN,  // forward with loss; grad.c and update.c add the rest
    BUILD_EVAL,   // forward with loss; keeps no activations
    BUILD_EXTEND, // rows that extend sequences whose earlier keys and values are in a cache
};

struct build {
    enum build_kind kind;
    const struct model_shape *shape;
    int64_t batch,
        seq;         // of one micro-batch; BUILD_EXTEND: sequences in the cache, capacity of each
    int64_t rows;    // BUILD_EXTEND: tokens of a turn, of any sequences
    enum dtype real; // of weights and activations; DTYPE_F64 is for gradient checks
    bool decay_all;  // weight decay also on norms and biases
    bool keep_gradients; // gradients live for the whole run, to be read after a turn (verification)
    bool keep_logits;    // the same for the logits
    bool keep_row_loss;  // and for the loss of every row
    // The loss is the divergence from logits that the host writes (NAME_TEACHER).
    bool teacher;
    bool powers;       // also adds up the squares of what each matrix is multiplied with
    bool one_document; // per sequence, from its first column: attention needs no boundaries
    bool guest;        // runs while another program's turn is interrupted (program.h)
    const struct quantized
        *quantized; // which weights are quantized (model/quantized.h); NULL: none
};

// Creates weights and inputs, and appends the forward ops to a new segment. Returns its index, or a
// negative error code.
int build_forward(struct program *p, const struct build *b, struct err *e);
// The tensor NAME_RESULTS, or a guest's, made if it is not there yet.
int build_results(struct program *p);
// Appends the segment "begin", which clears the turn's sums. Returns its index.
int build_begin(struct program *p);

// grad.c: derives the backward of a forward segment for every trainable weight. Returns the new
// segment's index. It creates the weight gradients (tensor.grad). Contributions that later
// micro-batches must add to carry OP_FIRST_GRAD.
int grad_derive(struct program *p, int forward, const struct build *b, struct err *e);

// update.c: gradient norm, clipping and AdamW for every trainable weight of the program, or for
// what this rank owns of it. Returns the segment's index.
int build_update(struct program *p, const struct apply_ranks *r, struct err *e);

#endif

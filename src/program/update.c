// update.c - the end of a training step: the gradient norm over all weights, the clipping factor,
// and AdamW on each weight.
//
// The host never branches on a gradient: CLIP writes a factor and a skip flag that ADAMW reads.
// Every hyper-parameter comes from the input tensor NAME_HYPER, so a new learning rate or step
// needs no new program. A 16-bit weight gets a full-precision master. The step is taken on the
// master, and the weight is the master rounded.
#include "program/build.h"

#include <stdio.h>

static int state(struct program *p, const char *kind, int weight) {
    struct tensor w = p->tensors[weight];
    char name[160];
    snprintf(name, sizeof name, "%s.%s", kind, w.name);
    int t =
        program_tensor(p, name, op_wide_type(w.dtype), CLASS_OPTIMIZER, LIFE_RUN, w.rank, w.local);
    if (t >= 0) {
        struct tensor *s = &p->tensors[t];
        s->layer = w.layer;
        for (int i = 0; i < w.rank; i++) // the state of a sharded weight is sharded too
            s->shape[i] = w.shape[i], s->begin[i] = w.begin[i];
    }
    return t;
}

static bool updated(const struct program *p, int t) {
    return p->tensors[t].cls == CLASS_WEIGHT && p->tensors[t].grad >= 0 && program_logical(p, t);
}

static int sum_over_ranks(struct program *p, int segment, int squares, int n, int group) {
    int total =
        program_tensor_1d(p, "grad.square_sum", DTYPE_F64, CLASS_WORKSPACE, LIFE_SEGMENT, 1);
    struct op sum = op_make(OP_SUM);
    op_in(&sum, squares);
    op_out(&sum, total);
    sum.n = n;
    program_op(p, segment, &sum);
    struct op reduce = op_make(OP_ALL_REDUCE);
    reduce.stream = STREAM_COMM;
    op_in(&reduce, total);
    op_out(&reduce, total);
    reduce.n = 1, reduce.group = group;
    program_op(p, segment, &reduce);
    return total;
}

int build_update(struct program *p, int world_group, struct err *e) {
    int segment = program_segment(p, "update", SEGMENT_UPDATE), n_weights = p->n_tensors, n = 0;
    for (int w = 0; w < n_weights; w++)
        n += updated(p, w) && !p->tensors[w].replica;
    int squares =
        program_tensor_1d(p, "grad.squares", DTYPE_F64, CLASS_WORKSPACE, LIFE_SEGMENT, n ? n : 1);
    int clip = program_tensor_1d(p, NAME_CLIP, DTYPE_F64, CLASS_INPUT, LIFE_RUN, CLIP_COUNT);
    int hyper = program_find(p, NAME_HYPER);
    int64_t one = 1;
    for (int w = 0, i = 0; w < n_weights; w++) {
        int g = p->tensors[w].grad;
        if (!updated(p, w) || p->tensors[w].replica)
            continue;
        struct op op = op_make(OP_GRAD_SQNORM);
        char name[32];
        snprintf(name, sizeof name, "grad.squares.%d", i);
        op_in(&op, g);
        op_out(&op, program_view_flat(p, name, squares, i++, 1, &one));
        op.n = tensor_elements(&p->tensors[g]);
        op.layer = p->tensors[w].layer;
        program_op(p, segment, &op);
    }
    if (world_group >= 0) {
        squares = sum_over_ranks(p, segment, squares, n, world_group);
        n = 1;
    }
    struct op op = op_make(OP_CLIP);
    op_in(&op, squares);
    op_in(&op, hyper);
    op_out(&op, clip);
    op.n = n;
    program_op(p, segment, &op);
    for (int w = 0; w < n_weights; w++) {
        int g = p->tensors[w].grad;
        if (!updated(p, w))
            continue;
        int m = state(p, "adam.m", w), v = state(p, "adam.v", w), master = -1;
        if (op_wide_type(p->tensors[w].dtype) != p->tensors[w].dtype)
            master = state(p, "master", w);
        if (master >= 0) // a separate statement, because state() may move the tensors
            p->tensors[w].master = master;
        op = op_make(OP_ADAMW);
        op_in(&op, g);
        op_in(&op, hyper);
        op_in(&op, clip);
        op_in(&op, w), op_in(&op, m), op_in(&op, v);
        op_out(&op, w), op_out(&op, m), op_out(&op, v);
        if (master >= 0)
            op_in(&op, master), op_out(&op, master);
        op.n = tensor_elements(&p->tensors[w]);
        op.layer = p->tensors[w].layer;
        op.flags = p->tensors[w].decay ? OP_DECAY : 0;
        program_op(p, segment, &op);
    }
    TRY(program_finish(p, e));
    return segment;
}

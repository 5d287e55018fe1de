// joined.h - what a joined op (program/fuse.c) means: two ops, one after the other, where the
// second reads what the first has stored. A backend without a kernel for both runs them in turn.
#ifndef HAGGLE_BACKEND_JOINED_H
#define HAGGLE_BACKEND_JOINED_H

#include "backend/backend.h"

struct joined {
    struct op op[2];
    struct op_call call[2]; // of these ops, with the scratch of the joined call
};

static inline struct op *joined_part(struct joined *j, int i, const struct op_call *c,
                                     enum op_kind kind, unsigned flags, int n_in, int n_out) {
    struct op *op = &j->op[i];
    *op = *c->op;
    op->kind = kind;
    op->flags = c->op->flags & flags;
    op->n_in = n_in, op->n_out = n_out;
    j->call[i].op = op;
    j->call[i].scratch = c->scratch;
    j->call[i].made = NULL;
    for (int k = 0; k < OP_MAX_IN; k++)
        j->call[i].in[k].data = NULL;
    for (int k = 0; k < OP_MAX_OUT; k++)
        j->call[i].out[k].data = NULL;
    return op;
}

// Whether a call is of a joined op. Then it is taken apart. `j` must stay where it is while the
// calls are used: they point to its ops.
static inline bool joined_split(const struct op_call *c, struct joined *j) {
    const struct op *op = c->op;
    struct op_call *one = &j->call[0], *two = &j->call[1];
    switch (op->kind) {
    case OP_ADD_NORM:
        joined_part(j, 0, c, OP_ADD, 0, 2, 1);
        joined_part(j, 1, c, OP_NORM, OP_RMS, 3, 2);
        one->in[0] = c->in[0], one->in[1] = c->in[1], one->out[0] = c->out[0];
        two->in[0] = c->out[0], two->in[1] = c->in[2], two->in[2] = c->in[3];
        two->out[0] = c->out[1], two->out[1] = c->out[2];
        return true;
    case OP_MATMUL_ACT:
        joined_part(j, 0, c, OP_MATMUL, OP_IN_OUT, 3, 1);
        joined_part(j, 1, c, OP_ACT, 0, 1, 1);
        one->in[0] = c->in[0], one->in[1] = c->in[1], one->in[2] = c->in[2];
        one->out[0] = two->in[0] = c->out[0], two->out[0] = c->out[1];
        return true;
    case OP_NORM_BWD: // the weight's gradient first: dx may be dy's memory
        joined_part(j, 0, c, OP_NORM_DW, OP_RMS | OP_ACCUMULATE, 3, 2);
        joined_part(j, 1, c, OP_NORM_DX, OP_RMS, 4, 1);
        one->in[0] = c->in[0], one->in[1] = c->in[1], one->in[2] = c->in[3];
        one->out[0] = c->out[1], one->out[1] = c->out[2];
        for (int i = 0; i < 4; i++)
            two->in[i] = c->in[i];
        two->out[0] = c->out[0];
        j->op[1].flags |= c->in[4].data ? (unsigned)OP_ACCUMULATE : 0;
        return true;
    case OP_MATMUL_DX_ACT:
        joined_part(j, 0, c, OP_MATMUL_DX, OP_IN_OUT, 2, 1);
        joined_part(j, 1, c, OP_ACT_BWD, 0, 2, 1)->n = op->k;
        one->in[0] = c->in[0], one->in[1] = c->in[1];
        two->in[0] = one->out[0] = two->out[0] = c->out[0], two->in[1] = c->in[2];
        return true;
    case OP_MATMUL_DW:
        if (!c->out[1].data)
            return false;
        joined_part(j, 0, c, OP_BIAS_DB, OP_ACCUMULATE, 1, 1)->scale = 1;
        joined_part(j, 1, c, OP_MATMUL_DW, OP_IN_OUT | OP_ACCUMULATE, 2, 1);
        one->in[0] = c->in[1], one->out[0] = c->out[1];
        two->in[0] = c->in[0], two->in[1] = c->in[1], two->out[0] = c->out[0];
        return true;
    default:
        return false;
    }
}

#endif

// lora.c - low-rank adapters on a frozen base (Hu et al., 2021): y = x W' + scale (x A') B'. Only A
// and B train.
//
// It edits the forward before it is differentiated. grad.c then emits no gradients for the frozen
// weights, so gradients and optimizer state exist only for the pairs.
#include "program/apply.h"

#include <stdio.h>
#include <string.h>

static int pair(struct program *p, const struct tensor *w, const char *which, int64_t rows,
                int64_t cols) {
    char name[160];
    int stem = (int)strlen(w->name);
    if (stem > 7 && strcmp(w->name + stem - 7, ".weight") == 0)
        stem -= 7;
    snprintf(name, sizeof name, "%.*s.lora_%s.weight", stem, w->name, which);
    int t = program_tensor_2d(p, name, w->dtype, CLASS_WEIGHT, LIFE_RUN, rows, cols);
    if (t >= 0) {
        p->tensors[t].layer = w->layer;
        p->tensors[t].trainable = true;
        p->tensors[t].decay = true;
    }
    return t;
}

int lora_apply(struct program *p, int forward, int rank, double scale, struct err *e) {
    for (int i = 0; i < p->n_tensors; i++)
        p->tensors[i].trainable = false;
    struct segment old = program_take_ops(p, forward);
    for (int i = 0; i < old.n_ops; i++) {
        struct op op = old.ops[i];
        program_op(p, forward, &op);
        if (op.kind != OP_MATMUL || p->tensors[op.in[1]].layer < 0)
            continue;
        struct tensor w = p->tensors[op.in[1]];
        char name[160];
        snprintf(name, sizeof name, "%s.lora", p->tensors[op.out[0]].name);
        int a = pair(p, &w, "A", rank, op.k), b = pair(p, &w, "B", op.n, rank);
        int u = program_tensor_2d(p, name, w.dtype, CLASS_WORKSPACE, LIFE_SEGMENT, op.m, rank);
        struct op down = op_make(OP_MATMUL), up = op_make(OP_MATMUL);
        op_in(&down, op.in[0]), op_in(&down, a), op_in(&down, -1), op_out(&down, u);
        down.m = op.m, down.n = rank, down.k = op.k, down.layer = op.layer;
        op_in(&up, u), op_in(&up, b), op_in(&up, -1), op_out(&up, op.out[0]);
        up.m = op.m, up.n = op.n, up.k = rank, up.layer = op.layer;
        up.scale = scale, up.flags = OP_ACCUMULATE;
        program_op(p, forward, &down);
        program_op(p, forward, &up);
    }
    return program_finish(p, e);
}

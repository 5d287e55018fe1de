// pad.c - a padded vocabulary. The head's product computes a multiple of some number of columns,
// because on a GPU products are slow where rows do not begin at multiples of 16 bytes. (GPT-2 has a
// vocabulary of 50,257.)
//
// The head's weight becomes the first rows of a larger root, its only part (tensor.parts). The
// other rows are padding: persistent tensors begin as zero, and no op writes these. So the padding
// of the logits is zero, too. The loss knows the columns of the vocabulary, and leaves the others
// zero when it overwrites the logits with their gradient. Therefore the padding of the weight's
// gradient is zero as well.
//
// Everything that knows a weight by its name sees the logical one: files, the norm, the optimizer,
// an embedding with the same weight. Those bits do not depend on the padding, except for one sum:
// the gradient of the head's input is a sum over the columns. It runs over the padding only if the
// caller wants that (`sums`), because a kernel may divide a longer sum in another way.
#include "program/apply.h"

#include <stdio.h>

struct pad {
    struct program *p;
    int logits;
    int weight, gradient; // with the padding; gradient -1: none
    int64_t columns;      // with the padding
    bool sums;
};

static const struct op *find_head(const struct program *p, int forward, int logits) {
    for (int i = 0; i < p->segments[forward].n_ops; i++) {
        const struct op *op = &p->segments[forward].ops[i];
        if (op->kind == OP_MATMUL && op->out[0] == logits)
            return op;
    }
    return NULL;
}

// Makes a tensor the first rows of a new one.
static int pad_rows(struct program *p, int tensor, int64_t rows) {
    const struct tensor t = p->tensors[tensor];
    const int64_t shape[2] = {rows, t.local[1]};
    char name[200];
    snprintf(name, sizeof name, "%.180s.padded", t.name);
    const int root = program_tensor(p, name, t.dtype, t.cls, t.life, 2, shape);
    if (root < 0)
        return -1;
    p->tensors[root].layer = t.layer;
    p->tensors[root].trainable = t.trainable;
    p->tensors[root].decay = t.decay;
    program_become_view(p, tensor, root, 0);
    return root;
}

static void edit(const struct pad *x, struct op *op) {
    if (op->kind == OP_LOSS && op->in[0] == x->logits) {
        op->k = x->columns;
    } else if (op->kind == OP_MATMUL && op->out[0] == x->logits) {
        op->n = x->columns;
        op->in[1] = x->weight;
    } else if (op->kind == OP_MATMUL_DX && op->in[0] == x->logits && x->sums) {
        op->n = x->columns;
        op->in[1] = x->weight;
    } else if (op->kind == OP_MATMUL_DW && op->in[1] == x->logits) {
        op->n = x->columns;
        op->out[0] = x->gradient;
    }
}

int pad_apply(struct program *p, int forward, int backward, int64_t multiple, bool sums,
              struct err *e) {
    struct pad x = {.p = p, .logits = program_find(p, NAME_LOGITS), .gradient = -1, .sums = sums};
    const struct op *head = x.logits < 0 ? NULL : find_head(p, forward, x.logits);
    if (!head || multiple < 2 || head->n % multiple == 0)
        return 0;
    const int weight = head->in[1], gradient = p->tensors[weight].grad;
    if (!storage_plain(p->tensors[weight].storage)) // its kernels need no padding
        return 0;
    if (p->tensors[weight].root >= 0 || head->flags & OP_IN_OUT)
        return err_set(e, ERR_INTERNAL, "the weight of the head of '%s' has no rows of its own",
                       p->name);
    x.columns = (head->n + multiple - 1) / multiple * multiple;
    x.weight = pad_rows(p, weight, x.columns);
    if (gradient >= 0)
        x.gradient = pad_rows(p, gradient, x.columns);
    TRY(program_finish(p, e));
    p->tensors[x.weight].grad = x.gradient;
    struct tensor *t = &p->tensors[x.logits];
    t->local[1] = t->ld = x.columns;
    t->bytes = (uint64_t)tensor_elements(t) * dtype_bytes(t->dtype);
    for (int k = 0; k < 2; k++) {
        const int segment = k ? backward : forward;
        for (int i = 0; segment >= 0 && i < p->segments[segment].n_ops; i++)
            edit(&x, &p->segments[segment].ops[i]);
    }
    return 0;
}

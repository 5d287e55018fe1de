// micro.c - micro-batches and accumulation. One forward and one backward are stored. The order
// repeats them.
//
// The loss is divided by the number of trained tokens in the whole step (an input). So the
// gradients of micro-batches simply add up, and every split of the same samples gives the same
// update. Only the first micro-batch differs: it overwrites the gradients, which saves clearing
// them.
#include "program/apply.h"

#include <stdio.h>

static int clone(struct program *p, int segment, const char *suffix, bool accumulate) {
    struct segment from = p->segments[segment];
    char name[64];
    snprintf(name, sizeof name, "%s.%s", from.name, suffix);
    int to = program_segment(p, name, from.role);
    if (to < 0)
        return to;
    p->segments[to].chunk = from.chunk;
    for (int i = 0; i < from.n_ops; i++) {
        struct op op = from.ops[i];
        if (accumulate && op.flags & OP_FIRST_GRAD)
            op.flags |= OP_ACCUMULATE;
        program_op(p, to, &op);
    }
    return to;
}

int micro_variants(struct program *p, struct apply_chunks *c, struct err *e) {
    for (int i = 0; i < c->n; i++) {
        c->first[i] = c->more[i] = c->backward[i];
        if (p->micro_batches > 1)
            c->more[i] = clone(p, c->backward[i], "more", true);
    }
    return program_finish(p, e);
}

void micro_order_forward(struct program *p, const struct apply_chunks *c, int chunk, int micro,
                         int slot) {
    program_order(p, c->forward[chunk], micro, slot);
}

void micro_order_backward(struct program *p, const struct apply_chunks *c, int chunk, int micro,
                          int slot) {
    program_order(p, micro == 0 ? c->first[chunk] : c->more[chunk], micro, slot);
}

void micro_order(struct program *p, const struct apply_chunks *c, int after_first) {
    for (int m = 0; m < p->micro_batches; m++) {
        micro_order_forward(p, c, 0, m, 0);
        micro_order_backward(p, c, 0, m, 0);
        if (m == 0 && after_first >= 0)
            program_order(p, after_first, 0, 0);
    }
}

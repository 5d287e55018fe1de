// micro.c - micro-batches and accumulation. One forward and one backward are stored. The order
// repeats them.
//
// The loss is divided by the number of trained tokens in the whole step (an input). So the
// gradients of micro-batches simply add up, and every split of the same samples gives the same
// update. The first micro-batch overwrites the gradients, which saves clearing them. The last one
// also runs what needs the finished gradients (OP_LAST): their reductions over ranks. The first one
// runs what needs its gradients alone (OP_FIRST_MICRO).
#include "program/apply.h"

#include <stdio.h>

static bool has_last(const struct segment *s) {
    for (int i = 0; i < s->n_ops; i++)
        if (s->ops[i].flags & OP_LAST)
            return true;
    return false;
}

static int clone(struct program *p, int segment, const char *suffix, bool last) {
    struct segment from = p->segments[segment];
    char name[64];
    snprintf(name, sizeof name, "%s.%s", from.name, suffix);
    int to = program_segment(p, name, from.role);
    if (to < 0)
        return to;
    p->segments[to].chunk = from.chunk;
    for (int i = 0; i < from.n_ops; i++) {
        struct op op = from.ops[i];
        if (op.flags & OP_FIRST_MICRO || (op.flags & OP_LAST && !last))
            continue;
        if (op.flags & OP_FIRST_GRAD)
            op.flags |= OP_ACCUMULATE;
        program_op(p, to, &op);
    }
    return to;
}

static void drop_last(struct program *p, int segment) {
    const struct segment old = program_take_ops(p, segment);
    for (int i = 0; i < old.n_ops; i++)
        if (!(old.ops[i].flags & OP_LAST))
            program_op(p, segment, &old.ops[i]);
}

int micro_variants(struct program *p, struct apply_chunks *c, struct err *e) {
    for (int i = 0; i < c->n; i++) {
        c->first[i] = c->more[i] = c->last[i] = c->backward[i];
        if (p->micro_batches < 2)
            continue;
        const bool ends = has_last(&p->segments[c->backward[i]]);
        if (p->micro_batches > 2 || !ends)
            c->more[i] = c->last[i] = clone(p, c->backward[i], "more", false);
        if (ends) {
            c->last[i] = clone(p, c->backward[i], "last", true);
            drop_last(p, c->backward[i]);
        }
    }
    return program_finish(p, e);
}

void micro_order_forward(struct program *p, const struct apply_chunks *c, int chunk, int micro,
                         int slot) {
    program_order(p, c->forward[chunk], micro, slot);
}

void micro_order_backward(struct program *p, const struct apply_chunks *c, int chunk, int micro,
                          int slot) {
    const int *variant = micro == p->micro_batches - 1 ? c->last : micro == 0 ? c->first : c->more;
    program_order(p, variant[chunk], micro, slot);
}

void micro_order(struct program *p, const struct apply_chunks *c) {
    for (int m = 0; m < p->micro_batches; m++) {
        micro_order_forward(p, c, 0, m, 0);
        micro_order_backward(p, c, 0, m, 0);
    }
}

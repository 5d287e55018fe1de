// logits.c - the vocabulary projection and the loss in chunks of rows, so that the logits of a
// whole micro-batch never exist. With a vocabulary of 128,000 they are the largest tensor of a
// step.
//
// The gradient of each chunk is used up before the next chunk is made. This needs the head's
// products next to the loss. So in training the head moves from the end of the forward to the start
// of the backward. The backward already has the variants that overwrite or add to the weight's
// gradient:
//
//   forward    ..., norm.final
//   backward   per chunk: logits = x W'; loss turns them into their gradient; dW += ..; dx = ..
//              then the rest
//
// The loss keeps its bits, because rows are independent. The head's gradient is summed in another
// order.
#include "program/apply.h"

#include <stdio.h>

struct head {
    struct program *p;
    struct op product, loss, sum; // taken out of the forward
    struct op back[2];            // taken out of the backward: readers of the logits' gradient
    int n_back;
    int logits;
    int64_t rows, chunk;
    int segment; // the segment that gets the chunks
};

static bool reads(const struct op *op, int tensor) {
    for (int i = 0; i < op->n_in; i++)
        if (op->in[i] == tensor)
            return true;
    return false;
}

// Takes the head's ops out of a segment and closes the gaps.
static int take(struct head *h, int segment, bool backward, struct err *e) {
    struct segment *s = &h->p->segments[segment];
    int kept = 0, loss_rows = -1, found = 0;
    for (int i = 0; i < s->n_ops; i++) {
        struct op op = s->ops[i];
        if (backward && reads(&op, h->logits)) {
            if (h->n_back == 2)
                return err_set(e, ERR_INTERNAL, "the logits have more than two readers");
            h->back[h->n_back++] = op;
        } else if (!backward && op.kind == OP_MATMUL && op.out[0] == h->logits) {
            h->product = op, found++;
        } else if (!backward && op.kind == OP_LOSS && op.in[0] == h->logits) {
            h->loss = op, loss_rows = op.out[1], found++;
        } else if (!backward && op.kind == OP_LOSS_SUM && op.in[0] == loss_rows) {
            h->sum = op, found++;
        } else {
            s->ops[kept++] = op;
        }
    }
    s->n_ops = kept;
    if (!backward && found != 3)
        return err_set(
            e, ERR_INTERNAL,
            "the program '%s' has no head of one matmul, loss and loss_sum to cut in chunks",
            h->p->name);
    return 0;
}

// Returns rows [first, first + rows) of a tensor whose rows are contiguous.
static int rows_of(struct head *h, int tensor, int64_t first, int64_t rows) {
    struct tensor t = h->p->tensors[tensor];
    int64_t shape[2] = {rows, t.rank > 1 ? t.local[1] : 1};
    char name[160];
    if (first == 0 && rows == t.local[0])
        return tensor;
    snprintf(name, sizeof name, "%.120s.rows%lld", t.name, (long long)first);
    int found = program_find(h->p, name);
    if (found >= 0)
        return found;
    return program_view_flat(h->p, name, tensor, first * shape[1], t.rank, shape);
}

static void emit_chunk(struct head *h, int64_t first) {
    int64_t rows = h->rows - first < h->chunk ? h->rows - first : h->chunk;
    int logits = rows_of(h, h->logits, 0, rows);
    struct op op = h->product;
    op.in[0] = rows_of(h, op.in[0], first, rows), op.out[0] = logits, op.m = rows;
    program_op(h->p, h->segment, &op);
    op = h->loss;
    op.in[0] = op.out[0] = logits, op.m = rows;
    op.in[1] = rows_of(h, op.in[1], first, rows);
    op.out[1] = rows_of(h, op.out[1], first, rows);
    program_op(h->p, h->segment, &op);
    for (int i = 0; i < h->n_back; i++) {
        op = h->back[i];
        bool weight = op.kind == OP_MATMUL_DW;
        op.m = rows;
        op.in[weight ? 1 : 0] = logits;
        if (weight) {
            op.in[0] = rows_of(h, op.in[0], first, rows);
            if (first > 0)
                op.flags = (op.flags | OP_ACCUMULATE) & ~(unsigned)OP_FIRST_GRAD;
        } else {
            op.out[0] = rows_of(h, op.out[0], first, rows);
        }
        program_op(h->p, h->segment, &op);
    }
}

int logits_apply(struct program *p, int forward, int backward, int64_t chunk, struct err *e) {
    struct head h = {.p = p, .logits = program_find(p, NAME_LOGITS), .chunk = chunk};
    if (h.logits < 0 || chunk <= 0 || p->tensors[h.logits].local[0] <= chunk)
        return 0;
    h.rows = p->tensors[h.logits].local[0];
    TRY(take(&h, forward, false, e));
    if (backward >= 0)
        TRY(take(&h, backward, true, e));
    struct tensor *t = &p->tensors[h.logits];
    t->local[0] = chunk;
    t->bytes = (uint64_t)tensor_elements(t) * dtype_bytes(t->dtype);
    h.segment = backward >= 0 ? backward : forward;
    struct segment rest = {0}; // the ops of the backward that follow the head
    if (backward >= 0)
        rest = program_take_ops(p, backward);
    for (int64_t first = 0; first < h.rows; first += chunk)
        emit_chunk(&h, first);
    program_op(p, h.segment, &h.sum);
    for (int i = 0; i < rest.n_ops; i++)
        program_op(p, backward, &rest.ops[i]);
    return program_finish(p, e);
}

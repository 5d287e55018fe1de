// noise.c - what the gradient noise scale needs from a step: the squares of the first micro-batch's
// gradients, summed before the second micro-batch adds to them.
//
// This is a separate program beside the plain training step, not an op that reads a flag. So steps
// that do not measure cost nothing, no backend needs a new op, and the host still decides nothing
// inside a turn. It only decides which program of the set runs. Both programs have the same
// persistent tensors, and their transient tensors share one region. Measuring costs a few hundred
// bytes of the arena, and one more pass over all gradients in a step that measures.
//
// The squares are those that the update sums for clipping. The ops of the update's norm are issued
// once more, including the op that makes a norm from the squares. That op also writes a factor and
// a flag, which nothing reads.
#include "program/apply.h"

#include <stdio.h>

int noise_apply(struct program *p, int update, struct err *e) {
    if (p->micro_batches < 2 || p->world > 1)
        return err_set(e, ERR_UNSUPPORTED,
                       "the gradient noise scale needs at least 2 micro-batches on 1 rank; this "
                       "program has micro-batches: %d, ranks: %d",
                       p->micro_batches, p->world > 1 ? p->world : 1);
    const int segment = program_segment(p, "noise", SEGMENT_UPDATE);
    int n = 0;
    for (int i = 0; i < p->segments[update].n_ops; i++)
        n += p->segments[update].ops[i].kind == OP_GRAD_SQNORM;
    const int64_t one = 1;
    const int squares =
        program_tensor_1d(p, "noise.squares", DTYPE_F64, CLASS_WORKSPACE, LIFE_SEGMENT, n ? n : 1);
    const int out = program_tensor_1d(p, NAME_NOISE, DTYPE_F64, CLASS_INPUT, LIFE_RUN, CLIP_COUNT);
    for (int i = 0, at = 0; i < p->segments[update].n_ops && segment >= 0; i++) {
        struct op op = p->segments[update].ops[i];
        if (op.kind != OP_GRAD_SQNORM)
            continue;
        char name[40];
        snprintf(name, sizeof name, "noise.squares.%d", at);
        op.out[0] = program_view_flat(p, name, squares, at++, 1, &one);
        program_op(p, segment, &op);
    }
    struct op norm = op_make(OP_CLIP);
    op_in(&norm, squares);
    op_in(&norm, program_find(p, NAME_HYPER));
    op_out(&norm, out);
    norm.n = n;
    program_op(p, segment, &norm);
    TRY(program_finish(p, e));
    return segment;
}

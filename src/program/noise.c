// noise.c - what the gradient noise scale needs from a step: the norm of the first micro-batch's
// gradients on each replica, before other micro-batches or other replicas are added to them.
//
// This is a separate program beside the plain training step, not an op that reads a flag. So steps
// that do not measure cost nothing, no backend needs a new op, and the host still decides nothing
// inside a turn. It only decides which program of the set runs. Both programs have the same
// persistent tensors, and their transient tensors share one region. On one rank measuring costs a
// few hundred bytes of the arena, and one more pass over all gradients in a step that measures.
//
// A gradient's squares are summed right after its last contribution, in the first micro-batch's
// backward. There it is complete and nobody else's is in it, in every layout: replicas are summed
// after it has been read (buckets.c), its window is not used again before that, and in a pipeline
// it does not matter which micro-batches the other chunks are at.
//
// The ranks of a replica add up their squares when the step is over, where they meet anyway. A
// weight that several of them hold has a part of its gradient on each. Its parts are kept until
// then, summed, and counted once.
//
// A norm is made from the squares by the op that does it for clipping. That op also writes a factor
// and a flag, which nothing reads. The norms of all replicas are told to all of them. The host
// makes the mean, because it knows the tokens behind each.
#include "program/apply.h"

#include <stdio.h>

static bool trained(const struct program *p, int t) {
    return p->tensors[t].cls == CLASS_WEIGHT && program_logical(p, t) && p->tensors[t].grad >= 0;
}

// ---------------------------------------------------------------- in the backward

static void add_squares(struct program *p, const struct apply_noise *x, int segment, int w,
                        int gradient, int layer, unsigned flags) {
    const int64_t one = 1;
    char name[40];
    struct op op = op_make(OP_GRAD_SQNORM);
    snprintf(name, sizeof name, "noise.squares.%d", x->at[w]);
    op_in(&op, gradient);
    op_out(&op, program_view_flat(p, name, x->squares, x->at[w], 1, &one));
    op.n = tensor_elements(&p->tensors[gradient]);
    op.layer = layer;
    op.flags = flags;
    program_op(p, segment, &op);
}

static void keep(struct program *p, const struct apply_noise *x, int segment, int w, int layer) {
    const int gradient = p->tensors[w].grad;
    const struct tensor like = p->tensors[gradient];
    char name[200];
    snprintf(name, sizeof name, "noise.%s", like.name);
    x->kept[w] =
        program_tensor(p, name, like.dtype, CLASS_WORKSPACE, LIFE_TURN, like.rank, like.local);
    struct op op = op_make(OP_COPY);
    op_in(&op, gradient);
    op_out(&op, x->kept[w]);
    op.m = 1, op.n = tensor_elements(&like);
    op.layer = layer;
    op.flags = OP_FIRST_MICRO;
    program_op(p, segment, &op);
}

static void edit_backward(struct program *p, const struct apply_noise *x, int segment, int *last) {
    const struct segment old = program_take_ops(p, segment);
    for (int t = 0; t < x->n; t++)
        last[t] = -1;
    for (int i = 0; i < old.n_ops; i++)
        for (int a = 0; a < old.ops[i].n_out; a++)
            if (old.ops[i].out[a] >= 0)
                last[program_root(p, old.ops[i].out[a])] = i;
    for (int i = 0; i < old.n_ops; i++) {
        const struct op op = old.ops[i];
        program_op(p, segment, &op);
        for (int w = 0; w < x->n; w++) {
            if (!trained(p, w) || last[program_root(p, p->tensors[w].grad)] != i)
                continue;
            if (p->tensors[w].shared >= 0)
                keep(p, x, segment, w, op.layer);
            else if (!p->tensors[w].replica)
                add_squares(p, x, segment, w, p->tensors[w].grad, op.layer, OP_FIRST_MICRO);
        }
    }
}

int noise_apply(struct program *p, const struct apply_chunks *c, struct apply_noise *out,
                struct err *e) {
    const size_t all = (size_t)p->n_tensors + 1;
    int *last = region_alloc(&p->region, sizeof *last * all), n = 0;
    out->n = p->n_tensors;
    out->at = region_alloc(&p->region, sizeof *out->at * all);
    out->kept = region_alloc(&p->region, sizeof *out->kept * all);
    if (!last || !out->at || !out->kept)
        return err_set(e, ERR_MEMORY, "out of memory while planning '%s'", p->name);
    for (int w = 0; w < out->n; w++) {
        out->kept[w] = -1;
        out->at[w] = n;
        n += trained(p, w) && !p->tensors[w].replica;
    }
    out->squares =
        program_tensor_1d(p, "noise.squares", DTYPE_F64, CLASS_WORKSPACE, LIFE_TURN, n ? n : 1);
    for (int i = 0; i < c->n && !p->failed; i++)
        edit_backward(p, out, c->backward[i], last);
    return program_finish(p, e);
}

// ---------------------------------------------------------------- at the end of the step

static void collective(struct program *p, int segment, enum op_kind kind, int in, int out,
                       int group) {
    struct op op = op_make(kind);
    op.stream = STREAM_COMM;
    op_in(&op, in);
    op_out(&op, out);
    op.n = tensor_elements(&p->tensors[out]);
    op.group = group;
    program_op(p, segment, &op);
}

static void add_shared(struct program *p, const struct apply_noise *x, int segment) {
    for (int w = 0; w < x->n; w++) {
        if (x->kept[w] < 0)
            continue;
        collective(p, segment, OP_ALL_REDUCE, x->kept[w], x->kept[w], p->tensors[w].shared);
        if (!p->tensors[w].replica)
            add_squares(p, x, segment, w, x->kept[w], p->tensors[w].layer, 0);
    }
}

// Returns the squares of this rank, or their sum over the ranks of a replica.
static int sum_squares(struct program *p, const struct apply_noise *x, const struct apply_ranks *r,
                       int segment) {
    const int model = program_group(p, &r->mesh, MESH_TENSOR | MESH_PIPE, "model");
    if (model < 0)
        return x->squares;
    const int total =
        program_tensor_1d(p, "noise.square_sum", DTYPE_F64, CLASS_WORKSPACE, LIFE_SEGMENT, 1);
    struct op sum = op_make(OP_SUM);
    op_in(&sum, x->squares);
    op_out(&sum, total);
    sum.n = tensor_elements(&p->tensors[x->squares]);
    program_op(p, segment, &sum);
    collective(p, segment, OP_ALL_REDUCE, total, total, model);
    return total;
}

// Tells all replicas the norm that each has in `clip`.
static void tell_norm(struct program *p, const struct apply_ranks *r, int segment, int clip,
                      const char *all) {
    const int group = program_group(p, &r->mesh, MESH_DATA, "data");
    const int64_t one = 1;
    char name[48];
    if (group < 0)
        return;
    snprintf(name, sizeof name, "%s.norm", p->tensors[clip].name);
    const int own = program_view_flat(p, name, clip, CLIP_NORM, 1, &one);
    const int out =
        program_tensor_1d(p, all, DTYPE_F64, CLASS_INPUT, LIFE_RUN, mesh_size(&r->mesh, AXIS_DATA));
    collective(p, segment, OP_ALL_GATHER, own, out, group);
}

int noise_finish(struct program *p, const struct apply_noise *x, const struct apply_ranks *r,
                 struct err *e) {
    const int segment = program_segment(p, "noise", SEGMENT_UPDATE);
    if (segment < 0)
        return segment;
    const int out = program_tensor_1d(p, NAME_NOISE, DTYPE_F64, CLASS_INPUT, LIFE_RUN, CLIP_COUNT);
    add_shared(p, x, segment);
    const int squares = sum_squares(p, x, r, segment);
    struct op norm = op_make(OP_CLIP);
    op_in(&norm, squares);
    op_in(&norm, program_find(p, NAME_HYPER));
    op_out(&norm, out);
    norm.n = tensor_elements(&p->tensors[squares]);
    program_op(p, segment, &norm);
    tell_norm(p, r, segment, out, NAME_NOISE_ALL);
    if (r->apart) // their steps have norms of their own, too
        tell_norm(p, r, segment, program_find(p, NAME_CLIP), NAME_NOISE_STEPS);
    TRY(program_finish(p, e));
    return segment;
}

// update.c - the end of a training step: the gradient norm over all weights, the clipping factor,
// and AdamW on each weight.
//
// The host never branches on a gradient: CLIP writes a factor and a skip flag that ADAMW reads.
// Every hyper-parameter comes from the input tensor NAME_HYPER, so a new learning rate or step
// needs no new program. A 16-bit weight gets a full-precision master. The step is taken on the
// master, and the weight is the master rounded.
//
// With ranks, the norm is that of the whole model, the same on every rank and in every stage of
// ZeRO, to the bit. Each weight is divided as it is dealt out to the data axis (tensor.dealt). The
// squares of each piece are summed on its own, with what rounding lost, so that the division does
// not show in the total. With ZeRO a rank sums the pieces that it owns and gathers the others;
// without ZeRO it sums all of them.
//
// Replicas that train apart (average.c) have a norm each. Only the flag that skips the update is
// summed over them, because all must have made the same number of updates.
#include "program/apply.h"

#include <stdio.h>

struct update {
    struct program *p;
    const struct apply_ranks *r;
    int segment, n_weights; // tensors before this pass
    int hyper, clip;
    int rows, n;  // of the squares: pieces of a weight; weights
    int width;    // doubles of a sum: with ranks also what rounding lost
    int row_from; // rows of this rank: all, or its own
    int row_to;
};

static int state(struct program *p, const char *kind, int weight, int like) {
    const struct tensor w = p->tensors[like];
    char name[160];
    snprintf(name, sizeof name, "%s.%s", kind, p->tensors[weight].name);
    int t =
        program_tensor(p, name, op_wide_type(w.dtype), CLASS_OPTIMIZER, LIFE_RUN, w.rank, w.local);
    if (t >= 0) {
        p->tensors[t].layer = p->tensors[weight].layer;
        p->tensors[t].share = w.share; // the state of a part is a part
        p->tensors[t].replica = p->tensors[weight].replica;
    }
    return t;
}

static bool trained(const struct program *p, int t) {
    const struct tensor *w = &p->tensors[t];
    return w->cls == CLASS_WEIGHT && program_logical(p, t) &&
           (w->grad >= 0 || w->own == OWN_NOTHING);
}

// ---------------------------------------------------------------- the norm

// Piece `row` of a weight's gradient on this rank; -1: it is empty.
static int piece(const struct update *u, int weight, int row) {
    struct program *p = u->p;
    const struct tensor w = p->tensors[weight];
    if (w.grad < 0 || u->rows == 1 || u->r->zero > 0)
        return w.grad;
    const int64_t all = tensor_elements(&p->tensors[w.grad]), low = row * w.dealt - w.dealt_at,
                  first = low > 0 ? low : 0, last = low + w.dealt < all ? low + w.dealt : all,
                  n = last - first;
    char name[200];
    if (n <= 0)
        return -1;
    if (n == all)
        return w.grad;
    snprintf(name, sizeof name, "%s@%d", p->tensors[w.grad].name, row);
    return program_view_flat(p, name, w.grad, first, 1, &n);
}

static void add_squares(const struct update *u, int squares, int weight, int row, int number) {
    const int g = piece(u, weight, row);
    const int64_t width = u->width;
    char name[48];
    if (g < 0)
        return;
    struct op op = op_make(OP_GRAD_SQNORM);
    snprintf(name, sizeof name, "grad.squares.%d.%d", row, number);
    op_in(&op, g);
    op_out(&op, program_view_flat(u->p, name, squares, ((int64_t)row * u->n + number) * width, 1,
                                  &width));
    op.n = tensor_elements(&u->p->tensors[g]);
    op.layer = u->p->tensors[weight].layer;
    program_op(u->p, u->segment, &op);
}

static void clear(const struct update *u, int tensor) {
    struct op op = op_make(OP_ZERO);
    op_out(&op, tensor);
    op.m = 1, op.n = tensor_elements(&u->p->tensors[tensor]);
    program_op(u->p, u->segment, &op);
}

static void collective(const struct update *u, enum op_kind kind, int in, int out, int group) {
    struct op op = op_make(kind);
    op.stream = STREAM_COMM;
    op_in(&op, in);
    op_out(&op, out);
    op.n = tensor_elements(&u->p->tensors[out]);
    op.group = group;
    program_op(u->p, u->segment, &op);
}

// Returns the tensor with the squares, or with their sum over the ranks of a replica.
static int squares_of(const struct update *u) {
    struct program *p = u->p;
    const int64_t n = (int64_t)u->rows * u->n * u->width;
    const int model = program_group(p, &u->r->mesh, MESH_TENSOR | MESH_PIPE, "model"),
              squares = program_tensor_1d(p, "grad.squares", DTYPE_F64, CLASS_WORKSPACE,
                                          LIFE_SEGMENT, n ? n : 1);
    if (u->rows > 1 || n == 0)
        clear(u, squares);
    for (int w = 0, i = 0; w < u->n_weights; w++) {
        if (!trained(p, w) || p->tensors[w].replica)
            continue;
        for (int row = u->row_from; row < u->row_to; row++)
            add_squares(u, squares, w, row, i);
        i++;
    }
    if (u->rows > 1 && u->r->zero > 0 && u->n > 0) {
        const int64_t row = (int64_t)u->n * u->width;
        const int own =
            program_view_flat(p, "grad.squares.own", squares, u->row_from * row, 1, &row);
        collective(u, OP_ALL_GATHER, own, squares,
                   program_group(p, &u->r->mesh, MESH_DATA, "data"));
    }
    if (model < 0)
        return squares;
    const int total =
        program_tensor_1d(p, "grad.square_sum", DTYPE_F64, CLASS_WORKSPACE, LIFE_SEGMENT, 1);
    struct op sum = op_make(OP_SUM);
    op_in(&sum, squares);
    op_out(&sum, total);
    sum.n = n ? n : 1;
    program_op(p, u->segment, &sum);
    collective(u, OP_ALL_REDUCE, total, total, model);
    return total;
}

static void clip(const struct update *u) {
    const int squares = squares_of(u);
    struct op op = op_make(OP_CLIP);
    op_in(&op, squares);
    op_in(&op, u->hyper);
    op_out(&op, u->clip);
    op.n = squares < 0 ? 0 : tensor_elements(&u->p->tensors[squares]);
    program_op(u->p, u->segment, &op);
    if (!u->r->apart)
        return;
    const int64_t one = 1;
    const int skip = program_view_flat(u->p, NAME_CLIP ".skip", u->clip, CLIP_SKIP, 1, &one);
    collective(u, OP_ALL_REDUCE, skip, skip, program_group(u->p, &u->r->mesh, MESH_DATA, "data"));
}

// ---------------------------------------------------------------- the step

static void step(const struct update *u, int w) {
    struct program *p = u->p;
    const int at = p->tensors[w].own >= 0 ? p->tensors[w].own : w; // what this rank updates
    const int m = state(p, "adam.m", w, at), v = state(p, "adam.v", w, at);
    int master = -1;
    if (op_wide_type(p->tensors[w].dtype) != p->tensors[w].dtype)
        master = state(p, "master", w, at);
    if (master >= 0) // a separate statement, because state() may move the tensors
        p->tensors[w].master = p->tensors[at].master = master;
    struct op op = op_make(OP_ADAMW);
    op_in(&op, p->tensors[w].grad);
    op_in(&op, u->hyper);
    op_in(&op, u->clip);
    op_in(&op, at), op_in(&op, m), op_in(&op, v);
    op_out(&op, at), op_out(&op, m), op_out(&op, v);
    if (master >= 0)
        op_in(&op, master), op_out(&op, master);
    op.n = tensor_elements(&p->tensors[at]);
    op.layer = p->tensors[w].layer;
    op.flags = p->tensors[w].decay ? OP_DECAY : 0;
    program_op(p, u->segment, &op);
}

int build_update(struct program *p, const struct apply_ranks *r, struct err *e) {
    struct update u = {.p = p, .r = r, .n_weights = p->n_tensors};
    u.segment = program_segment(p, "update", SEGMENT_UPDATE);
    u.hyper = program_find(p, NAME_HYPER);
    u.clip = program_tensor_1d(p, NAME_CLIP, DTYPE_F64, CLASS_INPUT, LIFE_RUN, CLIP_COUNT);
    u.rows = u.row_to = r->apart ? 1 : mesh_size(&r->mesh, AXIS_DATA);
    u.width = u.rows > 1 ? 2 : 1;
    if (r->zero > 0) {
        u.row_from = r->mesh.at[AXIS_DATA];
        u.row_to = u.row_from + 1;
    }
    for (int w = 0; w < u.n_weights; w++)
        u.n += trained(p, w) && !p->tensors[w].replica;
    clip(&u);
    for (int w = 0; w < u.n_weights; w++)
        if (trained(p, w) && p->tensors[w].own != OWN_NOTHING)
            step(&u, w);
    TRY(program_finish(p, e));
    return u.segment;
}

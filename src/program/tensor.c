// tensor.c - tensor parallelism (Shoeybi et al., 2019): the ranks of a tensor group share every
// layer.
//
// build.c has built this rank's slice of the model: a T-th of the heads, of the MLP's columns and
// of the vocabulary, as a model of its own (tensor_slice). This pass makes the slices one model
// again:
//
//   attention, MLP   the first products are cut by columns, the last one by rows. So its output is
//                    a part of a sum: ALL_REDUCE. In the backward the gradient of the block's input
//                    is such a part: the op `enter` in front of the block stands for that sum, and
//                    grad.c turns it into an ALL_REDUCE.
//   embedding        a rank has some rows of the table and writes 0 for other tokens: ALL_REDUCE
//   head, loss       a rank has some columns of the logits. The ranks exchange three numbers per
//   row:
//                    the largest logit, the sum of exponentials, and the target's logit.
//
// What the slices do not share (norms, the bias of a product that is cut by rows, positions) is
// held by every rank, or by the first rank alone if it must be added once.
//
// Sequence parallelism (Korthikanti et al., 2022): between the blocks, ranks share the rows. A rank
// has a run of the micro-batch's tokens there, whatever sequences they belong to. The sum behind a
// block becomes a REDUCE_SCATTER, and in front of a block an ALL_GATHER collects the rows. grad.c
// turns each into the other. So embeddings, norms, residuals and what is kept of them are a T-th,
// and the same number of bytes is moved. Of the gathered rows the backward keeps nothing: it
// gathers them again (recompute.c). The gradients of norms are then sums over the group, too.
#include "program/apply.h"

#include <stdio.h>
#include <string.h>

static int64_t part_begin(int64_t n, int parts, int at) {
    return n * at / parts;
}

void tensor_slice(const struct model_shape *whole, const struct mesh *m, struct model_shape *out) {
    const int T = mesh_size(m, AXIS_TENSOR), at = m->at[AXIS_TENSOR];
    *out = *whole;
    out->heads /= T;
    out->kv_heads /= T;
    out->ffn /= T;
    out->vocab = part_begin(whole->vocab, T, at + 1) - part_begin(whole->vocab, T, at);
}

struct slicer {
    struct program *p;
    const struct model_shape *whole;
    int T, at, group;
    int segment;
    bool sequence; // ranks share the rows between blocks
    int *role;     // per tensor: enum model_role of a weight; -1: no weight
    bool *entered; // per tensor: an `enter` was emitted for it
    int *all;      // per tensor of own rows: the rows of all ranks; -1: not gathered
};

// ---------------------------------------------------------------- weights

static int64_t divisor(int64_t a, int64_t b) { // the greatest common one
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// What all boundaries between the ranks' spans are multiples of.
static int64_t grain(const struct slicer *s, const struct tensor_share *share, bool by_vocab) {
    int64_t g = share->shape[share->axis];
    for (int i = 1; by_vocab && i < s->T; i++)
        g = divisor(g, part_begin(s->whole->vocab, s->T, i));
    for (int i = 0; !by_vocab && i < share->n_spans; i++)
        g = divisor(divisor(g, share->spans[i].count), share->spans[i].begin);
    return g;
}

// The spans of this rank along the dimension in which slice and whole differ.
static void set_spans(const struct slicer *s, enum model_role role, const struct model_param *slice,
                      struct tensor_share *out) {
    const int64_t local = slice->dims[out->axis];
    const bool by_vocab = role == ROLE_WTE || role == ROLE_HEAD_W;
    out->n_spans = 1;
    out->spans[0].begin = by_vocab ? part_begin(s->whole->vocab, s->T, s->at) : local * s->at;
    out->spans[0].count = local;
    out->grain = grain(s, out, by_vocab);
    if (role != ROLE_QKV_W && role != ROLE_QKV_B)
        return;
    const int64_t D = s->whole->head_dim, q = s->whole->heads * D, kv = s->whole->kv_heads * D,
                  before[3] = {0, q, q + kv}, all[3] = {q, kv, kv};
    out->n_spans = 3;
    for (int i = 0; i < 3; i++) {
        out->spans[i].count = all[i] / s->T;
        out->spans[i].begin = before[i] + all[i] / s->T * s->at;
    }
    out->grain = grain(s, out, false);
}

// Whether every rank has only a part of the sum that is the gradient of this weight, although each
// holds all of the weight: norms of heads, and of rows that ranks share.
static bool is_of_heads(enum model_role role) {
    return role == ROLE_QNORM_W || role == ROLE_KNORM_W;
}

static bool is_of_rows(enum model_role role) {
    return role == ROLE_NORM1_W || role == ROLE_NORM1_B || role == ROLE_NORM2_W ||
           role == ROLE_NORM2_B || role == ROLE_NORMF_W || role == ROLE_NORMF_B;
}

static void share_weight(struct slicer *s, const struct model_param *whole,
                         const struct model_param *slice) {
    const int t = program_find(s->p, whole->name);
    if (t < 0)
        return;
    s->role[t] = whole->role;
    struct tensor_share share = {.rank = whole->rank, .axis = -1};
    for (int i = 0; i < whole->rank; i++) {
        share.shape[i] = whole->dims[i];
        if (whole->dims[i] != slice->dims[i])
            share.axis = i;
    }
    if (share.axis < 0) {
        s->p->tensors[t].replica = s->at > 0;
        if (is_of_heads(whole->role) || (s->sequence && is_of_rows(whole->role)))
            s->p->tensors[t].shared = s->group;
        return;
    }
    share.count = tensor_elements(&s->p->tensors[t]);
    set_spans(s, whole->role, slice, &share);
    const struct tensor_share *kept = share_make(s->p, &share);
    s->p->tensors[t].share = kept;
}

// ---------------------------------------------------------------- ops

static void collective(struct slicer *s, enum op_kind kind, int in, int out, unsigned flags,
                       int layer) {
    struct op op = op_make(kind);
    op.stream = STREAM_COMM;
    op.group = s->group;
    op.layer = layer;
    op.flags = flags;
    if (in < 0 || out < 0) // out of memory
        return;
    op.n = tensor_elements(&s->p->tensors[kind == OP_REDUCE_SCATTER ? in : out]);
    op_in(&op, in);
    op_out(&op, out);
    program_op(s->p, s->segment, &op);
}

static enum model_role role_of(const struct slicer *s, int weight) {
    return weight >= 0 && s->role[weight] >= 0 ? (enum model_role)s->role[weight] : ROLE_COUNT;
}

// Makes a tensor for `rows` rows like those of t.
static int rows_like(struct slicer *s, int t, const char *suffix, int64_t rows) {
    const struct tensor x = s->p->tensors[t];
    char name[96];
    snprintf(name, sizeof name, "%.80s.%s", x.name, suffix);
    const int made = program_tensor_2d(s->p, name, x.dtype, x.cls, x.life, rows, x.local[1]);
    if (made >= 0)
        s->p->tensors[made].layer = x.layer;
    return made;
}

static void keep_own_rows(struct slicer *s, int t) {
    struct tensor *x = &s->p->tensors[t];
    x->local[0] /= s->T;
    x->bytes /= (uint64_t)s->T;
}

// In front of a product that is cut by columns.
static void enter(struct slicer *s, struct op *op) {
    const int x = op->in[0];
    if (!s->sequence) {
        if (!s->entered[x])
            collective(s, OP_ALL_REDUCE, x, x, OP_ENTER, op->layer);
        s->entered[x] = true;
        return;
    }
    if (s->all[x] < 0) {
        s->all[x] = rows_like(s, x, "all", s->p->tensors[x].local[0] * s->T);
        collective(s, OP_ALL_GATHER, x, s->all[x], 0, op->layer);
    }
    op->in[0] = s->all[x];
}

// Emits an op whose output is a part of a sum over the ranks, and the sum.
static void emit_part(struct slicer *s, struct op op) {
    const int y = op.out[0];
    if (!s->sequence) {
        program_op(s->p, s->segment, &op);
        collective(s, OP_ALL_REDUCE, y, y, 0, op.layer);
        return;
    }
    op.out[0] = rows_like(s, y, "part", s->p->tensors[y].local[0]);
    keep_own_rows(s, y);
    program_op(s->p, s->segment, &op);
    collective(s, OP_REDUCE_SCATTER, op.out[0], y, 0, op.layer);
}

static void edit_matmul(struct slicer *s, struct op op) {
    const enum model_role role = role_of(s, op.in[1]);
    const bool by_rows = role == ROLE_OUT_W || role == ROLE_DOWN_W;
    if (by_rows) {
        if (s->at > 0 && op.n_in > 2)
            op.in[2] = -1; // the first rank adds the bias
        emit_part(s, op);
        return;
    }
    enter(s, &op);
    program_op(s->p, s->segment, &op);
}

// Norms of rows and residuals work on the rank's own rows.
static void edit_between(struct slicer *s, struct op op) {
    if (s->sequence && !(op.kind == OP_NORM && is_of_heads(role_of(s, op.in[1])))) {
        for (int i = 0; i < op.n_out; i++)
            keep_own_rows(s, op.out[i]);
        op.m /= s->T;
    }
    program_op(s->p, s->segment, &op);
}

static void edit_embed(struct slicer *s, struct op op) {
    op.first = part_begin(s->whole->vocab, s->T, s->at);
    op.flags |= OP_PART;
    if (s->at > 0)
        op.in[2] = op.in[3] = -1, op.positions = 0;
    emit_part(s, op);
}

int tensor_apply(struct program *p, int forward, const struct apply_ranks *r,
                 const struct model_shape *whole, const struct model_shape *slice, struct err *e) {
    struct model_param a, b;
    const size_t n = (size_t)p->n_tensors + 1;
    struct slicer s = {.p = p,
                       .whole = whole,
                       .T = mesh_size(&r->mesh, AXIS_TENSOR),
                       .at = r->mesh.at[AXIS_TENSOR],
                       .group = program_group(p, &r->mesh, MESH_TENSOR, "tensor"),
                       .segment = forward,
                       .sequence = r->sequence};
    s.role = region_alloc(&p->region, n * sizeof *s.role);
    s.entered = region_alloc(&p->region, n);
    s.all = region_alloc(&p->region, n * sizeof *s.all);
    if (!s.role || !s.entered || !s.all)
        return err_set(e, ERR_MEMORY, "out of memory while slicing '%s'", p->name);
    memset(s.role, -1, n * sizeof *s.role);
    memset(s.all, -1, n * sizeof *s.all);
    for (int64_t i = 0; model_param_at(whole, i, &a) && model_param_at(slice, i, &b); i++)
        share_weight(&s, &a, &b);
    const struct segment old = program_take_ops(p, forward);
    for (int i = 0; i < old.n_ops && !p->failed; i++) {
        const struct op *op = &old.ops[i];
        if (op->kind == OP_MATMUL)
            edit_matmul(&s, *op);
        else if (op->kind == OP_EMBED)
            edit_embed(&s, *op);
        else if (op->kind == OP_NORM || op->kind == OP_ADD)
            edit_between(&s, *op);
        else
            program_op(p, forward, op);
    }
    return program_finish(p, e);
}

// ---------------------------------------------------------------- after the derivative

// Entering costs nothing in the forward.
static void drop_entries(struct program *p, int segment) {
    const struct segment old = program_take_ops(p, segment);
    for (int i = 0; i < old.n_ops; i++)
        if (!(old.ops[i].flags & OP_ENTER))
            program_op(p, segment, &old.ops[i]);
}

// A loss over this rank's columns of the logits becomes one over all columns.
static void split_loss(struct program *p, int segment, const struct apply_ranks *r,
                       const struct model_shape *whole, const struct op *loss) {
    const int T = mesh_size(&r->mesh, AXIS_TENSOR),
              group = program_group(p, &r->mesh, MESH_TENSOR, "tensor");
    const enum dtype wide = op_wide_type(p->tensors[loss->in[0]].dtype);
    char name[64];
    snprintf(name, sizeof name, "loss.stats.%lld", (long long)loss->m); // chunks may differ in rows
    int mine = program_find(p, name);
    if (mine < 0)
        mine = program_tensor_2d(p, name, wide, CLASS_WORKSPACE, LIFE_SEGMENT, loss->m, 3);
    snprintf(name, sizeof name, "loss.all.%lld", (long long)loss->m);
    int all = program_find(p, name);
    if (all < 0)
        all = program_tensor_2d(p, name, wide, CLASS_COMM, LIFE_SEGMENT, T * loss->m, 3);
    struct op stats = *loss;
    stats.kind = OP_LOSS_STATS;
    stats.n_in = stats.n_out = 0;
    stats.flags = 0;
    stats.first = part_begin(whole->vocab, T, r->mesh.at[AXIS_TENSOR]);
    stats.k = whole->vocab;
    op_in(&stats, loss->in[0]);
    op_in(&stats, loss->in[1]);
    op_out(&stats, mine);
    program_op(p, segment, &stats);
    struct op gather = op_make(OP_ALL_GATHER);
    gather.stream = STREAM_COMM;
    gather.group = group;
    gather.layer = loss->layer;
    gather.n = all < 0 ? 0 : tensor_elements(&p->tensors[all]);
    op_in(&gather, mine);
    op_out(&gather, all);
    program_op(p, segment, &gather);
    struct op part = *loss;
    part.kind = OP_LOSS_PART;
    part.n_in = 0;
    part.first = stats.first;
    part.k = whole->vocab;
    part.batch = T;
    op_in(&part, loss->in[0]);
    op_in(&part, all);
    op_in(&part, loss->in[1]);
    op_in(&part, loss->in[2]);
    program_op(p, segment, &part);
}

int tensor_finish(struct program *p, int forward, int backward, const struct apply_ranks *r,
                  const struct model_shape *whole, struct err *e) {
    drop_entries(p, forward);
    for (int k = 0; k < 2; k++) {
        const int segment = k ? backward : forward;
        if (segment < 0)
            continue;
        const struct segment old = program_take_ops(p, segment);
        for (int i = 0; i < old.n_ops; i++)
            if (old.ops[i].kind == OP_LOSS)
                split_loss(p, segment, r, whole, &old.ops[i]);
            else
                program_op(p, segment, &old.ops[i]);
    }
    return program_finish(p, e);
}

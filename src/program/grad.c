// grad.c - the derivative of a forward segment: the backward segment, derived op by op from the
// end.
//
// Every op kind has one rule below that emits its gradient ops. So a technique that edits the
// forward (LoRA pairs, quantizers, another family) needs no code for the backward. Frozen weights
// cost nothing: ops are emitted only towards tensors that depend on a trainable weight.
//
// Invariants:
//   1. The gradient of a tensor is complete before an op that reads it is emitted, because all
//      readers of the tensor come later in the forward and therefore earlier here.
//   2. The first contribution to a gradient overwrites, later ones accumulate.
//   3. y = a + b passes its gradient on without a copy, so one gradient tensor serves several
//      forward tensors (its owners). Nothing may accumulate into it before the producers of the
//      other owners have read it. check_sole_reader checks that.
//   4. The gradient of a view is the same view of the root's gradient.
#include "program/build.h"

#include <stdio.h>
#include <string.h>

struct deriver {
    struct program *p;
    const struct build *b;
    int segment, forward;
    int *grad;            // per forward tensor: its gradient; -1: none yet
    int *producer;        // per root: index of the last forward op that writes it; -1: none
    unsigned char *needs; // per root: it depends on a trainable weight
    unsigned char *has;   // per forward tensor: a contribution was emitted
    int *owner;           // per forward tensor: the next tensor with the same gradient, in a ring
    int n, at;            // number of tensors before this pass; forward op being derived
    struct err *e;
};

static bool needs(const struct deriver *d, int t) {
    return t >= 0 && t < d->n && d->needs[program_root(d->p, t)];
}

static void find_needs(struct deriver *d, const struct segment *f) {
    struct op_access access[OP_MAX_TENSORS];
    for (int t = 0; t < d->n; t++)
        d->needs[t] = d->p->tensors[t].cls == CLASS_WEIGHT && d->p->tensors[t].trainable;
    for (int i = 0; i < f->n_ops; i++) {
        int n = op_accesses(d->p, &f->ops[i], access);
        bool any = false;
        for (int a = 0; a < n; a++)
            any |= (access[a].how & OP_READ) && d->needs[access[a].tensor];
        for (int a = 0; a < n; a++)
            if (access[a].how & OP_WRITE) {
                d->needs[access[a].tensor] |= any;
                d->producer[access[a].tensor] = i;
            }
    }
}

// Returns the part of g that corresponds to `view` within its root.
static int same_view(struct deriver *d, int view, int g) {
    struct tensor v = d->p->tensors[view];
    char name[200];
    snprintf(name, sizeof name, "d.%s", v.name);
    int t = program_view_flat(d->p, name, g, v.root_offset, v.rank, v.local);
    if (t >= 0)
        d->p->tensors[t].ld = v.ld;
    return t;
}

// Returns the tensor that holds t's gradient, made on first use.
static int gradient(struct deriver *d, int t) {
    if (d->grad[t] >= 0)
        return d->grad[t];
    int root = program_root(d->p, t);
    char name[160];
    if (d->grad[root] < 0) {
        struct tensor r = d->p->tensors[root];
        snprintf(name, sizeof name, "d.%s", r.name);
        d->grad[root] =
            program_tensor(d->p, name, r.dtype, CLASS_WORKSPACE, LIFE_SEGMENT, r.rank, r.local);
        if (d->grad[root] >= 0)
            d->p->tensors[d->grad[root]].layer = r.layer;
    }
    if (t != root)
        d->grad[t] = same_view(d, t, d->grad[root]);
    return d->grad[t];
}

static void emit(struct deriver *d, struct op *op, const struct op *forward) {
    op->layer = forward->layer;
    program_op(d->p, d->segment, op);
}

// Checks that t's gradient may be added to now: no other owner of the same gradient tensor still
// has to read it unchanged. Owners whose producer was already derived leave the ring. Otherwise
// this would be quadratic in the number of layers, because one tensor serves the whole residual
// stream.
static int check_sole_reader(struct deriver *d, int t) {
    for (int last = t, o = d->owner[t]; o != t; o = d->owner[last]) {
        int producer = d->producer[program_root(d->p, o)];
        if (producer >= 0 && producer < d->at)
            return err_set(d->e, ERR_INTERNAL,
                           "gradient of '%s' would be changed while '%s' still needs it",
                           d->p->tensors[t].name, d->p->tensors[o].name);
        if (producer == d->at) { // stays: inputs of this op may still join the ring
            last = o;
            continue;
        }
        d->owner[last] = d->owner[o];
        d->owner[o] = o;
    }
    return 0;
}

// Emits an op whose last output is t's gradient, and appends that output. adds: the op kind
// supports OP_ACCUMULATE.
static int contribute(struct deriver *d, struct op *op, int t, bool adds,
                      const struct op *forward) {
    if (!d->has[t]) {
        op_out(op, gradient(d, t));
        emit(d, op, forward);
        d->has[t] = 1;
        return 0;
    }
    TRY(check_sole_reader(d, t));
    if (adds) {
        op->flags |= OP_ACCUMULATE;
        op_out(op, gradient(d, t));
        emit(d, op, forward);
        return 0;
    }
    struct tensor like = d->p->tensors[t];
    char name[160];
    snprintf(name, sizeof name, "d.%s.more", like.name);
    int extra = program_tensor(d->p, name, like.dtype, CLASS_WORKSPACE, LIFE_SEGMENT, like.rank,
                               like.local);
    op_out(op, extra);
    emit(d, op, forward);
    struct op copy = op_make(OP_COPY);
    op_in(&copy, extra);
    op_out(&copy, gradient(d, t));
    copy.m = like.local[0], copy.n = like.rank > 1 ? like.local[1] : 1;
    copy.flags = OP_ACCUMULATE;
    emit(d, &copy, forward);
    return 0;
}

// Returns the gradient tensor of a trainable weight or of a view of one. Sets OP_FIRST_GRAD if this
// is the micro-batch's first contribution, else OP_ACCUMULATE.
static int weight_gradient(struct deriver *d, int w, struct op *op) {
    int root = program_root(d->p, w);
    struct tensor t = d->p->tensors[root];
    if (t.grad < 0) {
        char name[160];
        snprintf(name, sizeof name, "d.%s", t.name);
        enum tensor_life life = d->b->keep_gradients ? LIFE_RUN : LIFE_TURN;
        int g = program_tensor(d->p, name, t.dtype, CLASS_GRADIENT, life, t.rank, t.local);
        if (g < 0)
            return -1;
        d->p->tensors[g].layer = t.layer;
        d->p->tensors[root].grad = g;
    }
    op->flags |= d->has[w] ? OP_ACCUMULATE : OP_FIRST_GRAD;
    d->has[w] = 1;
    if (w == root)
        return d->p->tensors[root].grad;
    if (d->grad[w] < 0)
        d->grad[w] = same_view(d, w, d->p->tensors[root].grad);
    return d->grad[w];
}

// The gradients of weights that are parts of a root are parts of the root's gradient.
static void give_parts(struct deriver *d) {
    for (int t = 0; t < d->n; t++) {
        int root = d->p->tensors[t].root, g = -1;
        if (d->p->tensors[t].part && d->p->tensors[root].grad >= 0)
            g = same_view(d, t, d->p->tensors[root].grad);
        if (g >= 0) // a separate statement, because a new view may move the tensors
            d->p->tensors[t].grad = g;
    }
}

static bool trains(const struct deriver *d, int w) {
    return w >= 0 && d->p->tensors[w].cls == CLASS_WEIGHT && d->p->tensors[w].trainable;
}

// Returns a backward op with the forward op's sizes and switches. The caller fills in tensors and
// flags.
static struct op like(const struct op *f, enum op_kind kind) {
    struct op op = *f;
    op.kind = kind;
    op.n_in = op.n_out = 0;
    op.flags = f->flags & (OP_IN_OUT | OP_RMS);
    return op;
}

// What is left of a tensor by dropout is drawn again, not kept: the draws are the same.
static int draw_again(struct deriver *d, int x) {
    const int made = d->producer[program_root(d->p, x)];
    if (made < 0 || d->p->segments[d->forward].ops[made].kind != OP_DROPOUT)
        return x;
    struct op op = d->p->segments[d->forward].ops[made];
    const struct tensor like = d->p->tensors[x];
    char name[160];
    snprintf(name, sizeof name, "%.150s.again", like.name);
    op.out[0] = program_tensor(d->p, name, like.dtype, CLASS_WORKSPACE, LIFE_SEGMENT, like.rank,
                               like.local);
    if (op.out[0] >= 0)
        d->p->tensors[op.out[0]].layer = like.layer;
    op.flags |= OP_AGAIN;
    emit(d, &op, &op);
    return op.out[0];
}

static int derive_matmul(struct deriver *d, const struct op *f) {
    int x = f->in[0], w = f->in[1], b = f->n_in > 2 ? f->in[2] : -1, dy = gradient(d, f->out[0]);
    if (trains(d, b)) {
        struct op op = like(f, OP_BIAS_DB);
        op_in(&op, dy);
        op_out(&op, weight_gradient(d, b, &op));
        op.scale = 1.0;
        emit(d, &op, f);
    }
    if (trains(d, w)) {
        struct op op = like(f, OP_MATMUL_DW);
        op_in(&op, draw_again(d, x));
        op_in(&op, dy);
        op_out(&op, weight_gradient(d, w, &op));
        emit(d, &op, f);
    }
    if (needs(d, x)) {
        struct op op = like(f, OP_MATMUL_DX);
        op_in(&op, dy);
        op_in(&op, w);
        TRY(contribute(d, &op, x, true, f));
    }
    return 0;
}

static int derive_norm(struct deriver *d, const struct op *f) {
    int x = f->in[0], w = f->in[1], b = f->in[2], dy = gradient(d, f->out[0]), stats = f->out[1];
    if (trains(d, w)) {
        struct op op = like(f, OP_NORM_DW);
        op_in(&op, dy);
        op_in(&op, x);
        op_in(&op, stats);
        op_out(&op, weight_gradient(d, w, &op));
        if (trains(d, b))
            op_out(&op, weight_gradient(d, b, &op));
        emit(d, &op, f);
    } else if (trains(d, b)) {
        struct op op = like(f, OP_BIAS_DB);
        op_in(&op, dy);
        op_out(&op, weight_gradient(d, b, &op));
        op.scale = 1.0;
        emit(d, &op, f);
    }
    if (needs(d, x)) {
        struct op op = like(f, OP_NORM_DX);
        op_in(&op, dy);
        op_in(&op, x);
        op_in(&op, w);
        op_in(&op, stats);
        TRY(contribute(d, &op, x, true, f));
    }
    return 0;
}

static int derive_add(struct deriver *d, const struct op *f) {
    int y = f->out[0];
    for (int i = 0; i < 2; i++) {
        int t = f->in[i];
        if (!needs(d, t))
            continue;
        if (!d->has[t] && d->p->tensors[t].root < 0) {
            d->grad[t] = gradient(d, y);
            d->has[t] = 1;
            d->owner[t] = d->owner[y];
            d->owner[y] = t;
            continue;
        }
        struct op op = like(f, OP_COPY);
        op_in(&op, gradient(d, y));
        TRY(contribute(d, &op, t, true, f));
    }
    return 0;
}

static int derive_embed(struct deriver *d, const struct op *f) {
    int dx = gradient(d, f->out[0]);
    for (int i = 0; i < 4; i += 2) { // (tokens, wte) and (positions, wpe)
        if (!trains(d, f->in[i + 1]))
            continue;
        struct op op = like(f, OP_EMBED_DW);
        op.first = i == 0 ? f->first : 0; // only the table of tokens may be a part
        op_in(&op, f->in[i]);
        op_in(&op, dx);
        op_out(&op, weight_gradient(d, f->in[i + 1], &op));
        op.k = d->p->tensors[f->in[i + 1]].local[0];
        emit(d, &op, f);
    }
    return 0;
}

static int derive_attention(struct deriver *d, const struct op *f) {
    struct op op = like(f, OP_ATTENTION_BWD);
    op_in(&op, gradient(d, f->out[0]));
    for (int i = 0; i < 3; i++)
        op_in(&op, f->in[i]);
    op_in(&op, f->out[0]);
    op_in(&op, f->out[1]);
    op_in(&op, f->in[3]);
    for (int i = 0; i < 3; i++) {
        if (d->has[f->in[i]])
            return err_set(d->e, ERR_INTERNAL, "'%s' has a second reader besides attention",
                           d->p->tensors[f->in[i]].name);
        op_out(&op, gradient(d, f->in[i]));
        d->has[f->in[i]] = 1;
    }
    emit(d, &op, f);
    return 0;
}

static int derive_swiglu(struct deriver *d, const struct op *f) {
    struct op op = like(f, OP_SWIGLU_BWD);
    op_in(&op, gradient(d, f->out[0]));
    for (int i = 0; i < 2; i++) {
        if (d->has[f->in[i]])
            return err_set(d->e, ERR_INTERNAL, "'%s' has a second reader besides swiglu",
                           d->p->tensors[f->in[i]].name);
        op_in(&op, f->in[i]);
        op_out(&op, gradient(d, f->in[i]));
        d->has[f->in[i]] = 1;
    }
    emit(d, &op, f);
    return 0;
}

// Rows that ranks share (tensor.c). Behind a gather each rank has a part of the gradient of all
// rows: their sum is scattered. Behind a scattered sum each rank has the gradient of its own rows,
// which is that of every part: it is gathered.
static int derive_rows(struct deriver *d, const struct op *f) {
    const bool gathered = f->kind == OP_ALL_GATHER;
    struct op op = like(f, gathered ? OP_REDUCE_SCATTER : OP_ALL_GATHER);
    op_in(&op, gradient(d, f->out[0]));
    return contribute(d, &op, f->in[0], gathered, f);
}

static int derive(struct deriver *d, const struct op *f) {
    if (f->kind == OP_LOSS ||
        f->kind == OP_LOSS_KL) { // the loss overwrote the logits with their gradient
        d->grad[f->in[0]] = f->in[0];
        d->has[f->in[0]] = 1;
        return 0;
    }
    if (f->n_out == 0 || !needs(d, f->out[0]) || f->kind == OP_LOSS_SUM)
        return 0;
    if (f->kind == OP_ALL_REDUCE) {
        // A sum over ranks passes its gradient on. What enters a slice has a part of its gradient
        // on each rank.
        if (f->flags & OP_ENTER) {
            struct op sum = *f;
            sum.flags = 0;
            sum.in[0] = sum.out[0] = gradient(d, f->in[0]);
            emit(d, &sum, f);
        }
        return 0;
    }
    struct op op;
    switch (f->kind) {
    case OP_MATMUL:
        return derive_matmul(d, f);
    case OP_NORM:
        return derive_norm(d, f);
    case OP_ADD:
        return derive_add(d, f);
    case OP_EMBED:
        return derive_embed(d, f);
    case OP_ATTENTION:
        return derive_attention(d, f);
    case OP_SWIGLU:
        return derive_swiglu(d, f);
    case OP_ALL_GATHER:
    case OP_REDUCE_SCATTER:
        return derive_rows(d, f);
    case OP_ACT:
        op = like(f, OP_ACT_BWD);
        op_in(&op, gradient(d, f->out[0]));
        op_in(&op, f->in[0]);
        return contribute(d, &op, f->in[0], false, f);
    case OP_DROPOUT:
        op = like(f, OP_DROPOUT);
        op_in(&op, gradient(d, f->out[0]));
        op_in(&op, f->in[1]), op_in(&op, f->in[2]);
        return contribute(d, &op, f->in[0], true, f);
    case OP_ROPE:
        op = like(f, OP_ROPE);
        op.flags = OP_INVERSE;
        op_in(&op, gradient(d, f->out[0]));
        op_in(&op, f->in[1]);
        if (f->in[0] == f->out[0]) { // rotated in place, so the gradient is too
            op_out(&op, gradient(d, f->out[0]));
            emit(d, &op, f);
            return 0;
        }
        return contribute(d, &op, f->in[0], false, f);
    default:
        return err_set(d->e, ERR_INTERNAL,
                       "op '%s' has no derivative, but it depends on a trainable weight",
                       op_info(f->kind)->name);
    }
}

int grad_derive(struct program *p, int forward, const struct build *b, struct err *e) {
    struct deriver d = {.p = p, .b = b, .n = p->n_tensors, .e = e};
    size_t n = (size_t)p->n_tensors + 1;
    d.segment = program_segment(p, "backward", SEGMENT_BACKWARD);
    d.forward = forward;
    d.grad = region_alloc(&p->region, n * sizeof(int));
    d.producer = region_alloc(&p->region, n * sizeof(int));
    d.needs = region_alloc(&p->region, n);
    d.has = region_alloc(&p->region, n);
    d.owner = region_alloc(&p->region, n * sizeof(int));
    if (!d.grad || !d.producer || !d.needs || !d.has || !d.owner)
        p->failed = ERR_MEMORY;
    TRY(program_finish(p, e));
    memset(d.grad, -1, n * sizeof(int));
    memset(d.producer, -1, n * sizeof(int));
    for (int t = 0; t < d.n; t++)
        d.owner[t] = t;
    find_needs(&d, &p->segments[forward]);
    for (d.at = p->segments[forward].n_ops - 1; d.at >= 0 && !p->failed; d.at--) {
        struct op f = p->segments[forward].ops[d.at];
        TRY(derive(&d, &f));
    }
    give_parts(&d);
    TRY(program_finish(p, e));
    return d.segment;
}

// fuse.c - fusion, in both directions. On: neighbouring ops become one op that passes over memory
// once. Off: an op that does several things becomes plain ops with real tensors between them, as in
// a library without fusion. The difference between the two is the gain from fusion.
//
//   group   on                                     off
//   norm    add, norm            -> add_norm       norm_dx += -> norm_dx, copy +=
//           norm_dw, norm_dx     -> norm_bwd
//   act     matmul(+bias), act   -> matmul_act     matmul+bias -> matmul, add_bias
//           bias_db, matmul_dw   -> matmul_dw      swiglu      -> act (silu), mul
//           matmul_dx, act_bwd   -> matmul_dx_act  swiglu_bwd  -> mul, mul, act_bwd
//   loss    (as built)                             loss -> log_softmax, nll, nll_bwd,
//                                                          log_softmax_bwd
//   optim   (as built)                             adamw -> grad_scale, adam_decay, _m, _v, _step
//
// The pass runs late. By then recompute has chosen among plain ops, and pipeline or ZeRO have
// decided which ops are neighbours. A joined op means its two ops: it rounds where they round. On
// the CPU it therefore gives the same bits, and so does an op that recompute issues again alone.
#include "program/apply.h"

#include <stdio.h>
#include <string.h>

struct fuser {
    struct program *p;
    const struct fuse_rule *rule;
    int segment;     // the segment being rewritten
    int n;           // number of tensors before this pass
    int *silu;       // per tensor: the tensor that holds its silu, last computed; -1: none
    int logp, dlogp; // tensors for the largest chunk of rows so far; -1: none
};

// ---------------------------------------------------------------- helpers

static void put(struct fuser *f, const struct op *op) {
    program_op(f->p, f->segment, op);
}

// Makes a transient tensor for the op's m x n elements, named after tensor `after`.
static int make(struct fuser *f, const struct op *op, int after, const char *suffix,
                enum dtype type) {
    const struct tensor like = f->p->tensors[after];
    const char *again = op->flags & OP_AGAIN ? ".again" : "";
    size_t stem = strlen(like.name), tail = strlen(".again");
    char name[200];
    if (stem > tail && strcmp(like.name + stem - tail, ".again") == 0)
        stem -= tail; // the name gets at most one ".again", at its end
    snprintf(name, sizeof name, "%.*s.%s%s", stem < 150 ? (int)stem : 150, like.name, suffix,
             again);
    int t = program_tensor_2d(f->p, name, type, CLASS_WORKSPACE, LIFE_SEGMENT, op->m, op->n);
    if (t >= 0)
        f->p->tensors[t].layer = like.layer;
    return t;
}

static enum dtype type_of(const struct fuser *f, int tensor) {
    return f->p->tensors[tensor].dtype;
}

// Returns one part of a fused op: the same sizes, layer and stream, without tensors. Of the op's
// flags it keeps only `flags`.
static struct op part(const struct op *op, enum op_kind kind, unsigned flags) {
    struct op o = *op;
    o.kind = kind;
    o.n_in = o.n_out = 0;
    o.flags = op->flags & (flags | OP_AGAIN);
    return o;
}

static bool conflict(const struct program *p, const struct op *a, const struct op *b) {
    struct op_access x[OP_MAX_TENSORS], y[OP_MAX_TENSORS];
    int n = op_accesses(p, a, x), m = op_accesses(p, b, y);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < m; k++)
            if (x[i].tensor == y[k].tensor && (x[i].how | y[k].how) & OP_WRITE)
                return true;
    return false;
}

// Returns the index of the next op on op i's stream, or -1. Ops of other streams between the two (a
// gather for a later layer) stay in front of the joined op, unless they conflict with op i.
static int follower(const struct fuser *f, const struct segment *s, int i) {
    for (int k = i + 1; k < s->n_ops; k++) {
        if (s->ops[k].stream == s->ops[i].stream)
            return k;
        if (conflict(f->p, &s->ops[i], &s->ops[k]))
            return -1;
    }
    return -1;
}

// ---------------------------------------------------------------- two ops become one

// Whether no op of the segment but these two touches a tensor, and nothing reads it later.
static bool between_only(const struct fuser *f, const struct segment *s, int tensor, int one,
                         int two) {
    const int root = program_root(f->p, tensor);
    struct op_access access[OP_MAX_TENSORS];
    if (f->p->tensors[root].life != LIFE_SEGMENT)
        return false;
    for (int i = 0; i < s->n_ops; i++)
        for (int a = op_accesses(f->p, &s->ops[i], access) - 1; a >= 0 && i != one && i != two; a--)
            if (access[a].tensor == root)
                return false;
    return true;
}

static bool can_join(const struct fuser *f, const struct segment *s, int first, int second) {
    const struct fuse_rule *r = f->rule;
    const struct op *op = &s->ops[first], *next = &s->ops[second];
    const unsigned differ = next->flags ^ op->flags;
    const bool reads = next->in[0] == op->out[0], same_size = next->m == op->m && next->n == op->n;
    if (differ & OP_AGAIN)
        return false;
    switch (op->kind) {
    case OP_ADD: // only norms of whole rows can be joined
        return r->norm && next->kind == OP_NORM && reads && same_size && op_norm_heads(next) == 1;
    case OP_NORM_DW:
        return r->norm && next->kind == OP_NORM_DX && next->in[0] == op->in[0] &&
               next->in[1] == op->in[1] && next->in[3] == op->in[2];
    case OP_MATMUL:
        return r->act && next->kind == OP_ACT && reads && same_size && !(op->flags & OP_ACCUMULATE);
    case OP_MATMUL_DX:
        return r->act && next->kind == OP_ACT_BWD && reads && next->m == op->m &&
               next->n == op->k && !(op->flags & OP_ACCUMULATE) &&
               between_only(f, s, op->out[0], first, second);
    case OP_BIAS_DB:
        return r->act && next->kind == OP_MATMUL_DW && next->in[1] == op->in[0] &&
               next->n_out == 1 && !(differ & (OP_ACCUMULATE | OP_FIRST_GRAD));
    default:
        return false;
    }
}

// Returns the index of the op that op i is to be joined with, or -1.
static int partner(const struct fuser *f, const struct segment *s, int i) {
    const int next = follower(f, s, i);
    return next >= 0 && can_join(f, s, i, next) ? next : -1;
}

static struct op join_norm(const struct op *add, const struct op *norm) {
    struct op op = *add;
    op.kind = OP_ADD_NORM;
    op.scale = norm->scale; // epsilon
    op.flags |= norm->flags & OP_RMS;
    op_in(&op, norm->in[1]);
    op_in(&op, norm->n_in > 2 ? norm->in[2] : -1);
    op_out(&op, norm->out[0]);
    op_out(&op, norm->out[1]);
    return op;
}

static struct op join_norm_bwd(const struct op *dw, const struct op *dx) {
    struct op op = *dw;
    op.kind = OP_NORM_BWD;
    op.n_in = op.n_out = 0;
    for (int i = 0; i < 4; i++)
        op_in(&op, dx->in[i]);
    if (dx->flags & OP_ACCUMULATE)
        op_in(&op, dx->out[0]);
    op_out(&op, dx->out[0]);
    for (int i = 0; i < dw->n_out; i++)
        op_out(&op, dw->out[i]);
    return op;
}

static struct op join_act_bwd(const struct op *dx, const struct op *act) {
    struct op op = *dx;
    op.kind = OP_MATMUL_DX_ACT;
    op.act = act->act;
    op_in(&op, act->in[1]);
    op.out[0] = act->out[0];
    return op;
}

static void put_joined(struct fuser *f, const struct op *first, const struct op *second) {
    struct op op = *first;
    if (first->kind == OP_ADD) {
        op = join_norm(first, second);
    } else if (first->kind == OP_NORM_DW) {
        op = join_norm_bwd(first, second);
    } else if (first->kind == OP_MATMUL_DX) {
        op = join_act_bwd(first, second);
    } else if (first->kind == OP_BIAS_DB) {
        op = *second;
        op_out(&op, first->out[0]);
    } else {
        op.kind = OP_MATMUL_ACT;
        op.act = second->act;
        op_out(&op, second->out[0]);
    }
    put(f, &op);
}

// ---------------------------------------------------------------- one op becomes several

// Writes the norm's gradient to a separate tensor, then adds that to the output.
static void split_norm_dx(struct fuser *f, const struct op *op) {
    int own = make(f, op, op->in[0], "dx", type_of(f, op->out[0]));
    struct op dx = *op, copy = part(op, OP_COPY, OP_ACCUMULATE);
    dx.flags &= ~(unsigned)OP_ACCUMULATE;
    dx.out[0] = own;
    put(f, &dx);
    op_in(&copy, own), op_out(&copy, op->out[0]);
    copy.scale = 1;
    put(f, &copy);
}

static void split_bias(struct fuser *f, const struct op *op) {
    int bare = make(f, op, op->out[0], "bare", type_of(f, op->out[0]));
    struct op product = *op, add = part(op, OP_ADD_BIAS, 0);
    product.in[2] = -1;
    product.out[0] = bare;
    put(f, &product);
    op_in(&add, bare), op_in(&add, op->in[2]), op_out(&add, op->out[0]);
    add.scale = 1, add.k = 0;
    put(f, &add);
}

// again: OP_AGAIN if the forward computed the same value before, else 0.
static int put_silu(struct fuser *f, const struct op *op, int gate, unsigned again) {
    struct op act = part(op, OP_ACT, 0);
    act.flags |= again;
    int silu = make(f, &act, gate, "silu", type_of(f, gate));
    op_in(&act, gate), op_out(&act, silu);
    put(f, &act); // op.act is the gated activation; applied to one matrix it is silu
    if (gate < f->n)
        f->silu[gate] = silu;
    return silu;
}

static void put_mul(struct fuser *f, const struct op *like, int a, int b, int y) {
    struct op mul = part(like, OP_MUL, 0);
    op_in(&mul, a), op_in(&mul, b), op_out(&mul, y);
    put(f, &mul);
}

static void split_swiglu(struct fuser *f, const struct op *op) {
    int silu = put_silu(f, op, op->in[0], op->flags & OP_AGAIN);
    put_mul(f, op, silu, op->in[1], op->out[0]);
}

// silu(gate) is either the tensor kept from the forward or the one that recompute issued again in
// this segment. If neither exists (the gate is a recomputed twin that only this op reads), it is
// computed here.
static void split_swiglu_bwd(struct fuser *f, const struct op *op) {
    int dy = op->in[0], gate = op->in[1], up = op->in[2];
    int silu = f->silu[gate] >= 0 ? f->silu[gate] : put_silu(f, op, gate, OP_AGAIN);
    int dsilu = make(f, op, gate, "dsilu", type_of(f, gate));
    put_mul(f, op, dy, silu, op->out[1]);
    put_mul(f, op, dy, up, dsilu);
    struct op act = part(op, OP_ACT_BWD, 0);
    op_in(&act, dsilu), op_in(&act, gate), op_out(&act, op->out[0]);
    put(f, &act);
}

// Returns the first op->m rows of a tensor that all chunks of the logits use in turn. The first
// chunk is the largest.
static int rows_of(struct fuser *f, const struct op *op, int *whole, const char *suffix) {
    int64_t shape[2] = {op->m, op->n};
    char name[200];
    if (*whole < 0 || f->p->tensors[*whole].local[0] < op->m)
        *whole = make(f, op, op->in[0], suffix, op_wide_type(type_of(f, op->in[0])));
    if (*whole < 0 || f->p->tensors[*whole].local[0] == op->m)
        return *whole;
    snprintf(name, sizeof name, "%.150s.first%lld", f->p->tensors[*whole].name, (long long)op->m);
    int found = program_find(f->p, name);
    return found >= 0 ? found : program_view_flat(f->p, name, *whole, 0, 2, shape);
}

static void split_loss(struct fuser *f, const struct op *op) {
    int logits = op->in[0], targets = op->in[1], hyper = op->in[2];
    int logp = rows_of(f, op, &f->logp, "logp");
    struct op o = part(op, OP_LOG_SOFTMAX, 0);
    op_in(&o, logits), op_out(&o, logp);
    put(f, &o);
    o = part(op, OP_NLL, 0);
    op_in(&o, logp), op_in(&o, targets), op_out(&o, op->out[1]);
    put(f, &o);
    if (!(op->flags & OP_WITH_GRAD))
        return;
    int dlogp = rows_of(f, op, &f->dlogp, "dlogp");
    o = part(op, OP_NLL_BWD, 0);
    op_in(&o, targets), op_in(&o, hyper), op_out(&o, dlogp);
    put(f, &o);
    o = part(op, OP_LOG_SOFTMAX_BWD, 0); // overwrites the logits, which are no longer needed
    op_in(&o, dlogp), op_in(&o, logp), op_out(&o, logits);
    put(f, &o);
}

static void put_update(struct fuser *f, const struct op *op, enum op_kind kind, int first,
                       int changed) {
    struct op o = part(op, kind, OP_DECAY);
    op_in(&o, first), op_in(&o, op->in[1]), op_in(&o, op->in[2]);
    if (changed != first)
        op_in(&o, changed);
    op_out(&o, changed);
    put(f, &o);
}

// Scales the gradient in place, unless it is kept to be read after the turn.
static int put_scaled(struct fuser *f, const struct op *op) {
    const struct tensor g = f->p->tensors[op->in[0]];
    int to = op->in[0];
    if (g.life == LIFE_RUN) {
        char name[200];
        snprintf(name, sizeof name, "%.150s.clipped", g.name);
        to = program_tensor(f->p, name, g.dtype, CLASS_WORKSPACE, LIFE_SEGMENT, g.rank, g.local);
        if (to >= 0)
            f->p->tensors[to].layer = g.layer;
    }
    struct op o = part(op, OP_GRAD_SCALE, 0);
    op_in(&o, op->in[0]), op_in(&o, op->in[2]), op_out(&o, to);
    put(f, &o);
    return to;
}

static void split_adamw(struct fuser *f, const struct op *op) {
    int w = op->in[3], m = op->in[4], v = op->in[5], master = op->n_in > 6 ? op->in[6] : -1;
    int g = put_scaled(f, op);
    if (op->flags & OP_DECAY)
        put_update(f, op, OP_ADAM_DECAY, master >= 0 ? master : w, master >= 0 ? master : w);
    put_update(f, op, OP_ADAM_M, g, m);
    put_update(f, op, OP_ADAM_V, g, v);
    struct op step = part(op, OP_ADAM_STEP, 0);
    op_in(&step, m), op_in(&step, op->in[1]), op_in(&step, op->in[2]), op_in(&step, v);
    op_in(&step, w), op_out(&step, w);
    if (master >= 0)
        op_in(&step, master), op_out(&step, master);
    put(f, &step);
}

// ---------------------------------------------------------------- segments

static void put_alone(struct fuser *f, const struct op *op) {
    const struct fuse_rule *r = f->rule;
    bool adds = op->flags & OP_ACCUMULATE;
    if (!r->norm && op->kind == OP_NORM_DX && adds)
        split_norm_dx(f, op);
    else if (!r->act && op->kind == OP_MATMUL && op->n_in > 2 && op->in[2] >= 0 && !adds)
        split_bias(f, op);
    else if (!r->act && op->kind == OP_SWIGLU)
        split_swiglu(f, op);
    else if (!r->act && op->kind == OP_SWIGLU_BWD)
        split_swiglu_bwd(f, op);
    else if (!r->loss && op->kind == OP_LOSS)
        split_loss(f, op);
    else if (!r->optim && op->kind == OP_ADAMW)
        split_adamw(f, op);
    else
        put(f, op);
}

static void rewrite(struct fuser *f, int segment) {
    struct segment old = program_take_ops(f->p, segment);
    int *first = region_alloc(&f->p->region, sizeof *first * (size_t)(old.n_ops + 1));
    if (!first) {
        f->p->failed = ERR_MEMORY;
        return;
    }
    memset(first, -1, sizeof *first * (size_t)(old.n_ops + 1));
    f->segment = segment;
    f->logp = f->dlogp = -1;
    for (int i = 0; i < old.n_ops; i++) {
        int with = first[i] < 0 ? partner(f, &old, i) : -1;
        if (with >= 0)
            first[with] = i; // the joined op takes the place of the second
        else if (first[i] >= 0)
            put_joined(f, &old.ops[first[i]], &old.ops[i]);
        else
            put_alone(f, &old.ops[i]);
    }
}

int fuse_apply(struct program *p, const struct fuse_rule *rule, struct err *e) {
    struct fuser f = {.p = p, .rule = rule, .n = p->n_tensors};
    TRY(program_finish(p, e));
    f.silu = region_alloc(&p->region, sizeof *f.silu * (size_t)(f.n + 1));
    if (!f.silu)
        p->failed = ERR_MEMORY;
    TRY(program_finish(p, e));
    memset(f.silu, -1, sizeof *f.silu * (size_t)(f.n + 1));
    // Forwards first, because backwards look up the silu tensors that forwards kept.
    for (int forward = 1; forward >= 0; forward--)
        for (int s = 0; s < p->n_segments && !p->failed; s++)
            if ((p->segments[s].role == SEGMENT_FORWARD) == forward && p->segments[s].n_ops > 0)
                rewrite(&f, s);
    return program_finish(p, e);
}

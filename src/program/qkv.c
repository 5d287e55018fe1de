// qkv.c - the projections to queries, keys and values as one product, or as three.
//
//   on    Three products of one input become one, over a root that holds the rows of all three
//         weights. The weights keep their names: they become views of that root (tensor.parts), and
//         each keeps separate optimizer state. Their gradients and biases become parts in the same
//         way. The outputs become columns of one tensor and are rotated in place. So fusing costs
//         no memory: of separate tensors, the backward keeps only the rotated copies.
//   off   One product over a packed weight (GPT-2) becomes three, over columns or rows of the
//         weight, depending on how it is stored.
//
// The data flow decides which products belong together: it is followed from attention's inputs back
// through rotations and norms. Products that do not fit (another input, a weight with a second
// reader, separate weights stored [in, out], quantized weights) stay as they are. The pass runs on
// the forward of every program of a set, so that all have the same persistent tensors. It runs
// before grad.c, which derives the backward from the result.
#include "program/apply.h"

#include <stdio.h>
#include <string.h>

struct group {
    int op[3];   // the products that make q, k and v; all equal if it is one product
    int out[3];  // q, k and v: the outputs of those products, or columns of one output
    int rope[3]; // the op that rotates out[i] directly; -1: none
    int first;   // smallest index in op[]: where the new product goes
};

struct fusing {
    struct program *p;
    struct segment old; // the forward before this pass
    int *writer;        // per root: the first op that writes it; -1: none
    int *readers;       // per tensor: number of input operands of the forward that name it
    bool *viewed;       // per root: it has views
    int *instead;       // per tensor: the tensor that replaces it; -1: none
    int *with;          // per op: the group whose product it is; -1: none
    struct group *groups;
    int n_groups, n_tensors; // n_tensors: before this pass
};

// ---------------------------------------------------------------- which products

// Fills in member i (q, k or v) of the group: the product it comes from, and its output. False if
// tensor t does not come from a product.
static bool trace(const struct fusing *f, int t, struct group *g, int i) {
    for (g->rope[i] = -1; t >= 0;) {
        int w = f->writer[program_root(f->p, t)];
        if (w < 0)
            return false;
        const struct op *op = &f->old.ops[w];
        g->out[i] = t;
        g->op[i] = w;
        if (op->kind == OP_MATMUL)
            return true;
        if (op->kind != OP_ROPE && op->kind != OP_NORM)
            return false;
        g->rope[i] = op->kind == OP_ROPE ? w : -1;
        t = op->in[0];
    }
    return false;
}

static bool find_group(const struct fusing *f, int index, struct group *g) {
    const struct op *op = &f->old.ops[index];
    int from[3] = {op->in[0], op->in[1], op->in[2]};
    if (op->kind == OP_ATTENTION_DECODE) { // keys and values go through the cache
        int put = f->writer[program_root(f->p, op->in[1])];
        if (put < 0 || f->old.ops[put].kind != OP_KV_APPEND)
            return false;
        from[1] = f->old.ops[put].in[0], from[2] = f->old.ops[put].in[1];
    } else if (op->kind != OP_ATTENTION) {
        return false;
    }
    for (int i = 0; i < 3; i++)
        if (!trace(f, from[i], g, i))
            return false;
    return true;
}

static bool plain_weight(const struct fusing *f, int w) {
    return w >= 0 && f->p->tensors[w].cls == CLASS_WEIGHT && f->p->tensors[w].root < 0 &&
           storage_plain(f->p->tensors[w].storage) && !f->viewed[w] && f->readers[w] == 1;
}

static bool alike(const struct tensor *a, const struct tensor *b) {
    return a->dtype == b->dtype && a->layer == b->layer && a->rank == b->rank &&
           a->trainable == b->trainable && a->decay == b->decay;
}

static bool can_pack(const struct fusing *f, const struct group *g) {
    const struct op *first = &f->old.ops[g->op[0]];
    if (g->op[0] == g->op[1] || g->op[1] == g->op[2] || g->op[0] == g->op[2])
        return false;
    for (int i = 0; i < 3; i++) {
        const struct op *op = &f->old.ops[g->op[i]];
        int w = op->in[1], b = op->in[2], y = op->out[0];
        bool same = op->in[0] == first->in[0] && op->m == first->m && op->k == first->k &&
                    op->scale == first->scale && op->layer == first->layer;
        if (!same || op->flags & (OP_ACCUMULATE | OP_IN_OUT) || f->with[g->op[i]] >= 0)
            return false;
        if (y != g->out[i] || f->p->tensors[y].root >= 0 || f->viewed[y])
            return false;
        if (!plain_weight(f, w) || !alike(&f->p->tensors[w], &f->p->tensors[first->in[1]]))
            return false;
        if ((b >= 0) != (first->in[2] >= 0))
            return false;
        if (b >= 0 &&
            (!plain_weight(f, b) || !alike(&f->p->tensors[b], &f->p->tensors[first->in[2]])))
            return false;
    }
    return true;
}

// True if q, k and v are all the columns of one product, in that order.
static bool can_split(const struct fusing *f, const struct group *g) {
    const struct op *op = &f->old.ops[g->op[0]];
    int64_t column = 0;
    if (g->op[0] != g->op[1] || g->op[1] != g->op[2] || f->with[g->op[0]] >= 0 ||
        op->flags & OP_ACCUMULATE || !plain_weight(f, op->in[1]) ||
        (op->in[2] >= 0 && !plain_weight(f, op->in[2])))
        return false;
    for (int i = 0; i < 3; i++) {
        const struct tensor *v = &f->p->tensors[g->out[i]];
        if (v->root != op->out[0] || v->root_offset != column || v->rank != 2)
            return false;
        column += v->local[1];
    }
    return column == op->n;
}

// ---------------------------------------------------------------- writing the forward anew

static void replace(const struct fusing *f, int *tensors, int n) {
    for (int i = 0; i < n; i++)
        if (tensors[i] >= 0 && tensors[i] < f->n_tensors && f->instead[tensors[i]] >= 0)
            tensors[i] = f->instead[tensors[i]];
}

static void emit(struct fusing *f, int forward, struct op op) {
    replace(f, op.in, op.n_in);
    replace(f, op.out, op.n_out);
    program_op(f->p, forward, &op);
}

// ---------------------------------------------------------------- three become one

// Makes a tensor a part of a root.
static void become_view(struct program *p, int t, int root, int64_t offset) {
    struct tensor *v = &p->tensors[t];
    v->root = root;
    v->root_offset = offset;
    v->ld = v->rank > 1 ? p->tensors[root].ld : v->ld;
    v->bytes = 0;
}

// Makes one root for the weights (which = 1) or the biases (which = 2) of the three products.
static int pack_weights(struct fusing *f, const struct group *g, int which, int64_t rows,
                        const char *name) {
    struct tensor like = f->p->tensors[f->old.ops[g->op[0]].in[which]];
    int64_t shape[2] = {rows, like.rank > 1 ? like.local[1] : 1}, at = 0;
    int root = program_tensor(f->p, name, like.dtype, CLASS_WEIGHT, LIFE_RUN, like.rank, shape);
    if (root < 0)
        return -1;
    struct tensor *t = &f->p->tensors[root];
    t->layer = like.layer, t->trainable = like.trainable, t->decay = like.decay;
    t->parts = true;
    for (int i = 0; i < 3; i++) {
        int w = f->old.ops[g->op[i]].in[which];
        become_view(f->p, w, root, at);
        f->p->tensors[w].part = true;
        at += tensor_elements(&f->p->tensors[w]);
    }
    return root;
}

static void pack_outputs(struct fusing *f, const struct group *g, int root) {
    int64_t column = 0;
    for (int i = 0; i < 3; i++) {
        become_view(f->p, g->out[i], root, column);
        column += f->p->tensors[g->out[i]].local[1];
    }
}

// Does a rotation in place if it is the only reader of its input and writes a plain tensor.
static void rotate_in_place(struct fusing *f, int t, int rope) {
    int y = rope >= 0 ? f->old.ops[rope].out[0] : -1;
    if (y >= 0 && f->readers[t] == 1 && f->p->tensors[y].root < 0 && !f->viewed[y])
        f->instead[y] = t;
}

static struct op pack(struct fusing *f, const struct group *g) {
    struct op op = f->old.ops[g->op[0]];
    struct tensor like = f->p->tensors[op.out[0]];
    char name[3][48];
    static const char *const what[3] = {"", ".weight", ".bias"};
    for (int i = 0; i < 3; i++)
        snprintf(name[i], sizeof name[i], "h.%d.qkv%s", op.layer, what[i]);
    op.n += f->old.ops[g->op[1]].n + f->old.ops[g->op[2]].n;
    int y = program_tensor_2d(f->p, name[0], like.dtype, like.cls, like.life, op.m, op.n);
    if (y < 0)
        return op;
    f->p->tensors[y].layer = like.layer;
    pack_outputs(f, g, y);
    for (int i = 0; i < 3; i++)
        rotate_in_place(f, g->out[i], g->rope[i]);
    op.out[0] = y;
    if (op.in[2] >= 0)
        op.in[2] = pack_weights(f, g, 2, op.n, name[2]);
    op.in[1] = pack_weights(f, g, 1, op.n, name[1]);
    return op;
}

// ---------------------------------------------------------------- one becomes three

// Returns rows [first, first + n) of a weight stored [n, k], columns of one stored [k, n], or
// elements of a bias.
static int part_of(struct fusing *f, int w, char which, int64_t first, int64_t n, bool in_out) {
    struct tensor t = f->p->tensors[w];
    char name[160];
    snprintf(name, sizeof name, "%.150s.%c", t.name, which);
    if (t.rank > 1 && in_out)
        return program_view_columns(f->p, name, w, first, n);
    int64_t width = t.rank > 1 ? t.local[1] : 1, shape[2] = {n, width};
    return program_view_flat(f->p, name, w, first * width, t.rank, shape);
}

static void split(struct fusing *f, const struct group *g, int forward) {
    const struct op whole = f->old.ops[g->op[0]];
    int64_t first = 0;
    for (int i = 0; i < 3; i++) {
        struct op op = whole;
        op.n = f->p->tensors[g->out[i]].local[1];
        op.in[1] = part_of(f, op.in[1], "qkv"[i], first, op.n, op.flags & OP_IN_OUT);
        if (op.in[2] >= 0)
            op.in[2] = part_of(f, op.in[2], "qkv"[i], first, op.n, false);
        op.out[0] = g->out[i];
        first += op.n;
        emit(f, forward, op);
    }
}

// ---------------------------------------------------------------- the pass

static int look(struct fusing *f, struct err *e) {
    struct region *r = &f->p->region;
    size_t n = (size_t)f->p->n_tensors + 1, ops = (size_t)f->old.n_ops + 1;
    f->writer = region_alloc(r, n * sizeof(int)), f->readers = region_alloc(r, n * sizeof(int));
    f->instead = region_alloc(r, n * sizeof(int)), f->viewed = region_alloc(r, n);
    f->with = region_alloc(r, ops * sizeof(int));
    if (!f->writer || !f->readers || !f->viewed || !f->instead || !f->with)
        f->p->failed = ERR_MEMORY;
    TRY(program_finish(f->p, e));
    memset(f->writer, -1, n * sizeof(int));
    memset(f->instead, -1, n * sizeof(int));
    memset(f->with, -1, ops * sizeof(int));
    for (int t = 0; t < f->p->n_tensors; t++)
        if (f->p->tensors[t].root >= 0)
            f->viewed[f->p->tensors[t].root] = true;
    for (int i = 0; i < f->old.n_ops; i++) {
        const struct op *op = &f->old.ops[i];
        for (int a = 0; a < op->n_in; a++)
            if (op->in[a] >= 0)
                f->readers[op->in[a]]++;
        for (int a = 0; a < op->n_out; a++) {
            int root = program_root(f->p, op->out[a]);
            if (root >= 0 && f->writer[root] < 0)
                f->writer[root] = i;
        }
    }
    return 0;
}

// Collects the products that belong together into groups, and sets with[op] to the op's group.
static int find_groups(struct fusing *f, bool on, struct err *e) {
    f->groups = region_alloc(&f->p->region, sizeof *f->groups * (size_t)(f->old.n_ops + 1));
    if (!f->groups)
        f->p->failed = ERR_MEMORY;
    TRY(program_finish(f->p, e));
    for (int i = 0; i < f->old.n_ops; i++) {
        struct group *g = &f->groups[f->n_groups];
        if (!find_group(f, i, g) || !(on ? can_pack(f, g) : can_split(f, g)))
            continue;
        g->first = g->op[0];
        for (int k = 0; k < 3; k++) {
            f->with[g->op[k]] = f->n_groups;
            g->first = g->op[k] < g->first ? g->op[k] : g->first;
        }
        f->n_groups++;
    }
    return 0;
}

int qkv_apply(struct program *p, int forward, bool on, struct err *e) {
    struct fusing f = {.p = p, .old = p->segments[forward], .n_tensors = p->n_tensors};
    TRY(look(&f, e));
    TRY(find_groups(&f, on, e));
    if (f.n_groups == 0)
        return 0;
    program_take_ops(p, forward); // f.old has them
    for (int i = 0; i < f.old.n_ops; i++) {
        const struct group *g = f.with[i] >= 0 ? &f.groups[f.with[i]] : NULL;
        if (!g)
            emit(&f, forward, f.old.ops[i]);
        else if (i == g->first && on)
            emit(&f, forward, pack(&f, g));
        else if (i == g->first)
            split(&f, g, forward);
    }
    return program_finish(p, e);
}

// recompute.c - activation checkpointing (Chen et al., 2016): some tensors that the backward reads
// are not kept from the forward but computed again just before they are needed.
//
//   full        of every k-th block only the input is kept: the whole block runs again
//   selective   only tensors that are cheap to compute and large to keep (Korthikanti et al.,
//               2022): an op runs again if that saves at least a given number of bytes per
//               floating-point operation
//
// The decision is made per forward op. The edit is the same for both modes. If an op of the
// backward reads the output of a dropped op, the dropped op is issued again in front of it and
// writes a twin of the tensor. The dropped ops that it reads from are issued again too. The same op
// on the same numbers gives the same bits, so loss and weights do not change. Lives follow from the
// accesses: a tensor that only the forward touches dies there.
//
// Rows that a tensor group has gathered for a block (tensor.c) are never kept, in any mode: the
// backward gathers them again. Each such gather is issued right behind an earlier collective, so
// that it runs while the ops between them compute.
#include "program/recompute.h"

#include <stdio.h>
#include <string.h>

struct recompute {
    struct program *p;
    const struct segment *forward;
    int backward, n; // the segment being rewritten; number of tensors before this pass
    int layers;
    unsigned char *read;    // per root: the backward reads it
    unsigned char *crosses; // per root: a forward op of another layer reads it
    int *writer, *writers;  // per root: the first forward op that writes it; how many ops do
    unsigned char *drop;    // per forward op: its outputs are not kept
    unsigned char *issued;  // per forward op: it was issued again
    int *twin;              // per tensor: the tensor that the backward reads instead; -1: none
};

// ---------------------------------------------------------------- which ops

static bool lasting(const struct tensor *t) {
    return t->life == LIFE_RUN || t->life == LIFE_TURN;
}

// True for ops that may run twice: they belong to a layer, compute or move shared rows, and write
// only transient tensors.
static bool repeatable(const struct recompute *r, int index) {
    const struct op *op = &r->forward->ops[index];
    const bool rows = op->kind == OP_ALL_GATHER || op->kind == OP_REDUCE_SCATTER;
    if ((op->stream != STREAM_COMPUTE && !rows) || op->layer < 0 || op->layer >= r->layers)
        return false;
    for (int i = 0; i < op->n_out; i++)
        if (lasting(&r->p->tensors[program_root(r->p, op->out[i])]))
            return false;
    return true;
}

// Whether op `index` gathers rows that the backward gathers again. What lies outside of layers has
// them once, not once per layer, and keeps them.
static bool gathers_rows(const struct recompute *r, int index) {
    return r->forward->ops[index].kind == OP_ALL_GATHER && repeatable(r, index);
}

static void find_uses(struct recompute *r, const struct segment *backward) {
    struct op_access access[OP_MAX_TENSORS];
    for (int i = 0; i < r->forward->n_ops; i++) {
        int n = op_accesses(r->p, &r->forward->ops[i], access);
        for (int a = 0; a < n; a++) {
            int t = access[a].tensor;
            if (access[a].how & OP_WRITE && r->writers[t]++ == 0)
                r->writer[t] = i;
            else if (access[a].how & OP_READ && r->writer[t] >= 0 &&
                     r->forward->ops[r->writer[t]].layer != r->forward->ops[i].layer)
                r->crosses[t] = 1;
        }
    }
    for (int i = 0; i < backward->n_ops; i++) {
        int n = op_accesses(r->p, &backward->ops[i], access);
        for (int a = 0; a < n; a++)
            if (access[a].tensor < r->n && access[a].how & OP_READ)
                r->read[access[a].tensor] = 1;
    }
    for (int i = 0; i < r->forward->n_ops; i++) { // what is gathered again is read
        const struct op *op = &r->forward->ops[i];
        if (gathers_rows(r, i) && r->read[program_root(r->p, op->out[0])])
            r->read[program_root(r->p, op->in[0])] = 1;
    }
}

static bool writes(const struct recompute *r, int index, int root) {
    const struct op *op = &r->forward->ops[index];
    for (int i = 0; i < op->n_out; i++)
        if (program_root(r->p, op->out[i]) == root)
            return true;
    return false;
}

struct saving {
    double bytes, flops;
};

// Adds what dropping an op saves: the bytes that are no longer kept, minus the bytes of inputs that
// would be kept only for it. Returns false if the op cannot run again. shared: the tensor that the
// op writes together with other ops; -1: none.
static bool add_saving(const struct recompute *r, int index, int shared, struct saving *s) {
    const struct op *op = &r->forward->ops[index];
    if (!repeatable(r, index))
        return false;
    for (int i = 0; i < op->n_out; i++) {
        int t = program_root(r->p, op->out[i]);
        if (t == shared)
            continue;
        if (r->writers[t] != 1 || r->crosses[t])
            return false;
        if (r->read[t])
            s->bytes += (double)r->p->tensors[t].bytes;
    }
    for (int i = 0; i < op->n_in; i++) {
        int t = program_root(r->p, op->in[i]);
        if (t >= 0 && t != shared && !lasting(&r->p->tensors[t]) && !r->read[t])
            s->bytes -= (double)r->p->tensors[t].bytes;
    }
    s->flops += op_cost_of(r->p, op).flops;
    return true;
}

// Whether it is worth running op `index` again. Ops that write the same tensor (its columns, or in
// place) run again together, and the first of them decides for all.
static bool worth(const struct recompute *r, int index, double least) {
    struct saving s = {0};
    int shared = -1;
    if (r->forward->ops[index].stream != STREAM_COMPUTE)
        return false;
    for (int i = 0; i < r->forward->ops[index].n_out; i++) {
        int t = program_root(r->p, r->forward->ops[index].out[i]);
        shared = r->writers[t] > 1 ? t : shared;
    }
    if (shared < 0)
        return add_saving(r, index, -1, &s) && s.bytes > 0 && s.bytes >= least * s.flops;
    if (r->writer[shared] != index || r->crosses[shared])
        return false;
    s.bytes = r->read[shared] ? (double)r->p->tensors[shared].bytes : 0;
    for (int i = index, left = r->writers[shared]; left > 0; i++)
        if (writes(r, i, shared)) {
            if (!add_saving(r, i, shared, &s))
                return false;
            left--;
        }
    return s.bytes > 0 && s.bytes >= least * s.flops;
}

static void choose_selective(struct recompute *r, double least) {
    for (int i = 0; i < r->forward->n_ops; i++)
        r->drop[i] = worth(r, i, least);
}

// Outputs that leave the block are kept, because they are the next block's input.
static void choose_full(struct recompute *r, int every) {
    for (int i = 0; i < r->forward->n_ops; i++) {
        const struct op *op = &r->forward->ops[i];
        bool leaves = false;
        for (int k = 0; k < op->n_out; k++)
            leaves |= r->crosses[program_root(r->p, op->out[k])];
        r->drop[i] = repeatable(r, i) && !leaves && op->layer % every == every - 1;
    }
}

// ---------------------------------------------------------------- issuing again

static int map_tensor(struct recompute *r, int t);

static int make_twin(struct recompute *r, int t) {
    struct tensor like = r->p->tensors[t];
    char name[160];
    snprintf(name, sizeof name, "%.150s.again", like.name);
    if (like.root < 0) {
        r->twin[t] = program_tensor(r->p, name, like.dtype, CLASS_WORKSPACE, LIFE_SEGMENT,
                                    like.rank, like.local);
    } else {
        if (r->twin[like.root] < 0)
            make_twin(r, like.root);
        r->twin[t] = program_view_flat(r->p, name, r->twin[like.root], like.root_offset, like.rank,
                                       like.local);
    }
    if (r->twin[t] >= 0) {
        r->p->tensors[r->twin[t]].layer = like.layer;
        r->p->tensors[r->twin[t]].ld = like.ld;
    }
    return r->twin[t];
}

static int twin_of(struct recompute *r, int t) {
    return r->twin[t] >= 0 ? r->twin[t] : make_twin(r, t);
}

static void issue(struct recompute *r, int index) {
    if (r->issued[index])
        return;
    r->issued[index] = 1;
    struct op op = r->forward->ops[index];
    for (int i = 0; i < op.n_in; i++) // an input changed in place: its twin has the value so far
        op.in[i] = op.in[i] >= 0 && writes(r, index, program_root(r->p, op.in[i]))
                       ? twin_of(r, op.in[i])
                       : map_tensor(r, op.in[i]);
    for (int i = 0; i < op.n_out; i++)
        op.out[i] = twin_of(r, op.out[i]);
    op.flags |= OP_AGAIN;
    program_op(r->p, r->backward, &op);
}

// Returns the tensor itself. If dropped ops write it, issues them again and returns its twin.
static int map_tensor(struct recompute *r, int t) {
    if (t < 0 || t >= r->n)
        return t;
    int root = program_root(r->p, t), first = r->writer[root];
    if (first < 0 || !r->drop[first])
        return t;
    for (int i = first, left = r->writers[root]; left > 0; i++)
        if (writes(r, i, root)) {
            issue(r, i);
            left--;
        }
    return twin_of(r, t);
}

// Issues the gathers of rows that ops [from, the next collective) read. One whose input has to be
// computed again waits for its reader.
static void gather_ahead(struct recompute *r, const struct segment *backward, int from) {
    for (int i = from; i < backward->n_ops && backward->ops[i].stream == STREAM_COMPUTE; i++)
        for (int a = 0; a < backward->ops[i].n_in; a++) {
            const int t = backward->ops[i].in[a];
            const int w = t >= 0 && t < r->n ? r->writer[program_root(r->p, t)] : -1;
            if (w < 0 || !gathers_rows(r, w))
                continue;
            const int made = r->writer[program_root(r->p, r->forward->ops[w].in[0])];
            if (made < 0 || !r->drop[made])
                map_tensor(r, t);
        }
}

static int allocate(struct recompute *r) {
    size_t n = (size_t)r->n + 1, ops = (size_t)r->forward->n_ops + 1;
    struct region *g = &r->p->region;
    r->read = region_alloc(g, n), r->crosses = region_alloc(g, n);
    r->writer = region_alloc(g, n * sizeof(int)), r->writers = region_alloc(g, n * sizeof(int));
    r->twin = region_alloc(g, n * sizeof(int));
    r->drop = region_alloc(g, ops), r->issued = region_alloc(g, ops);
    if (!r->read || !r->crosses || !r->writer || !r->writers || !r->twin || !r->drop || !r->issued)
        return r->p->failed = ERR_MEMORY;
    memset(r->writer, -1, n * sizeof(int));
    memset(r->twin, -1, n * sizeof(int));
    return 0;
}

int recompute_apply(struct program *p, int forward, int backward, const struct recompute_rule *rule,
                    int layers, struct err *e) {
    bool gathers = false;
    for (int i = 0; i < p->segments[forward].n_ops; i++)
        gathers |= p->segments[forward].ops[i].kind == OP_ALL_GATHER;
    if (rule->kind == RECOMPUTE_NONE && !gathers)
        return 0;
    struct segment source = p->segments[forward], old = program_take_ops(p, backward);
    struct recompute r = {
        .p = p, .forward = &source, .backward = backward, .n = p->n_tensors, .layers = layers};
    allocate(&r);
    TRY(program_finish(p, e));
    find_uses(&r, &old);
    if (rule->kind == RECOMPUTE_FULL)
        choose_full(&r, rule->every > 0 ? rule->every : 1);
    else if (rule->kind == RECOMPUTE_SELECTIVE)
        choose_selective(&r, rule->bytes_per_flop);
    for (int i = 0; i < source.n_ops; i++)
        r.drop[i] |= gathers_rows(&r, i);
    for (int i = 0; i < old.n_ops; i++) {
        struct op op = old.ops[i];
        for (int k = 0; k < op.n_in; k++)
            op.in[k] = map_tensor(&r, op.in[k]);
        program_op(p, backward, &op);
        if (op.stream == STREAM_COMM)
            gather_ahead(&r, &old, i + 1);
    }
    return program_finish(p, e);
}

// zero.c - ZeRO stage 3 (Rajbhandari et al., 2020): every rank keeps 1/N of the weights, gradients
// and optimizer state.
//
// Weights are flattened into groups: one group per layer and decay rule, and one each for weights
// outside the layers (embedding, final norm, head). Only each group's shard persists. Around each
// use:
//
//   gather   ALL_GATHER(shard -> window) on the comm stream, `prefetch` groups before the reader
//   scatter  REDUCE_SCATTER(gradient window -> gradient shard) after the last contribution
//
// Windows of layers rotate: prefetch + 1 for weights, 2 for gradients. A gather into a window that
// an earlier layer still reads is a write after a read, so sync.c makes it wait. This file decides
// which bytes are moved, never when.
#include "program/apply.h"

#include <stdio.h>
#include <string.h>

enum { MAX_GROUPS = 4096, GRAD_WINDOWS = 2 };

struct group {
    int layer; // -1: outside the layers
    bool decay;
    enum dtype type;          // of its weights; the same for all weights of a model
    int64_t elements, padded; // padded: rounded up to a multiple of the world
    int shard, shard_grad;    // this rank's shards, persistent
    int scatters;             // number of contributions scattered so far in the backward
};

struct zero {
    struct program *p;
    const struct apply_ranks *r;
    struct group *groups;
    int n_groups;
    int *group_of;         // per tensor: group of a weight or of a view of one; -1: other tensors
    int64_t *offset_of;    // per such tensor: its first element inside the group
    int n_weights;         // number of tensors before this pass
    int64_t layer_room[2]; // elements of the largest layer group, by decay
};

static int new_group(struct zero *z, const struct tensor *w) {
    if (z->n_groups == MAX_GROUPS)
        return -1;
    z->groups[z->n_groups] = (struct group){
        .layer = w->layer, .decay = w->decay, .type = w->dtype, .shard = -1, .shard_grad = -1};
    return z->n_groups++;
}

// The weights of a layer share one group per decay rule. Each weight outside the layers is a
// separate group: an embedding is as large as several layers and must not widen every window.
static int find_group(struct zero *z, const struct tensor *w) {
    for (int i = 0; w->layer >= 0 && i < z->n_groups; i++)
        if (z->groups[i].layer == w->layer && z->groups[i].decay == w->decay)
            return i;
    return new_group(z, w);
}

static int make_groups(struct zero *z, struct err *e) {
    struct program *p = z->p;
    for (int t = 0; t < z->n_weights; t++) {
        z->group_of[t] = -1;
        if (p->tensors[t].cls != CLASS_WEIGHT || p->tensors[t].root >= 0)
            continue;
        int g = find_group(z, &p->tensors[t]);
        if (g < 0)
            return err_set(e, ERR_UNSUPPORTED,
                           "ZeRO supports at most %d weight groups; this model has more",
                           MAX_GROUPS);
        z->group_of[t] = g;
        z->offset_of[t] = z->groups[g].elements;
        z->groups[g].elements += tensor_elements(&p->tensors[t]);
    }
    for (int t = 0; t < z->n_weights; t++) {
        int root = p->tensors[t].root;
        if (root < 0 || z->group_of[root] < 0)
            continue;
        z->group_of[t] = z->group_of[root];
        z->offset_of[t] = z->offset_of[root] + p->tensors[t].root_offset;
    }
    for (int i = 0; i < z->n_groups; i++) {
        struct group *g = &z->groups[i];
        int64_t world = z->r->world, share = (g->elements + world - 1) / world;
        char name[64];
        g->padded = share * world;
        if (g->layer >= 0 && g->padded > z->layer_room[g->decay])
            z->layer_room[g->decay] = g->padded;
        snprintf(name, sizeof name, "zero.%d.shard", i);
        g->shard = program_tensor_1d(p, name, g->type, CLASS_WEIGHT, LIFE_RUN, g->padded);
        snprintf(name, sizeof name, "d.zero.%d.shard", i);
        g->shard_grad =
            program_tensor_1d(p, name, op_wide_type(g->type), CLASS_GRADIENT, LIFE_TURN, g->padded);
        if (p->failed)
            return program_finish(p, e);
        for (int k = 0; k < 2; k++) {
            struct tensor *t = &p->tensors[k ? g->shard_grad : g->shard];
            t->begin[0] = share * z->r->rank;
            t->local[0] = share;
            t->ld = share;
            t->layer = g->layer;
            t->bytes = (uint64_t)share * dtype_bytes(t->dtype);
        }
        p->tensors[g->shard].trainable = true;
        p->tensors[g->shard].decay = g->decay;
        p->tensors[g->shard].grad = g->shard_grad;
    }
    return 0;
}

// A run is a sequence of ops with the same layer index. The weights that they read are gathered,
// the gradients that they write are scattered.
struct run {
    int first, last; // ops
    int layer;
};

static int find_runs(const struct segment *s, struct run *runs) {
    int n = 0;
    for (int i = 0; i < s->n_ops; i++) {
        if (n == 0 || s->ops[i].layer != runs[n - 1].layer)
            runs[n++] = (struct run){i, i, s->ops[i].layer};
        runs[n - 1].last = i;
    }
    return n;
}

// Returns the window of a group in a segment. Groups of layers rotate over `count` windows by run.
// Every other group has one window.
static int window(struct zero *z, const char *kind, int group, int run, int count,
                  enum tensor_class cls) {
    const struct group *g = &z->groups[group];
    char name[64];
    if (g->layer >= 0)
        snprintf(name, sizeof name, "zero.%s.%s.%d", kind, g->decay ? "decay" : "plain",
                 run % count);
    else
        snprintf(name, sizeof name, "zero.%s.group%d", kind, group);
    int found = program_find(z->p, name);
    if (found >= 0)
        return found;
    enum dtype type = cls == CLASS_GRADIENT ? op_wide_type(g->type) : g->type;
    return program_tensor_1d(z->p, name, type, cls, LIFE_SEGMENT,
                             g->layer >= 0 ? z->layer_room[g->decay] : g->padded);
}

// Returns the view of a window that holds a weight or gradient, or a view of one.
static int view_of(struct zero *z, int window_tensor, int of, int64_t offset) {
    struct tensor w = z->p->tensors[of];
    char name[200];
    snprintf(name, sizeof name, "%s@%s", z->p->tensors[window_tensor].name, w.name);
    int found = program_find(z->p, name);
    if (found >= 0)
        return found;
    int t = program_view_flat(z->p, name, window_tensor, offset, w.rank, w.local);
    if (t >= 0)
        z->p->tensors[t].ld = w.ld;
    return t;
}

// Returns a view of the window's first `padded` elements, which is what a collective moves.
static int exact(struct zero *z, int window_tensor, int group) {
    if (z->p->tensors[window_tensor].local[0] == z->groups[group].padded)
        return window_tensor;
    char name[80];
    snprintf(name, sizeof name, "%s@%d", z->p->tensors[window_tensor].name, group);
    int found = program_find(z->p, name);
    return found >= 0
               ? found
               : program_view_flat(z->p, name, window_tensor, 0, 1, &z->groups[group].padded);
}

static void emit_gathers(struct zero *z, int segment, const struct segment *old,
                         const struct run *run, int index, const char *kind, int windows) {
    bool done[MAX_GROUPS] = {false};
    for (int i = run->first; i <= run->last; i++)
        for (int a = 0; a < old->ops[i].n_in; a++) {
            int t = old->ops[i].in[a], g = t >= 0 && t < z->n_weights ? z->group_of[t] : -1;
            if (g < 0 || done[g])
                continue;
            done[g] = true;
            struct op op = op_make(OP_ALL_GATHER);
            op.stream = STREAM_COMM;
            op.layer = run->layer;
            op.group = 0;
            op.n = z->groups[g].padded;
            op_in(&op, z->groups[g].shard);
            op_out(&op, exact(z, window(z, kind, g, index, windows, CLASS_COMM), g));
            program_op(z->p, segment, &op);
        }
}

// Returns the weight (a root) whose gradient is t or the root of t; -1: none.
static int weight_of_gradient(const struct zero *z, int t) {
    int root = program_root(z->p, t);
    for (int w = 0; root >= 0 && w < z->n_weights; w++)
        if (z->group_of[w] >= 0 && z->p->tensors[w].grad == root)
            return w;
    return -1;
}

static void emit_scatters(struct zero *z, int segment, const struct segment *old,
                          const struct run *run, int index) {
    bool done[MAX_GROUPS] = {false};
    for (int i = run->first; i <= run->last; i++)
        for (int a = 0; a < old->ops[i].n_out; a++) {
            int w = weight_of_gradient(z, old->ops[i].out[a]), g = w >= 0 ? z->group_of[w] : -1;
            if (g < 0 || done[g])
                continue;
            done[g] = true;
            struct op op = op_make(OP_REDUCE_SCATTER);
            op.stream = STREAM_COMM;
            op.layer = run->layer;
            op.group = 0;
            op.n = z->groups[g].padded;
            op.flags = z->groups[g].scatters++ ? OP_ACCUMULATE : OP_FIRST_GRAD;
            op_in(&op, exact(z, window(z, "dw", g, index, GRAD_WINDOWS, CLASS_GRADIENT), g));
            op_out(&op, z->groups[g].shard_grad);
            program_op(z->p, segment, &op);
        }
}

// Points an op at windows instead of weights and weight gradients.
static void redirect(struct zero *z, struct op *op, int index, const char *kind, int windows,
                     bool *touched) {
    for (int a = 0; a < op->n_in; a++) {
        int t = op->in[a];
        if (t >= 0 && t < z->n_weights && z->group_of[t] >= 0)
            op->in[a] = view_of(z, window(z, kind, z->group_of[t], index, windows, CLASS_COMM), t,
                                z->offset_of[t]);
    }
    for (int a = 0; a < op->n_out; a++) {
        int g = op->out[a], w = weight_of_gradient(z, g);
        if (w < 0)
            continue;
        // Inside a run the first contribution overwrites the window. The scatter sums over runs and
        // micro-batches.
        op->flags &= ~(unsigned)OP_FIRST_GRAD;
        op->flags = touched[g] ? op->flags | OP_ACCUMULATE : op->flags & ~(unsigned)OP_ACCUMULATE;
        touched[g] = true;
        int64_t inside = z->p->tensors[g].root < 0 ? 0 : z->p->tensors[g].root_offset;
        op->out[a] =
            view_of(z, window(z, "dw", z->group_of[w], index, GRAD_WINDOWS, CLASS_GRADIENT), g,
                    z->offset_of[w] + inside);
    }
}

static int rewrite(struct zero *z, int segment, const char *kind, struct err *e) {
    struct program *p = z->p;
    struct segment old = program_take_ops(p, segment);
    struct run *runs = region_alloc(&p->region, sizeof *runs * (size_t)(old.n_ops + 1));
    bool *touched = region_alloc(&p->region, (size_t)z->n_weights + 1);
    if (!runs || !touched)
        return err_set(e, ERR_MEMORY, "out of memory while sharding '%s'", p->name);
    int n = find_runs(&old, runs), ahead = z->r->prefetch, windows = ahead + 1;
    for (int i = 0; i < n && i < ahead; i++)
        emit_gathers(z, segment, &old, &runs[i], i, kind, windows);
    for (int i = 0; i < n; i++) {
        if (i + ahead < n)
            emit_gathers(z, segment, &old, &runs[i + ahead], i + ahead, kind, windows);
        memset(touched, 0, (size_t)z->n_weights);
        for (int k = runs[i].first; k <= runs[i].last; k++) {
            struct op op = old.ops[k];
            redirect(z, &op, i, kind, windows, touched);
            program_op(p, segment, &op);
        }
        emit_scatters(z, segment, &old, &runs[i], i);
    }
    return program_finish(p, e);
}

int zero_apply(struct program *p, int forward, int backward, const struct apply_ranks *r,
               struct err *e) {
    struct zero z = {.p = p, .r = r, .n_weights = p->n_tensors};
    size_t n = (size_t)p->n_tensors + 1;
    z.groups = region_alloc(&p->region, sizeof *z.groups * MAX_GROUPS);
    z.group_of = region_alloc(&p->region, sizeof *z.group_of * n);
    z.offset_of = region_alloc(&p->region, sizeof *z.offset_of * n);
    if (!z.groups || !z.group_of || !z.offset_of)
        return err_set(e, ERR_MEMORY, "out of memory while sharding '%s'", p->name);
    TRY(make_groups(&z, e));
    TRY(rewrite(&z, forward, "fwd", e));
    TRY(rewrite(&z, backward, "bwd", e));
    for (int t = 0; t < z.n_weights; t++)
        if (z.group_of[t] >= 0)
            p->tensors[t].grad = -1; // update.c sees only the shards; program_sweep drops the rest
    return 0;
}

// zero.c - ZeRO 3: every rank keeps only its own share of each bucket of weights (buckets.c).
// Around each use:
//
//   gather   ALL_GATHER(share -> window) on the comm stream, `prefetch` layers before the reader
//
// Windows of layers rotate: prefetch + 1 of them. A gather into a window that an earlier layer
// still reads is a write after a read, so sync.c makes it wait. This file decides which bytes are
// moved, never when.
#include "program/buckets.h"

#include <stdio.h>
#include <string.h>

struct zero {
    struct buckets *b;
    int *bucket_of;     // per tensor: bucket of a weight or of a view of one; -1: other tensors
    int64_t *at_of;     // per such tensor: its first element in the bucket
    int n;              // number of tensors before this pass
    int64_t layer_room; // elements of the largest bucket that is a layer
};

// Layers use the windows in turn. Other buckets have a window of their own: weights outside of
// layers, and the second bucket of a layer that has weights which ranks share.
static bool takes_turns(const struct bucket *k) {
    return k->layer >= 0 && !k->late;
}

static void find_weights(struct zero *z) {
    const struct program *p = z->b->p;
    for (int t = 0; t < z->n; t++)
        z->bucket_of[t] = -1;
    for (int i = 0; i < z->b->n; i++) {
        const struct bucket *k = &z->b->list[i];
        for (int m = 0; m < k->n; m++) {
            z->bucket_of[k->members[m].weight] = i;
            z->at_of[k->members[m].weight] = k->members[m].at;
        }
        if (takes_turns(k) && k->padded > z->layer_room)
            z->layer_room = k->padded;
    }
    for (int t = 0; t < z->n; t++) {
        const int root = p->tensors[t].root;
        if (root < 0 || z->bucket_of[root] < 0)
            continue;
        z->bucket_of[t] = z->bucket_of[root];
        z->at_of[t] = z->at_of[root] + p->tensors[t].root_offset;
    }
}

// A run is a sequence of ops with the same layer index. The weights that they read are gathered.
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

// Returns the window of a bucket in a segment.
static int window(struct zero *z, const char *kind, int bucket, int run) {
    const struct bucket *k = &z->b->list[bucket];
    char name[64];
    if (takes_turns(k))
        snprintf(name, sizeof name, "zero.%s.%d", kind, run % (z->b->r->prefetch + 1));
    else
        snprintf(name, sizeof name, "zero.%s.bucket%d", kind, bucket);
    int found = program_find(z->b->p, name);
    return found >= 0 ? found
                      : program_tensor_1d(z->b->p, name, k->type, CLASS_COMM, LIFE_SEGMENT,
                                          takes_turns(k) ? z->layer_room : k->padded);
}

// Returns the view of a window that holds a weight, or a view of one.
static int view_of(struct zero *z, int window_tensor, int of, int64_t at) {
    const struct tensor w = z->b->p->tensors[of];
    char name[200];
    snprintf(name, sizeof name, "%s@%s", z->b->p->tensors[window_tensor].name, w.name);
    int found = program_find(z->b->p, name);
    if (found >= 0)
        return found;
    int t = program_view_flat(z->b->p, name, window_tensor, at, w.rank, w.local);
    if (t >= 0)
        z->b->p->tensors[t].ld = w.ld;
    return t;
}

// Returns a view of the window's first elements, which is what a collective moves.
static int exact(struct zero *z, int window_tensor, int bucket) {
    const int64_t padded = z->b->list[bucket].padded;
    char name[80];
    if (window_tensor < 0 || z->b->p->tensors[window_tensor].local[0] == padded)
        return window_tensor;
    snprintf(name, sizeof name, "%s@%d", z->b->p->tensors[window_tensor].name, bucket);
    int found = program_find(z->b->p, name);
    return found >= 0 ? found : program_view_flat(z->b->p, name, window_tensor, 0, 1, &padded);
}

static int bucket_read(const struct zero *z, int t) {
    return t >= 0 && t < z->n ? z->bucket_of[t] : -1;
}

static void emit_gathers(struct zero *z, int segment, const struct segment *old,
                         const struct run *run, int index, const char *kind, bool *done) {
    memset(done, 0, (size_t)z->b->n);
    for (int i = run->first; i <= run->last; i++)
        for (int a = 0; a < old->ops[i].n_in; a++) {
            const int k = bucket_read(z, old->ops[i].in[a]);
            if (k < 0 || done[k])
                continue;
            done[k] = true;
            struct op op = op_make(OP_ALL_GATHER);
            op.stream = STREAM_COMM;
            op.layer = run->layer;
            op.group = z->b->group;
            op.n = z->b->list[k].padded;
            op_in(&op, z->b->list[k].weights);
            op_out(&op, exact(z, window(z, kind, k, index), k));
            program_op(z->b->p, segment, &op);
        }
}

static int rewrite(struct zero *z, int segment, const char *kind, struct err *e) {
    struct program *p = z->b->p;
    const struct segment old = program_take_ops(p, segment);
    struct run *runs = region_alloc(&p->region, sizeof *runs * (size_t)(old.n_ops + 1));
    bool *done = region_alloc(&p->region, (size_t)z->b->n + 1);
    if (!runs || !done)
        return err_set(e, ERR_MEMORY, "out of memory while sharding '%s'", p->name);
    const int n = find_runs(&old, runs), ahead = z->b->r->prefetch;
    for (int i = 0; i < n && i < ahead; i++)
        emit_gathers(z, segment, &old, &runs[i], i, kind, done);
    for (int i = 0; i < n; i++) {
        if (i + ahead < n)
            emit_gathers(z, segment, &old, &runs[i + ahead], i + ahead, kind, done);
        for (int k = runs[i].first; k <= runs[i].last; k++) {
            struct op op = old.ops[k];
            for (int a = 0; a < op.n_in; a++) {
                const int bucket = bucket_read(z, op.in[a]);
                if (bucket >= 0)
                    op.in[a] = view_of(z, window(z, kind, bucket, i), op.in[a], z->at_of[op.in[a]]);
            }
            program_op(p, segment, &op);
        }
    }
    return program_finish(p, e);
}

// What a logical weight is from now on: this rank's run of its elements.
static void keep_own(struct zero *z, int w) {
    struct program *p = z->b->p;
    const struct bucket *k = &z->b->list[z->bucket_of[w]];
    int64_t first, n;
    bucket_owned(z->b, k, z->at_of[w], tensor_elements(&p->tensors[w]), &first, &n);
    if (n == 0) {
        p->tensors[w].own = OWN_NOTHING;
        return;
    }
    const struct tensor_share *cut = share_cut(p, w, first, n);
    struct tensor *t = &p->tensors[w];
    t->share = cut;
    t->rank = 1;
    t->local[0] = t->ld = n;
    t->root = k->weights;
    t->root_offset = z->at_of[w] + first - z->b->me * bucket_share(z->b, k);
    t->bytes = 0;
    t->part = true;
    t->parts = false;
}

int zero_gather(struct buckets *b, const int *segments, int n_segments, struct err *e) {
    static const char *const kinds[] = {"fwd", "bwd"};
    struct program *p = b->p;
    struct zero z = {.b = b, .n = p->n_tensors};
    const size_t n = (size_t)p->n_tensors + 1;
    z.bucket_of = region_alloc(&p->region, sizeof *z.bucket_of * n);
    z.at_of = region_alloc(&p->region, sizeof *z.at_of * n);
    bool *logical = region_alloc(&p->region, n);
    if (!z.bucket_of || !z.at_of || !logical)
        return err_set(e, ERR_MEMORY, "out of memory while sharding '%s'", p->name);
    find_weights(&z);
    for (int i = 0; i < b->n; i++) {
        struct bucket *k = &b->list[i];
        char name[48];
        snprintf(name, sizeof name, "zero.%d", i);
        k->weights =
            program_tensor_1d(p, name, k->type, CLASS_WEIGHT, LIFE_RUN, bucket_share(b, k));
        if (k->weights >= 0)
            p->tensors[k->weights].parts = true, p->tensors[k->weights].layer = k->layer;
    }
    TRY(program_finish(p, e));
    for (int i = 0; i < n_segments; i++)
        TRY(rewrite(&z, segments[i], kinds[i], e));
    for (int t = 0; t < z.n; t++)
        logical[t] =
            z.bucket_of[t] >= 0 && p->tensors[t].cls == CLASS_WEIGHT && program_logical(p, t);
    for (int t = 0; t < z.n; t++)
        if (logical[t])
            keep_own(&z, t);
    return program_finish(p, e);
}

// buckets.c - data parallelism and ZeRO (Rajbhandari et al., 2020). Replicas train on
// different sequences. Their gradients are summed over the data axis, in buckets: one collective
// for many weights.
//
//   stage 0   every replica gets the sum and updates everything
//   stage 1   a replica gets the sum of its own share of each bucket, updates that share, and
//             gathers the others' weights. Optimizer state exists for the own share only.
//   stage 2   the sum of the own share goes to a tensor of its own. If a step has one micro-batch,
//             gradients are made in two windows that buckets use in turn.
//   stage 3   the same, and weights are gathered only around their use (zero.c). A bucket is a
//   layer.
//
// A bucket holds weights one after the other, each at a multiple of 256 elements (a block of 8-bit
// moments), and is divided evenly. So what a rank owns of one weight is one run of its elements, or
// nothing. Which weights share a bucket follows from their first use in the forward, backwards,
// because gradients are finished in about that order. It is the same in every program of a set.
//
// A bucket is reduced once per step, in the last micro-batch's backward, right after its last
// contribution (`overlap`), or after the backward. With `every_micro` it is reduced after each
// micro-batch, and the sums are added up: ZeRO 2 then never holds whole gradients.
#include "program/buckets.h"

#include <stdio.h>
#include <string.h>

enum { BLOCK = ADAMW_BLOCK };

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

// ---------------------------------------------------------------- which weights, in which bucket

int64_t bucket_share(const struct buckets *b, const struct bucket *k) {
    return k->padded / b->replicas;
}

// Whether a bucket is reduced after every micro-batch. One that is first summed over another group
// waits for the end of the step.
static bool every_micro(const struct buckets *b, const struct bucket *k) {
    return b->r->every_micro && !k->late;
}

// Adds the weights that segments of a role read, in the order of their first use, each once.
static int list_read(const struct program *p, enum segment_role role, bool *known,
                     struct member *out, int n) {
    for (int s = 0; s < p->n_segments; s++)
        for (int i = 0; p->segments[s].role == role && i < p->segments[s].n_ops; i++)
            for (int a = 0; a < p->segments[s].ops[i].n_in; a++) {
                const int t = program_root(p, p->segments[s].ops[i].in[a]);
                if (t < 0 || known[t] || p->tensors[t].cls != CLASS_WEIGHT ||
                    !p->tensors[t].trainable)
                    continue;
                known[t] = true;
                out[n++] = (struct member){.weight = t, .chunk = p->segments[s].chunk};
            }
    return n;
}

// Weights in the order of their first use. Returns how many, or a negative code. The head comes
// last, also where logits.c has moved it into the backward: in every program of a set.
static int list_weights(struct program *p, struct member *out, struct err *e) {
    bool *known = region_alloc(&p->region, (size_t)p->n_tensors + 1);
    if (!known)
        return err_set(e, ERR_MEMORY, "out of memory while planning '%s'", p->name);
    const int n = list_read(p, SEGMENT_FORWARD, known, out, 0);
    return list_read(p, SEGMENT_BACKWARD, known, out, n);
}

// Elements of a root up to the end of its last part. The rest is padding (pad.c), which the first
// stage of a pipeline has without the product that writes its gradient.
static int64_t used(const struct program *p, int root) {
    int64_t end = 0;
    if (!p->tensors[root].parts)
        return tensor_elements(&p->tensors[root]);
    for (int t = 0; t < p->n_tensors; t++) {
        const struct tensor *x = &p->tensors[t];
        if (x->part && x->root == root && x->root_offset + tensor_elements(x) > end)
            end = x->root_offset + tensor_elements(x);
    }
    return end;
}

// The open bucket for a weight, or a new one.
static int bucket_for(struct buckets *b, const struct tensor *w, int chunk) {
    const int64_t bytes = tensor_elements(w) * (int64_t)dtype_bytes(op_wide_type(w->dtype));
    const bool late = w->shared >= 0, by_layer = b->r->zero == 3;
    for (int i = b->n - 1; i >= 0; i--) {
        const struct bucket *k = &b->list[i];
        if (k->chunk != chunk || k->late != late || k->type != w->dtype)
            continue;
        if (by_layer && (w->layer < 0 || k->layer != w->layer))
            break; // an embedding is as large as several layers and must not widen every window
        if (by_layer)
            return i;
        const int64_t has = k->elements * (int64_t)dtype_bytes(op_wide_type(k->type));
        if (b->r->bucket_bytes <= 0 || has + bytes <= b->r->bucket_bytes)
            return i;
        break;
    }
    b->list[b->n] = (struct bucket){.chunk = chunk,
                                    .layer = by_layer ? w->layer : -1,
                                    .late = late,
                                    .type = w->dtype,
                                    .weights = -1,
                                    .gradient = -1,
                                    .sum = -1};
    return b->n++;
}

static int make_list(struct buckets *b, struct program *p, const struct apply_ranks *r,
                     struct err *e) {
    const size_t most = (size_t)p->n_tensors + 1;
    *b = (struct buckets){.p = p,
                          .r = r,
                          .replicas = mesh_size(&r->mesh, AXIS_DATA),
                          .me = r->mesh.at[AXIS_DATA],
                          .group = program_group(p, &r->mesh, MESH_DATA, "data")};
    b->list = region_alloc(&p->region, sizeof *b->list * most);
    struct member *weights = region_alloc(&p->region, sizeof *weights * most),
                  *members = region_alloc(&p->region, sizeof *members * most);
    int *bucket = region_alloc(&p->region, sizeof *bucket * most);
    if (!b->list || !weights || !members || !bucket)
        return err_set(e, ERR_MEMORY, "out of memory while planning '%s'", p->name);
    const int n = list_weights(p, weights, e);
    if (n < 0)
        return n;
    for (int i = n - 1; i >= 0; i--) {
        const struct tensor *w = &p->tensors[weights[i].weight];
        struct bucket *k = &b->list[bucket[i] = bucket_for(b, w, weights[i].chunk)];
        weights[i].at = k->elements;
        weights[i].used = used(p, weights[i].weight);
        k->elements += round_up(tensor_elements(w), BLOCK);
        k->n++;
    }
    for (int i = 0; i < b->n; i++) {
        struct bucket *k = &b->list[i];
        k->padded = round_up(k->elements, (int64_t)b->replicas * BLOCK);
        k->members = members;
        k->n = 0;
        for (int m = n - 1; m >= 0; m--)
            if (bucket[m] == i)
                k->members[k->n++] = weights[m];
        members += k->n;
    }
    return program_finish(p, e);
}

// ---------------------------------------------------------------- what a rank owns

void bucket_owned(const struct buckets *b, const struct bucket *k, int64_t at, int64_t elements,
                  int64_t *first, int64_t *n) {
    const int64_t share = bucket_share(b, k), low = b->me * share, high = low + share;
    const int64_t begin = at > low ? at : low, end = at + elements < high ? at + elements : high;
    *n = end > begin ? end - begin : 0;
    *first = *n > 0 ? begin - at : 0;
}

// The own part of tensor t, which lies at `at` in bucket k, as a view of `of`. Element `skip` of
// the bucket is the first one of `of`.
static int own_view(struct buckets *b, const struct bucket *k, int t, int64_t at, int of,
                    int64_t skip) {
    struct program *p = b->p;
    int64_t first, n;
    char name[200];
    bucket_owned(b, k, at, tensor_elements(&p->tensors[t]), &first, &n);
    if (n == 0)
        return OWN_NOTHING;
    snprintf(name, sizeof name, "%s@own", p->tensors[t].name);
    const int view = program_view_flat(p, name, of, at + first - skip, 1, &n);
    if (view >= 0) {
        p->tensors[view].share = share_cut(p, t, first, n);
        p->tensors[view].layer = p->tensors[t].layer;
    }
    return view;
}

typedef void each_fn(struct buckets *b, struct bucket *k, int weight, int64_t at);

// Calls fn for each logical weight of a bucket with its place: the members, or their parts.
static void each_logical(struct buckets *b, struct bucket *k, each_fn *fn) {
    struct program *p = b->p;
    const int n = p->n_tensors;
    for (int m = 0; m < k->n; m++) {
        const int w = k->members[m].weight;
        const struct tensor root = p->tensors[w];
        if (root.part || (root.root < 0 && !root.parts)) {
            fn(b, k, w, k->members[m].at);
            continue;
        }
        // Its parts have the same root as it has, or it itself is their root.
        const int64_t begin = root.root < 0 ? 0 : root.root_offset;
        for (int t = 0; t < n; t++) {
            const struct tensor *x = &p->tensors[t];
            if (x->part && x->root == (root.root < 0 ? w : root.root) && x->root_offset >= begin &&
                x->root_offset < begin + tensor_elements(&root))
                fn(b, k, t, k->members[m].at + x->root_offset - begin);
        }
    }
}

static void deal_weight(struct buckets *b, struct bucket *k, int w, int64_t at) {
    const int own = b->r->zero == 1 || b->r->zero == 2 ? own_view(b, k, w, at, k->weights, 0) : -1;
    b->p->tensors[w].own = own;
    b->p->tensors[w].dealt_at = at;
    b->p->tensors[w].dealt = bucket_share(b, k);
}

static void join_weights(struct buckets *b, struct bucket *k, int index) {
    char name[48];
    snprintf(name, sizeof name, "zero.%d", index);
    k->weights = program_tensor_1d(b->p, name, k->type, CLASS_WEIGHT, LIFE_RUN, k->padded);
    for (int m = 0; m < k->n; m++)
        program_become_view(b->p, k->members[m].weight, k->weights, k->members[m].at);
}

static int own_share(struct buckets *b, const struct bucket *k, int of) {
    const int64_t share = bucket_share(b, k);
    char name[64];
    snprintf(name, sizeof name, "%s@share", b->p->tensors[of].name);
    return program_view_flat(b->p, name, of, b->me * share, 1, &share);
}

static void gather(struct buckets *b, const struct bucket *k, int segment) {
    struct op op = op_make(OP_ALL_GATHER);
    op.stream = STREAM_COMM;
    op.group = b->group;
    op.n = k->padded;
    op_in(&op, own_share(b, k, k->weights));
    op_out(&op, k->weights);
    program_op(b->p, segment, &op);
}

// ---------------------------------------------------------------- gradients in buckets

// Finds the ops of the chunk's backward that write the gradients of a bucket, or read them before
// they are summed (noise.c).
static void find_users(const struct buckets *b, struct bucket *k, const struct segment *s) {
    struct op_access access[OP_MAX_TENSORS];
    k->first = k->last = -1;
    for (int i = 0; i < s->n_ops; i++) {
        const int n = op_accesses(b->p, &s->ops[i], access);
        for (int a = 0; a < n; a++)
            for (int m = 0; m < k->n; m++)
                if (access[a].tensor == b->p->tensors[k->members[m].weight].grad) {
                    k->first = k->first < 0 ? i : k->first;
                    k->last = i;
                }
    }
}

// Whether a bucket is reduced in the backward that finishes it.
static bool in_backward(const struct buckets *b, const struct bucket *k) {
    return !k->late && (b->r->overlap || every_micro(b, k));
}

// A bucket's gradients need no bytes of their own if they are reduced in the segment that makes
// them: buckets then use two windows in turn. While one is reduced, the other is filled. A bucket
// that begins before a window's last bucket has ended, or that is larger than a window, gets bytes
// of its own.
enum { WINDOWS = 2 };
struct windows {
    int tensor[WINDOWS], end[WINDOWS], next;
    int64_t elements;
};

static bool passes(const struct buckets *b, const struct bucket *k) {
    return b->r->zero > 1 && in_backward(b, k) && (every_micro(b, k) || b->p->micro_batches == 1) &&
           b->p->tensors[b->p->tensors[k->members[0].weight].grad].life == LIFE_TURN;
}

static void size_windows(const struct buckets *b, int chunk, struct windows *w) {
    *w = (struct windows){.tensor = {-1, -1}, .end = {-1, -1}};
    for (int i = 0; i < b->n; i++) {
        const struct bucket *k = &b->list[i];
        const int64_t bytes = k->elements * (int64_t)dtype_bytes(op_wide_type(k->type));
        const bool usual = b->r->zero == 3 ? k->layer >= 0
                                           : b->r->bucket_bytes <= 0 || bytes <= b->r->bucket_bytes;
        if (k->chunk == chunk && passes(b, k) && usual && k->padded > w->elements)
            w->elements = k->padded;
    }
}

// The window for a bucket; -1: none.
static int find_window(struct buckets *b, const struct bucket *k, struct windows *w) {
    char name[48];
    for (int i = 0; passes(b, k) && i < WINDOWS && k->padded <= w->elements; i++) {
        const int at = (w->next + i) % WINDOWS;
        if (w->end[at] >= k->first)
            continue;
        if (w->tensor[at] < 0) {
            snprintf(name, sizeof name, "d.window.%d.%d", k->chunk, at);
            w->tensor[at] = program_tensor_1d(b->p, name, op_wide_type(k->type), CLASS_GRADIENT,
                                              LIFE_SEGMENT, w->elements);
        }
        w->end[at] = k->last;
        w->next = at + 1;
        return w->tensor[at];
    }
    return -1;
}

static void join_gradients(struct buckets *b, struct bucket *k, int index, int window) {
    struct program *p = b->p;
    const struct tensor like = p->tensors[p->tensors[k->members[0].weight].grad];
    char name[48];
    snprintf(name, sizeof name, "d.bucket.%d", index);
    k->gradient = window >= 0
                      ? program_view_flat(p, name, window, 0, 1, &k->padded)
                      : program_tensor_1d(p, name, like.dtype, CLASS_GRADIENT,
                                          passes(b, k) ? LIFE_SEGMENT : like.life, k->padded);
    for (int m = 0; m < k->n; m++)
        program_become_view(p, p->tensors[k->members[m].weight].grad, k->gradient,
                            k->members[m].at);
}

// Whether the sum of the own share has a tensor of its own, and does not stay in the bucket.
static bool sums_apart(const struct buckets *b, const struct bucket *k) {
    return b->r->zero > 1 || (b->r->zero == 1 && every_micro(b, k));
}

// Gradients that are added up over micro-batches after each was reduced, or the own share of them.
static void add_sum(struct buckets *b, struct bucket *k, int index) {
    struct program *p = b->p;
    const bool own = sums_apart(b, k);
    if (!own && !every_micro(b, k))
        return;
    const struct tensor like = p->tensors[p->tensors[k->members[0].weight].grad];
    char name[48];
    snprintf(name, sizeof name, "d.sum.%d", index);
    k->sum = program_tensor_1d(p, name, like.dtype, CLASS_GRADIENT, like.life,
                               own ? bucket_share(b, k) : k->padded);
}

static void point_gradient(struct buckets *b, struct bucket *k, int w, int64_t at) {
    struct program *p = b->p;
    const int g = p->tensors[w].grad, sum = k->sum >= 0 ? k->sum : k->gradient;
    const int64_t skip = sums_apart(b, k) ? b->me * bucket_share(b, k) : 0;
    int new = g;
    if (g < 0)
        return;
    if (b->r->zero > 0) {
        new = own_view(b, k, g, at, sum, skip);
    } else if (k->sum >= 0) {
        struct tensor like = p->tensors[g];
        char name[200];
        snprintf(name, sizeof name, "%s.sum", like.name);
        new = program_view_flat(p, name, sum, at, like.rank, like.local);
    }
    p->tensors[w].grad = new == OWN_NOTHING ? -1 : new;
}

// Every element that a collective moves must have been written.
static void clear_gap(struct buckets *b, const struct bucket *k, int segment, int layer,
                      int64_t from, int64_t to, int number) {
    char name[64];
    const int64_t n = to - from;
    if (n <= 0)
        return;
    struct op op = op_make(OP_ZERO);
    snprintf(name, sizeof name, "%s.gap%d", b->p->tensors[k->gradient].name, number);
    op_out(&op, program_view_flat(b->p, name, k->gradient, from, 1, &n));
    op.m = 1, op.n = n;
    op.layer = layer;
    program_op(b->p, segment, &op);
}

static void clear_gaps(struct buckets *b, const struct bucket *k, int segment, int layer) {
    for (int m = 0; m < k->n; m++) {
        const int64_t end = k->members[m].at + k->members[m].used;
        clear_gap(b, k, segment, layer, end, m + 1 < k->n ? k->members[m + 1].at : k->padded, m);
    }
}

// last: in the backward, where only the last micro-batch may run it. layer: of the op before it.
static void reduce(struct buckets *b, const struct bucket *k, int segment, int layer, bool last) {
    struct program *p = b->p;
    const bool shares = b->r->zero > 0, micro = every_micro(b, k);
    struct op op = op_make(shares ? OP_REDUCE_SCATTER : OP_ALL_REDUCE);
    op.stream = STREAM_COMM;
    op.group = b->group;
    op.n = k->padded;
    op.layer = layer;
    op.flags = last && !micro ? OP_LAST : 0;
    op_in(&op, k->gradient);
    if (!shares)
        op_out(&op, k->gradient);
    else
        op_out(&op, k->sum >= 0 ? k->sum : own_share(b, k, k->gradient));
    if (shares && micro)
        op.flags |= OP_FIRST_GRAD;
    program_op(p, segment, &op);
    if (shares || !micro)
        return;
    struct op add = op_make(OP_COPY);
    op_in(&add, k->gradient);
    op_out(&add, k->sum);
    add.m = 1, add.n = k->padded;
    add.layer = layer;
    add.flags = OP_FIRST_GRAD;
    program_op(p, segment, &add);
}

static bool writes(const struct program *p, const struct op *op, int tensor) {
    for (int a = 0; a < op->n_out; a++)
        if (op->out[a] >= 0 && program_root(p, op->out[a]) == program_root(p, tensor))
            return true;
    return false;
}

// Rewrites the backward of a chunk: gaps are cleared before the first contribution to a bucket, and
// the bucket is reduced after the last one.
static int edit_backward(struct buckets *b, int chunk, int segment, struct err *e) {
    struct program *p = b->p;
    const struct segment old = program_take_ops(p, segment);
    for (int i = 0; i < old.n_ops; i++) {
        struct op op = old.ops[i];
        for (int k = 0; k < b->n; k++) {
            const struct bucket *x = &b->list[k];
            if (x->chunk == chunk && x->first == i)
                clear_gaps(b, x, segment, op.layer);
            // Its sum adds up over micro-batches.
            if (every_micro(b, x) && writes(p, &op, x->gradient))
                op.flags &= ~(unsigned)OP_FIRST_GRAD;
        }
        program_op(p, segment, &op);
        for (int k = 0; k < b->n; k++)
            if (b->list[k].chunk == chunk && b->list[k].last == i && in_backward(b, &b->list[k]))
                reduce(b, &b->list[k], segment, op.layer, true);
    }
    return program_finish(p, e);
}

// Sums the gradients of weights that other ranks of this replica hold, too.
static void reduce_shared(struct program *p, int segment) {
    for (int t = 0; t < p->n_tensors; t++) {
        const struct tensor *w = &p->tensors[t];
        if (w->cls != CLASS_WEIGHT || !program_logical(p, t) || w->grad < 0 || w->shared < 0)
            continue;
        struct op op = op_make(OP_ALL_REDUCE);
        op.stream = STREAM_COMM;
        op.group = w->shared;
        op.n = tensor_elements(w);
        op_in(&op, w->grad);
        op_out(&op, w->grad);
        program_op(p, segment, &op);
    }
}

// ---------------------------------------------------------------- both

static int train(struct buckets *b, struct apply_chunks *c, struct err *e) {
    struct program *p = b->p;
    for (int chunk = 0; chunk < c->n && !p->failed; chunk++) {
        struct windows windows;
        size_windows(b, chunk, &windows);
        for (int i = 0; i < b->n; i++) {
            struct bucket *k = &b->list[i];
            if (k->chunk != chunk)
                continue;
            find_users(b, k, &p->segments[c->backward[chunk]]);
            join_gradients(b, k, i, find_window(b, k, &windows));
            add_sum(b, k, i);
        }
    }
    for (int i = 0; i < c->n; i++)
        TRY(edit_backward(b, i, c->backward[i], e));
    reduce_shared(p, c->reduce);
    for (int i = 0; i < b->n; i++)
        if (!in_backward(b, &b->list[i]))
            reduce(b, &b->list[i], c->reduce, -1, false);
    for (int i = 0; i < b->n; i++)
        each_logical(b, &b->list[i], point_gradient);
    for (int i = 0; i < b->n && (b->r->zero == 1 || b->r->zero == 2); i++)
        gather(b, &b->list[i], c->gather);
    return program_finish(p, e);
}

// Without replicas, or if they train apart, there are no buckets. Only shared weights have sums.
static int train_alone(struct program *p, struct apply_chunks *c, struct err *e) {
    reduce_shared(p, c->reduce);
    return program_finish(p, e);
}

int buckets_apply(struct program *p, const struct apply_ranks *r, int forward,
                  struct apply_chunks *c, struct err *e) {
    struct buckets b;
    if (r->apart) // a group is called what it is called first
        program_group(p, &r->mesh, MESH_DATA, "data");
    if (mesh_size(&r->mesh, AXIS_DATA) < 2 || r->apart)
        return c ? train_alone(p, c, e) : 0;
    if (!c && r->zero == 0)
        return 0;
    TRY(make_list(&b, p, r, e));
    for (int i = 0; i < b.n && !p->failed; i++) {
        if (r->zero == 1 || r->zero == 2)
            join_weights(&b, &b.list[i], i);
        each_logical(&b, &b.list[i], deal_weight);
    }
    if (c)
        TRY(train(&b, c, e));
    if (r->zero == 3)
        TRY(zero_gather(&b, (int[]){forward, c ? c->backward[0] : -1}, c ? 2 : 1, e));
    return program_finish(p, e);
}

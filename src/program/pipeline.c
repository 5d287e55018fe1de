// pipeline.c - cuts the layers into stages: keeps this rank's ops, and turns tensors that cross a
// cut into messages.
//
// The cut follows the data flow, not the model. An op belongs to a chunk by its layer index. A
// transient tensor that one chunk reads and another wrote is received at the start of the reader
// and sent at the end of the writer. Ops that depend only on the batch (loading, rotary tables) are
// repeated in every chunk that reads their results.
//
// Chunk c of the model is on stage c mod P: one chunk per stage, or several when interleaved.
// Channel numbers name the cut: 2c for activations that leave chunk c, 2c+1 for gradients that
// leave it. So messages of one channel match in order.
//
// Chunks get layers so that their predicted times are as even as possible. The first chunk also has
// the embedding, the last one the head, which costs as much as several layers of a small model. The
// cut follows from the shape alone, because every program of a set must have the same weights. It
// is the same on all ranks of a tensor group, although their parts of the vocabulary may differ.
//
// Schedules:
//   GPipe             all forwards, then all backwards
//   1F1B              P-1-r forwards, then one backward per forward (Narayanan et al., 2019)
//   interleaved 1F1B  micro-batches go through the rank's chunks in groups of P (Narayanan et al.,
//                     2021)
#include "program/apply.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct cut {
    struct program *p;
    const struct apply_ranks *r;
    const struct model_shape *whole; // of all ranks
    int stages, stage;               // how many; this rank's
    int n_chunks;                    // of the whole model
    int64_t layers;
    const int64_t *ends; // per chunk: the layer after its last one
    bool *local_data;    // per root: every chunk makes it itself (see `repeated`)
    int *copy;           // per tensor: its copy for the chunk being built; -1: not made yet
    int n_tensors;       // number of tensors before this pass
};

static int chunk_of(const struct cut *c, int layer) {
    if (layer < 0)
        return 0;
    for (int k = 0; k < c->n_chunks; k++)
        if (layer < c->ends[k])
            return k;
    return c->n_chunks - 1;
}

static int rank_of(const struct cut *c, int chunk) {
    return mesh_peer(&c->r->mesh, AXIS_PIPE, chunk % c->stages);
}

// ---------------------------------------------------------------- how many layers a chunk gets

// Predicted times of a layer and of the ends, in units of a multiply-add per token. Ops that move
// bytes count as products of the same time, at NOMINAL_RATIO operations per byte.
struct weighed {
    double layer, embed, head;
};
static const double NOMINAL_RATIO = 10;

static struct weighed weigh(const struct cut *c, const struct build *b) {
    const struct model_shape *s = b->shape;
    const double vocab = (double)c->whole->vocab / mesh_size(&c->r->mesh, AXIS_TENSOR);
    struct weighed w = {.head = vocab * (double)s->width};
    struct model_param param;
    for (int role = 0; role < ROLE_COUNT; role++) {
        const bool in_layer = role >= ROLE_NORM1_W && role <= ROLE_DOWN_B;
        if (in_layer && model_param_get(s, (enum model_role)role, 0, &param))
            w.layer += (double)param.dims[0] * (param.rank > 1 ? (double)param.dims[1] : 1);
    }
    // Causal attention: two products over half of the sequence on average.
    w.layer += (double)b->seq * (double)(s->heads * s->head_dim);
    w.embed = NOMINAL_RATIO * (double)s->width * sizeof(float);
    return w;
}

// Finds the cut with the least sum of squared times, which is also the most even one. best[k][n] is
// the least sum for the first n layers in k chunks.
static int balance(struct cut *c, const struct build *b, struct err *e) {
    const struct weighed w = weigh(c, b);
    const int64_t L = c->layers;
    const size_t row = (size_t)L + 1, room = ((size_t)c->n_chunks + 1) * row;
    double *best = region_alloc(&c->p->region, sizeof *best * room);
    int64_t *from = region_alloc(&c->p->region, sizeof *from * room);
    int64_t *ends = region_alloc(&c->p->region, sizeof *ends * (size_t)c->n_chunks);
    if (!best || !from || !ends)
        return err_set(e, ERR_MEMORY, "out of memory while cutting '%s'", c->p->name);
    for (size_t i = 0; i < room; i++)
        best[i] = INFINITY;
    best[0] = 0;
    for (int k = 1; k <= c->n_chunks; k++)
        for (int64_t n = k; n <= L - (c->n_chunks - k); n++)
            for (int64_t m = k - 1; m < n; m++) {
                const double before = best[(size_t)(k - 1) * row + (size_t)m],
                             time = w.layer * (double)(n - m) + (k == 1 ? w.embed : 0) +
                                    (k == c->n_chunks ? w.head : 0),
                             sum = before + time * time;
                if (sum < best[(size_t)k * row + (size_t)n]) {
                    best[(size_t)k * row + (size_t)n] = sum;
                    from[(size_t)k * row + (size_t)n] = m;
                }
            }
    int64_t end = L;
    for (int k = c->n_chunks; k > 0; k--) {
        ends[k - 1] = end;
        end = from[(size_t)k * row + (size_t)end];
    }
    c->ends = ends;
    return 0;
}

// ---------------------------------------------------------------- ops and messages

static bool repeated(enum op_kind kind) {
    return kind == OP_LOAD || kind == OP_ROPE_TABLE;
}

static bool transient(const struct program *p, int root) {
    return p->tensors[root].life != LIFE_RUN && p->tensors[root].life != LIFE_TURN;
}

// Returns the chunk's copy of a transient tensor. Several chunks on one rank need separate copies,
// because they are in flight at different times.
static int local(struct cut *c, int chunk, int t) {
    if (t < 0 || t >= c->n_tensors || c->r->schedule != SCHEDULE_INTERLEAVED)
        return t;
    int root = program_root(c->p, t);
    if (!transient(c->p, root))
        return t;
    if (c->copy[t] >= 0)
        return c->copy[t];
    struct tensor like = c->p->tensors[t];
    char name[200];
    snprintf(name, sizeof name, "c%d.%s", chunk, like.name);
    if (root == t) {
        c->copy[t] =
            program_tensor(c->p, name, like.dtype, like.cls, like.life, like.rank, like.local);
        if (c->copy[t] >= 0)
            c->p->tensors[c->copy[t]].layer = like.layer;
    } else {
        int of = local(c, chunk, root);
        c->copy[t] = program_view_flat(c->p, name, of, like.root_offset, like.rank, like.local);
        if (c->copy[t] >= 0)
            c->p->tensors[c->copy[t]].ld = like.ld;
    }
    return c->copy[t];
}

static void message(struct cut *c, int segment, int chunk, enum op_kind kind, int tensor,
                    int peer_chunk, int channel) {
    struct op op = op_make(kind);
    int t = local(c, chunk, tensor);
    op.stream = kind == OP_SEND ? STREAM_SEND : STREAM_COMM;
    op.peer = rank_of(c, peer_chunk);
    op.channel = channel;
    op.layer = c->p->tensors[tensor].layer;
    op.n = tensor_elements(&c->p->tensors[tensor]);
    if (kind == OP_SEND)
        op_in(&op, t);
    else
        op_out(&op, t);
    program_op(c->p, segment, &op);
}

// How `chunk` accesses root: OP_READ, OP_WRITE or both, 0: not at all. *first gets the same for the
// first op that does. A chunk needs the value from elsewhere only if it reads it first.
static int accesses(const struct cut *c, const struct segment *s, int chunk, int root, int *first) {
    struct op_access access[OP_MAX_TENSORS];
    int how = 0;
    *first = 0;
    for (int i = 0; i < s->n_ops; i++) {
        if (chunk_of(c, s->ops[i].layer) != chunk || repeated(s->ops[i].kind))
            continue;
        int n = op_accesses(c->p, &s->ops[i], access);
        for (int a = 0; a < n; a++)
            if (access[a].tensor == root) {
                *first = how ? *first : access[a].how;
                how |= access[a].how;
            }
    }
    return how;
}

// Whether root crosses a cut into chunk `to`: an earlier chunk writes it and `to` reads it first.
// step is +1 in the forward and -1 in the backward.
static bool crosses(const struct cut *c, const struct segment *s, int root, int to, int step) {
    int first;
    if (!transient(c->p, root) || c->local_data[root])
        return false;
    accesses(c, s, to, root, &first);
    if (!(first & OP_READ))
        return false;
    for (int k = to - step; k >= 0 && k < c->n_chunks; k -= step)
        if (accesses(c, s, k, root, &first) & OP_WRITE)
            return true;
    return false;
}

static void mark_repeated(struct cut *c, const struct segment *s) {
    struct op_access access[OP_MAX_TENSORS];
    for (int i = 0; i < s->n_ops; i++) {
        if (!repeated(s->ops[i].kind))
            continue;
        int n = op_accesses(c->p, &s->ops[i], access);
        for (int a = 0; a < n; a++)
            if (access[a].how & OP_WRITE)
                c->local_data[access[a].tensor] = true;
    }
}

// Recomputes the flags of weight gradients: in this chunk, the first contribution of a micro-batch
// overwrites and later ones accumulate.
static void first_contributions(struct cut *c, struct segment *s) {
    for (int i = 0; i < s->n_ops; i++)
        for (int a = 0; a < s->ops[i].n_out; a++) {
            int t = s->ops[i].out[a];
            if (t < 0 || c->p->tensors[t].cls != CLASS_GRADIENT)
                continue;
            const enum tensor_life life = c->p->tensors[t].life;
            if (life != LIFE_TURN && life != LIFE_RUN) // LIFE_RUN: kept for a reader
                continue;
            bool earlier = false;
            for (int k = 0; k < i && !earlier; k++)
                for (int b = 0; b < s->ops[k].n_out; b++)
                    earlier |= s->ops[k].out[b] == t;
            s->ops[i].flags &= ~(unsigned)(OP_ACCUMULATE | OP_FIRST_GRAD);
            s->ops[i].flags |= earlier ? OP_ACCUMULATE : OP_FIRST_GRAD;
        }
}

static void copy_op(struct cut *c, int segment, int chunk, struct op op) {
    for (int a = 0; a < op.n_in; a++)
        op.in[a] = local(c, chunk, op.in[a]);
    for (int a = 0; a < op.n_out; a++)
        op.out[a] = local(c, chunk, op.out[a]);
    program_op(c->p, segment, &op);
}

static int build_chunk(struct cut *c, int from, int chunk, int local_index, int step,
                       const char *kind) {
    struct program *p = c->p;
    struct segment old = p->segments[from];
    char name[48];
    snprintf(name, sizeof name, "%s.%s%d", kind,
             c->r->schedule == SCHEDULE_INTERLEAVED ? "chunk" : "stage", chunk);
    int segment = program_segment(p, name, old.role);
    if (segment < 0)
        return segment;
    p->segments[segment].chunk = local_index;
    for (int i = 0; i < old.n_ops; i++) // data first: loading never waits for another stage
        if (repeated(old.ops[i].kind))
            copy_op(c, segment, chunk, old.ops[i]);
    int back = chunk - step, next = chunk + step;
    int channel_in = step > 0 ? 2 * back : 2 * back + 1,
        channel_out = step > 0 ? 2 * chunk : 2 * chunk + 1;
    for (int t = 0; t < c->n_tensors; t++)
        if (program_root(p, t) == t && back >= 0 && back < c->n_chunks &&
            crosses(c, &old, t, chunk, step))
            message(c, segment, chunk, OP_RECV, t, back, channel_in);
    for (int i = 0; i < old.n_ops; i++)
        if (chunk_of(c, old.ops[i].layer) == chunk && !repeated(old.ops[i].kind))
            copy_op(c, segment, chunk, old.ops[i]);
    for (int t = 0; t < c->n_tensors; t++)
        if (program_root(p, t) == t && next >= 0 && next < c->n_chunks &&
            crosses(c, &old, t, next, step))
            message(c, segment, chunk, OP_SEND, t, next, channel_out);
    first_contributions(c, &p->segments[segment]);
    return segment;
}

// A weight that the first and the last stage both read (a tied embedding) exists on both. Its
// gradients are summed before the update (buckets.c), and only the first stage counts it in the
// norm.
static void share_weights(struct cut *c, const struct segment *forward,
                          const struct segment *backward) {
    struct program *p = c->p;
    const int ends[2] = {rank_of(c, 0), rank_of(c, c->n_chunks - 1)};
    if (p->rank != ends[0] && p->rank != ends[1])
        return;
    for (int w = 0; w < c->n_tensors; w++) {
        if (p->tensors[w].cls != CLASS_WEIGHT || p->tensors[w].root >= 0)
            continue;
        bool first = false, last = false;
        for (int k = 0; k < 2; k++) { // logits.c moves the head into the backward
            const struct segment *s = k ? backward : forward;
            for (int i = 0; s && i < s->n_ops; i++)
                for (int a = 0; a < s->ops[i].n_in; a++)
                    if (program_root(p, s->ops[i].in[a]) == w) {
                        first |= chunk_of(c, s->ops[i].layer) == 0;
                        last |= chunk_of(c, s->ops[i].layer) == c->n_chunks - 1;
                    }
        }
        if (!first || !last)
            continue;
        const int group = program_group_of(p, ends, 2, "tied");
        if (group >= 0)
            p->groups[group].stages = true;
        for (int t = 0; t < c->n_tensors; t++) // and its parts
            if (program_root(p, t) == w && p->tensors[t].cls == CLASS_WEIGHT) {
                p->tensors[t].shared = group;
                p->tensors[t].replica = p->rank != ends[0];
            }
    }
}

// Weights of other stages are no longer read here. They get no update, and program_sweep drops
// them.
static void forget_other_stages(struct program *p, const struct apply_chunks *c, int n_tensors) {
    for (int w = 0; w < n_tensors; w++) {
        if (p->tensors[w].cls != CLASS_WEIGHT || p->tensors[w].grad < 0)
            continue;
        bool written = false;
        int gradient = program_root(p, p->tensors[w].grad); // weights may share a root
        for (int k = 0; k < c->n && !written; k++) {
            const struct segment *s = &p->segments[c->backward[k]];
            for (int i = 0; i < s->n_ops && !written; i++)
                for (int a = 0; a < s->ops[i].n_out; a++)
                    written |= program_root(p, s->ops[i].out[a]) == gradient;
        }
        if (!written)
            p->tensors[w].grad = -1;
    }
}

// ---------------------------------------------------------------- schedules

struct turn { // one unit of this rank's work: a chunk's forward or backward
    bool forward;
    int chunk, micro;
};

// Returns unit k of an interleaved schedule: groups of P micro-batches pass through the chunks in
// turn. A single micro-batch is a group, too.
static struct turn interleaved_turn(const struct apply_ranks *r, int micro_batches, int k,
                                    bool forward) {
    const int P = mesh_size(&r->mesh, AXIS_PIPE), v = r->chunks,
              group = micro_batches < P ? micro_batches : P, within = k % (group * v);
    const int chunk = within / group;
    return (struct turn){forward, forward ? chunk : v - 1 - chunk,
                         k / (group * v) * group + within % group};
}

// Gets the i-th unit of work; false past the end. It is used both for the order and for counting
// the micro-batches in flight.
static bool schedule_turn(const struct apply_ranks *r, int micro_batches, int i, struct turn *out) {
    int v = r->schedule == SCHEDULE_INTERLEAVED ? r->chunks : 1, total = micro_batches * v, warm;
    const int stages = mesh_size(&r->mesh, AXIS_PIPE), stage = r->mesh.at[AXIS_PIPE];
    if (i >= 2 * total)
        return false;
    switch (r->schedule) {
    case SCHEDULE_GPIPE:
        warm = total;
        break;
    case SCHEDULE_1F1B:
        warm = stages - 1 - stage;
        break;
    default:
        warm = 2 * (stages - 1 - stage) + (v - 1) * stages;
        break;
    }
    if (warm > total)
        warm = total;
    // First `warm` forwards, then forward and backward in turn while forwards last, then the
    // remaining backwards.
    int steady = 2 * (total - warm), f, b;
    bool forward;
    if (i < warm)
        forward = true, f = i, b = 0;
    else if (i < warm + steady)
        forward = (i - warm) % 2 == 0, f = warm + (i - warm) / 2, b = (i - warm) / 2;
    else
        forward = false, f = 0, b = total - warm + (i - warm - steady);
    int k = forward ? f : b;
    if (r->schedule == SCHEDULE_INTERLEAVED)
        *out = interleaved_turn(r, micro_batches, k, forward);
    else
        *out = (struct turn){forward, 0, k};
    return true;
}

// Slots are numbered over all chunks of the rank. A slot belongs to one (chunk, micro-batch) at a
// time. So the tensors that chunk 0 and chunk 1 keep in slot 3 are never alive together and can
// have the same bytes.
int pipeline_slots(const struct apply_ranks *r, int micro_batches) {
    int live = 0, most = 0;
    struct turn t;
    for (int i = 0; schedule_turn(r, micro_batches, i, &t); i++) {
        live += t.forward ? 1 : -1;
        most = live > most ? live : most;
    }
    return most;
}

static int check_cut(const struct cut *c, int chunks, struct err *e) {
    const bool interleaved = c->r->schedule == SCHEDULE_INTERLEAVED;
    if (chunks < 1 || chunks > APPLY_MAX_CHUNKS || c->n_chunks > c->layers)
        return err_set(e, ERR_USAGE,
                       "parallel.pipe=%d with %d chunk%s per stage needs at least %d layers; the "
                       "model has %lld; accepted: stages x chunks up to %lld",
                       c->stages, chunks, chunks == 1 ? "" : "s", c->n_chunks, (long long)c->layers,
                       (long long)c->layers);
    if (interleaved && c->p->micro_batches % c->stages != 0 && c->p->micro_batches > 1)
        return err_set(e, ERR_USAGE,
                       "pipe.schedule=interleaved needs batch.accum to be a multiple of "
                       "parallel.pipe=%d; got %d; accepted: 1, %d, %d, ...",
                       c->stages, c->p->micro_batches, c->stages, 2 * c->stages);
    return 0;
}

int pipeline_cut(struct program *p, int forward, int backward, const struct apply_ranks *r,
                 const struct build *b, const struct model_shape *whole, struct apply_chunks *out,
                 struct err *e) {
    const int v = r->schedule == SCHEDULE_INTERLEAVED ? r->chunks : 1,
              stages = mesh_size(&r->mesh, AXIS_PIPE);
    struct cut c = {.p = p,
                    .r = r,
                    .whole = whole ? whole : b->shape,
                    .stages = stages,
                    .stage = r->mesh.at[AXIS_PIPE],
                    .n_chunks = stages * v,
                    .layers = b->shape->layers,
                    .ends = r->ends,
                    .n_tensors = p->n_tensors};
    TRY(check_cut(&c, v, e));
    if (!c.ends)
        TRY(balance(&c, b, e));
    c.local_data = region_alloc(&p->region, sizeof *c.local_data * (size_t)(c.n_tensors + 1));
    c.copy = region_alloc(&p->region, sizeof *c.copy * (size_t)(c.n_tensors + 1));
    if (!c.local_data || !c.copy)
        return err_set(e, ERR_MEMORY, "out of memory while cutting '%s'", p->name);
    // Also for the backward: it reads what the forward loaded, and nothing is loaded again.
    mark_repeated(&c, &p->segments[forward]);
    share_weights(&c, &p->segments[forward], backward >= 0 ? &p->segments[backward] : NULL);
    memset(out, 0, sizeof *out);
    out->n = v;
    for (int i = 0; i < v; i++) {
        int chunk = i * stages + c.stage;
        memset(c.copy, -1, sizeof *c.copy * (size_t)c.n_tensors);
        out->forward[i] = build_chunk(&c, forward, chunk, i, +1, "forward");
        if (backward >= 0)
            out->backward[i] = build_chunk(&c, backward, chunk, i, -1, "backward");
    }
    // The chunks have copies of their ops. The empty segments stay, so that indices stay valid.
    p->segments[forward].n_ops = 0;
    if (backward >= 0) {
        p->segments[backward].n_ops = 0;
        forget_other_stages(p, out, c.n_tensors);
        for (int k = 0; k < out->n; k++)
            out->slots[k] = pipeline_slots(r, p->micro_batches);
    }
    return program_finish(p, e);
}

struct owner { // what a slot belongs to; chunk -1: free
    int chunk, micro;
};

static int find_slot(const struct owner *owners, int n, struct owner o) {
    for (int i = 0; i < n; i++)
        if (owners[i].chunk == o.chunk && (o.chunk < 0 || owners[i].micro == o.micro))
            return i;
    return -1;
}

int pipeline_order(struct program *p, const struct apply_ranks *r, const struct apply_chunks *c,
                   struct err *e) {
    struct turn t;
    int slots = c->slots[0];
    const struct owner nobody = {-1, -1};
    struct owner *owners = region_alloc(&p->region, sizeof *owners * (size_t)slots);
    if (!owners)
        return err_set(e, ERR_MEMORY, "out of memory while ordering '%s'", p->name);
    for (int i = 0; i < slots; i++)
        owners[i] = nobody;
    for (int i = 0; schedule_turn(r, p->micro_batches, i, &t); i++) {
        struct owner me = {t.chunk, t.micro};
        int slot = find_slot(owners, slots, t.forward ? nobody : me);
        if (slot < 0)
            return err_set(e, ERR_INTERNAL, "micro-batch %d of chunk %d has no slot", t.micro,
                           t.chunk);
        owners[slot] = t.forward ? me : nobody;
        if (t.forward)
            micro_order_forward(p, c, t.chunk, t.micro, slot);
        else
            micro_order_backward(p, c, t.chunk, t.micro, slot);
    }
    return program_finish(p, e);
}

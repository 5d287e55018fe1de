// program.c - makes programs: tensors, ops, segments, order. Plain data in one region, no
// arithmetic of models.
//
// Constructors never report errors to the caller. Running out of memory sets p->failed, later calls
// do nothing, and program_finish reports the error once. So the builders read like the mathematics
// they describe.
#include "program/program.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

static const struct op_info op_infos[OP_COUNT] = {
#define OP(kind, name, category, in, out, types_in, types_out, what)                               \
    [OP_##kind] = {name, CAT_##category, in, out, types_in, types_out, what},
#include "program/ops.def"
#undef OP
};

const struct op_info *op_info(enum op_kind kind) {
    return &op_infos[kind];
}

enum dtype op_wide_type(enum dtype real) {
    return real == DTYPE_BF16 || real == DTYPE_F16 ? DTYPE_F32 : real;
}

const char *op_category_name(enum op_category c) {
    static const char *const names[CAT_COUNT] = {"matmul",    "attention", "other",
                                                 "optimizer", "data",      "comm"};
    return names[c];
}

const char *op_stream_name(enum op_stream s) {
    static const char *const names[STREAM_COUNT] = {"compute", "comm", "copy", "send"};
    return names[s];
}

const char *tensor_class_name(enum tensor_class c) {
    static const char *const names[CLASS_COUNT] = {
#define X(name, text) text,
        TENSOR_CLASS_LIST(X)
#undef X
    };
    return names[c];
}

struct program *program_new(const char *name) {
    struct program *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->name = region_copy(&p->region, name);
    p->micro_batches = 1;
    p->world = 1;
    if (!p->name)
        p->failed = ERR_MEMORY;
    return p;
}

void program_free(struct program *p) {
    if (!p)
        return;
    region_free(&p->region);
    free(p);
}

int program_finish(struct program *p, struct err *e) {
    if (p->failed == ERR_MEMORY)
        return err_set(e, ERR_MEMORY, "out of memory while building the program '%s'",
                       p->name ? p->name : "?");
    if (p->failed)
        return err_set(e, p->failed, "the program '%s' was built wrongly", p->name);
    return 0;
}

// Returns the table entry of the first tensor with that name, or the free entry where it would go.
static int *name_slot(const struct program *p, const char *name) {
    const size_t mask = p->by_name_size - 1;
    size_t i = hash_u64(name, strlen(name)) & mask;
    while (p->by_name[i] && strcmp(p->tensors[p->by_name[i] - 1].name, name) != 0)
        i = (i + 1) & mask;
    return &p->by_name[i];
}

static void note_name(struct program *p, int tensor) {
    int *slot = name_slot(p, p->tensors[tensor].name);
    if (!*slot)
        *slot = tensor + 1;
}

static void note_names(struct program *p) {
    memset(p->by_name, 0, sizeof *p->by_name * p->by_name_size);
    for (int i = 0; i < p->n_tensors; i++)
        note_name(p, i);
}

// Makes room for one more name. Builders look up names as often as they make them. A linear search
// through all tensors would make deep models quadratic.
static int grow_names(struct program *p) {
    enum { FIRST_SIZE = 256 };
    if (p->by_name && 2 * ((size_t)p->n_tensors + 1) <= p->by_name_size)
        return 0;
    size_t size = p->by_name ? 2 * p->by_name_size : FIRST_SIZE;
    int *grown = region_alloc(&p->region, sizeof *grown * size);
    if (!grown)
        return ERR_MEMORY;
    p->by_name = grown;
    p->by_name_size = size;
    note_names(p);
    return 0;
}

static int add_tensor(struct program *p, const struct tensor *t) {
    if (p->failed)
        return -1;
    struct tensor *grown = region_grow(&p->region, p->tensors, (size_t)p->n_tensors,
                                       &p->tensor_capacity, sizeof *grown);
    char *name = region_copy(&p->region, t->name);
    if (!grown || !name || grow_names(p) != 0) {
        p->failed = ERR_MEMORY;
        return -1;
    }
    p->tensors = grown;
    p->tensors[p->n_tensors] = *t;
    p->tensors[p->n_tensors].name = name;
    note_name(p, p->n_tensors);
    return p->n_tensors++;
}

int64_t tensor_elements(const struct tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->local[i];
    return n;
}

int program_tensor(struct program *p, const char *name, enum dtype dtype, enum tensor_class cls,
                   enum tensor_life life, int rank, const int64_t *shape) {
    struct tensor t = {.name = name,
                       .dtype = dtype,
                       .cls = cls,
                       .life = life,
                       .rank = rank,
                       .root = -1,
                       .slots = 1,
                       .layer = -1,
                       .grad = -1,
                       .master = -1,
                       .own = -1,
                       .shared = -1};
    for (int i = 0; i < rank; i++)
        t.local[i] = shape[i];
    t.ld = rank > 0 ? t.local[rank - 1] : 1;
    t.bytes = (uint64_t)tensor_elements(&t) * dtype_bytes(dtype);
    return add_tensor(p, &t);
}

int program_tensor_1d(struct program *p, const char *name, enum dtype dtype, enum tensor_class cls,
                      enum tensor_life life, int64_t n) {
    return program_tensor(p, name, dtype, cls, life, 1, &n);
}

int program_tensor_2d(struct program *p, const char *name, enum dtype dtype, enum tensor_class cls,
                      enum tensor_life life, int64_t rows, int64_t cols) {
    int64_t shape[2] = {rows, cols};
    return program_tensor(p, name, dtype, cls, life, 2, shape);
}

int program_root(const struct program *p, int tensor) {
    if (tensor < 0)
        return -1;
    int root = p->tensors[tensor].root;
    return root < 0 ? tensor : root;
}

int program_max_slots(const struct program *p) {
    int most = 1;
    for (int t = 0; t < p->n_tensors; t++)
        most = p->tensors[t].slots > most ? p->tensors[t].slots : most;
    return most;
}

bool program_logical(const struct program *p, int tensor) {
    const struct tensor *t = &p->tensors[tensor];
    return t->root < 0 ? !t->parts : t->part;
}

void program_become_view(struct program *p, int tensor, int of, int64_t offset) {
    if (p->failed || tensor < 0 || of < 0)
        return;
    const int root = program_root(p, of);
    offset += p->tensors[of].root < 0 ? 0 : p->tensors[of].root_offset;
    for (int i = 0; i < p->n_tensors; i++) {
        struct tensor *t = &p->tensors[i];
        if (i != tensor && t->root != tensor)
            continue;
        t->root_offset = offset + (i == tensor ? 0 : t->root_offset);
        t->root = root;
        t->bytes = 0;
    }
    // What was a logical tensor is one now as a part of its root.
    p->tensors[tensor].part = p->tensors[tensor].cls == CLASS_WEIGHT && !p->tensors[tensor].parts;
    p->tensors[tensor].parts = false;
    p->tensors[root].parts |= p->tensors[root].cls == CLASS_WEIGHT;
}

int program_join(struct program *p, const char *name, const int *tensors, int n, bool columns) {
    for (int i = 0; i < n; i++)
        if (p->failed || tensors[i] < 0)
            return -1;
    const struct tensor like = p->tensors[tensors[0]];
    int64_t shape[2] = {like.local[0], like.rank > 1 ? like.local[1] : 1}, at = 0;
    for (int i = 1; i < n; i++)
        shape[columns] += p->tensors[tensors[i]].local[columns];
    const int root = program_tensor(p, name, like.dtype, like.cls, like.life, like.rank, shape);
    if (root < 0)
        return -1;
    struct tensor *t = &p->tensors[root];
    t->layer = like.layer, t->trainable = like.trainable;
    t->adapter = like.adapter, t->decay = like.decay;
    for (int i = 0; i < n; i++) {
        struct tensor *v = &p->tensors[tensors[i]];
        v->ld = v->rank > 1 ? t->ld : v->ld;
        program_become_view(p, tensors[i], root, at);
        at += columns ? v->local[1] : tensor_elements(v);
    }
    return root;
}

// A view inherits everything but its name, shape and place. A view of a view is a view of the root.
static int add_view(struct program *p, const char *name, int of, int64_t offset, int rank,
                    const int64_t *shape, int64_t ld) {
    if (p->failed || of < 0)
        return -1;
    struct tensor t = p->tensors[of];
    t.name = name;
    t.root_offset = (t.root < 0 ? 0 : t.root_offset) + offset;
    t.root = program_root(p, of);
    t.rank = rank;
    t.share = NULL;
    for (int i = 0; i < rank; i++)
        t.local[i] = shape[i];
    t.ld = ld;
    t.grad = t.master = t.own = t.shared = -1;
    t.dealt = t.dealt_at = 0;
    t.part = false;
    t.bytes = 0;
    t.offset = NULL;
    return add_tensor(p, &t);
}

int program_view_columns(struct program *p, const char *name, int of, int64_t first, int64_t cols) {
    if (p->failed || of < 0)
        return -1;
    const struct tensor *t = &p->tensors[of];
    int64_t shape[2] = {t->local[0], cols};
    return add_view(p, name, of, first, 2, shape, t->ld);
}

int program_view_flat(struct program *p, const char *name, int of, int64_t offset, int rank,
                      const int64_t *shape) {
    return add_view(p, name, of, offset, rank, shape, rank > 0 ? shape[rank - 1] : 1);
}

int program_find(const struct program *p, const char *name) {
    return p->by_name ? *name_slot(p, name) - 1 : -1;
}

int program_segment(struct program *p, const char *name, enum segment_role role) {
    if (p->failed)
        return -1;
    struct segment *grown = region_grow(&p->region, p->segments, (size_t)p->n_segments,
                                        &p->segment_capacity, sizeof *grown);
    char *copy = region_copy(&p->region, name);
    if (!grown || !copy) {
        p->failed = ERR_MEMORY;
        return -1;
    }
    p->segments = grown;
    p->segments[p->n_segments] = (struct segment){.name = copy, .role = role};
    return p->n_segments++;
}

struct op op_make(enum op_kind kind) {
    return (struct op){.kind = kind,
                       .layer = -1,
                       .scratch = -1,
                       .group = -1,
                       .peer = -1,
                       .record = -1,
                       .scale = 1.0};
}

void op_in(struct op *op, int tensor) {
    if (op->n_in < OP_MAX_IN)
        op->in[op->n_in++] = tensor;
}

void op_out(struct op *op, int tensor) {
    if (op->n_out < OP_MAX_OUT)
        op->out[op->n_out++] = tensor;
}

struct op *program_op(struct program *p, int segment, const struct op *op) {
    if (p->failed || segment < 0)
        return NULL;
    struct segment *s = &p->segments[segment];
    struct op *grown =
        region_grow(&p->region, s->ops, (size_t)s->n_ops, &s->capacity, sizeof *grown);
    if (!grown) {
        p->failed = ERR_MEMORY;
        return NULL;
    }
    s->ops = grown;
    s->ops[s->n_ops] = *op;
    return &s->ops[s->n_ops++];
}

bool group_same(const struct comm_group *a, const struct comm_group *b) {
    return a->n_ranks == b->n_ranks &&
           memcmp(a->ranks, b->ranks, sizeof *a->ranks * (size_t)a->n_ranks) == 0;
}

int program_group_of(struct program *p, const int *ranks, int n, const char *name) {
    const size_t bytes = sizeof *ranks * (size_t)n;
    if (n < 2 || p->failed)
        return -1;
    for (int i = 0; i < p->n_groups; i++)
        if (group_same(&p->groups[i], &(struct comm_group){.n_ranks = n, .ranks = ranks}))
            return i;
    int *members = region_alloc(&p->region, bytes);
    char *copy = region_copy(&p->region, name);
    if (!members || !copy || p->n_groups == PROGRAM_MAX_GROUPS) {
        p->failed = members && copy ? ERR_INTERNAL : ERR_MEMORY;
        return -1;
    }
    memcpy(members, ranks, bytes);
    p->groups[p->n_groups] = (struct comm_group){.name = copy, .n_ranks = n, .ranks = members};
    return p->n_groups++;
}

int program_group(struct program *p, const struct mesh *m, unsigned axes, const char *name) {
    const int n = mesh_count(m, axes);
    if (n < 2 || p->failed)
        return -1;
    int *ranks = region_alloc(&p->region, sizeof *ranks * (size_t)n);
    if (!ranks) {
        p->failed = ERR_MEMORY;
        return -1;
    }
    mesh_group(m, axes, ranks);
    const int group = program_group_of(p, ranks, n, name);
    if (group >= 0)
        p->groups[group].stages = mesh_count(m, axes & MESH_PIPE) > 1;
    return group;
}

struct segment program_take_ops(struct program *p, int segment) {
    const struct segment old = p->segments[segment];
    p->segments[segment] = (struct segment){.name = old.name, .role = old.role, .chunk = old.chunk};
    return old;
}

void program_order(struct program *p, int segment, int micro, int slot) {
    if (p->failed)
        return;
    struct order_entry *grown =
        region_grow(&p->region, p->order, (size_t)p->n_order, &p->order_capacity, sizeof *grown);
    if (!grown) {
        p->failed = ERR_MEMORY;
        return;
    }
    p->order = grown;
    p->order[p->n_order++] = (struct order_entry){segment, micro, slot};
}

bool program_yields_at(const struct program *p, const struct order_entry *order, int at) {
    if (!p->yields || at == 0 || order[at - 1].micro == order[at].micro)
        return false;
    const enum segment_role before = p->segments[order[at - 1].segment].role,
                            after = p->segments[order[at].segment].role;
    return before == SEGMENT_BACKWARD && after == SEGMENT_FORWARD;
}

static int add_access(const struct program *p, struct op_access *out, int n, int tensor, int how) {
    int root = program_root(p, tensor);
    if (root < 0)
        return n;
    for (int i = 0; i < n; i++)
        if (out[i].tensor == root) {
            out[i].how |= how;
            return n;
        }
    out[n] = (struct op_access){root, how};
    return n + 1;
}

int op_accesses(const struct program *p, const struct op *op,
                struct op_access out[OP_MAX_TENSORS]) {
    int n = 0;
    for (int i = 0; i < op->n_in; i++)
        n = add_access(p, out, n, op->in[i], OP_READ);
    int how = OP_WRITE | (op->flags & OP_ACCUMULATE ? OP_READ : 0);
    for (int i = 0; i < op->n_out; i++)
        n = add_access(p, out, n, op->out[i],
                       i == 0 && op->kind == OP_NORM_BWD ? OP_WRITE
                                                         : how); // its dx is an input too
    return op->scratch >= 0 ? add_access(p, out, n, op->scratch, OP_WRITE) : n;
}

void program_settle_lives(struct program *p, const int *slots) {
    if (p->failed)
        return;
    enum { FORWARD = 1, BACKWARD = 2 };
    unsigned char *seen = region_alloc(&p->region, (size_t)p->n_tensors + 1);
    int *chunk = region_alloc(&p->region, sizeof *chunk * (size_t)(p->n_tensors + 1));
    if (!seen || !chunk) {
        p->failed = ERR_MEMORY;
        return;
    }
    struct op_access access[OP_MAX_TENSORS];
    for (int s = 0; s < p->n_segments; s++) {
        const struct segment *seg = &p->segments[s];
        int bit = seg->role == SEGMENT_FORWARD    ? FORWARD
                  : seg->role == SEGMENT_BACKWARD ? BACKWARD
                                                  : 0;
        for (int i = 0; i < seg->n_ops; i++) {
            int n = op_accesses(p, &seg->ops[i], access);
            for (int a = 0; a < n; a++) {
                seen[access[a].tensor] |= (unsigned char)bit;
                chunk[access[a].tensor] = seg->chunk;
            }
        }
    }
    for (int i = 0; i < p->n_tensors; i++) {
        struct tensor *t = &p->tensors[i];
        int root = program_root(p, i);
        if (p->tensors[root].life == LIFE_RUN || p->tensors[root].life == LIFE_TURN)
            continue;
        bool kept = seen[root] == (FORWARD | BACKWARD);
        t->life = kept ? LIFE_SLOT : LIFE_SEGMENT;
        t->slots = kept ? slots[chunk[root]] : 1;
        if (t->cls == CLASS_ACTIVATION || t->cls == CLASS_WORKSPACE)
            t->cls = kept ? CLASS_ACTIVATION : CLASS_WORKSPACE;
    }
}

int program_sweep(struct program *p, struct err *e) {
    TRY(program_finish(p, e));
    // A tensor stays if an op touches it or a view of it. A weight that is a part of a root also
    // stays if an op touches the root.
    int *renumber = region_alloc(&p->region, sizeof *renumber * (size_t)(p->n_tensors + 1));
    if (!renumber)
        return err_set(e, ERR_MEMORY, "out of memory while building the program '%s'", p->name);
    for (int s = 0; s < p->n_segments; s++)
        for (int i = 0; i < p->segments[s].n_ops; i++) {
            const struct op *op = &p->segments[s].ops[i];
            for (int a = 0; a < op->n_in; a++)
                if (op->in[a] >= 0)
                    renumber[op->in[a]] = renumber[program_root(p, op->in[a])] = 1;
            for (int a = 0; a < op->n_out; a++)
                if (op->out[a] >= 0)
                    renumber[op->out[a]] = renumber[program_root(p, op->out[a])] = 1;
            if (op->scratch >= 0)
                renumber[op->scratch] = 1;
        }
    for (int i = 0; i < p->n_tensors; i++) // parts of a root
        if (p->tensors[i].part)
            renumber[i] |= renumber[p->tensors[i].root];
    int kept = 0;
    for (int i = 0; i < p->n_tensors; i++)
        renumber[i] = renumber[i] ? kept++ : -1;
    for (int i = 0; i < p->n_tensors; i++) {
        if (renumber[i] < 0)
            continue;
        struct tensor t = p->tensors[i];
        if (t.root >= 0)
            t.root = renumber[t.root];
        if (t.grad >= 0)
            t.grad = renumber[t.grad];
        if (t.master >= 0)
            t.master = renumber[t.master];
        if (t.own >= 0)
            t.own = renumber[t.own];
        p->tensors[renumber[i]] = t; // renumber[i] <= i: moving down in place is safe
    }
    p->n_tensors = kept;
    if (p->by_name)
        note_names(p);
    for (int s = 0; s < p->n_segments; s++)
        for (int i = 0; i < p->segments[s].n_ops; i++) {
            struct op *op = &p->segments[s].ops[i];
            for (int a = 0; a < op->n_in; a++)
                op->in[a] = op->in[a] < 0 ? -1 : renumber[op->in[a]];
            for (int a = 0; a < op->n_out; a++)
                op->out[a] = op->out[a] < 0 ? -1 : renumber[op->out[a]];
            op->scratch = op->scratch < 0 ? -1 : renumber[op->scratch];
        }
    return 0;
}

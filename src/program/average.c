// average.c - local SGD (Stich, 2019): replicas take steps of their own, and now and then a program
// of its own makes their weights and moments the mean over the data axis.
//
// The program has the weights of the training program, and none of its ops; its own are in the
// segment of the update. Float32 tensors are summed and scaled, in buckets: small ones are copied
// into a window, one that is alone in its bucket stays where it is. Two windows take turns, so that
// one is filled while the other is summed. Moments in bf16 are widened in the window and rounded
// once. Of a 16-bit weight the master is averaged, and the weight is the master rounded, as always.
// Sums have one order, so all replicas end with the same bits.
#include "program/apply.h"

#include <stdio.h>

enum { WINDOWS = 2 };
enum { IN_W = 3, IN_M = 4, IN_V = 5, IN_MASTER = 6 }; // operands of ADAMW (ops.def)

struct item {
    int tensor;
    int weight; // 16 bits: the weight that is this master rounded; -1: none
    int bucket;
    int64_t at; // first element in the bucket
};

struct average {
    struct program *p;
    const struct apply_ranks *r;
    int segment, group, factor;
    struct item *items;
    int n, n_buckets;
    int64_t *elements; // per bucket
    int64_t widest;    // elements of the largest bucket that needs a window
    int window[WINDOWS];
};

// ---------------------------------------------------------------- what is averaged

static bool is_adamw(enum op_kind kind) {
    return kind == OP_ADAMW || kind == OP_ADAMW_BF16;
}

static enum dtype wide(const struct average *a, int t) {
    return op_wide_type(a->p->tensors[t].dtype);
}

static void add(struct average *a, int tensor, int weight, bool opens) {
    const int64_t n = tensor_elements(&a->p->tensors[tensor]),
                  bytes = n * (int64_t)dtype_bytes(wide(a, tensor));
    const int last = a->n_buckets - 1;
    const int64_t has = last < 0 ? 0 : a->elements[last] * (int64_t)dtype_bytes(wide(a, tensor));
    if (opens || (a->r->bucket_bytes > 0 && has + bytes > a->r->bucket_bytes))
        a->elements[a->n_buckets++] = 0;
    int64_t *elements = &a->elements[a->n_buckets - 1];
    a->items[a->n++] = (struct item){tensor, weight, a->n_buckets - 1, *elements};
    *elements += n;
}

// Weights or their masters, then first moments, then second ones: three runs of buckets.
static void list(struct average *a, const struct segment *update) {
    for (int in = IN_W; in <= IN_V; in++) {
        bool opens = true;
        for (int i = 0; i < update->n_ops; i++) {
            const struct op *op = &update->ops[i];
            if (!is_adamw(op->kind))
                continue;
            const int master = op->n_in > IN_MASTER ? op->in[IN_MASTER] : -1;
            if (in == IN_W && master >= 0)
                add(a, master, op->in[IN_W], opens);
            else
                add(a, op->in[in], -1, opens);
            opens = false;
        }
    }
}

// Whether a bucket is one tensor of the type in which it is summed.
static bool in_place(const struct average *a, int first, int end) {
    const int t = a->items[first].tensor;
    return end == first + 1 && a->p->tensors[t].dtype == wide(a, t);
}

static int end_of(const struct average *a, int first) {
    int end = first;
    while (end < a->n && a->items[end].bucket == a->items[first].bucket)
        end++;
    return end;
}

// ---------------------------------------------------------------- ops

static void convert(struct average *a, int from, int to) {
    const struct program *p = a->p;
    if (from < 0 || to < 0) // out of memory
        return;
    struct op op = op_make(p->tensors[from].dtype == p->tensors[to].dtype ? OP_COPY : OP_CAST);
    op_in(&op, from);
    op_out(&op, to);
    op.m = 1, op.n = tensor_elements(&p->tensors[from]);
    program_op(a->p, a->segment, &op);
}

// The elements of a bucket that belong to an item.
static int place(struct average *a, const struct item *x) {
    const int64_t n = tensor_elements(&a->p->tensors[x->tensor]);
    char name[48];
    snprintf(name, sizeof name, "average.%d.%lld", x->bucket, (long long)x->at);
    const int found = program_find(a->p, name);
    return found >= 0 ? found
                      : program_view_flat(a->p, name, a->window[x->bucket % WINDOWS], x->at, 1, &n);
}

static int open_window(struct average *a, int bucket, enum dtype type) {
    int *window = &a->window[bucket % WINDOWS];
    char name[48];
    snprintf(name, sizeof name, "average.window.%d", bucket % WINDOWS);
    if (*window < 0)
        *window = program_tensor_1d(a->p, name, type, CLASS_COMM, LIFE_SEGMENT, a->widest);
    snprintf(name, sizeof name, "average.%d", bucket);
    return program_view_flat(a->p, name, *window, 0, 1, &a->elements[bucket]);
}

// Fills the bucket that begins with item `first`, and sums it. Returns the tensor with the sum.
static int sum(struct average *a, int first) {
    const int end = end_of(a, first), bucket = a->items[first].bucket;
    int at = a->items[first].tensor;
    if (!in_place(a, first, end)) {
        at = open_window(a, bucket, wide(a, at));
        for (int i = first; i < end; i++)
            convert(a, a->items[i].tensor, place(a, &a->items[i]));
    }
    struct op op = op_make(OP_ALL_REDUCE);
    op.stream = STREAM_COMM;
    op.group = a->group;
    op.n = a->elements[bucket];
    op_in(&op, at);
    op_out(&op, at);
    program_op(a->p, a->segment, &op);
    return at;
}

// Makes the mean of the sum in `at`, and puts it where it belongs.
static void finish(struct average *a, int first, int at) {
    const int end = end_of(a, first);
    struct op op = op_make(OP_GRAD_SCALE);
    op_in(&op, at);
    op_in(&op, a->factor);
    op_out(&op, at);
    op.n = a->elements[a->items[first].bucket];
    program_op(a->p, a->segment, &op);
    for (int i = first; i < end; i++) {
        const struct item *x = &a->items[i];
        if (!in_place(a, first, end))
            convert(a, place(a, x), x->tensor);
        if (x->weight >= 0)
            convert(a, x->tensor, x->weight);
    }
}

int average_apply(struct program *p, const struct apply_ranks *r, int update, struct err *e) {
    const struct segment ops = program_take_ops(p, update);
    const size_t most = 3 * (size_t)ops.n_ops + 1;
    struct average a = {.p = p, .r = r, .segment = update, .window = {-1, -1}};
    for (int i = 0; i < ops.n_ops; i++)
        if (ops.ops[i].kind == OP_ADAMW_INT8)
            return err_set(e, ERR_UNSUPPORTED, "8-bit moments have no mean");
    a.items = region_alloc(&p->region, sizeof *a.items * most);
    a.elements = region_alloc(&p->region, sizeof *a.elements * most);
    if (!a.items || !a.elements)
        return err_set(e, ERR_MEMORY, "out of memory while planning '%s'", p->name);
    for (int s = 0; s < p->n_segments; s++) // only their tensors are wanted
        p->segments[s].n_ops = 0;
    a.group = program_group(p, &r->mesh, MESH_DATA, "data");
    a.factor = program_tensor_1d(p, NAME_AVERAGE, DTYPE_F64, CLASS_INPUT, LIFE_RUN, CLIP_COUNT);
    TRY(program_finish(p, e));
    list(&a, &ops);
    for (int i = 0; i < a.n; i = end_of(&a, i))
        if (!in_place(&a, i, end_of(&a, i)) && a.elements[a.items[i].bucket] > a.widest)
            a.widest = a.elements[a.items[i].bucket];
    int before = -1, summed = -1; // the bucket whose sum is on its way
    for (int i = 0; i < a.n; i = end_of(&a, i)) {
        const int at = sum(&a, i);
        if (before >= 0)
            finish(&a, before, summed);
        before = i, summed = at;
    }
    if (before >= 0)
        finish(&a, before, summed);
    program_order(p, a.segment, 0, 0);
    program_settle_lives(p, (const int[APPLY_MAX_CHUNKS]){1});
    return program_finish(p, e);
}

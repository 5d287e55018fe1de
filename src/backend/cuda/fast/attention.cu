// attention.cu - attention by cuDNN: its forward and its backward, each described as a graph of
// products, reductions and operations on single elements, of which the library recognises the
// pattern and generates one kernel (the backward: three or four). The order of the operations is
// part of the pattern.
//
// Row t of a sequence sees the columns s with min(doc_start, t) <= s <= t. Both bounds are written
// into the graph as choices between a score and a number, one after the other: that is the form in
// which the library accepts them together. The number is -infinity behind a row. Before its
// document it is finite, because a whole block of columns may lie there, and the maximum of
// nothing but -infinity would make the row NaN.
//
// A plan takes a second to build, so calls of equal sizes and strides share one. Addresses are
// bound to a call in advance (the library calls that a variant pack).
#include "backend/cuda/fast/cudnn.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAGGLE_CUDNN

enum {
    FIRST_WITH_ANY_LENGTH = 91501, // older backwards are wrong unless T is a multiple of 128
    PLANS_KEPT = 32,               // beyond that, plans that no call uses are dropped
    PIECE = 256,                   // alignment of the pieces of scratch
};

// Ids of what a plan is given.
enum {
    ID_Q = 1,
    ID_K,
    ID_V,
    ID_O,
    ID_LSE,
    ID_DOCS,
    ID_SCALE,
    ID_BEHIND,
    ID_BEFORE,
    ID_ONE,
    ID_DOUT,
    ID_DQ,
    ID_DK,
    ID_DV,
    ID_SUMS,
    ID_WIDE_DQ,
    ID_COUNT
};

// What a plan depends on. `all_heads`: of the op, of which a part may have fewer.
struct attention_key {
    int64_t batch, seq, heads, kv_heads, head_dim, all_heads;
    int64_t ldq, ldk, ldv, ldo, lddout, lddq, lddk, lddv;
    int64_t backward, deterministic, docs, type; // as wide as the others: no bytes in between
};

struct attention_plan {
    struct attention_plan *next;
    struct attention_key key;
    struct graph graph; // without a plan: cuDNN has none, see `why`
    char why[200];
    int users;
};

// A call that is ready: a variant pack for each part of it.
struct attention_call {
    struct attention_plan *plan;
    float scale, behind, before, one; // numbers of the graph; they must stay where they are
    int n;
    descriptor *packs;
};

// ---------------------------------------------------------------- graphs

// Shapes and types of one plan.
struct sketch {
    struct graph *g;
    const struct attention_key *k;
    cudnnDataType_t type;
    struct shape scores, turned, row, stats; // [T, T], its transpose, [T, 1], lse
    descriptor scale, behind;
};

// `heads` heads side by side in rows that are ld apart.
static struct shape heads_shape(const struct attention_key *k, int64_t heads, int64_t ld) {
    return {{k->batch, heads, k->seq, k->head_dim}, {k->seq * ld, k->head_dim, ld, 1}};
}

// The same without gaps, one head after the other.
static struct shape packed_shape(const struct attention_key *k) {
    const int64_t t = k->seq, d = k->head_dim;
    return {{k->batch, k->heads, t, d}, {k->heads * t * d, t * d, d, 1}};
}

static struct shape transposed(struct shape s) {
    return {{s.size[0], s.size[1], s.size[3], s.size[2]},
            {s.stride[0], s.stride[1], s.stride[3], s.stride[2]}};
}

static struct sketch sketch_of(struct graph *g, const struct attention_key *k) {
    const int64_t b = k->batch, h = k->heads, t = k->seq;
    struct sketch s = {};
    s.g = g, s.k = k;
    s.type = k->type == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    s.scores = {{b, h, t, t}, {h * t * t, t * t, t, 1}};
    s.turned = {{b, h, t, t}, {h * t * t, t * t, 1, t}};
    s.row = {{b, h, t, 1}, {h * t, t, 1, 1}};
    s.stats = {{b, h, t, 1}, {k->all_heads * t, t, 1, 1}};
    s.scale = graph_number(g, ID_SCALE);
    s.behind = graph_number(g, ID_BEHIND);
    return s;
}

static descriptor real(const struct sketch *s, int64_t id, struct shape shape) {
    return graph_tensor(s->g, id, s->type, shape);
}

// One operation of which the result stays in the graph, as float32 scores.
static descriptor step(const struct sketch *s, cudnnPointwiseMode_t mode, descriptor x,
                       descriptor b) {
    return graph_pointwise(s->g, graph_inner(s->g, CUDNN_DATA_FLOAT, s->scores), mode, x, b, NULL);
}

// x where `large` >= `small`, else a number.
static descriptor choose(const struct sketch *s, descriptor x, descriptor large, descriptor small,
                         descriptor number) {
    descriptor holds = graph_pointwise(s->g, graph_inner(s->g, CUDNN_DATA_BOOLEAN, s->scores),
                                       CUDNN_POINTWISE_CMP_GE, large, small, NULL);
    return graph_pointwise(s->g, graph_inner(s->g, CUDNN_DATA_FLOAT, s->scores),
                           CUDNN_POINTWISE_BINARY_SELECT, x, number, holds);
}

enum { ROW_AXIS = 2, COLUMN_AXIS = 3 };

static descriptor index_of(const struct sketch *s, descriptor x, int64_t axis) {
    return graph_index(s->g, graph_inner(s->g, CUDNN_DATA_INT32, s->scores), axis, x);
}

static descriptor causal(const struct sketch *s, descriptor x) {
    descriptor row = index_of(s, x, ROW_AXIS), column = index_of(s, x, COLUMN_AXIS);
    return choose(s, x, row, column, s->behind);
}

static descriptor documents(const struct sketch *s, descriptor x) {
    if (!s->k->docs)
        return x;
    const int64_t t = s->k->seq;
    descriptor row = index_of(s, x, ROW_AXIS), column = index_of(s, x, COLUMN_AXIS);
    descriptor start =
        graph_tensor(s->g, ID_DOCS, CUDNN_DATA_INT32, {{s->k->batch, 1, t, 1}, {t, t, 1, 1}});
    descriptor first = graph_pointwise(s->g, graph_inner(s->g, CUDNN_DATA_INT32, s->scores),
                                       CUDNN_POINTWISE_MIN, row, start, NULL);
    return choose(s, x, column, first, graph_number(s->g, ID_BEFORE));
}

// scale Q K^T, without the columns before a row's document
static descriptor scaled_scores(const struct sketch *s, descriptor q, descriptor k) {
    descriptor x = graph_inner(s->g, CUDNN_DATA_FLOAT, s->scores);
    graph_matmul(s->g, x, q, k);
    return documents(s, step(s, CUDNN_POINTWISE_MUL, x, s->scale));
}

static void describe_forward(struct graph *g, const struct attention_key *k) {
    const struct sketch s = sketch_of(g, k);
    descriptor q = real(&s, ID_Q, heads_shape(k, k->heads, k->ldq)),
               kt = real(&s, ID_K, transposed(heads_shape(k, k->kv_heads, k->ldk))),
               v = real(&s, ID_V, heads_shape(k, k->kv_heads, k->ldv)),
               o = real(&s, ID_O, heads_shape(k, k->heads, k->ldo)),
               lse = graph_tensor(g, ID_LSE, CUDNN_DATA_FLOAT, s.stats);
    descriptor x = causal(&s, scaled_scores(&s, q, kt));
    descriptor most =
        graph_reduce(g, graph_inner(g, CUDNN_DATA_FLOAT, s.row), CUDNN_REDUCE_TENSOR_MAX, x);
    descriptor e = step(&s, CUDNN_POINTWISE_EXP, step(&s, CUDNN_POINTWISE_SUB, x, most), NULL);
    descriptor sum =
        graph_reduce(g, graph_inner(g, CUDNN_DATA_FLOAT, s.row), CUDNN_REDUCE_TENSOR_ADD, e);
    descriptor log = graph_pointwise(g, graph_inner(g, CUDNN_DATA_FLOAT, s.row),
                                     CUDNN_POINTWISE_LOG, sum, NULL, NULL);
    graph_pointwise(g, lse, CUDNN_POINTWISE_ADD, most, log, NULL);
    descriptor p =
        graph_pointwise(g, graph_inner(g, s.type, s.scores), CUDNN_POINTWISE_DIV, e, sum, NULL);
    graph_matmul(g, o, p, v);
}

// out = x y for every query head, summed over the heads that share one of keys and values
static void sum_over_heads(const struct sketch *s, descriptor out, descriptor x, descriptor y) {
    if (s->k->heads == s->k->kv_heads) {
        graph_matmul(s->g, out, x, y);
        return;
    }
    descriptor each = graph_inner(s->g, s->type, packed_shape(s->k));
    graph_matmul(s->g, each, x, y);
    graph_reduce(s->g, out, CUDNN_REDUCE_TENSOR_ADD, each);
}

// The same formulas as in plain/attention_bwd.cu.
static void describe_backward(struct graph *g, const struct attention_key *k) {
    const struct sketch s = sketch_of(g, k);
    const struct shape keys = heads_shape(k, k->kv_heads, k->ldk);
    descriptor q = real(&s, ID_Q, heads_shape(k, k->heads, k->ldq)),
               kt = real(&s, ID_K, transposed(keys)),
               vt = real(&s, ID_V, transposed(heads_shape(k, k->kv_heads, k->ldv))),
               o = real(&s, ID_O, heads_shape(k, k->heads, k->ldo)),
               dout = real(&s, ID_DOUT, heads_shape(k, k->heads, k->lddout)),
               dq = real(&s, ID_DQ, heads_shape(k, k->heads, k->lddq)),
               dk = real(&s, ID_DK, heads_shape(k, k->kv_heads, k->lddk)),
               dv = real(&s, ID_DV, heads_shape(k, k->kv_heads, k->lddv)),
               lse = graph_tensor(g, ID_LSE, CUDNN_DATA_FLOAT, s.stats),
               sums = graph_tensor(g, ID_SUMS, CUDNN_DATA_FLOAT, s.row),
               one = graph_number(g, ID_ONE);

    // sums = dout.o
    descriptor product = graph_pointwise(g, graph_inner(g, CUDNN_DATA_FLOAT, packed_shape(k)),
                                         CUDNN_POINTWISE_MUL, dout, o, NULL);
    descriptor sum =
        graph_reduce(g, graph_inner(g, CUDNN_DATA_FLOAT, s.row), CUDNN_REDUCE_TENSOR_ADD, product);
    graph_pointwise(g, sums, CUDNN_POINTWISE_MUL, sum, one, NULL);

    // p = exp(scale q.k - lse), dv = p^T dout
    descriptor x = step(&s, CUDNN_POINTWISE_SUB, scaled_scores(&s, q, kt), lse);
    descriptor p = step(&s, CUDNN_POINTWISE_EXP, causal(&s, x), NULL);
    descriptor pt = graph_reshape(g, graph_inner(g, s.type, s.turned), p);
    sum_over_heads(&s, dv, pt, dout);

    // ds = p (dout v^T - sums) scale, dk = ds^T q
    descriptor dp = graph_inner(g, CUDNN_DATA_FLOAT, s.scores);
    graph_matmul(g, dp, dout, vt);
    descriptor y = step(&s, CUDNN_POINTWISE_MUL, step(&s, CUDNN_POINTWISE_SUB, dp, sums), p);
    descriptor ds =
        graph_pointwise(g, graph_inner(g, s.type, s.scores), CUDNN_POINTWISE_MUL, y, s.scale, NULL);
    descriptor dst = graph_reshape(g, graph_inner(g, s.type, s.turned), ds);
    sum_over_heads(&s, dk, dst, q);

    // dq = ds k. Blocks add to a float32 dq in any order; without one, ds goes through the
    // workspace, and each dq has one block.
    descriptor back = graph_reshape(g, graph_inner(g, s.type, keys), kt);
    if (k->deterministic) {
        graph_matmul(g, dq, ds, back);
        return;
    }
    descriptor wide = graph_tensor(g, ID_WIDE_DQ, CUDNN_DATA_FLOAT, packed_shape(k));
    graph_matmul(g, wide, ds, back);
    graph_pointwise(g, dq, CUDNN_POINTWISE_IDENTITY, wide, NULL, NULL);
}

// ---------------------------------------------------------------- plans

static void drop_plan(struct attention_plan *p) {
    graph_drop(&p->graph);
    free(p);
}

void cuda_attention_close(struct cuda *s) {
    while (s->cudnn->plans) {
        struct attention_plan *p = s->cudnn->plans;
        s->cudnn->plans = p->next;
        drop_plan(p);
    }
}

static void forget_unused(struct cudnn *c) {
    int n = 0;
    for (struct attention_plan *p = c->plans; p; p = p->next)
        n++;
    for (struct attention_plan **at = &c->plans; n > PLANS_KEPT && *at;) {
        struct attention_plan *p = *at;
        if (p->users > 0) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        drop_plan(p);
        n--;
    }
}

// The plan for `key`, with at most `workspace` bytes, or its refusal, which is kept too, because
// a model asks again for each layer. NULL: no memory.
static struct attention_plan *plan_for(struct cudnn *c, const struct attention_key *key,
                                       uint64_t workspace) {
    for (struct attention_plan *p = c->plans; p; p = p->next)
        if (memcmp(&p->key, key, sizeof *key) == 0)
            return p;
    struct attention_plan *p = (struct attention_plan *)calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->key = *key;
    p->graph.cudnn = c;
    if (key->backward)
        describe_backward(&p->graph, key);
    else
        describe_forward(&p->graph, key);
    if (!graph_build(&p->graph, workspace, p->why, sizeof p->why))
        graph_drop(&p->graph);
    forget_unused(c);
    p->next = c->plans;
    c->plans = p;
    return p;
}

// ---------------------------------------------------------------- calls

// The operands of an op by id; NULL: it has no such operand.
static void operands_of(const struct op_call *c, const struct operand *at[ID_COUNT]) {
    const bool backward = c->op->kind == OP_ATTENTION_BWD;
    const struct operand *in = c->in + (backward ? 1 : 0);
    memset(at, 0, ID_COUNT * sizeof *at);
    at[ID_Q] = &in[0], at[ID_K] = &in[1], at[ID_V] = &in[2];
    at[ID_O] = backward ? &in[3] : &c->out[0];
    at[ID_LSE] = backward ? &in[4] : &c->out[1];
    at[ID_DOCS] = backward ? &in[5] : &in[3];
    if (backward) {
        at[ID_DOUT] = &c->in[0];
        at[ID_DQ] = &c->out[0], at[ID_DK] = &c->out[1], at[ID_DV] = &c->out[2];
    }
    if (!at[ID_DOCS]->data)
        at[ID_DOCS] = NULL;
}

static bool aligned(const struct operand *at[ID_COUNT]) {
    for (int id = 1; id < ID_COUNT; id++) {
        const bool rows = id != ID_LSE && id != ID_DOCS; // the others have one
        if (at[id] && ((uintptr_t)at[id]->data % GRAPH_ALIGNMENT != 0 ||
                       (rows && at[id]->ld * 2 % GRAPH_ALIGNMENT != 0)))
            return false;
    }
    return true;
}

static struct attention_key key_of(const struct cuda *s, const struct op *op, enum dtype type,
                                   const struct operand *at[ID_COUNT], struct cuda_part part) {
    struct attention_key k = {};
    k.batch = part.batch, k.seq = op->seq, k.head_dim = op->head_dim;
    k.kv_heads = part.kv_heads, k.heads = op->heads / op->kv_heads * part.kv_heads;
    k.all_heads = op->heads;
    k.ldq = at[ID_Q]->ld, k.ldk = at[ID_K]->ld, k.ldv = at[ID_V]->ld, k.ldo = at[ID_O]->ld;
    k.backward = op->kind == OP_ATTENTION_BWD;
    if (k.backward) {
        k.lddout = at[ID_DOUT]->ld;
        k.lddq = at[ID_DQ]->ld, k.lddk = at[ID_DK]->ld, k.lddv = at[ID_DV]->ld;
        k.deterministic = s->choice.deterministic;
    }
    k.docs = at[ID_DOCS] != NULL;
    k.type = type;
    return k;
}

// The pieces of scratch: the row sums, dq in float32, and what is left for the library.
struct pieces {
    unsigned char *sums, *wide_dq, *workspace;
    uint64_t workspace_bytes;
};

static struct pieces pieces_of(const struct op_call *c, const struct attention_key *k) {
    const uint64_t rows = (uint64_t)(k->batch * k->heads * k->seq),
                   given = (uint64_t)c->scratch.cols;
    const uint64_t sums = k->backward ? (rows * sizeof(float) + PIECE - 1) / PIECE * PIECE : 0;
    uint64_t wide = k->backward && !k->deterministic ? rows * sizeof(float) : 0;
    wide = (wide * (uint64_t)k->head_dim + PIECE - 1) / PIECE * PIECE;
    struct pieces p = {};
    p.sums = (unsigned char *)c->scratch.data;
    p.wide_dq = p.sums + sums;
    p.workspace = p.wide_dq + wide;
    p.workspace_bytes = given > sums + wide ? given - sums - wide : 0;
    return p;
}

// Where an operand's part begins that starts with this sequence and this head of keys and values.
static void *part_of(const struct op *op, const struct operand *const at[ID_COUNT], int id,
                     int64_t sequence, int64_t kv_head) {
    const int64_t head = kv_head * (op->heads / op->kv_heads), row = sequence * op->seq;
    const bool of_keys = id == ID_K || id == ID_V || id == ID_DK || id == ID_DV;
    if (id == ID_LSE)
        return (float *)at[id]->data + sequence * op->heads * op->seq + head * op->seq;
    if (id == ID_DOCS)
        return (int32_t *)at[id]->data + row;
    return (uint16_t *)at[id]->data + row * at[id]->ld + (of_keys ? kv_head : head) * op->head_dim;
}

static bool add_pack(struct cudnn *c, struct attention_call *call, const struct op *op,
                     const struct operand *const at[ID_COUNT], const struct pieces *pieces,
                     int64_t sequence, int64_t kv_head) {
    int64_t ids[ID_COUNT];
    void *data[ID_COUNT], *workspace = pieces->workspace;
    int n = 0;
    const struct attention_key *k = &call->plan->key;
    auto give = [&](int id, void *where) { ids[n] = id, data[n++] = where; };
    for (int id = 1; id < ID_COUNT; id++)
        if (at[id])
            give(id, part_of(op, at, id, sequence, kv_head));
    give(ID_SCALE, &call->scale);
    give(ID_BEHIND, &call->behind);
    if (k->docs)
        give(ID_BEFORE, &call->before);
    if (k->backward) {
        give(ID_ONE, &call->one);
        give(ID_SUMS, pieces->sums);
    }
    if (k->backward && !k->deterministic)
        give(ID_WIDE_DQ, pieces->wide_dq);
    descriptor d;
    if (c->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &d) !=
        CUDNN_STATUS_SUCCESS)
        return false;
    call->packs[call->n++] = d;
    return c->cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n,
                                       ids) == CUDNN_STATUS_SUCCESS &&
           c->cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                       CUDNN_TYPE_VOID_PTR, n, data) == CUDNN_STATUS_SUCCESS &&
           c->cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                                       &workspace) == CUDNN_STATUS_SUCCESS &&
           c->cudnnBackendFinalize(d) == CUDNN_STATUS_SUCCESS;
}

static void drop_call(void *own) {
    struct attention_call *call = (struct attention_call *)own;
    while (call->n > 0)
        call->plan->graph.cudnn->cudnnBackendDestroyDescriptor(call->packs[--call->n]);
    call->plan->users--;
    free(call->packs);
    free(call);
}

static int run_call(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct attention_call *call = (const struct attention_call *)cuda_own(c);
    struct cudnn *l = s->cudnn;
    (void)stream; // the handle's
    for (int i = 0; i < call->n; i++) {
        const cudnnStatus_t status =
            l->cudnnBackendExecute(l->handle, call->plan->graph.plan, call->packs[i]);
        if (status != CUDNN_STATUS_SUCCESS)
            return s->host.err_set(e, ERR_INTERNAL, "%s: cuDNN says %s",
                                   s->host.op_name(c->op->kind), l->cudnnGetErrorString(status));
    }
    return 0;
}

// Binds the plan to the call's addresses. False: cuDNN refuses, or there is no memory.
static bool bind_call(struct cuda *s, const struct op_call *c, const struct operand *at[ID_COUNT],
                      struct cuda_part part, struct attention_plan *plan, struct cuda_made *made) {
    const struct op *op = c->op;
    const struct pieces pieces = pieces_of(c, &plan->key);
    struct attention_call *call = (struct attention_call *)calloc(1, sizeof *call);
    if (!call)
        return false;
    call->plan = plan;
    plan->users++;
    call->scale = (float)op->scale, call->one = 1;
    call->behind = -INFINITY, call->before = -1e30f;
    call->packs = (descriptor *)calloc(
        (size_t)(op->batch / part.batch * op->kv_heads / part.kv_heads), sizeof *call->packs);
    bool ok = call->packs != NULL;
    for (int64_t b = 0; ok && b < op->batch; b += part.batch)
        for (int64_t g = 0; ok && g < op->kv_heads; g += part.kv_heads)
            ok = add_pack(s->cudnn, call, op, at, &pieces, b, g);
    if (!ok) {
        drop_call(call);
        return false;
    }
    made->run = run_call, made->own = call, made->drop = drop_call;
    return true;
}

// Says once why plain kernels run where cuDNN could have been expected.
static void note(struct cuda *s, const struct op *op, const char *why) {
    if (!*s->note)
        snprintf(s->note, sizeof s->note,
                 "%s of %lld heads of %lld, %lld tokens: a plain kernel, many times slower (%s)",
                 s->host.op_name(op->kind), (long long)op->heads, (long long)op->head_dim,
                 (long long)op->seq, why);
}

template <typename T> static constexpr enum dtype dtype_of(void) {
    return sizeof(T) == 4 ? DTYPE_F32 : DTYPE_BF16;
}
template <> constexpr enum dtype dtype_of<__half>(void) { return DTYPE_F16; }

template <typename T>
static int make(struct cuda *s, const struct op_call *c, struct cuda_made *made, struct err *e) {
    const struct op *op = c->op;
    const struct operand *at[ID_COUNT];
    if (!s->cudnn || !cuda_attention_fits(op, dtype_of<T>(), &s->choice) || op->batch == 0 ||
        op->stream != STREAM_COMPUTE)
        return 0;
    const struct cuda_part part = cuda_attention_part(op, &s->choice);
    operands_of(c, at);
    const struct attention_key key = key_of(s, op, dtype_of<T>(), at, part);
    const char *trouble = cudnn_ready(s);
    struct attention_plan *plan = NULL;
    if (!trouble && !aligned(at))
        trouble = "its operands are not aligned";
    if (!trouble && key.backward && op->seq % 128 != 0 && s->cudnn->version < FIRST_WITH_ANY_LENGTH)
        trouble = "before 9.15.1 cuDNN needs a multiple of 128";
    if (!trouble) {
        plan = plan_for(s->cudnn, &key, pieces_of(c, &key).workspace_bytes);
        if (!plan)
            return s->host.err_set(e, ERR_MEMORY, "no memory for an op of the cuda backend");
        trouble = plan->graph.plan ? NULL : plan->why;
    }
    if (!trouble && !bind_call(s, c, at, part, plan, made))
        trouble = "cuDNN does not take its addresses";
    if (trouble)
        note(s, op, trouble);
    return 0;
}

template <typename T> void cuda_add_fast_attention(struct cuda_table *t) {
    if (sizeof(T) == 4)
        return;
    t->fast[OP_ATTENTION] = make<T>;
    t->fast[OP_ATTENTION_BWD] = make<T>;
}

#else

template <typename T> void cuda_add_fast_attention(struct cuda_table *t) {
    (void)t;
}

#endif

template void cuda_add_fast_attention<float>(struct cuda_table *);
template void cuda_add_fast_attention<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_attention<__half>(struct cuda_table *);

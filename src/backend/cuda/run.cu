// run.cu - chooses the kernels of an op when a program is bound, and enqueues the op on its stream.
#include "backend/cuda/cuda.cuh"
#include "backend/joined.h"

#include <stdlib.h>

template <typename T> static struct cuda_table make_table(void) {
    struct cuda_table t = {};
    cuda_add_plain<T>(&t);
    cuda_add_rows<T>(&t);
    cuda_add_loss<T>(&t);
    cuda_add_sums<T>(&t);
    cuda_add_optimizer<T>(&t);
    cuda_add_matmul<T>(&t);
    cuda_add_attention<T>(&t);
    cuda_add_attention_bwd<T>(&t);
    cuda_add_fast_matmul<T>(&t);
    cuda_add_fast_attention<T>(&t);
    cuda_add_fast_cached<T>(&t);
    cuda_add_fast_argmax<T>(&t);
    cuda_add_fast_rows<T>(&t);
    cuda_add_fast_norm_bwd<T>(&t);
    cuda_add_fast_sums<T>(&t);
    cuda_add_fast_embed<T>(&t);
    cuda_add_fast_loss<T>(&t);
    cuda_add_fast_elements<T>(&t);
    cuda_add_fast_optimizer<T>(&t);
    return t;
}

// Filled when the shared object is loaded, constant from then on.
static const struct cuda_table table_f32 = make_table<float>();
static const struct cuda_table table_bf16 = make_table<__nv_bfloat16>();
static const struct cuda_table table_f16 = make_table<__half>();

// A joined op may have no kernel of its own: then its two ops run.
static bool is_whole(const struct cuda_table *t, const struct op_call *c) {
    return t->fn[c->op->kind] && !(c->op->kind == OP_MATMUL_DW && c->out[1].data);
}

bool cuda_has(enum op_kind kind) {
    return table_f32.fn[kind] || kind == OP_NORM_BWD || kind == OP_MATMUL_DX_ACT;
}

static const struct cuda_table *table_of(enum dtype type) {
    return type == DTYPE_BF16 ? &table_bf16 : type == DTYPE_F16 ? &table_f16 : &table_f32;
}

// Checks a call and finds the type of its activations (DTYPE_COUNT: it has none).
static int check(struct backend *b, const struct op_call *call, enum dtype *out, struct err *e) {
    struct cuda *s = (struct cuda *)b->state;
    const enum op_kind kind = call->op->kind;
    TRY(s->host.check_call(call, out, e));
    const enum dtype type = *out;
    if (type != DTYPE_COUNT && !(b->info.types >> type & 1))
        return s->host.err_set(e, ERR_UNSUPPORTED,
                               "%s: the cuda backend computes in fp32, bf16 and fp16, not %s",
                               s->host.op_name(kind), s->host.dtype_text(type));
    const uint64_t needed = cuda_scratch_bytes(call->op, type, &s->choice),
                   given = call->scratch.data ? (uint64_t)call->scratch.cols : 0;
    if (given < needed)
        return s->host.err_set(e, ERR_INTERNAL, "%s: %llu bytes of scratch; it needs %llu",
                               s->host.op_name(kind), (unsigned long long)given,
                               (unsigned long long)needed);
    if (kind == OP_ATTENTION || kind == OP_ATTENTION_BWD || kind == OP_ATTENTION_CACHED)
        return cuda_accepts_attention(s, call->op, e);
    return 0;
}

static void drop_parts(void *own) {
    struct joined *j = (struct joined *)own;
    for (struct op_call &call : j->call)
        cuda_unmake_part(&call);
    free(j);
}

static int run_parts(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct joined *j = (const struct joined *)cuda_own(c);
    for (const struct op_call &call : j->call)
        TRY(cuda_run_part(s, &call, stream, e));
    return 0;
}

static int make_parts(struct cuda *s, const struct op_call *c, enum dtype type,
                      struct cuda_made *made, struct err *e) {
    struct joined *j = (struct joined *)calloc(1, sizeof *j);
    if (!j || !joined_split(c, j)) {
        free(j);
        return s->host.err_set(e, ERR_MEMORY, "no memory for an op of the cuda backend");
    }
    *made = {run_parts, j, drop_parts};
    for (struct op_call &call : j->call)
        TRY(cuda_make_part(s, &call, type, e));
    return 0;
}

int cuda_make_part(struct cuda *s, struct op_call *call, enum dtype type, struct err *e) {
    const struct cuda_table *table = table_of(type);
    const enum op_kind kind = call->op->kind;
    struct cuda_made *made = (struct cuda_made *)calloc(1, sizeof *made);
    if (!made)
        return s->host.err_set(e, ERR_MEMORY, "no memory for an op of the cuda backend");
    call->made = made;
    if (!s->choice.plain && table->fast[kind])
        TRY(table->fast[kind](s, call, made, e));
    if (!made->run && !is_whole(table, call))
        return make_parts(s, call, type, made, e);
    if (!made->run)
        made->run = table->fn[kind];
    return 0;
}

void cuda_unmake_part(struct op_call *call) {
    struct cuda_made *made = (struct cuda_made *)call->made;
    if (made && made->drop)
        made->drop(made->own);
    free(made);
    call->made = NULL;
}

int cuda_run_part(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    return ((const struct cuda_made *)c->made)->run(s, c, stream, e);
}

int cuda_make(struct backend *b, struct op_call *call, struct err *e) {
    enum dtype type;
    ((struct cuda *)b->state)->leads = false; // to measure an algorithm is to run it
    TRY(check(b, call, &type, e));
    return cuda_make_part((struct cuda *)b->state, call, type, e);
}

void cuda_unmake(struct backend *b, struct op_call *call) {
    (void)b;
    cuda_unmake_part(call);
}

int cuda_run(struct backend *b, const struct op_call *call, struct err *e) {
    struct cuda *s = (struct cuda *)b->state;
    cudaStream_t stream = s->stream[call->op->stream];
    struct joined j;
    enum dtype type;
    if (call->op->stream == STREAM_COMPUTE) {
        s->follows = s->leads;
        s->leads = false;
    }
    if (call->made)
        return cuda_run_part(s, call, stream, e);
    TRY(check(b, call, &type, e));
    const struct cuda_table *table = table_of(type);
    if (is_whole(table, call) || !joined_split(call, &j))
        return table->fn[call->op->kind](s, call, stream, e);
    for (const struct op_call &part : j.call)
        TRY(table->fn[part.op->kind](s, &part, stream, e));
    return 0;
}

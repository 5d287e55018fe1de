// run.cu - chooses the kernels of an op when a program is bound, and enqueues the op on its stream.
#include "backend/cuda/cuda.cuh"

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
    cuda_add_fast_rows<T>(&t);
    cuda_add_fast_loss<T>(&t);
    cuda_add_fast_elements<T>(&t);
    cuda_add_fast_optimizer<T>(&t);
    return t;
}

// Filled when the shared object is loaded, constant from then on.
static const struct cuda_table table_f32 = make_table<float>();
static const struct cuda_table table_bf16 = make_table<__nv_bfloat16>();
static const struct cuda_table table_f16 = make_table<__half>();

bool cuda_has(enum op_kind kind) {
    return table_f32.fn[kind] != NULL;
}

// Checks a call and finds the table of its activations' type.
static int check(struct backend *b, const struct op_call *call, const struct cuda_table **table,
                 struct err *e) {
    struct cuda *s = (struct cuda *)b->state;
    const enum op_kind kind = call->op->kind;
    enum dtype type;
    TRY(s->host.check_call(call, &type, e));
    if (type != DTYPE_COUNT && !(b->info.types >> type & 1))
        return s->host.err_set(e, ERR_UNSUPPORTED,
                               "%s: the cuda backend computes in fp32, bf16 and fp16, not %s",
                               s->host.op_name(kind), s->host.dtype_text(type));
    *table = type == DTYPE_BF16 ? &table_bf16 : type == DTYPE_F16 ? &table_f16 : &table_f32;
    const uint64_t needed = cuda_scratch_bytes(call->op, type, &s->choice),
                   given = call->scratch.data ? (uint64_t)call->scratch.cols : 0;
    if (given < needed)
        return s->host.err_set(e, ERR_INTERNAL, "%s: %llu bytes of scratch; it needs %llu",
                               s->host.op_name(kind), (unsigned long long)given,
                               (unsigned long long)needed);
    if (kind == OP_ATTENTION || kind == OP_ATTENTION_BWD || kind == OP_ATTENTION_DECODE)
        return cuda_accepts_attention(s, call->op, e);
    return 0;
}

int cuda_make(struct backend *b, struct op_call *call, struct err *e) {
    struct cuda *s = (struct cuda *)b->state;
    const enum op_kind kind = call->op->kind;
    const struct cuda_table *table;
    TRY(check(b, call, &table, e));
    struct cuda_made *made = (struct cuda_made *)calloc(1, sizeof *made);
    if (!made)
        return s->host.err_set(e, ERR_MEMORY, "no memory for an op of the cuda backend");
    call->made = made;
    made->run = table->fn[kind];
    return !s->choice.plain && table->fast[kind] ? table->fast[kind](s, call, made, e) : 0;
}

void cuda_unmake(struct backend *b, struct op_call *call) {
    struct cuda_made *made = (struct cuda_made *)call->made;
    (void)b;
    if (made && made->drop)
        made->drop(made->own);
    free(made);
    call->made = NULL;
}

int cuda_run(struct backend *b, const struct op_call *call, struct err *e) {
    struct cuda *s = (struct cuda *)b->state;
    const struct cuda_made *made = (const struct cuda_made *)call->made;
    cudaStream_t stream = s->stream[call->op->stream];
    const struct cuda_table *table;
    if (made)
        return made->run(s, call, stream, e);
    TRY(check(b, call, &table, e));
    return table->fn[call->op->kind](s, call, stream, e);
}

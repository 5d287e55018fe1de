// run.cu - runs an op: checks the call, picks the table of the activations' type, and enqueues the
// op on its stream.
#include "backend/cuda/cuda.cuh"

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
    return t;
}

// Filled when the shared object is loaded, constant from then on.
static const struct cuda_table table_f32 = make_table<float>();
static const struct cuda_table table_bf16 = make_table<__nv_bfloat16>();
static const struct cuda_table table_f16 = make_table<__half>();

bool cuda_has(enum op_kind kind) {
    return table_f32.fn[kind] != NULL;
}

int cuda_run(struct backend *b, const struct op_call *call, struct err *e) {
    struct cuda *s = (struct cuda *)b->state;
    enum op_kind kind = call->op->kind;
    enum dtype type;
    TRY(s->host.check_call(call, &type, e));
    if (type != DTYPE_COUNT && !(b->info.types >> type & 1))
        return s->host.err_set(e, ERR_UNSUPPORTED,
                               "%s: the cuda backend computes in fp32, bf16 and fp16, not %s",
                               s->host.op_name(kind), s->host.dtype_text(type));
    const struct cuda_table *t = type == DTYPE_BF16  ? &table_bf16
                                 : type == DTYPE_F16 ? &table_f16
                                                     : &table_f32;
    return t->fn[kind](s, call, s->stream[call->op->stream], e);
}

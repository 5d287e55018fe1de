// reference.c - the reference backend: picks the float32 or float64 kernel by the type of the
// operands, and runs it on one thread.
//
// It defines what an op means in 16-bit types: the operands are widened to float32, the op computes
// in float32, and its results are rounded once. This takes memory in every call, which no other
// backend may do.
//
// Ops without a float type of their own (zero, copy, cast, clip, sum) are in plain.c, which the
// fast backend uses as well.
#include "backend/cpu/cpu.h"
#include "backend/cpu/plain.h"
#include "backend/cpu/ref.h"
#include "backend/joined.h"
#include "backend/operands.h"

#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- 16-bit types

struct widened {
    struct operand *at; // in the widened call
    struct operand was;
    bool output;
};

static void convert(const struct operand *to, const struct operand *from) {
    for (int64_t i = 0; i < from->rows; i++)
        dtype_convert((char *)to->data + (size_t)(i * to->ld) * dtype_bytes(to->dtype), to->dtype,
                      (char *)from->data + (size_t)(i * from->ld) * dtype_bytes(from->dtype),
                      from->dtype, (size_t)from->cols);
}

// An operand that is both input and output is widened once. Outputs are widened too, because an op
// may add to them or leave rows as they are.
static int widen(struct widened *list, int n, struct operand *o, bool output, struct err *e) {
    const struct operand was = *o;
    for (int i = 0; i < n; i++)
        if (list[i].was.data == was.data && list[i].was.ld == was.ld &&
            list[i].was.rows == was.rows && list[i].was.cols == was.cols) {
            *o = *list[i].at;
            list[i].output |= output;
            return n;
        }
    o->data = malloc((size_t)(was.rows * was.cols) * sizeof(float) + 1);
    if (!o->data)
        return err_set(e, ERR_MEMORY, "no memory to widen %lld x %lld elements",
                       (long long)was.rows, (long long)was.cols);
    o->dtype = DTYPE_F32, o->ld = was.cols;
    convert(o, &was);
    list[n] = (struct widened){o, was, output};
    return n + 1;
}

// Whether to widen an operand: only those with the type of weights and activations (letter f). An
// operand that is always bfloat16 (letter b) stays as it is.
static bool narrow(const struct operand *o, char letter) {
    return o->data && strchr("fFw", letter) && storage_plain(o->storage) &&
           op_wide_type(o->dtype) != o->dtype;
}

static int run_widened(const struct op_call *call, ref_fn *fn, struct err *e) {
    struct op_call wide = *call;
    const struct op_info *info = op_info(call->op->kind);
    struct widened list[OP_MAX_IN + OP_MAX_OUT];
    int n = 0, rc = 0;
    for (int i = 0; rc >= 0 && i < call->op->n_in; i++)
        if (narrow(&wide.in[i], info->types_in[i]) &&
            (rc = widen(list, n, &wide.in[i], false, e)) >= 0)
            n = rc;
    for (int i = 0; rc >= 0 && i < call->op->n_out; i++)
        if (narrow(&wide.out[i], info->types_out[i]) &&
            (rc = widen(list, n, &wide.out[i], true, e)) >= 0)
            n = rc;
    if (rc >= 0)
        rc = fn(&wide, e);
    for (int i = 0; i < n; i++) {
        if (rc == 0 && list[i].output)
            convert(&list[i].was, &(struct operand){.data = list[i].at->data,
                                                    .ld = list[i].was.cols,
                                                    .dtype = DTYPE_F32,
                                                    .rows = list[i].was.rows,
                                                    .cols = list[i].was.cols});
        free(list[i].at->data);
    }
    return rc;
}

static int run_plain(const struct op_call *call, enum dtype type, struct err *e) {
    enum op_kind kind = call->op->kind;
    if (kind == OP_ZERO)
        return plain_zero(call);
    if (kind == OP_COPY)
        return plain_copy(call, e);
    if (kind == OP_CAST)
        return plain_cast(call, e);
    if (kind == OP_CLIP)
        return plain_clip(call);
    if (kind == OP_SUM)
        return plain_sum(call);
    ref_fn *fn = NULL;
    if ((type == DTYPE_BF16 || type == DTYPE_F16) && ref_table_f32[kind])
        return run_widened(call, ref_table_f32[kind], e);
    if (type == DTYPE_F32)
        fn = ref_table_f32[kind];
    else if (type == DTYPE_F64)
        fn = ref_table_f64[kind];
    else if (type == DTYPE_COUNT)
        return 0; // every operand is empty
    if (!fn)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: the reference backend computes in fp32, fp64, bf16 and fp16, not %s",
                       op_info(kind)->name, dtype_text(type));
    return fn(call, e);
}

static int run(struct backend *b, const struct op_call *call, struct err *e) {
    (void)b;
    enum dtype type;
    TRY(backend_check_call(call, &type, e));
    struct joined j;
    if (!joined_split(call, &j))
        return run_plain(call, type, e);
    TRY(run_plain(&j.call[0], type, e));
    return run_plain(&j.call[1], type, e);
}

static int arena_take(struct backend *b, uint64_t bytes, void **out, struct err *e) {
    return mem_take(b->state, "arena", "reference arena", (size_t)bytes, out, e);
}

static void arena_give(struct backend *b, void *arena) {
    mem_give(b->state, arena);
}

static void close_backend(struct backend *b) {
    free(b);
}

int cpu_reference_open(struct backend **out, struct mem *mem, struct err *e) {
    struct backend *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(e, ERR_MEMORY, "no memory for the reference backend");
    b->name = b->isa = "reference";
    b->state = mem;
    b->arena_take = arena_take;
    b->arena_give = arena_give;
    b->close = close_backend;
    b->info = (struct device_info){.types = 1u << DTYPE_F32 | 1u << DTYPE_F64 | 1u << DTYPE_BF16 |
                                            1u << DTYPE_F16,
                                   .storages = 1u << STORAGE_INT8 | 1u << STORAGE_INT4,
                                   .memory_bytes = mem_machine_total_bytes(),
                                   .text = "plain loops on one thread"};
    b->products[DTYPE_F32] = b->products[DTYPE_F64] = "builtin";
    b->products[DTYPE_BF16] = b->products[DTYPE_F16] = "builtin";
    for (int kind = 0; kind < OP_COUNT; kind++)
        if (ref_table_f32[kind])
            b->run[kind] = run;
    b->run[OP_ZERO] = b->run[OP_COPY] = b->run[OP_CAST] = b->run[OP_CLIP] = b->run[OP_SUM] = run;
    b->run[OP_ADD_NORM] = b->run[OP_NORM_BWD] = run;
    b->run[OP_MATMUL_ACT] = b->run[OP_MATMUL_DX_ACT] = run;
    *out = b;
    return 0;
}

// reference.c - the reference backend: picks the float32 or float64 kernel by the operands' type,
// one thread.
//
// Ops without a float type of their own (zero, copy, cast, clip) are here, once; the fast backend
// shares clip.
#include "backend/cpu/cpu.h"
#include "backend/cpu/plain.h"
#include "backend/cpu/ref.h"
#include "backend/operands.h"

#include <stdlib.h>

static int run(struct backend *b, const struct op_call *call, struct err *e) {
    (void)b;
    enum dtype type;
    TRY(backend_check_call(call, &type, e));
    enum op_kind kind = call->op->kind;
    if (kind == OP_ZERO)
        return plain_zero(call);
    if (kind == OP_COPY)
        return plain_copy(call, e);
    if (kind == OP_CAST)
        return plain_cast(call, e);
    if (kind == OP_CLIP)
        return plain_clip(call);
    ref_fn *fn = NULL;
    if (type == DTYPE_F32)
        fn = ref_table_f32[kind];
    else if (type == DTYPE_F64)
        fn = ref_table_f64[kind];
    else if (type == DTYPE_COUNT)
        return 0; // every operand is empty
    if (!fn)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: the reference backend computes in fp32 and fp64, not %s",
                       op_info(kind)->name, dtype_text(type));
    return fn(call, e);
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
    b->name = "reference";
    b->state = mem;
    b->arena_take = arena_take;
    b->arena_give = arena_give;
    b->close = close_backend;
    for (int kind = 0; kind < OP_COUNT; kind++)
        if (ref_table_f32[kind])
            b->run[kind] = run;
    b->run[OP_ZERO] = b->run[OP_COPY] = b->run[OP_CAST] = b->run[OP_CLIP] = run;
    *out = b;
    return 0;
}

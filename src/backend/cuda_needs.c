// cuda_needs.c - see cuda_needs.h.
#include "backend/cuda_needs.h"

#include <string.h>

static enum dtype type_of(const struct program *p, const struct op *op) {
    const struct op_info *info = op_info(op->kind);
    for (int i = 0; i < op->n_in; i++)
        if (op->in[i] >= 0 && strchr("fF", info->types_in[i]))
            return p->tensors[op->in[i]].dtype;
    for (int i = 0; i < op->n_out; i++)
        if (op->out[i] >= 0 && strchr("fF", info->types_out[i]))
            return p->tensors[op->out[i]].dtype;
    return DTYPE_F32;
}

uint64_t cuda_scratch(const void *arg, const struct program *p, const struct op *op) {
    return cuda_scratch_bytes(op, type_of(p, op), arg);
}

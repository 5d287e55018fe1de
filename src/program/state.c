// state.c - Adam's moments in fewer bytes: bfloat16, or 8 bits in blocks with a scale each
// (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022).
//
// This pass edits what update.c made. An ADAMW op becomes one of the kinds that read and write
// narrow moments, and the moments change their type. 8-bit moments also get a tensor of scales,
// [blocks, 2], for m and v. Weights and masters stay as they are. backend/moments.h defines what
// the bytes mean.
//
// Rounding is stochastic. The random draws depend on (seed, step, tensor, element). The host puts
// seed and step into HYPER_DRAW. The op's salt stands for the tensor and this rank's part of it.
#include "program/state.h"

#include "base/hash.h"

#include <stdio.h>
#include <string.h>

// Smaller tensors keep float32, as in the paper. Biases and norms are a thousandth of the bytes,
// and an update of one of their elements moves a whole channel.
enum { LEAST_INT8 = 4096 };

// Operand indices of ADAMW (ops.def).
enum { IN_W = 3, IN_M = 4, IN_V = 5, IN_MASTER = 6, OUT_MASTER = 3 };

static void retype(struct tensor *t, enum dtype type) {
    t->bytes = t->bytes / dtype_bytes(t->dtype) * dtype_bytes(type);
    t->dtype = type;
}

static uint32_t salt_of(const struct tensor *w) {
    uint64_t parts[1 + TENSOR_MAX_RANK] = {hash_u64(w->name, strlen(w->name))};
    for (int i = 0; i < w->rank; i++)
        parts[1 + i] = (uint64_t)w->begin[i];
    return (uint32_t)hash_u64(parts, sizeof *parts * (size_t)(1 + w->rank));
}

// Blocks never cross ranks. Each shard has separate scales, and the whole tensor's scales are those
// of the shards in order.
static int add_scales(struct program *p, const struct tensor *w) {
    int64_t all = 1, before = 0, local = tensor_elements(w);
    for (int i = 0; i < w->rank; i++) {
        before = before * w->shape[i] + w->begin[i];
        all *= w->shape[i];
    }
    int64_t blocks = (local + ADAMW_BLOCK - 1) / ADAMW_BLOCK;
    char name[200];
    snprintf(name, sizeof name, "adam.scales.%s", w->name);
    int layer = w->layer,
        t = program_tensor_2d(p, name, DTYPE_F32, CLASS_OPTIMIZER, LIFE_RUN, blocks, 2);
    if (t >= 0) {
        p->tensors[t].layer = layer;
        p->tensors[t].shape[0] = blocks * (all / local);
        p->tensors[t].begin[0] = blocks * (before / local);
    }
    return t;
}

static void to_int8(struct program *p, struct op *op) {
    // A copy, because adding a tensor may move the others.
    const struct tensor w = p->tensors[op->in[IN_W]];
    int scales = add_scales(p, &w);
    if (scales < 0)
        return;
    op->kind = OP_ADAMW_INT8;
    retype(&p->tensors[op->in[IN_M]], DTYPE_I8);
    retype(&p->tensors[op->in[IN_V]], DTYPE_U8);
    if (op->n_in == IN_MASTER)
        op_in(op, -1);
    if (op->n_out == OUT_MASTER)
        op_out(op, -1);
    op_in(op, scales);
    op_out(op, scales);
}

int state_apply(struct program *p, int update, enum state_type type, struct err *e) {
    const struct segment *s = &p->segments[update];
    for (int i = 0; type != STATE_FP32 && i < s->n_ops; i++) {
        struct op *op = &s->ops[i];
        if (op->kind != OP_ADAMW)
            continue;
        op->salt = salt_of(&p->tensors[op->in[IN_W]]);
        if (type == STATE_INT8 && op->n >= LEAST_INT8) {
            to_int8(p, op);
        } else if (type == STATE_BF16) {
            op->kind = OP_ADAMW_BF16;
            retype(&p->tensors[op->in[IN_M]], DTYPE_BF16);
            retype(&p->tensors[op->in[IN_V]], DTYPE_BF16);
        }
    }
    return program_finish(p, e);
}

// state.c - Adam's moments in fewer bytes: bfloat16, or 8 bits in blocks with a scale each
// (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022).
//
// This pass edits what update.c made. An ADAMW op becomes one of the kinds that read and write
// narrow moments, and the moments change their type. 8-bit moments also get a tensor of scales,
// [blocks, 2], for m and v. Weights and masters stay as they are. backend/moments.h defines what
// the bytes mean.
//
// Rounding is stochastic. The random draws depend on (seed, step, tensor, element). The host puts
// seed and step into HYPER_DRAW. The op's salt stands for the tensor, or for this rank's slice of
// it.
//
// Blocks are those of the logical tensor. Where ranks divide a block between them (a slice whose
// rows are not a multiple of 256), the moments stay float32.
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

// The name of the logical weight that an op updates: that of its first moment, "adam.m.NAME".
static const char *weight_name(const struct program *p, const struct op *op) {
    return p->tensors[op->in[IN_M]].name + strlen("adam.m.");
}

// Of a slice the draws are the slice's own. Of a run of elements, they are those of the whole: the
// op counts its elements from `first` on.
static void set_draws(const struct program *p, struct op *op) {
    const struct tensor_share *s = p->tensors[op->in[IN_M]].share;
    const char *name = weight_name(p, op);
    uint64_t parts[1 + SHARE_SPANS_MOST] = {hash_u64(name, strlen(name))};
    for (int i = 0; s && s->axis >= 0 && i < s->n_spans; i++)
        parts[1 + i] = (uint64_t)s->spans[i].begin;
    op->salt = (uint32_t)hash_u64(parts, sizeof parts);
    op->first = s ? s->first : 0;
}

// Whether blocks of 256 elements of the whole tensor stay whole on this rank. *out gets the share
// of the scales, if it is one.
static bool keeps_blocks(const struct tensor *m, struct tensor_share *out) {
    return !m->share || share_blocks(m->share, ADAMW_BLOCK, 2, out);
}

static int add_scales(struct program *p, const struct op *op, const struct tensor_share *share) {
    const struct tensor m = p->tensors[op->in[IN_M]];
    const int64_t blocks = (tensor_elements(&m) + ADAMW_BLOCK - 1) / ADAMW_BLOCK;
    char name[200];
    snprintf(name, sizeof name, "adam.scales.%s", weight_name(p, op));
    int t = program_tensor_2d(p, name, DTYPE_F32, CLASS_OPTIMIZER, LIFE_RUN, blocks, 2);
    if (t >= 0)
        p->tensors[t].layer = m.layer, p->tensors[t].replica = m.replica;
    if (t >= 0 && m.share)
        p->tensors[t].share = share_make(p, share);
    return t;
}

static void to_int8(struct program *p, struct op *op, const struct tensor_share *share) {
    int scales = add_scales(p, op, share);
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
        struct tensor_share share;
        const struct tensor *m = &p->tensors[op->in[IN_M]];
        set_draws(p, op);
        if (type == STATE_INT8 && (m->share ? share_all(m->share) : op->n) >= LEAST_INT8 &&
            keeps_blocks(m, &share)) {
            to_int8(p, op, &share);
        } else if (type == STATE_BF16) {
            op->kind = OP_ADAMW_BF16;
            retype(&p->tensors[op->in[IN_M]], DTYPE_BF16);
            retype(&p->tensors[op->in[IN_V]], DTYPE_BF16);
        }
    }
    return program_finish(p, e);
}

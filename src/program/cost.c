// cost.c - what an op costs, from its sizes alone: floating-point operations, and the fewest bytes
// moved through memory.
//
// Each distinct input and each output counts once, an accumulated output twice. Kernels may move
// more bytes. docs/speed-log.md records the ratio of measured time to this minimum.
#include "program/program.h"

static double bytes_of(const struct program *p, int tensor) {
    return (double)tensor_bytes(&p->tensors[tensor]);
}

// Bytes of an element, with its part of the scales if the tensor is quantized.
static double element_bytes(const struct program *p, int tensor) {
    const int64_t n = tensor_elements(&p->tensors[tensor]);
    return n > 0 ? bytes_of(p, tensor) / (double)n : 0;
}

static double touched(const struct program *p, const struct op *op) {
    double bytes = 0;
    for (int i = 0; i < op->n_in; i++) {
        if (op->in[i] < 0)
            continue;
        const double element = element_bytes(p, op->in[i]);
        if (op->kind == OP_EMBED && (i == 1 || i == 3)) // reads the rows it needs, not all
            bytes += (double)op->m * (double)op->n * element;
        else if (op->kind == OP_NLL && i == 0) // reads one element of each row
            bytes += (double)op->m * element;
        else if (op->kind == OP_KV_APPEND && i >= 4) // only writes to the caches
            continue;
        else if (op->kind == OP_ATTENTION_CACHED && op->m < op->batch && (i == 1 || i == 2))
            bytes += bytes_of(p, op->in[i]) * (double)op->m / (double)op->batch;
        else
            bytes += bytes_of(p, op->in[i]);
    }
    for (int i = 0; i < op->n_out; i++) {
        if (op->out[i] < 0)
            continue;
        double n = bytes_of(p, op->out[i]);
        if (op->kind == OP_KV_APPEND) // writes one row per sequence, not the whole cache
            n = (double)op->m * (double)op->n * (double)dtype_bytes(p->tensors[op->out[i]].dtype);
        bool adds = op->flags & OP_ACCUMULATE && !(i == 0 && op->kind == OP_NORM_BWD);
        bytes += adds ? 2 * n : n;
    }
    return bytes;
}

// Bytes one rank sends with ring algorithms (Thakur et al., 2005). `bytes`: size of the whole
// tensor.
static double ring_bytes(const struct program *p, const struct op *op, double bytes) {
    int n = op->group >= 0 ? p->groups[op->group].n_ranks : 1;
    double share = n > 1 ? (double)(n - 1) / n : 0;
    return op->kind == OP_ALL_REDUCE ? 2 * share * bytes : share * bytes;
}

// Floating-point operations of ops whose count is a constant times rows x columns.
static const double per_element[OP_COUNT] = {
    [OP_LOSS] = 8,     [OP_ADD_NORM] = 9, [OP_LOG_SOFTMAX] = 4, [OP_LOG_SOFTMAX_BWD] = 4,
    [OP_ACT] = 16,     [OP_ACT_BWD] = 16, [OP_SWIGLU] = 16,     [OP_SWIGLU_BWD] = 16,
    [OP_ADD] = 1,      [OP_ADD_BIAS] = 1, [OP_MUL] = 1,         [OP_COPY] = 1,
    [OP_EMBED] = 1,    [OP_EMBED_DW] = 1, [OP_BIAS_DB] = 1,     [OP_ARGMAX] = 1,
    [OP_DROPOUT] = 10, [OP_LOSS_KL] = 16,
};

// The same for ops on a weight, whose elements are all counted in op->n.
static const double per_weight[OP_COUNT] = {
    [OP_GRAD_SQNORM] = 2, [OP_ADAMW] = 14, [OP_GRAD_SCALE] = 1, [OP_ADAM_DECAY] = 1,
    [OP_ADAM_M] = 3,      [OP_ADAM_V] = 4, [OP_ADAM_STEP] = 6,
    [OP_ADAMW_BF16] = 30, // adds a random draw and two roundings
    [OP_ADAMW_INT8] = 54, // adds a random draw, two decodings, two encodings with square roots
};

struct op_cost op_cost_of(const struct program *p, const struct op *op) {
    double rows = (double)op->m, cols = (double)op->n;
    struct op_cost c = {.bytes = touched(p, op),
                        .flops = per_element[op->kind] * rows * cols + per_weight[op->kind] * cols};
    // Causal attention computes half of the T x T scores, including the diagonal.
    double pairs =
        (double)op->batch * (double)op->heads * (double)op->seq * ((double)op->seq + 1) / 2;
    switch (op->kind) {
    case OP_MATMUL:
    case OP_MATMUL_DX:
    case OP_MATMUL_DW:
        c.flops = 2 * rows * cols * (double)op->k;
        break;
    case OP_MATMUL_DX_ACT:
        c.flops = 2 * rows * cols * (double)op->k + 16 * rows * (double)op->k;
        break;
    case OP_MATMUL_ACT:
        c.flops = 2 * rows * cols * (double)op->k + 16 * rows * cols;
        break;
    case OP_ATTENTION: // two products: q k' and p v
        c.flops = 4 * pairs * (double)op->head_dim;
        break;
    case OP_ATTENTION_BWD: // five products: the scores again, dp, dv, dq, dk
        c.flops = 10 * pairs * (double)op->head_dim;
        break;
    case OP_ATTENTION_CACHED: // with a full cache
        c.flops = 4 * rows * (double)op->heads * (double)op->seq * (double)op->head_dim;
        break;
    case OP_NORM:
    case OP_NORM_DX:
    case OP_NORM_DW:
        c.flops = 8 * rows * cols * (double)op_norm_heads(op);
        break;
    case OP_NORM_BWD:
        c.flops = 16 * rows * cols * (double)op_norm_heads(op);
        break;
    case OP_ROPE:
        c.flops = 3 * rows * (double)(op->heads * op->head_dim);
        break;
    case OP_SEND:
        c.comm_bytes = c.bytes;
        break;
    case OP_ALL_REDUCE:
        c.comm_bytes = ring_bytes(p, op, c.bytes / 2); // in and out are the same tensor
        break;
    case OP_ALL_GATHER:
        c.comm_bytes = ring_bytes(p, op, bytes_of(p, op->out[0]));
        break;
    case OP_REDUCE_SCATTER:
        c.comm_bytes = ring_bytes(p, op, bytes_of(p, op->in[0]));
        break;
    default:
        break;
    }
    return c;
}

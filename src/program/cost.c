// cost.c - what an op costs from its sizes alone: floating-point operations, and the fewest bytes
// through memory.
//
// Bytes count each distinct input once and each output once (an accumulated output twice). Kernels
// may move more; the ratio of measured time to this floor is what docs/speed-log.md records.
#include "program/program.h"

static double touched(const struct program *p, const struct op *op) {
    double bytes = 0;
    for (int i = 0; i < op->n_in; i++)
        if (op->in[i] >= 0) {
            const struct tensor *t = &p->tensors[op->in[i]];
            double n = (double)tensor_elements(t) * (double)dtype_bytes(t->dtype);
            // A lookup reads the rows it needs, not the table.
            if (op->kind == OP_EMBED && (i == 1 || i == 3))
                n = (double)op->m * (double)op->n * (double)dtype_bytes(t->dtype);
            if (op->kind == OP_NLL && i == 0) // one element of each row
                n = (double)op->m * (double)dtype_bytes(t->dtype);
            bytes += n;
        }
    for (int i = 0; i < op->n_out; i++)
        if (op->out[i] >= 0) {
            const struct tensor *t = &p->tensors[op->out[i]];
            double n = (double)tensor_elements(t) * (double)dtype_bytes(t->dtype);
            if (op->kind == OP_KV_APPEND) // one row per sequence, not the cache
                n = (double)op->m * (double)op->n * (double)dtype_bytes(t->dtype);
            bytes += op->flags & OP_ACCUMULATE ? 2 * n : n;
        }
    return bytes;
}

// Ring algorithms: what one rank sends, in bytes of the whole tensor (Thakur et al., 2005).
static double ring_bytes(const struct program *p, const struct op *op, double bytes) {
    int n = op->group >= 0 ? p->groups[op->group].n_ranks : 1;
    double share = n > 1 ? (double)(n - 1) / n : 0;
    return op->kind == OP_ALL_REDUCE ? 2 * share * bytes : share * bytes;
}

struct op_cost op_cost_of(const struct program *p, const struct op *op) {
    struct op_cost c = {.bytes = touched(p, op)};
    double rows = (double)op->m, cols = (double)op->n;
    // Causal attention computes half of the T x T scores (and the diagonal).
    double pairs =
        (double)op->batch * (double)op->heads * (double)op->seq * ((double)op->seq + 1) / 2;
    switch (op->kind) {
    case OP_MATMUL:
    case OP_MATMUL_DX:
    case OP_MATMUL_DW:
        c.flops = 2 * rows * cols * (double)op->k;
        break;
    case OP_MATMUL_ACT:
        c.flops = 2 * rows * cols * (double)op->k + 16 * rows * cols;
        break;
    case OP_ATTENTION: // q k' and p v
        c.flops = 4 * pairs * (double)op->head_dim;
        break;
    case OP_ATTENTION_BWD: // scores again, dp, dv, dq, dk
        c.flops = 10 * pairs * (double)op->head_dim;
        break;
    case OP_ATTENTION_DECODE:
        c.flops =
            4 * (double)op->batch * (double)op->heads * (double)op->seq * (double)op->head_dim;
        break;
    case OP_NORM:
    case OP_NORM_DX:
    case OP_NORM_DW:
        c.flops = 8 * rows * cols * (double)op_norm_heads(op);
        break;
    case OP_LOSS:
        c.flops = 8 * rows * cols;
        break;
    case OP_ADD_NORM:
        c.flops = 9 * rows * cols;
        break;
    case OP_LOG_SOFTMAX:
    case OP_LOG_SOFTMAX_BWD:
        c.flops = 4 * rows * cols;
        break;
    case OP_ACT:
    case OP_ACT_BWD:
    case OP_SWIGLU:
    case OP_SWIGLU_BWD:
        c.flops = 16 * rows * cols;
        break;
    case OP_ADD:
    case OP_ADD_BIAS:
    case OP_MUL:
    case OP_COPY:
    case OP_EMBED:
    case OP_EMBED_DW:
    case OP_BIAS_DB:
    case OP_ARGMAX:
        c.flops = rows * cols;
        break;
    case OP_ROPE:
        c.flops = 3 * rows * (double)(op->heads * op->head_dim);
        break;
    case OP_GRAD_SQNORM:
        c.flops = 2 * cols;
        break;
    case OP_ADAMW:
        c.flops = 14 * cols;
        break;
    case OP_GRAD_SCALE:
    case OP_ADAM_DECAY:
        c.flops = cols;
        break;
    case OP_ADAM_M:
        c.flops = 3 * cols;
        break;
    case OP_ADAM_V:
        c.flops = 4 * cols;
        break;
    case OP_ADAM_STEP:
        c.flops = 6 * cols;
        break;
    case OP_ADAMW_BF16: // and a draw, two roundings
        c.flops = 30 * cols;
        break;
    case OP_ADAMW_INT8: // and a draw, two decodings, two encodings with their roots
        c.flops = 54 * cols;
        break;
    case OP_SEND:
        c.comm_bytes = c.bytes;
        break;
    case OP_ALL_REDUCE:
        c.comm_bytes = ring_bytes(p, op, c.bytes / 2); // in and out are the same tensor
        break;
    case OP_ALL_GATHER:
    case OP_REDUCE_SCATTER: {
        int full = op->kind == OP_ALL_GATHER ? op->out[0] : op->in[0];
        const struct tensor *t = &p->tensors[full];
        c.comm_bytes =
            ring_bytes(p, op, (double)tensor_elements(t) * (double)dtype_bytes(t->dtype));
        break;
    }
    default:
        break;
    }
    return c;
}

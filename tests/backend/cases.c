// cases.c - the table of cases, and operands for them. See cases.h.
#include "backend/cases.h"

#include "base/rng.h"
#include "model/shape.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cases_table.inc"

size_t case_count(void) {
    return sizeof all_cases / sizeof *all_cases;
}

const struct backend_case *case_at(size_t i) {
    return &all_cases[i];
}

void case_name(const struct backend_case *c, char *out, size_t bytes) {
    snprintf(out, bytes,
             "%s m=%" PRId64 " n=%" PRId64 " k=%" PRId64 " B=%" PRId64 " T=%" PRId64 " H=%" PRId64
             " G=%" PRId64 " D=%" PRId64 " act=%d flags=%u options=%u",
             op_info(c->kind)->name, c->m, c->n, c->k, c->batch, c->seq, c->heads, c->kv_heads,
             c->head_dim, c->act, c->flags, c->options);
}

// ---------------------------------------------------------------- operands of an op

enum fill {
    FILL_POISON,  // NaN: the op must write it
    FILL_NORMAL,  // standard normal
    FILL_WIDE,    // normal, scaled by 4: reaches the tails of activations
    FILL_NEAR_1,  // 1 + normal / 8: norm weights
    FILL_SQUARE,  // squares of normals: second moments
    FILL_SMALL,   // normal / 100: gradients' moments
    FILL_IDS,     // [0, limit)
    FILL_TARGETS, // [0, limit), some negative with CASE_UNTRAINED
    FILL_COUNT,   // 0, 1, 2, ... modulo limit
    FILL_STARTS,  // first column of each row's document
    FILL_FREQ,    // inverse frequencies
    FILL_HYPER,
    FILL_CLIP,
    FILL_CODES, // any 8 bits
    FILL_LATER, // another op's result: case_open runs it
};

static struct case_operand *add_operand(struct case_operand *list, int *n, char type, int64_t rows,
                                        int64_t columns, int fill) {
    struct case_operand *o = &list[(*n)++];
    *o = (struct case_operand){
        .type = type, .rows = rows, .columns = columns, .ld = columns, .fill = fill};
    o->view_of = o->same_as = -1;
    return o;
}
#define IN(type, rows, columns, fill)  add_operand(r->in, &r->n_in, type, rows, columns, fill)
#define OUT(type, rows, columns, fill) add_operand(r->out, &r->n_out, type, rows, columns, fill)

// A vector has no gaps between rows: it is one row.
static int output_fill(const struct backend_case *c) {
    return c->flags & OP_ACCUMULATE ? FILL_NORMAL : FILL_POISON;
}

static void describe_matmul(struct case_run *r, const struct backend_case *c) {
    bool in_out = c->flags & OP_IN_OUT;
    int64_t w_rows = in_out ? c->k : c->n, w_columns = in_out ? c->n : c->k;
    if (c->kind == OP_MATMUL || c->kind == OP_MATMUL_ACT) {
        IN('f', c->m, c->k, FILL_NORMAL);
        IN('f', w_rows, w_columns, FILL_NORMAL);
        IN('f', 1, c->n, FILL_NORMAL)->absent = c->options & CASE_BARE;
        OUT('f', c->m, c->n, output_fill(c));
        if (c->kind == OP_MATMUL_ACT)
            OUT('f', c->m, c->n, FILL_POISON);
    } else if (c->kind == OP_MATMUL_DX || c->kind == OP_MATMUL_DX_ACT) {
        IN('f', c->m, c->n, FILL_NORMAL);
        IN('f', w_rows, w_columns, FILL_NORMAL);
        if (c->kind == OP_MATMUL_DX_ACT)
            IN('f', c->m, c->k, FILL_NORMAL);
        OUT('f', c->m, c->k, output_fill(c));
    } else {
        IN('f', c->m, c->k, FILL_NORMAL);
        IN('f', c->m, c->n, FILL_NORMAL);
        OUT('r', w_rows, w_columns, output_fill(c));
        OUT('r', 1, c->n, output_fill(c))->absent = c->options & CASE_BARE;
    }
}

static void describe_norm(struct case_run *r, const struct backend_case *c) {
    int64_t heads = c->heads > 1 ? c->heads : 1, columns = c->n * heads, rows = c->m * heads;
    IN('f', c->m, columns, FILL_NORMAL); // x, or dy
    if (c->kind == OP_ADD_NORM) {
        IN('f', c->m, columns, FILL_NORMAL);
        OUT('f', c->m, columns, FILL_POISON);
    }
    if (c->kind == OP_NORM || c->kind == OP_ADD_NORM) {
        IN('f', 1, c->n, FILL_NEAR_1);
        IN('f', 1, c->n, FILL_NORMAL)->absent = c->options & CASE_BARE;
        OUT('f', c->m, columns, FILL_POISON);
        OUT('r', rows, 2, FILL_POISON);
        return;
    }
    IN('f', c->m, columns, FILL_NORMAL); // x
    if (c->kind == OP_NORM_DX || c->kind == OP_NORM_BWD) {
        IN('f', 1, c->n, FILL_NEAR_1);
        IN('r', rows, 2, FILL_LATER);
        if (c->kind == OP_NORM_BWD && c->options & CASE_IN_PLACE)
            IN('f', c->m, columns, FILL_NORMAL);
        OUT('f', c->m, columns, output_fill(c))->same_as =
            c->kind == OP_NORM_BWD && c->options & CASE_IN_PLACE ? 4 : -1;
        if (c->kind == OP_NORM_BWD) {
            OUT('r', 1, c->n, output_fill(c));
            OUT('r', 1, c->n, output_fill(c))->absent = c->options & CASE_BARE;
        }
    } else {
        IN('r', rows, 2, FILL_LATER);
        OUT('r', 1, c->n, output_fill(c));
        OUT('r', 1, c->n, output_fill(c))->absent = c->options & CASE_BARE;
    }
}

// q, k, v or their gradients: three operands, or columns of the first one's memory.
static void describe_heads(struct case_run *r, const struct backend_case *c, bool out) {
    int64_t rows = c->batch * c->seq, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    struct case_operand *list = out ? r->out : r->in;
    int *n = out ? &r->n_out : &r->n_in, first = *n;
    for (int i = 0; i < 3; i++) {
        struct case_operand *o =
            add_operand(list, n, 'f', rows, i == 0 ? q : kv, out ? FILL_POISON : FILL_NORMAL);
        if (!(c->options & CASE_PACKED))
            continue;
        o->ld = q + 2 * kv;
        o->first_column = i == 0 ? 0 : q + (i - 1) * kv;
        o->view_of = i == 0 ? -1 : first;
    }
}

static void describe_attention(struct case_run *r, const struct backend_case *c) {
    int64_t rows = c->batch * c->seq, q = c->heads * c->head_dim;
    bool bwd = c->kind == OP_ATTENTION_BWD;
    if (bwd)
        IN('f', rows, q, FILL_NORMAL);
    describe_heads(r, c, false);
    if (bwd) {
        IN('f', rows, q, FILL_LATER);
        IN('r', 1, c->batch * c->heads * c->seq, FILL_LATER);
    }
    IN('i', 1, rows, FILL_STARTS)->absent = c->options & CASE_BARE;
    if (bwd)
        describe_heads(r, c, true);
    else {
        OUT('f', rows, q, FILL_POISON);
        OUT('r', 1, c->batch * c->heads * c->seq, FILL_POISON);
    }
}

static void describe_cache(struct case_run *r, const struct backend_case *c) {
    int64_t kv = c->kv_heads * c->head_dim, q = c->heads * c->head_dim, cells = c->batch * c->seq;
    if (c->kind == OP_KV_APPEND) {
        r->op.m = c->batch;
        IN('f', c->batch, kv, FILL_NORMAL);
        IN('f', c->batch, kv, FILL_NORMAL);
        IN('i', 1, c->batch, FILL_COUNT)->limit = c->batch; // no two rows have one place
        IN('i', 1, c->batch, FILL_IDS)->limit = c->seq;
        IN('f', cells, kv, FILL_NORMAL);
        IN('f', cells, kv, FILL_NORMAL);
        OUT('f', cells, kv, FILL_NORMAL)->same_as = 4;
        OUT('f', cells, kv, FILL_NORMAL)->same_as = 5;
        return;
    }
    const int64_t rows = r->op.m = 2 * c->batch + 1;
    IN('f', rows, q, FILL_NORMAL);
    IN('f', cells, kv, FILL_NORMAL);
    IN('f', cells, kv, FILL_NORMAL);
    IN('i', 1, rows, FILL_TARGETS)->limit = c->batch; // negative: the row is idle
    IN('i', 1, rows, FILL_IDS)->limit = c->seq;
    OUT('f', rows, q, FILL_POISON);
}

static void describe_tables(struct case_run *r, const struct backend_case *c) {
    // A part of a table has rows from the middle on: some ids are before it, in it, and behind it.
    const int64_t ids = c->flags & OP_PART ? 2 * c->k : c->k;
    r->op.first = c->flags & OP_PART ? c->k / 2 : 0;
    if (c->kind == OP_EMBED) {
        IN('i', 1, c->m, FILL_IDS)->limit = ids;
        IN('f', c->k, c->n, FILL_NORMAL);
        IN('i', 1, c->m, FILL_COUNT)->limit = 6;
        IN('f', 6, c->n, FILL_NORMAL);
        r->in[2].absent = r->in[3].absent = c->options & CASE_BARE;
        r->op.positions = 6;
        OUT('f', c->m, c->n, FILL_POISON);
    } else if (c->kind == OP_EMBED_DW) {
        IN('i', 1, c->m, FILL_TARGETS)->limit = ids;
        IN('f', c->m, c->n, FILL_NORMAL);
        OUT('r', c->k, c->n, output_fill(c));
    } else {
        IN('f', c->k, c->n, FILL_NORMAL);
        IN('i', 1, c->m, FILL_IDS)->limit = c->k;
        OUT('f', c->m, c->n, FILL_POISON);
    }
}

static void describe_loss_step(struct case_run *r, const struct backend_case *c) {
    if (c->kind == OP_LOG_SOFTMAX) {
        IN('f', c->m, c->n, FILL_WIDE);
        OUT('r', c->m, c->n, FILL_POISON);
    } else if (c->kind == OP_NLL) {
        IN('r', c->m, c->n, FILL_NORMAL);
        IN('i', 1, c->m, FILL_TARGETS)->limit = c->n;
        OUT('r', 1, c->m, FILL_POISON);
    } else if (c->kind == OP_NLL_BWD) {
        IN('i', 1, c->m, FILL_TARGETS)->limit = c->n;
        IN('d', 1, HYPER_COUNT, FILL_HYPER);
        OUT('r', c->m, c->n, FILL_POISON);
    } else {
        IN('r', c->m, c->n, FILL_NORMAL);
        IN('r', c->m, c->n, FILL_LATER);
        OUT('f', c->m, c->n, FILL_POISON);
    }
}

// Columns from n/2 on, of twice as many: some targets are before them, here, and behind them.
static void describe_loss_part(struct case_run *r, const struct backend_case *c) {
    enum { PARTS = 2 };
    const bool stats = c->kind == OP_LOSS_STATS;
    r->op.first = c->n / 2, r->op.k = 2 * c->n, r->op.batch = PARTS;
    IN('f', c->m, c->n, stats ? FILL_WIDE : FILL_NORMAL);
    if (!stats)
        IN('r', PARTS * c->m, 3, FILL_NEAR_1);
    IN('i', 1, c->m, FILL_TARGETS)->limit = 2 * c->n;
    if (stats) {
        OUT('r', c->m, 3, FILL_POISON);
        return;
    }
    IN('d', 1, HYPER_COUNT, FILL_HYPER);
    OUT('f', c->m, c->n, FILL_NORMAL)->same_as = 0;
    OUT('r', 1, c->m, FILL_POISON);
}

static void describe_loss(struct case_run *r, const struct backend_case *c) {
    if (c->kind == OP_LOSS_SUM) {
        IN('r', 1, c->m, FILL_SQUARE);
        IN('i', 1, c->m, FILL_TARGETS)->limit = 9;
        OUT('d', 1, RESULT_COUNT, FILL_NORMAL);
        return;
    }
    if (c->kind == OP_LOSS_STATS || c->kind == OP_LOSS_PART) {
        describe_loss_part(r, c);
        return;
    }
    if (c->kind != OP_LOSS && c->kind != OP_LOSS_KL) {
        describe_loss_step(r, c);
        return;
    }
    IN('f', c->m, c->n, FILL_WIDE);
    if (c->kind == OP_LOSS_KL)
        IN('f', c->m, c->n, FILL_WIDE);
    IN('i', 1, c->m, FILL_TARGETS)->limit = c->n;
    IN('d', 1, HYPER_COUNT, FILL_HYPER);
    OUT('f', c->m, c->n, FILL_WIDE)->same_as = 0;
    OUT('r', 1, c->m, FILL_POISON);
}

// Moments in the type of the op; each block of 8-bit moments has two scales.
static void describe_adamw(struct case_run *r, const struct backend_case *c) {
    bool bf16 = c->kind == OP_ADAMW_BF16, int8 = c->kind == OP_ADAMW_INT8;
    char m = bf16 ? 'b' : int8 ? 'c' : 'r', v = bf16 ? 'b' : int8 ? 'u' : 'r';
    bool master = c->options & CASE_MASTER;
    IN('d', 1, HYPER_COUNT, FILL_HYPER);
    IN('d', 1, CLIP_COUNT, FILL_CLIP);
    IN('f', 1, c->n, FILL_NORMAL);
    IN(m, 1, c->n, int8 ? FILL_CODES : FILL_SMALL);
    IN(v, 1, c->n, int8 ? FILL_CODES : FILL_SQUARE);
    OUT('f', 1, c->n, FILL_NORMAL)->same_as = 3;
    OUT(m, 1, c->n, FILL_NORMAL)->same_as = 4;
    OUT(v, 1, c->n, FILL_NORMAL)->same_as = 5;
    if (master || int8) {
        IN('r', 1, c->n, FILL_NORMAL)->absent = !master;
        struct case_operand *o = OUT('r', 1, c->n, FILL_NORMAL);
        o->same_as = 6, o->absent = !master;
    }
    if (int8) {
        IN('s', 1, (c->n + ADAMW_BLOCK - 1) / ADAMW_BLOCK * 2, FILL_SQUARE);
        OUT('s', 1, r->in[7].columns, FILL_NORMAL)->same_as = 7;
    }
    r->op.salt = (uint32_t)c->n;
}

// One of the passes of AdamW, with the gradient, weight or first moment that it needs.
static void describe_adam_pass(struct case_run *r, const struct backend_case *c) {
    if (c->kind != OP_GRAD_SCALE)
        IN('d', 1, HYPER_COUNT, FILL_HYPER);
    IN('d', 1, CLIP_COUNT, FILL_CLIP);
    if (c->kind == OP_GRAD_SCALE) {
        OUT('r', 1, c->n, FILL_POISON)->same_as = c->options & CASE_IN_PLACE ? 0 : -1;
    } else if (c->kind == OP_ADAM_DECAY) {
        OUT('r', 1, c->n, FILL_NORMAL)->same_as = 0;
    } else if (c->kind != OP_ADAM_STEP) {
        IN('r', 1, c->n, c->kind == OP_ADAM_M ? FILL_SMALL : FILL_SQUARE);
        OUT('r', 1, c->n, FILL_NORMAL)->same_as = 3;
    } else {
        IN('r', 1, c->n, FILL_SQUARE);
        IN('f', 1, c->n, FILL_NORMAL);
        OUT('f', 1, c->n, FILL_NORMAL)->same_as = 4;
        if (c->options & CASE_MASTER) {
            IN('r', 1, c->n, FILL_NORMAL);
            OUT('r', 1, c->n, FILL_NORMAL)->same_as = 5;
        }
    }
}

static void describe_update(struct case_run *r, const struct backend_case *c) {
    if (c->kind == OP_SUM) {
        IN('d', 1, c->n, FILL_SQUARE);
        OUT('d', 1, 1, FILL_POISON);
        return;
    }
    if (c->kind == OP_CLIP) {
        IN('d', 1, c->n, FILL_SQUARE);
        IN('d', 1, HYPER_COUNT, FILL_HYPER);
        OUT('d', 1, CLIP_COUNT, FILL_POISON);
        return;
    }
    bool step = c->kind == OP_ADAM_STEP;
    IN('r', 1, c->n, step ? FILL_SMALL : FILL_NORMAL);
    if (c->kind == OP_GRAD_SQNORM)
        OUT('d', 1, 1, output_fill(c));
    else if (c->kind == OP_GRAD_SCALE || step || c->kind == OP_ADAM_DECAY || c->kind == OP_ADAM_M ||
             c->kind == OP_ADAM_V)
        describe_adam_pass(r, c);
    else
        describe_adamw(r, c);
}

static void describe_rest(struct case_run *r, const struct backend_case *c) {
    int64_t heads = c->heads * c->head_dim, rows = c->m > 0 || c->kind == OP_COPY ? c->m : 1;
    switch (c->kind) {
    case OP_ZERO:
        OUT('f', rows, c->n, FILL_POISON);
        break;
    case OP_COPY:
        IN('f', rows, c->n, FILL_NORMAL);
        OUT('f', rows, c->n, output_fill(c));
        break;
    case OP_CAST:
        IN('f', rows, c->n, FILL_NORMAL);
        OUT(c->options & CASE_BARE ? 's' : 'b', rows, c->n, FILL_POISON);
        break;
    case OP_ADD_BIAS:
        IN('f', c->m, c->n, FILL_WIDE);
        IN('f', 1, c->n, FILL_NORMAL);
        OUT('f', c->m, c->n, FILL_POISON)->same_as = c->options & CASE_IN_PLACE ? 0 : -1;
        break;
    case OP_DROPOUT:
        IN('f', c->m, c->n, FILL_WIDE);
        IN('i', 1, c->m, FILL_COUNT)->limit = 4096;
        IN('d', 1, HYPER_COUNT, FILL_HYPER);
        OUT('f', c->m, c->n, output_fill(c));
        r->op.salt = (uint32_t)c->n;
        break;
    case OP_ADD:
    case OP_MUL:
    case OP_SWIGLU:
        IN('f', c->m, c->n, FILL_WIDE);
        IN('f', c->m, c->n, FILL_NORMAL);
        OUT('f', c->m, c->n, FILL_POISON);
        break;
    case OP_ACT:
        IN('f', c->m, c->n, FILL_WIDE);
        OUT('f', c->m, c->n, FILL_POISON)->same_as = c->options & CASE_IN_PLACE ? 0 : -1;
        break;
    case OP_ACT_BWD:
        IN('f', c->m, c->n, FILL_NORMAL);
        IN('f', c->m, c->n, FILL_WIDE);
        OUT('f', c->m, c->n, FILL_POISON)->same_as = c->options & CASE_IN_PLACE ? 0 : -1;
        break;
    case OP_SWIGLU_BWD:
        IN('f', c->m, c->n, FILL_NORMAL);
        IN('f', c->m, c->n, FILL_WIDE);
        IN('f', c->m, c->n, FILL_NORMAL);
        OUT('f', c->m, c->n, FILL_POISON);
        OUT('f', c->m, c->n, FILL_POISON);
        break;
    case OP_BIAS_DB:
        IN('f', c->m, c->n, FILL_NORMAL);
        OUT('r', 1, c->n, output_fill(c));
        break;
    case OP_ARGMAX:
        IN('f', c->m, c->n, FILL_WIDE);
        OUT('i', 1, c->m, FILL_POISON);
        break;
    case OP_ROPE_TABLE:
        IN('i', 1, c->m, FILL_COUNT)->limit = 4096;
        IN('s', 1, c->head_dim / 2, FILL_FREQ);
        OUT('r', c->m, c->head_dim, FILL_POISON);
        break;
    case OP_ROPE:
        IN('f', c->m, heads, FILL_NORMAL);
        IN('r', c->m, c->head_dim, FILL_LATER);
        OUT('f', c->m, heads, FILL_POISON)->same_as = c->options & CASE_IN_PLACE ? 0 : -1;
        break;
    default:
        break;
    }
}

static void describe(struct case_run *r, const struct backend_case *c) {
    switch (c->kind) {
    case OP_MATMUL:
    case OP_MATMUL_DX:
    case OP_MATMUL_DW:
    case OP_MATMUL_ACT:
    case OP_MATMUL_DX_ACT:
        describe_matmul(r, c);
        break;
    case OP_NORM:
    case OP_ADD_NORM:
    case OP_NORM_DX:
    case OP_NORM_DW:
    case OP_NORM_BWD:
        describe_norm(r, c);
        break;
    case OP_ATTENTION:
    case OP_ATTENTION_BWD:
        describe_attention(r, c);
        break;
    case OP_KV_APPEND:
    case OP_ATTENTION_CACHED:
        describe_cache(r, c);
        break;
    case OP_EMBED:
    case OP_EMBED_DW:
    case OP_GATHER_ROWS:
        describe_tables(r, c);
        break;
    case OP_LOSS:
    case OP_LOSS_STATS:
    case OP_LOSS_PART:
    case OP_LOSS_KL:
    case OP_LOSS_SUM:
    case OP_LOG_SOFTMAX:
    case OP_LOG_SOFTMAX_BWD:
    case OP_NLL:
    case OP_NLL_BWD:
        describe_loss(r, c);
        break;
    case OP_GRAD_SQNORM:
    case OP_GRAD_SCALE:
    case OP_CLIP:
    case OP_SUM:
    case OP_ADAM_DECAY:
    case OP_ADAM_M:
    case OP_ADAM_V:
    case OP_ADAM_STEP:
    case OP_ADAMW:
    case OP_ADAMW_BF16:
    case OP_ADAMW_INT8:
        describe_update(r, c);
        break;
    default:
        describe_rest(r, c);
    }
}

// ---------------------------------------------------------------- memory and values

static char *element(const struct case_operand *o, const void *memory, int64_t row,
                     int64_t column) {
    return (char *)memory +
           (row * o->ld + o->first_column + column) * (int64_t)dtype_bytes(o->dtype);
}

static double get(const struct case_operand *o, const void *memory, int64_t row, int64_t column) {
    const char *at = element(o, memory, row, column);
    switch (o->dtype) {
    case DTYPE_F32:
        return (double)*(const float *)at;
    case DTYPE_F64:
        return *(const double *)at;
    case DTYPE_BF16:
        return (double)dtype_bf16_to_f32(*(const uint16_t *)at);
    case DTYPE_I8:
        return *(const int8_t *)at;
    case DTYPE_U8:
        return *(const uint8_t *)at;
    case DTYPE_F16:
        return (double)dtype_f16_to_f32(*(const uint16_t *)at);
    default:
        return *(const int32_t *)at;
    }
}

double case_get(const struct case_operand *o, int64_t row, int64_t column) {
    return get(o, o->memory, row, column);
}

void case_set(struct case_operand *o, int64_t row, int64_t column, double value) {
    char *at = element(o, o->memory, row, column);
    if (o->dtype == DTYPE_F32)
        *(float *)at = (float)value;
    else if (o->dtype == DTYPE_BF16)
        *(uint16_t *)at = dtype_f32_to_bf16((float)value);
    else if (o->dtype == DTYPE_F16)
        *(uint16_t *)at = dtype_f32_to_f16((float)value);
    else if (o->dtype == DTYPE_F64)
        *(double *)at = value;
    else if (o->dtype == DTYPE_I8)
        *(int8_t *)at = (int8_t)value;
    else if (o->dtype == DTYPE_U8)
        *(uint8_t *)at = (uint8_t)value;
    else
        *(int32_t *)at = (int32_t)value;
}

// The usual settings of AdamW at step 3, a clip below the norm, and 1 / 37 trained tokens.
static const double hyper[HYPER_COUNT] = {
    [HYPER_LR] = 1e-2,
    [HYPER_BETA1] = 0.9,
    [HYPER_BETA2] = 0.95,
    [HYPER_EPS] = 1e-8,
    [HYPER_DECAY] = 0.1,
    [HYPER_CLIP] = 1.0,
    [HYPER_BIAS1] = 1 - 0.729,
    [HYPER_BIAS2] = 1 - 0.857375,
    [HYPER_LOSS_FACTOR] = 1.0 / 37,
    [HYPER_DRAW] = 0x123456789abcdp0,
};

static double value_of(const struct case_operand *o, const struct backend_case *c, uint64_t seed,
                       uint64_t stream, int64_t row, int64_t column) {
    uint64_t index = (uint64_t)(row * o->columns + column);
    double normal = (double)(float)rng_normal(seed, stream, index);
    bool odd_one = c->options & CASE_UNTRAINED && rng_below(seed, stream + 1000, index, 3) == 0;
    switch (o->fill) {
    case FILL_POISON:
        return NAN;
    case FILL_WIDE:
        return 4 * normal;
    case FILL_NEAR_1:
        return (double)(float)(1 + normal / 8);
    case FILL_SQUARE:
        return c->options & CASE_NOT_FINITE && c->kind == OP_CLIP && index == 0
                   ? INFINITY
                   : (double)(float)(normal * normal);
    case FILL_SMALL:
        return (double)(float)(normal / 100);
    case FILL_IDS:
        return (double)rng_below(seed, stream, index, (uint64_t)o->limit);
    case FILL_TARGETS:
        if (c->options & CASE_SKEWED && rng_below(seed, stream + 2000, index, 8) > 0)
            return (double)(o->limit / 2);
        return odd_one ? -1 : (double)rng_below(seed, stream, index, (uint64_t)o->limit);
    case FILL_COUNT:
        return (double)((int64_t)index % o->limit);
    case FILL_STARTS: { // documents of random lengths; a few rows have a start past themselves
        int64_t t = (int64_t)index % c->seq, start = 0;
        if (!(c->options & CASE_DOCS))
            return 0;
        for (int64_t s = 1; s <= t; s++)
            if (rng_below(seed, stream + 7 + index / (uint64_t)c->seq, (uint64_t)s, 40) == 0)
                start = s;
        return rng_below(seed, stream + 5, index, 50) == 0 ? (double)(t + 2) : (double)start;
    }
    case FILL_FREQ:
        return (double)(float)pow(10000, -(double)index / (double)(o->columns));
    case FILL_HYPER:
        return hyper[index];
    case FILL_CODES:
        return (double)rng_below(seed, stream, index, o->dtype == DTYPE_I8 ? 255 : 256) -
               (o->dtype == DTYPE_I8 ? 127 : 0);
    case FILL_CLIP:
        return index == CLIP_SKIP     ? (c->options & CASE_NOT_FINITE) != 0
               : index == CLIP_FACTOR ? 0.625
                                      : 3.5;
    default:
        return normal;
    }
}

static int take_memory(struct case_operand *o, enum dtype float_type, struct case_operand *list,
                       struct case_operand *inputs, struct err *e) {
    o->dtype = o->type == 'i'   ? DTYPE_I32
               : o->type == 'd' ? DTYPE_F64
               : o->type == 's' ? DTYPE_F32
               : o->type == 'b' ? DTYPE_BF16
               : o->type == 'c' ? DTYPE_I8
               : o->type == 'u' ? DTYPE_U8
               : o->type == 'r' ? op_wide_type(float_type)
                                : float_type;
    if (o->absent)
        return 0;
    if (o->view_of >= 0 || o->same_as >= 0) {
        const struct case_operand *owner =
            o->view_of >= 0 ? &list[o->view_of] : &inputs[o->same_as];
        o->memory = owner->memory;
        o->ld = owner->ld;
        return 0;
    }
    o->bytes = (size_t)(o->rows * o->ld) * dtype_bytes(o->dtype);
    o->memory = malloc(o->bytes + 64); // an empty tensor still has an address
    o->before = malloc(o->bytes + 64);
    if (!o->memory || !o->before)
        return err_set(e, ERR_MEMORY, "no memory for a case");
    memset(o->memory, 0xff, o->bytes + 64); // NaN in every float type, -1 in every integer
    return 0;
}

static void fill_operand(struct case_operand *o, const struct backend_case *c, uint64_t seed,
                         uint64_t stream) {
    if (o->absent || o->same_as >= 0 ||
        (o->fill == FILL_POISON && (o->type == 'b' || o->dtype == DTYPE_I32)))
        return;
    for (int64_t i = 0; i < o->rows; i++)
        for (int64_t j = 0; j < o->columns; j++)
            case_set(o, i, j, value_of(o, c, seed, stream, i, j));
}

// Copies a result of `from` into an input of another case, element by element.
static void copy_values(struct case_operand *to, const struct case_operand *from) {
    for (int64_t i = 0; i < to->rows; i++)
        for (int64_t j = 0; j < to->columns; j++)
            case_set(to, i, j, case_get(from, i, j));
}

// Inputs that only make sense as another op's result.
static int fill_later(struct case_run *r, const struct backend_case *c, uint64_t seed,
                      struct backend *reference, struct err *e) {
    struct backend_case other = *c;
    struct case_run run;
    other.options &= ~(unsigned)(CASE_PAD | CASE_BARE | CASE_IN_PLACE);
    other.flags &= OP_RMS;
    if (c->kind == OP_NORM_DX || c->kind == OP_NORM_DW || c->kind == OP_NORM_BWD)
        other.kind = OP_NORM;
    else if (c->kind == OP_ATTENTION_BWD)
        other.kind = OP_ATTENTION;
    else if (c->kind == OP_ROPE)
        other.kind = OP_ROPE_TABLE;
    else if (c->kind == OP_LOG_SOFTMAX_BWD)
        other.kind = OP_LOG_SOFTMAX;
    else
        return 0;
    TRY(case_open(&run, &other, DTYPE_F64, seed, reference, e));
    if (c->kind == OP_ATTENTION_BWD) {
        for (int i = 0; i < 3; i++)
            copy_values(&run.in[i], &r->in[1 + i]);
        if (!r->in[6].absent)
            copy_values(&run.in[3], &r->in[6]);
    } else if (c->kind != OP_ROPE && c->kind != OP_LOG_SOFTMAX_BWD) {
        copy_values(&run.in[0], &r->in[1]);
    }
    int rc = reference->run[other.kind](reference, &run.call, e);
    if (rc == 0 && c->kind == OP_ATTENTION_BWD) {
        copy_values(&r->in[4], &run.out[0]);
        copy_values(&r->in[5], &run.out[1]);
    } else if (rc == 0 && (c->kind == OP_ROPE || c->kind == OP_LOG_SOFTMAX_BWD)) {
        copy_values(&r->in[1], &run.out[0]);
    } else if (rc == 0) {
        copy_values(&r->in[c->kind == OP_NORM_DW ? 2 : 3], &run.out[1]);
    }
    case_close(&run);
    return rc;
}

static struct operand operand_of(const struct case_operand *o) {
    if (o->absent || !o->memory)
        return (struct operand){0};
    return operand_plain(element(o, o->memory, 0, 0), o->ld, o->dtype, o->rows, o->columns);
}

// Sizes, operands and memory; every operand is poison.
static int prepare(struct case_run *r, const struct backend_case *c, enum dtype float_type,
                   struct err *e) {
    *r = (struct case_run){0};
    r->op = (struct op){
        .kind = c->kind, .flags = c->flags, .m = c->m, .n = c->n, .k = c->k, .act = c->act};
    r->op.batch = c->batch, r->op.seq = c->seq;
    r->op.heads = c->heads, r->op.kv_heads = c->kv_heads, r->op.head_dim = c->head_dim;
    bool norm = c->kind == OP_NORM || c->kind == OP_NORM_DX || c->kind == OP_NORM_DW ||
                c->kind == OP_NORM_BWD || c->kind == OP_ADD_NORM;
    r->op.scale = norm ? 1e-5 : c->head_dim > 0 ? 1 / sqrt((double)c->head_dim) : 0.75;
    describe(r, c);
    r->op.n_in = r->n_in, r->op.n_out = r->n_out;
    r->call.op = &r->op;
    for (int i = 0; i < r->n_in + r->n_out; i++) {
        struct case_operand *list = i < r->n_in ? r->in : r->out,
                            *o = &list[i < r->n_in ? i : i - r->n_in];
        // Statistics and lse have no gaps by contract; vectors have one row.
        if (c->options & CASE_PAD && o->rows > 1 && (o->type == 'f' || o->type == 'r') &&
            o->columns != 2)
            o->ld += case_pad(o->columns);
        TRY(take_memory(o, float_type, list, r->in, e));
    }
    for (int i = 0; i < r->n_in; i++)
        r->call.in[i] = operand_of(&r->in[i]);
    for (int i = 0; i < r->n_out; i++)
        r->call.out[i] = operand_of(&r->out[i]);
    return 0;
}

static int remember(struct case_run *r) {
    for (int i = 0; i < r->n_in; i++)
        if (r->in[i].before)
            memcpy(r->in[i].before, r->in[i].memory, r->in[i].bytes);
    for (int i = 0; i < r->n_out; i++)
        if (r->out[i].before)
            memcpy(r->out[i].before, r->out[i].memory, r->out[i].bytes);
    return 0;
}

int case_open(struct case_run *r, const struct backend_case *c, enum dtype float_type,
              uint64_t seed, struct backend *reference, struct err *e) {
    int rc = prepare(r, c, float_type, e);
    for (int i = 0; rc == 0 && i < r->n_in; i++)
        fill_operand(&r->in[i], c, seed, (uint64_t)i * 16);
    for (int i = 0; rc == 0 && i < r->n_out; i++)
        fill_operand(&r->out[i], c, seed, (uint64_t)(r->n_in + i) * 16);
    if (rc == 0)
        rc = fill_later(r, c, seed, reference, e);
    if (rc != 0) {
        case_close(r);
        return rc;
    }
    return remember(r);
}

// What an operand held before its run: views and outputs in place look into their owner's copy.
static void copy_before(struct case_operand *to, const struct case_operand *from,
                        const struct case_operand *list) {
    const void *before = from->view_of >= 0 ? list[from->view_of].before : from->before;
    if (to->absent || to->same_as >= 0 || !before || (to->type == 'b' && to->fill == FILL_POISON))
        return;
    for (int64_t i = 0; i < to->rows; i++)
        for (int64_t j = 0; j < to->columns; j++)
            case_set(to, i, j, get(from, before, i, j));
}

int case_open_like(struct case_run *r, const struct backend_case *c, enum dtype float_type,
                   const struct case_run *like, struct err *e) {
    int rc = prepare(r, c, float_type, e);
    if (rc != 0) {
        case_close(r);
        return rc;
    }
    for (int i = 0; i < r->n_in; i++)
        copy_before(&r->in[i], &like->in[i], like->in);
    for (int i = 0; i < r->n_out; i++)
        copy_before(&r->out[i], &like->out[i], like->out);
    return remember(r);
}

bool case_is_joined(enum op_kind kind) {
    return kind == OP_ADD_NORM || kind == OP_MATMUL_ACT;
}

int case_run_second(struct case_run *r, const struct backend_case *c, const struct case_run *got,
                    struct backend *reference, struct err *e) {
    bool norm = c->kind == OP_ADD_NORM;
    struct backend_case second = {.kind = norm ? OP_NORM : OP_ACT,
                                  .flags = c->flags & OP_RMS,
                                  .options = c->options & CASE_BARE,
                                  .m = c->m,
                                  .n = c->n,
                                  .act = c->act};
    int rc = prepare(r, &second, DTYPE_F64, e);
    if (rc != 0) {
        case_close(r);
        return rc;
    }
    copy_values(&r->in[0], &got->out[0]);
    for (int i = 1; norm && i < 3; i++)
        if (!r->in[i].absent)
            copy_values(&r->in[i], &got->in[1 + i]);
    rc = reference->run[second.kind](reference, &r->call, e);
    if (rc != 0)
        case_close(r);
    return rc;
}

void case_close(struct case_run *r) {
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (r->in[i].view_of < 0)
            free(r->in[i].memory);
        free(r->in[i].before);
    }
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (r->out[i].view_of < 0 && r->out[i].same_as < 0)
            free(r->out[i].memory);
        free(r->out[i].before);
    }
    *r = (struct case_run){0};
}

// Normalised mean square error and largest error relative to the largest value. float32 results of
// sums of a few hundred terms are near 1e-14 and 1e-6.
static const double NMSE_MAX = 1e-11, ERROR_MAX = 2e-5;

bool case_agree(const struct case_operand *got, const struct case_operand *want, char *why,
                size_t why_bytes) {
    double error = 0, power = 0, worst = 0, largest = 0;
    // Half of the smallest fp16 number: a smaller value is rounded to that number or to 0.
    const double least = got->dtype == DTYPE_F16 ? 0x1p-25 : 0;
    int64_t differ = 0;
    for (int64_t i = 0; i < want->rows; i++)
        for (int64_t j = 0; j < want->columns; j++) {
            double a = case_get(got, i, j), b = case_get(want, i, j);
            // NaN is the poison. No case has NaN in its right answer.
            if (isnan(a) || isnan(b) || (isinf(b) && a != b)) {
                snprintf(why, why_bytes, "element %" PRId64 ",%" PRId64 " is %g, not %g", i, j, a,
                         b);
                return false;
            }
            if (isinf(b))
                continue;
            double off = fmax(fabs(a - b) - least, 0);
            error += off * off;
            power += b * b;
            worst = fmax(worst, off);
            differ += a != b;
            largest = fmax(largest, fabs(b));
        }
    // bf16 has 8 bits: a rounding is an NMSE of 1.3e-6 on average and up to 2^-8 of an element, and
    // a product with a bias is rounded twice. Where both sides are bf16 the rounding is the same,
    // but near a boundary it may differ by one unit. fp16 has three bits more.
    // The draws that round moments are the same everywhere. So all elements must be equal, except
    // the few where a sum in another order falls on the other side of the draw (2 in 100,000 are
    // expected).
    if (got->dtype == want->dtype && strchr("bcu", got->type) &&
        differ > 1 + want->rows * want->columns / 1000) {
        snprintf(why, why_bytes, "%" PRId64 " elements were rounded another way", differ);
        return false;
    }
    double nmse_max = NMSE_MAX, error_max = ERROR_MAX;
    if (got->dtype == DTYPE_BF16 || got->dtype == DTYPE_I8 || got->dtype == DTYPE_U8)
        nmse_max = 4e-5, error_max = 1e-2;
    else if (got->dtype == DTYPE_F16)
        nmse_max = 1e-6, error_max = 1.3e-3;
    if (error > nmse_max * power + 1e-30 || worst > error_max * largest + 1e-15) {
        snprintf(why, why_bytes, "NMSE %.2e, largest error %.2e of %.2e",
                 power > 0 ? error / power : error, worst, largest);
        return false;
    }
    return true;
}

bool case_is_rounded(const struct case_operand *got, const struct case_operand *want, int times,
                     char *why, size_t why_bytes) {
    if (strchr("bcu", got->type)) // rounded by a draw
        return true;
    double once = got->dtype == DTYPE_BF16  ? 0x1p-8
                  : got->dtype == DTYPE_F16 ? 0x1p-11
                                            : 0;          // half a unit in the last place, relative
    double least = got->dtype == DTYPE_F16 ? 0x1p-25 : 0; // among subnormal numbers
    double largest = 0, half = times * once;
    for (int64_t i = 0; half > 0 && i < want->rows; i++)
        for (int64_t j = 0; j < want->columns; j++)
            largest = fmax(largest, fabs(case_get(want, i, j)));
    for (int64_t i = 0; half > 0 && i < want->rows; i++)
        for (int64_t j = 0; j < want->columns; j++) {
            double a = case_get(got, i, j), b = case_get(want, i, j);
            if (!(fabs(a - b) <= half * fabs(b) + least + ERROR_MAX * largest + 1e-15)) {
                snprintf(why, why_bytes,
                         "element %" PRId64 ",%" PRId64 " is %.9g: not %d rounding%s from %.9g", i,
                         j, a, times, times == 1 ? "" : "s", b);
                return false;
            }
        }
    return true;
}

// Marks the elements that an op may change, then compares all others with what they were.
static bool only_changed(const struct case_operand *owner, const struct case_operand *list, int n,
                         int index, bool inputs) {
    size_t size = dtype_bytes(owner->dtype), count = owner->bytes / size;
    bool ok = true;
    char *may = calloc(count + 1, 1);
    if (!may)
        return false;
    for (int i = 0; i < n; i++) {
        const struct case_operand *o = &list[i];
        bool here = inputs ? o->same_as == index : (i == index || o->view_of == index);
        for (int64_t row = 0; here && !o->absent && row < o->rows; row++)
            memset(may + row * o->ld + o->first_column, 1, (size_t)o->columns);
    }
    for (size_t i = 0; i < count && ok; i++)
        ok = may[i] ||
             memcmp((char *)owner->memory + i * size, (char *)owner->before + i * size, size) == 0;
    free(may);
    return ok;
}

bool case_check_bounds(const struct case_run *r, char *why, size_t why_bytes) {
    for (int i = 0; i < r->n_in; i++)
        if (r->in[i].before && !only_changed(&r->in[i], r->out, r->n_out, i, true)) {
            snprintf(why, why_bytes, "input %d was changed where it is not an output", i);
            return false;
        }
    for (int i = 0; i < r->n_out; i++)
        if (r->out[i].before && !only_changed(&r->out[i], r->out, r->n_out, i, false)) {
            snprintf(why, why_bytes, "output %d was changed outside its elements", i);
            return false;
        }
    return true;
}

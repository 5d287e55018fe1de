// operands.c - see operands.h. The letters are explained in ops.def.
#include "backend/operands.h"

#include "model/shape.h"

// The float types of a call, found while its operands are checked; DTYPE_COUNT: not known yet.
struct call_types {
    enum dtype real, wide;
};

static int check_operand(const struct op_call *call, const struct operand *o, char letter,
                         const char *side, int index, struct call_types *types, struct err *e) {
    const char *name = op_info(call->op->kind)->name;
    bool optional = letter >= 'A' && letter <= 'Z';
    if (optional)
        letter = (char)(letter - 'A' + 'a');
    if (!o->data) {
        // A tensor without elements has no bytes, so a missing pointer is wrong only where there is
        // work to do.
        bool empty = call->op->m == 0 && call->op->n == 0 && call->op->batch == 0;
        if (optional || empty)
            return 0;
        return err_set(e, ERR_INTERNAL, "%s: %s %d is missing", name, side, index);
    }
    if ((int)o->dtype < 0 || o->dtype >= DTYPE_COUNT)
        return err_set(e, ERR_INTERNAL, "%s: %s %d has no element type", name, side, index);
    char text[STORAGE_TEXT_BYTES];
    if (!storage_plain(o->storage) && letter != 'w')
        return err_set(e, ERR_UNSUPPORTED, "%s: %s %d is kept in %s, which this op cannot read",
                       name, side, index, storage_text(o->storage, text));
    if (!storage_plain(o->storage) &&
        (!storage_takes(o->storage, o->cols) || o->ld != o->cols || call->op->flags & OP_IN_OUT))
        return err_set(e, ERR_INTERNAL, "%s: %s %d is no quantized matrix [n, k] without gaps",
                       name, side, index);
    enum dtype want = o->dtype;
    switch (letter) {
    case 'd':
        want = DTYPE_F64;
        break;
    case 'i':
        want = DTYPE_I32;
        break;
    case 's':
        want = DTYPE_F32;
        break;
    case 'b':
        want = DTYPE_BF16;
        break;
    case 'c':
        want = DTYPE_I8;
        break;
    case 'u':
        want = DTYPE_U8;
        break;
    case 'f':
    case 'w':
        if (types->real == DTYPE_COUNT)
            types->real = o->dtype;
        want = types->real;
        break;
    case 'r':
        if (types->wide == DTYPE_COUNT)
            types->wide = o->dtype;
        want = op_wide_type(types->real == DTYPE_COUNT ? types->wide : types->real);
        break;
    default:
        break;
    }
    if (o->dtype != want)
        return err_set(e, ERR_MISMATCH, "%s: %s %d is %s where %s is expected", name, side, index,
                       dtype_text(o->dtype), dtype_text(want));
    return 0;
}

int backend_check_call(const struct op_call *call, enum dtype *float_type, struct err *e) {
    const struct op *op = call->op;
    struct call_types types = {DTYPE_COUNT, DTYPE_COUNT};
    *float_type = DTYPE_COUNT;
    const struct op_info *info = op_info(op->kind);
    if (info->category == CAT_COMM || info->category == CAT_DATA)
        return err_set(e, ERR_UNSUPPORTED, "%s: backends run no communication and no data ops",
                       info->name);
    for (int i = 0; info->types_in[i]; i++)
        TRY(check_operand(call, &call->in[i], info->types_in[i], "input", i, &types, e));
    for (int i = 0; info->types_out[i]; i++)
        TRY(check_operand(call, &call->out[i], info->types_out[i], "output", i, &types, e));
    // An r operand before the first f had nothing to be compared with.
    if (types.real != DTYPE_COUNT && types.wide != DTYPE_COUNT &&
        types.wide != op_wide_type(types.real))
        return err_set(e, ERR_MISMATCH, "%s: sums are %s beside %s activations; %s is expected",
                       info->name, dtype_text(types.wide), dtype_text(types.real),
                       dtype_text(op_wide_type(types.real)));
    *float_type = types.real != DTYPE_COUNT ? types.real : types.wide;
    if (op->m < 0 || op->n < 0 || op->k < 0 || op->batch < 0 || op->seq < 0 || op->heads < 0 ||
        op->kv_heads < 0 || op->head_dim < 0)
        return err_set(e, ERR_INTERNAL, "%s: a size is negative", info->name);
    static const enum op_kind adds[] = {OP_COPY,    OP_MATMUL,      OP_LOSS_SUM,  OP_EMBED_DW,
                                        OP_NORM_DX, OP_NORM_DW,     OP_MATMUL_DX, OP_MATMUL_DW,
                                        OP_BIAS_DB, OP_GRAD_SQNORM, OP_NORM_BWD,  OP_DROPOUT};
    bool can_add = !(op->flags & OP_ACCUMULATE);
    for (size_t i = 0; i < sizeof adds / sizeof *adds && !can_add; i++)
        can_add = adds[i] == op->kind;
    if (!can_add)
        return err_set(e, ERR_UNSUPPORTED, "%s: cannot add to its output (flag ACCUMULATE)",
                       info->name);
    bool attends =
        op->kind == OP_ATTENTION || op->kind == OP_ATTENTION_BWD || op->kind == OP_ATTENTION_CACHED;
    if (attends && (op->kv_heads == 0 || op->heads % op->kv_heads != 0))
        return err_set(e, ERR_USAGE, "%s: %lld query heads cannot share %lld key/value heads",
                       info->name, (long long)op->heads, (long long)op->kv_heads);
    if ((op->kind == OP_ROPE || op->kind == OP_ROPE_TABLE) && op->head_dim % 2 != 0)
        return err_set(e, ERR_USAGE, "%s: head dimension %lld is odd, rotary embedding needs pairs",
                       info->name, (long long)op->head_dim);
    if (op->kind == OP_DROPOUT && !(op->scale >= 0 && op->scale < 1))
        return err_set(e, ERR_INTERNAL, "%s: %g is no part below 1", info->name, op->scale);
    bool acts = op->kind == OP_ACT || op->kind == OP_ACT_BWD || op->kind == OP_MATMUL_ACT ||
                op->kind == OP_MATMUL_DX_ACT;
    if (acts && (op->act < 0 || op->act > ACT_SWIGLU))
        return err_set(e, ERR_INTERNAL, "%s: activation %d is not known", info->name, op->act);
    return 0;
}

static int check_id(const struct op *op, const char *what, int32_t id, const char *where,
                    int64_t row, int64_t limit, struct err *e) {
    if (id >= 0 && id < limit)
        return 0;
    return err_set(e, ERR_USAGE, "%s: %s %d of %s %lld is not in [0, %lld)",
                   op_info(op->kind)->name, what, id, where, (long long)row, (long long)limit);
}

int backend_check_tokens(const struct op_call *c, struct err *e) {
    const int32_t *ids = c->in[0].data, *positions = c->in[2].data;
    for (int64_t i = 0; i < c->op->m; i++) {
        if (!(c->op->flags & OP_PART)) // other ranks have the other rows
            TRY(check_id(c->op, "token id", ids[i], "row", i, c->op->k, e));
        if (positions)
            TRY(check_id(c->op, "position", positions[i], "row", i, c->op->positions, e));
    }
    return 0;
}

int backend_check_targets(const struct op_call *c, const int32_t *targets, struct err *e) {
    for (int64_t i = 0; i < c->op->m; i++)
        if (targets[i] >= 0)
            TRY(check_id(c->op, "target id", targets[i], "row", i, c->op->n, e));
    return 0;
}

int backend_check_cached(const struct op *op, const int32_t *sequences, const int32_t *positions,
                         struct err *e) {
    for (int64_t i = 0; i < op->m; i++) {
        if (sequences[i] < 0) // idle
            continue;
        TRY(check_id(op, "sequence", sequences[i], "row", i, op->batch, e));
        TRY(check_id(op, "position", positions[i], "row", i, op->seq, e));
    }
    return 0;
}

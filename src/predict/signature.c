// signature.c - see signature.h.
#include "predict/signature.h"

#include "base/hash.h"

#include <string.h>

// Flags that describe an op's place in a program and not its work.
static const unsigned NO_WORK = OP_FIRST_GRAD | OP_AGAIN | OP_FIRST_MICRO;

static uint8_t type_of(const struct program *p, int tensor) {
    if (tensor < 0)
        return 0;
    const struct tensor *t = &p->tensors[tensor];
    return storage_plain(t->storage) ? (uint8_t)(t->dtype + 1)
                                     : (uint8_t)(SIGNATURE_STORED + storage_code(t->storage));
}

bool signature_type_known(uint8_t type) {
    return type <= DTYPE_COUNT ||
           (type > SIGNATURE_STORED && type <= SIGNATURE_STORED + STORAGE_CODES);
}

void signature_of(const struct program *p, const struct op *op, struct op_signature *out) {
    memset(out, 0, sizeof *out);
    const int64_t sizes[SIZE_COUNT] = {op->m,     op->n,        op->k,        op->batch,    op->seq,
                                       op->heads, op->kv_heads, op->head_dim, op->positions};
    memcpy(out->sizes, sizes, sizeof sizes);
    out->kind = op->kind;
    out->flags = op->flags & ~NO_WORK;
    out->act = op->act;
    for (int i = 0; i < op->n_in; i++)
        out->types[i] = type_of(p, op->in[i]);
    for (int i = 0; i < op->n_out; i++)
        out->types[OP_MAX_IN + i] = type_of(p, op->out[i]);
}

uint64_t signature_hash(const struct op_signature *s) {
    return hash_u64(s, sizeof *s);
}

bool signature_same(const struct op_signature *a, const struct op_signature *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

enum signature_size signature_rows(const struct op_signature *s) {
    return s->sizes[SIZE_BATCH] > 0 ? SIZE_BATCH : s->sizes[SIZE_M] > 0 ? SIZE_M : SIZE_N;
}

bool signature_same_class(const struct op_signature *a, const struct op_signature *b) {
    return a->kind == b->kind && a->flags == b->flags && a->act == b->act &&
           memcmp(a->types, b->types, sizeof a->types) == 0;
}

bool signature_same_family(const struct op_signature *a, const struct op_signature *b) {
    enum signature_size rows = signature_rows(a);
    if (!signature_same_class(a, b) || signature_rows(b) != rows)
        return false;
    for (int i = 0; i < SIZE_COUNT; i++)
        if (i != (int)rows && a->sizes[i] != b->sizes[i])
            return false;
    return true;
}

enum dtype signature_real(const struct op_signature *s) {
    for (size_t i = 0; i < sizeof s->types; i++) {
        enum dtype t = (enum dtype)(s->types[i] - 1);
        if (s->types[i] && (t == DTYPE_F32 || t == DTYPE_BF16 || t == DTYPE_F16 || t == DTYPE_F64))
            return t;
    }
    return DTYPE_COUNT;
}

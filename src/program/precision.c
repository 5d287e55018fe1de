// precision.c - weights and activations in a 16-bit type (Micikevicius et al., 2018). This halves
// the bytes and uses tensor cores where the device has them.
//
// The ops that touch a tensor decide whether its type changes. ops.def gives every operand a
// letter: f (and w) for tensors that may have 16 bits, r for those that must not (statistics, sums,
// gradients of weights). So a new op needs no code here. update.c gives each 16-bit weight a
// float32 master on which the optimizer works, because an update is often smaller than a bfloat16's
// last bit.
#include "program/apply.h"

enum { HAS_REAL = 1, HAS_WIDE = 2 };

static void note(const struct program *p, unsigned char *use, const int *tensors, int n,
                 const char *letters) {
    for (int i = 0; i < n && letters[i]; i++) {
        bool real = letters[i] == 'f' || letters[i] == 'F' || letters[i] == 'w';
        bool wide = letters[i] == 'r' || letters[i] == 'R';
        if (tensors[i] >= 0)
            use[program_root(p, tensors[i])] |=
                (unsigned char)((real ? HAS_REAL : 0) | (wide ? HAS_WIDE : 0));
    }
}

int precision_apply(struct program *p, enum dtype from, enum dtype to, struct err *e) {
    unsigned char *use = region_alloc(&p->region, (size_t)p->n_tensors + 1);
    if (!use)
        p->failed = ERR_MEMORY;
    TRY(program_finish(p, e));
    for (int t = 0; t < p->n_tensors; t++)
        use[t] = 0;
    for (int s = 0; s < p->n_segments; s++)
        for (int k = 0; k < p->segments[s].n_ops; k++) {
            const struct op *op = &p->segments[s].ops[k];
            note(p, use, op->in, op->n_in, op_info(op->kind)->types_in);
            note(p, use, op->out, op->n_out, op_info(op->kind)->types_out);
        }
    for (int t = 0; t < p->n_tensors; t++) {
        struct tensor *x = &p->tensors[t];
        int how = use[program_root(p, t)];
        if (x->dtype != from || !how)
            continue;
        if (how == (HAS_REAL | HAS_WIDE) && op_wide_type(to) != to)
            return err_set(e, ERR_INTERNAL,
                           "'%s' is both an activation and a sum: it has no single type in %s",
                           x->name, dtype_text(to));
        x->dtype = how & HAS_REAL ? to : op_wide_type(to);
        if (storage_plain(x->storage)) // codes keep their size
            x->bytes = x->bytes / dtype_bytes(from) * dtype_bytes(x->dtype);
    }
    return 0;
}

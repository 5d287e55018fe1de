// scratch.c - memory that the kernels of an op use while they run: partial sums, a library's
// workspace.
//
// How much that is depends on who runs the op, so the rule comes from outside. Scratch is a tensor
// like others: layout gives it bytes beside what is alive at that moment, and `show` lists it.
#include "program/program.h"

#include <stdio.h>

int scratch_apply(struct program *p, scratch_fn *bytes, const void *arg, struct err *e) {
    TRY(program_finish(p, e));
    for (int s = 0; s < p->n_segments; s++)
        for (int i = 0; i < p->segments[s].n_ops; i++) {
            struct op *op = &p->segments[s].ops[i];
            const uint64_t n = bytes(arg, p, op);
            const int after = op->n_out > 0 ? op->out[0] : -1;
            char name[200];
            if (n == 0)
                continue;
            snprintf(name, sizeof name, "%.150s.scratch",
                     after >= 0 ? p->tensors[after].name : op_info(op->kind)->name);
            op->scratch =
                program_tensor_1d(p, name, DTYPE_U8, CLASS_WORKSPACE, LIFE_SEGMENT, (int64_t)n);
            if (op->scratch >= 0)
                p->tensors[op->scratch].layer = op->layer;
        }
    return program_finish(p, e);
}

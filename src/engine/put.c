// put.c - values for the weights that train, from somewhere else than the model's folder.
#include "engine/engine.h"

#include <stdlib.h>

enum { PUT_ELEMENTS = 1 << 16 };

struct put {
    struct session *s;
    session_values_fn *values;
    void *arg;
    float *block;
    unsigned char *typed; // the same in the tensor's type
};

// Every program of a plan has every weight of this rank, so the first program serves.
enum { ANY = 0 };

static int put_tensor(const struct put *x, const struct model_param *param, int index,
                      struct err *e) {
    const struct tensor *t = &x->s->plan->programs[ANY]->tensors[index];
    const uint64_t width = dtype_bytes(t->dtype);
    int64_t logical, n;
    for (int64_t at = 0; at < tensor_elements(t); at += n) {
        tensor_run(t, at, &logical, &n);
        n = n < PUT_ELEMENTS ? n : PUT_ELEMENTS;
        TRY(x->values(x->arg, param, logical, n, x->block, e));
        dtype_convert(x->typed, t->dtype, x->block, DTYPE_F32, (size_t)n);
        TRY(exec_write_part(x->s->exec, ANY, index, (uint64_t)at * width, x->typed,
                            (uint64_t)n * width, e));
    }
    return 0;
}

int session_put(struct session *s, session_values_fn *values, void *arg, struct err *e) {
    const struct program *p = s->plan->programs[ANY];
    const struct chosen chosen = plan_chosen(s->plan);
    struct put x = {.s = s,
                    .values = values,
                    .arg = arg,
                    .block = malloc(PUT_ELEMENTS * sizeof(float)),
                    .typed = malloc(PUT_ELEMENTS * dtype_bytes(DTYPE_F64))};
    struct model_param param;
    bool pair;
    int rc = x.block && x.typed ? 0 : err_set(e, ERR_MEMORY, "out of memory for an adapter");
    for (int64_t i = 0; rc == 0 && chosen_at(&chosen, &s->plan->shape, i, &param, &pair); i++) {
        const int t = program_find(p, param.name);
        if (t < 0 && p->world > 1) // another rank has it
            continue;
        if (t < 0)
            rc = err_set(e, ERR_INTERNAL, "no program knows the weight '%s'", param.name);
        if (rc == 0)
            rc = put_tensor(&x, &param, t, e);
        if (rc == 0 && p->tensors[t].master >= 0)
            rc = put_tensor(&x, &param, p->tensors[t].master, e);
    }
    free(x.block);
    free(x.typed);
    return rc;
}

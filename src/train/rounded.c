// rounded.c - see rounded.h.
#include "train/rounded.h"

#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

enum { ANY = 0 }; // every program of a plan has every weight

static int add(struct rounded *r, const struct plan *p, const struct model_param *param,
               struct storage storage, struct err *e) {
    const bool table = param->role == ROLE_WTE || param->role == ROLE_HEAD_W;
    *r = (struct rounded){
        .param = *param, .in_out = p->shape.in_out_weights && !table, .storage = storage};
    quantized_turn(&p->shape, &r->param);
    r->tensor = program_find(p->programs[ANY], param->name);
    if (r->tensor < 0 || !storage_plain(p->programs[ANY]->tensors[r->tensor].storage))
        return err_set(e, ERR_INTERNAL, "no program has the weight '%s' as plain values",
                       param->name);
    if (!storage_layout(storage, r->param.dims[0], r->param.dims[1], &r->parts))
        return err_set(e, ERR_INTERNAL, "'%s' does not fit its format", param->name);
    r->bytes = calloc(1, (size_t)r->parts.bytes + 1);
    return r->bytes ? 0 : err_set(e, ERR_MEMORY, "out of memory for '%s'", param->name);
}

int rounded_list(struct rounded **out, int *n, const struct plan *p, const struct quantized *s,
                 struct err *e) {
    struct model_param param;
    *n = 0;
    *out = calloc((size_t)model_param_count(&p->shape) + 1, sizeof **out);
    if (!*out)
        return err_set(e, ERR_MEMORY, "out of memory for the matrices of a model");
    for (int64_t i = 0; model_param_at(&p->shape, i, &param); i++) {
        const struct storage storage = quantized_as(s, &param);
        if (!storage_plain(storage))
            TRY(add(&(*out)[(*n)++], p, &param, storage, e));
    }
    return 0;
}

void rounded_free(struct rounded *all, int n) {
    for (int i = 0; all && i < n; i++)
        free(all[i].bytes);
    free(all);
}

int64_t rounded_elements(const struct rounded *r) {
    return r->param.dims[0] * r->param.dims[1];
}

int64_t rounded_largest(const struct rounded *all, int n) {
    int64_t most = 0;
    for (int i = 0; i < n; i++)
        most = rounded_elements(&all[i]) > most ? rounded_elements(&all[i]) : most;
    return most;
}

struct expanding {
    const struct rounded *r;
    float *values;
};

enum { SOME = 256 }; // elements of a row that are turned at a time

static void expand_share(void *arg, int thread, int threads) {
    const struct expanding *x = arg;
    const struct rounded *r = x->r;
    const int64_t cols = r->param.dims[1];
    int64_t begin, end;
    pool_share(r->param.dims[0], 1, thread, threads, &begin, &end);
    for (int64_t row = begin; row < end; row++)
        for (int64_t at = 0; at < cols; at += r->in_out ? SOME : cols) {
            float some[SOME];
            const int64_t left = cols - at, n = r->in_out && left > SOME ? SOME : left;
            if (!r->in_out) {
                storage_read_row(r->storage, &r->parts, r->bytes, row, 0, cols,
                                 x->values + row * cols);
                continue;
            }
            storage_read_row(r->storage, &r->parts, r->bytes, row, at, n, some);
            for (int64_t j = 0; j < n; j++)
                x->values[rounded_at(r, row, at + j)] = some[j];
        }
}

int rounded_put(const struct rounded *r, struct session *s, float *values, struct err *e) {
    struct expanding x = {r, values};
    pool_run(s->engine->pool, expand_share, &x);
    return rounded_write(r, s, values, e);
}

int rounded_read(const struct rounded *r, struct session *s, int tensor, float *out,
                 struct err *e) {
    return exec_read(s->exec, ANY, tensor, out, (uint64_t)rounded_elements(r) * sizeof *out, e);
}

int rounded_write(const struct rounded *r, struct session *s, const float *values, struct err *e) {
    return exec_write(s->exec, ANY, r->tensor, values,
                      (uint64_t)rounded_elements(r) * sizeof *values, e);
}

void student_knobs(struct knobs *k, int64_t sequences) {
    k->batch_micro = sequences;
    k->batch_accum = 1;
    k->precision = PRECISION_FP32;
    k->fuse_qkv = false;
    k->logits_pad = 1;
    k->logits_chunk = 0;
}

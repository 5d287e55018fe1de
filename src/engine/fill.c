// fill.c - fills the weights of a session, from the model's folder or by the model's rule for
// initial weights, and the tensors that never change.
#include "engine/engine.h"

#include "model/load.h"
#include "model/names.h"

#include <math.h>
#include <stdlib.h>

// A job for the pool: fill one weight by its rule for initial values.
struct init_job {
    const struct model_param *param;
    uint64_t seed;
    int64_t elements;
    enum dtype type;
    void *out;
};

enum { INIT_BLOCK = 4096, ROUND_BLOCK = 1 << 18 };

static void init_task(void *arg, int thread, int threads) {
    const struct init_job *job = arg;
    float block[INIT_BLOCK];
    int64_t begin, end;
    pool_share(job->elements, INIT_BLOCK, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i += INIT_BLOCK) {
        int64_t n = end - i < INIT_BLOCK ? end - i : INIT_BLOCK;
        if (job->type == DTYPE_F32) {
            model_param_init(job->param, job->seed, i, n, (float *)job->out + i);
            continue;
        }
        model_param_init(job->param, job->seed, i, n, block);
        dtype_convert((char *)job->out + (size_t)i * dtype_bytes(job->type), job->type, block,
                      DTYPE_F32, (size_t)n);
    }
}

// A 16-bit weight is its master, rounded. This works in pieces because the arena may be on a
// device.
static int round_weight(struct session *s, const struct program *p, int x, int weight, void *buffer,
                        struct err *e) {
    const struct tensor *w = &p->tensors[weight], *m = &p->tensors[w->master];
    char *wide = buffer, *narrow = wide + ROUND_BLOCK * dtype_bytes(DTYPE_F64);
    size_t from = dtype_bytes(m->dtype), to = dtype_bytes(w->dtype);
    int64_t all = tensor_elements(w);
    for (int64_t i = 0; i < all; i += ROUND_BLOCK) {
        size_t n = (size_t)(all - i < ROUND_BLOCK ? all - i : ROUND_BLOCK), at = (size_t)i;
        TRY(exec_read_part(s->exec, x, w->master, at * from, wide, n * from, e));
        dtype_convert(narrow, w->dtype, wide, m->dtype, n);
        TRY(exec_write_part(s->exec, x, weight, at * to, narrow, n * to, e));
    }
    return 0;
}

int session_round_weights(struct session *s, struct err *e) {
    const struct program *p = plan_program(s->plan, PLAN_TRAIN);
    void *buffer = NULL;
    int rc = 0;
    for (int t = 0; rc == 0 && p && t < p->n_tensors; t++) {
        if (p->tensors[t].master < 0)
            continue;
        if (!buffer && !(buffer = malloc(ROUND_BLOCK * 2 * dtype_bytes(DTYPE_F64))))
            rc = err_set(e, ERR_MEMORY, "out of memory while rounding weights");
        else
            rc = round_weight(s, p, plan_find(s->plan, PLAN_TRAIN), t, buffer, e);
    }
    free(buffer);
    return rc;
}

// Every program of a plan has every weight, so the first program serves.
enum { ANY = 0 };

// One such weight makes every loss NaN.
static int refuse_not_finite(const struct session *s, const struct safetensors_entry *entry,
                             const void *data, enum dtype type, struct err *e) {
    const int64_t at = dtype_first_not_finite(data, type, (size_t)entry->elements);
    char quoted[NAMES_QUOTE_BYTES];
    double value;
    if (at < 0)
        return 0;
    dtype_convert(&value, DTYPE_F64, (const char *)data + (size_t)at * dtype_bytes(type), type, 1);
    return err_set(e, ERR_NUMERIC,
                   "%.300s: element %lld of tensor %s is %s in %s; every weight must be finite",
                   s->plan->knobs.model, (long long)at, names_quote(quoted, entry->name),
                   isnan(value) ? "not a number (NaN)" : "infinite", dtype_text(type));
}

static int load_weight(struct session *s, struct weights *files, const struct model_param *param,
                       struct err *e) {
    const struct program *p = s->plan->programs[ANY];
    int t = program_find(p, param->name);
    if (t < 0)
        return err_set(e, ERR_INTERNAL, "no program knows the weight '%s'", param->name);
    if (p->tensors[t].master >= 0)
        t = p->tensors[t].master;
    const struct tensor *tensor = &p->tensors[t];
    const int64_t n = tensor_elements(tensor);
    const uint64_t bytes = (uint64_t)n * dtype_bytes(tensor->dtype);
    void *at = exec_host_address(s->exec, ANY, t), *staging = at ? NULL : malloc(bytes);
    if (!at && !staging)
        return err_set(e, ERR_MEMORY, "out of memory while loading '%s'", param->name);
    int rc = 0;
    if (files) {
        const struct safetensors_entry *entry =
            weights_find_param(files, &s->plan->shape, param, e);
        rc = entry ? weights_read(files, entry, 0, n, at ? at : staging, tensor->dtype, e)
                   : (e ? e->code : ERR_FORMAT);
        if (rc == 0)
            rc = refuse_not_finite(s, entry, at ? at : staging, tensor->dtype, e);
    } else {
        struct init_job job = {param, (uint64_t)s->plan->knobs.seed, n, tensor->dtype,
                               at ? at : staging};
        pool_run(s->engine->pool, init_task, &job);
    }
    if (rc == 0 && staging)
        rc = exec_write(s->exec, ANY, t, staging, bytes, e);
    free(staging);
    return rc;
}

static int load_weights(struct session *s, struct err *e) {
    struct weights *files = NULL;
    struct model_param param;
    int rc = s->plan->from_folder ? weights_open(&files, s->plan->knobs.model, e) : 0;
    if (rc == 0 && files && !s->plan->knobs.allow_extra &&
        (rc = weights_refuse_extra(files, &s->plan->shape, e)) != 0)
        err_context(e, "%.300s", s->plan->knobs.model);
    for (int64_t i = 0; rc == 0 && model_param_at(&s->plan->shape, i, &param); i++)
        rc = load_weight(s, files, &param, e);
    if (files)
        weights_close(files);
    return rc == 0 ? session_round_weights(s, e) : rc;
}

static int write_constants(struct session *s, struct err *e) {
    const struct model_shape *shape = &s->plan->shape;
    if (shape->rope.theta <= 0)
        return 0;
    uint64_t bytes = (uint64_t)(shape->head_dim / 2) * sizeof(float);
    float *frequencies = malloc(bytes);
    if (!frequencies)
        return err_set(e, ERR_MEMORY, "out of memory for rotary frequencies");
    model_rope_frequencies(shape, frequencies);
    int rc = exec_write(s->exec, ANY, program_find(s->plan->programs[ANY], NAME_INV_FREQ),
                        frequencies, bytes, e);
    free(frequencies);
    return rc;
}

int session_fill(struct session *s, struct err *e) {
    if (!s->kept_weights)
        TRY(load_weights(s, e));
    return write_constants(s, e);
}

// fill.c - fills the weights of a session, from the model's folder or by the model's rule for
// initial weights, and the tensors that never change.
#include "engine/engine.h"

#include "model/adapter_file.h"
#include "model/load.h"
#include "model/names.h"

#include <math.h>
#include <stdlib.h>

// A job for the pool: fill elements [first, first + elements) of a weight by its rule for initial
// values.
struct init_job {
    const struct model_param *param;
    uint64_t seed;
    int64_t first, elements;
    enum dtype type;
    void *out;
};

enum { INIT_BLOCK = 4096 };

static void init_task(void *arg, int thread, int threads) {
    const struct init_job *job = arg;
    float block[INIT_BLOCK];
    int64_t begin, end;
    pool_share(job->elements, INIT_BLOCK, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i += INIT_BLOCK) {
        int64_t n = end - i < INIT_BLOCK ? end - i : INIT_BLOCK;
        if (job->type == DTYPE_F32) {
            model_param_init(job->param, job->seed, job->first + i, n, (float *)job->out + i);
            continue;
        }
        model_param_init(job->param, job->seed, job->first + i, n, block);
        dtype_convert((char *)job->out + (size_t)i * dtype_bytes(job->type), job->type, block,
                      DTYPE_F32, (size_t)n);
    }
}

// Every program of a plan has every weight of this rank, so the first program serves.
enum { ANY = 0 };

// One such weight makes every loss NaN.
static int refuse_not_finite(const struct session *s, const struct tensor *t,
                             const struct safetensors_entry *entry, const void *data,
                             struct err *e) {
    const int64_t at = dtype_first_not_finite(data, t->dtype, (size_t)tensor_elements(t));
    char quoted[NAMES_QUOTE_BYTES];
    int64_t logical, n;
    double value;
    if (at < 0)
        return 0;
    tensor_run(t, at, &logical, &n);
    dtype_convert(&value, DTYPE_F64, (const char *)data + (size_t)at * dtype_bytes(t->dtype),
                  t->dtype, 1);
    return err_set(e, ERR_NUMERIC,
                   "%.300s: element %lld of tensor %s is %s in %s; every weight must be finite",
                   s->plan->knobs.model, (long long)logical, names_quote(quoted, entry->name),
                   isnan(value) ? "not a number (NaN)" : "infinite", dtype_text(t->dtype));
}

// Where the values of a parameter come from. Both NULL: the rule for initial values.
struct source {
    struct weights *files;        // of the model's folder
    struct adapter_file *adapter; // lora.from
};

// Fills this rank's part of a parameter, a run at a time.
static int fill_runs(struct session *s, const struct source *from, const struct model_param *param,
                     const struct tensor *t, char *out, struct err *e) {
    const struct safetensors_entry *entry = NULL;
    const size_t width = dtype_bytes(t->dtype);
    int64_t logical, run;
    if (from->files && !(entry = weights_find_param(from->files, &s->plan->shape, param, e)))
        return e ? e->code : ERR_FORMAT;
    for (int64_t at = 0; at < tensor_elements(t); at += run) {
        tensor_run(t, at, &logical, &run);
        if (entry) {
            TRY(weights_read(from->files, entry, logical, run, out + (size_t)at * width, t->dtype,
                             e));
            continue;
        }
        if (from->adapter) {
            TRY(adapter_file_read(from->adapter, param, logical, run, out + (size_t)at * width,
                                  t->dtype, e));
            continue;
        }
        struct init_job job = {param,    (uint64_t)s->plan->knobs.seed, logical, run,
                               t->dtype, out + (size_t)at * width};
        if (run > INIT_BLOCK)
            pool_run(s->engine->pool, init_task, &job);
        else
            init_task(&job, 0, 1);
    }
    // A 16-bit weight is checked as its master.
    return entry && t->master < 0 ? refuse_not_finite(s, t, entry, out, e) : 0;
}

// Weights on their way to a device: host memory that is taken once for all of them. Where the arena
// is the host's own, weights are filled in their place.
enum { STAGING_MASTER, STAGING_WEIGHT, STAGING_COUNT };
struct filling {
    struct session *s;
    struct source from;
    struct {
        void *data;
        uint64_t bytes;
    } staging[STAGING_COUNT];
};

// Where the host writes a weight.
static int take_place(struct filling *f, int index, int which, void **out, struct err *e) {
    const struct tensor *t = &f->s->plan->programs[ANY]->tensors[index];
    const uint64_t bytes = tensor_bytes(t);
    *out = exec_host_address(f->s->exec, ANY, index);
    if (*out)
        return 0;
    if (bytes > f->staging[which].bytes) {
        free(f->staging[which].data);
        f->staging[which].data = malloc(bytes);
        f->staging[which].bytes = f->staging[which].data ? bytes : 0;
        if (!f->staging[which].data)
            return err_set(e, ERR_MEMORY, "out of memory while loading '%s': %llu bytes", t->name,
                           (unsigned long long)bytes);
    }
    *out = f->staging[which].data;
    return 0;
}

static int send(struct filling *f, int index, const void *data, struct err *e) {
    struct executor *x = f->s->exec;
    const uint64_t bytes = tensor_bytes(&f->s->plan->programs[ANY]->tensors[index]);
    return exec_host_address(x, ANY, index) ? 0 : exec_write(x, ANY, index, data, bytes, e);
}

static int fill_tensor(struct filling *f, const struct model_param *param, int index, int which,
                       void **data, struct err *e) {
    const struct tensor *t = &f->s->plan->programs[ANY]->tensors[index];
    TRY(take_place(f, index, which, data, e));
    if (!storage_plain(t->storage)) {
        struct model_param turned = *param;
        quantized_turn(&f->s->plan->shape, &turned);
        TRY(quantized_load(f->from.files, t->storage, &turned, *data, e));
        return send(f, index, *data, e);
    }
    TRY(fill_runs(f->s, &f->from, param, t, *data, e));
    return send(f, index, *data, e);
}

struct rounding {
    const struct tensor *from_tensor, *to_tensor;
    const char *from;
    char *to;
};

static void round_task(void *arg, int thread, int threads) {
    const struct rounding *r = arg;
    const enum dtype from = r->from_tensor->dtype, to = r->to_tensor->dtype;
    int64_t begin, end;
    pool_share(tensor_elements(r->to_tensor), INIT_BLOCK, thread, threads, &begin, &end);
    if (begin < end)
        dtype_convert(r->to + (size_t)begin * dtype_bytes(to), to,
                      r->from + (size_t)begin * dtype_bytes(from), from, (size_t)(end - begin));
}

// A 16-bit weight is its master, rounded. Where this rank holds only a part of the master, the
// weight is read as well.
static int load_weight(struct filling *f, const struct model_param *param, struct err *e) {
    const struct program *p = f->s->plan->programs[ANY];
    const int t = program_find(p, param->name);
    void *wide, *narrow;
    if (t < 0 && p->world > 1) // another rank has it
        return 0;
    if (t < 0)
        return err_set(e, ERR_INTERNAL, "no program knows the weight '%s'", param->name);
    const int master = p->tensors[t].master;
    if (master >= 0)
        TRY(fill_tensor(f, param, master, STAGING_MASTER, &wide, e));
    if (master < 0 || tensor_elements(&p->tensors[master]) != tensor_elements(&p->tensors[t]))
        return fill_tensor(f, param, t, STAGING_WEIGHT, &narrow, e);
    TRY(take_place(f, t, STAGING_WEIGHT, &narrow, e));
    struct rounding r = {&p->tensors[master], &p->tensors[t], wide, narrow};
    pool_run(f->s->engine->pool, round_task, &r);
    return send(f, t, narrow, e);
}

static int open_source(const struct plan *p, struct source *from, struct err *e) {
    if (p->knobs.lora_from[0] != '\0')
        TRY(adapter_file_open(&from->adapter, p->knobs.lora_from, &p->shape, e));
    if (!p->from_folder)
        return 0;
    TRY(weights_open(&from->files, p->knobs.model, e));
    const int rc =
        p->knobs.allow_extra ? 0 : weights_refuse_extra(from->files, &p->shape, &p->quantized, e);
    if (rc != 0)
        err_context(e, "%.300s", p->knobs.model);
    return rc;
}

static int load_weights(struct session *s, struct err *e) {
    struct filling f = {.s = s};
    struct source all = {0};
    struct model_param param;
    bool pair; // an adapter's, which is not in the model's files
    int rc = open_source(s->plan, &all, e);
    for (int64_t i = 0; rc == 0 && plan_param_at(s->plan, i, &param, &pair); i++) {
        const bool adapted =
            all.adapter &&
            (pair || adapter_config_replaces(adapter_file_config(all.adapter), &param));
        f.from = (struct source){.files = pair || adapted ? NULL : all.files,
                                 .adapter = adapted ? all.adapter : NULL};
        rc = load_weight(&f, &param, e);
    }
    for (int i = 0; i < STAGING_COUNT; i++)
        free(f.staging[i].data);
    if (all.files)
        weights_close(all.files);
    adapter_file_close(all.adapter);
    return rc;
}

// GRAD_SCALE takes its factor from a tensor like NAME_CLIP.
static int write_average(struct session *s, struct err *e) {
    const int x = plan_find(s->plan, PLAN_AVERAGE);
    const double clip[CLIP_COUNT] = {[CLIP_FACTOR] =
                                         1.0 / mesh_size(&s->plan->ranks.mesh, AXIS_DATA)};
    return x < 0 ? 0
                 : exec_write(s->exec, x, plan_tensor(s->plan, PLAN_AVERAGE, NAME_AVERAGE), clip,
                              sizeof clip, e);
}

static int write_frequencies(struct session *s, struct err *e) {
    const struct model_shape *shape = &s->plan->shape;
    if (shape->rope.theta <= 0)
        return 0;
    uint64_t bytes = (uint64_t)(shape->head_dim / 2) * sizeof(float);
    float *frequencies = malloc(bytes);
    if (!frequencies)
        return err_set(e, ERR_MEMORY, "out of memory for rotary frequencies");
    model_rope_frequencies(shape, frequencies);
    const int t = program_find(s->plan->programs[ANY], NAME_INV_FREQ);
    int rc = t >= 0 ? exec_write(s->exec, ANY, t, frequencies, bytes, e) : 0;
    free(frequencies);
    return rc;
}

int session_fill(struct session *s, struct err *e) {
    if (!s->kept_weights)
        TRY(load_weights(s, e));
    TRY(write_average(s, e));
    return write_frequencies(s, e);
}

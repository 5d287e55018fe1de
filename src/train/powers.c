// powers.c - see powers.h.
#include "train/powers.h"

#include "engine/engine.h"
#include "train/rounded.h"
#include "train/windows.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int read_one(struct powers *out, struct session *s, const struct model_param *p, int tensor,
                    struct err *e) {
    struct powers_of *x = &out->all[out->n];
    const struct program *program = plan_program(s->plan, PLAN_POWERS);
    const int64_t n = tensor_elements(&program->tensors[tensor]);
    double sum = 0;
    *x = (struct powers_of){.n = n, .mean = malloc((size_t)n * sizeof *x->mean)};
    if (!x->mean)
        return err_set(e, ERR_MEMORY, "out of memory for the activations of '%s'", p->name);
    out->n++;
    snprintf(x->name, sizeof x->name, "%s", p->name);
    TRY(exec_read(s->exec, plan_find(s->plan, PLAN_POWERS), tensor, x->mean,
                  (uint64_t)n * sizeof *x->mean, e));
    for (int64_t i = 0; i < n; i++)
        sum += (double)x->mean[i];
    if (!isfinite(sum))
        return err_set(e, ERR_NUMERIC,
                       "what '%s' is multiplied with is not finite: the weights are damaged",
                       p->name);
    const float by = sum > 0 ? (float)((double)n / sum) : 0;
    for (int64_t i = 0; i < n; i++)
        x->mean[i] = fmaxf(by > 0 ? x->mean[i] * by : 1, POWER_LEAST);
    return 0;
}

static int read_all(struct powers *out, struct session *s, struct err *e) {
    const struct model_shape *shape = &s->plan->shape;
    struct model_param p;
    out->all = calloc((size_t)model_param_count(shape) + 1, sizeof *out->all);
    if (!out->all)
        return err_set(e, ERR_MEMORY, "out of memory for activations");
    for (int64_t i = 0; model_param_at(shape, i, &p); i++) {
        char name[200];
        snprintf(name, sizeof name, NAME_POWER "%s", p.name);
        const int tensor = plan_tensor(s->plan, PLAN_POWERS, name);
        if (tensor >= 0)
            TRY(read_one(out, s, &p, tensor, e));
    }
    return 0;
}

static int run_all(struct powers *out, struct session *s, const struct score *data, uint64_t tokens,
                   const struct score_listener *l, struct err *e) {
    const double hyper[HYPER_COUNT] = {[HYPER_LOSS_FACTOR] = 1};
    const int64_t batch = s->plan->knobs.batch_micro, seq = s->plan->knobs.seq;
    const uint64_t windows = dataset_windows(data->data, SPLIT_TRAIN);
    const uint64_t wanted = (tokens + (uint64_t)seq - 1) / (uint64_t)seq;
    const uint64_t n = windows < wanted ? windows : wanted;
    struct windows w;
    int rc = windows_open(&w, data->data, SPLIT_TRAIN, batch, seq, e);
    if (rc == 0)
        rc = session_set_hyper(s, hyper, e);
    for (uint64_t at = 0; rc == 0 && at < n; at += (uint64_t)batch) {
        if (l->stop && *l->stop)
            rc = err_set(e, ERR_STOPPED, "stopped on request, while reading activations");
        if (rc == 0)
            rc = windows_fetch(&w, at, e);
        if (rc == 0)
            rc = session_run(s, PLAN_POWERS, windows_feed, &w, NULL, e);
        out->tokens += (uint64_t)(batch * seq);
        if (rc == 0 && l->progress)
            l->progress(l->arg, at + (uint64_t)batch < n ? at + (uint64_t)batch : n, n);
    }
    windows_close(&w);
    return rc;
}

int powers_measure(struct powers *out, const struct score *data, uint64_t tokens,
                   const struct score_listener *l, struct err *e) {
    struct knobs k;
    struct plan plan = {.prefix = ""};
    struct engine *engine = NULL;
    const struct plan_options o = {.knobs = &k, .programs = {PLAN_POWERS}, .real = DTYPE_F32};
    *out = (struct powers){0};
    score_plan_knobs(data, &k);
    const int64_t chunk = k.logits_chunk;
    student_knobs(&k, k.batch_micro);
    k.logits_chunk = chunk;
    int rc = plan_make(&plan, &o, e);
    if (rc == 0)
        rc = engine_start(&engine, NULL, &plan, e);
    if (rc == 0)
        rc = run_all(out, engine->session, data, tokens, l, e);
    if (rc == 0)
        rc = read_all(out, engine->session, e);
    engine_close(engine);
    plan_free(&plan);
    return rc;
}

void powers_free(struct powers *p) {
    for (int i = 0; i < p->n; i++)
        free(p->all[i].mean);
    free(p->all);
    *p = (struct powers){0};
}

const float *powers_find(const struct powers *p, const char *name) {
    for (int i = 0; p && i < p->n; i++)
        if (strcmp(p->all[i].name, name) == 0)
            return p->all[i].mean;
    return NULL;
}

// stepper.c - see stepper.h.
#include "stepper.h"

#include <math.h>
#include <string.h>

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct stepper *g = arg;
    int64_t at = micro * g->batch.rows;
    (void)e;
    *out = (struct exec_batch){g->batch.tokens + at, g->batch.targets + at, g->batch.positions + at,
                               g->batch.doc_start + at};
    return 0;
}

static int open_with(struct stepper *g, const struct knobs *k, struct err *e) {
    const int64_t B = k->batch_micro, T = k->seq;
    const struct plan_options o = {.knobs = k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    TRY(at_work_plan(&g->work, &o, e));
    TRY(at_work_start(&g->work, NULL, e));
    TRY(dataset_open(&g->data, &(struct dataset_options){.seed = 1, .seq = T}, e));
    struct loader_options lo = {.dataset = g->data,
                                .batch = B,
                                .micro_batches = 1,
                                .replicas = 1,
                                .prefetch = 2,
                                .workers = 1};
    return loader_open(&g->loader, &lo, g->work.engine->mem, e);
}

int stepper_open(struct stepper *g, const char *model, const char *blas, int64_t B, int64_t T,
                 int threads, struct err *e) {
    struct knobs k;
    knobs_init(&k);
    k.batch_micro = B, k.seq = T, k.threads = threads, k.device = DEVICE_CPU;
    TRY(knobs_set(&k, "model", model, SET_BY_COMMAND_LINE, e));
    TRY(knobs_set(&k, "cpu.blas", blas, SET_BY_COMMAND_LINE, e));
    return open_with(g, &k, e);
}

int stepper_open_cpu(struct stepper *g, const char *model, const char *precision, const char *isa,
                     int64_t B, int64_t T, int threads, struct err *e) {
    struct knobs k;
    knobs_init(&k);
    k.batch_micro = B, k.seq = T, k.threads = threads, k.device = DEVICE_CPU;
    TRY(knobs_set(&k, "model", model, SET_BY_COMMAND_LINE, e));
    TRY(knobs_set(&k, "precision", precision, SET_BY_COMMAND_LINE, e));
    TRY(knobs_set(&k, "cpu.isa", isa, SET_BY_COMMAND_LINE, e));
    return open_with(g, &k, e);
}

int stepper_open_cuda(struct stepper *g, const char *model, const char *precision, int64_t B,
                      int64_t T, bool graphs, char *const *settings, struct err *e) {
    struct knobs k;
    knobs_init(&k);
    k.batch_micro = B, k.seq = T, k.device = DEVICE_CUDA, k.cuda_graphs = graphs;
    TRY(knobs_set(&k, "model", model, SET_BY_COMMAND_LINE, e));
    TRY(knobs_set(&k, "precision", precision, SET_BY_COMMAND_LINE, e));
    for (; *settings; settings++)
        TRY(knobs_set_assignment(&k, *settings, SET_BY_COMMAND_LINE, e));
    return open_with(g, &k, e);
}

void stepper_close(struct stepper *g) {
    if (g->loader)
        loader_close(g->loader);
    if (g->data)
        dataset_close(g->data);
    at_work_close(&g->work);
    memset(g, 0, sizeof *g);
}

int stepper_step(struct stepper *g, struct trace *trace, struct err *e) {
    TRY(loader_next(g->loader, &g->batch, e));
    double t = (double)++g->step;
    double h[HYPER_COUNT] = {[HYPER_LR] = 1e-4,
                             [HYPER_BETA1] = 0.9,
                             [HYPER_BETA2] = 0.999,
                             [HYPER_EPS] = 1e-8,
                             [HYPER_DECAY] = 0.01,
                             [HYPER_CLIP] = 1.0,
                             [HYPER_BIAS1] = 1 - pow(0.9, t),
                             [HYPER_BIAS2] = 1 - pow(0.999, t),
                             [HYPER_LOSS_FACTOR] = 1.0 / (double)g->batch.step_trained_tokens};
    double results[RESULT_COUNT];
    TRY(session_set_hyper(g->work.s, h, e));
    TRY(session_run(g->work.s, PLAN_TRAIN, feed, g, trace, e));
    TRY(session_get_results(g->work.s, results, NULL, e));
    loader_release(g->loader);
    return isfinite(results[RESULT_LOSS_SUM]) ? 0
                                              : err_set(e, ERR_NUMERIC, "the loss is not finite");
}

// engine.h - a model in training with nothing around it: what benches time.
#ifndef HAGGLE_BENCH_ENGINE_H
#define HAGGLE_BENCH_ENGINE_H

#include "data/loader.h"
#include "train/session.h"

struct engine {
    struct session s;
    struct dataset *data;
    struct loader *loader;
    struct loader_batch batch;
    int64_t step;
};

int engine_open(struct engine *g, const char *model, const char *blas, int64_t B, int64_t T,
                int threads, struct err *e);
int engine_open_cpu(struct engine *g, const char *model, const char *precision, const char *isa,
                    int64_t B, int64_t T, int threads, struct err *e);
int engine_open_cuda(struct engine *g, const char *model, const char *precision, int64_t B,
                     int64_t T, bool graphs, struct err *e);
void engine_close(struct engine *g);
// One optimizer step, loader and update included. trace may be NULL.
int engine_step(struct engine *g, struct trace *trace, struct err *e);

#endif

// stepper.h - a model and its training step, with nothing around it, for benches to time.
#ifndef HAGGLE_BENCH_STEPPER_H
#define HAGGLE_BENCH_STEPPER_H

#include "at_work.h"
#include "data/loader.h"

struct stepper {
    struct at_work work;
    struct dataset *data;
    struct loader *loader;
    struct loader_batch batch;
    int64_t step;
};

int stepper_open(struct stepper *g, const char *model, const char *blas, int64_t B, int64_t T,
                 int threads, struct err *e);
int stepper_open_cpu(struct stepper *g, const char *model, const char *precision, const char *isa,
                     int64_t B, int64_t T, int threads, struct err *e);
// settings: "knob=value", up to a NULL.
int stepper_open_cuda(struct stepper *g, const char *model, const char *precision, int64_t B,
                      int64_t T, bool graphs, char *const *settings, struct err *e);
void stepper_close(struct stepper *g);
// One optimizer step, loader and update included. trace may be NULL.
int stepper_step(struct stepper *g, struct trace *trace, struct err *e);

#endif

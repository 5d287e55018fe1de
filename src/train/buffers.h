// buffers.h - the memory that a run takes on the host beside its arenas: batches made ahead, the
// trace, the buffer of a checkpoint, requests.
//
// Place: the bytes depend on the open data and on the plan's knobs, so they are counted after
// plan_make. The trainer, show, fit and the tuner all count them here, so they get the same figure.
#ifndef HAGGLE_TRAIN_BUFFERS_H
#define HAGGLE_TRAIN_BUFFERS_H

#include "data/loader.h"
#include "plan/plan.h"

struct buffers {
    const struct dataset *data;
    size_t trace_events;    // most op events that the trace keeps; 0: totals only
    uint64_t request_bytes; // memory of the source of a hybrid run's requests; 0: no requests
};

// Opens the dataset that the plan's knobs name, for the plan's model. If the knob epochs is set, it
// is replaced by the steps that it means (buffers_set_steps).
int buffers_open_data(struct dataset **out, struct plan *p, const struct shard_listener *listener,
                      struct err *e);
int buffers_set_steps(struct knobs *k, const struct dataset *d, struct err *e);
// Passes over the training data that so many samples make; NaN: the data never repeats.
double buffers_epochs(const struct dataset *d, uint64_t samples);
// Counts the bytes for a plan and stores them in it (plan_set_host). ERR_MEMORY when the batches of
// a step would not fit in the address space.
int buffers_count(const struct buffers *b, struct plan *p, struct err *e);

// The parts, for the trainer, which allocates them.
struct loader_options buffers_loader(const struct buffers *b, const struct plan *p);
// Events that the trace keeps: as many as the whole run can make, up to trace_events. Rounded up to
// a power of two, as trace_open does.
size_t buffers_trace_capacity(const struct buffers *b, const struct plan *p);
// Samples of step times: one per step, up to a limit.
size_t buffers_sample_capacity(const struct knobs *k);

#endif

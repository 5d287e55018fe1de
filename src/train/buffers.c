// buffers.c - see buffers.h.
#include "train/buffers.h"

#include "measure/sample.h"
#include "measure/trace.h"
#include "train/evaluate.h"
#include "train/guest.h"
#include "train/sample.h"
#include "train/snapshot.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

int buffers_open_data(struct dataset **out, struct plan *p, const struct shard_listener *listener,
                      struct err *e) {
    TRY(dataset_open_knobs(out, &p->knobs, p->from_folder ? p->knobs.model : NULL, p->shape.vocab,
                           listener, e));
    return buffers_set_steps(&p->knobs, *out, e);
}

double buffers_epochs(const struct dataset *d, uint64_t samples) {
    const uint64_t windows = dataset_windows(d, SPLIT_TRAIN);
    return windows == DATASET_ENDLESS ? NAN : (double)samples / (double)windows;
}

int buffers_set_steps(struct knobs *k, const struct dataset *d, struct err *e) {
    const uint64_t windows = dataset_windows(d, SPLIT_TRAIN);
    const double per_step = (double)knobs_samples(k);
    char text[32];
    if (!(k->epochs > 0))
        return 0;
    if (windows == DATASET_ENDLESS)
        return err_set(
            e, ERR_USAGE,
            "epochs=%g: the built-in corpus in bytes never repeats, so it has no passes; "
            "set steps, or data.path",
            k->epochs);
    const double steps = ceil(k->epochs * (double)windows / per_step);
    if (!(steps <= (double)knob_info(KNOB_steps)->most_int))
        return err_set(e, ERR_USAGE,
                       "epochs=%g are %.3g steps of %g sequences; accepted: up to %" PRId64
                       " steps",
                       k->epochs, steps, per_step, knob_info(KNOB_steps)->most_int);
    snprintf(text, sizeof text, "%.0f", steps);
    return knobs_set_at(k, KNOB_steps, text, SET_BY_PLANNER, e); // epochs is 0 from now on
}

struct loader_options buffers_loader(const struct buffers *b, const struct plan *p) {
    const struct knobs *k = &p->knobs;
    return (struct loader_options){.dataset = b->data,
                                   .split = SPLIT_TRAIN,
                                   .batch = k->batch_micro,
                                   .micro_batches = k->batch_accum,
                                   .replica = p->ranks.mesh.at[AXIS_DATA],
                                   .replicas = mesh_size(&p->ranks.mesh, AXIS_DATA),
                                   .prefetch = (int)k->data_prefetch,
                                   .workers = (int)k->data_workers,
                                   .source_rate = k->data_source_rate,
                                   .ram = k->data_ram};
}

size_t buffers_sample_capacity(const struct knobs *k) {
    return k->steps < SAMPLES_DEFAULT_CAPACITY ? (size_t)k->steps + 1 : SAMPLES_DEFAULT_CAPACITY;
}

size_t buffers_trace_capacity(const struct buffers *b, const struct plan *plan) {
    const struct program *noise = plan_program(plan, PLAN_NOISE),
                         *average = plan_program(plan, PLAN_AVERAGE),
                         *p = noise ? noise : plan_program(plan, PLAN_TRAIN);
    uint64_t per_step = SPAN_COUNT, events = 0;
    size_t size = 1;
    if (b->trace_events == 0)
        return 0;
    for (int i = 0; i < p->n_order; i++)
        per_step += (uint64_t)p->segments[p->order[i].segment].n_ops;
    for (int i = 0; average && i < average->n_order; i++)
        per_step += (uint64_t)average->segments[average->order[i].segment].n_ops;
    events = (uint64_t)plan->knobs.steps * per_step;
    if (events > b->trace_events)
        events = b->trace_events;
    while (size < events)
        size *= 2;
    return size;
}

int buffers_count(const struct buffers *b, struct plan *p, struct err *e) {
    const struct knobs *k = &p->knobs;
    const struct loader_options loader = buffers_loader(b, p);
    uint64_t bytes = loader_plan_bytes(&loader);
    if (bytes > UINT64_MAX / 2)
        return err_set(e, ERR_MEMORY,
                       "batch.accum=%" PRId64 " x batch.micro=%" PRId64 " x seq=%" PRId64
                       " tokens are more than memory can address",
                       k->batch_accum, k->batch_micro, k->seq);
    if (k->eval_every > 0)
        bytes += evaluator_plan_bytes(k, b->data);
    bytes += 2 * buffers_sample_capacity(k) * sizeof(double);
    plan_set_host(p,
                  &(struct plan_host){
                      .loader = bytes,
                      .trace = buffers_trace_capacity(b, p) * sizeof(struct trace_event),
                      .saving = knobs_saves(k) ? SNAPSHOT_BUFFER_BYTES : 0,
                      .requests = b->request_bytes > 0 ? b->request_bytes + guests_plan_bytes() : 0,
                      .texts = plan_extend_rows(p, (int64_t[PLAN_PROGRAMS_MOST]){0}) > 0
                                   ? sample_plan_bytes(p, k->generate_tokens)
                                   : 0});
    return 0;
}

// estimate.h - how long a step takes and how much memory it needs, for a layout of ranks on a
// cluster that is not here.
//
// A step of 80 layers on 1,024 devices is not built whole. The engine's own passes build a rank's
// program of a model with few layers, twice: with SAMPLE_LAYERS and with twice as many. Simulating
// and measuring both gives what a layer adds, and what there is beside layers. A pipeline is then
// simulated in the engine's order of micro-batches, each turn of a chunk as one op.
// tests/planner/test_estimate.c compares with the simulation of whole programs.
//
// Place in the flow: a setup (rows.c makes it from a line of a table, search.c from a question)
// becomes a sample, a sample becomes estimates with any constants.
#ifndef HAGGLE_PLANNER_ESTIMATE_H
#define HAGGLE_PLANNER_ESTIMATE_H

#include "model/adapter.h"
#include "model/shape.h"
#include "planner/costs.h"
#include "program/recompute.h"
#include "program/state.h"

enum { SAMPLE_LAYERS = 2 };

struct planner_setup {
    struct model_shape shape;
    int64_t seq, micro, accum; // of a micro-batch; micro-batches of a step
    int tensor, pipe, data, context;
    int chunks; // of a stage; 1: not interleaved
    bool gpipe; // all forwards before the first backward
    int zero;
    bool every_micro; // gradients are summed after every micro-batch, not once per step
    bool sequence;    // a tensor group shares the rows between blocks
    enum recompute_kind recompute;
    enum planner_math math;
    enum state_type state;
    struct adapter adapter; // rank 0: all weights train
    bool quantized;         // frozen weights lie in 4 bits
    const struct planner_profile *profile;
};

struct estimate {
    double step_s, low_s, high_s;
    double micro_s;               // one micro-batch through all stages and back
    double flops;                 // of the model's products and attention, in a step, all devices
    double compute_s, comm_s;     // work of the slowest rank's streams in a step
    double bubble_s;              // its waiting for other stages
    double peak_bytes;            // of the neediest rank: the most that its tensors take at once
    double bytes;                 // with what the allocator and the driver take
    double by_class[CLASS_COUNT]; // the parts of peak_bytes
    int stage;                    // of that rank
    bool fits;
};

struct planner_sample; // programs of a setup, to be timed with any constants

// ERR_USAGE when ranks cannot share this model so.
int planner_sample_make(struct planner_sample **out, const struct planner_setup *s, struct err *e);
void planner_sample_free(struct planner_sample *s);
int planner_sample_estimate(const struct planner_sample *s, const struct cluster *c,
                            const struct planner_constants *k, struct estimate *out, struct err *e);
// Both in one.
int planner_estimate(const struct planner_setup *s, const struct cluster *c,
                     const struct planner_constants *k, struct estimate *out, struct err *e);
int planner_devices(const struct planner_setup *s);
int64_t planner_tokens(const struct planner_setup *s); // of a step

#endif

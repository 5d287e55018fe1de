// costs.h - how long an op takes on a device that is not here.
//
// Place in the flow: estimate.c walks programs of src/program with these times. FLOPs, bytes and
// sizes come from the ops; figures of the device from the catalog; everything that is neither from
// constants.def. Nothing here knows the name of a model, a shape or a source of data.
#ifndef HAGGLE_PLANNER_COSTS_H
#define HAGGLE_PLANNER_COSTS_H

#include "planner/hardware.h"
#include "program/program.h"

enum planner_constant {
#define CONSTANT(name, value, start, least, most, fitted, unit, meaning) COST_##name,
#include "planner/constants.def"
#undef CONSTANT
    COST_COUNT
};

struct planner_constants {
    double x[COST_COUNT];
};

struct planner_constant_info {
    const char *name, *unit, *meaning;
    double value, start, least, most;
    bool fitted;
};
const struct planner_constant_info *planner_constant_info(enum planner_constant c);
struct planner_constants planner_constants_default(void);

struct planner_profile {
    const char *name;
    bool fused, loss, flash, overlap, hides, each, pure, copies;
    int64_t bucket_mib;
    double kernels;
    enum planner_constant passes;
    int repositories;
    const char *meaning;
};
size_t planner_profile_count(void);
const struct planner_profile *planner_profile_at(size_t i);
// NULL: there is none of that name.
const struct planner_profile *planner_profile_find(const char *name);

// What products are computed in. PLANNER_FP8 products still have 16-bit operands in memory.
enum planner_math { PLANNER_FP32, PLANNER_FP16, PLANNER_BF16, PLANNER_FP8 };

// Where an op runs.
struct costing {
    const struct cluster *cluster;
    const struct planner_constants *constants;
    const struct planner_profile *profile;
    enum planner_math math;
    int tensor, data,
        context;       // ranks of a tensor group, of a data group (with context), of context
    int stages;        // between whose ranks messages go
    double dequantize; // bytes of weights written per byte read, where they are quantized
};

// For predict_programs_with; arg is a struct costing.
double cost_op(void *arg, const struct program *p, const struct op *op);
// Seconds that the host needs to start an op.
double cost_host(const struct costing *c, const struct op *op);
// Products [m,k] x [k,n].
double cost_product(const struct costing *c, double m, double n, double k, double flops);
// A message of a rank to the same rank of the next stage.
double cost_message(const struct costing *c, double bytes);
// A collective in which each rank sends `bytes`. `stride`: ranks between neighbours of the group.
double cost_collective(const struct costing *c, int ranks, int stride, double bytes);
// Largest arithmetic per second that the catalog gives for this math.
double cost_peak(const struct hardware_device *d, enum planner_math math);

#endif

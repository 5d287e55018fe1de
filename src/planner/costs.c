// costs.c - see costs.h.
#include "planner/costs.h"

#include <math.h>
#include <string.h>

enum { FIXED, FITTED };

static const struct planner_constant_info infos[COST_COUNT] = {
#define CONSTANT(name, value, start, least, most, fitted, unit, meaning)                           \
    [COST_##name] = {#name, unit, meaning, value, start, least, most, fitted == FITTED},
#include "planner/constants.def"
#undef CONSTANT
};

static const struct planner_profile profiles[] = {
#define PROFILE(name, fused, loss, flash, overlap, hides, each, pure, copies, bucket, kernels,     \
                passes, n, meaning)                                                                \
    {#name, fused,  loss,   flash,   overlap,       hides, each,                                   \
     pure,  copies, bucket, kernels, COST_##passes, n,     meaning},
#include "planner/profiles.def"
#undef PROFILE
};

const struct planner_constant_info *planner_constant_info(enum planner_constant c) {
    return &infos[c];
}

struct planner_constants planner_constants_default(void) {
    struct planner_constants c;
    for (int i = 0; i < COST_COUNT; i++)
        c.x[i] = infos[i].value;
    return c;
}

size_t planner_profile_count(void) {
    return sizeof profiles / sizeof *profiles;
}

const struct planner_profile *planner_profile_at(size_t i) {
    return i < planner_profile_count() ? &profiles[i] : NULL;
}

const struct planner_profile *planner_profile_find(const char *name) {
    for (size_t i = 0; i < planner_profile_count(); i++)
        if (strcmp(profiles[i].name, name) == 0)
            return &profiles[i];
    return NULL;
}

static double constant(const struct costing *c, enum planner_constant which) {
    return c->constants->x[which];
}

// ---------------------------------------------------------------- on the device

double cost_peak(const struct hardware_device *d, enum planner_math math) {
    const bool half = math == PLANNER_FP16 || (math == PLANNER_BF16 && d->bf16 > 0);
    const double fp32 = d->tf32_tflops > 0 ? d->tf32_tflops : d->fp32_tflops;
    double tflops = half && d->half_tflops > 0 ? d->half_tflops : fp32;
    if (math == PLANNER_FP8)
        tflops = d->fp8_tflops > 0 ? d->fp8_tflops : d->half_tflops > 0 ? d->half_tflops : fp32;
    return 1e12 * tflops;
}

static double product_share(const struct costing *c) {
    static const enum planner_constant shares[ARCH_COUNT] = {
        [ARCH_VOLTA] = COST_product_volta,
        [ARCH_AMPERE] = COST_product_ampere,
        [ARCH_ADA] = COST_product_ada,
        [ARCH_HOPPER] = COST_product_hopper,
        [ARCH_BLACKWELL] = COST_product_blackwell,
        [ARCH_CDNA3] = COST_product_cdna3,
        [ARCH_CPU] = COST_product_cpu,
    };
    const double share = constant(c, shares[c->cluster->device.arch]);
    const bool narrow = c->math == PLANNER_FP8 && c->cluster->device.fp8_tflops > 0;
    return narrow ? share * constant(c, COST_product_fp8) : share;
}

// Tiles of 128 x 128 go to the units in waves; the last wave may have few. A tile's depth costs a
// fixed part: filling and emptying its pipeline.
static double product_fill(const struct costing *c, double m, double n, double k) {
    enum { TILE = 128, ALIGNED = 64 };
    const double units = c->cluster->device.units;
    const double tiles = ceil(m / TILE) * ceil(n / TILE), waves = ceil(tiles / units);
    const double edge = m * n / (ceil(m / TILE) * TILE * ceil(n / TILE) * TILE);
    const double full = pow(tiles / (waves * units), constant(c, COST_product_wave));
    // Rows of operands then begin at any place of a line of memory.
    const bool ragged = fmod(n, ALIGNED) != 0 || fmod(k, ALIGNED) != 0;
    return edge * full * k / (k + constant(c, COST_product_depth)) *
           (ragged ? constant(c, COST_product_ragged) : 1);
}

double cost_product(const struct costing *c, double m, double n, double k, double flops) {
    return flops /
           (cost_peak(&c->cluster->device, c->math) * product_share(c) * product_fill(c, m, n, k));
}

static double memory_s(const struct costing *c, double bytes) {
    return bytes / (1e9 * c->cluster->device.memory_gbps * constant(c, COST_memory_share));
}

// Scores that are written count with every pass over them; they are all T x T, masked or not.
static double plain_attention_s(const struct costing *c, const struct op *op) {
    const double scores = (double)op->batch * (double)op->heads * (double)op->seq *
                          (double)op->seq * (double)c->context,
                 passes = constant(c, COST_score_passes);
    const bool backward = op->kind == OP_ATTENTION_BWD;
    const double products = backward ? 4 : 2;
    return memory_s(c, scores * 2 * passes * (backward ? 1 : 0.75)) +
           products * cost_product(c, (double)op->seq, (double)op->seq, (double)op->head_dim,
                                   2 * scores * (double)op->head_dim);
}

static enum planner_constant attention_share(const struct costing *c) {
    const enum hardware_arch a = c->cluster->device.arch;
    return a == ARCH_HOPPER || a == ARCH_BLACKWELL ? COST_attention_hopper : COST_attention_share;
}

// Ranks of a context group pass keys and values around while they compute.
static double attention_s(const struct costing *c, const struct op *op, double flops) {
    struct costing wide = *c; // scores are never computed in 8 bits
    if (wide.math == PLANNER_FP8)
        wide.math = PLANNER_BF16;
    const double head = (double)op->head_dim;
    const double rate = cost_peak(&c->cluster->device, wide.math) * product_share(&wide) *
                        constant(c, attention_share(c)) * 1.5 * head / (head + 64);
    const double kv = 4.0 * (double)op->batch * (double)op->seq * (double)op->kv_heads * head;
    const double ring =
        c->context > 1 ? cost_collective(c, c->context, c->tensor, kv * (c->context - 1)) : 0;
    const double compute =
        c->profile->flash ? flops * c->context / rate : plain_attention_s(&wide, op);
    return fmax(compute, ring);
}

static double kernel_s(const struct costing *c, double work) {
    return work + c->profile->kernels * constant(c, COST_kernel_s);
}

// The host prepares kernels while the device works, so only the sum over many of them counts
// (estimate.c).
double cost_host(const struct costing *c, const struct op *op) {
    switch (op_info(op->kind)->category) {
    case CAT_MATMUL:
    case CAT_ATTENTION:
    case CAT_OTHER:
    case CAT_COMM:
        return c->profile->kernels * constant(c, COST_launch_s);
    default:
        return 0; // ops of the optimizer are joined
    }
}

// ---------------------------------------------------------------- between devices

static double inside_node(const struct costing *c) {
    const struct hardware_device *d = &c->cluster->device;
    const bool new = d->arch == ARCH_HOPPER || d->arch == ARCH_BLACKWELL;
    return 1e9 * d->link_gbps * constant(c, new ? COST_link_hopper : COST_link_share);
}

double cost_collective(const struct costing *c, int ranks, int stride, double bytes) {
    const struct cluster *w = c->cluster;
    const double span = (double)ranks * stride, per_node = w->per_node;
    if (ranks < 2)
        return 0;
    const double inside = inside_node(c);
    if (span <= per_node)
        return constant(c, COST_link_s) * (ranks - 1) + bytes / inside;
    // All groups of a node share its network: each has the part of its ranks there.
    const double here = fmax(1, floor(per_node / stride)), nodes = ranks / here;
    const double crowd = 1 / (1 + constant(c, COST_network_crowd) * log2(nodes));
    const double between =
        w->node_bytes_per_s * here / per_node * constant(c, COST_network_share) * crowd;
    return constant(c, COST_network_s) * log2(fmax(2, nodes)) + w->latency_s +
           bytes / fmin(inside, between > 0 ? between : inside);
}

double cost_message(const struct costing *c, double bytes) {
    const struct cluster *w = c->cluster;
    const int stride = c->tensor * c->data;
    const double inside = inside_node(c);
    if (stride * 2 <= w->per_node)
        return constant(c, COST_link_s) + bytes / inside;
    const double between = w->node_bytes_per_s / w->per_node * constant(c, COST_network_share);
    return constant(c, COST_link_s) + w->latency_s +
           bytes / fmin(inside, between > 0 ? between : inside);
}

static double comm_s(const struct costing *c, const struct program *p, const struct op *op,
                     double bytes) {
    if (op->kind == OP_SEND || op->kind == OP_RECV)
        return cost_message(c, bytes);
    if (op->group >= 0 && strcmp(p->groups[op->group].name, "tensor") == 0)
        return cost_collective(c, c->tensor, 1, bytes) *
               (c->profile->hides ? 1 - constant(c, COST_tensor_hidden) : 1);
    return cost_collective(c, c->data, c->tensor, bytes);
}

// The gradients of a product [m,k] x [k,n] are [m,n] x [n,k] and [k,m] x [m,n].
static double matmul_s(const struct costing *c, const struct op *op, double flops) {
    const double m = (double)op->m, n = (double)op->n, k = (double)op->k;
    if (op->kind == OP_MATMUL_DX || op->kind == OP_MATMUL_DX_ACT)
        return cost_product(c, m, k, n, flops);
    if (op->kind == OP_MATMUL_DW)
        return cost_product(c, n, k, m, flops);
    return cost_product(c, m, n, k, flops);
}

// Operands become 8 bits, and their scales are found, in passes of their own.
static double casts_s(const struct costing *c, const struct op *op) {
    const double elements = (double)op->m * (double)op->k + (double)op->k * (double)op->n;
    return c->math == PLANNER_FP8 ? memory_s(c, elements * constant(c, COST_fp8_passes)) : 0;
}

double cost_op(void *arg, const struct program *p, const struct op *op) {
    const struct costing *c = arg;
    const struct op_cost cost = op_cost_of(p, op);
    switch (op_info(op->kind)->category) {
    case CAT_COMM:
        return comm_s(c, p, op, cost.comm_bytes);
    case CAT_MATMUL:
        return kernel_s(c, fmax(matmul_s(c, op, cost.flops), memory_s(c, cost.bytes)) +
                               casts_s(c, op));
    case CAT_ATTENTION:
        return kernel_s(c, attention_s(c, op, cost.flops));
    case CAT_OTHER:
        return kernel_s(c, memory_s(c, cost.bytes * constant(c, c->profile->passes)));
    case CAT_OPTIMIZER: // joined: hundreds of weights are one launch
        return memory_s(c, cost.bytes);
    default:
        return 0;
    }
}

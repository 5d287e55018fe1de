// apply.c - the order in which techniques edit a program. This file documents how they compose:
//
//   forward        builds the model on one device, or this rank's slice of it
//   tensor         makes the slices of a tensor group one model
//   LoRA           freezes weights and adds an adapter to the forward, in every program of a set
//   qkv            makes attention's projections one product or three, in every program of a set
//   derivative     adds the backward for the trainable tensors
//   padding        computes more columns in the head than the vocabulary has
//   logits         runs the head and the loss in chunks of rows
//   precision      sets element types of the tensors so far; sums and weight gradients stay wide
//   recompute      computes tensors again in the backward instead of keeping them
//   pipeline       keeps this rank's layers, sends and receives the rest
//   noise          sums the squares of the first micro-batch's gradients, if the step measures the
//                  noise scale, before replicas are summed
//   buckets, ZeRO  sum gradients over replicas, deal out optimizer state, gradients, weights
//   update         adds the update of the weights that this rank has, or of its part of them
//   state          sets element types of the optimizer's moments
//   average        replaces the step by the mean over replicas, in the program that is for that
//   fusion         joins neighbours into one op, or splits fused ops. It runs late, so recompute
//                  chooses among plain ops, and neighbours are those of this rank.
//   micro-batches  adds the variants of the backward and the order of all segments
//   scratch        memory that kernels need while they run
//   lives, waits   decide how long a tensor keeps its bytes, and where streams wait for each other
//   check          proves the result before it is used
#include "program/apply.h"
#include "program/check.h"
#include "program/sync.h"

#include <stdio.h>

static int narrow(struct program *p, const struct apply *a, struct err *e) {
    bool wide = op_wide_type(a->precision) == a->precision;
    return wide ? 0 : precision_apply(p, a->build.real, a->precision, e);
}

static int fuse(struct program *p, const struct apply *a, struct err *e) {
    struct fuse_rule rule = a->fuse;
    rule.optim |= a->state != STATE_FP32;
    return fuse_apply(p, &rule, e);
}

// The losses and tokens of all replicas and stages, on every rank.
static void sum_results(struct program *p, const struct apply_ranks *r, int segment) {
    const int group = program_group(p, &r->mesh, MESH_DATA | MESH_PIPE, "samples"),
              results = build_results(p);
    if (group < 0)
        return;
    struct op op = op_make(OP_ALL_REDUCE);
    op.stream = STREAM_COMM;
    op.group = group;
    op.n = RESULT_COUNT;
    op_in(&op, results);
    op_out(&op, results);
    program_op(p, segment, &op);
}

static void order_if_any(struct program *p, int segment) {
    if (segment >= 0 && p->segments[segment].n_ops > 0)
        program_order(p, segment, 0, 0);
}

static int training(struct program *p, const struct apply *a, int forward, struct err *e) {
    const struct apply_ranks *r = &a->ranks;
    const bool staged = mesh_size(&r->mesh, AXIS_PIPE) > 1;
    const bool sliced = mesh_size(&r->mesh, AXIS_TENSOR) > 1;
    if (sliced)
        TRY(tensor_apply(p, forward, r, a->whole, a->build.shape, e));
    TRY(lora_apply(p, forward, a, e));
    TRY(qkv_apply(p, forward, a->fuse_qkv, e));
    int backward = grad_derive(p, forward, &a->build, e);
    if (backward < 0)
        return backward;
    TRY(pad_apply(p, forward, backward, a->logits_pad, a->logits_pad_sums, e));
    TRY(logits_apply(p, forward, backward, a->logits_chunk, e));
    TRY(narrow(p, a, e));
    if (sliced)
        TRY(tensor_finish(p, forward, backward, r, a->whole, e));
    TRY(recompute_apply(p, forward, backward, &a->recompute, (int)a->build.shape->layers, e));
    struct apply_chunks c = {.n = 1, .forward = {forward}, .backward = {backward}, .slots = {1}};
    if (staged)
        TRY(pipeline_cut(p, forward, backward, r, &a->build, a->whole, &c, e));
    int begin = build_begin(p);
    c.reduce = program_segment(p, "reduce", SEGMENT_UPDATE);
    c.gather = program_segment(p, "gather", SEGMENT_UPDATE);
    struct apply_noise squares;
    if (a->noise)
        TRY(noise_apply(p, &c, &squares, e));
    TRY(buckets_apply(p, r, forward, &c, e));
    sum_results(p, r, c.reduce);
    const int update = a->only_gradients ? -1 : build_update(p, r, e);
    if (update < 0 && !a->only_gradients)
        return update;
    if (!a->only_gradients)
        TRY(state_apply(p, update, a->state, e));
    if (a->average)
        return average_apply(p, r, update, e);
    TRY(fuse(p, a, e));
    const int noise = a->noise ? noise_finish(p, &squares, r, e) : -1;
    if (a->noise && noise < 0)
        return noise;
    TRY(micro_variants(p, &c, e));
    program_order(p, begin, 0, 0);
    if (staged)
        TRY(pipeline_order(p, r, &c, e));
    else
        micro_order(p, &c);
    order_if_any(p, c.reduce);
    if (update >= 0)
        program_order(p, update, 0, 0);
    order_if_any(p, c.gather);
    order_if_any(p, noise);
    program_settle_lives(p, c.slots);
    return 0;
}

static int inference(struct program *p, const struct apply *a, int forward, struct err *e) {
    const struct apply_ranks *r = &a->ranks;
    const bool loss = a->build.kind == BUILD_EVAL, sliced = mesh_size(&r->mesh, AXIS_TENSOR) > 1;
    if (sliced)
        TRY(tensor_apply(p, forward, r, a->whole, a->build.shape, e));
    TRY(lora_apply(p, forward, a, e));
    TRY(qkv_apply(p, forward, a->fuse_qkv, e));
    TRY(pad_apply(p, forward, -1, a->logits_pad, false, e));
    if (loss && !a->build.keep_logits)
        TRY(logits_apply(p, forward, -1, a->logits_chunk, e));
    TRY(narrow(p, a, e));
    if (sliced)
        TRY(tensor_finish(p, forward, -1, r, a->whole, e));
    struct apply_chunks c = {.n = 1, .forward = {forward}, .slots = {1}};
    if (mesh_size(&r->mesh, AXIS_PIPE) > 1)
        TRY(pipeline_cut(p, forward, -1, r, &a->build, a->whole, &c, e));
    TRY(buckets_apply(p, r, forward, NULL, e));
    TRY(fuse(p, a, e));
    if (loss)
        program_order(p, build_begin(p), 0, 0);
    for (int m = 0; m < p->micro_batches; m++)
        for (int i = 0; i < c.n; i++)
            program_order(p, c.forward[i], m, 0);
    if (loss) {
        const int end = program_segment(p, "end", SEGMENT_UPDATE);
        sum_results(p, r, end);
        order_if_any(p, end);
    }
    program_settle_lives(p, (const int[APPLY_MAX_CHUNKS]){1});
    return 0;
}

static int assemble(struct program *p, const struct apply *a, struct err *e) {
    p->micro_batches = a->micro_batches > 0 ? a->micro_batches : 1;
    p->yields = a->yields;
    p->rank = mesh_rank(&a->ranks.mesh);
    p->world = mesh_world(&a->ranks.mesh);
    int forward = build_forward(p, &a->build, e);
    if (forward < 0)
        return forward;
    if (a->build.kind == BUILD_TRAIN)
        TRY(training(p, a, forward, e));
    else
        TRY(inference(p, a, forward, e));
    if (a->scratch)
        TRY(scratch_apply(p, a->scratch, a->scratch_arg, e));
    TRY(program_sweep(p, e));
    TRY(sync_derive(p, e));
    return check_program(p, e);
}

int apply_program(struct program **out, const char *name, const struct apply *a, struct err *e) {
    *out = NULL;
    struct program *p = program_new(name);
    if (!p)
        return err_set(e, ERR_MEMORY, "out of memory while building the program '%s'", name);
    int rc = assemble(p, a, e);
    if (rc != 0) {
        program_free(p);
        return err_context(e, "program '%s'", name);
    }
    *out = p;
    return 0;
}

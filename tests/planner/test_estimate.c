// test_estimate.c - estimates are composed of programs with few layers. They must equal the
// simulation of the whole programs, and the bytes that their layout takes.
#include "planner/estimate.h"
#include "predict/predict.h"
#include "program/apply.h"
#include "program/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { RANKS_MOST = 8 };

struct world {
    struct hardware h;
    struct cluster cluster;
    struct planner_constants k;
    struct planner_setup s;
};

static void open_world(struct world *w, const char *cluster) {
    struct err e = {0};
    if (hardware_open(&w->h, &e) != 0 || cluster_parse(&w->cluster, &w->h, cluster, &e) != 0)
        fail_msg("%s", e.text);
    w->k = planner_constants_default();
    // What whole programs do not have: the host, a step's fixed part, and stragglers.
    w->k.x[COST_launch_s] = w->k.x[COST_step_s] = w->k.x[COST_straggler] = 0;
    w->k.x[COST_overlap_drag] = 0;
    w->s = (struct planner_setup){.seq = 512,
                                  .micro = 2,
                                  .accum = 6,
                                  .tensor = 1,
                                  .pipe = 1,
                                  .data = 1,
                                  .context = 1,
                                  .chunks = 1,
                                  .math = PLANNER_BF16,
                                  .profile = planner_profile_find("haggle")};
    assert_int_equal(model_shape_builtin(&w->s.shape, "llama-1b", &e), 0);
    w->s.shape.layers = 12;
    w->s.shape.vocab = 8192;
}

// The whole program of a stage, as the engine would build it.
static struct program *whole(const struct planner_setup *s, int stage, const int64_t *ends) {
    struct model_shape slice;
    struct program *p = NULL;
    struct err e = {0};
    const struct mesh mesh = mesh_make(s->data, s->tensor, s->pipe, stage * s->data * s->tensor);
    tensor_slice(&s->shape, &mesh, &slice);
    const struct apply a = {
        .micro_batches = (int)s->accum,
        .precision = DTYPE_BF16,
        .logits_pad = 64,
        .recompute = {.kind = s->recompute, .every = 1, .bytes_per_flop = 0.01},
        .fuse = {true, true, true, true},
        .fuse_qkv = true,
        .whole = &s->shape,
        .ranks = {.mesh = mesh,
                  .chunks = s->chunks,
                  .ends = ends,
                  .schedule = s->chunks > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B,
                  .zero = s->data > 1 ? s->zero : 0,
                  .prefetch = 1,
                  .bucket_bytes = s->profile->bucket_mib << 20,
                  .overlap = true,
                  .sequence = s->sequence},
        .build = {.kind = BUILD_TRAIN,
                  .shape = &slice,
                  .batch = s->micro,
                  .seq = s->seq,
                  .real = DTYPE_F32,
                  .one_document = true}};
    if (apply_program(&p, "train", &a, &e) != 0)
        fail_msg("%s", e.text);
    return p;
}

// Compares step time and bytes of the composition with those of whole programs.
static void compare(struct world *w, double time_within, double bytes_within) {
    struct planner_setup *s = &w->s;
    struct program *p[RANKS_MOST];
    struct prediction x;
    struct estimate est;
    struct err e = {0};
    const int chunks = s->pipe * s->chunks;
    int64_t ends[64], at = 0;
    for (int i = 0; i < chunks; i++)
        ends[i] = at += s->shape.layers / chunks + (i < s->shape.layers % chunks);
    uint64_t most = 0;
    for (int i = 0; i < s->pipe; i++) {
        struct layout l;
        p[i] = whole(s, i, s->pipe > 1 ? ends : NULL);
        if (layout_set(&p[i], 1, &l, &e) != 0)
            fail_msg("%s", e.text);
        most = l.arena_bytes > most ? l.arena_bytes : most;
    }
    struct costing c = {.cluster = &w->cluster,
                        .constants = &w->k,
                        .profile = s->profile,
                        .math = s->math,
                        .tensor = s->tensor,
                        .data = s->data,
                        .context = 1,
                        .stages = s->pipe};
    if (predict_programs_with(p, s->pipe, cost_op, &c, &x, &e) != 0 ||
        planner_estimate(s, &w->cluster, &w->k, &est, &e) != 0)
        fail_msg("%s", e.text);
    double bytes = 0;
    for (int i = 0; i < CLASS_COUNT; i++)
        bytes += est.by_class[i];
    const double time = est.step_s / x.seconds, room = bytes / (double)most;
    printf("data %d tensor %d pipe %d x %d zero %d recompute %d: time %.4f, bytes %.4f of whole\n",
           s->data, s->tensor, s->pipe, s->chunks, s->zero, (int)s->recompute, time, room);
    assert_true(fabs(time - 1) <= time_within);
    assert_true(fabs(room - 1) <= bytes_within);
    prediction_free(&x);
    for (int i = 0; i < s->pipe; i++)
        program_free(p[i]);
}

static void one_device(void **state) {
    struct world w;
    (void)state;
    open_world(&w, "1xa100-80g");
    compare(&w, 0.005, 0.03);
    w.s.recompute = RECOMPUTE_FULL;
    compare(&w, 0.005, 0.03);
    w.s.recompute = RECOMPUTE_SELECTIVE;
    compare(&w, 0.005, 0.03);
    w.s.accum = 1; // gradients take the place of activations, which is not counted
    compare(&w, 0.005, 0.08);
    hardware_free(&w.h);
}

static void replicas_and_zero(void **state) {
    struct world w;
    (void)state;
    open_world(&w, "8xa100-80g");
    w.s.data = 8;
    for (w.s.zero = 0; w.s.zero <= 3; w.s.zero++)
        compare(&w, 0.01, 0.10); // ZeRO 2 and 3: a bucket of a small model is a large part
    hardware_free(&w.h);
}

static void tensor_groups(void **state) {
    struct world w;
    (void)state;
    open_world(&w, "8xa100-80g");
    w.s.tensor = 4;
    compare(&w, 0.01, 0.05);
    w.s.sequence = true;
    compare(&w, 0.01, 0.05);
    w.s.data = 2;
    w.s.zero = 1;
    compare(&w, 0.02, 0.06);
    hardware_free(&w.h);
}

static void pipelines(void **state) {
    struct world w;
    (void)state;
    open_world(&w, "8xa100-80g");
    w.s.pipe = 4;
    w.s.accum = 16; // more periods than are simulated
    compare(&w, 0.03, 0.12);
    w.s.recompute = RECOMPUTE_FULL;
    compare(&w, 0.03, 0.12);
    w.s.tensor = 2;
    compare(&w, 0.03, 0.12);
    w.s.recompute = RECOMPUTE_NONE;
    w.s.tensor = 1;
    w.s.data = 2; // sums over replicas beside the last backwards
    w.s.zero = 1;
    compare(&w, 0.05, 0.12);
    w.s.data = 1;
    w.s.zero = 0;
    w.s.chunks = 3;
    compare(&w, 0.04, 0.15);
    hardware_free(&w.h);
}

static void what_cannot_be_divided_is_refused(void **state) {
    struct world w;
    struct estimate est;
    struct err e = {0};
    (void)state;
    open_world(&w, "64xa100-80g");
    w.s.tensor = 3;
    assert_int_equal(planner_estimate(&w.s, &w.cluster, &w.k, &est, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "tensor parallel 3 does not divide the model's 32 heads"));
    w.s.tensor = 1;
    w.s.pipe = 13;
    assert_int_equal(planner_estimate(&w.s, &w.cluster, &w.k, &est, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "more than the model's 12 layers"));
    w.s.pipe = 1;
    w.s.data = 128;
    assert_int_equal(planner_estimate(&w.s, &w.cluster, &w.k, &est, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "128 ranks are more than the 64 devices"));
    hardware_free(&w.h);
}

static void more_work_takes_longer(void **state) {
    struct world w;
    struct estimate less, more;
    struct err e = {0};
    (void)state;
    open_world(&w, "8xa100-80g");
    w.s.data = 8;
    w.s.zero = 1;
    assert_int_equal(planner_estimate(&w.s, &w.cluster, &w.k, &less, &e), 0);
    w.s.micro *= 2;
    assert_int_equal(planner_estimate(&w.s, &w.cluster, &w.k, &more, &e), 0);
    assert_true(more.step_s > less.step_s && more.bytes > less.bytes);
    assert_true(fabs(more.flops / less.flops - 2) < 1e-9);
    assert_true(less.low_s < less.step_s && less.step_s < less.high_s);
    hardware_free(&w.h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_device),
        cmocka_unit_test(replicas_and_zero),
        cmocka_unit_test(tensor_groups),
        cmocka_unit_test(pipelines),
        cmocka_unit_test(more_work_takes_longer),
        cmocka_unit_test(what_cannot_be_divided_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

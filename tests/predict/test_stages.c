// test_stages.c - how layers are dealt to the stages of a pipeline: by predicted time, with
// embedding and head counted, alike on all ranks of a tensor group. The simulated step is compared
// with that of every other cut of the same layers.
#include "predict/predict.h"
#include "program/apply.h"
#include "program/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { P = 4, LAYERS = 17, MICRO = 16, SEQ = 64 };

static struct model_shape shape_of(int64_t layers, int64_t vocab) {
    struct model_shape s;
    struct err e = {0};
    assert_int_equal(model_shape_builtin(&s, "tiny", &e), 0);
    s.layers = layers;
    s.vocab = vocab;
    return s;
}

static struct program *stage_program(const struct model_shape *whole, struct mesh mesh,
                                     const int64_t *ends) {
    struct program *p;
    struct err e = {0};
    struct model_shape slice;
    tensor_slice(whole, &mesh, &slice);
    const struct apply a = {
        .build = {.kind = BUILD_TRAIN, .shape = &slice, .batch = 1, .seq = SEQ, .real = DTYPE_F32},
        .whole = whole,
        .micro_batches = MICRO,
        .fuse = {true, true, true, true},
        .fuse_qkv = true,
        .ranks = {.mesh = mesh, .schedule = SCHEDULE_1F1B, .ends = ends}};
    if (apply_program(&p, "train", &a, &e) != 0)
        fail_msg("%s", e.text);
    return p;
}

// Layers [*first, *last] whose products are on this rank.
static int layers_of(const struct program *p, int64_t layers, int *first, int *last) {
    *first = (int)layers, *last = -1;
    for (int s = 0; s < p->n_segments; s++)
        for (int i = 0; p->segments[s].role == SEGMENT_FORWARD && i < p->segments[s].n_ops; i++) {
            const struct op *op = &p->segments[s].ops[i];
            if (op->kind != OP_ATTENTION)
                continue;
            *first = op->layer < *first ? op->layer : *first;
            *last = op->layer > *last ? op->layer : *last;
        }
    return *last - *first + 1;
}

static void cut_of(const struct model_shape *s, int tensor, int at, int pipe, int64_t *ends) {
    for (int stage = 0; stage < pipe; stage++) {
        struct mesh mesh = mesh_make(1, tensor, pipe, 0);
        int first, last;
        mesh.at[AXIS_TENSOR] = at, mesh.at[AXIS_PIPE] = stage;
        struct program *p = stage_program(s, mesh, NULL);
        assert_true(layers_of(p, s->layers, &first, &last) > 0);
        assert_int_equal(first, stage ? ends[stage - 1] : 0);
        ends[stage] = last + 1;
        program_free(p);
    }
    assert_int_equal(ends[pipe - 1], s->layers);
}

// A large vocabulary makes the head as long as several layers, so the last stage has fewer.
static void test_head_counts(void **state) {
    (void)state;
    static const int64_t vocabularies[] = {17, 1000, 4000, 30000};
    int64_t before = LAYERS;
    for (int i = 0; i < 4; i++) {
        const struct model_shape s = shape_of(LAYERS, vocabularies[i]);
        int64_t ends[P];
        cut_of(&s, 1, 0, P, ends);
        const int64_t last = ends[P - 1] - ends[P - 2];
        print_message("vocabulary %lld: %lld %lld %lld %lld layers\n", (long long)s.vocab,
                      (long long)ends[0], (long long)(ends[1] - ends[0]),
                      (long long)(ends[2] - ends[1]), (long long)last);
        assert_true(last <= before);
        before = last;
    }
    assert_int_equal(before, 1); // never none
}

// Ranks of a tensor group have parts of the vocabulary that differ by one row, and yet the same
// layers. With 81 rows the halves would be cut differently, each by its own: 40 rows cost what the
// embedding costs, and 41 more.
static void test_same_cut_on_slices(void **state) {
    (void)state;
    for (int64_t vocab = 79; vocab <= 83; vocab++) {
        const struct model_shape s = shape_of(3, vocab);
        int64_t ends[2][2];
        for (int at = 0; at < 2; at++)
            cut_of(&s, 2, at, 2, ends[at]);
        assert_memory_equal(ends[0], ends[1], sizeof ends[0]);
    }
}

// ---------------------------------------------------------------- every other cut

struct stages { // by stage and its first and last layer
    struct program *programs[P][LAYERS][LAYERS + 1];
};

static double seconds_of(struct stages *known, const struct model_shape *s, const int64_t *ends) {
    const struct hw_device device = predict_nominal_device(false);
    const struct hw_link link = {"link", 1e10, 2e-6};
    struct program *programs[P];
    struct prediction out;
    struct err e = {0};
    for (int stage = 0; stage < P; stage++) {
        struct program **p = &known->programs[stage][stage ? ends[stage - 1] : 0][ends[stage]];
        if (!*p)
            *p = stage_program(s, mesh_make(1, 1, P, stage), ends);
        programs[stage] = *p;
    }
    if (predict_programs(programs, P, &device, &link, &out, &e) != 0)
        fail_msg("%s", e.text);
    const double seconds = out.seconds;
    prediction_free(&out);
    return seconds;
}

static void test_no_better_cut(void **state) {
    (void)state;
    static const int64_t vocabularies[] = {256, 2000, 8000};
    for (int i = 0; i < 3; i++) {
        const struct model_shape s = shape_of(LAYERS, vocabularies[i]);
        struct stages *known = calloc(1, sizeof *known);
        int64_t own[P], best_ends[P] = {0};
        assert_non_null(known);
        cut_of(&s, 1, 0, P, own);
        const double here = seconds_of(known, &s, own);
        double best = here;
        memcpy(best_ends, own, sizeof own);
        for (int64_t a = 1; a < LAYERS - 2; a++)
            for (int64_t b = a + 1; b < LAYERS - 1; b++)
                for (int64_t c = b + 1; c < LAYERS; c++) {
                    const int64_t ends[P] = {a, b, c, LAYERS};
                    const double there = seconds_of(known, &s, ends);
                    if (there < best) {
                        best = there;
                        memcpy(best_ends, ends, sizeof ends);
                    }
                }
        print_message("vocabulary %lld: layers end at %lld %lld %lld, %.4f ms; the best cut %lld "
                      "%lld %lld, %.4f ms\n",
                      (long long)s.vocab, (long long)own[0], (long long)own[1], (long long)own[2],
                      1e3 * here, (long long)best_ends[0], (long long)best_ends[1],
                      (long long)best_ends[2], 1e3 * best);
        if (here > 1.02 * best)
            fail_msg("%.1f %% longer than the best cut", 100 * (here / best - 1));
        for (int p = 0; p < P; p++)
            for (int f = 0; f < LAYERS; f++)
                for (int l = 0; l <= LAYERS; l++)
                    program_free(known->programs[p][f][l]);
        free(known);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_counts),
        cmocka_unit_test(test_same_cut_on_slices),
        cmocka_unit_test(test_no_better_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

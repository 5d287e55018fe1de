// test_checking.c - the checking executor gives the same bits as the plain one. Each of its rules
// is broken on purpose and must be reported: a store out of bounds, a missing output, a read of a
// dead tensor, two tensors on the same bytes, a host write that is not allowed.
#include "backend/cpu/cpu.h"
#include "base/rng.h"
#include "exec/exec.h"
#include "program/apply.h"
#include "program/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { BATCH = 2, SEQ = 6, MICRO = 3, ROWS = BATCH * SEQ, VOCAB = 61 };

// How the backend is broken; see spoiled_add.
enum spoil { HONEST, PAST_END, BEFORE_BEGIN, NOTHING, STALE, FAR_AWAY };

struct model {
    struct model_shape shape;
    struct program *p;
    struct layout layout;
    struct mem *mem;
    struct backend *backend;
    struct executor *x;
    int32_t tokens[ROWS * MICRO], targets[ROWS * MICRO], positions[ROWS * MICRO],
        starts[ROWS * MICRO];
};

// Globals, because a backend has no room for a test's state.
static enum spoil spoil;
static backend_op_fn *honest_add;
static unsigned char *stale, *far_away;

static int spoiled_add(struct backend *b, const struct op_call *call, struct err *e) {
    const struct operand *o = &call->out[0];
    size_t bytes = (size_t)(o->rows * o->cols) * sizeof(float);
    unsigned char *out = o->data;
    if (spoil == NOTHING)
        return 0;
    int rc = honest_add(b, call, e);
    if (spoil == PAST_END)
        out[bytes] = 1;
    if (spoil == BEFORE_BEGIN)
        out[-1] = 1;
    if (spoil == STALE)
        memcpy(out, stale, sizeof(float));
    if (spoil == FAR_AWAY)
        *far_away ^= 1;
    return rc;
}

static void plan_model(struct model *m) {
    struct err e = {0};
    memset(m, 0, sizeof *m);
    assert_int_equal(model_shape_builtin(&m->shape, "tiny", &e), 0);
    m->shape.vocab = VOCAB, m->shape.width = 24, m->shape.layers = 2, m->shape.ffn = 40;
    m->shape.heads = 2, m->shape.kv_heads = 1, m->shape.head_dim = 12;
    struct apply a = {.build = {.kind = BUILD_TRAIN,
                                .shape = &m->shape,
                                .batch = BATCH,
                                .seq = SEQ,
                                .real = DTYPE_F32},
                      .precision = DTYPE_F32,
                      .micro_batches = MICRO};
    if (apply_program(&m->p, "train", &a, &e) != 0 || layout_set(&m->p, 1, &m->layout, &e) != 0 ||
        check_layout(m->p, m->layout.arena_bytes, &e) != 0)
        fail_msg("%s", e.text);
    for (int i = 0; i < ROWS * MICRO; i++) {
        m->tokens[i] = (int32_t)rng_below(3, 1, (uint64_t)i, VOCAB);
        m->targets[i] = (int32_t)rng_below(3, 2, (uint64_t)i, VOCAB);
        m->positions[i] = i % SEQ;
    }
}

static void start_model(struct model *m, bool checking) {
    struct err e = {0};
    if (mem_open(&m->mem, &e) != 0 || cpu_reference_open(&m->backend, m->mem, &e) != 0)
        fail_msg("%s", e.text);
    honest_add = m->backend->run[OP_ADD];
    m->backend->run[OP_ADD] = spoiled_add;
    struct exec_options o = {.programs = &m->p,
                             .n_programs = 1,
                             .layout = &m->layout,
                             .backend = m->backend,
                             .checking = checking};
    if (exec_open(&m->x, &o, &e) != 0)
        fail_msg("%s", e.text);
    assert_true((exec_checked(m->x) != NULL) == checking);
    for (int t = 0; t < m->p->n_tensors; t++) {
        const struct tensor *w = &m->p->tensors[t];
        float *at = exec_host_address(m->x, 0, t);
        for (int64_t i = 0; w->cls == CLASS_WEIGHT && w->root < 0 && i < tensor_elements(w); i++)
            at[i] = (float)(0.1 * rng_normal(7, (uint64_t)t, (uint64_t)i)) + (w->rank == 1);
    }
    model_rope_frequencies(&m->shape,
                           exec_host_address(m->x, 0, program_find(m->p, NAME_INV_FREQ)));
}

static void open_model(struct model *m, bool checking) {
    plan_model(m);
    start_model(m, checking);
}

static void close_model(struct model *m) {
    spoil = HONEST;
    exec_close(m->x);
    m->backend->close(m->backend);
    mem_close(m->mem);
    program_free(m->p);
}

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct model *m = arg;
    size_t at = (size_t)micro * ROWS;
    (void)e;
    *out = (struct exec_batch){m->tokens + at, m->targets + at, m->positions + at, m->starts + at};
    return 0;
}

static int turn(struct model *m, double *loss, struct err *e) {
    double *hyper = exec_host_address(m->x, 0, program_find(m->p, NAME_HYPER));
    const double *results = exec_host_address(m->x, 0, program_find(m->p, NAME_RESULTS));
    hyper[HYPER_BIAS1] = hyper[HYPER_BIAS2] = 1, hyper[HYPER_EPS] = 1e-8, hyper[HYPER_LR] = 1e-2;
    hyper[HYPER_LOSS_FACTOR] = 1.0 / (ROWS * MICRO);
    TRY(exec_run(m->x, 0, feed, m, NULL, e));
    *loss = results[RESULT_LOSS_SUM];
    return 0;
}

static void expect(struct model *m, const char *part) {
    struct err e = {0};
    double loss;
    if (turn(m, &loss, &e) != ERR_INTERNAL || !strstr(e.text, part))
        fail_msg("expected '%s', got: %s", part, e.code ? e.text : "a turn that passes");
}

// ---------------------------------------------------------------- tests

static void test_same_bits(void **state) {
    (void)state;
    struct model plain, checked;
    struct err e = {0};
    open_model(&plain, false);
    open_model(&checked, true);
    for (int i = 0; i < 4; i++) {
        double a, b;
        assert_int_equal(turn(&plain, &a, &e), 0);
        if (turn(&checked, &b, &e) != 0)
            fail_msg("%s", e.text);
        assert_true(isfinite(a));
        assert_memory_equal(&a, &b, sizeof a);
    }
    for (int t = 0; t < plain.p->n_tensors; t++)
        if (plain.p->tensors[t].life == LIFE_RUN && plain.p->tensors[t].root < 0)
            assert_memory_equal(exec_host_address(plain.x, 0, t),
                                exec_host_address(checked.x, 0, t), plain.p->tensors[t].bytes);
    const struct exec_check *c = exec_checked(checked.x);
    assert_int_equal(c->used_bytes, checked.layout.arena_bytes);
    assert_true(c->ops > 4 * MICRO * 20 && c->lives > 4 * MICRO * 20);
    close_model(&plain);
    close_model(&checked);
}

static void test_wrong_writes(void **state) {
    (void)state;
    static const enum spoil ways[] = {PAST_END, BEFORE_BEGIN, FAR_AWAY};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct model m;
        open_model(&m, true);
        unsigned char *first = exec_host_address(m.x, 0, 0);
        far_away = first - m.p->tensors[0].offset[0] + m.layout.arena_bytes; // just past the arena
        spoil = ways[i];
        expect(&m, "forbidden write");
        close_model(&m);
    }
}

static void test_output_left_out(void **state) {
    (void)state;
    struct model m;
    open_model(&m, true);
    spoil = NOTHING;
    expect(&m, "is poison");
    close_model(&m);
}

// Weight gradients are dead before the turn begins, whatever the last turn left in them.
static void test_read_of_the_dead(void **state) {
    (void)state;
    struct model m;
    struct err e = {0};
    double loss;
    open_model(&m, true);
    assert_int_equal(turn(&m, &loss, &e), 0);
    for (int t = 0; t < m.p->n_tensors; t++)
        if (m.p->tensors[t].cls == CLASS_GRADIENT && m.p->tensors[t].life == LIFE_TURN)
            stale = exec_host_address(m.x, 0, t);
    assert_non_null(stale);
    spoil = STALE;
    expect(&m, "is poison");
    close_model(&m);
}

// A layout that puts two weight gradients, which are alive together, on the same bytes.
static void test_shared_bytes(void **state) {
    (void)state;
    struct model m;
    plan_model(&m);
    int a = -1, b = -1;
    for (int t = 0; t < m.p->n_tensors; t++)
        if (m.p->tensors[t].root < 0 && m.p->tensors[t].life == LIFE_TURN &&
            m.p->tensors[t].cls == CLASS_GRADIENT)
            b = a, a = t;
    assert_true(b >= 0);
    m.p->tensors[a].offset[0] = m.p->tensors[b].offset[0];
    start_model(&m, true);
    expect(&m, "still in use");
    close_model(&m);
}

static void test_host_writes(void **state) {
    (void)state;
    struct model m;
    struct err e = {0};
    double loss;
    open_model(&m, true);
    assert_int_equal(turn(&m, &loss, &e), 0);
    unsigned char *arena =
        (unsigned char *)exec_host_address(m.x, 0, 0) - m.p->tensors[0].offset[0];
    arena[m.layout.persistent_bytes] ^= 1;
    expect(&m, "before the turn");
    assert_int_equal(exec_run_category(m.x, 0, CAT_MATMUL, &e), ERR_UNSUPPORTED);
    close_model(&m);
}

static void test_device_refused(void **state) {
    (void)state;
    struct model m;
    struct err e = {0};
    struct executor *x;
    open_model(&m, true);
    struct backend far = *m.backend;
    far.name = "far", far.info.device = true;
    struct exec_options o = {
        .programs = &m.p, .n_programs = 1, .layout = &m.layout, .backend = &far, .checking = true};
    assert_int_equal(exec_open(&x, &o, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "'far'"));
    close_model(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),       cmocka_unit_test(test_wrong_writes),
        cmocka_unit_test(test_output_left_out), cmocka_unit_test(test_read_of_the_dead),
        cmocka_unit_test(test_shared_bytes),    cmocka_unit_test(test_host_writes),
        cmocka_unit_test(test_device_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

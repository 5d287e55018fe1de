// test_train_cuda.c - whole models on the CUDA backend: against reference checkpoints, against the
// CPU, and graphs against single launches (equal to the bit). Skipped where there is no device.
#include "train/session.h"
#include "train/verify.h"

#include "base/file.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/plugin.h"

// Beside the checkout, or where the environment says: the test may run far from the sources.
static const char *fixtures(void) {
    const char *chosen = getenv("HAGGLE_FIXTURES");
    return chosen ? chosen : HAGGLE_SOURCE_DIR "/../shared/fixtures/hf";
}

static bool have_device(void) {
    struct plugin_report r;
    plugin_examine("cuda", &r);
    if (!r.usable)
        print_message("skipped, no CUDA backend: %s\n", r.reason);
    return r.usable;
}

// ---------------------------------------------------------------- reference checkpoints

struct sweep {
    bool graphs;
    int checked;
};

static int verify_one(void *arg, const char *name) {
    struct sweep *sweep = arg;
    char dir[1024], json[1100];
    struct err e = {0};
    struct knobs k;
    struct verify_result r;
    snprintf(dir, sizeof dir, "%s/%s", fixtures(), name);
    snprintf(json, sizeof json, "%s/ref.json", dir);
    if (!file_exists(json))
        return 0;
    knobs_init(&k);
    k.threads = 2;
    k.device = DEVICE_CUDA;
    k.cuda_graphs = sweep->graphs;
    int rc = verify_folder(dir, &k, false, &r, &e);
    if (rc != 0)
        print_message("%s\n", e.text);
    verify_print(&r, stdout, rc != 0);
    fflush(stdout);
    assert_int_equal(rc, 0);
    assert_true(r.n_figures > 10);
    verify_free(&r);
    sweep->checked++;
    return 0;
}

static void verify_all(bool graphs) {
    struct sweep s = {.graphs = graphs};
    struct err e = {0};
    if (!file_is_dir(fixtures())) {
        print_message("skipped: no reference checkpoints at %s\n", fixtures());
        skip();
    }
    if (!have_device())
        skip();
    assert_int_equal(file_list_dir(fixtures(), verify_one, &s, &e), 0);
    assert_true(s.checked > 0);
}

static void test_verify(void **state) {
    (void)state;
    verify_all(false);
}

static void test_verify_graphs(void **state) {
    (void)state;
    verify_all(true);
}

// ---------------------------------------------------------------- a few steps

enum { STEPS = 5, MICRO = 3, BATCH = 2, SEQ = 48 };

struct outcome {
    double loss[STEPS], norm[STEPS];
    float *weight; // one of them, after the last step
    int64_t n;
    int graphs;
    uint64_t busy_ns;
};

struct tokens {
    int32_t data[4][MICRO * BATCH * SEQ]; // tokens, targets, positions, doc_start
};

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct tokens *t = arg;
    size_t at = (size_t)micro * BATCH * SEQ;
    (void)e;
    *out = (struct exec_batch){t->data[0] + at, t->data[1] + at, t->data[2] + at, t->data[3] + at};
    return 0;
}

static void draw(struct tokens *t, int step, int64_t vocab) {
    for (size_t i = 0; i < MICRO * BATCH * SEQ; i++) {
        int64_t column = (int64_t)i % SEQ, start = column >= SEQ / 2 ? SEQ / 2 : 0;
        uint64_t at = (uint64_t)i + 1000000u * (uint64_t)step;
        t->data[0][i] = (int32_t)rng_below(3, 1, at, (uint64_t)vocab);
        t->data[1][i] = (int32_t)rng_below(3, 2, at, (uint64_t)vocab);
        t->data[2][i] = (int32_t)(column - start);
        t->data[3][i] = (int32_t)start;
    }
}

static int steps(struct session *s, struct outcome *out, struct trace *trace, struct err *e) {
    static struct tokens t;
    double results[RESULT_COUNT], clip[CLIP_COUNT];
    for (int i = 0; i < STEPS; i++) {
        double h[HYPER_COUNT] = {[HYPER_LR] = 1e-2,
                                 [HYPER_BETA1] = 0.9,
                                 [HYPER_BETA2] = 0.95,
                                 [HYPER_EPS] = 1e-8,
                                 [HYPER_DECAY] = 0.1,
                                 [HYPER_CLIP] = 1,
                                 [HYPER_BIAS1] = 1 - pow(0.9, i + 1),
                                 [HYPER_BIAS2] = 1 - pow(0.95, i + 1),
                                 [HYPER_LOSS_FACTOR] = 1.0 / (MICRO * BATCH * SEQ)};
        draw(&t, i, s->shape.vocab);
        TRY(session_set_hyper(s, h, e));
        if (trace)
            trace_begin_step(trace, (uint32_t)i, 0);
        TRY(session_run(s, SESSION_TRAIN, feed, &t, trace, e));
        TRY(session_get_results(s, results, clip, e));
        out->loss[i] = results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
        out->norm[i] = clip[CLIP_NORM];
    }
    return 0;
}

static void train(struct outcome *out, enum device device, bool graphs, bool traced) {
    struct err e = {0};
    struct knobs k;
    struct session s;
    struct trace trace;
    knobs_init(&k);
    k.threads = 2, k.seq = SEQ, k.batch_micro = BATCH, k.batch_accum = MICRO;
    k.device = device, k.cuda_graphs = graphs;
    struct session_options o = {.knobs = &k, .has = {[SESSION_TRAIN] = true}, .real = DTYPE_F32};
    memset(out, 0, sizeof *out);
    int rc = session_plan(&s, &o, &e);
    if (rc == 0)
        rc = session_start(&s, &e);
    if (rc == 0 && traced)
        rc = trace_open(&trace, s.mem, 0, &e);
    if (rc == 0)
        rc = steps(&s, out, traced ? &trace : NULL, &e);
    if (rc != 0)
        fail_msg("%s", e.text);
    struct model_param param;
    assert_true(model_param_at(&s.shape, 0, &param));
    int t = session_find(&s, SESSION_TRAIN, param.name);
    out->n = tensor_elements(&s.programs[SESSION_TRAIN]->tensors[t]);
    out->weight = malloc((size_t)out->n * sizeof *out->weight);
    assert_non_null(out->weight);
    rc = exec_read(s.exec, s.index[SESSION_TRAIN], t, out->weight,
                   (uint64_t)out->n * sizeof *out->weight, &e);
    if (rc != 0)
        fail_msg("%s", e.text);
    out->graphs = exec_graphs(s.exec);
    out->busy_ns = exec_busy_ns(s.exec);
    if (traced)
        trace_close(&trace);
    session_close(&s);
}

static void assert_same(const struct outcome *a, const struct outcome *b) {
    for (int i = 0; i < STEPS; i++)
        if (a->loss[i] != b->loss[i] || a->norm[i] != b->norm[i])
            fail_msg("step %d: loss %.17g and %.17g, norm %.17g and %.17g", i, a->loss[i],
                     b->loss[i], a->norm[i], b->norm[i]);
    assert_memory_equal(a->weight, b->weight, (size_t)a->n * sizeof *a->weight);
}

static void test_steps(void **state) {
    (void)state;
    if (!have_device())
        skip();
    struct outcome cpu, plain, again, graphs, traced;
    train(&cpu, DEVICE_CPU, false, false);
    train(&plain, DEVICE_CUDA, false, false);
    train(&again, DEVICE_CUDA, false, false);
    train(&graphs, DEVICE_CUDA, true, false);
    train(&traced, DEVICE_CUDA, true, true);
    assert_same(&plain, &again);
    assert_same(&plain, &graphs);
    assert_same(&plain, &traced);
    assert_int_equal(plain.graphs, 0);
    // begin, forward, backward, backward of the other micro-batches, update
    assert_int_equal(graphs.graphs, 5);
    assert_int_equal(traced.graphs, 5);
    assert_true(plain.busy_ns > 0 && graphs.busy_ns > 0);
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(plain.loss[i] - cpu.loss[i]) <= 1e-4 * cpu.loss[i]) ||
            !(fabs(plain.norm[i] - cpu.norm[i]) <= 1e-3 * cpu.norm[i]))
            fail_msg("step %d: loss %.9g, on the CPU %.9g; norm %.9g, on the CPU %.9g", i,
                     plain.loss[i], cpu.loss[i], plain.norm[i], cpu.norm[i]);
    print_message("last turn: %.3f ms launched one by one, %.3f ms as graphs\n",
                  1e-6 * (double)plain.busy_ns, 1e-6 * (double)graphs.busy_ns);
    free(cpu.weight), free(plain.weight), free(again.weight), free(graphs.weight);
    free(traced.weight);
}

// More than the device has is refused with numbers, and nothing crashes.
static void test_too_large(void **state) {
    (void)state;
    struct err e = {0};
    struct knobs k;
    struct session s;
    if (!have_device())
        skip();
    knobs_init(&k);
    assert_int_equal(knobs_set(&k, "model", "llama-70b", SET_BY_COMMAND_LINE, &e), 0);
    k.device = DEVICE_CUDA, k.seq = 1024, k.batch_micro = 4;
    struct session_options o = {.knobs = &k, .has = {[SESSION_TRAIN] = true}, .real = DTYPE_F32};
    int rc = session_plan(&s, &o, &e);
    if (rc == 0)
        rc = session_start(&s, &e);
    session_close(&s);
    assert_int_equal(rc, ERR_MEMORY);
    assert_non_null(strstr(e.text, "device"));
    print_message("%s\n", e.text);
}

// device=cuda without a device is refused with the reason; device=auto goes on with the CPU.
static void test_choice(void **state) {
    (void)state;
    struct plugin_report r;
    struct outcome x;
    plugin_examine("cuda", &r);
    if (r.usable)
        skip();
    struct err e = {0};
    struct knobs k;
    struct session s;
    knobs_init(&k);
    k.threads = 1, k.device = DEVICE_CUDA;
    struct session_options o = {.knobs = &k, .has = {[SESSION_TRAIN] = true}, .real = DTYPE_F32};
    assert_int_equal(session_plan(&s, &o, &e), 0);
    assert_int_equal(session_start(&s, &e), ERR_UNSUPPORTED);
    session_close(&s);
    assert_non_null(strstr(e.text, "device=cuda"));
    print_message("%s\n", e.text);
    train(&x, DEVICE_AUTO, true, true);
    assert_int_equal(x.graphs, 0);
    free(x.weight);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),        cmocka_unit_test(test_verify),
        cmocka_unit_test(test_verify_graphs), cmocka_unit_test(test_steps),
        cmocka_unit_test(test_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

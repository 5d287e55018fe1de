// test_train_cuda.c - whole models on the CUDA backend: against reference checkpoints, against the
// CPU, and graphs against single launches (equal to the bit). Skipped where there is no device.
#include "references.h"

#include "at_work.h"
#include "backend/plugin.h"
#include "base/file.h"
#include "base/rng.h"
#include "plan/second.h"
#include "skips.h"
#include "train/score.h"

#include <math.h>
#include <string.h>

static bool have_device(void) {
    struct plugin_report r;
    plugin_examine("cuda", &r);
    return r.usable;
}

static void need_device(void) {
    struct plugin_report r;
    plugin_examine("cuda", &r);
    if (!r.usable)
        skip_because("no CUDA backend: %s", r.reason);
}

// ---------------------------------------------------------------- reference checkpoints

static void verify_all(enum precision precision, bool graphs) {
    struct knobs k;
    need_device();
    knobs_init(&k);
    k.threads = 2;
    k.device = DEVICE_CUDA;
    k.cuda_graphs = graphs;
    k.precision = precision;
    assert_true(verify_references(&k, false) > 0);
}

static void test_verify(void **state) {
    (void)state;
    verify_all(PRECISION_FP32, false);
}

static void test_verify_graphs(void **state) {
    (void)state;
    verify_all(PRECISION_FP32, true);
}

static void test_verify_bf16(void **state) {
    (void)state;
    verify_all(PRECISION_BF16, false);
}

static void test_verify_bf16_graphs(void **state) {
    (void)state;
    verify_all(PRECISION_BF16, true);
}

static void test_verify_fp16(void **state) {
    (void)state;
    verify_all(PRECISION_FP16, true);
}

// ---------------------------------------------------------------- a few steps

enum { STEPS = 5, MICRO = 3, BATCH = 2, SEQ = 48 };

struct outcome {
    double loss[STEPS], norm[STEPS];
    void *weight; // the bytes of one of them, after the last step
    uint64_t bytes;
    int graphs;
    uint64_t busy_ns;
    int guests;
    double guest_loss[STEPS * MICRO];
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

static int steps(struct at_work *s, struct outcome *out, struct trace *trace, struct err *e) {
    static struct tokens t;
    double results[RESULT_COUNT], clip[CLIP_COUNT];
    for (int i = 0; i < STEPS; i++) {
        double h[HYPER_COUNT] = {[HYPER_LR] = 1e-3,
                                 [HYPER_BETA1] = 0.9,
                                 [HYPER_BETA2] = 0.95,
                                 [HYPER_EPS] = 1e-8,
                                 [HYPER_DECAY] = 0.1,
                                 [HYPER_CLIP] = 1,
                                 [HYPER_BIAS1] = 1 - pow(0.9, i + 1),
                                 [HYPER_BIAS2] = 1 - pow(0.95, i + 1),
                                 [HYPER_LOSS_FACTOR] = 1.0 / (MICRO * BATCH * SEQ),
                                 [HYPER_DRAW] = 1e9 + i};
        draw(&t, i, s->plan.shape.vocab);
        TRY(session_set_hyper(s->s, h, e));
        if (trace)
            trace_begin_step(trace, (uint32_t)i, 0);
        TRY(session_run(s->s, PLAN_TRAIN, feed, &t, trace, e));
        TRY(session_get_results(s->s, results, clip, e));
        out->loss[i] = results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
        out->norm[i] = clip[CLIP_NORM];
    }
    return 0;
}

struct manner {
    enum device device;
    enum precision precision;
    bool graphs, traced, reference;
    bool guests; // an evaluation at each yield point
    bool second; // there, a second model is trained and evaluated
    bool adapter;
};

// The evaluation reads the first sequence of a batch that never changes.
struct guest {
    struct session *s;
    struct outcome *out;
    struct tokens tokens;
};

static int on_yield(void *arg, struct err *e) {
    struct guest *g = arg;
    double results[RESULT_COUNT];
    TRY(session_run(g->s, PLAN_GUEST_EVAL, feed, &g->tokens, NULL, e));
    TRY(session_get_guest_results(g->s, results, e));
    assert_int_equal((int)results[RESULT_TOKENS], SEQ);
    g->out->guest_loss[g->out->guests++] = results[RESULT_LOSS_SUM] / SEQ;
    return 0;
}

// A step of another model, then its loss on the same batch.
static int learn(struct session *s, struct tokens *t, int step, double *loss, struct err *e) {
    double results[RESULT_COUNT];
    const double h[HYPER_COUNT] = {[HYPER_LR] = 1e-2,
                                   [HYPER_BETA1] = 0.9,
                                   [HYPER_BETA2] = 0.95,
                                   [HYPER_EPS] = 1e-8,
                                   [HYPER_CLIP] = 1,
                                   [HYPER_BIAS1] = 1 - pow(0.9, step + 1),
                                   [HYPER_BIAS2] = 1 - pow(0.95, step + 1),
                                   [HYPER_LOSS_FACTOR] = 1.0 / SEQ};
    TRY(session_set_hyper(s, h, e));
    TRY(session_run(s, PLAN_TRAIN, feed, t, NULL, e));
    TRY(session_run(s, PLAN_EVAL, feed, t, NULL, e));
    TRY(session_get_results(s, results, NULL, e));
    assert_int_equal((int)results[RESULT_TOKENS], SEQ);
    *loss = results[RESULT_LOSS_SUM] / SEQ;
    return 0;
}

static int on_yield_second(void *arg, struct err *e) {
    struct guest *g = arg;
    const int n = g->out->guests++;
    return learn(g->s->second, &g->tokens, n, &g->out->guest_loss[n], e);
}

// As second_knobs would make them: another seed, a sequence at a time.
static struct knobs second_of(const struct knobs *k) {
    struct knobs second = *k;
    second.seed = 7, second.batch_micro = 1, second.batch_accum = 1;
    return second;
}

static void train(struct outcome *out, struct manner how) {
    struct err e = {0};
    struct knobs k;
    struct at_work s;
    struct trace trace;
    knobs_init(&k);
    k.threads = 2, k.seq = SEQ, k.batch_micro = BATCH, k.batch_accum = MICRO;
    k.device = how.device, k.cuda_graphs = how.graphs, k.precision = how.precision;
    if (how.adapter)
        k.lora_rank = 5, k.lora_dropout = 0.2;
    const struct knobs second = second_of(&k);
    struct plan_options o = {.knobs = &k,
                             .programs = {PLAN_TRAIN, how.guests ? PLAN_GUEST_EVAL : NULL},
                             .real = DTYPE_F32,
                             .second = how.second ? &second : NULL};
    static struct guest guest;
    memset(out, 0, sizeof *out);
    guest.out = out;
    const struct engine_options eo = {.reference = how.reference};
    int rc = at_work_plan(&s, &o, &e);
    if (rc == 0)
        rc = at_work_start(&s, &eo, &e);
    guest.s = s.s;
    if (rc == 0 && (how.guests || how.second)) {
        draw(&guest.tokens, 99, s.plan.shape.vocab);
        exec_on_yield(s.s->exec, how.second ? on_yield_second : on_yield, &guest);
    }
    if (rc == 0 && how.traced)
        rc = trace_open(&trace, s.engine->mem, 0, &e);
    if (rc == 0)
        rc = steps(&s, out, how.traced ? &trace : NULL, &e);
    if (rc != 0)
        fail_msg("%s", e.text);
    struct model_param param; // the embedding, or the last one of the adapter
    bool pair;
    const int64_t number = how.adapter ? model_param_count(&s.plan.shape) +
                                             adapter_param_count(&s.plan.adapter, &s.plan.shape) - 1
                                       : 0;
    assert_true(plan_param_at(&s.plan, number, &param, &pair) && pair == how.adapter);
    int t = plan_tensor(&s.plan, PLAN_TRAIN, param.name);
    const struct tensor *weight = &plan_program(&s.plan, PLAN_TRAIN)->tensors[t];
    out->bytes = (uint64_t)tensor_elements(weight) * dtype_bytes(weight->dtype);
    out->weight = malloc(out->bytes);
    assert_non_null(out->weight);
    rc = exec_read(s.s->exec, plan_find(&s.plan, PLAN_TRAIN), t, out->weight, out->bytes, &e);
    if (rc != 0)
        fail_msg("%s", e.text);
    out->graphs = exec_graphs(s.s->exec);
    out->busy_ns = exec_busy_ns(s.s->exec);
    if (s.engine->device_free_bytes && how.second) // both arenas are there
        assert_true(engine_device_bytes(s.engine) >= plan_arena_bytes(&s.plan));
    if (how.traced)
        trace_close(&trace);
    at_work_close(&s);
}

static void assert_same(const struct outcome *a, const struct outcome *b) {
    for (int i = 0; i < STEPS; i++)
        if (a->loss[i] != b->loss[i] || a->norm[i] != b->norm[i])
            fail_msg("step %d: loss %.17g and %.17g, norm %.17g and %.17g", i, a->loss[i],
                     b->loss[i], a->norm[i], b->norm[i]);
    assert_memory_equal(a->weight, b->weight, a->bytes);
}

// One launch per op, the same again, graphs, and traced: the same bits. Compared with the host:
// within the tolerances.
static void compare_steps(enum precision precision, bool reference, bool adapter, double loss,
                          double norm) {
    need_device();
    struct outcome host, plain, again, graphs, traced;
    struct manner how = {DEVICE_CPU, precision, .reference = reference, .adapter = adapter};
    train(&host, how);
    how = (struct manner){DEVICE_CUDA, precision, .graphs = false, .adapter = adapter};
    train(&plain, how);
    train(&again, how);
    how.graphs = true;
    train(&graphs, how);
    how.traced = true;
    train(&traced, how);
    assert_same(&plain, &again);
    assert_same(&plain, &graphs);
    assert_same(&plain, &traced);
    assert_int_equal(plain.graphs, 0);
    // what comes before the first batch, the first micro-batch, the last one with the update, and
    // those in the middle, if there are any
    assert_int_equal(graphs.graphs, MICRO > 2 ? 4 : 3);
    assert_int_equal(traced.graphs, MICRO > 2 ? 4 : 3);
    assert_true(plain.busy_ns > 0 && graphs.busy_ns > 0);
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(plain.loss[i] - host.loss[i]) <= loss * host.loss[i]) ||
            !(fabs(plain.norm[i] - host.norm[i]) <= norm * host.norm[i]))
            fail_msg("step %d: loss %.9g, on the host %.9g; norm %.9g, on the host %.9g", i,
                     plain.loss[i], host.loss[i], plain.norm[i], host.norm[i]);
    print_message("last turn: %.3f ms launched one by one, %.3f ms as graphs\n",
                  1e-6 * (double)plain.busy_ns, 1e-6 * (double)graphs.busy_ns);
    free(host.weight), free(plain.weight), free(again.weight), free(graphs.weight);
    free(traced.weight);
}

static void test_steps(void **state) {
    (void)state;
    compare_steps(PRECISION_FP32, false, false, 1e-4, 1e-3);
}

// Two bf16 engines that round at different places may differ by the limits of verify.
static void test_steps_bf16(void **state) {
    (void)state;
    compare_steps(PRECISION_BF16, true, false, verify_limits(PRECISION_BF16)->steps,
                  verify_limits(PRECISION_BF16)->norm);
}

// An adapter with dropout, whose draws are the same on the device and in graphs.
static void test_steps_adapter(void **state) {
    (void)state;
    compare_steps(PRECISION_FP32, false, true, 1e-4, 1e-3);
    compare_steps(PRECISION_BF16, true, true, verify_limits(PRECISION_BF16)->steps,
                  verify_limits(PRECISION_BF16)->norm);
}

// Guests between micro-batches change no bit, with one launch per op, with graphs and timed. Their
// answers are the same each time. (Without a device this runs on the CPU.)
static void test_guests(void **state) {
    (void)state;
    struct outcome alone, got[3];
    const enum device device = have_device() ? DEVICE_CUDA : DEVICE_CPU;
    train(&alone, (struct manner){device, PRECISION_FP32, .graphs = true});
    for (int i = 0; i < 3; i++) {
        train(&got[i], (struct manner){device, PRECISION_FP32, .graphs = i > 0, .traced = i > 1,
                                       .guests = true});
        assert_same(&alone, &got[i]);
        assert_int_equal(got[i].guests, STEPS * (MICRO - 1));
        assert_memory_equal(got[i].guest_loss, got[0].guest_loss, sizeof got[0].guest_loss);
        assert_true(got[i].guest_loss[0] > 0 && got[i].guest_loss[0] == got[i].guest_loss[1]);
        assert_true(got[i].guest_loss[1] != got[i].guest_loss[2]); // another step's weights
    }
    free(alone.weight);
    for (int i = 0; i < 3; i++)
        free(got[i].weight);
}

// A second model that is trained between micro-batches changes no bit of the bulk model, and it
// learns the same as alone: with one launch per op, with graphs and timed. (Without a device this
// runs on the CPU.)
static void test_second(void **state) {
    (void)state;
    struct outcome alone, got[3];
    struct knobs k;
    struct err e = {0};
    struct at_work s;
    static struct tokens t;
    const enum device device = have_device() ? DEVICE_CUDA : DEVICE_CPU;
    train(&alone, (struct manner){device, PRECISION_FP32, .graphs = true});
    knobs_init(&k);
    k.threads = 2, k.seq = SEQ, k.device = device;
    struct knobs own = second_of(&k); // each sequence is one record, as in requests
    snprintf(own.data_path, sizeof own.data_path, "records.jsonl");
    own.data_pack = DATA_PACK_NONE;
    struct plan_options o = {.knobs = &own, .programs = {PLAN_TRAIN, PLAN_EVAL}, .real = DTYPE_F32};
    assert_int_equal(at_work_plan(&s, &o, &e), 0);
    assert_int_equal(at_work_start(&s, NULL, &e), 0);
    draw(&t, 99, s.plan.shape.vocab);
    double losses[STEPS * (MICRO - 1)];
    for (int i = 0; i < STEPS * (MICRO - 1); i++)
        assert_int_equal(learn(s.s, &t, i, &losses[i], &e), 0);
    at_work_close(&s);
    assert_true(losses[STEPS * (MICRO - 1) - 1] < losses[0]);
    for (int i = 0; i < 3; i++) {
        train(&got[i], (struct manner){device, PRECISION_FP32, .graphs = i > 0, .traced = i > 1,
                                       .second = true});
        assert_same(&alone, &got[i]);
        assert_int_equal(got[i].graphs, i > 0 && device == DEVICE_CUDA ? 4 : 0);
        assert_int_equal(got[i].guests, STEPS * (MICRO - 1));
        assert_memory_equal(got[i].guest_loss, losses, sizeof losses);
        free(got[i].weight);
    }
    free(alone.weight);
}

// A plan that needs more than the device has is refused with numbers, and nothing crashes.
static void test_too_large(void **state) {
    (void)state;
    struct err e = {0};
    struct knobs k;
    struct at_work s;
    need_device();
    knobs_init(&k);
    assert_int_equal(knobs_set(&k, "model", "llama-70b", SET_BY_COMMAND_LINE, &e), 0);
    k.device = DEVICE_CUDA, k.seq = 1024, k.batch_micro = 4;
    struct plan_options o = {.knobs = &k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    int rc = at_work_plan(&s, &o, &e);
    if (rc == 0)
        rc = at_work_start(&s, NULL, &e);
    at_work_close(&s);
    assert_int_equal(rc, ERR_MEMORY);
    assert_non_null(strstr(e.text, "device"));
    print_message("%s\n", e.text);
}

// device=cuda without a device is refused with the reason. device=auto uses the CPU.
static void test_choice(void **state) {
    (void)state;
    struct plugin_report r;
    struct outcome x;
    plugin_examine("cuda", &r);
    if (r.usable)
        skip_because("there is a GPU, and this is about a machine without one");
    struct err e = {0};
    struct knobs k;
    struct at_work s;
    knobs_init(&k);
    k.threads = 1, k.device = DEVICE_CUDA;
    struct plan_options o = {.knobs = &k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    assert_int_equal(at_work_plan(&s, &o, &e), 0);
    assert_int_equal(at_work_start(&s, NULL, &e), ERR_UNSUPPORTED);
    at_work_close(&s);
    assert_non_null(strstr(e.text, "device=cuda"));
    print_message("%s\n", e.text);
    train(&x, (struct manner){DEVICE_AUTO, PRECISION_FP32, .graphs = true, .traced = true});
    assert_int_equal(x.graphs, 0);
    free(x.weight);
}

// ---------------------------------------------------------------- scores of records

static void score_on(struct score *s, enum device device, const char *path, const char *words) {
    static const struct score_listener quiet = {0};
    struct knobs k;
    struct err e = {0};
    knobs_init(&k);
    k.threads = 2, k.device = device, k.seq = SEQ;
    snprintf(k.data_path, sizeof k.data_path, "%s", path);
    snprintf(k.data_cache, sizeof k.data_cache, "none");
    int rc = knobs_set_assignment(&k, words, SET_BY_COMMAND_LINE, &e);
    if (rc == 0)
        rc = score_open(s, &k, &quiet, &e);
    if (rc == 0)
        rc = score_model(s, "", &quiet, &e);
    if (rc != 0)
        fail_msg("%s: %s", words, e.text);
}

// Each record's loss on the device is the host's: packed or not, in chunks, with a loss in parts.
// (Without a device the second pass runs on the CPU as well.)
static void test_scores(void **state) {
    (void)state;
    static const char text[] = "{\"text\": \"One record.\"}\n"
                               "{\"text\": \"Another, which is longer.\"}\n"
                               "{\"text\": \"And a third that seq cuts, because it is too long "
                               "to be read whole by it.\"}\n";
    static const char *const words[] = {"data.cache=none", "data.pack=none", "logits.chunk=9",
                                        "fuse.loss=false"};
    char dir[200], path[300];
    struct score host, device;
    struct err e = {0};
    assert_int_equal(file_make_temp_dir(dir, sizeof dir, "score", &e), 0);
    snprintf(path, sizeof path, "%s/records.jsonl", dir);
    assert_int_equal(file_write_atomic(path, text, sizeof text - 1, &e), 0);
    score_on(&host, DEVICE_CPU, path, "data.cache=none");
    assert_int_equal(host.n_units, 3);
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        score_on(&device, have_device() ? DEVICE_CUDA : DEVICE_CPU, path, words[w]);
        for (size_t i = 0; i < host.n_units; i++)
            if (!(fabs(device.units[i].nats - host.units[i].nats) <= 1e-4 * host.units[i].nats))
                fail_msg("%s, record %zu: %.9g, on the host %.9g", words[w], i,
                         device.units[i].nats, host.units[i].nats);
        score_close(&device);
    }
    score_close(&host);
    assert_int_equal(file_remove_tree(dir, &e), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_verify),
        cmocka_unit_test(test_verify_graphs),
        cmocka_unit_test(test_verify_bf16),
        cmocka_unit_test(test_verify_bf16_graphs),
        cmocka_unit_test(test_verify_fp16),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_steps_bf16),
        cmocka_unit_test(test_steps_adapter),
        cmocka_unit_test(test_guests),
        cmocka_unit_test(test_second),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

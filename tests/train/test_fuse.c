// test_fuse.c - training is the same with fusion groups on and off, for every family, in fp32 and
// bf16. The programs, their memory and roundings differ, within limits that docs/numerics.md
// explains.
#include "steps.h"

enum { STEPS = 5 };

static const char *const models[] = {"gpt2-odd", "llama-bias", "llama3-scaled", "qwen2", "qwen3"};
enum { MODELS = sizeof models / sizeof *models };

// Largest relative difference of the losses of STEPS steps, compared with all groups on. 0: the
// same bits.
static const struct group {
    const char *name;
    bool norm, act, loss, optim;
    double fp32, bf16;
} groups[] = {
    {"fuse.norm", false, true, true, true, 0, 1e-3},
    {"fuse.act", true, false, true, true, 1e-6, 1e-3},
    {"fuse.loss", true, true, false, true, 1e-6, 1e-3},
    {"fuse.optim", true, true, true, false, 0, 0},
    {"all of them", false, false, false, false, 1e-6, 1e-3},
};
enum { GROUPS = sizeof groups / sizeof *groups };

static void knobs_of(struct knobs *k, const char *model, enum precision precision,
                     const struct group *g) {
    char path[512];
    snprintf(path, sizeof path, "%s/tests/reference/%s", HAGGLE_SOURCE_DIR, model);
    steps_knobs(k, path, 2, 2, 12);
    k->precision = precision;
    if (g)
        k->fuse_norm = g->norm, k->fuse_act = g->act, k->fuse_loss = g->loss,
        k->fuse_optim = g->optim;
}

static void open_group(struct at_work *s, const char *model, enum precision precision,
                       const struct group *g) {
    struct err e = {0};
    struct knobs k;
    knobs_of(&k, model, precision, g);
    assert_worked(steps_open(s, &k, false, &e), &e);
}

// The number of ops of a kind in all segments of a program.
static int count(const struct at_work *s, const char *which, enum op_kind kind) {
    const struct program *p = plan_program(&s->plan, which);
    int n = 0;
    for (int i = 0; i < p->n_segments; i++)
        for (int k = 0; k < p->segments[i].n_ops; k++)
            n += p->segments[i].ops[k].kind == kind;
    return n;
}

// ---------------------------------------------------------------- the same training

static double worst_of(struct at_work *s, const double *losses) {
    double worst = 0;
    for (int i = 0; i < STEPS; i++)
        worst = fmax(worst, fabs(steps_take(s, i) - losses[i]) / losses[i]);
    return worst;
}

static void check_losses(enum precision precision) {
    double worst[GROUPS] = {0};
    for (int m = 0; m < MODELS; m++) {
        struct at_work on;
        double losses[STEPS];
        open_group(&on, models[m], precision, NULL);
        for (int i = 0; i < STEPS; i++)
            losses[i] = steps_take(&on, i);
        for (int g = 0; g < GROUPS; g++) {
            struct at_work off;
            open_group(&off, models[m], precision, &groups[g]);
            double w = worst_of(&off, losses);
            double limit = precision == PRECISION_FP32 ? groups[g].fp32 : groups[g].bf16;
            if (!(w <= limit))
                fail_msg("%s, %s off: losses differ by %.2e", models[m], groups[g].name, w);
            if (limit == 0)
                steps_assert_same_weights(&on, &off);
            worst[g] = fmax(worst[g], w);
            at_work_close(&off);
        }
        at_work_close(&on);
    }
    for (int g = 0; g < GROUPS; g++)
        print_message("%s off: losses differ by %.1e at most\n", groups[g].name, worst[g]);
}

static void test_losses_fp32(void **state) {
    (void)state;
    check_losses(PRECISION_FP32);
}

static void test_losses_bf16(void **state) {
    (void)state;
    check_losses(PRECISION_BF16);
}

// ---------------------------------------------------------------- programs and memory

static void test_programs(void **state) {
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        struct at_work on, off;
        bool gpt2 = m == 0;
        open_group(&on, models[m], PRECISION_FP32, NULL);
        open_group(&off, models[m], PRECISION_FP32, &groups[GROUPS - 1]);
        int L = (int)on.plan.shape.layers;
        for (int i = 0; i < 2; i++) {
            const char *p = i == 0 ? PLAN_TRAIN : PLAN_EVAL;
            assert_int_equal(count(&on, p, OP_ADD_NORM), 2 * L);
            assert_int_equal(count(&on, p, OP_NORM), 1 + (on.plan.shape.qk_norm ? 2 * L : 0));
            assert_int_equal(count(&on, p, OP_MATMUL_ACT), gpt2 ? L : 0);
            assert_int_equal(count(&on, p, OP_SWIGLU), gpt2 ? 0 : L);
            assert_int_equal(count(&on, p, OP_LOSS), 1);
            assert_int_equal(count(&on, p, OP_ADD) + count(&on, p, OP_ADD_BIAS) +
                                 count(&on, p, OP_ACT) + count(&on, p, OP_LOG_SOFTMAX),
                             0);
            assert_int_equal(count(&off, p, OP_ADD), 2 * L);
            assert_int_equal(count(&off, p, OP_ACT), L);
            assert_int_equal(count(&off, p, OP_LOG_SOFTMAX), 1);
            assert_int_equal(count(&off, p, OP_NLL), 1);
            assert_int_equal(count(&off, p, OP_ADD_NORM) + count(&off, p, OP_MATMUL_ACT) +
                                 count(&off, p, OP_SWIGLU) + count(&off, p, OP_LOSS),
                             0);
        }
        if (gpt2) // qkv, out, up and down have one
            assert_int_equal(count(&off, PLAN_EVAL, OP_ADD_BIAS), 4 * L);
        assert_int_equal(count(&off, PLAN_TRAIN, OP_ADAM_STEP), count(&on, PLAN_TRAIN, OP_ADAMW));
        // In both variants of the backward, each norm's two gradients are one op, and so are the
        // product and the activation's gradient, and a weight's and its bias' gradient.
        const int norms = 2 * (count(&on, PLAN_TRAIN, OP_NORM) + 2 * L);
        assert_int_equal(count(&on, PLAN_TRAIN, OP_NORM_BWD), norms);
        assert_int_equal(count(&on, PLAN_TRAIN, OP_NORM_DX) + count(&on, PLAN_TRAIN, OP_NORM_DW),
                         0);
        assert_int_equal(count(&off, PLAN_TRAIN, OP_NORM_DX), norms);
        assert_int_equal(count(&on, PLAN_TRAIN, OP_MATMUL_DX_ACT), gpt2 ? 2 * L : 0);
        assert_int_equal(count(&on, PLAN_TRAIN, OP_BIAS_DB), 0);
        assert_int_equal(count(&off, PLAN_TRAIN, OP_MATMUL_DX_ACT), 0);
        // No norm's gradient is added in place: each is a tensor that is added afterwards (in both
        // variants).
        assert_int_equal(count(&off, PLAN_TRAIN, OP_COPY), 2 * 2 * L);
        at_work_close(&on);
        at_work_close(&off);
    }
}

static void test_memory(void **state) {
    (void)state;
    static const enum recompute_mode modes[] = {RECOMPUTE_MODE_NONE, RECOMPUTE_MODE_SELECTIVE,
                                                RECOMPUTE_MODE_FULL};
    for (int m = 0; m < MODELS; m++)
        for (int r = 0; r < 3; r++) {
            uint64_t on = 0;
            for (int g = -1; g < GROUPS; g++) {
                struct err e = {0};
                struct at_work s;
                struct knobs k;
                knobs_of(&k, models[m], PRECISION_BF16, g < 0 ? NULL : &groups[g]);
                k.recompute_mode = modes[r];
                struct plan_options o = {.knobs = &k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
                assert_worked(at_work_plan(&s, &o, &e), &e);
                uint64_t live = plan_program(&s.plan, PLAN_TRAIN)->live_bytes;
                on = g < 0 ? live : on;
                if (live < on)
                    fail_msg("%s, recompute %d, %s off needs %llu bytes, on %llu", models[m], r,
                             groups[g].name, (unsigned long long)live, (unsigned long long)on);
                at_work_close(&s);
            }
        }
}

// ---------------------------------------------------------------- with other techniques

// Recomputation gives the same bits, whatever is fused.
static void check_recompute(const char *model, enum precision precision, const struct group *g) {
    static const struct {
        enum recompute_mode mode;
        double ratio;
    } modes[] = {
        {RECOMPUTE_MODE_SELECTIVE, 0.05}, {RECOMPUTE_MODE_SELECTIVE, 0}, {RECOMPUTE_MODE_FULL, 0}};
    struct at_work plain;
    double losses[2];
    open_group(&plain, model, precision, g);
    for (int i = 0; i < 2; i++)
        losses[i] = steps_take(&plain, i);
    for (int r = 0; r < 3; r++) {
        struct err e = {0};
        struct at_work s;
        struct knobs k;
        knobs_of(&k, model, precision, g);
        k.recompute_mode = modes[r].mode, k.recompute_ratio = modes[r].ratio;
        assert_worked(steps_open(&s, &k, false, &e), &e);
        for (int i = 0; i < 2; i++) {
            double loss = steps_take(&s, i);
            if (memcmp(&loss, &losses[i], sizeof loss) != 0)
                fail_msg("%s, %s, mode %d, step %d: loss %.17g, without %.17g", model,
                         g ? g->name : "all on", r, i, loss, losses[i]);
        }
        steps_assert_same_weights(&plain, &s);
        assert_true(s.plan.flops.model == plain.plan.flops.model);
        at_work_close(&s);
    }
    at_work_close(&plain);
}

static void test_recompute(void **state) {
    (void)state;
    for (int g = -1; g < GROUPS; g++) {
        const struct group *group = g < 0 ? NULL : &groups[g];
        check_recompute("gpt2-odd", PRECISION_FP32, group);
        check_recompute("llama-bias", PRECISION_FP32, group);
        if (g < 0 || g == GROUPS - 1) {
            check_recompute("gpt2-odd", PRECISION_BF16, group);
            check_recompute("qwen3", PRECISION_BF16, group);
        }
    }
}

// Chunks of logits share the tensors of a loss that is split into steps.
static void test_chunks(void **state) {
    (void)state;
    struct at_work whole;
    double losses[STEPS];
    open_group(&whole, "qwen2", PRECISION_FP32, &groups[2]);
    for (int i = 0; i < STEPS; i++)
        losses[i] = steps_take(&whole, i);
    const int64_t chunks[] = {1, 5, 12};
    for (int c = 0; c < 3; c++) {
        struct err e = {0};
        struct at_work s;
        struct knobs k;
        knobs_of(&k, "qwen2", PRECISION_FP32, &groups[2]);
        k.logits_chunk = chunks[c];
        assert_worked(steps_open(&s, &k, false, &e), &e);
        const struct program *p = plan_program(&s.plan, PLAN_TRAIN);
        assert_int_equal(p->tensors[program_find(p, "logits.logp")].local[0], chunks[c]);
        assert_true(worst_of(&s, losses) <= 1e-6);
        at_work_close(&s);
    }
    at_work_close(&whole);
}

// Gradients that are not finite leave weights and moments unchanged.
static void test_skipped_update(void **state) {
    (void)state;
    for (int p = 0; p < 2; p++) {
        struct err e = {0};
        struct at_work moved, still;
        const enum precision precision = p ? PRECISION_BF16 : PRECISION_FP32;
        open_group(&moved, "llama-bias", precision, &groups[3]);
        open_group(&still, "llama-bias", precision, &groups[3]);
        steps_take(&moved, 0);
        steps_take(&still, 0);
        struct steps_batch b = steps_make_batch(&moved, 1);
        double results[RESULT_COUNT], clip[CLIP_COUNT],
            h[HYPER_COUNT] = {
                [HYPER_LR] = 1,     [HYPER_BETA1] = 0.5, [HYPER_BETA2] = 0.5,
                [HYPER_EPS] = 1e-8, [HYPER_DECAY] = 0.5, [HYPER_CLIP] = 1,
                [HYPER_BIAS1] = 1,  [HYPER_BIAS2] = 1,   [HYPER_LOSS_FACTOR] = (double)INFINITY};
        assert_worked(session_set_hyper(moved.s, h, &e), &e);
        assert_worked(session_run(moved.s, PLAN_TRAIN, steps_feed, &b, NULL, &e), &e);
        assert_worked(session_get_results(moved.s, results, clip, &e), &e);
        assert_true(clip[CLIP_SKIP] != 0);
        steps_assert_same_weights(&moved, &still);
        const struct program *q = plan_program(&moved.plan, PLAN_TRAIN);
        for (int t = 0; t < q->n_tensors; t++)
            if (q->tensors[t].cls == CLASS_OPTIMIZER)
                assert_memory_equal(steps_tensor(&moved, q->tensors[t].name, NULL),
                                    steps_tensor(&still, q->tensors[t].name, NULL),
                                    q->tensors[t].bytes);
        free(b.tokens);
        at_work_close(&moved);
        at_work_close(&still);
    }
}

// Narrow moments cannot be split into passes: the knob has no effect there and says so.
static void test_idle(void **state) {
    (void)state;
    struct err e = {0};
    struct at_work s;
    struct knobs k;
    knobs_of(&k, "qwen2", PRECISION_FP32, &groups[3]);
    assert_null(knobs_idle(&k, KNOB_fuse_optim));
    k.optim_state = OPTIM_STATE_INT8;
    assert_non_null(knobs_idle(&k, KNOB_fuse_optim));
    assert_worked(steps_open(&s, &k, false, &e), &e);
    assert_int_equal(count(&s, PLAN_TRAIN, OP_ADAM_STEP), 0);
    at_work_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_fp32),    cmocka_unit_test(test_losses_bf16),
        cmocka_unit_test(test_programs),       cmocka_unit_test(test_memory),
        cmocka_unit_test(test_recompute),      cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_skipped_update), cmocka_unit_test(test_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_fuse.c - fusion groups on and off train the same: every family, fp32 and bf16. What differs is the
// program, its memory, and roundings, within limits that docs/numerics.md explains.
#include "steps.h"

enum { STEPS = 5 };

static const char *const models[] = {"gpt2-odd", "llama-bias", "llama3-scaled", "qwen2", "qwen3"};
enum { MODELS = sizeof models / sizeof *models };

// Of the losses of STEPS steps, relative, against everything on. 0: the same bits.
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

static void open_group(struct session *s, const char *model, enum precision precision,
                       const struct group *g) {
    struct err e = {0};
    struct knobs k;
    knobs_of(&k, model, precision, g);
    assert_worked(steps_open(s, &k, false, &e), &e);
}

// Ops of a kind in all segments of a program.
static int count(const struct session *s, enum session_program which, enum op_kind kind) {
    const struct program *p = s->programs[which];
    int n = 0;
    for (int i = 0; i < p->n_segments; i++)
        for (int k = 0; k < p->segments[i].n_ops; k++)
            n += p->segments[i].ops[k].kind == kind;
    return n;
}

// ---------------------------------------------------------------- the same training

static double worst_of(struct session *s, const double *losses) {
    double worst = 0;
    for (int i = 0; i < STEPS; i++)
        worst = fmax(worst, fabs(steps_take(s, i) - losses[i]) / losses[i]);
    return worst;
}

static void check_losses(enum precision precision) {
    double worst[GROUPS] = {0};
    for (int m = 0; m < MODELS; m++) {
        struct session on;
        double losses[STEPS];
        open_group(&on, models[m], precision, NULL);
        for (int i = 0; i < STEPS; i++)
            losses[i] = steps_take(&on, i);
        for (int g = 0; g < GROUPS; g++) {
            struct session off;
            open_group(&off, models[m], precision, &groups[g]);
            double w = worst_of(&off, losses);
            double limit = precision == PRECISION_FP32 ? groups[g].fp32 : groups[g].bf16;
            if (!(w <= limit))
                fail_msg("%s, %s off: losses differ by %.2e", models[m], groups[g].name, w);
            if (limit == 0)
                steps_assert_same_weights(&on, &off);
            worst[g] = fmax(worst[g], w);
            session_close(&off);
        }
        session_close(&on);
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
        struct session on, off;
        bool gpt2 = m == 0;
        open_group(&on, models[m], PRECISION_FP32, NULL);
        open_group(&off, models[m], PRECISION_FP32, &groups[GROUPS - 1]);
        int L = (int)on.shape.layers;
        for (int p = SESSION_TRAIN; p <= SESSION_EVAL; p++) {
            assert_int_equal(count(&on, p, OP_ADD_NORM), 2 * L);
            assert_int_equal(count(&on, p, OP_NORM), 1 + (on.shape.qk_norm ? 2 * L : 0));
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
            assert_int_equal(count(&off, SESSION_EVAL, OP_ADD_BIAS), 4 * L);
        assert_int_equal(count(&off, SESSION_TRAIN, OP_ADAM_STEP),
                         count(&on, SESSION_TRAIN, OP_ADAMW));
        // Nobody adds in a norm's gradient: each is a tensor, then added (in both variants).
        assert_int_equal(count(&off, SESSION_TRAIN, OP_COPY), 2 * 2 * L);
        session_close(&on);
        session_close(&off);
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
                struct session s;
                struct knobs k;
                knobs_of(&k, models[m], PRECISION_BF16, g < 0 ? NULL : &groups[g]);
                k.recompute_mode = modes[r];
                struct session_options o = {
                    .knobs = &k, .has = {[SESSION_TRAIN] = true}, .real = DTYPE_F32};
                assert_worked(session_plan(&s, &o, &e), &e);
                uint64_t live = s.programs[SESSION_TRAIN]->live_bytes;
                on = g < 0 ? live : on;
                if (live < on)
                    fail_msg("%s, recompute %d, %s off needs %llu bytes, on %llu", models[m], r,
                             groups[g].name, (unsigned long long)live, (unsigned long long)on);
                session_close(&s);
            }
        }
}

// ---------------------------------------------------------------- with other techniques

// Recomputation keeps the bits, whatever is fused.
static void check_recompute(const char *model, enum precision precision, const struct group *g) {
    static const struct {
        enum recompute_mode mode;
        double ratio;
    } modes[] = {
        {RECOMPUTE_MODE_SELECTIVE, 0.05}, {RECOMPUTE_MODE_SELECTIVE, 0}, {RECOMPUTE_MODE_FULL, 0}};
    struct session plain;
    double losses[2];
    open_group(&plain, model, precision, g);
    for (int i = 0; i < 2; i++)
        losses[i] = steps_take(&plain, i);
    for (int r = 0; r < 3; r++) {
        struct err e = {0};
        struct session s;
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
        assert_true(session_step_flops(&s).model == session_step_flops(&plain).model);
        session_close(&s);
    }
    session_close(&plain);
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

// Chunks of logits share the tensors of a loss in steps.
static void test_chunks(void **state) {
    (void)state;
    struct session whole;
    double losses[STEPS];
    open_group(&whole, "qwen2", PRECISION_FP32, &groups[2]);
    for (int i = 0; i < STEPS; i++)
        losses[i] = steps_take(&whole, i);
    const int64_t chunks[] = {1, 5, 12};
    for (int c = 0; c < 3; c++) {
        struct err e = {0};
        struct session s;
        struct knobs k;
        knobs_of(&k, "qwen2", PRECISION_FP32, &groups[2]);
        k.logits_chunk = chunks[c];
        assert_worked(steps_open(&s, &k, false, &e), &e);
        const struct program *p = s.programs[SESSION_TRAIN];
        assert_int_equal(p->tensors[program_find(p, "logits.logp")].local[0], chunks[c]);
        assert_true(worst_of(&s, losses) <= 1e-6);
        session_close(&s);
    }
    session_close(&whole);
}

// Gradients that are not finite leave weights and moments as they were.
static void test_skipped_update(void **state) {
    (void)state;
    for (int p = 0; p < 2; p++) {
        struct err e = {0};
        struct session moved, still;
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
        assert_worked(session_set_hyper(&moved, h, &e), &e);
        assert_worked(session_run(&moved, SESSION_TRAIN, steps_feed, &b, NULL, &e), &e);
        assert_worked(session_get_results(&moved, results, clip, &e), &e);
        assert_true(clip[CLIP_SKIP] != 0);
        steps_assert_same_weights(&moved, &still);
        const struct program *q = moved.programs[SESSION_TRAIN];
        for (int t = 0; t < q->n_tensors; t++)
            if (q->tensors[t].cls == CLASS_OPTIMIZER)
                assert_memory_equal(steps_tensor(&moved, q->tensors[t].name, NULL),
                                    steps_tensor(&still, q->tensors[t].name, NULL),
                                    q->tensors[t].bytes);
        free(b.tokens);
        session_close(&moved);
        session_close(&still);
    }
}

// Narrow moments have no passes: the knob has no effect there and says so.
static void test_idle(void **state) {
    (void)state;
    struct err e = {0};
    struct session s;
    struct knobs k;
    knobs_of(&k, "qwen2", PRECISION_FP32, &groups[3]);
    assert_null(knobs_idle(&k, KNOB_fuse_optim));
    k.optim_state = OPTIM_STATE_INT8;
    assert_non_null(knobs_idle(&k, KNOB_fuse_optim));
    assert_worked(steps_open(&s, &k, false, &e), &e);
    assert_int_equal(count(&s, SESSION_TRAIN, OP_ADAM_STEP), 0);
    session_close(&s);
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

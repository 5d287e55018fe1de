// test_qkv.c - one product for queries, keys and values, or three: training is the same except for
// the order of one sum, and the files do not depend on it.
#include "steps.h"

#include "train/snapshot.h"

static const char *const models[] = {"gpt2-odd", "llama-bias", "llama3-scaled", "qwen2", "qwen3"};
enum { MODELS = sizeof models / sizeof *models, STEPS = 5 };

// The gradient of the projections' input is summed over all columns of q, k and v at once, or over
// each and then added. So it is rounded in another order (fp32), or once instead of three times
// (bf16). docs/numerics.md has what was measured on these models.
struct limits {
    double gradient, loss;
};
static const struct limits limits[] = {
    [PRECISION_FP32] = {2e-6, 1e-6}, [PRECISION_BF16] = {3e-2, 5e-4}};

static void open_model(struct at_work *s, const char *model, bool fused, enum precision precision,
                       enum optim_state state, bool reference) {
    struct err e = {0};
    struct knobs k;
    char path[512];
    snprintf(path, sizeof path, "%s/tests/reference/%s", HAGGLE_SOURCE_DIR, model);
    steps_knobs(&k, path, 2, 2, 12);
    k.fuse_qkv = fused, k.precision = precision, k.optim_state = state;
    k.cpu_blas = CPU_BLAS_BUILTIN; // a library may sum in another order for other widths
    struct plan_options o = {.knobs = &k,
                             .programs = {PLAN_TRAIN, PLAN_EVAL},
                             .real = DTYPE_F32,
                             .keep_gradients = true};
    const struct engine_options eo = {.reference = reference};
    assert_worked(at_work_plan(s, &o, &e), &e);
    assert_worked(at_work_start(s, &eo, &e), &e);
}

static int count_ops(const struct at_work *s, enum op_kind kind) {
    const struct program *p = plan_program(&s->plan, PLAN_TRAIN);
    int n = 0;
    for (int i = 0; i < p->n_segments; i++)
        for (int k = 0; k < p->segments[i].n_ops; k++)
            n += p->segments[i].ops[k].kind == kind;
    return n;
}

// Gradients of a bias: its op is part of the weight's (program/fuse.c).
static int count_bias_sums(const struct at_work *s) {
    const struct program *p = plan_program(&s->plan, PLAN_TRAIN);
    int n = count_ops(s, OP_BIAS_DB);
    for (int i = 0; i < p->n_segments; i++)
        for (int k = 0; k < p->segments[i].n_ops; k++)
            n += p->segments[i].ops[k].kind == OP_MATMUL_DW && p->segments[i].ops[k].n_out > 1;
    return n;
}

// Each layer has two products fewer in the forward and, in each of its two variants, in the
// backward. The optimizer's ops are the same.
static void check_ops(const struct at_work *on, const struct at_work *off) {
    const int layers = (int)on->plan.shape.layers, bias = on->plan.shape.qkv_bias;
    assert_int_equal(count_ops(off, OP_MATMUL) - count_ops(on, OP_MATMUL), 2 * layers);
    assert_int_equal(count_ops(off, OP_MATMUL_DX) - count_ops(on, OP_MATMUL_DX), 4 * layers);
    assert_int_equal(count_ops(off, OP_MATMUL_DW) - count_ops(on, OP_MATMUL_DW), 4 * layers);
    assert_int_equal(count_bias_sums(off) - count_bias_sums(on), 4 * layers * bias);
    assert_int_equal(count_ops(off, OP_ADAMW), count_ops(on, OP_ADAMW));
    assert_int_equal(count_ops(on, OP_ADAMW), model_param_count(&on->plan.shape));
    assert_int_equal(count_ops(on, OP_GRAD_SQNORM), model_param_count(&on->plan.shape));
    assert_true(on->plan.flops.model == off->plan.flops.model);
    assert_int_equal(steps_class_bytes(on, CLASS_WEIGHT), steps_class_bytes(off, CLASS_WEIGHT));
    assert_int_equal(steps_class_bytes(on, CLASS_GRADIENT), steps_class_bytes(off, CLASS_GRADIENT));
    // Rotations are in place, so nothing more is kept than before.
    assert_int_equal(steps_class_bytes(on, CLASS_ACTIVATION),
                     steps_class_bytes(off, CLASS_ACTIVATION));
}

// Compares gradients with the global norm where a tensor's own norm is rounding noise (a key bias
// without rotation has gradient 0 in exact arithmetic).
static double worst_gradient(const struct at_work *a, const struct at_work *b) {
    struct model_param p;
    double worst = 0, total = 0, diff, norm;
    for (int64_t i = 0; model_param_at(&a->plan.shape, i, &p); i++) {
        steps_compare_gradient(a, b, p.name, &diff, &norm);
        total += norm * norm;
    }
    for (int64_t i = 0; model_param_at(&a->plan.shape, i, &p); i++) {
        steps_compare_gradient(a, b, p.name, &diff, &norm);
        worst = fmax(worst, diff / fmax(norm, 1e-2 * sqrt(total)));
    }
    return worst;
}

static void compare(const char *model, enum precision precision, bool reference) {
    struct at_work on, off;
    double gradient = 0, loss = 0;
    open_model(&on, model, true, precision, OPTIM_STATE_FP32, reference);
    open_model(&off, model, false, precision, OPTIM_STATE_FP32, reference);
    check_ops(&on, &off);
    for (int i = 0; i < STEPS; i++) {
        double a = steps_take(&on, i), b = steps_take(&off, i);
        if (i == 0) { // the forward has the same sums; in later steps the weights differ
            assert_memory_equal(&a, &b, sizeof a);
            gradient = worst_gradient(&on, &off);
        }
        loss = fmax(loss, fabs(a / b - 1));
    }
    print_message("%s %s%s: gradients within %.1e, losses of %d steps within %.1e\n", model,
                  knob_choice(KNOB_precision, (int)precision), reference ? " reference" : "",
                  gradient, STEPS, loss);
    assert_true(gradient <= limits[precision].gradient);
    assert_true(loss <= limits[precision].loss);
    at_work_close(&on);
    at_work_close(&off);
}

static void test_fp32(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        compare(models[i], PRECISION_FP32, false);
        compare(models[i], PRECISION_FP32, true);
    }
}

static void test_bf16(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        compare(models[i], PRECISION_BF16, false);
        compare(models[i], PRECISION_BF16, true);
    }
}

// ---------------------------------------------------------------- the optimizer

// One step without clipping: tensors with the same gradient bits get the same update bits, with the
// same random draws. In the last layer these are all tensors except those before its products.
static void take_unclipped(struct at_work *s) {
    struct err e = {0};
    struct steps_batch b = steps_make_batch(s, 0);
    const double h[HYPER_COUNT] = {
        [HYPER_LR] = 1e-2,   [HYPER_BETA1] = 0.9,   [HYPER_BETA2] = 0.95,
        [HYPER_EPS] = 1e-8,  [HYPER_BIAS1] = 0.1,   [HYPER_BIAS2] = 0.05,
        [HYPER_DECAY] = 0.1, [HYPER_DRAW] = 123456, [HYPER_LOSS_FACTOR] = 1.0 / (double)b.trained};
    assert_worked(session_set_hyper(s->s, h, &e), &e);
    assert_worked(session_run(s->s, PLAN_TRAIN, steps_feed, &b, NULL, &e), &e);
    free(b.tokens);
}

static bool same_bits(const struct at_work *a, const struct at_work *b, const char *prefix,
                      const char *name) {
    char full[200];
    const struct tensor *t, *u;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const void *x = steps_tensor(a, full, &t), *y = steps_tensor(b, full, &u);
    assert_int_equal(tensor_elements(t), tensor_elements(u));
    return memcmp(x, y, (size_t)tensor_elements(t) * dtype_bytes(t->dtype)) == 0;
}

static void check_update(const char *model, enum precision precision, enum optim_state state) {
    struct at_work on, off;
    struct model_param p;
    int same = 0;
    open_model(&on, model, true, precision, state, precision != PRECISION_FP32);
    open_model(&off, model, false, precision, state, precision != PRECISION_FP32);
    take_unclipped(&on);
    take_unclipped(&off);
    for (int64_t i = 0; model_param_at(&on.plan.shape, i, &p); i++) {
        if (!same_bits(&on, &off, "d.", p.name))
            continue;
        same++;
        if (!same_bits(&on, &off, "", p.name) || !same_bits(&on, &off, "adam.m.", p.name) ||
            !same_bits(&on, &off, "adam.v.", p.name) ||
            (precision != PRECISION_FP32 && !same_bits(&on, &off, "master.", p.name)))
            fail_msg("%s: '%s' has the same gradient and another update", model, p.name);
    }
    // At least q, k, v, their biases, the output and the MLP of the last layer.
    int layer = 0;
    for (enum model_role r = ROLE_QKV_W; r <= ROLE_V_B; r++)
        if (model_param_get(&on.plan.shape, r, (int)on.plan.shape.layers - 1, &p)) {
            assert_true(same_bits(&on, &off, "d.", p.name));
            layer++;
        }
    assert_true(layer > 0 && same > layer);
    at_work_close(&on);
    at_work_close(&off);
}

static void test_update(void **state) {
    (void)state;
    static const enum optim_state states[] = {OPTIM_STATE_FP32, OPTIM_STATE_BF16, OPTIM_STATE_INT8};
    for (int i = 0; i < MODELS; i++)
        for (int k = 0; k < 3; k++) {
            check_update(models[i], PRECISION_FP32, states[k]);
            check_update(models[i], PRECISION_BF16, states[k]);
        }
}

// ---------------------------------------------------------------- files

static void cross(const struct scratch *x, const char *model, enum precision precision,
                  enum optim_state state, bool from) {
    static int number;
    struct at_work a, b;
    struct err e = {0};
    struct manifest_file written[MANIFEST_FILES], again[MANIFEST_FILES];
    char dir[2][400];
    for (int i = 0; i < 2; i++) {
        snprintf(dir[i], sizeof dir[i], "%s/cross-%d-%d", x->dir, number, i);
        assert_worked(file_make_dirs(dir[i], &e), &e);
    }
    number++;
    open_model(&a, model, from, precision, state, precision != PRECISION_FP32);
    open_model(&b, model, !from, precision, state, precision != PRECISION_FP32);
    steps_take(&a, 0);
    steps_take(&a, 1);
    assert_worked(snapshot_write(a.s, dir[0], NULL, written, &e), &e);
    assert_worked(snapshot_read(b.s, dir[0], &e), &e);
    steps_assert_same_weights(&a, &b);
    const struct program *p = plan_program(&a.plan, PLAN_TRAIN);
    int checked = 0;
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].cls == CLASS_OPTIMIZER) {
            if (!same_bits(&a, &b, "", p->tensors[t].name))
                fail_msg("%s differs", p->tensors[t].name);
            checked++;
        }
    assert_true(checked >= 2 * (int)model_param_count(&a.plan.shape));
    // The files it writes afterwards are the same.
    assert_worked(snapshot_write(b.s, dir[1], NULL, again, &e), &e);
    static const int files[2] = {MANIFEST_MODEL, MANIFEST_OPTIMIZER};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(written[files[i]].bytes, again[files[i]].bytes);
        assert_string_equal(written[files[i]].hash, again[files[i]].hash);
    }
    double on = steps_take(&a, 2), other = steps_take(&b, 2);
    assert_memory_equal(&on, &other, sizeof on);
    at_work_close(&a);
    at_work_close(&b);
}

static void test_checkpoints(void **state) {
    for (int i = 0; i < MODELS; i++)
        for (int from = 0; from < 2; from++) {
            cross(*state, models[i], PRECISION_FP32, OPTIM_STATE_FP32, from);
            cross(*state, models[i], PRECISION_BF16, OPTIM_STATE_INT8, from);
        }
}

// As a user would do it: stop, change the knob, resume.
static void test_resume(void **state) {
    for (int from = 0; from < 2; from++) {
        struct run r;
        run_init(&r, *state, from ? "turned-off" : "turned-on");
        run_set(&r, from ? "fuse.qkv=true" : "fuse.qkv=false");
        r.stop_at = 3;
        run_go(&r);
        assert_int_equal(r.rc, ERR_STOPPED);
        run_set(&r, from ? "fuse.qkv=false" : "fuse.qkv=true");
        run_again(&r);
        assert_ran(&r);
        assert_int_equal(r.first, 3);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp32),   cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_update), cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_resume),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

// test_precision.c - 16-bit weights with float32 masters: the type of each tensor, the content of a
// checkpoint, a resume to the bit, and that the fast backend trains like the reference.
#include "steps.h"

#include "train/snapshot.h"
#include "train/verify.h"

static void open_session(struct at_work *s, const char *model, enum precision precision) {
    struct err e = {0};
    struct knobs k;
    steps_knobs(&k, model, 2, 1, 16);
    k.precision = precision;
    assert_worked(steps_open(s, &k, true, &e), &e);
}

// Checks that every weight is its master rounded. Returns the number of weights.
static int check_rounded(const struct at_work *s) {
    struct model_param p;
    int n = 0;
    for (int64_t i = 0; model_param_at(&s->plan.shape, i, &p); i++, n++) {
        char name[200];
        snprintf(name, sizeof name, "master.%s", p.name);
        const struct tensor *w, *m;
        const uint16_t *weight = steps_tensor(s, p.name, &w);
        const float *master = steps_tensor(s, name, &m);
        assert_int_equal(w->dtype, DTYPE_BF16);
        assert_int_equal(m->dtype, DTYPE_F32);
        for (int64_t k = 0; k < tensor_elements(w); k++)
            assert_int_equal(weight[k], dtype_f32_to_bf16(master[k]));
    }
    return n;
}

static void test_types(void **state) {
    struct scratch *x = *state;
    struct at_work wide, half;
    open_session(&wide, x->nano, PRECISION_FP32);
    open_session(&half, x->nano, PRECISION_BF16);
    uint64_t bytes[2][CLASS_COUNT];
    for (int c = 0; c < CLASS_COUNT; c++) {
        bytes[0][c] = steps_class_bytes(&half, (enum tensor_class)c);
        bytes[1][c] = steps_class_bytes(&wide, (enum tensor_class)c);
    }
    // Weights take half, gradients stay, and the optimizer's two moments are joined by the master.
    assert_int_equal(2 * bytes[0][CLASS_WEIGHT], bytes[1][CLASS_WEIGHT]);
    assert_int_equal(bytes[0][CLASS_GRADIENT], bytes[1][CLASS_GRADIENT]);
    assert_int_equal(2 * bytes[0][CLASS_OPTIMIZER], 3 * bytes[1][CLASS_OPTIMIZER]);
    assert_true(bytes[0][CLASS_ACTIVATION] < bytes[1][CLASS_ACTIVATION]);
    assert_true(check_rounded(&half) > 5);
    at_work_close(&wide);
    at_work_close(&half);
}

// Models with many tensors: none is missed.
static void test_every_weight_has_a_master(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2-odd", "llama-bias", "qwen3"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct at_work s;
        char path[512];
        snprintf(path, sizeof path, "%s/tests/reference/%s", HAGGLE_SOURCE_DIR, models[i]);
        open_session(&s, path, PRECISION_BF16);
        steps_take(&s, 0);
        assert_true(check_rounded(&s) > 20);
        at_work_close(&s);
    }
}

// An update far below the last bit of a bfloat16 must not be lost: it adds up in the master.
static void test_small_steps_add_up(void **state) {
    struct scratch *x = *state;
    struct at_work s;
    const struct tensor *w;
    open_session(&s, x->nano, PRECISION_BF16);
    const uint16_t *weight = steps_tensor(&s, "model.embed_tokens.weight", &w);
    const float *master = steps_tensor(&s, "master.model.embed_tokens.weight", NULL);
    int64_t n = tensor_elements(w), moved = 0, changed = 0;
    float *before = malloc((size_t)n * sizeof *before);
    uint16_t *rounded = malloc((size_t)n * sizeof *rounded);
    assert_true(before && rounded);
    memcpy(before, master, (size_t)n * sizeof *before);
    memcpy(rounded, weight, (size_t)n * sizeof *rounded);
    steps_take_at(&s, 0, 1e-6);
    for (int64_t i = 0; i < n; i++) {
        moved += master[i] != before[i];
        changed += weight[i] != rounded[i];
    }
    assert_true(moved > 0 && changed < moved);
    assert_true(check_rounded(&s) > 5);
    free(before);
    free(rounded);
    at_work_close(&s);
}

static void test_checkpoint(void **state) {
    struct scratch *x = *state;
    struct err e = {0};
    struct at_work a, b, wide;
    struct manifest_file files[MANIFEST_FILES];
    char dir[400], path[500];
    snprintf(dir, sizeof dir, "%s/snapshot", x->dir);
    assert_worked(file_make_dirs(dir, &e), &e);
    open_session(&a, x->nano, PRECISION_BF16);
    for (int i = 0; i < 3; i++)
        steps_take(&a, i);
    assert_worked(snapshot_write(a.s, dir, NULL, files, &e), &e);
    // The model file holds the masters under the names of the weights, so a run of any precision
    // can continue from it.
    struct safetensors *st;
    assert_worked(file_join(path, sizeof path, dir, manifest_file_name(MANIFEST_MODEL), &e), &e);
    assert_worked(safetensors_open(&st, path, &e), &e);
    const struct safetensors_entry *entry = safetensors_find(st, "model.embed_tokens.weight");
    assert_non_null(entry);
    assert_int_equal(entry->dtype, DTYPE_F32);
    safetensors_close(st);
    open_session(&b, x->nano, PRECISION_BF16);
    assert_worked(snapshot_read(b.s, dir, &e), &e);
    check_rounded(&b);
    for (int i = 3; i < 6; i++) {
        double on = steps_take(&a, i), resumed = steps_take(&b, i);
        assert_memory_equal(&on, &resumed, sizeof on);
    }
    open_session(&wide, x->nano, PRECISION_FP32);
    assert_worked(snapshot_read(wide.s, dir, &e), &e);
    at_work_close(&a);
    at_work_close(&b);
    at_work_close(&wide);
}

// The fast backend takes the same steps as the reference, within the limits of verify.
static void test_fast_backend(void **state) {
    struct scratch *x = *state;
    static const enum precision precisions[] = {PRECISION_BF16, PRECISION_FP16};
    for (int p = 0; p < 2; p++) {
        struct at_work s[2];
        struct err e = {0};
        struct knobs k;
        steps_knobs(&k, x->nano, 2, 2, 16);
        k.precision = precisions[p];
        for (int i = 0; i < 2; i++)
            assert_worked(steps_open(&s[i], &k, i == 1, &e), &e);
        for (int i = 0; i < 5; i++) {
            double fast = steps_take(&s[0], i), plain = steps_take(&s[1], i);
            if (!(fabs(fast - plain) <= verify_limits(precisions[p])->steps * plain))
                fail_msg("precision %d, step %d: %.9g, the reference %.9g", p, i, fast, plain);
        }
        if (precisions[p] == PRECISION_BF16)
            check_rounded(&s[0]);
        at_work_close(&s[0]);
        at_work_close(&s[1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_every_weight_has_a_master),
        cmocka_unit_test(test_small_steps_add_up),
        cmocka_unit_test(test_checkpoint),
        cmocka_unit_test(test_fast_backend),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

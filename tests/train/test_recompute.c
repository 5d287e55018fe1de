// test_recompute.c - activation checkpointing changes memory and nothing else, bit for bit, for
// every family and every mode.
#include "steps.h"

static const char *const models[] = {"gpt2-odd", "llama-bias", "llama3-scaled", "qwen2", "qwen3"};

struct mode {
    enum recompute_mode mode;
    int every;
    double ratio;
};
static const struct mode modes[] = {{RECOMPUTE_MODE_SELECTIVE, 1, 0.05},
                                    {RECOMPUTE_MODE_SELECTIVE, 1, 0}, // attention and products too
                                    {RECOMPUTE_MODE_FULL, 1, 0},
                                    {RECOMPUTE_MODE_FULL, 2, 0}};

static void open_mode(struct at_work *s, const char *model, enum precision precision, bool fused,
                      const struct mode *m) {
    struct err e = {0};
    struct knobs k;
    char path[512];
    snprintf(path, sizeof path, "%s/tests/reference/%s", HAGGLE_SOURCE_DIR, model);
    steps_knobs(&k, path, 2, 2, 12);
    k.precision = precision, k.fuse_qkv = fused;
    if (m)
        k.recompute_mode = m->mode, k.recompute_every = m->every, k.recompute_ratio = m->ratio;
    assert_worked(steps_open(s, &k, precision != PRECISION_FP32, &e), &e);
}

static void compare(const char *model, enum precision precision, bool fused, int steps) {
    struct at_work plain;
    double losses[8];
    open_mode(&plain, model, precision, fused, NULL);
    for (int i = 0; i < steps; i++)
        losses[i] = steps_take(&plain, i);
    uint64_t kept = steps_class_bytes(&plain, CLASS_ACTIVATION);
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        struct at_work s;
        open_mode(&s, model, precision, fused, &modes[m]);
        for (int i = 0; i < steps; i++) {
            double loss = steps_take(&s, i);
            if (memcmp(&loss, &losses[i], sizeof loss) != 0)
                fail_msg("%s, mode %zu, step %d: loss %.17g, without %.17g", model, m, i, loss,
                         losses[i]);
        }
        steps_assert_same_weights(&plain, &s);
        uint64_t left = steps_class_bytes(&s, CLASS_ACTIVATION);
        if (left >= kept)
            fail_msg("%s, mode %zu keeps %llu bytes, without %llu", model, m,
                     (unsigned long long)left, (unsigned long long)kept);
        assert_true(s.plan.flops.model == plain.plan.flops.model);
        at_work_close(&s);
    }
    at_work_close(&plain);
}

static void test_same_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int fused = 0; fused < 2; fused++)
            compare(models[i], PRECISION_FP32, fused, 3);
}

static void test_same_bits_bf16(void **state) {
    (void)state;
    compare("gpt2-odd", PRECISION_BF16, true, 2);
    compare("gpt2-odd", PRECISION_BF16, false, 2);
    compare("qwen2", PRECISION_BF16, true, 2);
    compare("qwen3", PRECISION_BF16, true, 2);
}

// Full recomputation keeps only the input of each block. With every second block it keeps half of
// the blocks' activations.
static void test_how_much_is_kept(void **state) {
    (void)state;
    struct at_work s[3];
    open_mode(&s[0], "llama-bias", PRECISION_FP32, true, NULL);
    open_mode(&s[1], "llama-bias", PRECISION_FP32, true, &modes[3]);
    open_mode(&s[2], "llama-bias", PRECISION_FP32, true, &modes[2]);
    uint64_t kept[3], rows = 2 * 12;
    for (int i = 0; i < 3; i++)
        kept[i] = steps_class_bytes(&s[i], CLASS_ACTIVATION);
    assert_true(kept[0] > kept[1] && kept[1] > kept[2]);
    // The residual stream at each block's edge, the final norm and its statistics, and the logits.
    const struct model_shape *m = &s[2].plan.shape;
    uint64_t least = rows * 4 * (uint64_t)((m->layers + 1) * m->width + m->vocab);
    assert_true(kept[2] >= least && kept[2] < least + rows * 4 * (uint64_t)(2 * m->width + 64));
    assert_true(s[2].plan.flops.hardware > s[1].plan.flops.hardware);
    assert_true(s[1].plan.flops.hardware > s[0].plan.flops.hardware);
    for (int i = 0; i < 3; i++)
        at_work_close(&s[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_same_bits_bf16),
        cmocka_unit_test(test_how_much_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

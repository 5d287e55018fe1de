// test_verify.c - the engine compared with reference checkpoints: the plain backend and the fast
// one, in each precision.
#include "references.h"

#include <string.h>

static void sweep_fused(enum precision precision, bool reference, bool fused) {
    struct knobs k;
    knobs_init(&k);
    k.threads = 2;
    k.device = DEVICE_CPU;
    k.precision = precision;
    k.fuse_qkv = fused;
    verify_references(&k, reference);
}

static void sweep_with(enum precision precision, bool reference) {
    sweep_fused(precision, reference, true);
}

static void test_reference_backend(void **state) {
    (void)state;
    sweep_with(PRECISION_FP32, true);
}

static void test_reference_backend_bf16(void **state) {
    (void)state;
    sweep_with(PRECISION_BF16, true);
}

static void test_reference_backend_fp16(void **state) {
    (void)state;
    sweep_with(PRECISION_FP16, true);
}

static void test_fast_backend(void **state) {
    (void)state;
    sweep_with(PRECISION_FP32, false);
}

static void test_fast_backend_bf16(void **state) {
    (void)state;
    sweep_with(PRECISION_BF16, false);
}

// Without fused products of q, k and v, however the checkpoints store these weights.
static void test_qkv_apart(void **state) {
    (void)state;
    sweep_fused(PRECISION_FP32, false, false);
    sweep_fused(PRECISION_BF16, false, false);
}

static void test_padded_vocabulary(void **state) {
    (void)state;
    struct knobs k;
    knobs_init(&k);
    k.threads = 2;
    k.device = DEVICE_CPU;
    k.logits_pad = 64;
    verify_references(&k, false);
}

static void copy_file(const char *to, const char *from, const char *name, bool wrong) {
    char path[1100], *text;
    size_t bytes;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/%s", from, name);
    assert_int_equal(file_read_all(path, 64 << 20, &text, &bytes, &e), 0);
    char *digit = wrong ? strchr(strstr(text, "losses"), '.') : NULL;
    for (int i = 0; digit && i < 9; i++) // the tenth loss
        digit = strchr(digit + 1, '.');
    if (digit)
        digit[1] = digit[1] == '9' ? '8' : digit[1] + 1; // off by 0.1, two per cent
    snprintf(path, sizeof path, "%s/%s", to, name);
    assert_int_equal(file_write_atomic(path, text, bytes, &e), 0);
    free(text);
}

// Losses that are wrong are found in 16 bits too: their limit follows from how far rounded weights
// lead away, not from how far the losses are off.
static void test_wrong_losses(void **state) {
    (void)state;
    static const char *const names[] = {"config.json", "model.safetensors", "ref.safetensors",
                                        "ref.json"};
    char folder[256];
    struct err e = {0};
    assert_int_equal(file_make_temp_dir(folder, sizeof folder, "verify", &e), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        copy_file(folder, HAGGLE_SOURCE_DIR "/tests/reference/qwen2", names[i],
                  strcmp(names[i], "ref.json") == 0);
    for (int p = PRECISION_FP32; p <= PRECISION_FP16; p++) {
        struct knobs k;
        struct verify_result r;
        knobs_init(&k);
        k.threads = 2, k.device = DEVICE_CPU, k.precision = (enum precision)p;
        err_clear(&e);
        assert_int_equal(verify_folder(folder, &k, 0, &r, &e), ERR_NUMERIC);
        const struct verify_figure *steps = &r.figures[r.n_figures - 1];
        assert_false(steps->ok || r.ok);
        assert_true(steps->value > 0.01 && steps->limit <= verify_limits(k.precision)->steps);
        assert_int_equal(strstr(steps->name, "rounded weights alone") != NULL, p != PRECISION_FP32);
        for (size_t i = 0; i + 1 < r.n_figures; i++)
            assert_true(r.figures[i].ok);
        verify_free(&r);
    }
    assert_int_equal(file_remove_tree(folder, &e), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_backend),
        cmocka_unit_test(test_reference_backend_bf16),
        cmocka_unit_test(test_reference_backend_fp16),
        cmocka_unit_test(test_fast_backend),
        cmocka_unit_test(test_fast_backend_bf16),
        cmocka_unit_test(test_qkv_apart),
        cmocka_unit_test(test_padded_vocabulary),
        cmocka_unit_test(test_wrong_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

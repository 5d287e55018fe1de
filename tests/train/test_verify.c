// test_verify.c - the engine compared with reference checkpoints: the plain backend and the fast
// one, in each precision.
#include "references.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_backend),
        cmocka_unit_test(test_reference_backend_bf16),
        cmocka_unit_test(test_reference_backend_fp16),
        cmocka_unit_test(test_fast_backend),
        cmocka_unit_test(test_fast_backend_bf16),
        cmocka_unit_test(test_qkv_apart),
        cmocka_unit_test(test_padded_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

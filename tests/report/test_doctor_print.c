// test_doctor_print.c - what `haggle doctor` says of a GPU, for people and in JSON, from numbers
// that are given.
#include "base/json.h"
#include "report/doctor_print.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct doctor *examined(void) {
    struct doctor *d = calloc(1, sizeof *d);
    assert_non_null(d);
    for (int i = 0; i < DOCTOR_LIBRARIES; i++)
        d->libraries[i].choice = "builtin";
    knobs_init(&d->cpu);
    d->gpu.knobs = d->cpu;
    return d;
}

static struct doctor *with_gpu(void) {
    struct doctor *d = examined();
    d->cuda.usable = true;
    snprintf(d->cuda.device, sizeof d->cuda.device, "a made-up GPU");
    d->gpu.machine.has_gpu = true;
    d->gpu.machine.gpu = (struct hw_gpu_rates){.device = "a made-up GPU",
                                               .matmul_flops = 52.4e12,
                                               .matmul_bf16_flops = 716e12,
                                               .matmul_fp16_flops = 720e12,
                                               .attention_64_flops = 330e12,
                                               .attention_64_bwd_flops = 230e12,
                                               .attention_128_flops = 480e12,
                                               .attention_128_bwd_flops = 370e12,
                                               .copy_bytes_per_s = 3.8e12,
                                               .host_bytes_per_s = 54e9,
                                               .launch_s = 2.1e-6,
                                               .matmul_size = 8192,
                                               .measured_at = 1.7e9};
    return d;
}

static char *printed(const struct doctor *d) {
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    assert_non_null(f);
    doctor_print(d, f);
    fclose(f);
    return text;
}

static void says(const struct doctor *d, const char *const *words) {
    char *text = printed(d);
    for (; *words; words++)
        if (!strstr(text, *words))
            fail_msg("'%s' is not in\n%s", *words, text);
    free(text);
}

static void test_rates(void **state) {
    struct doctor *d = with_gpu();
    (void)state;
    says(d, (const char *const[]){
                "what cuda reaches, with cuda.deterministic=true, measured now:",
                "matrix products  716 TFLOP/s in bf16, 720 in fp16, 52 in fp32, 8192 x 8192",
                "attention        forward 330 TFLOP/s, backward 230 in bf16, heads of 64",
                "attention        forward 480 TFLOP/s, backward 370 in bf16, heads of 128",
                "copy             3.80 TB/s", "from the host    54.0 GB/s", "launch           2.1",
                "haggle doctor cuda.deterministic=false measures", NULL});
    // Stored rates, other kernels that are known too, and TF32.
    d->gpu.machine.cached = true;
    d->gpu.machine.any_order.attention_64_bwd_flops = 300e12;
    d->gpu.knobs.cuda_tf32 = true;
    says(d, (const char *const[]){
                "measured on 2023-11-1", "--fresh measures again", "52 in fp32 with inputs in TF32",
                "cuda.deterministic=false: attention backward 300 TFLOP/s", NULL});
    free(d);
}

static void test_unknown(void **state) {
    struct doctor *d = with_gpu();
    (void)state;
    d->gpu.machine.gpu.attention_64_flops = d->gpu.machine.gpu.attention_64_bwd_flops = 0;
    d->gpu.machine.gpu.attention_128_flops = d->gpu.machine.gpu.attention_128_bwd_flops = 0;
    snprintf(d->gpu.machine.gpu_lacks, ERR_TEXT_BYTES, "attention, heads of 64: no memory");
    snprintf(d->gpu.note, sizeof d->gpu.note, "slow kernels");
    says(d, (const char *const[]){"716 TFLOP/s in bf16",
                                  "not measured: attention, heads of 64: no memory",
                                  "note: slow kernels", NULL});
    char *text = printed(d);
    assert_null(strstr(text, "heads of 128"));
    free(text);
    d->gpu.machine.has_gpu = false;
    snprintf(d->gpu.reason, sizeof d->gpu.reason, "the device is lost");
    says(d, (const char *const[]){"what cuda reaches, with cuda.deterministic=true: not measured",
                                  "not measured: the device is lost", NULL});
    free(d);
    d = examined();
    text = printed(d);
    assert_null(strstr(text, "what cuda reaches"));
    free(text);
    free(d);
}

static void test_json(void **state) {
    struct doctor *d = with_gpu();
    struct json_writer w;
    (void)state;
    json_writer_to_buffer(&w, 1);
    json_put_object_begin(&w);
    doctor_put_json(d, &w);
    json_put_object_end(&w);
    assert_int_equal(json_writer_finish(&w, NULL), 0);
    assert_non_null(strstr(w.buffer, "\"gpu_rates\": {"));
    assert_non_null(strstr(w.buffer, "\"attention_128_bwd_flops\": 370000000000000"));
    assert_non_null(strstr(w.buffer, "\"gpu_rates_lack\": null"));
    free(w.buffer);
    d->gpu.machine.has_gpu = false;
    json_writer_to_buffer(&w, 1);
    json_put_object_begin(&w);
    doctor_put_json(d, &w);
    json_put_object_end(&w);
    assert_int_equal(json_writer_finish(&w, NULL), 0);
    assert_non_null(strstr(w.buffer, "\"gpu_rates\": null"));
    free(w.buffer);
    free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

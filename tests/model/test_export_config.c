// test_export_config.c - an exported config.json: every member is kept, the two that must agree
// with the weights are set, and invalid text is refused.
#include "model/export_config.h"

#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *edit(const char *text, enum model_family family, const char *dtype, bool floats) {
    struct err e = {0};
    char *out;
    size_t bytes;
    if (export_config_edit("config.json", text, strlen(text), family, dtype, floats, &out, &bytes,
                           &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(strlen(out), bytes);
    return out;
}

static void test_edits(void **state) {
    (void)state;
    static const struct {
        const char *text, *dtype, *want;
    } cases[] = {
        // Nothing to change: the same bytes, even unusual spellings.
        {"{ \"model_type\":\"llama\",\"rms_norm_eps\":1.0E-5, \"x\":[1,{\"dtype\":\"a\"}],\n"
         "\"architectures\":[\"LlamaForCausalLM\"],\"torch_dtype\":\"bfloat16\"}\n",
         "bfloat16",
         "{ \"model_type\":\"llama\",\"rms_norm_eps\":1.0E-5, \"x\":[1,{\"dtype\":\"a\"}],\n"
         "\"architectures\":[\"LlamaForCausalLM\"],\"torch_dtype\":\"bfloat16\"}\n"},
        // Both spellings of the type. A nested member with the same name is not changed.
        {"{\"dtype\":\"float16\",\"torch_dtype\":null,\"architectures\":[\"LlamaForCausalLM\"],"
         "\"x\":{\"dtype\":\"float16\"}}",
         "float32",
         "{\"dtype\":\"float32\",\"torch_dtype\":\"float32\",\"architectures\":["
         "\"LlamaForCausalLM\"],\"x\":{\"dtype\":\"float16\"}}"},
        // Not changed when no type is given.
        {"{\"architectures\":[\"LlamaForCausalLM\"],\"dtype\":\"float16\"}", NULL,
         "{\"architectures\":[\"LlamaForCausalLM\"],\"dtype\":\"float16\"}"},
        // The class of the base model, several classes, none. The weights are those of the causal
        // model.
        {"{\"architectures\": [\"LlamaModel\"], \"a\": 1}", NULL,
         "{\"architectures\": [\"LlamaForCausalLM\"], \"a\": 1}"},
        {"{\"architectures\":[\"LlamaForCausalLM\",\"B\"],\"a\":1}", NULL,
         "{\"architectures\":[\"LlamaForCausalLM\"],\"a\":1}"},
        {"{\"architectures\":null,\"a\":1}", NULL,
         "{\"architectures\":[\"LlamaForCausalLM\"],\"a\":1}"},
        {"{\"a\": 1}", "bfloat16",
         "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"torch_dtype\": \"bfloat16\",\"a\": "
         "1}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *out = edit(cases[i].text, FAMILY_LLAMA, cases[i].dtype, false);
        assert_string_equal(out, cases[i].want);
        free(out);
    }
    char *out = edit("{\"architectures\":[\"GPT2Model\"]}", FAMILY_GPT2, NULL, false);
    assert_string_equal(out, "{\"architectures\":[\"GPT2LMHeadModel\"]}");
    free(out);
}

static void test_real_numbers(void **state) {
    (void)state;
    static const char text[] =
        "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":320,\"rope_theta\":10000,"
        "\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"factor\":32,\"low_freq_factor\":1.5,"
        "\"original_max_position_embeddings\":8192},\"attention_dropout\":0}";
    char *out = edit(text, FAMILY_LLAMA, NULL, true);
    assert_string_equal(
        out, "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":320,\"rope_theta\":10000.0,"
             "\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"factor\":32.0,\"low_freq_factor\":1.5,"
             "\"original_max_position_embeddings\":8192},\"attention_dropout\":0.0}");
    free(out);
}

static void test_generation(void **state) {
    (void)state;
    static const char text[] = "{\"model_type\":\"llama\",\"eos_token_id\":[128001, 128009],"
                               "\"bos_token_id\":128000,\"pad_token_id\":null}";
    struct err e = {0};
    char *out;
    size_t bytes;
    assert_int_equal(export_config_generation("config.json", text, strlen(text), &out, &bytes, &e),
                     0);
    assert_string_equal(out, "{\n  \"_from_model_config\": true,\n  \"eos_token_id\": [128001, "
                             "128009],\n  \"bos_token_id\": 128000\n}\n");
    free(out);
}

static void test_every_prefix_is_refused(void **state) {
    (void)state;
    static const char text[] =
        "{\"architectures\":[\"LlamaModel\"],\"dtype\":\"float16\",\"eos_token_id\":[1,2],\"x\":{"
        "\"y\":[true,null,1e3,\"\\u00e9\"]}}";
    for (size_t n = 0; n < strlen(text); n++) {
        struct err e = {0};
        char *out;
        size_t bytes;
        int rc = export_config_edit("config.json", text, n, FAMILY_LLAMA, "float32", true, &out,
                                    &bytes, &e);
        assert_int_equal(rc, ERR_FORMAT);
        assert_null(out);
        assert_non_null(strstr(e.text, "config.json"));
        rc = export_config_generation("config.json", text, n, &out, &bytes, &e);
        assert_int_equal(rc, ERR_FORMAT);
        assert_null(out);
    }
}

static void test_members(void **state) {
    (void)state;
    static const struct {
        const char *text, *key, *value;
        bool only_missing;
        const char *expected;
    } cases[] = {
        {"{}", "a", "1", false, "{\n  \"a\": 1\n}"},
        {"{\"b\": 2}", "a", "1", false, "{\n  \"a\": 1,\"b\": 2}"},
        {"{\"a\": {\"a\": 7}, \"b\": 2}", "a", "\"x\"", false, "{\"a\": \"x\", \"b\": 2}"},
        {"{\"a\": 3}", "a", "1", true, "{\"a\": 3}"},
        {"{\"a\": null}", "a", "1", true, "{\"a\": 1}"},
    };
    static const struct {
        const char *text;
        size_t n;
        bool list;
        const char *expected;
    } ids[] = {
        {"{\"e\": 5}", 1, true, "{\"e\": 5}"},
        {"{\"e\": [7, 5]}", 1, false, "{\"e\": [7, 5]}"},
        {"{\"e\": 7}", 1, false, "{\"e\": 5}"},
        {"{\"e\": 7}", 1, true, "{\"e\": [7, 5]}"},
        {"{\"e\": 5}", 2, true, "{\"e\": [5, 6]}"},
        {"{\"e\": [6]}", 2, true, "{\"e\": [6, 5]}"},
        {"{\"e\": null}", 2, true, "{\"e\": [5, 6]}"},
        {"{}", 1, true, "{\n  \"e\": 5\n}"},
    };
    struct err e = {0};
    char *out;
    size_t bytes;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(export_config_set("f", cases[i].text, strlen(cases[i].text), cases[i].key,
                                           cases[i].value, cases[i].only_missing, &out, &bytes, &e),
                         0);
        assert_string_equal(out, cases[i].expected);
        free(out);
    }
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        assert_int_equal(export_config_ids("f", ids[i].text, strlen(ids[i].text), "e",
                                           (const int32_t[]){5, 6}, ids[i].n, ids[i].list, &out,
                                           &bytes, &e),
                         0);
        assert_string_equal(out, ids[i].expected);
        free(out);
    }
    static const char bad[] = "{\"e\": [1, \"x\"]}";
    assert_int_not_equal(export_config_ids("f", bad, sizeof bad - 1, "e", (const int32_t[]){5}, 1,
                                           true, &out, &bytes, &e),
                         0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members),
        cmocka_unit_test(test_edits),
        cmocka_unit_test(test_real_numbers),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_every_prefix_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

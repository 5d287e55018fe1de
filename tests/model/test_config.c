// test_config.c - HF config.json: transformers' defaults, the spellings of rotary parameters, what
// is refused, and writing it back.
#include "scratch.h"

#include "model/shape.h"
#include "skips.h"

#include <sys/stat.h>

static struct model_shape read_text(const struct scratch *d, const char *text) {
    struct model_shape s;
    struct err e = {0};
    int rc = model_shape_read_config(&s, scratch_text(d, "config.json", text), &e);
    if (rc != 0)
        fail_msg("refused: %s\n%s", e.text, text);
    return s;
}

// Compares field by field, because padding has no meaning. The name comes from the folder and is
// ignored.
static bool same_shape(const struct model_shape *a, const struct model_shape *b) {
#define SAME(field) a->field == b->field
    return SAME(family) && SAME(vocab) && SAME(width) && SAME(layers) && SAME(heads) &&
           SAME(kv_heads) && SAME(head_dim) && SAME(ffn) && SAME(max_positions) && SAME(window) &&
           SAME(tied) && SAME(norm) && SAME(act) && SAME(norm_eps) && SAME(learned_positions) &&
           SAME(rope.theta) && SAME(rope.llama3) && SAME(rope.factor) &&
           SAME(rope.low_freq_factor) && SAME(rope.high_freq_factor) &&
           SAME(rope.original_max_positions) && SAME(qkv_bias) && SAME(out_bias) &&
           SAME(mlp_bias) && SAME(qk_norm) && SAME(packed_qkv) && SAME(in_out_weights) &&
           SAME(scale_by_layer) && SAME(unscaled_attention) && SAME(init_std) && SAME(bos_id) &&
           SAME(eos_id);
#undef SAME
}

static void test_defaults(void **state) {
    struct model_shape s = read_text(*state, "{\"model_type\": \"gpt2\"}"), b;
    struct err e = {0};
    // GPT2Config() is the 124M model, LlamaConfig() is Llama 7B, and the Qwen classes have other
    // defaults.
    assert_worked(model_shape_builtin(&b, "gpt2-124m", &e), &e);
    assert_true(same_shape(&s, &b));
    s = read_text(*state, "{\"model_type\": \"llama\"}");
    assert_int_equal(model_total_elements(&s), 6738415616);
    assert_int_equal(s.kv_heads, 32);
    assert_int_equal(s.head_dim, 128);
    assert_int_equal(s.max_positions, 2048);
    assert_false(s.tied || s.qkv_bias || s.out_bias || s.mlp_bias || s.rope.llama3);
    assert_float_equal(s.norm_eps, 1e-6f, 0);
    assert_float_equal(s.rope.theta, 10000, 0);
    assert_float_equal(s.init_std, 0.02f, 0);
    assert_int_equal(s.bos_id, 1);
    assert_int_equal(s.eos_id, 2);
    s = read_text(*state, "{\"model_type\": \"qwen2\"}");
    assert_int_equal(s.vocab, 151936);
    assert_int_equal(s.ffn, 22016);
    assert_int_equal(s.kv_heads, 32);
    assert_int_equal(s.max_positions, 32768);
    assert_true(s.qkv_bias && !s.out_bias && !s.qk_norm);
    assert_int_equal(s.bos_id, -1);
    assert_int_equal(s.eos_id, -1);
    s = read_text(*state,
                  "{\"model_type\": \"qwen3\", \"hidden_size\": 1024, \"num_attention_heads\": 7, "
                  "\"num_key_value_heads\": null}");
    assert_int_equal(s.head_dim, 128); // not 1024 / 7
    assert_int_equal(s.kv_heads, 7);
    assert_true(s.qk_norm && !s.qkv_bias);
}

static void test_switches(void **state) {
    struct model_shape s = read_text(
        *state,
        "{\"model_type\":\"llama\",\"attention_bias\":true,\"mlp_bias\":true,\"head_dim\":null,"
        "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"hidden_size\":80,"
        "\"tie_word_embeddings\":true,\"hidden_act\":\"swish\",\"attention_dropout\":0.5,"
        "\"eos_token_id\":[128001,128008],\"bos_token_id\":null,\"vocab_size\":130000,"
        "\"pretraining_tp\":2,\"unknown\":{\"deep\":[1,{}]},\"quantization_config\":null}");
    assert_true(s.qkv_bias && s.out_bias && s.mlp_bias && s.tied);
    assert_int_equal(s.head_dim, 10);
    assert_int_equal(s.eos_id, 128001);
    assert_int_equal(s.bos_id, -1);
    s = read_text(*state,
                  "{\"model_type\":\"qwen3\",\"attention_bias\":true,\"use_sliding_window\":false,"
                  "\"sliding_window\":4096,\"max_window_layers\":3,"
                  "\"layer_types\":[\"full_attention\",\"full_attention\"]}");
    assert_true(s.qkv_bias && s.out_bias);
    s = read_text(*state, "{\"model_type\":\"qwen2\",\"attention_bias\":true,\"head_dim\":96}");
    assert_true(s.qkv_bias && !s.out_bias);
    assert_int_equal(s.head_dim, 96);
    s = read_text(
        *state, "{\"model_type\":\"gpt2\",\"hidden_size\":96,\"n_layer\":2,\"num_hidden_layers\":2,"
                "\"n_inner\":100,\"activation_function\":\"relu\",\"scale_attn_weights\":false,"
                "\"scale_attn_by_inverse_layer_idx\":true,\"tie_word_embeddings\":false,"
                "\"resid_pdrop\":0.1,\"vocab_size\":512}");
    assert_int_equal(s.width, 96);
    assert_int_equal(s.head_dim, 8);
    assert_int_equal(s.ffn, 100);
    assert_int_equal(s.act, ACT_RELU);
    assert_true(s.unscaled_attention && s.scale_by_layer && !s.tied);
    assert_int_equal(s.bos_id, -1); // 50256 is outside this vocabulary
    s = read_text(*state,
                  "{\"model_type\":\"gpt2\",\"n_inner\":null,\"activation_function\":\"gelu\"}");
    assert_int_equal(s.ffn, 4 * 768);
    assert_int_equal(s.act, ACT_GELU_ERF);
}

#define L3                                                                                         \
    "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_"     \
    "embeddings\":8192"

// As a Llama, with other defaults and a window.
static void test_mistral(void **state) {
    struct scratch *d = *state;
    struct model_shape s = read_text(d, "{\"model_type\": \"mistral\"}"), back;
    struct err e = {0};
    char path[600];
    assert_int_equal(s.vocab, 32000);
    assert_int_equal(s.ffn, 14336);
    assert_int_equal(s.kv_heads, 8);
    assert_int_equal(s.max_positions, 131072);
    assert_int_equal(s.window, 4096);
    assert_int_equal(model_shape_longest(&s), 4096);
    assert_true(s.bos_id == 1 && s.eos_id == 2 && !s.tied);
    static const char *const texts[] = {
        "{\"model_type\":\"mistral\",\"sliding_window\":null,\"hidden_size\":64,\"head_dim\":32,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"rope_theta\":1e6,"
        "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true,\"max_position_embeddings\":99}",
        "{\"model_type\":\"mistral\",\"sliding_window\":7,\"max_position_embeddings\":99}",
    };
    for (int i = 0; i < 2; i++) {
        s = read_text(d, texts[i]);
        assert_int_equal(model_shape_longest(&s), i == 0 ? 99 : 7);
        snprintf(path, sizeof path, "%s/config.json", d->dir);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(model_shape_write_config(&s, f, &e), 0);
        fclose(f);
        assert_int_equal(model_shape_read_config(&back, path, &e), 0);
        assert_true(same_shape(&s, &back));
        assert_int_equal(back.family, FAMILY_MISTRAL);
    }
}

static void test_rope(void **state) {
    static const struct {
        const char *text;
        double theta;
        bool llama3;
    } cases[] = {
        {"\"rope_theta\":5e5", 5e5, false},
        {"\"rope_theta\":500000,\"rope_scaling\":null", 5e5, false},
        {"\"rope_theta\":5e5,\"rope_scaling\":{}", 5e5, false},
        {"\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\"," L3 "}", 5e5, true},
        {"\"rope_scaling\":{\"type\":\"llama3\"," L3 "},\"rope_theta\":5e5", 5e5, true},
        {"\"rope_scaling\":{\"rope_type\":\"default\",\"type\":\"yarn\"}", 1e4, false},
        {"\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"default\"}", 1e6, false},
        {"\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"llama3\"," L3 "}", 1e6, true},
        {"\"rope_parameters\":{\"rope_theta\":1e6},\"rope_theta\":7", 1e6, false},
        {"\"rope_parameters\":null", 1e4, false},
        {"\"rope_parameters\":{\"rope_type\":\"default\"},\"rope_scaling\":{\"rope_type\":"
         "\"llama3\"," L3 "}",
         1e4, true},
        {"\"rope_parameters\":{\"rope_theta\":9,\"partial_rotary_factor\":1.0,\"attention_factor\":"
         "1}",
         9, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024];
        snprintf(text, sizeof text, "{\"model_type\":\"llama\",%s}", cases[i].text);
        struct model_shape s = read_text(*state, text);
        if (s.rope.theta != cases[i].theta || s.rope.llama3 != cases[i].llama3)
            fail_msg("theta %g, llama3 %d from %s", s.rope.theta, s.rope.llama3, text);
        if (s.rope.llama3) {
            assert_float_equal(s.rope.factor, 8, 0);
            assert_float_equal(s.rope.high_freq_factor, 4, 0);
            assert_int_equal(s.rope.original_max_positions, 8192);
        }
    }
}

static void test_bad(void **state) {
    static const struct {
        const char *text, *parts;
    } cases[] = {
        {"", "config.json"},
        {"[]", "config.json|line 1"},
        {"{\"model_type\":\"llama\"", "config.json"},
        {"{\"model_type\":\"llama\"} x", "config.json"},
        {"{}", "model_type|gpt2, llama, mistral, qwen2, qwen3"},
        {"{\"model_type\":7}", "model_type|gpt2"},
        {"{\"model_type\":\"bert\"}", "\"bert\"|gpt2, llama, mistral, qwen2, qwen3"},
        {"{\"model_type\":\"mis\\u001btral\"}", "mis?tral"},
        {"{\"model_type\":\"llama\",\"model_type\":\"llama\"}", "model_type|twice|line 1"},
        {"{\"model_type\":\"llama\",\"hidden_size\":\"64\"}", "hidden_size|a string"},
        {"{\"model_type\":\"llama\",\"hidden_size\":null}", "hidden_size|null"},
        {"{\"model_type\":\"llama\",\"hidden_size\":64.5}", "hidden_size|64.5"},
        {"{\"model_type\":\"llama\",\"hidden_size\":-64,\"head_dim\":4}", "hidden_size|-64"},
        {"{\"model_type\":\"llama\",\"hidden_size\":0}", "hidden_size|0"},
        {"{\"model_type\":\"llama\",\"hidden_size\":1e30}", "hidden_size"},
        {"{\"model_type\":\"llama\",\"hidden_size\":1e999}", "config.json"},
        {"{\"model_type\":\"llama\",\"hidden_size\":100}", "100|32|head_dim"},
        {"{\"model_type\":\"llama\",\"num_attention_heads\":0}", "num_attention_heads|0"},
        {"{\"model_type\":\"llama\",\"num_attention_heads\":-1}", "num_attention_heads|-1"},
        {"{\"model_type\":\"llama\",\"num_key_value_heads\":5}", "32|5"},
        {"{\"model_type\":\"llama\",\"num_key_value_heads\":0}", "num_key_value_heads"},
        {"{\"model_type\":\"llama\",\"head_dim\":63}", "63|even"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":0}", "num_hidden_layers|0|10000"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":10001}", "10001"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":true}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"vocab_size\":9223372036854775807}", "vocab_size"},
        {"{\"model_type\":\"llama\",\"rms_norm_eps\":0}", "rms_norm_eps"},
        {"{\"model_type\":\"llama\",\"rms_norm_eps\":1e-60}", "rms_norm_eps"},
        {"{\"model_type\":\"llama\",\"rms_norm_eps\":NaN}", "config.json"},
        {"{\"model_type\":\"llama\",\"rms_norm_eps\":\"x\"}", "rms_norm_eps"},
        {"{\"model_type\":\"llama\",\"initializer_range\":-1}", "initializer_range"},
        {"{\"model_type\":\"llama\",\"rope_theta\":0}", "rope_theta"},
        {"{\"model_type\":\"llama\",\"rope_theta\":-5}", "rope_theta"},
        {"{\"model_type\":\"llama\",\"rope_theta\":\"1\"}", "rope_theta"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":[1]}", "rope_scaling"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"yarn\"}}",
         "\"yarn\"|default, llama3"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}}",
         "\"linear\"|default, llama3"},
        {"{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_type\":\"dynamic\"}}",
         "\"dynamic\"|default, llama3"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":3}}",
         "rope_type|default, llama3"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}",
         "low_freq_factor"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"llama3\"," L3
         ",\"factor\":8}}",
         "factor|twice"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":0,\"low_"
         "freq_factor\":1,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}",
         "factor"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_"
         "freq_factor\":4,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}",
         "high_freq_factor"},
        {"{\"model_type\":\"llama\",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1}}}",
         "layers"},
        {"{\"model_type\":\"llama\",\"partial_rotary_factor\":0.5}", "partial_rotary_factor|0.5"},
        {"{\"model_type\":\"llama\",\"hidden_act\":\"gelu\"}", "\"gelu\"|silu"},
        {"{\"model_type\":\"llama\",\"hidden_act\":3}", "hidden_act|silu"},
        {"{\"model_type\":\"llama\",\"attention_bias\":1}", "attention_bias|true or false"},
        {"{\"model_type\":\"llama\",\"tie_word_embeddings\":\"no\"}", "tie_word_embeddings"},
        {"{\"model_type\":\"llama\",\"quantization_config\":{\"bits\":4}}", "quantization_config"},
        {"{\"model_type\":\"llama\",\"eos_token_id\":\"</s>\"}", "eos_token_id"},
        {"{\"model_type\":\"qwen2\",\"use_sliding_window\":true}", "use_sliding_window"},
        {"{\"model_type\":\"mistral\",\"sliding_window\":0}", "sliding_window|0"},
        {"{\"model_type\":\"mistral\",\"sliding_window\":\"x\"}", "sliding_window|a string"},
        {"{\"model_type\":\"mistral\",\"layer_types\":[\"sliding_attention\"]}", "layer_types"},
        {"{\"model_type\":\"qwen3\",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
         "sliding_attention|full_attention"},
        {"{\"model_type\":\"qwen3\",\"head_dim\":0}", "head_dim"},
        {"{\"model_type\":\"gpt2\",\"n_embd\":770}", "770|12"},
        {"{\"model_type\":\"gpt2\",\"n_head\":0}", "n_head"},
        {"{\"model_type\":\"gpt2\",\"n_inner\":0}", "n_inner"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"num_hidden_layers\":3}",
         "n_layer|num_hidden_layers"},
        {"{\"model_type\":\"gpt2\",\"activation_function\":\"silu\"}", "\"silu\"|gelu_new"},
        {"{\"model_type\":\"gpt2\",\"activation_function\":\"tanh\"}", "\"tanh\"|gelu_new"},
        {"{\"model_type\":\"gpt2\",\"add_cross_attention\":true}", "add_cross_attention"},
        {"{\"model_type\":\"gpt2\",\"layer_norm_epsilon\":0}", "layer_norm_epsilon"},
        {"{\"model_type\":\"llama\",\"vocab_size\":16777216,\"hidden_size\":1048576,\"num_"
         "attention_heads\":65536,"
         "\"head_dim\":65536,\"num_hidden_layers\":10000}",
         "multiply"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_shape s;
        memset(&s, 0x5a, sizeof s);
        struct model_shape before = s;
        struct err e = {0};
        const char *path = scratch_text(*state, "config.json", cases[i].text);
        int rc = model_shape_read_config(&s, path, &e);
        assert_failed(rc, &e, cases[i].parts, cases[i].text);
        assert_failed(rc, &e, "config.json", cases[i].text); // every message names the file
        assert_memory_equal(&s, &before, sizeof s);          // the shape was not changed
        assert_int_equal(model_shape_read_config(&s, path, NULL), rc);
    }
    print_message("%zu bad configurations refused\n", sizeof cases / sizeof cases[0]);
    struct model_shape s;
    struct err e = {0};
    assert_failed(model_shape_read_config(&s, scratch_path(*state, "none.json"), &e), &e,
                  "none.json", "missing");
    assert_failed(model_shape_open(&s, ((struct scratch *)*state)->dir, NULL, &e), &e,
                  "config.json", "last bad one");
    assert_int_equal(unlink(scratch_path(*state, "config.json")), 0);
    assert_failed(model_shape_open(&s, ((struct scratch *)*state)->dir, NULL, &e), &e,
                  "config.json", "no config");
}

// Every prefix and every flipped bit of a full configuration gives a result and never a crash.
static void test_damage(void **state) {
    static const char text[] =
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":4,\"vocab_size\":512,"
        "\"eos_token_id\":[1,2],\"rope_scaling\":{\"rope_type\":\"llama3\"," L3 "},"
        "\"hidden_act\":\"silu\",\"tie_word_embeddings\":true,\"x\":[{\"y\":null}]}";
    struct model_shape s;
    size_t n = sizeof text - 1;
    for (size_t i = 0; i < n; i++) {
        struct err e = {0};
        assert_true(model_shape_read_config(&s, scratch_put(*state, "config.json", text, i), &e) <
                    0);
    }
    char copy[sizeof text];
    for (size_t i = 0; i < 8 * n; i++) {
        struct err e = {0};
        memcpy(copy, text, sizeof text);
        copy[i / 8] = (char)(copy[i / 8] ^ 1 << i % 8);
        int rc = model_shape_read_config(&s, scratch_put(*state, "config.json", copy, n), &e);
        assert_true(rc == 0 ? model_shape_check(&s, NULL) == 0 : e.text[0] != '\0');
    }
}

static void write_read(const struct scratch *d, const struct model_shape *s) {
    struct err e = {0};
    const char *path = scratch_path(d, "config.json");
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_worked(model_shape_write_config(s, f, &e), &e);
    assert_int_equal(fclose(f), 0);
    struct model_shape back;
    assert_worked(model_shape_read_config(&back, path, &e), &e);
    if (!same_shape(&back, s))
        fail_msg("%s does not survive config.json", s->name);
}

static void test_round_trip(void **state) {
    struct err e = {0};
    struct model_shape s;
    for (size_t i = 0; i < model_shape_builtin_count(); i++) {
        memset(&s, 0, sizeof s);
        assert_worked(model_shape_builtin(&s, model_shape_builtin_name(i), &e), &e);
        write_read(*state, &s);
    }
    // Every switch that a configuration can change.
    assert_worked(model_shape_builtin(&s, "gpt2-124m", &e), &e);
    s.act = ACT_GELU_ERF;
    s.scale_by_layer = s.unscaled_attention = true;
    s.tied = false;
    s.ffn = 77;
    s.bos_id = s.eos_id = -1;
    s.norm_eps = 3.3e-6f;
    s.init_std = 0.0123456f;
    write_read(*state, &s);
    assert_worked(model_shape_builtin(&s, "llama-8b", &e), &e);
    s.qkv_bias = s.out_bias = s.mlp_bias = true;
    s.head_dim = 96;
    s.rope.theta = 123456.789;
    write_read(*state, &s);
    assert_worked(model_shape_builtin(&s, "qwen2-0.5b", &e), &e);
    s.head_dim = 72;
    write_read(*state, &s);
    assert_worked(model_shape_builtin(&s, "qwen3-8b", &e), &e);
    s.qkv_bias = s.out_bias = true;
    write_read(*state, &s);
    s.layers = 0;
    assert_int_equal(model_shape_write_config(&s, stderr, &e), ERR_FORMAT);
    assert_worked(model_shape_builtin(&s, "tiny", &e), &e);
    FILE *full = fopen("/dev/full", "wb");
    if (full != NULL) {
        assert_int_equal(model_shape_write_config(&s, full, &e), ERR_IO);
        fclose(full);
    }
}

static void test_names(void **state) {
    const struct scratch *d = *state;
    struct err e = {0};
    struct model_shape s;
    bool is_dir = false;
    assert_int_equal(mkdir(scratch_path(d, "my-model"), 0777), 0);
    scratch_text(d, "my-model/config.json", "{\"model_type\":\"qwen2\"}");
    assert_worked(model_shape_open(&s, scratch_path(d, "my-model"), &is_dir, &e), &e);
    assert_true(is_dir);
    assert_string_equal(s.name, "my-model");
    assert_worked(model_shape_open(&s, scratch_path(d, "my-model/"), NULL, &e), &e);
    assert_string_equal(s.name, "my-model");
    // In the Hugging Face cache the folder is a commit and the file is a link into blobs.
    assert_int_equal(mkdir(scratch_path(d, "models--Qwen--Qwen3-4B"), 0777), 0);
    assert_int_equal(mkdir(scratch_path(d, "models--Qwen--Qwen3-4B/blobs"), 0777), 0);
    assert_int_equal(mkdir(scratch_path(d, "models--Qwen--Qwen3-4B/snapshots"), 0777), 0);
    assert_int_equal(mkdir(scratch_path(d, "models--Qwen--Qwen3-4B/snapshots/1cfa9a72"), 0777), 0);
    scratch_text(d, "models--Qwen--Qwen3-4B/blobs/abc", "{\"model_type\":\"qwen3\"}");
    assert_int_equal(
        symlink("../../blobs/abc",
                scratch_path(d, "models--Qwen--Qwen3-4B/snapshots/1cfa9a72/config.json")),
        0);
    assert_worked(model_shape_open(&s, scratch_path(d, "models--Qwen--Qwen3-4B/snapshots/1cfa9a72"),
                                   NULL, &e),
                  &e);
    assert_string_equal(s.name, "Qwen/Qwen3-4B");
}

static void test_fixtures(void **state) {
    (void)state;
    struct err e = {0};
    struct model_shape s;
    if (!file_is_dir(HF_FIXTURES)) {
        skip_because("no folder %s", HF_FIXTURES);
    }
    assert_worked(model_shape_open(&s, HF_FIXTURES "/gpt2-tiny", NULL, &e), &e);
    assert_string_equal(s.name, "gpt2-tiny");
    assert_int_equal(s.family, FAMILY_GPT2);
    assert_int_equal(model_total_elements(&s), 764160 / 4);
    assert_int_equal(s.eos_id, -1);
    assert_worked(model_shape_open(&s, HF_FIXTURES "/llama-tiny", NULL, &e), &e);
    assert_int_equal(s.family, FAMILY_LLAMA);
    assert_int_equal(model_total_elements(&s), 816896 / 4);
    assert_float_equal(s.norm_eps, 1e-5f, 0);
    assert_false(s.tied);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_defaults, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_switches, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_mistral, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_rope, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_bad, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_damage, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_round_trip, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_names, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_fixtures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_shape.c - built-in shapes, parameters, rotary frequencies, and the checks of every shape.
#include "scratch.h"

#include "model/shape.h"

#include <math.h>

static struct model_shape builtin(const char *name) {
    struct model_shape s;
    struct err e = {0};
    assert_worked(model_shape_builtin(&s, name, &e), &e);
    return s;
}

// Compares with published counts (model cards, safetensors metadata). A tied head counts once.
static void test_totals(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t elements;
    } known[] = {
        {"gpt2-124m", 124439808},
        {"gpt2-355m", 354823168},
        {"gpt2-774m", 774030080},
        {"gpt2-1558m", 1557611200},
        {"llama-1b", 1235814400},
        {"llama-3b", 3212749824},
        {"llama-8b", 8030261248},
        {"llama-70b", 70553706496},
        {"qwen2-0.5b", 494032768},
        {"qwen2-1.5b", 1543714304},
        {"qwen2-7b", 7615616512},
        {"qwen3-0.6b", 596049920},
        {"qwen3-1.7b", 1720574976},
        {"qwen3-4b", 4022468096},
        {"qwen3-8b", 8190735360},
        // 320*128 + 4*(2*128 + 128*128*2 + 64*128*2 + 3*128*352) + 128
        {"tiny", 320 * 128 + 4 * (2 * 128 + 2 * 128 * 128 + 2 * 64 * 128 + 3 * 128 * 352) + 128},
    };
    assert_int_equal(sizeof known / sizeof known[0], model_shape_builtin_count());
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct model_shape s = builtin(known[i].name);
        assert_string_equal(s.name, known[i].name);
        if (model_total_elements(&s) != known[i].elements)
            fail_msg("%s has %lld elements, published are %lld", known[i].name,
                     (long long)model_total_elements(&s), (long long)known[i].elements);
    }
}

static void test_builtin_names(void **state) {
    (void)state;
    struct model_shape s;
    struct err e = {0};
    for (size_t i = 0; i < model_shape_builtin_count(); i++)
        builtin(model_shape_builtin_name(i));
    assert_null(model_shape_builtin_name(model_shape_builtin_count()));
    assert_failed(model_shape_builtin(&s, "gpt2-124", &e), &e,
                  "gpt2-124|did you mean 'gpt2-124m'|tiny|qwen3-8b", "misspelt");
    assert_failed(model_shape_builtin(&s, "", &e), &e, "tiny", "empty");
    assert_int_equal(model_shape_builtin(&s, "nonsense", NULL), ERR_USAGE);
    bool is_dir = true;
    assert_worked(model_shape_open(&s, "llama-1b", &is_dir, &e), &e);
    assert_false(is_dir);
    assert_true(s.rope.llama3);
    assert_failed(model_shape_open(&s, "/no/such/folder", &is_dir, &e), &e, "/no/such/folder",
                  "folder");
    assert_failed(model_shape_open(&s, "lama-1b", NULL, &e), &e, "lama-1b|llama-1b", "neither");
}

static void expect_param(const struct model_shape *s, enum model_role role, int layer,
                         const char *name, int64_t d0, int64_t d1) {
    struct model_param p;
    assert_true(model_param_get(s, role, layer, &p));
    assert_string_equal(p.name, name);
    assert_int_equal(p.rank, d1 == 0 ? 1 : 2);
    assert_int_equal(p.dims[0], d0);
    assert_int_equal(p.dims[1], d1);
    assert_int_equal(p.matrix, d1 != 0);
}

static void test_param_names(void **state) {
    (void)state;
    struct model_shape g = builtin("gpt2-124m");
    expect_param(&g, ROLE_WTE, 0, "transformer.wte.weight", 50257, 768);
    expect_param(&g, ROLE_WPE, 0, "transformer.wpe.weight", 1024, 768);
    expect_param(&g, ROLE_QKV_W, 11, "transformer.h.11.attn.c_attn.weight", 768, 2304);
    expect_param(&g, ROLE_QKV_B, 0, "transformer.h.0.attn.c_attn.bias", 2304, 0);
    expect_param(&g, ROLE_OUT_W, 3, "transformer.h.3.attn.c_proj.weight", 768, 768);
    expect_param(&g, ROLE_UP_W, 3, "transformer.h.3.mlp.c_fc.weight", 768, 3072);
    expect_param(&g, ROLE_DOWN_W, 3, "transformer.h.3.mlp.c_proj.weight", 3072, 768);
    expect_param(&g, ROLE_NORM2_B, 3, "transformer.h.3.ln_2.bias", 768, 0);
    expect_param(&g, ROLE_NORMF_W, 3, "transformer.ln_f.weight", 768, 0);
    struct model_shape q = builtin("qwen3-0.6b");
    expect_param(&q, ROLE_WTE, 0, "model.embed_tokens.weight", 151936, 1024);
    expect_param(&q, ROLE_Q_W, 27, "model.layers.27.self_attn.q_proj.weight", 2048, 1024);
    expect_param(&q, ROLE_K_W, 0, "model.layers.0.self_attn.k_proj.weight", 1024, 1024);
    expect_param(&q, ROLE_OUT_W, 0, "model.layers.0.self_attn.o_proj.weight", 1024, 2048);
    expect_param(&q, ROLE_QNORM_W, 0, "model.layers.0.self_attn.q_norm.weight", 128, 0);
    expect_param(&q, ROLE_DOWN_W, 0, "model.layers.0.mlp.down_proj.weight", 1024, 3072);
    expect_param(&q, ROLE_NORM2_W, 0, "model.layers.0.post_attention_layernorm.weight", 1024, 0);
    struct model_shape b = builtin("qwen2-7b");
    expect_param(&b, ROLE_V_B, 1, "model.layers.1.self_attn.v_proj.bias", 512, 0);
    expect_param(&b, ROLE_HEAD_W, 0, "lm_head.weight", 152064, 3584);

    struct model_param p;
    assert_false(model_param_get(&g, ROLE_HEAD_W, 0, &p)); // tied
    assert_false(model_param_get(&g, ROLE_Q_W, 0, &p));
    assert_false(model_param_get(&g, ROLE_QKV_W, 12, &p));
    assert_false(model_param_get(&g, ROLE_QKV_W, -1, &p));
    assert_false(model_param_get(&b, ROLE_OUT_B, 0, &p)); // Qwen2: q, k, v only
    assert_false(model_param_get(&b, ROLE_QNORM_W, 0, &p));
    assert_false(model_has_role(&b, ROLE_COUNT));
    struct model_shape l = builtin("llama-8b");
    l.qkv_bias = l.out_bias = l.mlp_bias = true;
    expect_param(&l, ROLE_OUT_B, 2, "model.layers.2.self_attn.o_proj.bias", 4096, 0);
    expect_param(&l, ROLE_GATE_B, 2, "model.layers.2.mlp.gate_proj.bias", 14336, 0);
}

static void test_param_order(void **state) {
    (void)state;
    for (size_t b = 0; b < model_shape_builtin_count(); b++) {
        struct model_shape s = builtin(model_shape_builtin_name(b));
        int64_t n = model_param_count(&s), elements = 0, last = -1;
        struct model_param p, again;
        for (int64_t i = 0; i < n; i++) {
            assert_true(model_param_at(&s, i, &p));
            assert_true(model_param_get(&s, p.role, p.layer, &again));
            assert_string_equal(p.name, again.name);
            // The rank in (before, layer, role, after) must increase strictly: the order is fixed
            // and nothing appears twice.
            int64_t rank = p.layer >= 0            ? (int64_t)(p.layer + 1) * ROLE_COUNT + p.role
                           : p.role < ROLE_NORM1_W ? p.role
                                                   : (s.layers + 1) * ROLE_COUNT + p.role;
            assert_true(rank > last);
            last = rank;
            elements += p.dims[0] * (p.rank == 2 ? p.dims[1] : 1);
        }
        assert_int_equal(elements, model_total_elements(&s));
        assert_false(model_param_at(&s, n, &p));
        assert_false(model_param_at(&s, -1, &p));
        assert_true(model_param_at(&s, 0, &p));
        assert_int_equal(p.role, ROLE_WTE);
        assert_true(model_param_at(&s, n - 1, &p));
        assert_int_equal(p.role, s.tied ? (s.norm == NORM_LAYER ? ROLE_NORMF_B : ROLE_NORMF_W)
                                        : ROLE_HEAD_W);
    }
}

// ---- checks ----

static void test_odd_shapes(void **state) {
    (void)state;
    struct err e = {0};
    struct model_shape s = builtin("tiny");
    s.vocab = 31123;
    s.bos_id = s.eos_id = -1;
    s.width = 37;
    s.heads = 15;
    s.kv_heads = 5;
    s.head_dim = 6;
    s.ffn = 101;
    s.layers = 1;
    assert_worked(model_shape_check(&s, &e), &e);
    struct model_shape g = builtin("gpt2-124m");
    g.vocab = 50257;
    g.width = 39;
    g.heads = g.kv_heads = 3;
    g.head_dim = 13; // without rotary embedding an odd number is accepted
    g.ffn = 7;
    assert_worked(model_shape_check(&g, &e), &e);
}

static void test_bad_shapes(void **state) {
    (void)state;
    struct err e = {0};
    const struct model_shape good = builtin("llama-8b"), gpt2 = builtin("gpt2-124m");
    struct model_shape s;
#define BAD(base, change, parts)                                                                   \
    s = base;                                                                                      \
    change;                                                                                        \
    assert_failed(model_shape_check(&s, &e), &e, parts, #change)
    BAD(good, s.vocab = 0, "vocab_size|0|accepted");
    BAD(good, s.vocab = INT64_MAX, "vocab_size");
    BAD(good, s.width = -1, "hidden_size|-1");
    BAD(gpt2, s.width = -1, "n_embd");
    BAD(good, s.layers = 0, "num_hidden_layers|1 to 10000");
    BAD(good, s.layers = 10001, "10001");
    BAD(good, s.heads = INT64_MAX, "num_attention_heads");
    BAD(good, s.kv_heads = 0, "num_key_value_heads");
    BAD(good, s.kv_heads = 3, "32|3|multiple");
    BAD(good, s.head_dim = 0, "head_dim");
    BAD(good, s.head_dim = 127, "127|even");
    BAD(good, s.ffn = 0, "intermediate_size");
    BAD(good, s.max_positions = 0, "max_position_embeddings");
    BAD(good, s.norm_eps = 0, "rms_norm_eps");
    BAD(good, s.norm_eps = NAN, "rms_norm_eps");
    BAD(good, s.norm_eps = INFINITY, "rms_norm_eps");
    BAD(good, s.init_std = -1, "initializer_range");
    BAD(good, s.init_std = NAN, "initializer_range");
    BAD(good, s.rope.theta = 0, "rope_theta");
    BAD(good, s.rope.theta = NAN, "rope_theta");
    BAD(good, s.rope.theta = INFINITY, "rope_theta");
    BAD(good, s.rope.factor = 0, "factor");
    BAD(good, s.rope.low_freq_factor = -1, "low_freq_factor");
    BAD(good, s.rope.high_freq_factor = 1, "high_freq_factor");
    BAD(good, s.rope.original_max_positions = 0, "original_max_position_embeddings");
    BAD(good, s.bos_id = 128256, "128256");
    BAD(good, s.eos_id = -2, "-2");
    BAD(good, s.family = FAMILY_COUNT, "family");
    BAD(good, s.family = (enum model_family) - 1, "family");
    BAD(good, s.act = ACT_RELU, "llama");
    BAD(good, s.norm = NORM_LAYER, "llama");
    BAD(good, s.qk_norm = true, "llama");
    BAD(good, s.packed_qkv = true, "llama");
    BAD(good, s.out_bias = true, "biases");
    BAD(good, s.scale_by_layer = true, "llama");
    BAD(gpt2, s.act = ACT_SWIGLU, "gpt2");
    BAD(gpt2, s.rope.theta = 1e4, "learned positions");
    BAD(gpt2, s.kv_heads = 6, "packed");
    BAD(gpt2, s.head_dim = 65, "packed");
    // Every size at its limit: the product does not fit, and no step of it may wrap.
    BAD(good,
        (s.vocab = 1 << 24, s.width = 1 << 20, s.layers = 10000, s.heads = s.kv_heads = 1 << 16,
         s.head_dim = 1 << 16, s.ffn = 1 << 24),
        "multiply");
#undef BAD
    s = good;
    s.heads = s.head_dim = s.width = s.vocab = s.layers = INT64_MAX;
    assert_int_equal(model_total_elements(&s), -1);
}

// ---- rotary frequencies ----

static void check_frequencies(const char *name) {
    struct model_shape s = builtin(name);
    float got[256];
    model_rope_frequencies(&s, got);
    int scaled = 0, mixed = 0, kept = 0;
    for (int64_t i = 0; i < s.head_dim / 2; i++) {
        // The definition in double. HF's float32 result differs from it by a few roundings.
        double f = pow(s.rope.theta, -2.0 * (double)i / (double)s.head_dim), want = f;
        if (s.rope.llama3) {
            double turns = (double)s.rope.original_max_positions * f / (2 * M_PI);
            if (turns < s.rope.low_freq_factor) {
                want = f / s.rope.factor;
                scaled++;
            } else if (turns > s.rope.high_freq_factor) {
                kept++;
            } else {
                double mix = (turns - s.rope.low_freq_factor) /
                             (s.rope.high_freq_factor - s.rope.low_freq_factor);
                want = (1 - mix) * f / s.rope.factor + mix * f;
                mixed++;
            }
        }
        if (fabs(got[i] - want) > 2e-6 * want)
            fail_msg("%s: frequency %d is %.9g, expected %.9g", name, (int)i, (double)got[i], want);
    }
    if (s.rope.llama3)
        assert_true(scaled > 0 && mixed > 0 && kept > 0);
}

static void test_frequencies(void **state) {
    (void)state;
    for (size_t i = 0; i < model_shape_builtin_count(); i++)
        if (builtin(model_shape_builtin_name(i)).rope.theta > 0)
            check_frequencies(model_shape_builtin_name(i));
    struct model_shape s = builtin("llama-1b");
    float f[32];
    model_rope_frequencies(&s, f);
    assert_float_equal(f[0], 1.0f, 0);
    // Below the low-frequency bound it is exactly the plain frequency / 32, a power of two.
    struct model_shape plain = s;
    float p[32];
    plain.rope.llama3 = false;
    model_rope_frequencies(&plain, p);
    assert_float_equal(f[31], p[31] / 32, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_totals),      cmocka_unit_test(test_builtin_names),
        cmocka_unit_test(test_param_names), cmocka_unit_test(test_param_order),
        cmocka_unit_test(test_odd_shapes),  cmocka_unit_test(test_bad_shapes),
        cmocka_unit_test(test_frequencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

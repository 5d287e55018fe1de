// test_adapter.c - which weights have an adapter, its tensors' names, sizes and initial values, and
// which weights train.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/chosen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct model_shape shape_of(const char *name) {
    struct model_shape s;
    struct err e = {0};
    if (model_shape_builtin(&s, name, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

// The pairs' names of layer 0, A only, without what is in front of the block's own names.
static void expect_targets(const char *model, const char *targets, const char *expected) {
    const struct model_shape s = shape_of(model);
    struct adapter a = {.rank = 4, .alpha = 8};
    struct model_param p;
    struct err e = {0};
    char list[400] = "";
    snprintf(a.targets, sizeof a.targets, "%s", targets);
    if (adapter_check(&a, &s, &e) != 0)
        fail_msg("%s: %s", targets, e.text);
    const int64_t n = adapter_param_count(&a, &s);
    for (int64_t i = 0; i < n; i++) {
        assert_true(adapter_param_at(&a, &s, i, &p));
        const char *tail = strstr(p.name, i % 2 ? ".lora_B.weight" : ".lora_A.weight");
        assert_non_null(tail);
        assert_int_equal(p.dims[i % 2], 4);
        assert_int_equal(p.layer, i / (n / s.layers));
        if (p.layer > 0 || i % 2)
            continue;
        const char *path = strstr(p.name, ".0.") + 3;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%.*s", *list ? " " : "",
                 (int)(tail - path), path);
    }
    assert_false(adapter_param_at(&a, &s, n, &p));
    assert_false(adapter_param_at(&a, &s, -1, &p));
    assert_string_equal(list, expected);
}

static void test_targets(void **state) {
    (void)state;
    expect_targets("tiny", "",
                   "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj "
                   "mlp.gate_proj mlp.up_proj mlp.down_proj");
    expect_targets("tiny", "attention",
                   "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj");
    expect_targets("tiny", " v_proj , q_proj,", "self_attn.q_proj self_attn.v_proj");
    expect_targets("qwen2-0.5b", "mlp,o_proj",
                   "self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj");
    expect_targets("gpt2-124m", "all", "attn.c_attn attn.c_proj mlp.c_fc mlp.c_proj");
    expect_targets("gpt2-124m", "c_proj", "attn.c_proj mlp.c_proj");
    expect_targets("gpt2-124m", "mlp.c_proj", "mlp.c_proj");
}

// A pair goes from the layer's inputs to its outputs, also where the family stores the transpose.
static void test_sizes(void **state) {
    (void)state;
    const struct model_shape s = shape_of("gpt2-124m");
    const struct adapter a = {.rank = 8, .alpha = 16, .targets = "c_attn"};
    struct model_param A, B;
    assert_int_equal(adapter_param_count(&a, &s), 24);
    assert_true(adapter_param_at(&a, &s, 22, &A) && adapter_param_at(&a, &s, 23, &B));
    assert_string_equal(A.name, "transformer.h.11.attn.c_attn.lora_A.weight");
    assert_string_equal(B.name, "transformer.h.11.attn.c_attn.lora_B.weight");
    assert_true(A.dims[0] == 8 && A.dims[1] == 768 && B.dims[0] == 2304 && B.dims[1] == 8);
    assert_true(A.matrix && B.matrix && A.rank == 2 && B.rank == 2);
    assert_true(adapter_scale(&a) == 2);
    assert_true(adapter_scale(&(struct adapter){.rank = 16, .alpha = 8, .rslora = true}) == 2);
    assert_true(adapter_scale(&(struct adapter){.alpha = 8}) == 0);
}

static void test_initial(void **state) {
    (void)state;
    enum { N = 16 * 2048 };
    const struct model_shape s = shape_of("llama-1b");
    const struct adapter a = {.rank = 16, .alpha = 16, .targets = "q_proj"};
    static float x[N], y[N];
    struct model_param p;
    double sum = 0, square = 0, most = 0;
    const double bound = 1 / sqrt(2048.0);
    assert_true(adapter_param_at(&a, &s, 0, &p) && p.dims[0] * p.dims[1] == N);
    model_param_init(&p, 5, 0, N, x);
    for (int i = 0; i < N; i++)
        sum += x[i], square += (double)x[i] * x[i], most = fmax(most, fabs((double)x[i]));
    assert_true(most <= bound && most > 0.999 * bound);
    assert_true(fabs(sum / N) < 5 * bound / sqrt(3.0 * N));
    assert_true(fabs(square / N / (bound * bound / 3) - 1) < 0.05);
    for (int i = 0; i < N; i += 777) // in any pieces
        model_param_init(&p, 5, i, N - i < 777 ? N - i : 777, y + i);
    assert_memory_equal(x, y, sizeof x);
    assert_true(adapter_param_at(&a, &s, 1, &p));
    model_param_init(&p, 5, 0, 100, x);
    for (int i = 0; i < 100; i++)
        assert_true(x[i] == 0);
}

static void test_refused(void **state) {
    (void)state;
    const struct model_shape s = shape_of("tiny");
    static const struct {
        struct adapter a;
        const char *says;
    } cases[] = {
        {{.rank = -1, .alpha = 1}, "rank -1"},
        {{.rank = 1025, .alpha = 1}, "accepted is 1 to 1024"},
        {{.rank = 1, .alpha = 0}, "alpha is 0"},
        {{.rank = 1, .alpha = NAN}, "alpha is nan"},
        {{.rank = 1, .alpha = INFINITY}, "alpha is inf"},
        {{.rank = 1, .alpha = 1, .dropout = 1}, "dropout is 1"},
        {{.rank = 1, .alpha = 1, .dropout = NAN}, "dropout is nan"},
        {{.rank = 1000, .alpha = 1}, "at most the smaller of the two"},
        {{.rank = 1, .alpha = 1, .targets = "proj"}, "'proj' is no linear layer"},
        {{.rank = 1, .alpha = 1, .targets = "q_proj,norm"}, "'norm' is no linear layer"},
        {{.rank = 1, .alpha = 1, .targets = "embed_tokens"}, "all, attention, mlp, q_proj"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        assert_int_equal(adapter_check(&cases[i].a, &s, &e), ERR_USAGE);
        if (!strstr(e.text, cases[i].says))
            fail_msg("'%s' is not in: %s", cases[i].says, e.text);
    }
    assert_int_equal(adapter_check(&(struct adapter){0}, &s, NULL), 0);
}

static void test_names(void **state) {
    (void)state;
    static const char name[] = "model.layers.1.self_attn.q_proj.weight";
    static const char *const hits[] = {"q_proj", "layers", "layers.1", "self_attn",
                                       "weight", "model",  name,       "x, q_proj"},
                             *const misses[] = {
                                 "",          NULL,           "proj",          "layer",
                                 "layers.11", "q_proj.weigh", "q_proj.lora_A", ".",
                                 ", ,"};
    for (size_t i = 0; i < sizeof hits / sizeof *hits; i++)
        if (!chosen_lists(hits[i], name))
            fail_msg("'%s' does not name %s", hits[i], name);
    for (size_t i = 0; i < sizeof misses / sizeof *misses; i++)
        if (chosen_lists(misses[i], name))
            fail_msg("'%s' names %s", misses[i], name);
    assert_false(chosen_lists("layers.1", "model.layers.11.self_attn.q_proj.weight"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_targets), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_initial), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

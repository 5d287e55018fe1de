// test_lora_from.c - a plan that begins from the folder of an adapter: the folder says what the
// adapter is, and knobs that say otherwise are refused.
#include "model/scratch.h"

#include "knob/pair.h"
#include "model/adapter_file.h"
#include "plan/plan.h"

static int give(void *arg, const struct model_param *p, int64_t first, int64_t n, float *out,
                struct err *e) {
    (void)arg, (void)p, (void)e;
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(first + i) * 1e-4F;
    return 0;
}

static bool last_norm(void *arg, const struct model_param *p) {
    (void)arg;
    return p->role == ROLE_NORMF_W;
}

// Adapters of the built-in tiny: attention/, whole/ (with the last norm), pattern/.
static void write_adapters(const struct scratch *d) {
    static const char *const names[] = {"attention", "whole", "pattern"};
    const struct adapter a = {.rank = 4, .alpha = 6, .dropout = 0.125, .targets = "attention"};
    struct model_shape s;
    struct err e = {0};
    assert_worked(model_shape_builtin(&s, "tiny", &e), &e);
    for (int i = 0; i < 3; i++) {
        const struct adapter_save o = {.adapter = &a,
                                       .shape = &s,
                                       .dtype = DTYPE_F32,
                                       .whole = i == 1 ? last_norm : NULL,
                                       .read = give};
        char path[PATH_MAX], *text;
        size_t bytes;
        snprintf(path, sizeof path, "%s/%s/" ADAPTER_FILE, d->dir, names[i]);
        assert_worked(file_make_parent(path, &e), &e);
        assert_worked(adapter_save_weights(&o, path, NULL, NULL, &e), &e);
        assert_worked(adapter_save_config(&o, &text, &bytes, &e), &e);
        snprintf(path, sizeof path, "%s/%s/" ADAPTER_CONFIG, d->dir, names[i]);
        assert_worked(file_write_atomic(path, text, bytes, &e), &e);
        free(text);
        static const char pattern[] = "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":6,"
                                      "\"lora_dropout\":0.125,\"target_modules\":\".*attn.*\"}";
        if (i == 2)
            assert_worked(file_write_atomic(path, pattern, strlen(pattern), &e), &e);
    }
}

static int plan_with(struct plan *p, const struct scratch *d, const char *settings, struct err *e) {
    struct knobs k;
    knobs_init(&k);
    TRY(knobs_set_list(&k, "model=tiny seq=16 batch.micro=2 device=cpu", d->dir, false,
                       SET_BY_RECIPE, e));
    TRY(knobs_set_list(&k, settings, d->dir, false, SET_BY_COMMAND_LINE, e));
    const struct plan_options o = {.knobs = &k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    return plan_make(p, &o, e);
}

static void test_folder_says(void **state) {
    static const char *const agreeing[] = {
        "lora.from={dir}/attention",
        "lora.from={dir}/pattern",
        "lora.from={dir}/attention lora.rank=4 lora.alpha=6 lora.targets=attention",
        "lora.from={dir}/attention lora.alpha=3 lora.rslora=true", // 3 / sqrt(4) is 6 / 4
        "lora.from={dir}/attention lora.targets=q_proj,k_proj,v_proj,o_proj",
        "lora.from={dir}/whole",
        "lora.from={dir}/whole train.also=model.norm",
        "lora.from={dir}/attention train.also=model.norm", // from the base
    };
    for (size_t i = 0; i < sizeof agreeing / sizeof *agreeing; i++) {
        struct plan p = {0}, again = {0};
        struct model_param param;
        struct err e = {0};
        bool pair;
        int64_t pairs = 0;
        assert_worked(plan_with(&p, *state, agreeing[i], &e), &e);
        assert_int_equal(p.adapter.rank, 4);
        assert_true(adapter_scale(&p.adapter) == 1.5);
        assert_true(p.adapter.dropout == 0.125);
        for (int64_t k = 0; plan_param_at(&p, k, &param, &pair); k++)
            pairs += pair;
        assert_int_equal(pairs, 4 * 2 * p.shape.layers);
        const struct chosen chosen = plan_chosen(&p);
        assert_int_equal(chosen_trains(&chosen, "model.norm.weight", false), i >= 5);
        // The knobs say the same, so a plan of them is the same plan.
        assert_int_equal(p.knobs.lora_rank, 4);
        const struct plan_options o = {
            .knobs = &p.knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
        assert_worked(plan_make(&again, &o, &e), &e);
        assert_int_equal(again.layout.arena_bytes, p.layout.arena_bytes);
        assert_string_equal(again.knobs.train_also, p.knobs.train_also);
        plan_free(&again);
        plan_free(&p);
    }
}

static void test_contradictions(void **state) {
    static const struct {
        const char *settings, *parts;
    } cases[] = {
        {"lora.from={dir}/attention lora.rank=8", "lora.rank=8|lora.from|rank 4"},
        {"lora.from={dir}/attention lora.rank=0", "lora.rank=0|rank 4"},
        {"lora.from={dir}/attention lora.alpha=16", "lora.alpha=16|1.5|alpha 6"},
        {"lora.from={dir}/attention lora.rslora=true", "lora.rslora=true|1.5"},
        {"lora.from={dir}/attention lora.targets=all", "lora.targets=all|q_proj,k_proj"},
        {"lora.from={dir}/attention lora.targets=c_attn", "c_attn|q_proj"},
        {"lora.from={dir}/whole train.also=layers.0", "train.also=layers.0|model.norm.weight"},
        {"lora.from={dir}/attention train.freeze=lora_A,lora_B,model", "nothing to train"},
        {"lora.from={dir}/none", "none|not a folder"},
        {"lora.from={dir}", "has no adapter_config.json|haggle export"},
        {"lora.from={dir}/attention model=gpt2-124m", "adapter_config.json|family"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan p = {0};
        struct err e = {0};
        assert_failed(plan_with(&p, *state, cases[i].settings, &e), &e, cases[i].parts,
                      cases[i].settings);
        plan_free(&p);
    }
}

static int setup(void **state) {
    if (scratch_setup(state) != 0)
        return -1;
    write_adapters(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_folder_says, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_contradictions, setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

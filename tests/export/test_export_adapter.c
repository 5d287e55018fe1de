// test_export_adapter.c - runs that trained an adapter: as PEFT's folder and merged, in every
// family; trained further; what is refused, and that the check finds damage.
#include "export_call.h"

#include "knob/pair.h"
#include "model/adapter_file.h"
#include "model/chosen.h"
#include "model/load.h"

static void train_adapter(struct run *r, const struct scratch *s, const char *name,
                          const char *model, const char *settings) {
    struct err e = {0};
    run_init(r, s, name);
    snprintf(r->knobs.model, sizeof r->knobs.model, "%s", model);
    assert_worked(knobs_set_list(&r->knobs,
                                 "steps=3 lora.rank=3 lora.alpha=5 optim.lr=0.02 sched.warmup=1",
                                 "", false, SET_BY_COMMAND_LINE, &e),
                  &e);
    assert_worked(knobs_set_list(&r->knobs, settings, s->dir, false, SET_BY_COMMAND_LINE, &e), &e);
    run_go(r);
    assert_ran(r);
}

// As export_init, for a call that may have been used before.
static void begin(struct export_call *x, const struct scratch *s, const char *run,
                  const char *name) {
    export_free(&x->r);
    export_init(x, s, run, name);
}

static void export_as(struct export_call *x, const struct scratch *s, const char *run,
                      const char *name, bool merge) {
    begin(x, s, run, name);
    x->o.merge = merge;
    export_go(x);
    assert_worked(x->rc, &x->e);
    assert_true(x->r.ok);
}

// ---------------------------------------------------------------- merged weights

static float *values_of(struct weights *w, const struct model_shape *s, const struct model_param *p,
                        int64_t *n) {
    struct err e = {0};
    const struct safetensors_entry *t = weights_find_param(w, s, p, &e);
    assert_non_null(t);
    float *out = malloc((size_t)t->elements * sizeof *out);
    assert_non_null(out);
    assert_worked(weights_read(w, t, 0, t->elements, out, DTYPE_F32, &e), &e);
    *n = t->elements;
    return out;
}

// Only what the adapter targets, and what was trained whole, differs from the base. No tensor is
// added: a tied head stays tied.
static void assert_merged(const char *base, const char *merged, const struct run *r) {
    struct weights *a, *b;
    struct model_shape s;
    struct model_param p;
    struct err e = {0};
    struct adapter adapter = {.rank = 3};
    snprintf(adapter.targets, sizeof adapter.targets, "%.500s", r->knobs.lora_targets);
    const struct chosen chosen = {&adapter, r->knobs.train_also, NULL};
    int64_t n, changed = 0;
    assert_worked(model_shape_read_config(&s, in(merged, "config.json"), &e), &e);
    assert_worked(weights_open(&a, base, &e), &e);
    assert_worked(weights_open(&b, merged, &e), &e);
    for (int64_t i = 0; model_param_at(&s, i, &p); i++) {
        float *x = values_of(a, &s, &p, &n), *y = values_of(b, &s, &p, &n);
        const bool differs = memcmp(x, y, (size_t)n * sizeof *x) != 0;
        const bool trained =
            adapter_targets(&adapter, &s, &p) || chosen_trains(&chosen, p.name, false);
        if (differs != trained)
            fail_msg("%s %s", p.name, differs ? "was changed" : "is the base's");
        changed += differs;
        free(x);
        free(y);
    }
    assert_true(changed > 0);
    assert_int_equal(weights_count(b), model_param_count(&s));
    weights_close(a);
    weights_close(b);
}

// ---------------------------------------------------------------- there and back

// The loss of one step that changes nothing.
static double loss_with(const struct scratch *s, const char *name, const char *model,
                        const char *from) {
    struct run r;
    run_init(&r, s, name);
    snprintf(r.knobs.model, sizeof r.knobs.model, "%s", model);
    snprintf(r.knobs.lora_from, sizeof r.knobs.lora_from, "%s", from);
    run_set(&r, "steps=1");
    run_set(&r, "optim.lr=0");
    run_go(&r);
    assert_ran(&r);
    return r.losses[0];
}

static void there_and_back(const struct scratch *s, const char *name, const char *settings) {
    char base[1024], adapter[512];
    struct run r;
    struct export_call x = {0};
    snprintf(base, sizeof base, "%s/tests/reference/%s", HAGGLE_SOURCE_DIR, name);
    train_adapter(&r, s, "trained", base, settings);
    export_as(&x, s, r.dir, "adapter", false);
    snprintf(adapter, sizeof adapter, "%s", x.out);
    assert_true(file_exists(in(adapter, ADAPTER_CONFIG)));
    assert_false(file_exists(in(adapter, "config.json"))); // it is no model
    assert_false(file_exists(in(adapter, "model.safetensors")));
    export_look(&x);
    assert_worked(x.rc, &x.e);
    export_as(&x, s, r.dir, "merged", true);
    assert_true(x.r.loss_tokens > 0 && x.r.loss_before > 0);
    assert_true(fabs(x.r.loss_after - x.r.loss_before) < 1e-4 * x.r.loss_before);
    assert_same_file(in(base, "config.json"), in(x.out, "config.json"));
    assert_merged(base, x.out, &r);
    export_look(&x);
    assert_worked(x.rc, &x.e);
    // What both compute is the same, and not what the base computes.
    const double with = loss_with(s, "with", base, adapter),
                 merged = loss_with(s, "of-merged", x.out, ""),
                 without = loss_with(s, "without", base, "");
    assert_true(fabs(with - merged) < 1e-4 * with);
    assert_true(fabs(with - without) > 1e-2 * with);
    // Read and written again without a change, the adapter is the same, byte for byte.
    snprintf(r.dir, sizeof r.dir, "%s/with", s->dir);
    export_as(&x, s, r.dir, "again", false);
    assert_same_file(in(adapter, ADAPTER_FILE), in(x.out, ADAPTER_FILE));
    assert_same_file(in(adapter, ADAPTER_CONFIG), in(x.out, ADAPTER_CONFIG));
    export_free(&x.r);
}

static void family(void **state, const char *name, const char *settings) {
    struct scratch *s = *state;
    struct err e = {0};
    char kept[sizeof s->dir];
    // A folder of its own for each.
    memcpy(kept, s->dir, sizeof kept);
    assert_worked(file_make_temp_dir(s->dir, sizeof s->dir, "adapters", &e), &e);
    there_and_back(s, name, settings);
    assert_worked(file_remove_tree(s->dir, &e), &e);
    memcpy(s->dir, kept, sizeof kept);
}

static void test_every_family(void **state) {
    family(state, "gpt2-odd", "lora.targets=all");
    family(state, "gpt2-odd", "lora.targets=attn.c_proj,c_fc train.also=ln_f");
    family(state, "llama3-scaled", "lora.targets=attention");
    family(state, "llama-bias", "lora.targets=q_proj,down_proj train.also=lm_head,model.norm");
    family(state, "qwen2", "lora.targets=mlp");
    family(state, "qwen3", "lora.targets=all train.also=input_layernorm");
}

// ---------------------------------------------------------------- types and remarks

static void test_types(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x = {0};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    train_adapter(&r, s, "types", s->nano, "lora.rslora=true lora.rank=4");
    for (int merge = 0; merge < 2; merge++)
        for (int i = 0; i < 3; i++) {
            char name[64];
            snprintf(name, sizeof name, "%s-%s", merge ? "merged" : "adapter",
                     dtype_text(types[i]));
            begin(&x, s, r.dir, name);
            x.o.merge = merge;
            x.o.as_source = false;
            x.o.dtype = types[i];
            export_go(&x);
            assert_worked(x.rc, &x.e);
            assert_true(i == 0 || figure(&x, "logits") > 0);
            assert_true(figure(&x, "differ from the checkpoint's") == 0);
            if (!merge) { // the scale of rslora is an alpha that all programs read
                char *config = text_of(in(x.out, ADAPTER_CONFIG));
                assert_non_null(strstr(config, "\"lora_alpha\": 10,"));
                assert_null(strstr(config, "rslora"));
                assert_non_null(strstr(x.r.remarks.lines, "rslora"));
                free(config);
            }
            export_free(&x.r);
        }
}

// ---------------------------------------------------------------- refused

static void flip_last_byte(const char *path) {
    struct err e = {0};
    char *text;
    size_t bytes;
    assert_worked(file_read_all(path, 1 << 24, &text, &bytes, &e), &e);
    text[bytes - 1] ^= 1;
    assert_worked(file_write_atomic(path, text, bytes, &e), &e);
    free(text);
}

static void test_another_base(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x = {0};
    struct err e = {0};
    char base[512], moved[600];
    snprintf(base, sizeof base, "%s/base", s->dir);
    make_nano(base, 16, POISON_NONE);
    train_adapter(&r, s, "based", base, "");
    // A base that has moved is named with --source.
    snprintf(moved, sizeof moved, "%s-moved", base);
    assert_worked(file_rename(base, moved, &e), &e);
    for (int merge = 0; merge < 2; merge++) {
        begin(&x, s, r.dir, merge ? "moved-merged" : "moved-adapter");
        x.o.merge = merge;
        export_go(&x);
        assert_failed(x.rc, ERR_IO, &x.e, "base|--source");
        assert_nothing_left(&x);
        x.o.source = moved;
        export_go(&x);
        assert_worked(x.rc, &x.e);
    }
    // One whose weights have changed is refused.
    flip_last_byte(in(moved, "model.safetensors"));
    for (int merge = 0; merge < 2; merge++) {
        begin(&x, s, r.dir, merge ? "changed-merged" : "changed-adapter");
        x.o.merge = merge;
        x.o.source = moved;
        export_go(&x);
        assert_failed(x.rc, ERR_MISMATCH, &x.e, "belongs to|base-moved");
        assert_nothing_left(&x);
    }
    export_free(&x.r);
}

static void test_refusals(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x = {0};
    train(&r, s, "whole", s->nano, NULL);
    begin(&x, s, r.dir, "no-adapter");
    x.o.merge = true;
    export_go(&x);
    assert_failed(x.rc, ERR_USAGE, &x.e, "--merge|whole model");
    assert_nothing_left(&x);
    // The embedding is the head too, which PEFT's files cannot say. The merged model can.
    train_adapter(&r, s, "tied", s->nano, "train.also=embed_tokens");
    begin(&x, s, r.dir, "tied-adapter");
    export_go(&x);
    assert_failed(x.rc, ERR_UNSUPPORTED, &x.e, "embed_tokens|--merge");
    assert_nothing_left(&x);
    export_as(&x, s, r.dir, "tied-merged", true);
    assert_merged(s->nano, x.out, &r);
    export_free(&x.r);
}

static void test_data(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x = {0};
    char text[2000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i % 26);
    text[sizeof text - 1] = '\0';
    put_text(in(s->dir, "text.txt"), text);
    train_adapter(&r, s, "no-validation", s->nano, "data.path={dir}/text.txt data.val=0");
    export_as(&x, s, r.dir, "unmeasured", true);
    assert_int_equal(x.r.loss_tokens, 0);
    assert_non_null(strstr(x.said, "not measured"));
    assert_non_null(strstr(x.said, "--data"));
    begin(&x, s, r.dir, "measured");
    x.o.merge = true;
    x.o.data = in(s->dir, "text.txt");
    export_go(&x);
    assert_worked(x.rc, &x.e);
    assert_true(x.r.loss_tokens > 0);
    assert_true(fabs(x.r.loss_after - x.r.loss_before) < 1e-4 * x.r.loss_before);
    begin(&x, s, r.dir, "no-such-data");
    x.o.merge = true;
    x.o.data = "/no/such/file.txt";
    export_go(&x);
    assert_failed(x.rc, ERR_IO, &x.e, "--data|/no/such/file.txt");
    assert_nothing_left(&x);
    export_free(&x.r);
}

// Before the folder gets its name: another value in a tensor, and another factor.
static int damage_tensor(void *arg, const char *dir, struct err *e) {
    (void)arg, (void)e;
    flip_last_byte(in(dir, ADAPTER_FILE));
    return 0;
}

static int damage_factor(void *arg, const char *dir, struct err *e) {
    (void)arg, (void)e;
    char *config = text_of(in(dir, ADAPTER_CONFIG)), *alpha = strstr(config, "\"lora_alpha\": 5");
    assert_non_null(alpha);
    alpha[strlen("\"lora_alpha\": ")] = '6';
    put_text(in(dir, ADAPTER_CONFIG), config);
    free(config);
    return 0;
}

static void test_damage(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x = {0};
    train_adapter(&r, s, "damage", s->nano, "");
    begin(&x, s, r.dir, "damaged");
    x.o.on_written = damage_tensor;
    export_go(&x);
    assert_failed(x.rc, ERR_NUMERIC, &x.e, ADAPTER_FILE);
    assert_nothing_left(&x);
    x.o.on_written = damage_factor;
    export_go(&x);
    assert_failed(x.rc, ERR_NUMERIC, &x.e, ADAPTER_CONFIG);
    assert_nothing_left(&x);
    x.o.on_written = NULL;
    export_go(&x);
    assert_worked(x.rc, &x.e);
    flip_last_byte(in(x.out, ADAPTER_FILE));
    export_look(&x);
    assert_failed(x.rc, ERR_NUMERIC, &x.e, ADAPTER_FILE);
    export_free(&x.r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_family), cmocka_unit_test(test_types),
        cmocka_unit_test(test_another_base), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_data),         cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

// test_adapter_file.c - adapters as PEFT's files: what is written is read back, in every family;
// tensors that must be refused; what other programs are said to refuse. tests/hostile has a table
// of settings.
#include "scratch.h"

#include "base/json.h"
#include "model/adapter_file.h"
#include "model/adapter_merge.h"
#include "model/safetensors.h"

#include <math.h>

#define PREFIX ADAPTER_PREFIX

// ---------------------------------------------------------------- small models

static struct model_shape small(const char *builtin) {
    struct model_shape s;
    struct err e = {0};
    assert_worked(model_shape_builtin(&s, builtin, &e), &e);
    s.vocab = 50, s.width = 24, s.heads = 4, s.head_dim = 6, s.ffn = 40, s.layers = 2;
    s.kv_heads = s.packed_qkv ? 4 : 2;
    s.max_positions = 16;
    s.bos_id = s.eos_id = -1;
    assert_worked(model_shape_check(&s, &e), &e);
    return s;
}

static bool norms(void *arg, const struct model_param *p) {
    (void)arg;
    return p->role == ROLE_NORM2_W || p->role == ROLE_HEAD_W;
}

static bool embedding(void *arg, const struct model_param *p) {
    (void)arg;
    return p->role == ROLE_WTE;
}

static bool query_bias(void *arg, const struct model_param *p) {
    (void)arg;
    return p->role == ROLE_Q_B || p->role == ROLE_QKV_B;
}

// A value that says which tensor and element it is.
static float value_at(const struct model_param *p, int64_t i) {
    float sum = 0;
    for (const char *c = p->name; *c != '\0'; c++)
        sum = sum * 0.5F + (float)*c;
    return sum + (float)i * 0.125F;
}

static int give(void *arg, const struct model_param *p, int64_t first, int64_t n, float *out,
                struct err *e) {
    (void)arg;
    (void)e;
    for (int64_t i = 0; i < n; i++)
        out[i] = value_at(p, first + i);
    return 0;
}

static void save(const struct scratch *d, const struct adapter_save *o) {
    struct err e = {0};
    char *text, hash[HASH_TEXT_BYTES];
    size_t bytes;
    uint64_t written, file;
    assert_worked(adapter_save_config(o, &text, &bytes, &e), &e);
    scratch_put(d, ADAPTER_CONFIG, text, bytes);
    free(text);
    const char *path = scratch_path(d, ADAPTER_FILE);
    assert_worked(adapter_save_weights(o, path, hash, &written, &e), &e);
    assert_worked(file_size(path, &file, &e), &e);
    assert_int_equal(file, written);
    assert_true(written <= adapter_save_bytes(o));
}

static int64_t compare_tensor(struct adapter_file *f, const struct model_param *p) {
    struct err e = {0};
    float got[4096];
    const int64_t n = p->dims[0] * (p->rank > 1 ? p->dims[1] : 1);
    assert_true(n <= 4096);
    assert_worked(adapter_file_read(f, p, 0, n, got, DTYPE_F32, &e), &e);
    for (int64_t i = 0; i < n; i++)
        if (got[i] != value_at(p, i))
            fail_msg("%s: element %lld is %g", p->name, (long long)i, (double)got[i]);
    return n;
}

// ---------------------------------------------------------------- there and back

static void round_trip(const struct scratch *d, const char *builtin, const char *targets,
                       bool rslora, bool (*whole)(void *, const struct model_param *),
                       const char *in_config) {
    const struct model_shape s = small(builtin);
    struct adapter a = {.rank = 4, .alpha = 6, .dropout = 0.25, .rslora = rslora};
    struct err e = {0};
    struct adapter_file *f;
    struct model_param p;
    char *text;
    size_t bytes;
    snprintf(a.targets, sizeof a.targets, "%s", targets);
    const struct adapter_save o = {.adapter = &a,
                                   .shape = &s,
                                   .base = "org/base",
                                   .dtype = DTYPE_F32,
                                   .whole = whole,
                                   .read = give};
    save(d, &o);
    assert_worked(file_read_all(scratch_path(d, ADAPTER_CONFIG), 1 << 16, &text, &bytes, &e), &e);
    if (strstr(text, in_config) == NULL)
        fail_msg("%s %s: the settings lack %s:\n%s", builtin, targets, in_config, text);
    free(text);
    assert_worked(adapter_file_open(&f, d->dir, &s, &e), &e);
    const struct adapter_config *c = adapter_file_config(f);
    assert_string_equal(c->base, "org/base");
    assert_int_equal(c->adapter.rank, 4);
    assert_true(c->adapter.dropout == 0.25);
    assert_true(adapter_scale(&c->adapter) == adapter_scale(&a));
    int64_t compared = 0;
    for (int64_t i = 0; model_param_at(&s, i, &p); i++)
        if (adapter_targets(&a, &s, &p) != adapter_targets(&c->adapter, &s, &p))
            fail_msg("%s: '%s' was read as '%s'", builtin, targets, c->adapter.targets);
    for (int64_t i = 0; adapter_param_at(&a, &s, i, &p); i++)
        compared += compare_tensor(f, &p);
    for (int64_t i = 0; model_param_at(&s, i, &p); i++) {
        if (whole != NULL && whole(NULL, &p))
            assert_true(adapter_config_replaces(c, &p));
        if (adapter_config_replaces(c, &p))
            compared += compare_tensor(f, &p);
    }
    assert_true(compared > 0);
    adapter_file_close(f);
}

static void test_round_trip(void **state) {
    static const char *const shapes[] = {"gpt2-124m", "llama-8b", "qwen2-0.5b", "qwen3-0.6b"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        round_trip(*state, shapes[i], "", false, NULL, "\"lora_alpha\": 6");
        round_trip(*state, shapes[i], "attention", true, NULL, "\"lora_alpha\": 12");
        round_trip(*state, shapes[i], "mlp", false, NULL, "\"modules_to_save\": null");
        round_trip(*state, shapes[i], "all", false, norms, "\"modules_to_save\": [");
    }
    // A name that two kinds of layers share is written with what stands before it.
    round_trip(*state, "gpt2-124m", "attn.c_proj", false, NULL, "\"attn.c_proj\"");
    round_trip(*state, "gpt2-124m", "c_attn,mlp.c_proj", false, NULL, "\"mlp.c_proj\"");
    round_trip(*state, "gpt2-124m", "c_proj", false, NULL, "[\n    \"c_proj\"\n  ]");
    round_trip(*state, "gpt2-124m", "all", false, NULL, "\"fan_in_fan_out\": true");
    round_trip(*state, "llama-8b", "q_proj,v_proj", false, NULL, "\"fan_in_fan_out\": false");
}

// Types narrower than the values: what is read is the rounded value.
static void test_types(void **state) {
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F64};
    const struct model_shape s = small("llama-8b");
    const struct adapter a = {.rank = 2, .alpha = 2};
    struct err e = {0};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct adapter_save o = {.adapter = &a, .shape = &s, .dtype = types[t], .read = give};
        struct adapter_file *f;
        struct model_param p;
        float got, rounded;
        char narrow[8];
        save(*state, &o);
        assert_worked(adapter_file_open(&f, ((struct scratch *)*state)->dir, &s, &e), &e);
        assert_true(adapter_param_at(&a, &s, 1, &p));
        assert_worked(adapter_file_read(f, &p, 5, 1, &got, DTYPE_F32, &e), &e);
        const float value = value_at(&p, 5);
        dtype_convert(narrow, types[t], &value, DTYPE_F32, 1);
        dtype_convert(&rounded, DTYPE_F32, narrow, types[t], 1);
        assert_true(got == rounded);
        adapter_file_close(f);
    }
}

static int give_large(void *arg, const struct model_param *p, int64_t first, int64_t n, float *out,
                      struct err *e) {
    (void)arg, (void)p, (void)first, (void)e;
    for (int64_t i = 0; i < n; i++)
        out[i] = 1e5F;
    return 0;
}

static void test_not_written(void **state) {
    const struct scratch *d = *state;
    struct model_shape s = small("qwen2-0.5b");
    const struct adapter a = {.rank = 2, .alpha = 2};
    struct err e = {0};
    struct adapter_save o = {
        .adapter = &a, .shape = &s, .dtype = DTYPE_F16, .read = give_large, .whole = NULL};
    const char *path = scratch_path(d, ADAPTER_FILE);
    assert_failed(adapter_save_weights(&o, path, NULL, NULL, &e), &e, "100000|fp16|lora_A",
                  "too large");
    assert_false(file_exists(path));
    o.dtype = DTYPE_F32;
    o.whole = query_bias; // beside an adapter
    assert_failed(adapter_save_weights(&o, path, NULL, NULL, &e), &e, "q_proj|--merge", "a bias");
    o.whole = embedding;
    s.tied = true;
    assert_failed(adapter_save_weights(&o, path, NULL, NULL, &e), &e, "embed_tokens|--merge",
                  "tied");
    s.tied = false;
    assert_worked(adapter_save_weights(&o, path, NULL, NULL, &e), &e);
}

// ---------------------------------------------------------------- tensors that are refused

#define SETTINGS(members)                                                                          \
    "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":2,\"bias\":\"none\"," members "}"

// Changes one thing about the tensors of an adapter on q_proj of two layers.
struct tensors {
    const char *settings;
    int skip, cut, turn, renamed, type; // the index of the tensor that is different; -1: none
    const char *more;                   // a tensor that nobody asked for
    float value;                        // of one element
    const char *parts;                  // NULL: accepted
};

#define Q       "\"target_modules\":[\"q_proj\"]"
#define A0      "model.layers.0.self_attn.q_proj.lora_A.weight"
#define NOTHING .skip = -1, .cut = -1, .turn = -1, .renamed = -1, .type = -1

static const struct tensors tensors[] = {
    {SETTINGS(Q), NOTHING},
    {SETTINGS("\"target_modules\":\".*q_proj\""), NOTHING},
    {SETTINGS("\"target_modules\":\".*(q|v)_proj\""), NOTHING}, // the tensors say what it matched
    {SETTINGS(Q), NOTHING, .value = INFINITY, .parts = PREFIX A0 "|inf|finite"},
    {SETTINGS(Q), NOTHING, .value = NAN, .parts = PREFIX A0 "|finite"},
    {SETTINGS(Q), NOTHING, .more = "x", .parts = "\"x\"|not part of"},
    {SETTINGS(Q), NOTHING, .more = A0, .parts = "\"" A0 "\"|not part of"}, // without the prefix
    {SETTINGS(Q), NOTHING, .more = PREFIX "lm_head.weight", .parts = "lm_head|not part of"},
    {SETTINGS(Q), NOTHING, .more = PREFIX "model.layers.2.self_attn.q_proj.lora_A.weight",
     .parts = "layers.2|not part of"},
    {SETTINGS(Q), NOTHING, .more = PREFIX "model.layers.0.self_attn.q_proj.lora_magnitude_vector",
     .parts = "lora_magnitude_vector|not part of"},
    {SETTINGS(Q), NOTHING, .more = "\033[2J", .parts = "?[2J|not part of"},
    {SETTINGS(Q), .skip = 0, .cut = -1, .turn = -1, .renamed = -1, .type = -1,
     .parts = "no tensor|" PREFIX A0},
    {SETTINGS(Q), .skip = 3, .cut = -1, .turn = -1, .renamed = -1, .type = -1,
     .parts = "no tensor|layers.1.self_attn.q_proj.lora_B"},
    {SETTINGS(Q), .skip = -1, .cut = 0, .turn = -1, .renamed = -1, .type = -1,
     .parts = A0 "|[1, 24]|[2, 24]"},
    {SETTINGS(Q), .skip = -1, .cut = -1, .turn = 1, .renamed = -1, .type = -1,
     .parts = "lora_B|[2, 24]|[24, 2]"},
    {SETTINGS(Q), .skip = -1, .cut = -1, .turn = -1, .renamed = 0, .type = -1,
     .parts = "no tensor|" PREFIX A0},
    {SETTINGS(Q), .skip = -1, .cut = -1, .turn = -1, .renamed = -1, .type = 2,
     .parts = "layers.1|I32|F32, F64, BF16, F16"},
    {SETTINGS("\"target_modules\":\"x\""), .skip = 0, .cut = -1, .turn = -1, .renamed = -1,
     .type = -1, .parts = "no pair"},
    {SETTINGS("\"target_modules\":\"x\""), .skip = 2, .cut = -1, .turn = -1, .renamed = -1,
     .type = -1, .parts = "no tensor|layers.1"},
    {SETTINGS("\"target_modules\":[\"k_proj\"]"), NOTHING, .parts = "no tensor|k_proj"},
    {SETTINGS("\"target_modules\":[\"q_proj\",\"v_proj\"]"), NOTHING, .parts = "no tensor|v_proj"},
    {SETTINGS(Q ",\"modules_to_save\":[\"lm_head\"]"), NOTHING, .parts = "no tensor|lm_head"},
    {SETTINGS(Q ",\"modules_to_save\":[\"lm_head\"]"), NOTHING, .more = PREFIX "lm_head.weight",
     .parts = "lm_head|[1]|[50, 24]"},
};

static void put_tensors(const struct scratch *d, const struct tensors *t,
                        const struct model_shape *s) {
    const struct adapter a = {.rank = 2, .alpha = 2, .targets = "q_proj"};
    struct safetensors_writer *w;
    struct model_param p;
    struct err e = {0};
    static float data[4096];
    data[7] = t->value;
    assert_worked(safetensors_writer_open(&w, scratch_path(d, ADAPTER_FILE), &e), &e);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; adapter_param_at(&a, s, i, &p); i++) {
            char name[200];
            int64_t dims[2] = {p.dims[i == t->turn], p.dims[i != t->turn]};
            if (i == t->skip)
                continue;
            dims[0] -= i == t->cut;
            snprintf(name, sizeof name, "%s%s", i == t->renamed ? "model." : PREFIX, p.name);
            const enum dtype type = i == t->type ? DTYPE_I32 : DTYPE_F32;
            assert_worked(
                pass == 0 ? safetensors_writer_declare(w, name, type, 2, dims, &e)
                          : safetensors_writer_put(w, data, (size_t)(dims[0] * dims[1] * 4), &e),
                &e);
        }
        if (t->more != NULL)
            assert_worked(
                pass == 0 ? safetensors_writer_declare(w, t->more, DTYPE_F32, 1, (int64_t[]){1}, &e)
                          : safetensors_writer_put(w, data, 4, &e),
                &e);
    }
    assert_worked(safetensors_writer_close(w, NULL, NULL, &e), &e);
}

static void test_tensors(void **state) {
    const struct scratch *d = *state;
    const struct model_shape s = small("llama-8b");
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const struct tensors *t = &tensors[i];
        struct err e = {0};
        struct adapter_file *f;
        char what[32];
        snprintf(what, sizeof what, "tensors %zu", i);
        scratch_text(d, ADAPTER_CONFIG, t->settings);
        put_tensors(d, t, &s);
        int rc = adapter_file_open(&f, d->dir, &s, &e);
        assert_true((rc == 0) == (f != NULL));
        if (t->parts == NULL) {
            assert_worked(rc, &e);
        } else {
            assert_failed(rc, &e, t->parts, what);
            assert_failed(rc, &e, ADAPTER_FILE, what);
            assert_int_equal(adapter_file_open(&f, d->dir, &s, NULL), rc);
        }
        for (const char *c = e.text; *c != '\0'; c++)
            assert_true((unsigned char)*c >= 0x20);
        adapter_file_close(f);
    }
}

static void test_folder(void **state) {
    const struct scratch *d = *state;
    const struct model_shape s = small("llama-8b");
    struct err e = {0};
    struct adapter_file *f;
    assert_failed(adapter_file_open(&f, scratch_path(d, "none"), &s, &e), &e,
                  "none|" ADAPTER_CONFIG, "no folder");
    assert_failed(adapter_file_open(&f, d->dir, &s, &e), &e, ADAPTER_CONFIG, "an empty folder");
    scratch_text(d, ADAPTER_CONFIG, SETTINGS(Q));
    assert_failed(adapter_file_open(&f, d->dir, &s, &e), &e, ADAPTER_FILE, "no tensors");
    scratch_text(d, "adapter_model.bin", "PK");
    assert_failed(adapter_file_open(&f, d->dir, &s, &e), &e, "adapter_model.bin|pickle|safetensors",
                  "a pickle");
    scratch_text(d, ADAPTER_FILE, "not a header");
    assert_failed(adapter_file_open(&f, d->dir, &s, &e), &e, ADAPTER_FILE "|header", "damage");
}

// ---------------------------------------------------------------- merging

// Element i of a weight, or of a tensor of its pair. Small, with both signs.
static float small_value(const struct model_param *p, int64_t i) {
    return sinf((float)(i % 1009) + 0.1F * value_at(p, 0));
}

static int give_small(void *arg, const struct model_param *p, int64_t first, int64_t n, float *out,
                      struct err *e) {
    (void)arg, (void)e;
    for (int64_t i = 0; i < n; i++)
        out[i] = small_value(p, first + i);
    return 0;
}

// W + scale B A by its definition, in double precision.
static double merged_value(const struct adapter *a, const struct model_shape *s,
                           const struct model_param *w, int64_t i) {
    const int64_t row = i / w->dims[1], column = i % w->dims[1],
                  in = s->in_out_weights ? row : column, out = s->in_out_weights ? column : row;
    struct model_param pa, pb;
    double sum = 0;
    adapter_param(a, s, w, false, &pa);
    adapter_param(a, s, w, true, &pb);
    for (int64_t r = 0; r < a->rank; r++)
        sum += (double)small_value(&pb, out * a->rank + r) *
               (double)small_value(&pa, r * pa.dims[1] + in);
    return (double)small_value(w, i) + adapter_scale(a) * sum;
}

static void merge(const char *builtin, const char *targets, bool rslora) {
    const struct model_shape s = small(builtin);
    struct adapter a = {.rank = 3, .alpha = 5, .rslora = rslora};
    struct adapter_merge *m;
    struct model_param p;
    struct err e = {0};
    float all[4096], piece[100];
    int64_t changed = 0;
    snprintf(a.targets, sizeof a.targets, "%s", targets);
    assert_worked(adapter_merge_open(&m, &a, &s, give_small, give_small, NULL, &e), &e);
    for (int64_t i = 0; model_param_at(&s, i, &p); i++) {
        const int64_t n = p.dims[0] * (p.rank > 1 ? p.dims[1] : 1);
        assert_true(n <= 4096);
        assert_worked(adapter_merge_read(m, &p, 0, n, all, &e), &e);
        for (int64_t k = 0; k < n; k++) {
            const double wanted = adapter_targets(&a, &s, &p) ? merged_value(&a, &s, &p, k)
                                                              : (double)small_value(&p, k);
            if (fabs((double)all[k] - wanted) > 1e-5)
                fail_msg("%s: element %lld is %g, not %g", p.name, (long long)k, (double)all[k],
                         wanted);
            changed += all[k] != small_value(&p, k);
        }
        for (int64_t at = 0; at < n; at += 97) { // pieces that begin and end inside rows
            const int64_t count = n - at < 97 ? n - at : 97;
            assert_worked(adapter_merge_read(m, &p, at, count, piece, &e), &e);
            assert_memory_equal(piece, all + at, (size_t)count * sizeof *piece);
        }
    }
    assert_true(changed > 0);
    adapter_merge_close(m);
}

static void test_merge(void **state) {
    (void)state;
    merge("gpt2-124m", "", false);
    merge("gpt2-124m", "attn.c_proj", true);
    merge("llama-8b", "", true);
    merge("qwen2-0.5b", "v_proj,down_proj", false);
}

// ---------------------------------------------------------------- other programs

static void remarks(const char *builtin, int64_t rank, bool rslora,
                    bool (*whole)(void *, const struct model_param *), const char *parts) {
    const struct model_shape s = small(builtin);
    const struct adapter a = {.rank = rank, .alpha = 16, .rslora = rslora};
    const struct adapter_save o = {.adapter = &a, .shape = &s, .whole = whole};
    struct sentences said = {0};
    struct err e = {.code = -1};
    adapter_save_remarks(&o, &said);
    if (*parts == '\0') {
        assert_string_equal(said.lines, "");
        return;
    }
    snprintf(e.text, sizeof e.text, "%.1000s", said.lines);
    assert_failed(-1, &e, parts, builtin);
}

static void test_remarks(void **state) {
    (void)state;
    remarks("llama-8b", 16, false, NULL, "");
    remarks("llama-8b", 17, false, NULL, "rank 17|--max-lora-rank 32");
    remarks("llama-8b", 300, false, NULL, "rank 300|--max-lora-rank 320");
    remarks("llama-8b", 513, false, NULL, "rank 513|512|--merge");
    remarks("llama-8b", 16, true, NULL, "scale 4|alpha 64");
    remarks("llama-8b", 16, false, norms, "modules_to_save|3 whole weights|norms");
    remarks("gpt2-124m", 16, false, NULL, "[in, out]|vLLM|--merge");
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(test_round_trip),  IN_SCRATCH(test_types),  IN_SCRATCH(test_not_written),
        IN_SCRATCH(test_tensors),     IN_SCRATCH(test_folder), cmocka_unit_test(test_remarks),
        cmocka_unit_test(test_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

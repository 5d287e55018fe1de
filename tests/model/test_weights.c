// test_weights.c - the weights of a model folder: a single file or shards, what an index must not
// do, and the names of parameters.
#include "scratch.h"

#include "base/hash.h"
#include "model/load.h"
#include "model/names.h"
#include "model/safetensors.h"
#include "skips.h"

#include <fcntl.h>
#include <sys/stat.h>

// Writes a file with one-element F32 tensors. Names are separated by spaces. Values are 1, 2, 3,
// ...
static void put_tensors(const struct scratch *d, const char *file, const char *names) {
    struct safetensors_writer *w;
    struct err e = {0};
    char copy[512], *rest = copy, *name;
    int count = 0;
    assert_worked(safetensors_writer_open(&w, scratch_path(d, file), &e), &e);
    snprintf(copy, sizeof copy, "%s", names);
    while ((name = strsep(&rest, " ")) != NULL) {
        assert_worked(safetensors_writer_declare(w, name, DTYPE_F32, 1, (int64_t[]){1}, &e), &e);
        count++;
    }
    for (int i = 1; i <= count; i++) {
        float value = (float)i;
        assert_worked(safetensors_writer_put(w, &value, sizeof value, &e), &e);
    }
    assert_worked(safetensors_writer_close(w, NULL, NULL, &e), &e);
}

static const char *put_index(const struct scratch *d, const char *text) {
    scratch_text(d, "model.safetensors.index.json", text);
    return d->dir;
}

static float value_of(struct weights *w, const char *name) {
    struct err e = {0};
    float x = -1;
    const struct safetensors_entry *t = weights_find(w, name);
    assert_non_null(t);
    assert_worked(weights_read(w, t, 0, 1, &x, DTYPE_F32, &e), &e);
    return x;
}

static void test_shards(void **state) {
    const struct scratch *d = *state;
    struct weights *w;
    struct err e = {0};
    put_tensors(d, "a.safetensors", "one two three");
    put_tensors(d, "b.safetensors", "four five extra");
    const char *dir = put_index(
        d, "{\"metadata\":{\"total_size\":20,\"total_parameters\":5},\"weight_map\":{"
           "\"four\":\"b.safetensors\",\"one\":\"a.safetensors\",\"two\":\"a.safetensors\","
           "\"three\":\"a.safetensors\",\"five\":\"b.safetensors\"}}");
    assert_worked(weights_open(&w, dir, &e), &e);
    assert_int_equal(weights_count(w), 6);
    assert_float_equal(value_of(w, "one"), 1, 0);
    assert_float_equal(value_of(w, "three"), 3, 0);
    assert_float_equal(value_of(w, "four"), 1, 0);
    assert_float_equal(value_of(w, "extra"), 3, 0); // in a shard but not in the index: accepted
    assert_null(weights_find(w, "six"));
    for (size_t i = 0; i < 6; i++)
        assert_ptr_equal(weights_find(w, weights_at(w, i)->name), weights_at(w, i));
    assert_null(weights_at(w, 6));
    struct safetensors_entry foreign = *weights_at(w, 0);
    float x;
    assert_int_equal(weights_read(w, &foreign, 0, 1, &x, DTYPE_F32, &e), ERR_INTERNAL);
    weights_close(w);
    weights_close(NULL);
    // A single file wins over an index, as in transformers.
    put_tensors(d, "model.safetensors", "alone");
    assert_worked(weights_open(&w, dir, &e), &e);
    assert_int_equal(weights_count(w), 1);
    assert_float_equal(value_of(w, "alone"), 1, 0);
    weights_close(w);
}

static void test_bad_index(void **state) {
    const struct scratch *d = *state;
#define MAP(map) "{\"weight_map\":{" map "}}"
    static const struct {
        const char *text, *parts;
    } cases[] = {
        {"", "index.json"},
        {"[]", "index.json"},
        {"{}", "weight_map"},
        {"{\"weight_map\":{}}", "weight_map"},
        {"{\"weight_map\":[]}", "index.json"},
        {"{\"weight_map\":null}", "index.json"},
        {MAP("\"one\":3"), "index.json"},
        {MAP("\"one\":\"a.safetensors\"") "x", "index.json"},
        {MAP("\"one\":\"a.safetensors\",\"one\":\"a.safetensors\""), "\"one\"|twice"},
        {"{\"weight_map\":{\"one\":\"a.safetensors\"},\"weight_map\":{}}", "weight_map|twice"},
        {MAP("\"one\":\"\""), "plain file name"},
        {MAP("\"one\":\".\""), "plain file name"},
        {MAP("\"one\":\"..\""), "plain file name"},
        {MAP("\"one\":\"../a.safetensors\""), "../a.safetensors|plain file name"},
        {MAP("\"one\":\"/etc/passwd\""), "/etc/passwd|plain file name"},
        {MAP("\"one\":\"sub/a.safetensors\""), "plain file name"},
        {MAP("\"one\":\"..\\\\a.safetensors\""), "plain file name"},
        {MAP("\"one\":\"a.safetensors\\u0000\""), "index.json"},
        {MAP("\"one\":\"pytorch_model.bin\""), "pytorch_model.bin|safetensors"},
        {MAP("\"one\":\"gone.safetensors\""), "gone.safetensors|No such file"},
        {MAP("\"one\":\"a.safetensors\",\"nine\":\"a.safetensors\""), "\"nine\"|a.safetensors"},
        {MAP("\"one\":\"b.safetensors\""), "\"one\"|b.safetensors"},
        {MAP("\"one\":\"a.safetensors\",\"two\":\"twice.safetensors\""),
         "\"two\"|a.safetensors|twice.safetensors"},
        {MAP("\"one\":\"out.safetensors\""), "out.safetensors|out of the model's folder"},
        {MAP("\"one\":\"dir.safetensors\""), "dir.safetensors"},
        {MAP("\"one\":\"broken.safetensors\""), "broken.safetensors"},
        {"{\"metadata\":{\"total_size\":9},\"weight_map\":{\"one\":\"a.safetensors\"}}",
         "total_size|9|4"},
        {"{\"metadata\":{\"total_size\":-4},\"weight_map\":{\"one\":\"a.safetensors\"}}",
         "total_size"},
        {"{\"metadata\":{\"total_size\":\"4\"},\"weight_map\":{\"one\":\"a.safetensors\"}}",
         "index.json"},
        {"{\"metadata\":{\"total_size\":4,\"total_size\":4},\"weight_map\":{\"one\":\"a."
         "safetensors\"}}",
         "twice"},
    };
    put_tensors(d, "a.safetensors", "one two three");
    put_tensors(d, "b.safetensors", "four five");
    put_tensors(d, "twice.safetensors", "two");
    scratch_text(d, "broken.safetensors", "not a header");
    assert_int_equal(mkdir(scratch_path(d, "dir.safetensors"), 0777), 0);
    // A link to a valid file outside the folder.
    char elsewhere[256], outside[300];
    assert_int_equal(file_make_temp_dir(elsewhere, sizeof elsewhere, "outside", NULL), 0);
    snprintf(outside, sizeof outside, "%s/a.safetensors", elsewhere);
    char *bytes;
    size_t n;
    struct err e = {0};
    assert_worked(file_read_all(scratch_path(d, "a.safetensors"), 4096, &bytes, &n, &e), &e);
    FILE *f = fopen(outside, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    free(bytes);
    assert_int_equal(symlink(outside, scratch_path(d, "out.safetensors")), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct weights *w;
        const char *dir = put_index(d, cases[i].text);
        int rc = weights_open(&w, dir, &e);
        assert_failed(rc, &e, cases[i].parts, cases[i].text);
        assert_null(w);
        assert_int_equal(weights_open(&w, dir, NULL), rc);
    }
    assert_worked(file_remove_tree(elsewhere, &e), &e);
    print_message("%zu bad indexes refused\n", sizeof cases / sizeof cases[0]);
    // A file that is too large is refused before anything is read.
    assert_int_equal(truncate(scratch_path(d, "model.safetensors.index.json"), 100000001), 0);
    struct weights *w;
    assert_failed(weights_open(&w, d->dir, &e), &e, "index.json|100000000", "too large");
}

static void test_index_damage(void **state) {
    static const char text[] =
        "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"one\":\"a.safetensors\","
        "\"four\":\"b.safetensors\"}}";
    const struct scratch *d = *state;
    put_tensors(d, "a.safetensors", "one");
    put_tensors(d, "b.safetensors", "four");
    struct weights *w;
    char copy[sizeof text];
    for (size_t n = 0; n < sizeof text - 1; n++) {
        struct err e = {0};
        scratch_put(d, "model.safetensors.index.json", text, n);
        assert_true(weights_open(&w, d->dir, &e) < 0 && e.text[0] != '\0');
    }
    for (size_t bit = 0; bit < 8 * (sizeof text - 1); bit++) {
        struct err e = {0};
        memcpy(copy, text, sizeof text);
        copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
        scratch_put(d, "model.safetensors.index.json", copy, sizeof text - 1);
        if (weights_open(&w, d->dir, &e) == 0)
            weights_close(w);
        else
            assert_true(e.text[0] != '\0');
    }
}

// models--x--y/snapshots/<commit>/*.safetensors are links to ../../blobs/<hash>. No other link out
// of the folder is followed.
static void test_cache_links(void **state) {
    const struct scratch *d = *state;
    struct weights *w;
    struct err e = {0};
    assert_int_equal(mkdir(scratch_path(d, "blobs"), 0777), 0);
    assert_int_equal(mkdir(scratch_path(d, "other"), 0777), 0);
    assert_int_equal(mkdir(scratch_path(d, "snapshots"), 0777), 0);
    assert_int_equal(mkdir(scratch_path(d, "snapshots/abc"), 0777), 0);
    assert_int_equal(mkdir(scratch_path(d, "plain"), 0777), 0);
    put_tensors(d, "blobs/1234", "one");
    put_tensors(d, "other/1234", "one");
    static const char index[] = "{\"weight_map\":{\"one\":\"s.safetensors\"}}";
    scratch_text(d, "snapshots/abc/model.safetensors.index.json", index);
    scratch_text(d, "plain/model.safetensors.index.json", index);
    assert_int_equal(symlink("../../blobs/1234", scratch_path(d, "snapshots/abc/s.safetensors")),
                     0);
    assert_worked(weights_open(&w, scratch_path(d, "snapshots/abc"), &e), &e);
    assert_float_equal(value_of(w, "one"), 1, 0);
    weights_close(w);
    assert_int_equal(unlink(scratch_path(d, "snapshots/abc/s.safetensors")), 0);
    assert_int_equal(symlink("../../other/1234", scratch_path(d, "snapshots/abc/s.safetensors")),
                     0);
    assert_failed(weights_open(&w, scratch_path(d, "snapshots/abc"), &e), &e,
                  "s.safetensors|out of", "other");
    assert_int_equal(symlink("../blobs/1234", scratch_path(d, "plain/s.safetensors")), 0);
    assert_failed(weights_open(&w, scratch_path(d, "plain"), &e), &e, "s.safetensors|out of",
                  "not a snapshot");
    // A link inside the folder is accepted.
    put_tensors(d, "plain/real.safetensors", "one");
    assert_int_equal(unlink(scratch_path(d, "plain/s.safetensors")), 0);
    assert_int_equal(symlink("real.safetensors", scratch_path(d, "plain/s.safetensors")), 0);
    assert_worked(weights_open(&w, scratch_path(d, "plain"), &e), &e);
    weights_close(w);
}

static void test_no_weights(void **state) {
    const struct scratch *d = *state;
    struct weights *w;
    struct err e = {0};
    static const char *const links[] = {"model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < 2; i++) {
        const char *path = scratch_path(d, links[i]);
        assert_int_equal(symlink("../blobs/gone", path), 0);
        assert_failed(weights_open(&w, d->dir, &e), &e,
                      "is a link to '../blobs/gone', which does not exist", "dead link");
        assert_non_null(strstr(e.text, path));
        assert_int_equal(unlink(path), 0);
    }
    assert_failed(weights_open(&w, "/no/such/folder", &e), &e, "/no/such/folder", "no folder");
    assert_failed(weights_open(&w, scratch_text(d, "file", "x"), &e), &e, "file", "not a folder");
    assert_failed(weights_open(&w, d->dir, &e), &e, "model.safetensors", "empty folder");
    static const char *const pickles[] = {"pytorch_model.bin", "a.pt", "a.pkl", "a.ckpt", "a.pth"};
    for (size_t i = 0; i < sizeof pickles / sizeof pickles[0]; i++) {
        const char *path = scratch_text(d, pickles[i], "x");
        assert_int_equal(weights_open(&w, d->dir, &e), ERR_UNSUPPORTED);
        assert_failed(ERR_UNSUPPORTED, &e, pickles[i], "pickle");
        assert_failed(ERR_UNSUPPORTED, &e, "safetensors", "pickle");
        assert_int_equal(unlink(path), 0);
    }
    put_tensors(d, "model-00001-of-00002.safetensors", "one");
    assert_failed(weights_open(&w, d->dir, &e), &e, "model-00001-of-00002|index.json", "no index");
}

// ---- parameters ----

// Writes all parameters of a shape as zeros, with `rename` applied to each name. Where it returns
// NULL the parameter is left out.
typedef const char *rename_fn(const struct model_param *p);

static void put_model(const struct scratch *d, const struct model_shape *s, enum dtype type,
                      rename_fn *rename, const char *extra) {
    struct safetensors_writer *w;
    struct err e = {0};
    struct model_param p;
    static const char zeros[1 << 16];
    assert_worked(safetensors_writer_open(&w, scratch_path(d, "model.safetensors"), &e), &e);
    uint64_t bytes = 0;
    if (extra != NULL) {
        assert_worked(safetensors_writer_declare(w, extra, DTYPE_U8, 1, (int64_t[]){3}, &e), &e);
        assert_worked(safetensors_writer_declare(
                          w, s->family == FAMILY_GPT2 ? "h.0.attn.bias" : "rotary_emb.inv_freq",
                          DTYPE_F32, 4, (int64_t[]){1, 1, 2, 2}, &e),
                      &e);
    }
    for (int64_t i = 0; model_param_at(s, i, &p); i++)
        if (rename(&p) != NULL)
            assert_worked(safetensors_writer_declare(w, rename(&p), type, p.rank, p.dims, &e), &e);
    if (extra != NULL) {
        assert_worked(safetensors_writer_put(w, zeros, 3, &e), &e);
        assert_worked(safetensors_writer_put(w, zeros, 16, &e), &e);
    }
    for (int64_t i = 0; model_param_at(s, i, &p); i++) {
        if (rename(&p) == NULL)
            continue;
        bytes = (uint64_t)(p.dims[0] * (p.rank == 2 ? p.dims[1] : 1)) * dtype_bytes(type);
        for (uint64_t at = 0; at < bytes; at += sizeof zeros)
            assert_worked(safetensors_writer_put(
                              w, zeros, bytes - at < sizeof zeros ? bytes - at : sizeof zeros, &e),
                          &e);
    }
    assert_worked(safetensors_writer_close(w, NULL, NULL, &e), &e);
}

static const char *same_name(const struct model_param *p) {
    return p->name;
}
static const char *bare_name(const struct model_param *p) {
    const char *dot = strchr(p->name, '.');
    return p->role == ROLE_HEAD_W ? p->name : dot + 1;
}
static const char *no_head(const struct model_param *p) {
    return p->role == ROLE_HEAD_W ? NULL : p->name;
}
static const char *embedding_as_head(const struct model_param *p) {
    return p->role == ROLE_WTE ? "lm_head.weight" : p->name;
}

static struct model_shape small(enum model_family family) {
    static const char *const bases[] = {"gpt2-124m", "tiny", "qwen2-0.5b", "qwen3-0.6b", "tiny"};
    struct model_shape s;
    struct err e = {0};
    assert_worked(model_shape_builtin(&s, bases[family], &e), &e);
    s.family = family;
    s.vocab = 17;
    s.bos_id = s.eos_id = -1;
    s.width = 24;
    s.heads = 3;
    s.kv_heads = family == FAMILY_GPT2 ? 3 : 1;
    s.head_dim = 8;
    s.ffn = 10;
    s.layers = 2;
    s.max_positions = 5;
    assert_worked(model_shape_check(&s, &e), &e);
    return s;
}

static void find_all(const struct scratch *d, const struct model_shape *s) {
    struct weights *w;
    struct err e = {0};
    struct model_param p;
    assert_worked(weights_open(&w, d->dir, &e), &e);
    for (int64_t i = 0; model_param_at(s, i, &p); i++) {
        const struct safetensors_entry *t = weights_find_param(w, s, &p, &e);
        if (t == NULL)
            fail_msg("%s: %s", p.name, e.text);
        assert_int_equal(t->elements, p.dims[0] * (p.rank == 2 ? p.dims[1] : 1));
    }
    weights_close(w);
}

static void test_spellings(void **state) {
    for (int f = 0; f < FAMILY_COUNT; f++) {
        struct model_shape s = small((enum model_family)f);
        for (int tied = 0; tied < 2; tied++) {
            s.tied = tied;
            put_model(*state, &s, DTYPE_F32, same_name, NULL);
            find_all(*state, &s);
            // Published GPT-2 files have no prefix, and mask buffers that are not parameters. Base
            // Llama files have no "model.".
            put_model(*state, &s, DTYPE_BF16, bare_name, "h.0.attn.masked_bias");
            find_all(*state, &s);
        }
        // A head in the file of a tied model is ignored. It is used when the model is untied.
        struct model_shape untied = s;
        untied.tied = false;
        put_model(*state, &untied, DTYPE_F16, same_name, NULL);
        find_all(*state, &s);
        find_all(*state, &untied);
        put_model(*state, &s, DTYPE_F32, embedding_as_head, NULL);
        find_all(*state, &s);
    }
}

static void expect_no_param(const struct scratch *d, const struct model_shape *s,
                            enum model_role role, int code, const char *parts) {
    struct weights *w;
    struct err e = {0};
    struct model_param p;
    assert_worked(weights_open(&w, d->dir, &e), &e);
    assert_true(model_param_get(s, role, 1, &p));
    assert_null(weights_find_param(w, s, &p, &e));
    assert_failed(code, &e, parts, p.name);
    assert_null(weights_find_param(w, s, &p, NULL));
    weights_close(w);
}

static void test_wrong_params(void **state) {
    struct model_shape s = small(FAMILY_LLAMA), other;
    s.tied = false;
    put_model(*state, &s, DTYPE_F32, no_head, NULL);
    expect_no_param(*state, &s, ROLE_HEAD_W, ERR_FORMAT, "lm_head.weight|tie_word_embeddings");
    other = s;
    other.ffn = 11;
    expect_no_param(*state, &other, ROLE_UP_W, ERR_MISMATCH,
                    "model.layers.1.mlp.up_proj.weight|[10, 24]|[11, 24]");
    other = s;
    other.vocab = 18;
    expect_no_param(*state, &other, ROLE_WTE, ERR_MISMATCH, "[17, 24]|[18, 24]");
    other = s;
    other.qkv_bias = other.out_bias = true;
    expect_no_param(*state, &other, ROLE_Q_B, ERR_FORMAT,
                    "model.layers.1.self_attn.q_proj.bias|\"layers.1.self_attn.q_proj.bias\"");
    put_model(*state, &s, DTYPE_I32, same_name, NULL);
    expect_no_param(*state, &s, ROLE_Q_W, ERR_UNSUPPORTED, "q_proj|I32|F32, F64, BF16, F16");
}

static void expect_extra(const struct scratch *d, const struct model_shape *s, const char *parts) {
    struct weights *w;
    struct err e = {0};
    assert_worked(weights_open(&w, d->dir, &e), &e);
    int rc = weights_refuse_extra(w, s, NULL, &e);
    if (parts != NULL) {
        assert_int_equal(rc, ERR_MISMATCH);
        assert_failed(rc, &e, parts, "extra");
    } else {
        assert_worked(rc, &e);
    }
    weights_close(w);
}

// Tensors that the configuration does not ask for: harmless ones are accepted, others are named.
static void test_extra(void **state) {
    for (int f = 0; f < FAMILY_COUNT; f++) {
        struct model_shape s = small((enum model_family)f), fewer = s, untied = s;
        const bool gpt2 = f == FAMILY_GPT2;
        s.tied = fewer.tied = true;
        untied.tied = false;
        put_model(*state, &s, DTYPE_BF16, bare_name,
                  gpt2 ? "transformer.h.1.attn.masked_bias"
                       : "model.layers.1.self_attn.rotary_emb.inv_freq");
        expect_extra(*state, &s, NULL);
        put_model(*state, &s, DTYPE_F32, same_name, "score.weight");
        expect_extra(*state, &s, "1 tensor that config.json|\"score.weight\"|allow.extra=true");
        // A configuration with fewer layers than the weights.
        put_model(*state, &s, DTYPE_F32, same_name, NULL);
        expect_extra(*state, &s, NULL);
        fewer.layers = 1;
        expect_extra(*state, &fewer,
                     gpt2 ? "12 tensors|transformer.h.1." : "tensors|.layers.1.|...");
        // A tensor under both of its names.
        put_model(*state, &s, DTYPE_F32, same_name, gpt2 ? "wte.weight" : "norm.weight");
        expect_extra(*state, &s, gpt2 ? "1 tensor|wte.weight" : "1 tensor|norm.weight");
        // The head of a tied model must equal the embedding.
        put_model(*state, &untied, DTYPE_F32, same_name, NULL);
        expect_extra(*state, &untied, NULL);
        expect_extra(*state, &s, NULL);
        const float other = 1;
        int fd = open(scratch_path(*state, "model.safetensors"), O_WRONLY);
        assert_true(fd >= 0 && lseek(fd, -(off_t)sizeof other, SEEK_END) > 0);
        assert_int_equal(write(fd, &other, sizeof other), sizeof other);
        close(fd);
        expect_extra(*state, &untied, NULL);
        expect_extra(*state, &s, "tie_word_embeddings|lm_head.weight|element 407|allow.extra=true");
        put_model(*state, &s, DTYPE_F32, embedding_as_head, NULL);
        expect_extra(*state, &s, NULL);
    }
}

static void test_fixtures(void **state) {
    (void)state;
    static const char *const dirs[] = {HF_FIXTURES "/gpt2-tiny", HF_FIXTURES "/llama-tiny"};
    if (!file_is_dir(HF_FIXTURES)) {
        skip_because("no folder %s", HF_FIXTURES);
    }
    for (size_t i = 0; i < 2; i++) {
        struct weights *w;
        struct model_shape s;
        struct err e = {0};
        assert_worked(model_shape_open(&s, dirs[i], NULL, &e), &e);
        assert_worked(weights_open(&w, dirs[i], &e), &e);
        assert_int_equal(weights_count(w), model_param_count(&s));
        assert_worked(weights_refuse_extra(w, &s, NULL, &e), &e);
        struct model_param p;
        for (int64_t k = 0; model_param_at(&s, k, &p); k++) {
            const struct safetensors_entry *t = weights_find_param(w, &s, &p, &e);
            if (t == NULL)
                fail_msg("%s: %s", p.name, e.text);
            float first[8], wide[8];
            uint16_t narrow[8];
            assert_worked(weights_read(w, t, 1, 8, first, DTYPE_F32, &e), &e);
            assert_worked(weights_read(w, t, 1, 8, narrow, DTYPE_BF16, &e), &e);
            for (int x = 0; x < 8; x++) {
                wide[x] = dtype_bf16_to_f32(narrow[x]);
                assert_float_equal(wide[x], first[x],
                                   0.004 * (first[x] < 0 ? -first[x] : first[x]));
            }
        }
        weights_close(w);
    }
}

// ---- names ----

static void test_names(void **state) {
    (void)state;
    struct names t = {0};
    struct err e = {0};
    uint32_t value;
    bool fresh;
    static char names[5000][16];
    assert_false(names_find(&t, "x", &value));
    for (uint32_t i = 0; i < 5000; i++) {
        snprintf(names[i], sizeof names[i], "name%u", i);
        assert_worked(names_put(&t, names[i], i, &fresh, &e), &e);
        assert_true(fresh);
    }
    assert_worked(names_put(&t, "name7", 9, &fresh, &e), &e);
    assert_false(fresh);
    for (uint32_t i = 0; i < 5000; i++)
        assert_true(names_find(&t, names[i], &value) && value == i);
    assert_false(names_find(&t, "name5000", &value));
    names_free(&t);

    char out[NAMES_QUOTE_BYTES], long_name[400];
    assert_string_equal(names_quote(out, "a\033b\x7f\n"), "\"a?b??\"");
    assert_string_equal(names_quote(out, "\xc2\x9b"
                                         "1m\xc3\xa9"),
                        "\"?1m\xc3\xa9\"");
    for (size_t n = 100; n < 140; n++) { // the cut must not split a character
        memset(long_name, 'x', n);
        for (size_t i = n; i + 3 < sizeof long_name; i += 3)
            memcpy(long_name + i, "\xe2\x82\xac", 4);
        names_quote(out, long_name);
        assert_true(strlen(out) < NAMES_QUOTE_BYTES);
        assert_string_equal(out + strlen(out) - 4, "...\"");
        unsigned char before = (unsigned char)out[strlen(out) - 5];
        assert_true(before == 'x' || before == 0xac);
    }
}

// Names that all fall on one slot of the table are refused after bounded work.
static void test_collisions(void **state) {
    (void)state;
    enum { WANT = 600 };
    static char names[WANT][16];
    struct names t = {0};
    struct err e = {0};
    bool fresh;
    int found = 0, rc = 0;
    for (unsigned i = 0; found < WANT; i++) {
        snprintf(names[found], sizeof names[0], "%u", i);
        found += (hash_u64(names[found], strlen(names[found])) & 2047) == 77;
    }
    for (int i = 0; i < WANT && rc == 0; i++)
        rc = names_put(&t, names[i], 0, &fresh, &e);
    assert_failed(rc, &e, "made to be slow", "collisions");
    names_free(&t);
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(test_shards),           IN_SCRATCH(test_bad_index),
        IN_SCRATCH(test_index_damage),     IN_SCRATCH(test_cache_links),
        IN_SCRATCH(test_no_weights),       IN_SCRATCH(test_spellings),
        IN_SCRATCH(test_wrong_params),     IN_SCRATCH(test_extra),
        cmocka_unit_test(test_fixtures),   cmocka_unit_test(test_names),
        cmocka_unit_test(test_collisions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

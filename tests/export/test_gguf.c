// test_gguf.c - a model as one GGUF file: every type and family, read back and compared with the
// source by a mapping of this test's own; tokenizers of both kinds; what is refused; damage between
// writing and checking.
#include "export_call.h"

#include "export/gguf.h"
#include "knob/pair.h"
#include "model/family.h"
#include "model/load.h"

static void gguf_init(struct export_call *x, const struct scratch *s, const char *from,
                      const char *name, enum gguf_type type) {
    export_free(&x->r);
    export_init(x, s, from, name);
    x->o.gguf = type;
}

static void gguf_go(struct export_call *x) {
    err_clear(&x->e);
    x->rc = export_gguf(&x->o, &x->r, &x->e);
}

static void make(struct export_call *x, const struct scratch *s, const char *from, const char *name,
                 enum gguf_type type) {
    gguf_init(x, s, from, name, type);
    gguf_go(x);
    assert_worked(x->rc, &x->e);
    assert_true(x->r.ok);
    assert_true(figure(x, "not as written") == 0);
    assert_true(figure(x, "than rounding") == 0);
}

static void refused(struct export_call *x, int code, const char *parts) {
    gguf_go(x);
    assert_failed(x->rc, code, &x->e, parts);
    assert_nothing_left(x);
}

static struct gguf *open_gguf(const char *path) {
    struct gguf *g;
    struct err e = {0};
    assert_worked(gguf_open(&g, path, &e), &e);
    return g;
}

// ---------------------------------------------------------------- blocks

static void test_blocks(void **state) {
    (void)state;
    float x[64] = {0}, y[64];
    unsigned char q8[68], q4[36];
    // 127 steps of 0.5 (0x3800 in float16), and a block of zeros.
    for (int i = 0; i < 32; i++)
        x[i] = 0.5f * (float)(i - 16);
    x[31] = -63.5f;
    assert_int_equal(gguf_encode(GGUF_Q8_0, x, 64, q8), -1);
    assert_true(q8[0] == 0x00 && q8[1] == 0x38);
    for (int i = 0; i < 31; i++)
        assert_int_equal((signed char)q8[2 + i], i - 16);
    assert_int_equal((signed char)q8[33], -127);
    for (int i = 34; i < 68; i++)
        assert_int_equal(q8[i], 0);
    gguf_decode(GGUF_Q8_0, q8, 64, y);
    assert_memory_equal(x, y, sizeof x);
    // The largest magnitude is +8: the scale is -1 (0xbc00), so that it becomes the value -8.
    for (int i = 0; i < 32; i++)
        x[i] = (float)(i % 15 - 7);
    x[20] = 8;
    x[3] = -7.75f; // rounds to the step that q4_0 does not have
    assert_int_equal(gguf_encode(GGUF_Q4_0, x, 64, q4), -1);
    assert_true(q4[0] == 0x00 && q4[1] == 0xbc);
    for (int i = 0; i < 16; i++) {
        const int low = i == 3 ? 15 : 8 - (int)x[i], high = 8 - (int)x[i + 16];
        assert_int_equal(q4[2 + i], low | high << 4);
    }
    gguf_decode(GGUF_Q4_0, q4, 64, y);
    assert_true(y[3] == -7 && y[20] == 8);
    x[3] = -7;
    for (int i = 0; i < 64; i++)
        assert_true(x[i] == y[i]);
    // What does not fit is named by its place.
    x[40] = INFINITY;
    assert_int_equal(gguf_encode(GGUF_Q8_0, x, 64, q8), 40);
    assert_int_equal(gguf_encode(GGUF_Q4_0, x, 64, q4), 40);
    assert_int_equal(gguf_encode(GGUF_BF16, x, 64, y), 40);
    x[40] = 1e6f;
    assert_int_equal(gguf_encode(GGUF_F16, x, 64, y), 40);
    assert_int_equal(gguf_encode(GGUF_Q8_0, x, 64, q8), -1);
    x[40] = 1e30f;
    assert_int_equal(gguf_encode(GGUF_Q8_0, x, 64, q8), 32);
}

// Random blocks of all magnitudes are within their error, and one step more is not.
static void test_errors(void **state) {
    (void)state;
    static const enum gguf_type types[] = {GGUF_F32, GGUF_F16, GGUF_BF16, GGUF_Q8_0, GGUF_Q4_0};
    float x[256], y[256];
    unsigned char packed[1024];
    for (int t = 0; t < 5; t++)
        for (int round = 0; round < 200; round++) {
            for (int i = 0; i < 256; i++)
                x[i] = (float)(ldexp(drand48() - 0.5, round % 16 - 6));
            assert_int_equal(gguf_encode(types[t], x, 256, packed), -1);
            gguf_decode(types[t], packed, 256, y);
            assert_int_equal(gguf_count_off(types[t], x, y, 256), 0);
            const int i = round % 256;
            float largest = 0;
            for (int k = i / 32 * 32; k < i / 32 * 32 + 32; k++)
                largest = fmaxf(largest, fabsf(x[k]));
            y[i] += y[i] > x[i] ? largest / 4 : -largest / 4;
            assert_int_equal(gguf_count_off(types[t], x, y, 256), 1);
        }
}

// ---------------------------------------------------------------- families

// Where element i of a parameter lies in the tensor of the file. Written from the other side than
// in gguf_model.c: it says where a row goes, not where it comes from.
static int64_t place_of(const struct model_shape *s, const struct model_param *p, int64_t i) {
    const bool table = p->role == ROLE_WTE || p->role == ROLE_WPE || p->role == ROLE_HEAD_W;
    if (s->family == FAMILY_GPT2 && p->rank == 2 && !table)
        return i % p->dims[1] * p->dims[0] + i / p->dims[1];
    const bool rotated =
        p->role == ROLE_Q_W || p->role == ROLE_K_W || p->role == ROLE_Q_B || p->role == ROLE_K_B;
    if ((s->family != FAMILY_LLAMA && s->family != FAMILY_MISTRAL) || !rotated)
        return i;
    const int64_t width = p->rank == 2 ? p->dims[1] : 1, row = i / width, D = s->head_dim;
    const int64_t inside = row % D, half = D / 2;
    const int64_t to = row - inside + (inside < half ? 2 * inside : 2 * (inside - half) + 1);
    return to * width + i % width;
}

static const char *tensor_name(const struct model_param *p) {
    static const char *const names[ROLE_COUNT] = {
        [ROLE_WTE] = "token_embd.weight",      [ROLE_WPE] = "position_embd.weight",
        [ROLE_NORM1_W] = "attn_norm.weight",   [ROLE_NORM1_B] = "attn_norm.bias",
        [ROLE_QKV_W] = "attn_qkv.weight",      [ROLE_QKV_B] = "attn_qkv.bias",
        [ROLE_Q_W] = "attn_q.weight",          [ROLE_Q_B] = "attn_q.bias",
        [ROLE_K_W] = "attn_k.weight",          [ROLE_K_B] = "attn_k.bias",
        [ROLE_V_W] = "attn_v.weight",          [ROLE_V_B] = "attn_v.bias",
        [ROLE_QNORM_W] = "attn_q_norm.weight", [ROLE_KNORM_W] = "attn_k_norm.weight",
        [ROLE_OUT_W] = "attn_output.weight",   [ROLE_OUT_B] = "attn_output.bias",
        [ROLE_NORM2_W] = "ffn_norm.weight",    [ROLE_NORM2_B] = "ffn_norm.bias",
        [ROLE_GATE_W] = "ffn_gate.weight",     [ROLE_GATE_B] = "ffn_gate.bias",
        [ROLE_UP_W] = "ffn_up.weight",         [ROLE_UP_B] = "ffn_up.bias",
        [ROLE_DOWN_W] = "ffn_down.weight",     [ROLE_DOWN_B] = "ffn_down.bias",
        [ROLE_NORMF_W] = "output_norm.weight", [ROLE_NORMF_B] = "output_norm.bias",
        [ROLE_HEAD_W] = "output.weight"};
    static char name[64];
    if (p->layer >= 0)
        snprintf(name, sizeof name, "blk.%d.%s", p->layer, names[p->role]);
    else
        snprintf(name, sizeof name, "%s", names[p->role]);
    return name;
}

static enum gguf_type expected_type(const struct model_param *p, enum gguf_type wanted,
                                    int64_t row) {
    if (p->rank == 1 || p->role == ROLE_WPE)
        return GGUF_F32;
    return row % gguf_block_elements(wanted) == 0 ? wanted : GGUF_F16;
}

static void compare_param(struct weights *w, struct gguf *g, const struct model_shape *s,
                          const struct model_param *p, enum gguf_type wanted) {
    struct err e = {0};
    const struct safetensors_entry *source = weights_find_param(w, s, p, &e);
    const struct gguf_tensor *t = gguf_tensor_find(g, tensor_name(p));
    if (source == NULL || t == NULL)
        fail_msg("%s (%s) is missing", p->name, tensor_name(p));
    assert_int_equal(t->elements, source->elements);
    assert_int_equal(t->rank, p->rank);
    assert_int_equal(t->type, expected_type(p, wanted, t->dims[0]));
    const size_t bytes = (size_t)t->elements * sizeof(float);
    float *a = malloc(bytes), *moved = malloc(bytes), *b = malloc(bytes);
    assert_true(a != NULL && moved != NULL && b != NULL);
    assert_worked(weights_read(w, source, 0, t->elements, a, DTYPE_F32, &e), &e);
    assert_worked(gguf_read(g, t, 0, t->elements, b, &e), &e);
    for (int64_t i = 0; i < t->elements; i++)
        moved[place_of(s, p, i)] = a[i];
    if (gguf_count_off(t->type, moved, b, t->elements) != 0)
        fail_msg("%s has other values", t->name);
    free(a);
    free(moved);
    free(b);
}

static uint64_t whole_of(struct gguf *g, const char *architecture, const char *name) {
    char key[64];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    const struct gguf_value *v = gguf_value_find(g, key);
    if (v == NULL || v->type != GGUF_U32)
        fail_msg("%s is missing", key);
    return v->whole;
}

static void compare_numbers(struct gguf *g, const struct model_shape *s, const char *a) {
    const struct gguf_value *v = gguf_value_find(g, "general.architecture");
    assert_true(v != NULL && strcmp(v->text, a) == 0);
    assert_int_equal(whole_of(g, a, "vocab_size"), s->vocab);
    // llama.cpp computes full attention, which is a Mistral's up to its window.
    const int64_t context = s->window > 0 ? s->window : s->max_positions;
    assert_int_equal(whole_of(g, a, "context_length"), context);
    assert_int_equal(whole_of(g, a, "embedding_length"), s->width);
    assert_int_equal(whole_of(g, a, "block_count"), s->layers);
    assert_int_equal(whole_of(g, a, "feed_forward_length"), s->ffn);
    assert_int_equal(whole_of(g, a, "attention.head_count"), s->heads);
    assert_int_equal(whole_of(g, a, "attention.head_count_kv"), s->kv_heads);
    char key[64];
    snprintf(key, sizeof key, "%s.attention.layer_norm_%sepsilon", a,
             s->norm == NORM_RMS ? "rms_" : "");
    v = gguf_value_find(g, key);
    assert_true(v != NULL && v->number == (double)s->norm_eps);
    if (s->learned_positions)
        return;
    assert_int_equal(whole_of(g, a, "attention.key_length"), s->head_dim);
    assert_int_equal(whole_of(g, a, "attention.value_length"), s->head_dim);
    assert_int_equal(whole_of(g, a, "rope.dimension_count"), s->head_dim);
    snprintf(key, sizeof key, "%s.rope.freq_base", a);
    v = gguf_value_find(g, key);
    assert_true(v != NULL && v->number == (double)(float)s->rope.theta);
}

// The factors of Llama 3.1 divide the highest frequencies by one and the lowest by `factor`.
static void compare_frequencies(struct gguf *g, const struct model_shape *s) {
    const struct gguf_tensor *t = gguf_tensor_find(g, "rope_freqs.weight");
    float x[512];
    struct err e = {0};
    assert_true((t != NULL) == s->rope.llama3);
    if (t == NULL)
        return;
    assert_true(t->type == GGUF_F32 && t->elements == s->head_dim / 2);
    assert_worked(gguf_read(g, t, 0, t->elements, x, &e), &e);
    assert_true(x[0] == 1);
    assert_true(fabs((double)x[t->elements - 1] - s->rope.factor) < 1e-5 * s->rope.factor);
    for (int64_t i = 1; i < t->elements; i++)
        assert_true(x[i] >= x[i - 1]);
}

static const enum gguf_type all_types[] = {GGUF_F32, GGUF_F16, GGUF_BF16, GGUF_Q8_0, GGUF_Q4_0};

static void compare_model(const char *folder, const char *file, enum gguf_type type) {
    struct model_shape s;
    struct model_param p;
    struct weights *w;
    struct err e = {0};
    int64_t n = 0;
    assert_worked(model_shape_read_config(&s, in(folder, "config.json"), &e), &e);
    assert_worked(weights_open(&w, folder, &e), &e);
    struct gguf *g = open_gguf(file);
    compare_numbers(g, &s, s.family == FAMILY_MISTRAL ? "llama" : family_model_type(s.family));
    for (; model_param_at(&s, n, &p); n++)
        compare_param(w, g, &s, &p, type);
    compare_frequencies(g, &s);
    assert_int_equal(gguf_tensor_count(g), n + s.rope.llama3); // a tied head is not written
    gguf_close(g);
    weights_close(w);
}

static int each_type(void *arg, const char *name) {
    const struct scratch *s = arg;
    struct export_call x = {0};
    char folder[1024], file[64];
    snprintf(folder, sizeof folder, "%s/tests/reference/%s", HAGGLE_SOURCE_DIR, name);
    if (!file_is_dir(folder))
        return 0;
    for (int i = 0; i < 5; i++) {
        snprintf(file, sizeof file, "%.30s-%s", name, gguf_type_name(all_types[i]));
        make(&x, s, folder, file, all_types[i]);
        compare_model(folder, x.out, all_types[i]);
        assert_string_equal(x.r.tokenizer, "none");
        assert_true(i < 3 || strstr(x.r.remarks.lines, "stays f16") != NULL); // odd sizes
    }
    export_free(&x.r);
    return 0;
}

static void test_every_family(void **state) {
    struct err e = {0};
    assert_worked(file_list_dir(HAGGLE_SOURCE_DIR "/tests/reference", each_type, *state, &e), &e);
}

// Rows of whole blocks are quantized, the embedding among them.
static void test_whole_blocks(void **state) {
    const struct scratch *s = *state;
    struct export_call x = {0};
    char folder[400], file[32];
    struct model_shape shape;
    struct err e = {0};
    assert_worked(model_shape_builtin(&shape, "tiny", &e), &e);
    snprintf(folder, sizeof folder, "%s/blocks", s->dir);
    shape.width = 64, shape.layers = 2, shape.heads = 4, shape.kv_heads = 2, shape.head_dim = 16;
    shape.ffn = 96;
    write_model(folder, &shape, POISON_NONE);
    for (int i = 0; i < 5; i++) {
        snprintf(file, sizeof file, "blocks-%d", i);
        make(&x, s, folder, file, all_types[i]);
        compare_model(folder, x.out, all_types[i]);
        assert_null(strstr(x.r.remarks.lines, "stays f16"));
        const double difference = figure(&x, "relative L2");
        assert_true(i == 0 ? difference == 0 : difference > 0 && difference < 0.2);
        struct gguf *g = open_gguf(x.out);
        assert_int_equal(gguf_tensor_find(g, "token_embd.weight")->type, all_types[i]);
        gguf_close(g);
    }
    // A Mistral is a Llama to llama.cpp.
    family_set_switches(&shape, FAMILY_MISTRAL);
    shape.window = 40;
    snprintf(folder, sizeof folder, "%s/mistral", s->dir);
    write_model(folder, &shape, POISON_NONE);
    make(&x, s, folder, "mistral.gguf", GGUF_BF16);
    compare_model(folder, x.out, GGUF_BF16);
    export_free(&x.r);
}

// ---------------------------------------------------------------- tokenizers

struct list { // the first texts of an array, and how many there are
    char text[700][64];
    uint64_t n;
};

static int keep(void *arg, uint64_t i, const char *text, size_t bytes) {
    struct list *l = arg;
    assert_true(bytes < 64 && i == l->n);
    if (i < 700)
        memcpy(l->text[i], text, bytes + 1);
    l->n++;
    return 0;
}

static void texts_of(struct gguf *g, const char *key, struct list *out) {
    const struct gguf_value *v = gguf_value_find(g, key);
    struct err e = {0};
    out->n = 0;
    assert_non_null(v);
    assert_worked(gguf_read_texts(g, v, keep, out, &e), &e);
    assert_int_equal(out->n, v->n);
}

static const char *text_in(struct gguf *g, const char *key) {
    const struct gguf_value *v = gguf_value_find(g, key);
    assert_true(v != NULL && !v->array && v->type == GGUF_STRING);
    return v->text;
}

static int32_t number_in(struct gguf *g, const char *key, uint64_t i) {
    const struct gguf_value *v = gguf_value_find(g, key);
    int32_t x;
    struct err e = {0};
    assert_true(v != NULL && v->array && v->type == GGUF_I32 && i < v->n);
    assert_worked(gguf_read_raw(g, v->at + 4 * i, &x, 4, &e), &e);
    return x;
}

static float score_in(struct gguf *g, uint64_t i) {
    const struct gguf_value *v = gguf_value_find(g, "tokenizer.ggml.scores");
    float x;
    struct err e = {0};
    assert_true(v != NULL && v->array && v->type == GGUF_FLOAT && i < v->n);
    assert_worked(gguf_read_raw(g, v->at + 4 * i, &x, 4, &e), &e);
    return x;
}

// A run on bytes: a byte-level tokenizer without merges, whose texts begin with their end token.
static void test_bytes(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x = {0};
    static struct list l;
    train(&r, s, "bytes", "tiny", NULL);
    make(&x, s, r.dir, "bytes.gguf", GGUF_F16);
    assert_string_equal(x.r.tokenizer, "gpt-2");
    assert_int_equal(x.r.step, 3);
    struct gguf *g = open_gguf(x.out);
    assert_string_equal(text_in(g, "tokenizer.ggml.model"), "gpt2");
    assert_string_equal(text_in(g, "tokenizer.ggml.pre"), "gpt-2");
    texts_of(g, "tokenizer.ggml.merges", &l);
    assert_int_equal(l.n, 0);
    texts_of(g, "tokenizer.ggml.tokens", &l);
    assert_int_equal(l.n, whole_of(g, "llama", "vocab_size"));
    assert_string_equal(l.text['a'], "a");
    assert_string_equal(l.text[' '], "\xc4\xa0"); // U+0120
    assert_string_equal(l.text[256], "<|endoftext|>");
    assert_int_equal(number_in(g, "tokenizer.ggml.token_type", 'a'), 1);
    assert_int_equal(number_in(g, "tokenizer.ggml.token_type", 256), 3);
    assert_int_equal(gguf_value_find(g, "tokenizer.ggml.bos_token_id")->whole, 256);
    assert_int_equal(gguf_value_find(g, "tokenizer.ggml.eos_token_id")->whole, 256);
    assert_int_equal(gguf_value_find(g, "tokenizer.ggml.add_bos_token")->whole, 1);
    gguf_close(g);
    export_free(&x.r);
}

// A folder with 600 ids, a tokenizer.json of this text, and maybe a tokenizer_config.json.
static const char *folder_with(const struct scratch *s, const char *name, const char *tokenizer,
                               const char *config) {
    static char folder[400];
    struct model_shape shape;
    struct err e = {0};
    assert_worked(model_shape_builtin(&shape, "tiny", &e), &e);
    shape.width = 32, shape.layers = 1, shape.heads = 2, shape.kv_heads = 1, shape.head_dim = 16;
    shape.ffn = 32, shape.vocab = 600, shape.bos_id = shape.eos_id = 0;
    snprintf(folder, sizeof folder, "%s/%s", s->dir, name);
    write_model(folder, &shape, POISON_NONE);
    put_text(in(folder, "tokenizer.json"), tokenizer);
    if (config != NULL)
        put_text(in(folder, "tokenizer_config.json"), config);
    return folder;
}

// Each tokenizer of tests/tokenizers becomes the kind that is listed, or is refused for a reason.
static void test_kinds(void **state) {
    const struct scratch *s = *state;
    static const struct {
        const char *name, *kind, *why;
    } cases[] = {
        {"gpt2", "gpt-2", NULL},
        {"llama3", "llama-bpe", NULL},
        {"qwen2", "qwen2", NULL},
        {"starcoder", "smollm", NULL},
        {"tekken", "tekken", NULL},
        {"added", NULL, "normalizer"},
        {"roberta", NULL, "pre_tokenizer"},
        {"split-removed", NULL, "pre_tokenizer"},
        {"unknown", NULL, "not every byte"},
        {"spm-llama2", NULL, "merges"}, // merges that no scores stand for
        {"spm-always", NULL, "Metaspace"},
        {"spm-some-bytes", NULL, "not every byte"},
        {"spm-digits", NULL, "pre_tokenizer"},
        {"spm-ignore", NULL, "ignore_merges"},
    };
    struct export_call x = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[1024], name[64];
        snprintf(path, sizeof path, "%s/tests/tokenizers/%s", HAGGLE_SOURCE_DIR, cases[i].name);
        char *text = text_of(in(path, "tokenizer.json"));
        const char *folder = folder_with(s, cases[i].name, text, NULL);
        free(text);
        snprintf(name, sizeof name, "%s.gguf", cases[i].name);
        gguf_init(&x, s, folder, name, GGUF_F32);
        if (cases[i].kind == NULL) {
            refused(&x, ERR_UNSUPPORTED, cases[i].why);
            continue;
        }
        gguf_go(&x);
        assert_worked(x.rc, &x.e);
        assert_string_equal(x.r.tokenizer, cases[i].kind);
        assert_true((strstr(x.r.remarks.lines, "NFC") != NULL) ==
                    (strcmp(cases[i].name, "qwen2") == 0));
        struct gguf *g = open_gguf(x.out);
        assert_string_equal(text_in(g, "tokenizer.ggml.pre"), cases[i].kind);
        gguf_close(g);
    }
    export_free(&x.r);
}

// The vocabulary of a file of kind SentencePiece: three special tokens, all bytes, then these.
static char *spm_text(const char *const *tokens, const char *merges) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    assert_non_null(f);
    fprintf(f, "{\"version\":\"1.0\",\"added_tokens\":[");
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    for (int i = 0; i < 3; i++)
        fprintf(f,
                "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                "\"rstrip\":false,\"normalized\":false,\"special\":true}",
                i ? "," : "", i, special[i]);
    fprintf(f, "],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
               "\"prepend\":\"\xe2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
               "\"content\":\"\xe2\x96\x81\"}]},\"pre_tokenizer\":null,\"decoder\":null,"
               "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,"
               "\"byte_fallback\":true,\"vocab\":{");
    for (int i = 0; i < 3; i++)
        fprintf(f, "%s\"%s\":%d", i ? "," : "", special[i], i);
    for (int i = 0; i < 256; i++)
        fprintf(f, ",\"<0x%02X>\":%d", i, 3 + i);
    for (int i = 0; tokens[i] != NULL; i++)
        fprintf(f, ",\"%s\":%d", tokens[i], 259 + i);
    fprintf(f, "},\"merges\":[%s]}}", merges);
    assert_int_equal(fclose(f), 0);
    return text;
}

static void test_scores(void **state) {
    const struct scratch *s = *state;
    static const char *const tokens[] = {"a",
                                         "b",
                                         "c",
                                         "\xe2\x96\x81",
                                         "ab",
                                         "abc",
                                         "bc",
                                         "\xe2\x96\x81"
                                         "a",
                                         NULL};
    // "ab c" and "a bc" both make "abc"; a third place between them would be no score.
    static const char good[] = "\"\xe2\x96\x81 a\",\"a b\",\"b c\",\"ab c\",\"a bc\"";
    struct export_call x = {0};
    static struct list l;
    char *text = spm_text(tokens, good);
    const char *folder = folder_with(
        s, "spm", text,
        "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"add_bos_token\":true,"
        "\"chat_template\":\"{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}\"}");
    free(text);
    make(&x, s, folder, "spm.gguf", GGUF_F32);
    assert_string_equal(x.r.tokenizer, "llama");
    assert_true(x.r.chat);
    struct gguf *g = open_gguf(x.out);
    assert_string_equal(text_in(g, "tokenizer.ggml.model"), "llama");
    assert_non_null(strstr(text_in(g, "tokenizer.chat_template"), "m.content"));
    assert_int_equal(gguf_value_find(g, "tokenizer.ggml.add_space_prefix")->whole, 1);
    assert_int_equal(gguf_value_find(g, "tokenizer.ggml.bos_token_id")->whole, 1);
    assert_int_equal(gguf_value_find(g, "tokenizer.ggml.eos_token_id")->whole, 2);
    assert_int_equal(gguf_value_find(g, "tokenizer.ggml.unknown_token_id")->whole, 0);
    texts_of(g, "tokenizer.ggml.tokens", &l);
    assert_int_equal(l.n, 600);
    assert_string_equal(l.text[3 + 10], "<0x0A>");
    assert_string_equal(l.text[264], "abc");
    assert_string_equal(l.text[599], "[PAD599]");
    const struct {
        uint64_t id;
        int32_t kind;
    } kinds[] = {{0, 2}, {1, 3}, {13, 6}, {259, 1}, {264, 1}, {599, 5}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        assert_int_equal(number_in(g, "tokenizer.ggml.token_type", kinds[i].id), kinds[i].kind);
    // In the order of their merges, and before all that no merge makes.
    assert_true(score_in(g, 266) > score_in(g, 263));
    assert_true(score_in(g, 263) > score_in(g, 265));
    assert_true(score_in(g, 265) > score_in(g, 264));
    assert_true(score_in(g, 264) > score_in(g, 259));
    gguf_close(g);
    static const struct {
        const char *merges, *why;
    } bad[] = {
        {"\"\xe2\x96\x81 a\",\"a b\",\"ab c\",\"b c\",\"a bc\"", "\"abc\" do not stand together"},
        {"\"\xe2\x96\x81 a\",\"a b\",\"b c\",\"ab c\"", "\"abc\" are not all"},
    };
    for (size_t i = 0; i < 2; i++) {
        text = spm_text(tokens, bad[i].merges);
        folder = folder_with(s, i ? "spm-2" : "spm-1", text, NULL);
        free(text);
        gguf_init(&x, s, folder, "bad.gguf", GGUF_F32);
        refused(&x, ERR_UNSUPPORTED, bad[i].why);
    }
    export_free(&x.r);
}

// ---------------------------------------------------------------- adapters

// A merged adapter streams into the file as it does into a folder.
static void test_merged(void **state) {
    const struct scratch *s = *state;
    char base[1024];
    struct run r;
    struct export_call folder = {0}, x = {0};
    struct err e = {0};
    snprintf(base, sizeof base, "%s/tests/reference/gpt2-odd", HAGGLE_SOURCE_DIR);
    run_init(&r, s, "lora");
    snprintf(r.knobs.model, sizeof r.knobs.model, "%s", base);
    assert_worked(knobs_set_list(&r.knobs, "steps=2 lora.rank=3 optim.lr=0.02 sched.warmup=1",
                                 s->dir, false, SET_BY_COMMAND_LINE, &e),
                  &e);
    run_go(&r);
    assert_ran(&r);
    gguf_init(&x, s, r.dir, "adapter.gguf", GGUF_F32);
    refused(&x, ERR_USAGE, "adapter|add --merge");
    export_init(&folder, s, r.dir, "merged");
    folder.o.merge = true;
    export_go(&folder);
    assert_worked(folder.rc, &folder.e);
    gguf_init(&x, s, r.dir, "merged.gguf", GGUF_F32);
    x.o.merge = true;
    gguf_go(&x);
    assert_worked(x.rc, &x.e);
    compare_model(folder.out, x.out, GGUF_F32);
    export_free(&folder.r);
    export_free(&x.r);
}

// ---------------------------------------------------------------- what is refused

// The config.json of a reference folder with one text replaced by another, beside its weights.
static const char *changed(const struct scratch *s, const char *name, const char *from,
                           const char *to) {
    static char folder[400];
    char path[1024], command[4000];
    snprintf(folder, sizeof folder, "%s/changed", s->dir);
    snprintf(path, sizeof path, "%s/tests/reference/%s", HAGGLE_SOURCE_DIR, name);
    snprintf(command, sizeof command,
             "rm -rf '%s' && mkdir '%s' && cp '%s'/*.json '%s'/model* '%s'", folder, folder, path,
             path, folder);
    assert_int_equal(system(command), 0);
    char *text = text_of(in(path, "config.json")), *at = strstr(text, from);
    assert_non_null(at);
    char *edited = malloc(strlen(text) + strlen(to) + 1);
    assert_non_null(edited);
    sprintf(edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    put_text(in(folder, "config.json"), edited);
    free(text);
    free(edited);
    return folder;
}

static void test_refusals(void **state) {
    const struct scratch *s = *state;
    struct export_call x = {0};
    struct run r;
    static const struct {
        const char *name, *from, *to, *why;
    } models[] = {
        {"gpt2-odd", "\"gelu_new\"", "\"relu\"", "activation_function"},
        {"gpt2-odd", "\"scale_attn_by_inverse_layer_idx\": false",
         "\"scale_attn_by_inverse_layer_idx\": true", "scale_attn_by_inverse_layer_idx"},
        {"gpt2-odd", "\"scale_attn_weights\": true", "\"scale_attn_weights\": false",
         "scale_attn_weights"},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        gguf_init(&x, s, changed(s, models[i].name, models[i].from, models[i].to), "no.gguf",
                  GGUF_F16);
        refused(&x, ERR_UNSUPPORTED, models[i].why);
    }
    // Options that are for runs, a name that is taken, a folder without a model.
    gguf_init(&x, s, s->nano, "no.gguf", GGUF_F16);
    x.o.merge = true;
    refused(&x, ERR_USAGE, "--merge is for runs");
    gguf_init(&x, s, s->nano, "no.gguf", GGUF_F16);
    x.o.best = true;
    refused(&x, ERR_USAGE, "--best is for runs");
    gguf_init(&x, s, s->nano, "no.gguf", GGUF_F16);
    x.o.source = s->nano;
    refused(&x, ERR_USAGE, "--source is for runs");
    gguf_init(&x, s, in(s->nano, "config.json"), "no.gguf", GGUF_F16);
    refused(&x, ERR_IO, "not a folder");
    train(&r, s, "whole", s->nano, NULL);
    gguf_init(&x, s, r.dir, "no.gguf", GGUF_F16);
    x.o.merge = true;
    refused(&x, ERR_USAGE, "no adapter to merge");
    put_text(in(s->dir, "taken"), "mine");
    gguf_init(&x, s, s->nano, "taken", GGUF_F16);
    gguf_go(&x);
    assert_failed(x.rc, ERR_USAGE, &x.e, "exists");
    char *kept = text_of(in(s->dir, "taken"));
    assert_string_equal(kept, "mine");
    free(kept);
    // Weights that are no numbers, or too large for the type.
    char folder[400];
    snprintf(folder, sizeof folder, "%s/poison", s->dir);
    make_nano(folder, 16, POISON_NAN);
    gguf_init(&x, s, folder, "no.gguf", GGUF_Q8_0);
    refused(&x, ERR_NUMERIC, "nan");
    export_free(&x.r);
}

// ---------------------------------------------------------------- damage

struct damage {
    int64_t at; // from the end if negative
};

static int flip(void *arg, const char *path, struct err *e) {
    const struct damage *d = arg;
    char *text;
    size_t bytes;
    TRY(file_read_all(path, 1 << 26, &text, &bytes, e));
    text[d->at >= 0 ? d->at : (int64_t)bytes + d->at] ^= 0x40;
    const int rc = file_write_atomic(path, text, bytes, e);
    free(text);
    return rc;
}

static void test_damage(void **state) {
    const struct scratch *s = *state;
    struct export_call x = {0};
    // The magic, a key, the data of the last tensor.
    static const struct damage places[] = {{0}, {40}, {-40}};
    static const char *const why[] = {"cannot be read", "bytes of its head", "values differ"};
    for (int i = 0; i < 3; i++) {
        gguf_init(&x, s, s->nano, "damaged.gguf", GGUF_F32);
        x.o.on_written = flip;
        x.o.arg = (void *)(uintptr_t)&places[i];
        refused(&x, ERR_NUMERIC, why[i]);
    }
    export_free(&x.r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),       cmocka_unit_test(test_errors),
        cmocka_unit_test(test_every_family), cmocka_unit_test(test_whole_blocks),
        cmocka_unit_test(test_bytes),        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_scores),       cmocka_unit_test(test_merged),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

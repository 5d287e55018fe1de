// readers.c - see readers.h.
#include "readers.h"

#include "heap.h"
#include "model/scratch.h"

#include "base/hash.h"
#include "export/gguf.h"
#include "knob/knob.h"
#include "model/adapter_file.h"
#include "model/safetensors.h"
#include "model/shape.h"
#include "train/manifest.h"

static int read_safetensors(const char *path, struct err *e) {
    struct safetensors *st;
    char out[256];
    TRY(safetensors_open(&st, path, e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < safetensors_count(st); i++) {
        const struct safetensors_entry *t = safetensors_at(st, i);
        if (t->dtype != DTYPE_COUNT)
            rc = safetensors_read(st, t, 0, t->elements < 32 ? t->elements : 32, out, t->dtype, e);
    }
    safetensors_close(st);
    return rc;
}

static int read_index(const char *dir, struct err *e) {
    struct weights *w;
    TRY(weights_open(&w, dir, e));
    weights_close(w);
    return 0;
}

static int read_config(const char *path, struct err *e) {
    struct model_shape s;
    return model_shape_read_config(&s, path, e);
}

// For a model of four layers of each kind, of 64 features.
static int read_adapter(const char *path, struct err *e) {
    struct model_shape s;
    struct adapter_config c;
    TRY(model_shape_builtin(&s, "llama-8b", e));
    s.vocab = 100, s.width = 64, s.heads = 4, s.kv_heads = 2, s.head_dim = 16, s.ffn = 96;
    s.layers = 4;
    return adapter_config_read(&c, path, &s, e);
}

static int read_manifest(const char *path, struct err *e) {
    struct manifest m;
    int rc = manifest_read(&m, path, e);
    manifest_free(&m);
    return rc;
}

static int read_recipe(const char *path, struct err *e) {
    struct knobs k;
    knobs_init(&k);
    return knobs_load_recipe(&k, path, e);
}

static int count_text(void *arg, uint64_t i, const char *text, size_t bytes) {
    (void)i;
    *(size_t *)arg += bytes > 0 && text[0] != '\0';
    return 0;
}

static int read_gguf(const char *path, struct err *e) {
    struct gguf *g;
    float out[2 * GGUF_BLOCK];
    size_t texts = 0;
    TRY(gguf_open(&g, path, e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < gguf_value_count(g); i++) {
        const struct gguf_value *v = gguf_value_at(g, i);
        if (v->array && v->type == GGUF_STRING)
            rc = gguf_read_texts(g, v, count_text, &texts, e);
    }
    for (size_t i = 0; rc == 0 && i < gguf_tensor_count(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const int64_t block = gguf_block_elements(t->type);
        rc = gguf_read(g, t, t->elements - block, block, out, e);
    }
    gguf_close(g);
    return rc;
}

const struct reader readers[READERS] = {
    [READ_SAFETENSORS] = {"safetensors", "t.safetensors", 0, read_safetensors},
    [READ_INDEX] = {"index", "model.safetensors.index.json", 1, read_index},
    [READ_CONFIG] = {"config", "config.json", 0, read_config},
    [READ_ADAPTER] = {"adapter", "adapter_config.json", 0, read_adapter},
    [READ_MANIFEST] = {"manifest", "manifest.json", 0, read_manifest},
    [READ_RECIPE] = {"recipe", "recipe.yaml", 0, read_recipe},
    [READ_GGUF] = {"gguf", "t.gguf", 0, read_gguf},
};

size_t reader_heap_limit(size_t file_bytes) {
    return (16u << 20) + 4 * file_bytes;
}

int reader_run(const struct reader *r, const char *path, size_t file_bytes, struct err *e) {
    err_clear(e);
    heap_watch();
    int rc = r->read(path, e);
    size_t peak = heap_peak_bytes();
    long blocks = heap_blocks();
    if (peak > reader_heap_limit(file_bytes))
        fail_msg("%s: %zu bytes on the heap for a file of %zu", r->name, peak, file_bytes);
    if (blocks != 0)
        fail_msg("%s: %ld blocks were not given back (%s)", r->name, blocks, e->text);
    if (rc > 0 || (rc != 0 && (e->code != rc || e->text[0] == '\0')))
        fail_msg("%s: refused with code %d (%d) and '%s'", r->name, rc, e->code, e->text);
    for (const char *p = e->text; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            fail_msg("%s: the message has a control character: %s", r->name, e->text);
    return rc;
}

size_t manifest_sample(const char *dir, char *out, size_t room) {
    struct manifest m = {.state = {.step = 120,
                                   .position = 960,
                                   .tokens = 5,
                                   .trained_tokens = 4,
                                   .skipped_steps = 2,
                                   .empty_steps = 1,
                                   .scale = {.value = 1}},
                         .seed = 1,
                         .tool = "haggle",
                         .model = "small \xc3\xa9"};
    struct err e = {0};
    char path[PATH_MAX], *text;
    size_t bytes;
    hash_of("data", 4, m.state.dataset);
    hash_of("math", 4, m.math);
    hash_of("model", 5, m.identity);
    for (int i = 0; i < MANIFEST_FILES; i++) {
        m.files[i].bytes = 10;
        hash_of(&i, sizeof i, m.files[i].hash);
    }
    m.knobs[KNOB_seed] = "1";
    snprintf(path, sizeof path, "%s/sample", dir);
    assert_worked(manifest_write(&m, path, &e), &e);
    assert_worked(file_read_all(path, room - 1, &text, &bytes, &e), &e);
    memcpy(out, text, bytes + 1);
    free(text);
    return bytes;
}

void manifest_fix_hash(char *text, size_t bytes) {
    enum { HASH_AT = sizeof "{\"hash\":\"" - 1, REST_AT = HASH_AT + 32 + 2 };
    char hash[HASH_TEXT_BYTES];
    if (bytes < REST_AT)
        return;
    hash_of(text + REST_AT, bytes - REST_AT, hash);
    memcpy(text + HASH_AT, hash, HASH_TEXT_BYTES - 1);
}

size_t gguf_sample(char *out, size_t room, size_t *head) {
    struct gguf_head h;
    struct err e = {0};
    gguf_head_begin(&h);
    gguf_put_u32(&h, "general.alignment", GGUF_ALIGNMENT);
    gguf_put_float(&h, "f", 0.5f);
    gguf_put_bool(&h, "b", true);
    gguf_put_text(&h, "t", "\xc3\xa9", 2);
    gguf_put_array(&h, "s", GGUF_STRING, 2);
    gguf_put_element_text(&h, "x", 1);
    gguf_put_element_text(&h, "", 0);
    gguf_put_array(&h, "i", GGUF_I32, 2);
    gguf_put_element(&h, (int32_t[]){-1, 7}, 8);
    gguf_put_tensor(&h, "n", GGUF_F32, 1, (int64_t[]){3});
    gguf_put_tensor(&h, "q", GGUF_Q8_0, 2, (int64_t[]){64, 2});
    gguf_put_tensor(&h, "h", GGUF_F16, 2, (int64_t[]){3, 2});
    assert_int_equal(gguf_head_end(&h, &e), 0);
    const size_t bytes = h.n + (size_t)h.data_bytes;
    assert_true(bytes <= room);
    memset(out, 0, bytes);
    memcpy(out, h.data, h.n);
    *head = h.n;
    gguf_head_free(&h);
    return bytes;
}

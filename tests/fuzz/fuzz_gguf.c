// fuzz_gguf.c - export/gguf.h: the tensors of an accepted file lie one behind the other inside it,
// names and keys are found, and values, texts and tensors can be read.
#include "fuzz.h"

#include "export/gguf.h"

static int check_text(void *arg, uint64_t i, const char *text, size_t bytes) {
    FUZZ_CHECK(i == *(uint64_t *)arg);
    FUZZ_CHECK(text[bytes] == '\0');
    ++*(uint64_t *)arg;
    return 0;
}

static void read_value(struct gguf *g, const struct gguf_value *v) {
    uint64_t texts = 0;
    struct err e = {0};
    FUZZ_CHECK(gguf_value_find(g, v->key) == v);
    FUZZ_CHECK(v->array || v->n == 1);
    if (!v->array)
        return;
    const int rc = gguf_read_texts(g, v, check_text, &texts, &e);
    FUZZ_CHECK_RESULT(rc, &e);
    FUZZ_CHECK((rc == ERR_USAGE) == (v->type != GGUF_STRING));
    FUZZ_CHECK(rc != 0 || texts == v->n);
}

static void read_tensor(struct gguf *g, const struct gguf_tensor *t) {
    float out[GGUF_BLOCK];
    struct err e = {0};
    const int64_t block = gguf_block_elements(t->type);
    FUZZ_CHECK(gguf_tensor_find(g, t->name) == t);
    FUZZ_CHECK(t->elements >= block && t->elements % block == 0);
    FUZZ_CHECK(gguf_read(g, t, 0, block, out, &e) == 0);
    FUZZ_CHECK(gguf_read(g, t, t->elements - block, block, out, &e) == 0);
    FUZZ_CHECK(gguf_read(g, t, t->elements, block, out, &e) == ERR_USAGE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct fuzz_file file;
    struct gguf *g;
    struct err e = {0};
    const int rc = gguf_open(&g, fuzz_file_set(&file, data, bytes), &e);
    FUZZ_CHECK_RESULT(rc, &e);
    FUZZ_CHECK((rc == 0) == (g != NULL));
    if (rc != 0)
        return 0;
    uint64_t at = 0;
    for (size_t i = 0; i < gguf_value_count(g); i++)
        read_value(g, gguf_value_at(g, i));
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        FUZZ_CHECK(t->begin >= at);
        at = t->begin + t->bytes;
        FUZZ_CHECK(gguf_data_start(g) + at <= bytes);
        if (i < 16)
            read_tensor(g, t);
    }
    gguf_close(g);
    return 0;
}

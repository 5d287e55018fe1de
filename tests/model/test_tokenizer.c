// test_tokenizer.c - real vocabularies: the same ids as the reference, round trips, any bytes.
#include "model/scratch.h"

#include "base/json.h"
#include "base/rng.h"
#include "model/tokenizer.h"
#include "skips.h"

#define TOKENIZERS     HAGGLE_SOURCE_DIR "/../shared/fixtures/tokenizers"
#define OWN_TOKENIZERS HAGGLE_SOURCE_DIR "/tests/tokenizers"
#define STORIES        HAGGLE_SOURCE_DIR "/../shared/fixtures/lm"

struct both {
    struct tokenizer *t;
    struct tokenizer_encoder *c;
};

static struct both open_both(const char *path) {
    struct both b = {0};
    struct err e = {0};
    if (tokenizer_open(&b.t, path, &e) != 0 || tokenizer_encoder_open(&b.c, b.t, &e) != 0)
        fail_msg("%s", e.text);
    return b;
}

static void close_both(struct both *b) {
    tokenizer_encoder_close(b->c);
    tokenizer_close(b->t);
}

static void check_round_trip(struct both *b, const char *text, size_t n) {
    struct token_list l = {0};
    struct err e = {0};
    char *back = NULL;
    size_t bytes = 0, capacity = 0;
    if (tokenizer_encode(b->c, text, n, TOKENIZER_SPECIAL, &l, &e) != 0 ||
        tokenizer_decode(b->t, l.ids, l.n, TOKENIZER_SPECIAL, &back, &bytes, &capacity, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(bytes, n);
    if (n > 0)
        assert_memory_equal(back, text, n);
    free(back);
    token_list_free(&l);
}

struct test_case {
    const char *text, *decoded; // NULL: not given
    size_t bytes, decoded_bytes;
    int32_t *ids;
    size_t n;
    bool reversible, plain, skip;
};

// Reads {"text": ..., "ids": [...]}. "reversible" is false where the reference loses something.
// "plain" is true where special tokens must not be recognized. "decoded" is the text of the ids,
// with "skip" the one without special tokens.
static void read_case(struct test_case *k, const char *name, const char *line, size_t n,
                      struct region *region) {
    struct json_reader r;
    struct err e = {0};
    const char *key;
    size_t capacity = 0;
    json_reader_init(&r, name, line, n, region, &e);
    json_enter_object(&r);
    *k = (struct test_case){.reversible = true};
    while (json_next_key(&r, &key)) {
        if (strcmp(key, "text") == 0)
            json_read_string(&r, &k->text, &k->bytes);
        else if (strcmp(key, "skip") == 0)
            json_read_bool(&r, &k->skip);
        else if (strcmp(key, "decoded") == 0)
            json_read_string(&r, &k->decoded, &k->decoded_bytes);
        else if (strcmp(key, "reversible") == 0)
            json_read_bool(&r, &k->reversible);
        else if (strcmp(key, "plain") == 0)
            json_read_bool(&r, &k->plain);
        else if (strcmp(key, "ids") == 0) {
            json_enter_array(&r);
            while (json_next_element(&r)) {
                int64_t id;
                json_read_i64(&r, &id);
                k->ids = region_grow(region, k->ids, k->n, &capacity, sizeof *k->ids);
                k->ids[k->n++] = (int32_t)id;
            }
        } else
            json_skip(&r);
    }
    if (json_finish(&r) != 0)
        fail_msg("%s", e.text);
}

static void check_decoded(struct both *b, const char *name, int line, const struct test_case *k) {
    struct err e = {0};
    char *back = NULL;
    size_t bytes = 0, capacity = 0;
    if (tokenizer_decode(b->t, k->ids, k->n, k->skip ? 0 : TOKENIZER_SPECIAL, &back, &bytes,
                         &capacity, &e) != 0)
        fail_msg("%s:%d: %s", name, line, e.text);
    if (bytes != k->decoded_bytes || (bytes > 0 && memcmp(back, k->decoded, bytes) != 0))
        fail_msg("%s:%d: decoded '%.*s', expected '%s'", name, line, (int)bytes, back, k->decoded);
    free(back);
}

static void check_case(struct both *b, const char *name, int line, const struct test_case *k) {
    struct token_list l = {0};
    struct err e = {0};
    if (k->decoded)
        check_decoded(b, name, line, k);
    if (!k->text)
        return;
    if (tokenizer_encode(b->c, k->text, k->bytes, k->plain ? 0 : TOKENIZER_SPECIAL, &l, &e) != 0)
        fail_msg("%s:%d: %s", name, line, e.text);
    for (size_t i = 0; i < l.n && i < k->n; i++)
        if (l.ids[i] != k->ids[i])
            fail_msg("%s:%d: token %zu is %d, expected %d, of '%.200s'", name, line, i, l.ids[i],
                     k->ids[i], k->text);
    if (l.n != k->n)
        fail_msg("%s:%d: %zu tokens, expected %zu, of '%.200s'", name, line, l.n, k->n, k->text);
    token_list_free(&l);
    if (k->reversible && !k->plain && !k->decoded)
        check_round_trip(b, k->text, k->bytes);
}

static int check_folder(const char *folder) {
    char path[1200];
    struct err e = {0};
    char *cases;
    size_t n;
    int count = 0;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    struct both b = open_both(path);
    snprintf(path, sizeof path, "%s/cases.jsonl", folder);
    if (file_read_all(path, 64 << 20, &cases, &n, &e) != 0)
        fail_msg("%s", e.text);
    for (char *at = cases; at < cases + n;) {
        char *end = memchr(at, '\n', (size_t)(cases + n - at));
        end = end ? end : cases + n;
        struct region region = {0};
        struct test_case k;
        read_case(&k, path, at, (size_t)(end - at), &region);
        check_case(&b, path, ++count, &k);
        region_free(&region);
        at = end + 1;
    }
    free(cases);
    close_both(&b);
    return count;
}

struct folders {
    const char *root;
    int folders, cases;
};

static int check_one(void *arg, const char *name) {
    struct folders *f = arg;
    char path[1024];
    snprintf(path, sizeof path, "%s/%.200s", f->root, name);
    if (file_is_dir(path)) {
        f->folders++;
        f->cases += check_folder(path);
    }
    return 0;
}

static void check_root(const char *root, int least) {
    struct folders f = {root, 0, 0};
    struct err e = {0};
    if (!file_is_dir(root)) {
        skip_because("no folder %s", root);
    }
    if (file_list_dir(root, check_one, &f, &e) != 0)
        fail_msg("%s", e.text);
    print_message("%s: %d tokenizers, %d cases\n", root, f.folders, f.cases);
    assert_true(f.cases >= least);
}

static void test_published(void **state) {
    (void)state;
    check_root(TOKENIZERS, 92);
}

static void test_own(void **state) {
    (void)state;
    check_root(OWN_TOKENIZERS, 1);
}

// One vocabulary of the SentencePiece kind in two spellings, as Llama 2 has it and byte-level. Both
// give the same ids of any text.
static void test_two_spellings(void **state) {
    static const char *const texts[] = {"tinystories_val.jsonl", "tinyshakespeare.txt",
                                        "gsm8k_test.jsonl"};
    struct err e = {0};
    struct token_list a = {0}, b = {0};
    int lines = 0;
    (void)state;
    if (!file_is_dir(STORIES))
        skip_because("no folder %s", STORIES);
    struct both spm = open_both(STORIES "/stories260K/tokenizer.spm.json"),
                bpe = open_both(STORIES "/stories260K/tokenizer.json");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char path[1024], *text;
        size_t bytes;
        snprintf(path, sizeof path, "%s/text/%s", STORIES, texts[i]);
        if (file_read_all(path, 64 << 20, &text, &bytes, &e) != 0)
            fail_msg("%s", e.text);
        for (char *at = text, *end; at < text + bytes; at = end + 1) {
            end = memchr(at, '\n', (size_t)(text + bytes - at));
            end = end ? end : text + bytes;
            const size_t n = (size_t)(end - at);
            a.n = b.n = 0;
            if (tokenizer_encode(spm.c, at, n, 0, &a, &e) != 0 ||
                tokenizer_encode(bpe.c, at, n, 0, &b, &e) != 0)
                fail_msg("%s", e.text);
            if (a.n != b.n || (a.n > 0 && memcmp(a.ids, b.ids, a.n * sizeof *a.ids) != 0))
                fail_msg("other ids of '%.*s'", (int)n, at);
            check_round_trip(&spm, at, n);
            lines++;
        }
        free(text);
    }
    assert_true(lines > 10000);
    token_list_free(&a);
    token_list_free(&b);
    close_both(&spm);
    close_both(&bpe);
}

static void test_any_bytes(void **state) {
    (void)state;
    static const char *const names[] = {"gpt2", "llama3"};
    uint64_t at = 0;
    char text[600], path[1024];
    for (int k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "%s/%s/tokenizer.json", TOKENIZERS, names[k]);
        if (!file_exists(path))
            skip_because("no file %s", path);
        struct both b = open_both(path);
        for (int round = 0; round < 300; round++) {
            size_t n = rng_below(7, 0, at++, sizeof text);
            for (size_t i = 0; i < n; i++) // alternately all bytes, and only high bytes
                text[i] = (char)(rng_below(7, 1, at++, 256) | (round % 2 ? 0x80 : 0));
            check_round_trip(&b, text, n);
        }
        close_both(&b);
    }
}

static void test_special(void **state) {
    (void)state;
    struct err e = {0};
    struct token_list l = {0};
    char *out = NULL;
    size_t bytes = 0, capacity = 0;
    static const char text[] = "a<|endoftext|>b";
    if (!file_exists(TOKENIZERS "/gpt2/tokenizer.json"))
        skip_because("no folder %s", TOKENIZERS);
    struct both b = open_both(TOKENIZERS "/gpt2/tokenizer.json");
    assert_int_equal(tokenizer_size(b.t), 50257);
    assert_int_equal(tokenizer_find(b.t, "<|endoftext|>"), 50256);
    assert_int_equal(tokenizer_find(b.t, "\xC4\xA0the"), 262);
    assert_int_equal(tokenizer_find(b.t, "no such token"), -1);
    assert_true(tokenizer_is_special(b.t, 50256));
    assert_false(tokenizer_is_special(b.t, 0));
    assert_false(tokenizer_is_special(b.t, 50257));
    assert_string_equal(tokenizer_describe(b.t), "BPE, 50257 tokens, 1 added");
    assert_int_equal(strlen(tokenizer_fingerprint(b.t)), 32);
    assert_int_equal(tokenizer_encode(b.c, text, sizeof text - 1, TOKENIZER_SPECIAL, &l, &e), 0);
    assert_int_equal(l.n, 3);
    assert_int_equal(l.ids[1], 50256);
    assert_int_equal(tokenizer_decode(b.t, l.ids, l.n, 0, &out, &bytes, &capacity, &e), 0);
    assert_int_equal(bytes, 2);
    assert_memory_equal(out, "ab", 2);
    l.n = 0;
    assert_int_equal(tokenizer_encode(b.c, text, sizeof text - 1, 0, &l, &e), 0);
    for (size_t i = 0; i < l.n; i++)
        assert_int_not_equal(l.ids[i], 50256);
    int32_t wrong[] = {262, 50257};
    assert_int_equal(tokenizer_decode(b.t, wrong, 2, 0, &out, &bytes, &capacity, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "50257"));
    assert_int_equal(bytes, 2);
    free(out);
    token_list_free(&l);
    close_both(&b);
}

static void test_bytes(void **state) {
    (void)state;
    struct both b = {0};
    struct err e = {0};
    struct token_list l = {0};
    char all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    assert_int_equal(tokenizer_open_bytes(&b.t, &e), 0);
    assert_int_equal(tokenizer_encoder_open(&b.c, b.t, &e), 0);
    assert_int_equal(tokenizer_size(b.t), 257);
    assert_int_equal(tokenizer_find(b.t, "<|endoftext|>"), 256);
    assert_true(tokenizer_is_special(b.t, 256));
    assert_int_equal(tokenizer_encode(b.c, all, 256, TOKENIZER_SPECIAL, &l, &e), 0);
    assert_int_equal(l.n, 256);
    for (int i = 0; i < 256; i++)
        assert_int_equal(l.ids[i], i);
    check_round_trip(&b, all, 256);
    check_round_trip(&b, "a<|endoftext|>", 14);
    l.n = 0;
    assert_int_equal(tokenizer_encode(b.c, "a<|endoftext|>", 14, TOKENIZER_SPECIAL, &l, &e), 0);
    assert_int_equal(l.n, 2);
    assert_int_equal(l.ids[1], 256);
    l.n = 0;
    assert_int_equal(tokenizer_encode(b.c, "a<|endoftext|>", 14, 0, &l, &e), 0);
    assert_int_equal(l.n, 14);
    token_list_free(&l);
    close_both(&b);
}

// A megabyte without a break. Time that grows with the square of the length would not end.
static void test_long(void **state) {
    (void)state;
    static const char *const parts[] = {"The model reads  the text.\n\n", "a",
                                        "\xE4\xBD\xA0\xF0\x9F\x98\x80"};
    enum { BYTES = 1 << 20 };
    struct both b = open_both(OWN_TOKENIZERS "/spm-llama2/tokenizer.json");
    char *text = malloc(BYTES + 64);
    assert_non_null(text);
    for (int k = 0; k < 3; k++) {
        size_t n = 0;
        for (size_t part = strlen(parts[k]); n < BYTES; n += part)
            memcpy(text + n, parts[k], part);
        check_round_trip(&b, text, n);
    }
    free(text);
    close_both(&b);
}

// Parts of a text, each as what continues the part before, are the whole.
static void test_continues(void **state) {
    (void)state;
    static const char *const kinds[] = {"spm-llama2", "spm-first", "spm-always", "roberta"};
    static const char *const parts[] = {"Hello", " world", " and", " the text"};
    for (int k = 0; k < 4; k++) {
        char path[1024], *back = NULL;
        struct token_list all = {0}, pieces = {0};
        struct err e = {0};
        size_t bytes = 0, capacity = 0;
        snprintf(path, sizeof path, "%s/%s/tokenizer.json", OWN_TOKENIZERS, kinds[k]);
        struct both b = open_both(path);
        assert_int_equal(tokenizer_encode(b.c, "Hello world and the text", 24, 0, &all, &e), 0);
        for (int i = 0; i < 4; i++) {
            const unsigned flags = i ? TOKENIZER_CONTINUES : 0;
            size_t from = pieces.n;
            assert_int_equal(tokenizer_encode(b.c, parts[i], strlen(parts[i]), flags, &pieces, &e),
                             0);
            assert_int_equal(tokenizer_decode(b.t, pieces.ids + from, pieces.n - from, flags, &back,
                                              &bytes, &capacity, &e),
                             0);
        }
        assert_int_equal(pieces.n, all.n);
        assert_memory_equal(pieces.ids, all.ids, all.n * sizeof *all.ids);
        const size_t space = k == 3; // a byte-level file keeps the space that it puts in front
        assert_int_equal(bytes, 24 + space);
        assert_memory_equal(back + space, "Hello world and the text", 24);
        free(back);
        token_list_free(&all);
        token_list_free(&pieces);
        close_both(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),     cmocka_unit_test(test_own),
        cmocka_unit_test(test_two_spellings), cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_special),       cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_long),          cmocka_unit_test(test_continues),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

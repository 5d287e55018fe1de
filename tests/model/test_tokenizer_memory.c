// test_tokenizer_memory.c - makes each allocation of opening, encoding and decoding fail once. Each
// time there must be an error, no crash and no leak. The test replaces malloc to count allocations.
// Sanitizers replace malloc too, so the test is skipped with them.
#include "model/tokenizer_file.h"
#include "skips.h"

#if defined(__SANITIZE_ADDRESS__)
#define COUNTED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define COUNTED 0
#else
#define COUNTED 1
#endif
#else
#define COUNTED 1
#endif

#if COUNTED
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

static long calls, fail_at, live; // fail_at 0: no call fails
static bool counting;

static bool fails(void) {
    return counting && ++calls == fail_at;
}

void *malloc(size_t n) {
    void *p = fails() ? NULL : __libc_malloc(n);
    live += counting && p;
    return p;
}
void *calloc(size_t n, size_t size) {
    void *p = fails() ? NULL : __libc_calloc(n, size);
    live += counting && p;
    return p;
}
void *realloc(void *old, size_t n) {
    if (fails())
        return NULL;
    void *p = __libc_realloc(old, n);
    live += counting && p && !old;
    return p;
}
void *aligned_alloc(size_t align, size_t n) {
    void *p = fails() ? NULL : __libc_memalign(align, n);
    live += counting && p;
    return p;
}
void free(void *p) {
    live -= counting && p;
    __libc_free(p);
}

static int work(const char *path, struct err *e) {
    struct tokenizer *t = NULL;
    struct tokenizer_encoder *c = NULL;
    struct token_list l = {0};
    char *text = NULL;
    size_t bytes = 0, capacity = 0;
    static const char long_text[] = "xyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxy e\xCC\x81 A12<t>";
    int rc = tokenizer_open(&t, path, e);
    if (rc == 0)
        rc = tokenizer_encoder_open(&c, t, e);
    if (rc == 0)
        rc = tokenizer_encode(c, long_text, sizeof long_text - 1, TOKENIZER_SPECIAL, &l, e);
    if (rc == 0)
        rc = tokenizer_decode(t, l.ids, l.n, 0, &text, &bytes, &capacity, e);
    free(text);
    token_list_free(&l);
    tokenizer_encoder_close(c);
    tokenizer_close(t);
    return rc;
}

static void fail_each(const char *path) {
    long n = 0;
    do { // until there are fewer than n allocations
        struct err e = {0};
        calls = live = 0;
        fail_at = ++n;
        counting = true;
        int rc = work(path, &e);
        counting = false;
        if (live != 0)
            fail_msg("%ld blocks are left when allocation %ld fails", live, n);
        if (calls >= n && (rc != ERR_MEMORY || e.code != rc || !e.text[0]))
            fail_msg("allocation %ld fails: code %d, '%s'", n, rc, e.text);
        if (calls < n)
            assert_int_equal(rc, 0);
        assert_true(n < 5000);
    } while (calls >= n);
    print_message("%ld allocations failed one by one\n", n - 1);
    assert_true(n > 20);
}

static void test_each_allocation(void **state) {
    struct scratch *s = *state;
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizer.json", s->dir);
    write_tokenizer(
        path, &(struct file_parts){
                  "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
                  "{\"Regex\": \"(?i:a)|(?=12)|[xq]*z\"}, \"behavior\": \"Isolated\"}, {\"type\": "
                  "\"ByteLevel\", \"use_regex\": false}]}",
                  "{\"type\": \"NFC\"}", NULL, "xyz"});
    fail_each(path);
}

static void test_each_allocation_of_chars(void **state) {
    (void)state;
    fail_each(HAGGLE_SOURCE_DIR "/tests/tokenizers/spm-added/tokenizer.json");
}
#else
static void test_each_allocation(void **state) {
    (void)state;
    skip_because("a sanitizer replaces malloc");
}
static void test_each_allocation_of_chars(void **state) {
    (void)state;
    skip();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_each_allocation, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_each_allocation_of_chars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_hostile_data.c - makes every allocation of the readers of data fail once. Each time there
// must be an error that names memory, no crash and no leak. Without a failure the work must
// succeed.
#include "heap.h"

#include "data/test_render_fixture.h"

#include "data/lines.h"
#include "data/shard.h"
#include "data/template.h"

#include <unistd.h>

struct work {
    struct folder *folder;
    const char *path;
    struct tokenizer *tokenizer;
    char *source; // the text of a template
    size_t bytes;
    const char *shown; // the expected result of rendering
    bool benign;       // some failures do no harm; the job checks its result itself
};
typedef int job_fn(const struct work *w, struct err *e);

static void fail_each(job_fn *job, const struct work *w, size_t at_least) {
    size_t benign = 0;
    for (size_t n = 1;; n++) {
        struct err e = {0};
        heap_watch();
        heap_fail(n, false);
        int rc = job(w, &e);
        bool failed = heap_failed();
        heap_fail(0, false);
        if (heap_blocks() != 0)
            fail_msg("%ld blocks are left when allocation %zu fails", heap_blocks(), n);
        if (!failed) {
            if (rc != 0)
                fail_msg("%s", e.text);
            print_message("%zu allocations failed one by one, %zu without harm\n", n - 1, benign);
            assert_true(n > at_least);
            return;
        }
        benign += w->benign && rc == 0;
        if (w->benign && rc == 0)
            continue;
        if (rc != ERR_MEMORY || e.code != rc || strstr(e.text, "memory") == NULL)
            fail_msg("allocation %zu fails: code %d, '%s'", n, rc, e.text);
    }
}

// ---------------------------------------------------------------- lines

static int read_lines(const struct work *w, struct err *e) {
    struct lines *l;
    const char *text = "";
    size_t bytes;
    uint64_t number = 0;
    int rc = lines_open(&l, w->path, e);
    while (rc == 0 && text != NULL)
        rc = lines_next(l, &text, &bytes, &number, e);
    if (rc == 0)
        assert_int_equal(number, 2);
    lines_close(l);
    return rc;
}

static void test_lines(void **state) {
    enum { BYTES = 5 << 20 }; // more than twice the window
    struct work w = {.folder = *state};
    char *text = malloc(BYTES);
    assert_non_null(text);
    memset(text, 'x', BYTES);
    text[0] = '\n';
    w.path = folder_file(w.folder, "f", text, BYTES);
    free(text);
    fail_each(read_lines, &w, 4);
}

// ---------------------------------------------------------------- templates

static int run_template(const struct work *w, struct err *e) {
    struct template *t;
    struct region region = {0};
    struct value_heap h = {.region = &region, .limit_bytes = 64 << 20, .steps = 10000000, .e = e};
    struct template_output out;
    int rc = template_open(&t, "test", w->source, w->bytes, e);
    if (rc == 0)
        rc = template_render(t, NULL, 0, &h, &out);
    if (rc == 0)
        assert_int_equal(out.text->n, 4000 * 4 + 3000 * 2 + 20000 + 2 * 2000);
    template_close(t);
    region_free(&region);
    return rc;
}

// Texts, names, strings and lists, each large enough to need a separate allocation.
static void test_template(void **state) {
    struct work w = {.folder = *state, .source = malloc(1 << 18)};
    assert_non_null(w.source);
    char *at = w.source;
    for (int i = 0; i < 4000; i++)
        at += sprintf(at, "{{ 1 }}%s", "abc");
    at += sprintf(at, "{{ '");
    for (int i = 0; i < 3000; i++)
        at += sprintf(at, "\\n\\t");
    at += sprintf(at, "' }}{%% set l = ['x'");
    for (int i = 1; i < 2000; i++)
        at += sprintf(at, ", 'x'");
    at += sprintf(at, "] %%}{{ 'ab' * 10000 }}{{ l|join('') ~ l|map('upper')|join }}");
    w.bytes = (size_t)(at - w.source);
    fail_each(run_template, &w, 20);
    free(w.source);
}

// ---------------------------------------------------------------- rendering

// Has more tokens than the initial capacity of a list.
#define ANSWER "0123456789012345678901234567890123456789012345678901234567890123456789"

static int render(const struct work *w, struct err *e) {
    static const char line[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":"
        "\"" ANSWER "\"}]}";
    struct render_options o = {
        .tokenizer = w->tokenizer, .model_dir = w->folder->path, .chat_template = "chatml"};
    struct renderer *r = NULL;
    struct render_context *c = NULL;
    struct rendered out = {0};
    int rc = renderer_open(&r, &o, e);
    if (rc == 0)
        rc = render_context_open(&c, r, e);
    if (rc == 0)
        rc = render_line(c, RENDER_MESSAGES, "f", 1, line, strlen(line), &out, e);
    char shown[1024] = "", *at = shown;
    for (size_t i = 0; rc == 0 && i < out.tokens.n; i++)
        at += sprintf(at, "%d%c", (int)out.tokens.ids[i], out.trained[i] ? '+' : ' ');
    if (rc == 0)
        assert_string_equal(shown, w->shown);
    rendered_free(&out);
    render_context_close(c);
    renderer_close(r);
    return rc;
}

static void test_render(void **state) {
    struct work w = {.folder = *state};
    struct err e;
    folder_file(w.folder, "special_tokens_map.json", "{\"eos_token\":\"<|endoftext|>\"}", 29);
    if (tokenizer_open(&w.tokenizer, write_tokenizer(w.folder, true, "null"), &e) != 0)
        fail_msg("%s", e.text);
    char shown[1024], *at = shown;
    at += sprintf(at, "257 "); // <|im_start|>; each byte is one token
    for (const char *p = "user\nHi"; *p != '\0'; p++)
        at += sprintf(at, "%d ", *p);
    at += sprintf(at, "258 257 ");
    for (const char *p = "assistant\n"; *p != '\0'; p++)
        at += sprintf(at, "%d ", *p);
    for (const char *p = ANSWER; *p != '\0'; p++)
        at += sprintf(at, "%d+", *p);
    sprintf(at, "258+");
    w.shown = shown;
    w.benign = true; // whether a template is a known one only affects a message
    fail_each(render, &w, 20);
    tokenizer_close(w.tokenizer);
}

// ---------------------------------------------------------------- shards

static int write_shard(const struct work *w, struct err *e) {
    enum { N = 5000 };
    static int32_t ids[N];
    const struct shard_header_info info = {
        .key = "0123456789abcdef0123456789abcdef", .shape = RENDER_TEXT, .vocab = 10};
    struct shard_writer *writer;
    struct shard s = {.fd = -1};
    int rc = shard_writer_open(&writer, w->path, e);
    for (int i = 0; i < 100 && rc == 0; i++) { // one batch fills the buffer of flags twice
        rc = shard_writer_put(writer, ids, NULL, N, w->path != NULL, e);
        for (int k = 0; k < 20 && rc == 0; k++) {
            rc = shard_writer_put(writer, ids, NULL, 1, w->path != NULL, e);
            if (rc == 0)
                rc = shard_writer_end_document(writer, true, e);
        }
    }
    if (rc != 0)
        shard_writer_abort(writer);
    else
        rc = shard_writer_end(writer, &info, &s, e);
    if (rc == 0)
        assert_int_equal(s.counts.tokens, 100 * (N + 20));
    shard_close(&s);
    if (w->path != NULL)
        unlink(w->path);
    if (w->path != NULL && rmdir(w->folder->path) != 0) // no file may be left, also after an error
        fail_msg("something is left after %s", rc != 0 ? e->text : "success");
    if (w->path != NULL)
        assert_int_equal(file_make_dirs(w->folder->path, NULL), 0);
    return rc;
}

static void test_shards(void **state) {
    struct work w = {.folder = *state};
    fail_each(write_shard, &w, 5);
    w.path = folder_path(w.folder, "x.shard");
    fail_each(write_shard, &w, 4);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {TEST(test_lines), TEST(test_template), TEST(test_render),
                                       TEST(test_shards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// fuzz_jsonl.c - JSONL and chat templates: lines of every shape, rendered or refused.
//
// The first byte chooses a template by name. With 't', the text before the first NUL byte is the
// template instead. The rest is a JSONL file, which is read line by line. The result obeys
// render.h: ids are tokens, the first is not a target, counts agree, and the text of a record
// cannot forge a special token. With the built-in tokenizer, the only special token comes from a
// template's eos_token or from the renderer.
#include "fuzz.h"

#include "data/lines.h"
#include "data/render.h"

static void check(const struct rendered *d, const struct tokenizer *t) {
    size_t trained = 0;
    for (size_t i = 0; i < d->tokens.n; i++) {
        FUZZ_CHECK(d->tokens.ids[i] >= 0 && d->tokens.ids[i] < tokenizer_size(t));
        FUZZ_CHECK(d->trained[i] <= 1);
        trained += d->trained[i];
    }
    FUZZ_CHECK(trained == d->trained_tokens);
    FUZZ_CHECK(d->tokens.n == 0 || d->trained[0] == 0);
    FUZZ_CHECK(!d->end_trained || trained > 0);
}

static void walk(struct render_context *c, const struct tokenizer *t, const char *path) {
    static struct rendered out;
    struct lines *l;
    struct err e = {0};
    const char *text;
    size_t bytes;
    uint64_t number;
    int rc = lines_open(&l, path, &e);
    FUZZ_CHECK_RESULT(rc, &e);
    while (rc == 0 && (rc = lines_next(l, &text, &bytes, &number, &e)) == 0 && text != NULL) {
        enum render_shape found;
        int detected = render_detect(c, "f", number, text, bytes, &found, &e);
        FUZZ_CHECK_RESULT(detected, &e);
        for (int s = RENDER_TEXT; s < RENDER_SHAPES; s++) {
            int done = render_line(c, (enum render_shape)s, "f", number, text, bytes, &out, &e);
            FUZZ_CHECK_RESULT(done, &e);
            FUZZ_CHECK(done == 0 || out.tokens.n == 0);
            check(&out, t);
        }
    }
    FUZZ_CHECK_RESULT(rc, &e);
    lines_close(l);
}

static struct tokenizer *tokenizer(void) {
    static struct tokenizer *t;
    struct err e = {0};
    if (t == NULL)
        FUZZ_CHECK(tokenizer_open_bytes(&t, &e) == 0);
    return t;
}

static struct render_options options(uint8_t choice) {
    static const char *const names[] = {"plain", "zephyr", "tulu", "mistral"};
    return (struct render_options){
        .tokenizer = tokenizer(),
        .chat_template = names[choice % 4],
        .loss = choice & 4 ? RENDER_LOSS_ALL : RENDER_LOSS_COMPLETION,
        .keys = choice & 8 ? "prompt=question,role=speaker" : "",
        .system = choice & 16 ? "s" : "",
    };
}

// Renderers of known templates are opened once, because they do not depend on the input.
static void with_known(uint8_t choice, const uint8_t *data, size_t bytes) {
    static struct renderer *renderers[32];
    static struct render_context *contexts[32];
    static struct fuzz_file file;
    unsigned i = choice % 32;
    struct err e = {0};
    if (renderers[i] == NULL) {
        struct render_options o = options((uint8_t)i);
        FUZZ_CHECK(renderer_open(&renderers[i], &o, &e) == 0);
        FUZZ_CHECK(render_context_open(&contexts[i], renderers[i], &e) == 0);
    }
    walk(contexts[i], tokenizer(), fuzz_file_set(&file, data, bytes));
}

static void with_template(const uint8_t *data, size_t bytes) {
    static struct fuzz_file file, source;
    const uint8_t *nul = bytes > 0 ? memchr(data, '\0', bytes) : NULL;
    size_t n = nul != NULL ? (size_t)(nul - data) : bytes, begin = nul != NULL ? n + 1 : n;
    struct render_options o = options(0);
    struct renderer *r;
    struct render_context *c;
    struct err e = {0};
    o.chat_template = fuzz_file_set(&source, data, n);
    int rc = renderer_open(&r, &o, &e);
    FUZZ_CHECK_RESULT(rc, &e);
    if (rc != 0)
        return;
    FUZZ_CHECK(render_context_open(&c, r, &e) == 0);
    walk(c, o.tokenizer, fuzz_file_set(&file, data + begin, bytes - begin));
    render_context_close(c);
    renderer_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes > 0 && data[0] == 't')
        with_template(data + 1, bytes - 1);
    else if (bytes > 0)
        with_known(data[0], data + 1, bytes - 1);
    return 0;
}

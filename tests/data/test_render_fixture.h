// test_render_fixture.h - a byte tokenizer with special tokens, written as a tokenizer.json, and
// rendered records as one readable string.
#ifndef HAGGLE_TESTS_DATA_TEST_RENDER_FIXTURE_H
#define HAGGLE_TESTS_DATA_TEST_RENDER_FIXTURE_H

#include "data/render.h"
#include "scratch.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

// They have the ids from 256 on, in this order.
static const char *const special_spellings[] = {"<|endoftext|>",
                                                "<|im_start|>",
                                                "<|im_end|>",
                                                "<|begin_of_text|>",
                                                "<|start_header_id|>",
                                                "<|end_header_id|>",
                                                "<|eot_id|>",
                                                "<|user|>",
                                                "<|assistant|>",
                                                "<|end|>",
                                                "<bos>",
                                                "<start_of_turn>",
                                                "<end_of_turn>",
                                                "<s>",
                                                "</s>",
                                                "<\xEF\xBD\x9CUser\xEF\xBD\x9C>",
                                                "<\xEF\xBD\x9C"
                                                "Assistant\xEF\xBD\x9C>",
                                                "[MASK]"};
enum { SPECIALS = sizeof special_spellings / sizeof *special_spellings };

static inline int put_utf8(char *out, unsigned c) {
    if (c < 0x80)
        return sprintf(out, "%c", (int)c);
    return sprintf(out, "%c%c", (int)(0xC0 | c >> 6), (int)(0x80 | (c & 63)));
}

// Byte b is token b, spelt as byte-level tokenizers do: as itself where it is printable, else as a
// letter from U+0100 on. With `strips`, <|im_end|> absorbs the blanks behind it, <|end|> those
// before it, <|user|> both.
static inline const char *write_tokenizer(struct folder *f, bool strips, const char *post) {
    static char text[32768];
    int n = sprintf(text, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (int i = 0; i < SPECIALS; i++)
        n += sprintf(text + n,
                     "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":%s,"
                     "\"rstrip\":%s,\"normalized\":false,\"special\":true}",
                     i ? "," : "", 256 + i, special_spellings[i],
                     strips && (i == 7 || i == 9) ? "true" : "false",
                     strips && (i == 2 || i == 7) ? "true" : "false");
    n += sprintf(text + n,
                 "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                 "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
                 "\"post_processor\":%s,\"decoder\":{\"type\":\"ByteLevel\"},"
                 "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                 "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                 "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{",
                 post);
    unsigned next = 256;
    for (unsigned b = 0; b < 256; b++) {
        bool prints = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        n += sprintf(text + n, "%s\"%s", b ? "," : "", b == '"' || b == '\\' ? "\\" : "");
        n += put_utf8(text + n, prints ? b : next++);
        n += sprintf(text + n, "\":%u", b);
    }
    n += sprintf(text + n, "},\"merges\":[]}}");
    return folder_file(f, "tokenizer.json", text, (size_t)n);
}

struct bench { // a renderer and what it needs
    struct folder *folder;
    struct tokenizer *tokenizer;
    struct renderer *renderer;
    struct render_context *context;
    struct rendered out;
    struct err e;
    char shown[1 << 16];
};

static inline void bench_begin(struct bench *b, void **state) {
    memset(b, 0, sizeof *b);
    b->folder = *state;
    if (tokenizer_open(&b->tokenizer, write_tokenizer(b->folder, false, "null"), &b->e) != 0)
        fail_msg("%s", b->e.text);
}

static inline void bench_reset(struct bench *b) {
    render_context_close(b->context);
    renderer_close(b->renderer);
    b->context = NULL;
    b->renderer = NULL;
}

static inline void bench_end(struct bench *b) {
    bench_reset(b);
    rendered_free(&b->out);
    tokenizer_close(b->tokenizer);
}

// Opens a renderer with these options (the tokenizer is filled in). Fails the test on an error.
static inline void bench_open(struct bench *b, struct render_options o) {
    bench_reset(b);
    o.tokenizer = o.tokenizer ? o.tokenizer : b->tokenizer;
    if (renderer_open(&b->renderer, &o, &b->e) != 0)
        fail_msg("%s", b->e.text);
    if (render_context_open(&b->context, b->renderer, &b->e) != 0)
        fail_msg("%s", b->e.text);
}

// Shows what was rendered: special tokens in [brackets], trained stretches in {braces}.
static inline const char *bench_show(struct bench *b, const struct tokenizer *t) {
    size_t n = 0, capacity = 0, bytes, trained = 0;
    bool inside = false;
    char *text = NULL;
    for (size_t i = 0; i < b->out.tokens.n; i++) {
        int32_t id = b->out.tokens.ids[i];
        if (b->out.trained[i] != inside)
            n += (size_t)sprintf(b->shown + n, "%s", inside ? "}" : "{");
        inside = b->out.trained[i];
        trained += inside;
        bytes = 0;
        assert_int_equal(
            tokenizer_decode(t, &id, 1, TOKENIZER_SPECIAL, &text, &bytes, &capacity, NULL), 0);
        assert_true(n + bytes + 8 < sizeof b->shown);
        bool special = tokenizer_is_special(t, id);
        n += (size_t)sprintf(b->shown + n, "%s%.*s%s", special ? "[" : "", (int)bytes, text,
                             special ? "]" : "");
    }
    sprintf(b->shown + n, "%s", inside ? "}" : "");
    free(text);
    assert_int_equal(trained, b->out.trained_tokens);
    return b->shown;
}

static inline int bench_line(struct bench *b, enum render_shape shape, const char *line) {
    return render_line(b->context, shape, "f.jsonl", 7, line, strlen(line), &b->out, &b->e);
}

static inline void expect_line(struct bench *b, enum render_shape shape, const char *line,
                               const char *expected) {
    if (bench_line(b, shape, line) != 0)
        fail_msg("%s\n%s", line, b->e.text);
    assert_string_equal(bench_show(b, b->tokenizer), expected);
}

#endif

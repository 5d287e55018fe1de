// tokenizer_file.h - small tokenizer.json files for a test. The vocabulary has all bytes and every
// part of one text, so that with ignore_merges each piece of the text becomes exactly one token.
#ifndef HAGGLE_TESTS_MODEL_TOKENIZER_FILE_H
#define HAGGLE_TESTS_MODEL_TOKENIZER_FILE_H

#include "model/scratch.h"

#include "base/json.h"
#include "model/tokenizer_impl.h"

struct file_parts { // JSON texts; NULL means null
    const char *pre, *normalizer, *added;
    const char *vocab_of; // every part of this text is a token
};

static inline void spell(char *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        out += utf8_encode(tokenizer_byte_char((uint8_t)text[i]), out);
    *out = '\0';
}

static inline bool seen_before(const char *text, size_t at, size_t n) {
    for (size_t i = 0; i < at; i++)
        if (memcmp(text + i, text + at, n) == 0)
            return true;
    return false;
}

// Writes the file. Returns the number of ids in the vocabulary, which is the first free id.
static inline int write_tokenizer(const char *path, const struct file_parts *parts) {
    FILE *f = fopen(path, "w");
    struct json_writer w;
    char name[512];
    int id = 0;
    size_t n = strlen(parts->vocab_of);
    assert_non_null(f);
    json_writer_to_file(&w, f, 0);
    json_put_object_begin(&w);
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        spell(name, &byte, 1);
        json_member_i64(&w, name, id++);
    }
    for (size_t at = 0; at < n; at++)
        for (size_t length = 2; at + length <= n && length < 100; length++)
            if (!seen_before(parts->vocab_of, at, length)) {
                spell(name, parts->vocab_of + at, length);
                json_member_i64(&w, name, id++);
            }
    json_put_object_end(&w);
    assert_int_equal(json_writer_finish(&w, NULL), 0);
    fclose(f);
    char *vocab;
    size_t bytes;
    assert_int_equal(file_read_all(path, 16 << 20, &vocab, &bytes, NULL), 0);
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": %s, "
            "\"normalizer\": %s, \"pre_tokenizer\": %s, \"post_processor\": null, \"decoder\": "
            "{\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"ignore_merges\": true, "
            "\"vocab\": %s, \"merges\": []}}",
            parts->added ? parts->added : "[]", parts->normalizer ? parts->normalizer : "null",
            parts->pre, vocab);
    free(vocab);
    fclose(f);
    return id;
}

// Writes the tokens of a text, separated by |.
static inline void encode_pieces(char *out, size_t most, const char *path, const char *text,
                                 unsigned flags) {
    struct tokenizer *t;
    struct tokenizer_encoder *c;
    struct token_list l = {0};
    struct err e = {0};
    size_t used = 0;
    if (tokenizer_open(&t, path, &e) != 0 || tokenizer_encoder_open(&c, t, &e) != 0 ||
        tokenizer_encode(c, text, strlen(text), flags, &l, &e) != 0)
        fail_msg("%s", e.text);
    out[0] = '\0';
    for (size_t i = 0; i < l.n; i++) {
        char *piece = NULL;
        size_t bytes = 0, capacity = 0;
        if (tokenizer_decode(t, &l.ids[i], 1, TOKENIZER_SPECIAL, &piece, &bytes, &capacity, &e))
            fail_msg("%s", e.text);
        assert_true(used + bytes + 2 < most);
        used +=
            (size_t)snprintf(out + used, most - used, "%s%.*s", i ? "|" : "", (int)bytes, piece);
        free(piece);
    }
    token_list_free(&l);
    tokenizer_encoder_close(c);
    tokenizer_close(t);
}

#endif

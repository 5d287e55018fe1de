// bytes.c - writes the built-in byte tokenizer (data/bytes.h) as files that other tools
// read: a byte-level BPE without merges. Its ids are the bytes, and id 256 is the end of text.
#include "export/parts.h"

#include "base/json.h"
#include "data/bytes.h"
#include "model/export_config.h"

#include <stdlib.h>

#define END_OF_TEXT "<|endoftext|>"

// Byte-level tokenizers write each byte as a visible character. A printable Latin-1 character
// stands for itself. The other bytes, in ascending order, are U+0100, U+0101 and so on. Each takes
// at most two bytes of UTF-8.
static void spell(int byte, char out[4]) {
    int code = byte, hidden = 0;
    for (int b = 0; b <= byte; b++) {
        bool visible = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte && !visible)
            code = 0x100 + hidden;
        hidden += !visible;
    }
    int n = 0;
    if (code >= 0x80)
        out[n++] = (char)(0xc0 | code >> 6);
    out[n++] = (char)(code >= 0x80 ? 0x80 | (code & 0x3f) : code);
    out[n] = '\0';
}

static void put_end(struct json_writer *w, bool id) {
    json_put_object_begin(w);
    if (id)
        json_member_i64(w, "id", BYTES_END_OF_TEXT);
    json_member_string(w, "content", END_OF_TEXT);
    json_member_bool(w, "single_word", false);
    json_member_bool(w, "lstrip", false);
    json_member_bool(w, "rstrip", false);
    json_member_bool(w, "normalized", false);
    json_member_bool(w, "special", true);
    json_put_object_end(w);
}

static void put_level(struct json_writer *w, const char *key) {
    json_member_object(w, key);
    json_member_string(w, "type", "ByteLevel");
    json_member_bool(w, "add_prefix_space", false);
    json_member_bool(w, "trim_offsets", true);
    json_member_bool(w, "use_regex", true);
    json_put_object_end(w);
}

static void put_null(struct json_writer *w, const char *key) {
    json_member_null(w, key);
}

static void put_model(struct json_writer *w) {
    char text[4];
    json_member_object(w, "model");
    json_member_string(w, "type", "BPE");
    put_null(w, "dropout");
    put_null(w, "unk_token");
    put_null(w, "continuing_subword_prefix");
    put_null(w, "end_of_word_suffix");
    json_member_bool(w, "fuse_unk", false);
    json_member_bool(w, "byte_fallback", false);
    json_member_bool(w, "ignore_merges", false);
    json_member_object(w, "vocab");
    for (int b = 0; b < 256; b++) {
        spell(b, text);
        json_member_i64(w, text, b);
    }
    json_member_i64(w, END_OF_TEXT, BYTES_END_OF_TEXT);
    json_put_object_end(w);
    json_member_array(w, "merges");
    json_put_array_end(w);
    json_put_object_end(w);
}

static void put_tokenizer(struct json_writer *w) {
    json_put_object_begin(w);
    json_member_string(w, "version", "1.0");
    put_null(w, "truncation");
    put_null(w, "padding");
    json_member_array(w, "added_tokens");
    put_end(w, true);
    json_put_array_end(w);
    put_null(w, "normalizer");
    put_level(w, "pre_tokenizer");
    put_null(w, "post_processor");
    put_level(w, "decoder");
    put_model(w);
    json_put_object_end(w);
}

static void put_config(const struct exporter *x, struct json_writer *w) {
    json_put_object_begin(w);
    json_member_object(w, "added_tokens_decoder");
    json_put_key(w, "256");
    put_end(w, false);
    json_put_object_end(w);
    json_member_bool(w, "add_bos_token", true); // documents begin with it
    json_member_string(w, "bos_token", END_OF_TEXT);
    json_member_bool(w, "clean_up_tokenization_spaces", false);
    json_member_string(w, "eos_token", END_OF_TEXT);
    json_member_i64(w, "model_max_length", x->shape.max_positions);
    json_member_string(w, "tokenizer_class", "PreTrainedTokenizerFast");
    json_put_object_end(w);
}

int export_write_byte_tokenizer(struct exporter *x) {
    static const char *const names[2] = {"tokenizer.json", "tokenizer_config.json"};
    int rc = 0;
    for (int i = 0; rc == 0 && i < 2; i++) {
        struct json_writer w;
        json_writer_to_buffer(&w, 2);
        if (i == 0)
            put_tokenizer(&w);
        else
            put_config(x, &w);
        char *text = NULL;
        size_t bytes = 0;
        rc = json_writer_finish(&w, x->e);
        if (rc == 0 && i == 1 && x->chat.source != NULL)
            rc = export_config_set(names[i], w.buffer, w.bytes, "chat_template", x->chat.source,
                                   false, &text, &bytes, x->e);
        if (rc == 0)
            rc = export_write_file(x, names[i], text ? text : w.buffer, text ? bytes : w.bytes);
        free(text);
        free(w.buffer);
    }
    return rc;
}

// tokenizer.h - text to token ids and back, as a tokenizer.json of byte-level BPE describes it.
//
// Place: data/ encodes documents with it, api/ decodes what was generated. The tables are read once
// and never change after open: any number of threads may use one tokenizer, each with an encoder of
// its own, which holds the memory that encoding needs.
//
// Invariants:
//   1. decode(encode(text)) == text for every byte string, valid UTF-8 or not. Excepted is what the
//      file itself asks for: a normalizer such as NFC, add_prefix_space, Split with Removed, tokens
//      that swallow the spaces beside them. A byte without a token, where the file has no unk_token,
//      is an error (the reference drops it).
//   2. What a file asks for and this code does not know is an error at open, never ignored.
//   3. Encoding takes time linear in the text, whatever the text and the file's pattern.
#ifndef HAGGLE_MODEL_TOKENIZER_H
#define HAGGLE_MODEL_TOKENIZER_H

#include "base/err.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

// Reads a tokenizer.json. Errors name the file, the place and what is accepted.
int tokenizer_open(struct tokenizer **out, const char *path, struct err *e);
// The built-in one: byte b is id b, and id 256, "<|endoftext|>", is special.
int tokenizer_open_bytes(struct tokenizer **out, struct err *e);
void tokenizer_close(struct tokenizer *t); // NULL is fine

int32_t tokenizer_size(const struct tokenizer *t); // every id is in [0, size)
// The id of a token by its spelling (an added token's text, or a vocabulary entry as it stands in
// the file); -1: none.
int32_t tokenizer_find(const struct tokenizer *t, const char *spelling);
bool tokenizer_has(const struct tokenizer *t, int32_t id); // ids below size may have no token
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
// Identifies the tables, wherever the file lies: shards made with another tokenizer are not reused.
const char *tokenizer_fingerprint(const struct tokenizer *t); // 32 hex digits
// For people: "BPE, 50257 tokens, 1 added".
const char *tokenizer_describe(const struct tokenizer *t);

// A growing list of ids; starts zeroed, freed by token_list_free.
struct token_list {
    int32_t *ids;
    size_t n, capacity;
};
void token_list_free(struct token_list *l);

enum tokenizer_flag {
    // Added tokens that are marked special are recognised in the text, as Hugging Face's encode
    // does. Without it their spelling is ordinary text, so that a user's text cannot forge them.
    // Added tokens that are not special are recognised either way.
    TOKENIZER_SPECIAL = 1 << 0,
};

struct tokenizer_encoder;
int tokenizer_encoder_open(struct tokenizer_encoder **out, const struct tokenizer *t,
                           struct err *e);
void tokenizer_encoder_close(struct tokenizer_encoder *c); // NULL is fine
// Appends the ids of a text; adds no token of its own (no beginning, no end).
int tokenizer_encode(struct tokenizer_encoder *c, const char *text, size_t bytes, unsigned flags,
                     struct token_list *out, struct err *e);

// Appends the bytes of ids to a growing buffer (malloc'd; *out may be NULL at first). Special tokens
// are spelled out with TOKENIZER_SPECIAL and left out without. ERR_USAGE for an id outside
// [0, size) or without a token, naming it.
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                     char **out, size_t *bytes, size_t *capacity, struct err *e);

#endif

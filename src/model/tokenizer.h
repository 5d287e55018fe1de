// tokenizer.h - text to token ids and back, as a tokenizer.json of BPE describes it: byte-level, or
// of characters with tokens for bytes, as SentencePiece makes them.
//
// Place: data/ encodes documents with it, api/ decodes generated text. The tables are read once and
// never change after open. Any number of threads may share one tokenizer. Each thread needs a
// separate encoder, which holds the memory for encoding.
//
// Invariants:
// - decode(encode(text)) == text for every byte string, valid UTF-8 or not. The exceptions are
//   features that a file may request: a normalizer such as NFC, add_prefix_space, Split with
//   Removed, tokens that remove the spaces beside them. Where symbols are characters, bytes that
//   are no UTF-8 come back as U+FFFD, as in the reference. A byte or character without a token is
//   an error when the file has no unk_token (the reference drops it).
// - A feature that this code does not support is an error at open and is never ignored.
// - Encoding takes time linear in the length of the text (n log n for a text without a break), for
//   any text and any pattern. A normalizer may not make a text many times as long.
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
// Opens the built-in tokenizer: byte b has id b, and id 256 is the special token "<|endoftext|>".
int tokenizer_open_bytes(struct tokenizer **out, struct err *e);
// Opens what stands for the tokenizer of a model without one: `size` ids that have no text. For
// people, the text of an id is its number and a space. Encoding a text is ERR_USAGE with `why`.
int tokenizer_open_ids(struct tokenizer **out, int32_t size, const char *why, struct err *e);
bool tokenizer_is_ids(const struct tokenizer *t);
void tokenizer_close(struct tokenizer *t); // NULL is fine

int32_t tokenizer_size(const struct tokenizer *t); // every id is in [0, size)
// The id of a token by its spelling (an added token's text, or a vocabulary entry as written in the
// file). -1 when there is none.
int32_t tokenizer_find(const struct tokenizer *t, const char *spelling);
bool tokenizer_has(const struct tokenizer *t, int32_t id); // ids below size may have no token
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
// The text that a token stands for, as it is, without the decoder. Not ended by a NUL. The id must
// have a token.
const char *tokenizer_text(const struct tokenizer *t, int32_t id, size_t *bytes);
// Identifies the tables, independent of the file's path. Shards made with another tokenizer are not
// reused.
const char *tokenizer_fingerprint(const struct tokenizer *t); // 32 hex digits
// For people: "BPE, 50257 tokens, 1 added".
const char *tokenizer_describe(const struct tokenizer *t);

// A growing list of ids. It starts zeroed and is freed by token_list_free.
struct token_list {
    int32_t *ids;
    size_t n, capacity;
};
void token_list_free(struct token_list *l);

enum tokenizer_flag {
    // Added tokens that are marked special are recognized in the text, as in Hugging Face's encode.
    // Without this flag their spelling is ordinary text, so that a user's text cannot forge them.
    // Added tokens that are not special are always recognized.
    TOKENIZER_SPECIAL = 1 << 0,
    // The text, or the ids, continue what was encoded or decoded before. A space that the tokenizer
    // puts in front of a text, or takes off, belongs to the beginning alone.
    TOKENIZER_CONTINUES = 1 << 1,
    // The text follows a token. Only what a file puts once in front of a whole input is left out.
    TOKENIZER_INSIDE = 1 << 2,
};

struct tokenizer_encoder;
int tokenizer_encoder_open(struct tokenizer_encoder **out, const struct tokenizer *t,
                           struct err *e);
void tokenizer_encoder_close(struct tokenizer_encoder *c); // NULL is fine
// Appends the ids of a text. Adds no other tokens (no begin or end token).
int tokenizer_encode(struct tokenizer_encoder *c, const char *text, size_t bytes, unsigned flags,
                     struct token_list *out, struct err *e);

// Appends the bytes of ids to a growing buffer (malloc'd; *out may be NULL at first). Special
// tokens are written with TOKENIZER_SPECIAL and left out without it. An id outside [0, size) or
// without a token is ERR_USAGE.
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                     char **out, size_t *bytes, size_t *capacity, struct err *e);

// Whether the text of this token may change with the ids behind it: bytes of a character that
// SentencePiece spells as tokens, or a decoder that changes the text as a whole. Behind any other
// token a text may be cut: the part in front, and the part behind it, decoded with this token in
// front (TOKENIZER_CONTINUES) and without its text, are the whole.
bool tokenizer_is_open(const struct tokenizer *t, int32_t id);

#endif

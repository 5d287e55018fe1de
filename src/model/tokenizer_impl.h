// tokenizer_impl.h - the tables behind tokenizer.h, shared by the files that fill and read them.
//
// Place: tokenizer_read.c fills them from a tokenizer.json, tokenizer.c owns them,
// tokenizer_encode.c cuts text into pieces, tokenizer_bpe.c turns a piece into ids,
// tokenizer_decode.c turns ids into text. export/gguf_vocab.c writes them as another program reads
// them.
//
// A file is of one of two kinds. In a byte-level file (GPT-2, Llama 3, Qwen) a symbol is a byte. In
// the others (Llama 2, Mistral, Gemma) a symbol is a character, and a character without a token may
// be spelled by tokens of its bytes, <0x00> to <0xFF>.
//
// Invariants: nothing here changes after the tokenizer is open. Everything is in its region. A
// piece of text is always raw bytes. The printable alphabet, with which byte-level files spell
// bytes, is used only in the file and by steps after ByteLevel, which look at the properties of
// characters.
#ifndef HAGGLE_MODEL_TOKENIZER_IMPL_H
#define HAGGLE_MODEL_TOKENIZER_IMPL_H

#include "base/region.h"
#include "model/pattern.h"
#include "model/tokenizer.h"
#include "model/unicode.h"

enum {
    TOKENIZER_IDS_MOST = 1 << 22,
    TOKENIZER_STEPS_MOST = 16,
    TOKENIZER_JOINED_BITS = 20,       // the bits of tokenizer.joined, as a power of two
    TOKENIZER_ADDED_BYTES_MOST = 256, // per added token; bounds the work per byte of text
    // A text may become this many times as long, plus the room, by normalizing or by decoding. No
    // Unicode form needs more than 11 times.
    TOKENIZER_GROWTH_MOST = 32,
    TOKENIZER_GROWTH_ROOM = 1 << 16,
};

enum token_flag {
    TOKEN_THERE = 1 << 0,
    TOKEN_ADDED = 1 << 1,
    TOKEN_IS_SPECIAL = 1 << 2,
    TOKEN_SINGLE_WORD = 1 << 3,
    TOKEN_LSTRIP = 1 << 4,
    TOKEN_RSTRIP = 1 << 5,
    TOKEN_NORMALIZED = 1 << 6,
    TOKEN_MODEL = 1 << 7, // in the model's vocabulary
};

struct token {
    const char *spelled; // as written in the file
    const char *raw;     // the bytes that it stands for
    uint32_t spelled_bytes, raw_bytes;
    uint8_t flags;
};

// Maps strings to ids by open addressing. The number of slots is a power of two. The strings belong
// to the tokens.
struct token_index {
    int32_t *slots; // -1: free
    uint32_t mask;
    bool raw; // uses token.raw, otherwise token.spelled
};

// Maps (left, right) to (rank, result) by open addressing. A free slot has result -1.
struct merge {
    int32_t left, right, rank, result;
};
struct merge_table {
    struct merge *slots;
    uint32_t mask;
    int32_t n;
};

// A trie over bytes. Node 0 is the root. The children of a node are a linked list.
struct trie_node {
    int32_t child, sibling; // 0: none
    int32_t id;             // the token that ends here; -1: none
    uint8_t byte;
};
struct trie {
    struct trie_node *nodes;
    int32_t n;
    int32_t root[256]; // the root's children by byte; 0: none
};

// The pattern that a ByteLevel pre-tokenizer has of its own.
#define TOKENIZER_BYTE_LEVEL_PATTERN                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

enum step_kind {
    STEP_PATTERN,     // Split, Whitespace, and the pattern of ByteLevel
    STEP_DIGITS,      // every numeric character is a match
    STEP_PUNCTUATION, // every punctuation character is a match
    STEP_SPACE,       // every white-space character is a match
    STEP_PREFIX,      // ByteLevel's add_prefix_space: puts a space in front if there is none
    STEP_METASPACE,   // spaces become another character, which also begins the text
};
enum step_prefix { PREFIX_ALWAYS, PREFIX_FIRST, PREFIX_NEVER };
enum step_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_WITH_PREVIOUS,
    SPLIT_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};
struct split_step {
    enum step_kind kind;
    enum step_behavior behavior;
    bool invert;
    bool mapped; // after ByteLevel: each byte is a character of the printable alphabet
    const struct pattern *pattern;
    const char *source; // of the pattern, as the file writes it; NULL: the kind's own
    // for STEP_METASPACE
    enum step_prefix prefix;
    bool split; // a new piece begins at every replaced space
    const char *text;
    size_t text_bytes;
};

enum normal_kind { NORMAL_FORM, NORMAL_LOWERCASE, NORMAL_REPLACE, NORMAL_PREPEND, NORMAL_STRIP };
struct normal_step {
    enum normal_kind kind;
    enum unicode_form form;
    bool left, right;              // for NORMAL_STRIP
    const struct pattern *pattern; // for NORMAL_REPLACE
    const char *source;            // of the pattern, as the file writes it
    const char *text;              // the replacement, or the text put in front
    size_t text_bytes;
};

enum decode_kind { DECODE_REPLACE, DECODE_BYTES, DECODE_FUSE, DECODE_STRIP, DECODE_METASPACE };
struct decode_step {
    enum decode_kind kind;
    const struct pattern *pattern; // for DECODE_REPLACE
    const char *text; // what replaces, the character that is stripped, the one for a space
    size_t text_bytes;
    size_t start, stop; // for DECODE_STRIP: how many at each end at most
    bool drop_first;    // for DECODE_METASPACE: the first token has none
};

struct tokenizer {
    struct region region;
    struct token *tokens; // by id
    int32_t size, n_added;
    struct token_index by_spelling, by_bytes;
    struct merge_table merges;
    // Where symbols are characters: a bit, by pair_hash, for each pair of characters that are
    // neighbours in a token made by a merge. Other neighbours are never merged, so text is cut
    // between them. NULL where symbols are bytes.
    uint8_t *joined;
    int32_t byte_id[256];     // -1: no token; of characters below 0x80 where symbols are characters
    int32_t fallback_id[256]; // the tokens <0x00> to <0xFF>; -1: not used
    int32_t unk_id;           // -1: none
    bool fuse_unk, ignore_merges;
    bool byte_level;               // a ByteLevel pre-tokenizer has been read
    struct trie as_is, normalized; // added tokens searched in the text as it is, or normalized
    struct normal_step normal[TOKENIZER_STEPS_MOST];
    struct split_step steps[TOKENIZER_STEPS_MOST];
    struct decode_step decode[TOKENIZER_STEPS_MOST];
    int n_normal, n_steps, n_decode;
    bool has_decoder;                                   // without one, spaces join the tokens
    struct pattern *patterns[3 * TOKENIZER_STEPS_MOST]; // owned
    int n_patterns;
    const char *name;    // the file's path, for messages
    const char *no_text; // why text cannot be encoded; NULL: it can
    char fingerprint[HASH_TEXT_BYTES], describe[64];
};

// tokenizer.c
uint32_t tokenizer_byte_char(uint8_t byte); // the character with which byte-level files spell it
int tokenizer_char_byte(uint32_t c);        // the reverse; -1: none
int32_t token_index_find(const struct tokenizer *t, const struct token_index *x, const char *s,
                         size_t bytes);
int token_index_build(struct tokenizer *t, struct token_index *x, bool raw, struct err *e);

// tokenizer_read.c
int tokenizer_read(struct tokenizer *t, const char *text, size_t bytes, struct err *e);

// tokenizer_normal.c. tokenizer_is_normal: true when normalizing would certainly change nothing.
// tokenizer_normalize: replaces the content of out with the normalized text. A step that writes
// more than `most` bytes is an error.
struct normal_run {
    bool joined; // the text continues another one: nothing is put in front
    size_t most;
    // out:
    size_t longest; // bytes of the step that wrote most
    bool kept;      // the first character is still there, so the text still begins the input
};
bool tokenizer_is_normal(const struct tokenizer *t, const uint8_t *text, size_t n);
int tokenizer_normalize(const struct tokenizer *t, const uint8_t *text, size_t n,
                        struct normal_run *run, struct unicode_buffer *out,
                        struct unicode_buffer *spare, struct err *e);
// Appends the text with each match replaced. Stops with ERR_FORMAT, and without a message, when the
// buffer is longer than `most`. *first: the end of a match at the beginning; 0 when there is none.
int tokenizer_replace(const struct pattern *p, const char *by, size_t by_bytes, const uint8_t *text,
                      size_t n, size_t most, struct unicode_buffer *out, size_t *first,
                      struct err *e);

// tokenizer_bpe.c: encodes one piece at a time. struct bpe holds the memory for that.
struct bpe;
int bpe_open(struct bpe **out, const struct tokenizer *t, struct err *e);
void bpe_close(struct bpe *b);
int bpe_encode(struct bpe *b, const uint8_t *piece, size_t n, struct token_list *out,
               struct err *e);

int token_list_reserve(struct token_list *l, size_t more, struct err *e);

static inline uint32_t pair_hash(uint32_t left, uint32_t right) {
    uint64_t x = ((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(x >> (64 - TOKENIZER_JOINED_BITS));
}

static inline uint32_t merge_hash(int32_t left, int32_t right) {
    uint64_t x = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(x >> 32) ^ (uint32_t)(x >> 15);
}

#endif

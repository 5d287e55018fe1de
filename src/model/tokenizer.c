// tokenizer.c - opens a tokenizer from a file or the built-in one, looks up tokens, closes.
//
// Place: see tokenizer_impl.h. Encoding is in tokenizer_encode.c, decoding in tokenizer_decode.c.
#include "model/tokenizer_impl.h"

#include "base/array.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MOST = 100 * 1000 * 1000, FINGERPRINT_VERSION = 1 };

// Byte-level files spell printable bytes as themselves, and the 68 others, in order, as U+0100 and
// up. Every token is then visible text without spaces.
static bool byte_prints(unsigned b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

uint32_t tokenizer_byte_char(uint8_t byte) {
    if (byte_prints(byte))
        return byte;
    uint32_t c = 0x100;
    for (unsigned b = 0; b < byte; b++)
        c += !byte_prints(b);
    return c;
}

int tokenizer_char_byte(uint32_t c) {
    if (c < 0x100)
        return byte_prints(c) ? (int)c : -1;
    for (unsigned b = 0; b < 256; b++)
        if (!byte_prints(b) && c-- == 0x100)
            return (int)b;
    return -1;
}

static bool token_is(const struct token *k, bool raw, const char *s, size_t bytes) {
    size_t own = raw ? k->raw_bytes : k->spelled_bytes;
    return own == bytes && memcmp(raw ? k->raw : k->spelled, s, bytes) == 0;
}

int32_t token_index_find(const struct tokenizer *t, const struct token_index *x, const char *s,
                         size_t bytes) {
    if (!x->slots)
        return -1;
    for (uint32_t i = (uint32_t)hash_u64(s, bytes) & x->mask; x->slots[i] >= 0;
         i = (i + 1) & x->mask)
        if (token_is(&t->tokens[x->slots[i]], x->raw, s, bytes))
            return x->slots[i];
    return -1;
}

// The index by bytes holds the tokens of the model's vocabulary except the special ones. Special
// tokens are found only by their trie, so that text cannot forge them where they must not be
// recognized.
int token_index_build(struct tokenizer *t, struct token_index *x, bool raw, struct err *e) {
    uint32_t slots = 16;
    while (slots < 2 * (uint32_t)t->size)
        slots *= 2;
    x->slots = region_alloc(&t->region, slots * sizeof *x->slots);
    if (!x->slots)
        return err_set(e, ERR_MEMORY, "%s: no memory for an index of %u tokens", t->name,
                       (unsigned)t->size);
    memset(x->slots, -1, slots * sizeof *x->slots);
    x->mask = slots - 1;
    x->raw = raw;
    for (int32_t id = 0; id < t->size; id++) {
        const struct token *k = &t->tokens[id];
        if (!(k->flags & TOKEN_THERE) ||
            (raw && (!(k->flags & TOKEN_MODEL) || (k->flags & TOKEN_IS_SPECIAL))))
            continue;
        const char *s = raw ? k->raw : k->spelled;
        size_t bytes = raw ? k->raw_bytes : k->spelled_bytes;
        int32_t other = token_index_find(t, x, s, bytes);
        if (other >= 0 && !raw)
            return err_set(e, ERR_FORMAT,
                           "%s: the token '%.64s' has two ids, %d and %d; accepted: one", t->name,
                           s, other, id);
        if (other >= 0)
            continue;
        uint32_t i = (uint32_t)hash_u64(s, bytes) & x->mask;
        while (x->slots[i] >= 0)
            i = (i + 1) & x->mask;
        x->slots[i] = id;
    }
    return 0;
}

static int trie_add(struct trie *r, const uint8_t *s, size_t bytes, int32_t id) {
    int32_t at = 0;
    for (size_t i = 0; i < bytes; i++) {
        int32_t next = i == 0 ? r->root[s[0]] : r->nodes[at].child;
        while (i > 0 && next && r->nodes[next].byte != s[i])
            next = r->nodes[next].sibling;
        if (!next) {
            next = r->n++;
            r->nodes[next] = (struct trie_node){.id = -1, .byte = s[i]};
            if (i == 0) {
                r->root[s[0]] = next;
            } else {
                r->nodes[next].sibling = r->nodes[at].child;
                r->nodes[at].child = next;
            }
        }
        at = next;
    }
    if (r->nodes[at].id < 0) // if two normalize to the same text, the first counts
        r->nodes[at].id = id;
    return 0;
}

static int trie_build(struct tokenizer *t, struct trie *r, bool normalized, struct err *e) {
    struct unicode_buffer text = {0}, spare = {0};
    size_t nodes = 1;
    int rc = 0;
    // Pass 0 adds up the lengths, because a normalized text may be longer than the token's text.
    // Pass 1 fills the trie.
    for (int pass = 0; rc == 0 && pass < 2; pass++) {
        for (int32_t id = 0; rc == 0 && id < t->size; id++) {
            const struct token *k = &t->tokens[id];
            if (!(k->flags & TOKEN_ADDED) || !(k->flags & TOKEN_NORMALIZED) == normalized)
                continue;
            text.n = 0;
            struct normal_run run = {.most = 4 * TOKENIZER_ADDED_BYTES_MOST};
            if (normalized)
                rc = tokenizer_normalize(t, (const uint8_t *)k->spelled, k->spelled_bytes, &run,
                                         &text, &spare, e);
            else
                rc = unicode_buffer_add(&text, k->spelled, k->spelled_bytes, e);
            if (rc != 0 || text.n == 0)
                continue;
            if (pass == 0)
                nodes += text.n;
            else
                rc = trie_add(r, text.data, text.n, id);
        }
        if (rc == 0 && pass == 0) {
            r->nodes = region_alloc(&t->region, nodes * sizeof *r->nodes);
            if (!r->nodes)
                rc = err_set(e, ERR_MEMORY, "%s: no memory for the added tokens", t->name);
            else
                r->nodes[r->n++] = (struct trie_node){.id = -1};
        }
    }
    free(text.data);
    free(spare.data);
    return rc;
}

static int build_added(struct tokenizer *t, struct err *e) {
    TRY(trie_build(t, &t->as_is, false, e));
    return trie_build(t, &t->normalized, true, e);
}

static int describe_self(struct tokenizer *t, const char *data, size_t bytes, struct err *e) {
    struct hash *h = hash_new();
    if (!h)
        return err_set(e, ERR_MEMORY, "%s: no memory for a fingerprint", t->name);
    // Raise the version when a change of this code makes the same file give other ids.
    unsigned char version = FINGERPRINT_VERSION;
    hash_add(h, &version, 1);
    hash_add(h, data, bytes);
    hash_text(h, t->fingerprint);
    hash_free(h);
    if (t->no_text)
        snprintf(t->describe, sizeof t->describe, "none, %d ids", t->size);
    else
        snprintf(t->describe, sizeof t->describe, "%s, %d tokens, %d added",
                 t->merges.n > 0 ? "BPE" : "bytes", t->size, t->n_added);
    return 0;
}

static int tokenizer_new(struct tokenizer **out, const char *name, struct err *e) {
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_MEMORY, "no memory for a tokenizer");
    memset(t->byte_id, -1, sizeof t->byte_id);
    memset(t->fallback_id, -1, sizeof t->fallback_id);
    t->unk_id = -1;
    t->name = region_copy(&t->region, name);
    if (!t->name) {
        tokenizer_close(t);
        return err_set(e, ERR_MEMORY, "no memory for a tokenizer");
    }
    *out = t;
    return 0;
}

static int open_file(struct tokenizer *t, const char *path, struct err *e) {
    char *text = NULL;
    size_t bytes = 0;
    TRY(file_read_all(path, FILE_BYTES_MOST, &text, &bytes, e));
    int rc = tokenizer_read(t, text, bytes, e);
    if (rc == 0)
        rc = build_added(t, e);
    if (rc == 0)
        rc = describe_self(t, text, bytes, e);
    free(text);
    return rc;
}

int tokenizer_open(struct tokenizer **out, const char *path, struct err *e) {
    *out = NULL;
    struct tokenizer *t;
    TRY(tokenizer_new(&t, path, e));
    int rc = open_file(t, path, e);
    if (rc != 0) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

static int fill_bytes(struct tokenizer *t, struct err *e) {
    static const char end[] = "<|endoftext|>";
    t->byte_level = true;
    t->size = 257;
    t->n_added = 1;
    t->tokens = region_alloc(&t->region, (size_t)t->size * sizeof *t->tokens);
    char *bytes = region_alloc(&t->region, 256);
    char *spelled = region_alloc(&t->region, 1024);
    if (!t->tokens || !bytes || !spelled)
        return err_set(e, ERR_MEMORY, "no memory for the byte tokenizer");
    for (int b = 0; b < 256; b++) {
        unsigned n = utf8_encode(tokenizer_byte_char((uint8_t)b), spelled);
        bytes[b] = (char)b;
        t->tokens[b] = (struct token){spelled, bytes + b, n, 1, TOKEN_THERE | TOKEN_MODEL};
        t->byte_id[b] = b;
        spelled += n;
    }
    t->tokens[256] = (struct token){end, end, sizeof end - 1, sizeof end - 1,
                                    TOKEN_THERE | TOKEN_ADDED | TOKEN_IS_SPECIAL};
    TRY(token_index_build(t, &t->by_spelling, false, e));
    TRY(build_added(t, e));
    return describe_self(t, "bytes", 5, e);
}

int tokenizer_open_bytes(struct tokenizer **out, struct err *e) {
    *out = NULL;
    struct tokenizer *t;
    TRY(tokenizer_new(&t, "bytes", e));
    int rc = fill_bytes(t, e);
    if (rc != 0) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

static int fill_ids(struct tokenizer *t, int32_t size, const char *why, struct err *e) {
    char text[16];
    t->byte_level = true;
    t->size = size;
    t->no_text = region_copy(&t->region, why);
    t->tokens = region_alloc(&t->region, (size_t)size * sizeof *t->tokens);
    for (int32_t id = 0; t->no_text && t->tokens && id < size; id++) {
        int n = snprintf(text, sizeof text, "%d ", id);
        const char *copy = region_copy(&t->region, text);
        if (!copy)
            t->tokens = NULL;
        else
            t->tokens[id] = (struct token){copy, copy, (uint32_t)n, (uint32_t)n, TOKEN_THERE};
    }
    if (!t->no_text || !t->tokens)
        return err_set(e, ERR_MEMORY, "no memory for %d ids", size);
    int n = snprintf(text, sizeof text, "ids %d", size);
    return describe_self(t, text, (size_t)n, e);
}

int tokenizer_open_ids(struct tokenizer **out, int32_t size, const char *why, struct err *e) {
    *out = NULL;
    struct tokenizer *t;
    TRY(tokenizer_new(&t, "ids", e));
    int rc = fill_ids(t, size, why, e);
    if (rc != 0) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

bool tokenizer_is_ids(const struct tokenizer *t) {
    return t->no_text != NULL;
}

void tokenizer_close(struct tokenizer *t) {
    if (!t)
        return;
    for (int i = 0; i < t->n_patterns; i++)
        pattern_close(t->patterns[i]);
    free(t->merges.slots);
    region_free(&t->region);
    free(t);
}

int32_t tokenizer_size(const struct tokenizer *t) {
    return t->size;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *spelling) {
    return token_index_find(t, &t->by_spelling, spelling, strlen(spelling));
}

bool tokenizer_has(const struct tokenizer *t, int32_t id) {
    return id >= 0 && id < t->size && (t->tokens[id].flags & TOKEN_THERE);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id) {
    return id >= 0 && id < t->size && (t->tokens[id].flags & TOKEN_IS_SPECIAL);
}

const char *tokenizer_text(const struct tokenizer *t, int32_t id, size_t *bytes) {
    *bytes = t->tokens[id].raw_bytes;
    return t->tokens[id].raw;
}

const char *tokenizer_fingerprint(const struct tokenizer *t) {
    return t->fingerprint;
}

const char *tokenizer_describe(const struct tokenizer *t) {
    return t->describe;
}

void token_list_free(struct token_list *l) {
    free(l->ids);
    *l = (struct token_list){0};
}

int token_list_reserve(struct token_list *l, size_t more, struct err *e) {
    if (array_room(&l->ids, l->n, more, &l->capacity, sizeof *l->ids, 256))
        return 0;
    return err_set(e, ERR_MEMORY, "no memory for %zu more token ids", more);
}

// tokenizer_bpe.c - turns one piece of text into ids by byte-pair encoding.
//
// Place: the last stage of encoding. The pieces come from tokenizer_encode.c.
//
// The rule: among all neighbouring pairs that the file merges, the pair with the lowest rank is
// merged, the leftmost first, until no pair is left. Short pieces (nearly all) search for the
// lowest rank each time. Long pieces keep a heap, so that a megabyte without a break takes n log n
// time. Pieces that were seen before come from a cache, because text repeats words.
#include "model/tokenizer_impl.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHORT_MOST = 32, // symbols; longer pieces use a heap
    CACHE_LINES = 1 << 15,
    CACHE_KEY_MOST = 22,
    CACHE_IDS_MOST = 10,
};

// One line of the cache, which is direct-mapped: a new piece replaces the old one.
struct cached {
    uint8_t key_bytes, n; // key_bytes 0: free
    uint8_t key[CACHE_KEY_MOST];
    int32_t ids[CACHE_IDS_MOST];
};
_Static_assert(sizeof(struct cached) == 64, "one line of the processor's cache");

struct symbol {
    int32_t id;
    int32_t before, after; // neighbours; -1: none
};

struct bpe {
    const struct tokenizer *t;
    struct cached *cache;
    // For long pieces: a linked list of symbols, and a heap of pairs, each rank << 32 | place of
    // the left symbol.
    struct symbol *symbols;
    size_t symbols_capacity;
    uint64_t *heap;
    size_t heap_n, heap_capacity;
};

int bpe_open(struct bpe **out, const struct tokenizer *t, struct err *e) {
    struct bpe *b = calloc(1, sizeof *b);
    struct cached *cache = aligned_alloc(64, CACHE_LINES * sizeof *cache);
    if (!b || !cache) {
        free(b);
        free(cache);
        return err_set(e, ERR_MEMORY, "no memory for an encoder");
    }
    memset(cache, 0, CACHE_LINES * sizeof *cache);
    b->t = t;
    b->cache = cache;
    *out = b;
    return 0;
}

void bpe_close(struct bpe *b) {
    if (!b)
        return;
    free(b->cache);
    free(b->symbols);
    free(b->heap);
    free(b);
}

static const struct merge *merge_find(const struct merge_table *m, int32_t left, int32_t right) {
    if (m->n == 0)
        return NULL;
    for (uint32_t i = merge_hash(left, right) & m->mask; m->slots[i].result >= 0;
         i = (i + 1) & m->mask)
        if (m->slots[i].left == left && m->slots[i].right == right)
            return &m->slots[i];
    return NULL;
}

// Finds the token of the symbol at p: a byte, or a character of *bytes bytes. -1: none.
static int32_t symbol_id(const struct tokenizer *t, const uint8_t *p, const uint8_t *end,
                         unsigned *bytes) {
    *bytes = 1;
    if (t->byte_level || *p < 0x80)
        return t->byte_id[*p];
    if (utf8_decode(p, end, bytes) == UTF8_BAD)
        return -1;
    return token_index_find(t, &t->by_bytes, (const char *)p, *bytes);
}

static bool has_fallback(const struct tokenizer *t, const uint8_t *p, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++)
        if (t->fallback_id[p[i]] < 0)
            return false;
    return true;
}

// Turns text into the first symbols. A symbol without a token becomes the tokens of its bytes, or
// the unknown token, if the file has them. With fuse_unk a run of unknown tokens becomes one. An
// unknown token is put when the next known symbol comes, so behind tokens of bytes, as in the
// reference.
static int first_symbols(const struct bpe *b, const uint8_t *piece, size_t n, int32_t *ids,
                         size_t stride, size_t *count, struct err *e) {
    const struct tokenizer *t = b->t;
    size_t m = 0;
    bool unknown = false;
    unsigned bytes;
    for (const uint8_t *p = piece, *end = piece + n; p < end; p += bytes) {
        int32_t id = symbol_id(t, p, end, &bytes);
        if (id < 0 && has_fallback(t, p, bytes)) {
            for (unsigned i = 0; i < bytes; i++)
                ids[stride * m++] = t->fallback_id[p[i]];
            continue;
        }
        if (id < 0 && t->unk_id < 0)
            return err_set(e, ERR_UNSUPPORTED,
                           "%s: the text has a %s 0x%02x, for which the vocabulary has no token "
                           "(and there is no unk_token)",
                           t->name, bytes > 1 ? "character that begins with byte" : "byte", *p);
        if (unknown && (id >= 0 || !t->fuse_unk))
            ids[stride * m++] = t->unk_id;
        unknown = id < 0;
        if (id >= 0)
            ids[stride * m++] = id;
    }
    if (unknown)
        ids[stride * m++] = t->unk_id;
    *count = m;
    return 0;
}

static int encode_short(struct bpe *b, const uint8_t *piece, size_t n, struct token_list *out,
                        struct err *e) {
    int32_t ids[SHORT_MOST], results[SHORT_MOST];
    uint32_t ranks[SHORT_MOST];
    const struct merge_table *m = &b->t->merges;
    TRY(first_symbols(b, piece, n, ids, 1, &n, e));
    for (size_t i = 0; i + 1 < n; i++) {
        const struct merge *found = merge_find(m, ids[i], ids[i + 1]);
        ranks[i] = found ? (uint32_t)found->rank : UINT32_MAX;
        results[i] = found ? found->result : -1;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == UINT32_MAX)
            break;
        ids[best] = results[best];
        size_t tail = n - best - 2; // symbols after the right half of the merged pair
        memmove(ids + best + 1, ids + best + 2, tail * sizeof *ids);
        if (tail > 0) {
            memmove(ranks + best, ranks + best + 1, tail * sizeof *ranks);
            memmove(results + best, results + best + 1, tail * sizeof *results);
        }
        n--;
        for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct merge *found = merge_find(m, ids[i], ids[i + 1]);
            ranks[i] = found ? (uint32_t)found->rank : UINT32_MAX;
            results[i] = found ? found->result : -1;
        }
    }
    memcpy(out->ids + out->n, ids, n * sizeof *ids);
    out->n += n;
    return 0;
}

static int heap_push(struct bpe *b, uint64_t x, struct err *e) {
    if (!array_room(&b->heap, b->heap_n, 1, &b->heap_capacity, sizeof *b->heap, 1024))
        return err_set(e, ERR_MEMORY, "no memory for a piece of text without a break");
    size_t i = b->heap_n++;
    while (i > 0 && b->heap[(i - 1) / 4] > x) {
        b->heap[i] = b->heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    b->heap[i] = x;
    return 0;
}

static uint64_t heap_pop(struct bpe *b) {
    uint64_t *h = b->heap, top = h[0], x = h[--b->heap_n];
    size_t n = b->heap_n, i = 0;
    for (;;) {
        size_t first = 4 * i + 1, least = first;
        if (first >= n)
            break;
        for (size_t j = first + 1; j < n && j < first + 4; j++)
            if (h[j] < h[least])
                least = j;
        if (h[least] >= x)
            break;
        h[i] = h[least];
        i = least;
    }
    if (n > 0)
        h[i] = x;
    return top;
}

// Pushes the pair whose left symbol is at `place`, if the file merges it.
static int push_pair(struct bpe *b, int32_t place, struct err *e) {
    const struct symbol *s = b->symbols;
    if (place < 0 || s[place].after < 0)
        return 0;
    const struct merge *m = merge_find(&b->t->merges, s[place].id, s[s[place].after].id);
    return m ? heap_push(b, (uint64_t)m->rank << 32 | (uint32_t)place, e) : 0;
}

static int merge_long(struct bpe *b, struct err *e) {
    struct symbol *s = b->symbols;
    while (b->heap_n > 0) {
        uint64_t top = heap_pop(b);
        int32_t place = (int32_t)(uint32_t)top, after = s[place].after;
        if (s[place].id < 0 || after < 0)
            continue; // meanwhile merged into another symbol, or now the last one
        const struct merge *m = merge_find(&b->t->merges, s[place].id, s[after].id);
        if (!m || (uint32_t)m->rank != top >> 32)
            continue; // another pair is there now, which has a separate entry
        s[place].id = m->result;
        s[place].after = s[after].after;
        s[after].id = -1;
        if (s[place].after >= 0)
            s[s[place].after].before = place;
        TRY(push_pair(b, s[place].before, e));
        TRY(push_pair(b, place, e));
    }
    return 0;
}

static int encode_long(struct bpe *b, const uint8_t *piece, size_t n, struct token_list *out,
                       struct err *e) {
    if (n > INT32_MAX / 2)
        return err_set(e, ERR_USAGE, "a text has %zu bytes without a break; accepted: at most %d",
                       n, INT32_MAX / 2);
    if (!array_room(&b->symbols, 0, n, &b->symbols_capacity, sizeof *b->symbols, 0))
        return err_set(e, ERR_MEMORY, "no memory for %zu bytes without a break", n);
    struct symbol *s = b->symbols;
    TRY(first_symbols(b, piece, n, &s->id, sizeof *s / sizeof s->id, &n, e));
    for (size_t i = 0; i < n; i++) {
        s[i].before = (int32_t)i - 1;
        s[i].after = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    b->heap_n = 0;
    for (size_t i = 0; i + 1 < n; i++)
        TRY(push_pair(b, (int32_t)i, e));
    TRY(merge_long(b, e));
    for (int32_t i = n > 0 ? 0 : -1; i >= 0; i = s[i].after)
        out->ids[out->n++] = s[i].id;
    return 0;
}

static int encode_uncached(struct bpe *b, const uint8_t *piece, size_t n, struct token_list *out,
                           struct err *e) {
    TRY(token_list_reserve(out, n, e));
    if (b->t->ignore_merges) {
        int32_t id = token_index_find(b->t, &b->t->by_bytes, (const char *)piece, n);
        if (id >= 0) {
            out->ids[out->n++] = id;
            return 0;
        }
    }
    if (b->t->merges.n == 0) {
        TRY(first_symbols(b, piece, n, out->ids + out->n, 1, &n, e));
        out->n += n;
        return 0;
    }
    return n <= SHORT_MOST ? encode_short(b, piece, n, out, e) : encode_long(b, piece, n, out, e);
}

static int encode_cached(struct bpe *b, const uint8_t *piece, size_t n, struct token_list *out,
                         struct err *e) {
    if (n > CACHE_KEY_MOST)
        return encode_uncached(b, piece, n, out, e);
    struct cached *c = &b->cache[hash_u64(piece, n) & (CACHE_LINES - 1)];
    if (c->key_bytes == n && memcmp(c->key, piece, n) == 0) {
        if (out->capacity - out->n < CACHE_IDS_MOST)
            TRY(token_list_reserve(out, CACHE_IDS_MOST, e));
        memcpy(out->ids + out->n, c->ids, sizeof c->ids); // a fixed size is faster than c->n
        out->n += c->n;
        return 0;
    }
    size_t before = out->n;
    TRY(encode_uncached(b, piece, n, out, e));
    size_t count = out->n - before;
    if (count <= CACHE_IDS_MOST) {
        c->key_bytes = (uint8_t)n;
        c->n = (uint8_t)count;
        memcpy(c->key, piece, n);
        memcpy(c->ids, out->ids + before, count * sizeof *c->ids);
    }
    return 0;
}

// Cuts a long piece where nothing is ever merged, in most files in front of every space. Without
// cuts a whole document would be one piece. Around a character without a token nothing is cut,
// because its tokens depend on their neighbours.
static int encode_cut(struct bpe *b, const uint8_t *piece, size_t n, struct token_list *out,
                      struct err *e) {
    const uint8_t *from = piece, *end = piece + n;
    uint32_t last = 0;
    bool last_known = false;
    unsigned bytes;
    for (const uint8_t *p = piece; p < end; p += bytes) {
        const bool known = symbol_id(b->t, p, end, &bytes) >= 0;
        const uint32_t c = utf8_decode(p, end, &bytes), bit = pair_hash(last, c);
        if (known && last_known && !(b->t->joined[bit / 8] >> bit % 8 & 1)) {
            TRY(encode_cached(b, from, (size_t)(p - from), out, e));
            from = p;
        }
        last = c;
        last_known = known;
    }
    return encode_cached(b, from, (size_t)(end - from), out, e);
}

int bpe_encode(struct bpe *b, const uint8_t *piece, size_t n, struct token_list *out,
               struct err *e) {
    if (n == 0)
        return 0;
    if (n > CACHE_KEY_MOST && b->t->joined && !b->t->ignore_merges)
        return encode_cut(b, piece, n, out, e);
    return encode_cached(b, piece, n, out, e);
}

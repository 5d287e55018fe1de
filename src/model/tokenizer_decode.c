// tokenizer_decode.c - turns ids into text.
//
// Place: implements tokenizer_decode of tokenizer.h. Where symbols are bytes, the text is the bytes
// of the tokens. Where symbols are characters, the tokens are a list of texts, and each step of the
// file's decoder changes the list, as in Hugging Face's code.
#include "model/tokenizer_impl.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

// Texts one after another. A text ends where the next one begins.
struct pieces {
    struct unicode_buffer text;
    size_t *ends;
    size_t n, capacity;
};

static int end_piece(struct pieces *p, struct err *e) {
    if (!array_room(&p->ends, p->n, 1, &p->capacity, sizeof *p->ends, 64))
        return err_set(e, ERR_MEMORY, "no memory for the text of %zu tokens", p->n);
    p->ends[p->n++] = p->text.n;
    return 0;
}

static int add_piece(struct pieces *p, const void *text, size_t n, struct err *e) {
    TRY(unicode_buffer_add(&p->text, text, n, e));
    return end_piece(p, e);
}

// The byte of a token like <0x0A>, or -1.
static int piece_byte(const uint8_t *p, size_t n) {
    int byte = 0;
    if (n != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        int digit = p[i] >= '0' && p[i] <= '9'   ? p[i] - '0'
                    : p[i] >= 'a' && p[i] <= 'f' ? p[i] - 'a' + 10
                    : p[i] >= 'A' && p[i] <= 'F' ? p[i] - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return -1;
        byte = 16 * byte + digit;
    }
    return byte;
}

// Ends a run of bytes that begins at `from`. If it is not valid as a whole, each byte of it becomes
// U+FFFD.
static int end_bytes(struct pieces *to, size_t from, struct err *e) {
    const size_t n = to->text.n - from;
    unsigned bytes;
    for (size_t i = 0; i < n; i += bytes)
        if (utf8_decode(to->text.data + from + i, to->text.data + from + n, &bytes) == UTF8_BAD) {
            to->text.n = from;
            for (size_t k = 0; k < n; k++)
                TRY(add_piece(to, "\xEF\xBF\xBD", 3, e));
            return 0;
        }
    return n > 0 ? end_piece(to, e) : 0;
}

static int decode_bytes(const struct pieces *from, struct pieces *to, struct err *e) {
    size_t run = 0; // where the bytes of a run begin in `to`
    for (size_t i = 0, at = 0; i < from->n; at = from->ends[i++]) {
        const uint8_t *p = from->text.data + at;
        const size_t n = from->ends[i] - at;
        const int byte = piece_byte(p, n);
        if (byte >= 0) {
            TRY(unicode_buffer_add(&to->text, &(uint8_t){(uint8_t)byte}, 1, e));
            continue;
        }
        TRY(end_bytes(to, run, e));
        TRY(add_piece(to, p, n, e));
        run = to->text.n;
    }
    return end_bytes(to, run, e);
}

// Takes a character off both ends of a text.
static int strip(const struct decode_step *s, bool keep_front, const uint8_t *p, size_t n,
                 struct pieces *to, struct err *e) {
    const size_t width = s->text_bytes;
    for (size_t k = 0; !keep_front && k < s->start && n >= width && memcmp(p, s->text, width) == 0;
         k++, n -= width)
        p += width;
    for (size_t k = 0; k < s->stop && n >= width && memcmp(p + n - width, s->text, width) == 0; k++)
        n -= width;
    return add_piece(to, p, n, e);
}

static int metaspace(const struct decode_step *s, bool drop, const uint8_t *p, size_t n,
                     struct pieces *to, struct err *e) {
    for (size_t i = 0, from = 0; i <= n;) {
        const bool found = i + s->text_bytes <= n && memcmp(p + i, s->text, s->text_bytes) == 0;
        if (found || i == n)
            TRY(unicode_buffer_add(&to->text, p + from, i - from, e));
        if (found && !drop)
            TRY(unicode_buffer_add(&to->text, " ", 1, e));
        i += found ? s->text_bytes : 1;
        from = found ? i : from;
    }
    return end_piece(to, e);
}

static int decode_step(const struct tokenizer *t, const struct decode_step *s, bool continues,
                       size_t most, const struct pieces *from, struct pieces *to, struct err *e) {
    to->n = to->text.n = 0;
    if (s->kind == DECODE_BYTES)
        return decode_bytes(from, to, e);
    if (s->kind == DECODE_FUSE)
        return add_piece(to, from->text.data, from->text.n, e);
    for (size_t i = 0, at = 0; i < from->n; at = from->ends[i++]) {
        const uint8_t *p = from->text.data ? from->text.data + at : (const uint8_t *)"";
        const size_t n = from->ends[i] - at;
        size_t first;
        int rc;
        if (s->kind == DECODE_STRIP)
            rc = strip(s, continues && i == 0, p, n, to, e);
        else if (s->kind == DECODE_METASPACE)
            rc = metaspace(s, s->drop_first && i == 0 && !continues, p, n, to, e);
        else if ((rc = tokenizer_replace(s->pattern, s->text, s->text_bytes, p, n, most, &to->text,
                                         &first, e)) == 0)
            rc = end_piece(to, e);
        if (to->text.n > most)
            return err_set(e, ERR_FORMAT,
                           "%s: the decoder Replace (%d of %d) makes a text more than %d times as "
                           "long; accepted: decoders that do not",
                           t->name, (int)(s - t->decode) + 1, t->n_decode, TOKENIZER_GROWTH_MOST);
        TRY(rc);
    }
    return 0;
}

static int decode_chars(const struct tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                        struct unicode_buffer *out, struct err *e) {
    struct pieces lists[2] = {{.n = 0}, {.n = 0}};
    int rc = 0, at = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (!(flags & TOKENIZER_SPECIAL) && tokenizer_is_special(t, ids[i]))
            continue;
        if (!t->has_decoder && (lists[0].n > 0 || (flags & TOKENIZER_CONTINUES)))
            rc = unicode_buffer_add(&lists[0].text, " ", 1, e);
        if (rc == 0)
            rc = add_piece(&lists[0], t->tokens[ids[i]].raw, t->tokens[ids[i]].raw_bytes, e);
    }
    const size_t most = TOKENIZER_GROWTH_MOST * lists[0].text.n + TOKENIZER_GROWTH_ROOM;
    for (int i = 0; rc == 0 && i < t->n_decode; i++, at = 1 - at)
        rc = decode_step(t, &t->decode[i], flags & TOKENIZER_CONTINUES, most, &lists[at],
                         &lists[1 - at], e);
    if (rc == 0)
        rc = unicode_buffer_add(out, lists[at].text.data, lists[at].text.n, e);
    for (int i = 0; i < 2; i++) {
        free(lists[i].text.data);
        free(lists[i].ends);
    }
    return rc;
}

static int decode_byte_level(const struct tokenizer *t, const int32_t *ids, size_t n,
                             unsigned flags, struct unicode_buffer *out, struct err *e) {
    for (size_t i = 0; i < n; i++)
        if ((flags & TOKENIZER_SPECIAL) || !tokenizer_is_special(t, ids[i]))
            TRY(unicode_buffer_add(out, t->tokens[ids[i]].raw, t->tokens[ids[i]].raw_bytes, e));
    return 0;
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                     char **out, size_t *bytes, size_t *capacity, struct err *e) {
    struct unicode_buffer b = {(uint8_t *)*out, *bytes, *capacity};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (!tokenizer_has(t, ids[i]))
            rc = err_set(e, ERR_USAGE, "%s: no token has the id %d; accepted: 0 to %d", t->name,
                         ids[i], t->size - 1);
    if (rc == 0)
        rc = t->byte_level ? decode_byte_level(t, ids, n, flags, &b, e)
                           : decode_chars(t, ids, n, flags, &b, e);
    *out = (char *)b.data;
    *capacity = b.capacity;
    if (rc == 0) // text in front of a bad id is not returned
        *bytes = b.n;
    return rc;
}

// A Replace in front of the bytes may only write what no byte token has.
static bool may_spell_byte(const struct decode_step *s) {
    for (size_t i = 0; i < s->text_bytes; i++)
        if (strchr("<0123456789abcdefABCDEFx>", s->text[i]) != NULL)
            return true;
    return s->text_bytes == 0;
}

bool tokenizer_is_open(const struct tokenizer *t, int32_t id) {
    bool fused = false, bytes = false, may_spell = false;
    if (t->byte_level)
        return false;
    for (int i = 0; i < t->n_decode; i++) {
        const struct decode_step *s = &t->decode[i];
        may_spell |= s->kind == DECODE_REPLACE && may_spell_byte(s);
        if (fused && (s->kind == DECODE_REPLACE || s->kind == DECODE_BYTES ||
                      (s->kind == DECODE_STRIP && s->stop > 0)))
            return true;
        if (s->kind == DECODE_BYTES && (may_spell || bytes))
            return true;
        fused |= s->kind == DECODE_FUSE;
        bytes |= s->kind == DECODE_BYTES;
    }
    const struct token *token = &t->tokens[id];
    return bytes && piece_byte((const uint8_t *)token->raw, token->raw_bytes) >= 0;
}

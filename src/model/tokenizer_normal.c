// tokenizer_normal.c - the normalizers of a tokenizer.json, applied to text between added tokens.
//
// Place: tokenizer_encode.c calls it for the text between added tokens that are matched in the
// original text. tokenizer.c calls it for the added tokens that are matched in normalized text.
#include "model/tokenizer_impl.h"

#include <string.h>
#include <utf8proc.h>

bool tokenizer_is_normal(const struct tokenizer *t, const uint8_t *text, size_t n) {
    for (int i = 0; i < t->n_normal; i++)
        if (t->normal[i].kind != NORMAL_FORM || !unicode_is_normal(text, n, t->normal[i].form))
            return false;
    return true;
}

// Works character by character, as in the reference, without context for the final sigma. U+0130 is
// the only character whose lower case is two characters.
static int lowercase(struct unicode_buffer *out, const uint8_t *text, size_t n, struct err *e) {
    const uint8_t *end = text + n;
    while (text < end) {
        unsigned bytes;
        uint32_t c = utf8_decode(text, end, &bytes);
        char lower[4];
        if (c == UTF8_BAD) {
            TRY(unicode_buffer_add(out, text, 1, e));
        } else if (c == 0x130) {
            TRY(unicode_buffer_add(out, "i\xCC\x87", 3, e));
        } else {
            c = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
            TRY(unicode_buffer_add(out, lower, utf8_encode(c, lower), e));
        }
        text += bytes;
    }
    return 0;
}

int tokenizer_replace(const struct pattern *p, const char *by, size_t by_bytes, const uint8_t *text,
                      size_t n, size_t most, struct unicode_buffer *out, size_t *first,
                      struct err *e) {
    struct pattern_scan scan;
    pattern_scan_begin(&scan, p, text, n, false);
    size_t from = 0, begin, end;
    int rc = 0;
    *first = 0;
    while (rc == 0 && pattern_scan_next(&scan, &begin, &end)) {
        rc = unicode_buffer_add(out, text + from, begin - from, e);
        if (rc == 0)
            rc = unicode_buffer_add(out, by, by_bytes, e);
        if (rc == 0 && out->n > most)
            rc = ERR_FORMAT;
        if (begin == 0)
            *first = end;
        from = end;
    }
    int ended = pattern_scan_end(&scan, rc == 0 ? e : NULL);
    TRY(rc != 0 ? rc : ended);
    return unicode_buffer_add(out, text + from, n - from, e);
}

// As in the reference, what replaces several characters counts as the last one of them.
static int replace(const struct normal_step *s, struct normal_run *run, struct unicode_buffer *out,
                   const uint8_t *text, size_t n, struct err *e) {
    size_t first;
    TRY(tokenizer_replace(s->pattern, s->text, s->text_bytes, text, n, run->most, out, &first, e));
    unsigned bytes = 1;
    if (first > 0)
        utf8_decode(text, text + n, &bytes);
    run->kept = run->kept && (first == 0 || (first == bytes && s->text_bytes > 0));
    return 0;
}

static int strip(const struct normal_step *s, struct normal_run *run, struct unicode_buffer *out,
                 const uint8_t *text, size_t n, struct err *e) {
    const uint8_t *end = text + n;
    unsigned bytes;
    while (s->left && text < end && unicode_is_space(utf8_decode(text, end, &bytes))) {
        text += bytes;
        run->kept = false;
    }
    while (s->right && text < end && unicode_is_space(utf8_decode_back(text, end, &bytes)))
        end -= bytes;
    return unicode_buffer_add(out, text, (size_t)(end - text), e);
}

static int apply(const struct normal_step *s, struct normal_run *run, struct unicode_buffer *out,
                 const uint8_t *text, size_t n, struct err *e) {
    switch (s->kind) {
    case NORMAL_FORM:
        return unicode_normalize(out, text, n, s->form, e);
    case NORMAL_LOWERCASE:
        return lowercase(out, text, n, e);
    case NORMAL_REPLACE:
        return replace(s, run, out, text, n, e);
    case NORMAL_PREPEND:
        if (n > 0 && !run->joined)
            TRY(unicode_buffer_add(out, s->text, s->text_bytes, e));
        return unicode_buffer_add(out, text, n, e);
    case NORMAL_STRIP:
        return strip(s, run, out, text, n, e);
    }
    return 0;
}

static int too_long(const struct tokenizer *t, int i, size_t from, size_t most, struct err *e) {
    static const char *const names[] = {"of a Unicode form", "Lowercase", "Replace", "Prepend",
                                        "Strip"};
    return err_set(e, ERR_FORMAT,
                   "%s: the normalizer %s (%d of %d) turns %zu bytes into more than %zu; accepted: "
                   "normalizers that make no text more than %d times as long",
                   t->name, names[t->normal[i].kind], i + 1, t->n_normal, from, most,
                   TOKENIZER_GROWTH_MOST);
}

int tokenizer_normalize(const struct tokenizer *t, const uint8_t *text, size_t n,
                        struct normal_run *run, struct unicode_buffer *out,
                        struct unicode_buffer *spare, struct err *e) {
    out->n = 0;
    run->kept = true;
    if (t->n_normal == 0)
        return unicode_buffer_add(out, text, n, e);
    for (int i = 0; i < t->n_normal; i++) {
        // Each step reads what the step before wrote. The buffers alternate so that the last step
        // writes `out`.
        struct unicode_buffer *to = (t->n_normal - i) % 2 ? out : spare;
        to->n = 0;
        int rc = apply(&t->normal[i], run, to, text, n, e);
        if (to->n > run->most)
            return too_long(t, i, n, run->most, e);
        TRY(rc);
        run->longest = to->n > run->longest ? to->n : run->longest;
        text = to->data ? to->data : (const uint8_t *)"";
        n = to->n;
    }
    return 0;
}

// unicode.c - see unicode.h.
#include "model/unicode.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

int unicode_category(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)(c == UTF8_BAD ? 0xFFFD : c));
}

bool unicode_is_space(uint32_t c) {
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

#define BIT(name) (1u << UTF8PROC_CATEGORY_##name)

static bool has_category(uint32_t c, uint32_t mask) {
    return mask >> unicode_category(c) & 1;
}

bool unicode_is_alphanumeric(uint32_t c) {
    if (has_category(c, BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO) | BIT(MN) | BIT(MC) |
                            BIT(ME) | BIT(ND) | BIT(NL) | BIT(PC)))
        return true;
    // Symbols that Unicode counts as alphabetic: letters in circles and squares.
    return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
           (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

bool unicode_is_numeric(uint32_t c) {
    return has_category(c, BIT(ND) | BIT(NL) | BIT(NO));
}

bool unicode_is_punctuation(uint32_t c) {
    if (c < 0x80)
        return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
               (c >= 0x7B && c <= 0x7E);
    return has_category(c, BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO));
}

// Converts to upper case and then to lower case. The long s and the Kelvin sign become s and k only
// by way of their capitals.
uint32_t unicode_fold(uint32_t c) {
    if (c >= UNICODE_COUNT || c == 0x130 || c == 0x131) // the Turkish i's are separate letters
        return c;
    return (uint32_t)utf8proc_tolower(utf8proc_toupper((utf8proc_int32_t)c));
}

// ---------------------------------------------------------------- normal forms

int unicode_buffer_reserve(struct unicode_buffer *b, size_t more, struct err *e) {
    if (array_room(&b->data, b->n, more, &b->capacity, 1, 256))
        return 0;
    return err_set(e, ERR_MEMORY, "no memory for %zu more bytes of text", more);
}

int unicode_buffer_add(struct unicode_buffer *b, const void *data, size_t n, struct err *e) {
    TRY(unicode_buffer_reserve(b, n, e));
    if (n > 0)
        memcpy(b->data + b->n, data, n);
    b->n += n;
    return 0;
}

// Characters below this limit never change in the form. Below U+0300 nothing combines, so NFC
// changes nothing there. The first decomposition is at U+00C0, and the first compatibility mapping
// is at U+00A0.
static uint32_t normal_below(enum unicode_form form) {
    return form == UNICODE_NFC    ? 0x300
           : form == UNICODE_NFKC ? 0xA0
           : form == UNICODE_NFD  ? 0xC0
                                  : 0xA0;
}

bool unicode_is_normal(const uint8_t *text, size_t n, enum unicode_form form) {
    const uint8_t *end = text + n;
    uint32_t below = normal_below(form);
    while (text < end) {
        unsigned bytes;
        uint64_t eight; // skips ASCII eight bytes at a time
        if (end - text >= 8 && (memcpy(&eight, text, 8), (eight & 0x8080808080808080u) == 0)) {
            text += 8;
            continue;
        }
        uint32_t c = utf8_decode(text, end, &bytes);
        if (c >= below && c != UTF8_BAD)
            return false;
        text += bytes;
    }
    return true;
}

// Characters between two places across which nothing can combine, with a second buffer for sorting.
struct pending {
    utf8proc_int32_t *c, *spare;
    size_t n, capacity;
};

static int pending_add(struct pending *d, utf8proc_int32_t c, struct err *e) {
    if (d->n == d->capacity) {
        size_t capacity = d->capacity ? d->capacity * 2 : 64;
        utf8proc_int32_t *grown = realloc(d->c, capacity * sizeof *grown);
        if (grown)
            d->c = grown;
        utf8proc_int32_t *spare = grown ? realloc(d->spare, capacity * sizeof *spare) : NULL;
        if (!spare)
            return err_set(e, ERR_MEMORY, "no memory for %zu combining characters", capacity);
        d->spare = spare;
        d->capacity = capacity;
    }
    d->c[d->n++] = c;
    return 0;
}

static unsigned combining_class(utf8proc_int32_t c) {
    return (unsigned)utf8proc_get_property(c)->combining_class & 0xFF;
}

// Sorts a run of marks by class and keeps the order within a class. It is a counting sort, because
// a run may be as long as the text.
static void sort_marks(struct pending *d, size_t begin, size_t end) {
    size_t start[257] = {0};
    for (size_t i = begin; i < end; i++)
        start[combining_class(d->c[i]) + 1]++;
    for (int k = 0; k < 256; k++)
        start[k + 1] += start[k];
    for (size_t i = begin; i < end; i++)
        d->spare[start[combining_class(d->c[i])]++] = d->c[i];
    memcpy(d->c + begin, d->spare, (end - begin) * sizeof *d->c);
}

static int flush(struct pending *d, struct unicode_buffer *out, bool compose, struct err *e) {
    for (size_t i = 0; i < d->n;) {
        size_t end = i;
        while (end < d->n && combining_class(d->c[end]) != 0)
            end++;
        if (end - i > 1)
            sort_marks(d, i, end);
        i = end + 1;
    }
    size_t n = d->n;
    d->n = 0;
    if (compose && n > 1) {
        utf8proc_ssize_t left =
            utf8proc_normalize_utf32(d->c, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (left < 0)
            return err_set(e, ERR_INTERNAL, "a text could not be normalized: %s",
                           utf8proc_errmsg(left));
        n = (size_t)left;
    }
    TRY(unicode_buffer_reserve(out, 4 * n, e));
    for (size_t i = 0; i < n; i++)
        out->n += (size_t)utf8proc_encode_char(d->c[i], out->data + out->n);
    return 0;
}

// Decomposes one character. Most mappings have a few characters. The longest has 18.
static int decompose(struct pending *d, uint32_t c, bool compatible, struct err *e) {
    utf8proc_int32_t parts[32];
    int last = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)c, parts, 32,
                                (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                    (compatible ? UTF8PROC_COMPAT : 0)),
                                &last);
    if (n < 0 || n > 32) {
        parts[0] = (utf8proc_int32_t)c;
        n = 1;
    }
    for (utf8proc_ssize_t i = 0; i < n; i++)
        TRY(pending_add(d, parts[i], e));
    return 0;
}

int unicode_normalize(struct unicode_buffer *out, const uint8_t *text, size_t n,
                      enum unicode_form form, struct err *e) {
    bool compose = form == UNICODE_NFC || form == UNICODE_NFKC;
    bool compatible = form == UNICODE_NFKC || form == UNICODE_NFKD;
    const uint8_t *end = text + n;
    struct pending d = {0};
    int rc = 0;
    while (rc == 0 && text < end) {
        unsigned bytes;
        uint32_t c = utf8_decode(text, end, &bytes);
        // ASCII and bad bytes neither change nor combine with the text before. Neither does U+11A7,
        // which utf8proc's composition mistakes for the first of the Hangul finals that follow it.
        if (c < 0x80 || c == UTF8_BAD || c == 0x11A7)
            rc = flush(&d, out, compose, e);
        if (rc == 0 && c == UTF8_BAD)
            rc = unicode_buffer_add(out, text, 1, e);
        else if (rc == 0)
            rc = c < 0x80 ? pending_add(&d, (utf8proc_int32_t)c, e)
                          : decompose(&d, c, compatible, e);
        text += bytes;
    }
    if (rc == 0)
        rc = flush(&d, out, compose, e);
    free(d.c);
    free(d.spare);
    return rc;
}

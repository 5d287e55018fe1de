// unicode.c - see unicode.h.
#include "model/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

uint32_t unicode_decode_wide(const uint8_t *p, const uint8_t *end, unsigned *bytes) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned n = *p >= 0xF0 ? 4 : *p >= 0xE0 ? 3 : 2;
    *bytes = 1;
    if (*p < 0xC2 || *p > 0xF4 || (size_t)(end - p) < n)
        return UNICODE_BAD;
    uint32_t c = *p & (0x7Fu >> n);
    for (unsigned i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return UNICODE_BAD;
        c = c << 6 | (p[i] & 0x3F);
    }
    if (c < least[n] || c >= UNICODE_COUNT || (c >= 0xD800 && c < 0xE000))
        return UNICODE_BAD;
    *bytes = n;
    return c;
}

uint32_t unicode_decode_back(const uint8_t *begin, const uint8_t *p, unsigned *bytes) {
    for (unsigned n = 1; n <= 4 && (size_t)(p - begin) >= n; n++) {
        if ((p[-(ptrdiff_t)n] & 0xC0) == 0x80)
            continue;
        unsigned taken;
        uint32_t c = unicode_decode(p - n, p, &taken);
        if (taken != n)
            break;
        *bytes = n;
        return c;
    }
    *bytes = 1;
    return UNICODE_BAD;
}

unsigned unicode_encode(uint32_t c, uint8_t out[4]) {
    if (c >= UNICODE_COUNT || (c >= 0xD800 && c < 0xE000))
        return 0;
    return (unsigned)utf8proc_encode_char((utf8proc_int32_t)c, out);
}

int unicode_category(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)(c == UNICODE_BAD ? 0xFFFD : c));
}

bool unicode_is_space(uint32_t c) {
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool unicode_is_alphanumeric(uint32_t c) {
    switch (unicode_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default: // symbols that Unicode calls alphabetic: letters in circles and squares
        return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
               (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
    }
}

bool unicode_is_numeric(uint32_t c) {
    int k = unicode_category(c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool unicode_is_punctuation(uint32_t c) {
    if (c < 0x80)
        return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
               (c >= 0x7B && c <= 0x7E);
    int k = unicode_category(c);
    return k == UTF8PROC_CATEGORY_PC || k == UTF8PROC_CATEGORY_PD || k == UTF8PROC_CATEGORY_PS ||
           k == UTF8PROC_CATEGORY_PE || k == UTF8PROC_CATEGORY_PI || k == UTF8PROC_CATEGORY_PF ||
           k == UTF8PROC_CATEGORY_PO;
}

// Up, then down: the long s and the Kelvin sign join s and k only by way of their capitals.
uint32_t unicode_fold(uint32_t c) {
    if (c >= UNICODE_COUNT || c == 0x130 ||
        c == 0x131) // Turkish i, which is another letter elsewhere
        return c;
    return (uint32_t)utf8proc_tolower(utf8proc_toupper((utf8proc_int32_t)c));
}

// ---------------------------------------------------------------- normal forms

int unicode_buffer_reserve(struct unicode_buffer *b, size_t more, struct err *e) {
    if (more <= b->capacity - b->n)
        return 0;
    size_t capacity = b->capacity ? b->capacity : 256;
    while (capacity - b->n < more && capacity <= SIZE_MAX / 2)
        capacity *= 2;
    uint8_t *data = capacity - b->n < more ? NULL : realloc(b->data, capacity);
    if (!data)
        return err_set(e, ERR_MEMORY, "no memory for %zu more bytes of text", more);
    b->data = data;
    b->capacity = capacity;
    return 0;
}

int unicode_buffer_add(struct unicode_buffer *b, const void *data, size_t n, struct err *e) {
    TRY(unicode_buffer_reserve(b, n, e));
    if (n > 0)
        memcpy(b->data + b->n, data, n);
    b->n += n;
    return 0;
}

// Below U+0300 nothing combines, so composed forms are as they are; decomposed ones end with ASCII,
// compatibility ones too (U+00A0 and up have mappings).
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
        uint64_t eight; // ASCII, eight at a time
        if (end - text >= 8 && (memcpy(&eight, text, 8), (eight & 0x8080808080808080u) == 0)) {
            text += 8;
            continue;
        }
        uint32_t c = unicode_decode(text, end, &bytes);
        if (c >= below && c != UNICODE_BAD)
            return false;
        text += bytes;
    }
    return true;
}

// Characters between two places where nothing can combine across, with room for a sort.
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

// Marks of a run in the order of their class, those of one class as they stood: a counting sort, as a
// run may be as long as the text.
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

// One character decomposed. Most have a mapping of a few; the longest there is has 18.
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
        uint32_t c = unicode_decode(text, end, &bytes);
        // ASCII (and a bad byte) neither changes nor combines with what stands before it. Nor does
        // U+11A7, which utf8proc's composition takes for the first of the Hangul finals behind it.
        if (c < 0x80 || c == UNICODE_BAD || c == 0x11A7)
            rc = flush(&d, out, compose, e);
        if (rc == 0 && c == UNICODE_BAD)
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

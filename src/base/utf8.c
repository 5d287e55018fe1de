// utf8.c - see utf8.h.
#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>

uint32_t utf8_decode_wide(const uint8_t *p, const uint8_t *end, unsigned *bytes) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned n = *p >= 0xF0 ? 4 : *p >= 0xE0 ? 3 : 2;
    *bytes = 1;
    if (*p < 0xC2 || *p > 0xF4 || (size_t)(end - p) < n)
        return UTF8_BAD;
    uint32_t c = *p & (0x7Fu >> n);
    for (unsigned i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return UTF8_BAD;
        c = c << 6 | (p[i] & 0x3F);
    }
    if (c < least[n] || c >= UTF8_BAD || (c >= 0xD800 && c < 0xE000))
        return UTF8_BAD;
    *bytes = n;
    return c;
}

uint32_t utf8_decode_back(const uint8_t *begin, const uint8_t *p, unsigned *bytes) {
    for (unsigned n = 1; n <= 4 && (size_t)(p - begin) >= n; n++) {
        if ((p[-(ptrdiff_t)n] & 0xC0) == 0x80)
            continue;
        unsigned taken;
        uint32_t c = utf8_decode(p - n, p, &taken);
        if (taken != n)
            break;
        *bytes = n;
        return c;
    }
    *bytes = 1;
    return UTF8_BAD;
}

unsigned utf8_encode(uint32_t c, char out[4]) {
    static const uint8_t leads[] = {0, 0, 0xC0, 0xE0, 0xF0}; // by number of bytes
    unsigned n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (c >= UTF8_BAD || (c >= 0xD800 && c < 0xE000))
        return 0;
    for (unsigned i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(leads[n] | c);
    return n;
}

// Bytes at p that begin a well-formed character and continue it, as far as they do. *whole says
// whether the character is complete. A broken character is replaced as a unit, as other programs
// do.
static size_t char_part(const uint8_t *p, const uint8_t *end, bool *whole) {
    size_t length = *p < 0x80   ? 1
                    : *p < 0xC2 ? 0
                    : *p < 0xE0 ? 2
                    : *p < 0xF0 ? 3
                    : *p < 0xF5 ? 4
                                : 0;
    size_t n = 1;
    while (n < length && p + n < end) {
        uint8_t low = 0x80, high = 0xBF;
        if (n == 1) {
            low = *p == 0xE0 ? 0xA0 : *p == 0xF0 ? 0x90 : 0x80;
            high = *p == 0xED ? 0x9F : *p == 0xF4 ? 0x8F : 0xBF;
        }
        if (p[n] < low || p[n] > high)
            break;
        n++;
    }
    *whole = length > 0 && n == length;
    return n;
}

size_t utf8_repair(const char *text, size_t n, char *out) {
    const uint8_t *p = (const uint8_t *)text, *end = p + n;
    size_t written = 0;
    while (p < end) {
        bool whole;
        const size_t bytes = char_part(p, end, &whole), take = whole ? bytes : 3;
        memcpy(out + written, whole ? (const char *)p : "\xEF\xBF\xBD", take);
        written += take;
        p += bytes;
    }
    return written;
}

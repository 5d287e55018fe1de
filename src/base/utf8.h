// utf8.h - decodes and encodes UTF-8 as Unicode 15, table 3-7, defines it: no overlong forms, no
// surrogates, at most U+10FFFF.
#ifndef HAGGLE_BASE_UTF8_H
#define HAGGLE_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

enum { UTF8_BAD = 0x110000 }; // one more than the largest character

// The character at p (p < end) and its number of bytes. UTF8_BAD and 1 for an invalid byte.
uint32_t utf8_decode_wide(const uint8_t *p, const uint8_t *end, unsigned *bytes);
static inline uint32_t utf8_decode(const uint8_t *p, const uint8_t *end, unsigned *bytes) {
    if (*p < 0x80) {
        *bytes = 1;
        return *p;
    }
    return utf8_decode_wide(p, end, bytes);
}
// The character that ends at p (begin < p).
uint32_t utf8_decode_back(const uint8_t *begin, const uint8_t *p, unsigned *bytes);
// Copies n bytes as valid UTF-8 to out, which has room for 3 * n bytes, and returns the number of
// bytes written. The bytes of one broken character become one U+FFFD.
size_t utf8_repair(const char *text, size_t n, char *out);
unsigned utf8_encode(uint32_t c, char out[4]); // bytes written; 0 when c has no UTF-8 form

#endif

// unicode.h - what text handling needs to know of Unicode: UTF-8 back and forth, general categories,
// white space, word characters, case, normal forms.
//
// Place: model/pattern.c builds its sets from it, model/tokenizer_*.c reads text with it. The data is
// utf8proc's; what utf8proc leaves out (white space, word) is derived here as Oniguruma and Rust
// define it, because published tokenizers were made with those.
//
// Invariant: text is any bytes. A byte that is not part of well-formed UTF-8 counts as one character,
// UNICODE_BAD, that has the properties of U+FFFD and is never changed.
#ifndef HAGGLE_MODEL_UNICODE_H
#define HAGGLE_MODEL_UNICODE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UNICODE_COUNT = 0x110000, UNICODE_BAD = UNICODE_COUNT };

// The character at p (p < end) and its bytes; UNICODE_BAD and 1 for a byte that is not UTF-8.
uint32_t unicode_decode_wide(const uint8_t *p, const uint8_t *end, unsigned *bytes);
static inline uint32_t unicode_decode(const uint8_t *p, const uint8_t *end, unsigned *bytes) {
    if (*p < 0x80) {
        *bytes = 1;
        return *p;
    }
    return unicode_decode_wide(p, end, bytes);
}
// The character that ends at p (begin < p).
uint32_t unicode_decode_back(const uint8_t *begin, const uint8_t *p, unsigned *bytes);
unsigned unicode_encode(uint32_t c, uint8_t out[4]); // bytes written; 0 for what has no UTF-8

// utf8proc's number of the general category (UTF8PROC_CATEGORY_LU, ...).
int unicode_category(uint32_t c);
bool unicode_is_space(uint32_t c);
// Letters, marks, decimal and letter numbers, connectors: \w, as both Oniguruma and Rust have it
// inside a class.
bool unicode_is_alphanumeric(uint32_t c);
bool unicode_is_numeric(uint32_t c);     // Nd, Nl, No
bool unicode_is_punctuation(uint32_t c); // P*, and all of ASCII's
uint32_t unicode_fold(uint32_t c);       // same for characters that differ in case only

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

// A growing buffer of bytes; starts zeroed, freed by the caller with free(data).
struct unicode_buffer {
    uint8_t *data;
    size_t n, capacity;
};
int unicode_buffer_reserve(struct unicode_buffer *b, size_t more, struct err *e);
int unicode_buffer_add(struct unicode_buffer *b, const void *data, size_t n, struct err *e);
// True when the text is certainly in the form already (a quick look; false means: do the work).
bool unicode_is_normal(const uint8_t *text, size_t n, enum unicode_form form);
// Appends the text in a normal form. Linear, whatever the text: runs of combining marks are sorted
// by counting.
int unicode_normalize(struct unicode_buffer *out, const uint8_t *text, size_t n,
                      enum unicode_form form, struct err *e);

#endif

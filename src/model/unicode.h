// unicode.h - the parts of Unicode that text handling needs: general categories, white space, word
// characters, case, normal forms.
//
// Place: model/pattern*.c builds its sets with it, and model/tokenizer_*.c reads text with it. The
// data comes from utf8proc. What utf8proc does not have (white space, word) is derived here as
// Oniguruma and Rust define it, because published tokenizers were made with those.
//
// Invariant: text may be any bytes. A byte that is not part of valid UTF-8 counts as one character,
// UTF8_BAD, which has the properties of U+FFFD and is never changed.
#ifndef HAGGLE_MODEL_UNICODE_H
#define HAGGLE_MODEL_UNICODE_H

#include "base/err.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UNICODE_COUNT = UTF8_BAD };

// utf8proc's number of the general category (UTF8PROC_CATEGORY_LU, ...).
int unicode_category(uint32_t c);
bool unicode_is_space(uint32_t c);
// Letters, marks, decimal and letter numbers, connectors: the \w of both Oniguruma and Rust inside
// a class.
bool unicode_is_alphanumeric(uint32_t c);
bool unicode_is_numeric(uint32_t c);     // Nd, Nl, No
bool unicode_is_punctuation(uint32_t c); // P*, and all punctuation and symbols of ASCII
uint32_t unicode_fold(uint32_t c);       // equal for characters that differ only in case

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

// A growing buffer of bytes. It starts zeroed. The caller frees it with free(data).
struct unicode_buffer {
    uint8_t *data;
    size_t n, capacity;
};
int unicode_buffer_reserve(struct unicode_buffer *b, size_t more, struct err *e);
int unicode_buffer_add(struct unicode_buffer *b, const void *data, size_t n, struct err *e);
// A quick check. True means that the text is certainly in the form. False means that it may not be.
bool unicode_is_normal(const uint8_t *text, size_t n, enum unicode_form form);
// Appends the text in a normal form. Takes linear time for any text, because runs of combining
// marks are sorted by counting.
int unicode_normalize(struct unicode_buffer *out, const uint8_t *text, size_t n,
                      enum unicode_form form, struct err *e);

#endif

// bytes.h - the built-in tokenizer: byte b is id b, and id 256 is end of text.
//
// Place: data/ uses it to turn documents into ids.
//
// A document is fed as END_OF_TEXT followed by its bytes. The target of its last byte is
// END_OF_TEXT again. So the model learns how documents begin and end, and generation may start from
// END_OF_TEXT alone.
#ifndef HAGGLE_DATA_BYTES_H
#define HAGGLE_DATA_BYTES_H

#include <stddef.h>
#include <stdint.h>

enum { BYTES_END_OF_TEXT = 256, BYTES_VOCAB = 257 };

// Writes one id per byte; out holds `bytes` ids.
static inline void bytes_encode(const char *text, size_t bytes, int32_t *out) {
    for (size_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)text[i];
}

#endif

// storage.h - how the elements of a matrix are kept as bytes: one by one (plain), or as small
// integers with scales (quantized).
//
// A tensor's element type says what an element means and what it is computed in. Its storage says
// which bytes hold it. A quantized matrix [rows][cols] is one block of memory in three parts, each
// of which begins at a multiple of STORAGE_ALIGN bytes:
//
//   codes     rows one behind the other, without gaps
//             int8: one byte per element, -127 .. 127
//             int4: half a byte per element, 0 .. 15. Of 32 elements in 16 bytes, byte j holds
//             element j in its low half and element j + 16 in its high half.
//   scales    rows one behind the other
//             int8: one float32 per row
//             int4: one float16 for each group of a row
//   minima    int4 with minima: one float16 for each group of a row
//
//   value = code * scale                int8
//   value = (code - 8) * scale          int4
//   value = code * scale + minimum      int4 with minima
//
// The formats take no more bytes than those of llama.cpp they are compared with: a group of 32 in
// int4 has 18 bytes, like a block of Q4_0; 32 elements of int8 have little more than 32, and a
// block of Q8_0 has 34.
#ifndef HAGGLE_BASE_STORAGE_H
#define HAGGLE_BASE_STORAGE_H

#include "base/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum storage_kind { STORAGE_PLAIN, STORAGE_INT8, STORAGE_INT4, STORAGE_KINDS };

// STORAGE_BLOCK: elements whose codes lie together in int4. Every group is a multiple of it.
enum {
    STORAGE_ALIGN = 64,
    STORAGE_BLOCK = 32,
    STORAGE_TEXT_BYTES = 32,
    STORAGE_INT8_MOST = 127,
    STORAGE_CODES = 11
};

// All zero: plain.
struct storage {
    uint8_t kind;   // enum storage_kind
    bool minima;    // int4 only
    uint16_t group; // int4: elements of a row that share a scale: 32, 64 or 128; else 0
};

static inline bool storage_plain(struct storage s) {
    return s.kind == STORAGE_PLAIN;
}
bool storage_same(struct storage a, struct storage b);
// One of the formats above.
bool storage_known(struct storage s);
// Whether rows of so many elements can be kept in it. int4: the group divides them.
bool storage_takes(struct storage s, int64_t cols);
// "plain", "int8", "int4 g32", "int4 g64 minima".
const char *storage_text(struct storage s, char out[STORAGE_TEXT_BYTES]);
// A small number that is unique to the format, at most STORAGE_CODES; 0: plain.
uint8_t storage_code(struct storage s);

// Where the parts of a quantized matrix lie, in bytes from its first. Absent parts have no bytes.
struct storage_parts {
    uint64_t row_bytes; // of codes
    int64_t groups;     // scales of a row
    enum dtype scale_type;
    uint64_t codes, scales, minima; // where each part begins
    uint64_t codes_bytes, scales_bytes, minima_bytes;
    uint64_t bytes; // of all of it
};
// False if the format cannot hold such rows, or if the bytes would pass 2^62.
bool storage_layout(struct storage s, int64_t rows, int64_t cols, struct storage_parts *out);

// The values of elements [first, first + n) of a row of a quantized matrix.
void storage_read_row(struct storage s, const struct storage_parts *parts, const void *data,
                      int64_t row, int64_t first, int64_t n, float *out);
// Puts 32 codes of int4 (0 .. 15) into 16 bytes.
void storage_pack_block(const uint8_t codes[STORAGE_BLOCK], uint8_t out[STORAGE_BLOCK / 2]);

// Refuses what no quantizer writes: a scale that is negative or not finite, a minimum that is not
// finite, the code -128. `name` is of the tensor, for the message.
int storage_check(struct storage s, const struct storage_parts *parts, const void *data,
                  const char *name, struct err *e);

#endif

// gguf.h - GGUF files, version 3: how llama.cpp and what is built on it store a model.
//
// Layout, little-endian:
//
//   "GGUF"  u32 version  u64 tensors  u64 values
//   values:   string key, u32 type, then a scalar, a string, or u32 type + u64 n + n elements
//   tensors:  string name, u32 rank, u64 dims[rank], u32 type, u64 offset in the data
//   padding to the alignment, then the data; every tensor begins at a multiple of the alignment
//
// A string is u64 bytes and UTF-8 without an end. dims[0] is the length of a row, which lies
// together; safetensors has the dimensions the other way round. Rows of quantized types consist of
// blocks of 32 elements.
//
// Place: gguf_export.c writes a model with gguf_write.c and reads it back with gguf_read.c.
// gguf_blocks.c has the types. A file that is read is untrusted input: after gguf_open every
// tensor's range is inside the file, names and keys are unique, and reading needs no further check.
#ifndef HAGGLE_EXPORT_GGUF_H
#define HAGGLE_EXPORT_GGUF_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GGUF_VERSION = 3,
    GGUF_ALIGNMENT = 32, // unless general.alignment says otherwise
    GGUF_RANK_MOST = 4,
    GGUF_NAME_BYTES = 64, // with the NUL that readers in C add
    GGUF_BLOCK = 32,      // elements of a block of a quantized type
};

// The element types that haggle writes, with the format's numbers. Bytes of a block, elements of a
// block, name, the number in general.file_type of a file that has mostly this type.
#define GGUF_TYPE_LIST(X)                                                                          \
    X(GGUF_F32, 0, 4, 1, "f32", 0)                                                                 \
    X(GGUF_F16, 1, 2, 1, "f16", 1)                                                                 \
    X(GGUF_Q4_0, 2, 18, GGUF_BLOCK, "q4_0", 2)                                                     \
    X(GGUF_Q8_0, 8, 34, GGUF_BLOCK, "q8_0", 7)                                                     \
    X(GGUF_BF16, 30, 2, 1, "bf16", 32)
enum gguf_type {
#define X(name, number, bytes, elements, text, file) name = number,
    GGUF_TYPE_LIST(X)
#undef X
};

// Types of values, with the format's numbers.
enum gguf_value_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_FLOAT,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_DOUBLE,
    GGUF_VALUE_TYPES
};

// ---- gguf_blocks.c
bool gguf_type_known(uint32_t number);
const char *gguf_type_name(enum gguf_type t); // "q8_0"
int gguf_type_find(const char *name);         // -1: not one of the list
uint32_t gguf_file_type(enum gguf_type t);
int64_t gguf_block_elements(enum gguf_type t);
// The bytes of n elements. n is a multiple of the block.
uint64_t gguf_bytes(enum gguf_type t, int64_t n);
// Rounds to nearest. n is a multiple of the block. The index of the first element that the type
// cannot hold (not finite, or too large); -1: all are written.
int64_t gguf_encode(enum gguf_type t, const float *in, int64_t n, void *out);
void gguf_decode(enum gguf_type t, const void *in, int64_t n, float *out);
// How many of the values that were read differ from the source's by more than rounding to the type
// explains.
int64_t gguf_count_off(enum gguf_type t, const float *source, const float *read, int64_t n);

// ---- gguf_write.c
// The part of a file in front of its data. It is made in memory; values first, then tensors.
struct gguf_head {
    char *data;
    size_t n, capacity;
    uint64_t values, tensors, data_bytes;
    int rc; // of the first failure
};
void gguf_head_begin(struct gguf_head *h);
void gguf_head_free(struct gguf_head *h);
void gguf_put_u32(struct gguf_head *h, const char *key, uint32_t x);
void gguf_put_float(struct gguf_head *h, const char *key, float x);
void gguf_put_bool(struct gguf_head *h, const char *key, bool x);
void gguf_put_text(struct gguf_head *h, const char *key, const char *text, size_t bytes);
// An array: its elements follow, n of them.
void gguf_put_array(struct gguf_head *h, const char *key, enum gguf_value_type type, uint64_t n);
void gguf_put_element_text(struct gguf_head *h, const char *text, size_t bytes);
void gguf_put_element(struct gguf_head *h, const void *x, size_t bytes);
// dims[0] is the length of a row.
void gguf_put_tensor(struct gguf_head *h, const char *name, enum gguf_type type, int rank,
                     const int64_t *dims);
// Pads to the data. ERR_MEMORY, or what a caller did wrong before.
int gguf_head_end(struct gguf_head *h, struct err *e);
uint64_t gguf_padding(uint64_t bytes); // up to the next multiple of GGUF_ALIGNMENT

// ---- gguf_read.c
struct gguf_value {
    const char *key;
    enum gguf_value_type type; // of the elements, for an array
    bool array;
    uint64_t n;       // elements; 1 for what is no array
    uint64_t at;      // place of the first one in the file
    uint64_t whole;   // a scalar integer, sign-extended, or a bool
    double number;    // a scalar of any kind
    const char *text; // a string, with a NUL behind it
    size_t bytes;     // of the string
};
struct gguf_tensor {
    const char *name;
    enum gguf_type type;
    int rank;
    int64_t dims[GGUF_RANK_MOST]; // 1 above the rank
    int64_t elements;
    uint64_t begin, bytes; // in the data
};
struct gguf; // an open file
int gguf_open(struct gguf **out, const char *path, struct err *e);
void gguf_close(struct gguf *g); // NULL is accepted
size_t gguf_value_count(const struct gguf *g);
const struct gguf_value *gguf_value_at(const struct gguf *g, size_t i); // NULL past the end
const struct gguf_value *gguf_value_find(const struct gguf *g, const char *key);
size_t gguf_tensor_count(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name);
uint64_t gguf_data_start(const struct gguf *g);
// Bytes of the file, as they are.
int gguf_read_raw(struct gguf *g, uint64_t at, void *out, size_t bytes, struct err *e);
// Elements [first, first + n) of a tensor as float32. Both are multiples of the type's block.
int gguf_read(struct gguf *g, const struct gguf_tensor *t, int64_t first, int64_t n, float *out,
              struct err *e);
// Calls fn for each string of an array, in order. Stops when fn returns non-zero.
int gguf_read_texts(struct gguf *g, const struct gguf_value *v,
                    int (*fn)(void *arg, uint64_t i, const char *text, size_t bytes), void *arg,
                    struct err *e);

#endif

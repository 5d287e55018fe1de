// dtype.h - element types of tensors, in memory and in files. One table has the enum, the width and
// the names.
#ifndef HAGGLE_BASE_DTYPE_H
#define HAGGLE_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

// name, bytes per element, safetensors spelling, short spelling for people
#define DTYPE_LIST(X)                                                                              \
    X(DTYPE_F32, 4, "F32", "fp32")                                                                 \
    X(DTYPE_F64, 8, "F64", "fp64")                                                                 \
    X(DTYPE_BF16, 2, "BF16", "bf16")                                                               \
    X(DTYPE_F16, 2, "F16", "fp16")                                                                 \
    X(DTYPE_I32, 4, "I32", "int32")                                                                \
    X(DTYPE_I64, 8, "I64", "int64")                                                                \
    X(DTYPE_U8, 1, "U8", "uint8")                                                                  \
    X(DTYPE_I8, 1, "I8", "int8")

enum dtype {
#define X(name, bytes, st, text) name,
    DTYPE_LIST(X)
#undef X
        DTYPE_COUNT
};

size_t dtype_bytes(enum dtype t);
const char *dtype_text(enum dtype t);         // "fp32"
const char *dtype_safetensors(enum dtype t);  // "F32"
int dtype_from_safetensors(const char *name); // enum dtype, or -1 when unknown
int dtype_is_floating(enum dtype t);          // 1 for F32, F64, BF16 and F16

float dtype_bf16_to_f32(uint16_t x);
uint16_t dtype_f32_to_bf16(float x); // rounds to nearest even, NaN stays NaN
float dtype_f16_to_f32(uint16_t x);
uint16_t dtype_f32_to_f16(float x);
// Converts n elements between any two floating-point types (F32, F64, BF16, F16). Does nothing for
// other types. The buffers must not overlap.
void dtype_convert(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, size_t n);
// The first of n elements that is infinite or not a number; -1 when all are finite, or when the
// type is not a floating-point type.
int64_t dtype_first_not_finite(const void *data, enum dtype t, size_t n);

#endif

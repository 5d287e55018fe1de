// gguf_blocks.c - the element types of gguf.h: how values become bytes and bytes become values.
//
//   q8_0   34 bytes: the scale d in float16, then 32 int8 q. The values are d q.
//   q4_0   18 bytes: the scale d in float16, then 16 bytes. Byte i has element i in its low half
//          and element i + 16 in its high half, each plus 8. The values are d (q - 8).
//
// The scale of q8_0 makes the largest value 127. That of q4_0 has the sign that makes the value of
// largest magnitude -8, because the four bits reach from -8 to 7.
#include "export/gguf.h"

#include "base/dtype.h"

#include <math.h>
#include <string.h>

enum { Q8_BYTES = 34, Q4_BYTES = 18, PIECE = 256 };

static const struct type {
    uint32_t number, bytes, elements, file;
    const char *name;
} types[] = {
#define X(name, number, bytes, elements, text, file) {number, bytes, elements, file, text},
    GGUF_TYPE_LIST(X)
#undef X
};
enum { TYPES = sizeof types / sizeof *types };

static const struct type *find(uint32_t number) {
    for (int i = 0; i < TYPES; i++)
        if (types[i].number == number)
            return &types[i];
    return NULL;
}

// Every enum gguf_type is in the list; f32 stands in for what is none.
static const struct type *of(enum gguf_type t) {
    const struct type *found = find(t);
    return found != NULL ? found : &types[0];
}

bool gguf_type_known(uint32_t number) {
    return find(number) != NULL;
}

const char *gguf_type_name(enum gguf_type t) {
    return of(t)->name;
}

int gguf_type_find(const char *name) {
    for (int i = 0; i < TYPES; i++)
        if (strcmp(types[i].name, name) == 0)
            return (int)types[i].number;
    return -1;
}

uint32_t gguf_file_type(enum gguf_type t) {
    return of(t)->file;
}

int64_t gguf_block_elements(enum gguf_type t) {
    return of(t)->elements;
}

uint64_t gguf_bytes(enum gguf_type t, int64_t n) {
    return (uint64_t)(n / of(t)->elements) * of(t)->bytes;
}

// ---------------------------------------------------------------- quantized blocks

// The scale that 32 values need, in float32.
static float scale_of(enum gguf_type t, const float *x) {
    float largest = 0;
    for (int i = 0; i < GGUF_BLOCK; i++)
        if (fabsf(x[i]) > fabsf(largest))
            largest = x[i];
    return t == GGUF_Q8_0 ? fabsf(largest) / 127 : largest / -8;
}

static void put_q8(const float *x, float d, uint8_t *out) {
    const float inverse = d != 0 ? 1 / d : 0;
    for (int i = 0; i < GGUF_BLOCK; i++)
        out[i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
}

// Adds 8.5 and cuts off, which rounds to nearest. The values have the magnitude of -8 at most, so
// one of the other sign may become 16, which four bits do not have.
static uint8_t nibble(float x) {
    const int q = (int)(x + 8.5f);
    return (uint8_t)(q > 15 ? 15 : q);
}

static void put_q4(const float *x, float d, uint8_t *out) {
    const float inverse = d != 0 ? 1 / d : 0;
    for (int i = 0; i < GGUF_BLOCK / 2; i++)
        out[i] = (uint8_t)(nibble(x[i] * inverse) | nibble(x[i + GGUF_BLOCK / 2] * inverse) << 4);
}

static int64_t encode_blocks(enum gguf_type t, const float *in, int64_t n, uint8_t *out) {
    for (int64_t at = 0; at < n; at += GGUF_BLOCK, in += GGUF_BLOCK) {
        const int64_t bad = dtype_first_not_finite(in, DTYPE_F32, GGUF_BLOCK);
        if (bad >= 0)
            return at + bad;
        float d = scale_of(t, in);
        // The inverse of a scale below the normal range would be infinite. Such values are zero.
        if (!isnormal(d))
            d = 0;
        const uint16_t scale = dtype_f32_to_f16(d);
        if (!isfinite(dtype_f16_to_f32(scale)))
            return at;
        memcpy(out, &scale, sizeof scale);
        if (t == GGUF_Q8_0)
            put_q8(in, d, out + sizeof scale);
        else
            put_q4(in, d, out + sizeof scale);
        out += t == GGUF_Q8_0 ? Q8_BYTES : Q4_BYTES;
    }
    return -1;
}

static void decode_blocks(enum gguf_type t, const uint8_t *in, int64_t n, float *out) {
    for (int64_t at = 0; at < n; at += GGUF_BLOCK, out += GGUF_BLOCK) {
        uint16_t scale;
        memcpy(&scale, in, sizeof scale);
        const float d = dtype_f16_to_f32(scale);
        const uint8_t *q = in + sizeof scale;
        for (int i = 0; i < GGUF_BLOCK; i++)
            if (t == GGUF_Q8_0)
                out[i] = d * (float)(int8_t)q[i];
            else
                out[i] = d * (float)((i < 16 ? q[i] & 15 : q[i - 16] >> 4) - 8);
        in += t == GGUF_Q8_0 ? Q8_BYTES : Q4_BYTES;
    }
}

// ---------------------------------------------------------------- all types

static enum dtype dtype_of(enum gguf_type t) {
    return t == GGUF_F16 ? DTYPE_F16 : t == GGUF_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

int64_t gguf_encode(enum gguf_type t, const float *in, int64_t n, void *out) {
    if (gguf_block_elements(t) > 1)
        return encode_blocks(t, in, n, out);
    dtype_convert(out, dtype_of(t), in, DTYPE_F32, (size_t)n);
    return dtype_first_not_finite(out, dtype_of(t), (size_t)n);
}

void gguf_decode(enum gguf_type t, const void *in, int64_t n, float *out) {
    if (gguf_block_elements(t) > 1)
        decode_blocks(t, in, n, out);
    else
        dtype_convert(out, DTYPE_F32, in, dtype_of(t), (size_t)n);
}

// Half a step, or a whole one where q4_0 has no 16th step; and the rounding of the scale to
// float16, which the largest value multiplies.
static int64_t count_blocks(enum gguf_type t, const float *x, const float *y, int64_t n) {
    const float most = t == GGUF_Q8_0 ? 127 : 8, last = t == GGUF_Q8_0 ? 127 : 7;
    int64_t off = 0;
    for (int64_t at = 0; at < n; at += GGUF_BLOCK, x += GGUF_BLOCK, y += GGUF_BLOCK) {
        const float d = scale_of(t, x), step = fabsf(d);
        const float scale = most * (step * 0x1p-11f + 0x1p-25f);
        for (int i = 0; i < GGUF_BLOCK; i++) {
            const float steps = d != 0 ? x[i] / d : 0;
            const float half = steps > last + 0.5f ? steps - last : 0.5f;
            off += !(fabsf(x[i] - y[i]) <= half * step * 1.0001f + scale);
        }
    }
    return off;
}

int64_t gguf_count_off(enum gguf_type t, const float *source, const float *read, int64_t n) {
    float piece[PIECE];
    uint32_t narrow[PIECE];
    int64_t off = 0;
    if (gguf_block_elements(t) > 1)
        return count_blocks(t, source, read, n);
    for (int64_t at = 0; at < n; at += PIECE) {
        const size_t k = (size_t)(n - at < PIECE ? n - at : PIECE);
        dtype_convert(narrow, dtype_of(t), source + at, DTYPE_F32, k);
        dtype_convert(piece, DTYPE_F32, narrow, dtype_of(t), k);
        for (size_t i = 0; i < k; i++)
            off += memcmp(&piece[i], &read[at + (int64_t)i], sizeof piece[i]) != 0;
    }
    return off;
}

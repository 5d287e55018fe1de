// storage.c - see storage.h. Plain C; the fast readers of quantized matrices are in the backends.
#include "base/storage.h"

#include "base/checked.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool storage_same(struct storage a, struct storage b) {
    return a.kind == b.kind && a.minima == b.minima && a.group == b.group;
}

bool storage_known(struct storage s) {
    if (s.kind == STORAGE_INT4)
        return s.group == 32 || s.group == 64 || s.group == 128;
    return s.kind < STORAGE_KINDS && s.group == 0 && !s.minima;
}

bool storage_takes(struct storage s, int64_t cols) {
    return storage_known(s) && cols >= 0 && (s.kind != STORAGE_INT4 || cols % s.group == 0);
}

const char *storage_text(struct storage s, char out[STORAGE_TEXT_BYTES]) {
    if (s.kind == STORAGE_INT4)
        snprintf(out, STORAGE_TEXT_BYTES, "int4 g%d%s", s.group, s.minima ? " minima" : "");
    else
        snprintf(out, STORAGE_TEXT_BYTES, "%s", s.kind == STORAGE_INT8 ? "int8" : "plain");
    return out;
}

uint8_t storage_code(struct storage s) {
    if (s.kind != STORAGE_INT4)
        return s.kind;
    return (uint8_t)(STORAGE_INT4 + s.group / 32 * 2 + s.minima);
}

// Rounds up to STORAGE_ALIGN. False: too large.
static bool align(uint64_t *at) {
    if (!checked_add_u64(*at, STORAGE_ALIGN - 1, at))
        return false;
    *at -= *at % STORAGE_ALIGN;
    return *at <= (uint64_t)1 << 62;
}

static bool place(uint64_t rows, uint64_t row_bytes, uint64_t *end, uint64_t *begin,
                  uint64_t *bytes) {
    *begin = *end;
    return checked_mul_u64(rows, row_bytes, bytes) && checked_add_u64(*end, *bytes, end) &&
           align(end);
}

bool storage_layout(struct storage s, int64_t rows, int64_t cols, struct storage_parts *out) {
    uint64_t end = 0;
    *out = (struct storage_parts){.scale_type = DTYPE_F32, .groups = 1};
    if (storage_plain(s) || !storage_takes(s, cols) || rows < 0)
        return false;
    out->row_bytes = (uint64_t)cols;
    if (s.kind == STORAGE_INT4) {
        out->row_bytes /= 2;
        out->scale_type = DTYPE_F16;
        out->groups = cols / s.group;
    }
    const uint64_t width = (uint64_t)out->groups * dtype_bytes(out->scale_type);
    if (!place((uint64_t)rows, out->row_bytes, &end, &out->codes, &out->codes_bytes) ||
        !place((uint64_t)rows, width, &end, &out->scales, &out->scales_bytes) ||
        !place((uint64_t)rows, s.minima ? width : 0, &end, &out->minima, &out->minima_bytes))
        return false;
    out->bytes = end;
    return true;
}

static float half_at(const void *data, uint64_t part, int64_t index) {
    uint16_t bits;
    memcpy(&bits, (const char *)data + part + (uint64_t)index * sizeof bits, sizeof bits);
    return dtype_f16_to_f32(bits);
}

static float float_at(const void *data, uint64_t part, int64_t index) {
    float x;
    memcpy(&x, (const char *)data + part + (uint64_t)index * sizeof x, sizeof x);
    return x;
}

void storage_read_row(struct storage s, const struct storage_parts *parts, const void *data,
                      int64_t row, int64_t first, int64_t n, float *out) {
    const uint8_t *codes = (const uint8_t *)data + parts->codes + (uint64_t)row * parts->row_bytes;
    if (s.kind == STORAGE_INT8) {
        const float scale = float_at(data, parts->scales, row);
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)(int8_t)codes[first + i] * scale;
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = first + i, in_block = at % STORAGE_BLOCK,
                      group = row * parts->groups + at / s.group;
        const uint8_t pair =
            codes[at / STORAGE_BLOCK * (STORAGE_BLOCK / 2) + in_block % (STORAGE_BLOCK / 2)];
        const int code = in_block < STORAGE_BLOCK / 2 ? pair & 15 : pair >> 4;
        const float scale = half_at(data, parts->scales, group);
        out[i] = s.minima ? (float)code * scale + half_at(data, parts->minima, group)
                          : (float)(code - 8) * scale;
    }
}

void storage_pack_block(const uint8_t codes[STORAGE_BLOCK], uint8_t out[STORAGE_BLOCK / 2]) {
    for (int j = 0; j < STORAGE_BLOCK / 2; j++)
        out[j] = (uint8_t)(codes[j] | codes[j + STORAGE_BLOCK / 2] << 4);
}

int storage_check(struct storage s, const struct storage_parts *parts, const void *data,
                  const char *name, struct err *e) {
    const uint64_t width = dtype_bytes(parts->scale_type), n = parts->scales_bytes / width;
    const int8_t *codes = (const int8_t *)data + parts->codes;
    for (uint64_t i = 0; i < n; i++) {
        const float scale = s.kind == STORAGE_INT8 ? float_at(data, parts->scales, (int64_t)i)
                                                   : half_at(data, parts->scales, (int64_t)i);
        if (!isfinite(scale) || scale < 0)
            return err_set(e, ERR_NUMERIC,
                           "tensor '%.200s': scale %llu is %g; every scale must be finite and not "
                           "negative",
                           name, (unsigned long long)i, (double)scale);
    }
    for (uint64_t i = 0; i < parts->minima_bytes / width; i++) {
        const float least = half_at(data, parts->minima, (int64_t)i);
        if (!isfinite(least))
            return err_set(e, ERR_NUMERIC,
                           "tensor '%.200s': minimum %llu is %g; every minimum must be finite",
                           name, (unsigned long long)i, (double)least);
    }
    if (s.kind != STORAGE_INT8)
        return 0;
    for (uint64_t i = 0; i < parts->codes_bytes; i++)
        if (codes[i] < -STORAGE_INT8_MOST)
            return err_set(
                e, ERR_NUMERIC,
                "tensor '%.200s': element %llu has the code %d; int8 codes are -%d to %d", name,
                (unsigned long long)i, codes[i], STORAGE_INT8_MOST, STORAGE_INT8_MOST);
    return 0;
}

// quant_generic.c - products with quantized weights in plain C: what the fast kernels must compute,
// and what runs where there are none.
#include "backend/cpu/quant.h"

#include <math.h>
#include <string.h>

// Its own products want the natural order, so it makes no other.
static void encode(const float *x, int64_t n, enum quant_order order, int zero,
                   struct quant_piece *p) {
    (void)order;
    for (int b = 0; b < QUANT_PIECE_BLOCKS; b++) {
        float largest = 0, bad = 0;
        int sum = 0;
        for (int64_t i = b * QUANT_BLOCK; i < n && i < (b + 1) * QUANT_BLOCK; i++) {
            largest = fmaxf(largest, fabsf(x[i]));
            bad += x[i] * 0;
        }
        const float scale = largest / 127, by = scale > 0 && bad == 0 ? 1 / scale : 0;
        for (int64_t i = b * QUANT_BLOCK; i < (b + 1) * QUANT_BLOCK; i++) {
            const float code = i < n && by > 0 ? nearbyintf(x[i] * by) : 0;
            const int whole = code > 127 ? 127 : code < -127 ? -127 : (int)code;
            p->codes[i] = (int8_t)whole;
            sum += whole;
        }
        p->scale[b] = scale + bad;
        p->sum[b] = p->scale[b] * (float)sum;
        p->start[b] = -zero * sum;
    }
}

static float half_at(const char *part, int64_t index) {
    uint16_t bits;
    memcpy(&bits, part + index * 2, sizeof bits);
    return dtype_f16_to_f32(bits);
}

static float dot_int8(const struct quant_product *p, const struct quant_piece *row, int64_t j) {
    const int8_t *w = (const int8_t *)(p->w + p->parts.codes) + j * p->k;
    float scale, sum = 0;
    memcpy(&scale, p->w + p->parts.scales + j * 4, sizeof scale);
    for (int64_t at = 0; at < p->k; at += QUANT_BLOCK) {
        const struct quant_piece *x = row + at / QUANT_PIECE * p->apart;
        const int64_t in = at % QUANT_PIECE, n = p->k - at < QUANT_BLOCK ? p->k - at : QUANT_BLOCK;
        int dot = 0;
        for (int64_t i = 0; i < n; i++)
            dot += x->codes[in + i] * w[at + i];
        sum += x->scale[in / QUANT_BLOCK] * (float)dot;
    }
    return sum * scale;
}

static float dot_int4(const struct quant_product *p, const struct quant_piece *row, int64_t j) {
    const uint8_t *w = (const uint8_t *)p->w + p->parts.codes + j * (p->k / 2);
    const char *scales = p->w + p->parts.scales, *minima = p->w + p->parts.minima;
    float sum = 0;
    for (int64_t at = 0; at < p->k; at += QUANT_BLOCK, w += QUANT_BLOCK / 2) {
        const struct quant_piece *x = row + at / QUANT_PIECE * p->apart;
        const int64_t block = at % QUANT_PIECE / QUANT_BLOCK,
                      group = j * p->parts.groups + at / p->storage.group;
        const int8_t *low = x->codes + block * QUANT_BLOCK, *high = low + QUANT_BLOCK / 2;
        int dot = x->start[block];
        for (int i = 0; i < QUANT_BLOCK / 2; i++)
            dot += (w[i] & 15) * low[i] + (w[i] >> 4) * high[i];
        if (p->storage.minima)
            sum += half_at(minima, group) * x->sum[block];
        sum += half_at(scales, group) * x->scale[block] * (float)dot;
    }
    return sum;
}

static void few(const struct quant_product *p) {
    const bool int8 = p->storage.kind == STORAGE_INT8;
    for (int64_t j = p->j0; j < p->j1; j++)
        for (int64_t i = 0; i < p->m; i++)
            p->y[i * p->ldy + j - p->j0] =
                int8 ? dot_int8(p, p->row[i], j) : dot_int4(p, p->row[i], j);
}

const struct cpu_quant cpu_quant_generic = {.name = "generic",
                                            .encode = encode,
                                            .few = few,
                                            .int8 = {QUANT_NATURAL, INT64_MAX},
                                            .int4 = {QUANT_NATURAL, INT64_MAX}};

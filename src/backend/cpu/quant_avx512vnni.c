// quant_avx512vnni.c - products with quantized weights by vpdpbusd, which multiplies four pairs of
// bytes per lane and adds them to an int32: unsigned codes of the weight, signed codes of x.
//
// Few rows (decoding): a row of W is read once, from its first byte to its last. A lane holds 4
// columns of k, so the scales of weights and activations are spread over lanes, and lanes are added
// at the end of a row. Two or four rows of W share the loads of x.
//
// Many rows (prefill): 32 rows of W are unpacked and turned, so that a lane is a row of W and 4
// columns of k lie side by side. Each is then multiplied with all rows of x. Nothing is added
// across lanes, and the scales are plain vectors.
#include "backend/cpu/quant.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

// ---------------------------------------------------------------- rounding x

// Of 32 elements: the largest magnitude, and a NaN if one is not finite.
INLINE float block_scale(__m512 a, __m512 b) {
    const __m512 zero = _mm512_setzero_ps();
    const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    const __mmask16 good = _mm512_cmp_ps_mask(_mm512_mul_ps(a, zero), zero, _CMP_EQ_OQ) &
                           _mm512_cmp_ps_mask(_mm512_mul_ps(b, zero), zero, _CMP_EQ_OQ);
    return good == 0xffff ? largest / 127 : __builtin_nanf("");
}

INLINE __m512i round_codes(__m512 x, __m512 by) {
    const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(x, by)), most = _mm512_set1_epi32(127);
    return _mm512_max_epi32(_mm512_min_epi32(code, most), _mm512_set1_epi32(-127));
}

static void encode(const float *x, int64_t n, enum quant_order order, struct quant_piece *p) {
    for (int b = 0; b < QUANT_PIECE_BLOCKS; b++) {
        const int64_t left = n - b * QUANT_BLOCK;
        const uint32_t mask = left >= 32 ? ~0u : left <= 0 ? 0 : (1u << left) - 1;
        const __m512 lo = _mm512_maskz_loadu_ps((__mmask16)mask, x + b * QUANT_BLOCK),
                     hi = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x + b * QUANT_BLOCK + 16);
        const float scale = block_scale(lo, hi);
        const __m512 by = _mm512_set1_ps(scale > 0 ? 1 / scale : 0);
        const __m512i a = scale == scale ? round_codes(lo, by) : _mm512_setzero_si512(),
                      c = scale == scale ? round_codes(hi, by) : _mm512_setzero_si512();
        int8_t *first = p->codes + b * QUANT_BLOCK, *second = first + 16;
        if (order == QUANT_HALVES) {
            first = p->codes + b / 4 * 128 + b % 4 * 16;
            second = first + 64;
        }
        _mm_storeu_si128((__m128i *)first, _mm512_cvtepi32_epi8(a));
        _mm_storeu_si128((__m128i *)second, _mm512_cvtepi32_epi8(c));
        const int sum = _mm512_reduce_add_epi32(_mm512_add_epi32(a, c));
        p->scale[b] = scale;
        p->sum[b] = scale * (float)sum;
        p->code_sum[b] = sum;
    }
}

// ---------------------------------------------------------------- few rows

// ROWS_W: rows of W that are read side by side. Meanwhile the same place of the next such rows is
// fetched, because the hardware would begin with a row when its first byte is read.
enum { ROWS_W = 4, XS_MOST = 4 };

INLINE __mmask64 first_bytes(int64_t n) {
    return n >= 64 ? ~(__mmask64)0 : n <= 0 ? 0 : ((__mmask64)1 << n) - 1;
}

// One piece of int8: `xs` rows of x and `ws` of W. `next`: bytes from these rows to the next such.
INLINE void piece_int8(const int xs, const int ws, const struct quant_piece *x,
                       const uint8_t *const *w, int64_t next, int64_t left,
                       __m512 sum[XS_MOST][ROWS_W]) {
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
#pragma GCC unroll 8
    for (int c = 0; c < QUANT_PIECE / 64; c++) {
        __m512i codes[ROWS_W];
        const __m512i spread = _mm512_add_epi32(lanes, _mm512_set1_epi32(2 * c));
        const __mmask64 mask = first_bytes(left - c * 64);
        if (left <= c * 64)
            break;
#pragma GCC unroll 4
        for (int r = 0; r < ws; r++) {
            codes[r] = left >= QUANT_PIECE ? _mm512_loadu_si512(w[r] + c * 64)
                                           : _mm512_maskz_loadu_epi8(mask, w[r] + c * 64);
            codes[r] = _mm512_xor_si512(codes[r], flip);
            _mm_prefetch((const char *)w[r] + c * 64 + next, _MM_HINT_T0);
        }
#pragma GCC unroll 8
        for (int i = 0; i < xs; i++) {
            const __m512 scale = _mm512_permutexvar_ps(spread, _mm512_loadu_ps(x[i].scale));
            const __m512i from = _mm512_loadu_si512(x[i].codes + c * 64);
#pragma GCC unroll 4
            for (int r = 0; r < ws; r++)
                sum[i][r] = _mm512_fmadd_ps(
                    _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), codes[r], from)),
                    scale, sum[i][r]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < xs; i++) { // takes off what the flipped bits have added
        const __m512 most = _mm512_mul_ps(_mm512_loadu_ps(x[i].sum), _mm512_set1_ps(-QUANT_ZERO8));
#pragma GCC unroll 4
        for (int r = 0; r < ws; r++)
            sum[i][r] = _mm512_add_ps(sum[i][r], most);
    }
}

// The float16 numbers of a piece's groups, one for each of its blocks. `left`: blocks of the row.
INLINE __m512 spread_halves(const int group, const char *at, int64_t left) {
    const int blocks = group / QUANT_BLOCK;
    const __mmask16 mask =
        (__mmask16)(left >= 16 ? (1 << (16 / blocks)) - 1 : (1 << (left / blocks)) - 1);
    const __m512 numbers =
        _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(blocks == 1 && left >= 16 ? 0xffff : mask, at));
    if (blocks == 1)
        return numbers;
    return _mm512_permutexvar_ps(
        blocks == 2 ? _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7)
                    : _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
        numbers);
}

INLINE void piece_int4(const int xs, const int ws, const int group, const bool minima,
                       const struct quant_piece *x, const uint8_t *const *w,
                       const char *const *scales, const char *const *least, int64_t next,
                       int64_t left, __m512 sum[XS_MOST][ROWS_W]) {
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    __m512 scale[ROWS_W];
#pragma GCC unroll 4
    for (int r = 0; r < ws; r++) {
        scale[r] = spread_halves(group, scales[r], left / QUANT_BLOCK);
        const __m512 first = minima ? spread_halves(group, least[r], left / QUANT_BLOCK)
                                    : _mm512_mul_ps(scale[r], _mm512_set1_ps(-QUANT_ZERO4));
#pragma GCC unroll 8
        for (int i = 0; i < xs; i++)
            sum[i][r] = _mm512_fmadd_ps(first, _mm512_loadu_ps(x[i].sum), sum[i][r]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < QUANT_PIECE / 128; c++) {
        const __m512i spread = _mm512_add_epi32(lanes, _mm512_set1_epi32(4 * c));
        const __mmask64 mask = first_bytes(left / 2 - c * 64);
        __m512i a[ROWS_W], b[ROWS_W];
        __m512 by[ROWS_W];
        if (left <= c * 128)
            break;
#pragma GCC unroll 4
        for (int r = 0; r < ws; r++) {
            const __m512i both = left >= QUANT_PIECE ? _mm512_loadu_si512(w[r] + c * 64)
                                                     : _mm512_maskz_loadu_epi8(mask, w[r] + c * 64);
            a[r] = _mm512_and_si512(both, low);
            b[r] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
            by[r] = _mm512_permutexvar_ps(spread, scale[r]);
            _mm_prefetch((const char *)w[r] + c * 64 + next, _MM_HINT_T0);
        }
#pragma GCC unroll 8
        for (int i = 0; i < xs; i++) {
            const __m512i first = _mm512_loadu_si512(x[i].codes + c * 128),
                          second = _mm512_loadu_si512(x[i].codes + c * 128 + 64);
            const __m512 own = _mm512_permutexvar_ps(spread, _mm512_loadu_ps(x[i].scale));
#pragma GCC unroll 4
            for (int r = 0; r < ws; r++) {
                const __m512i dot = _mm512_dpbusd_epi32(
                    _mm512_dpbusd_epi32(_mm512_setzero_si512(), a[r], first), b[r], second);
                sum[i][r] =
                    _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot), own), by[r], sum[i][r]);
            }
        }
    }
}

// `xs` rows of x from i on, `ws` rows of W from j on. group 0: int8.
INLINE void dot_rows(const int xs, const int ws, const int group, const bool minima,
                     const struct quant_product *p, int64_t i, int64_t j) {
    const int bits = group > 0 ? 4 : 8;
    const int64_t next = ROWS_W * (int64_t)p->parts.row_bytes;
    const struct quant_piece *x = p->row[i];
    const uint8_t *w[ROWS_W];
    const char *scales[ROWS_W], *least[ROWS_W];
    __m512 sum[XS_MOST][ROWS_W];
#pragma GCC unroll 4
    for (int r = 0; r < ws; r++) {
        const int64_t first = (j + r) * p->parts.groups * 2;
        w[r] = (const uint8_t *)p->w + p->parts.codes + (j + r) * (int64_t)p->parts.row_bytes;
        scales[r] = p->w + p->parts.scales + first;
        least[r] = p->w + p->parts.minima + first;
#pragma GCC unroll 8
        for (int q = 0; q < xs; q++)
            sum[q][r] = _mm512_setzero_ps();
    }
    for (int64_t left = p->k; left > 0; left -= QUANT_PIECE) {
        if (left >= QUANT_PIECE && group > 0)
            piece_int4(xs, ws, group, minima, x, w, scales, least, next, QUANT_PIECE, sum);
        else if (group > 0)
            piece_int4(xs, ws, group, minima, x, w, scales, least, next, left, sum);
        else if (left >= QUANT_PIECE)
            piece_int8(xs, ws, x, w, next, QUANT_PIECE, sum);
        else
            piece_int8(xs, ws, x, w, next, left, sum);
        x += QUANT_ROWS;
#pragma GCC unroll 4
        for (int r = 0; r < ws; r++) {
            w[r] += QUANT_PIECE * bits / 8;
            scales[r] += group > 0 ? QUANT_PIECE / (group > 0 ? group : 1) * 2 : 0;
            least[r] += group > 0 ? QUANT_PIECE / (group > 0 ? group : 1) * 2 : 0;
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ws; r++) {
        float scale = 1;
        if (group == 0)
            memcpy(&scale, p->w + p->parts.scales + (j + r) * 4, sizeof scale);
#pragma GCC unroll 8
        for (int q = 0; q < xs; q++)
            p->y[(i + q) * p->ldy + j + r - p->j0] = _mm512_reduce_add_ps(sum[q][r]) * scale;
    }
}

INLINE void few_of(const int group, const bool minima, const struct quant_product *p) {
    int64_t j = p->j0;
    for (; j + ROWS_W <= p->j1; j += ROWS_W) {
        int64_t i = 0;
        for (; i + XS_MOST <= p->m; i += XS_MOST) { // more side by side read W more slowly
            dot_rows(XS_MOST, 2, group, minima, p, i, j);
            dot_rows(XS_MOST, 2, group, minima, p, i, j + 2);
        }
        for (; i + 2 <= p->m; i += 2)
            dot_rows(2, 4, group, minima, p, i, j);
        for (; i < p->m; i++)
            dot_rows(1, 4, group, minima, p, i, j);
    }
    for (; j < p->j1; j++)
        for (int64_t i = 0; i < p->m; i++)
            dot_rows(1, 1, group, minima, p, i, j);
}

static void few(const struct quant_product *p) {
    const bool minima = p->storage.minima;
    if (p->storage.kind == STORAGE_INT8)
        few_of(0, false, p);
    else if (p->storage.group == 32)
        minima ? few_of(32, true, p) : few_of(32, false, p);
    else if (p->storage.group == 64)
        minima ? few_of(64, true, p) : few_of(64, false, p);
    else
        minima ? few_of(128, true, p) : few_of(128, false, p);
}

// ---------------------------------------------------------------- many rows

enum { TILE_ROWS = 6 };

// A part of k of 32 rows of W: codes[q][row][4], then for each group 32 scales, then 32 minima.
struct panel {
    uint8_t codes[QUANT_PANEL_K / 4][QUANT_PANEL][4];
    float scale[QUANT_PANEL_K / QUANT_BLOCK][QUANT_PANEL];
    float least[QUANT_PANEL_K / QUANT_BLOCK][QUANT_PANEL];
};
_Static_assert(sizeof(struct panel) <= QUANT_SCRATCH, "a panel fits its scratch");

// Turns 16 x 16 dwords: vector i gets dword i of each.
INLINE void turn(__m512i r[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

// Codes [at, at + 64) of a row in their order; 0 behind the row's end.
INLINE __m512i read_codes(const struct quant_product *p, int64_t row, int64_t at) {
    const char *w = p->w + p->parts.codes + row * (int64_t)p->parts.row_bytes;
    const int64_t left = p->k - at;
    if (p->storage.kind == STORAGE_INT8)
        return _mm512_xor_si512(_mm512_maskz_loadu_epi8(first_bytes(left), w + at),
                                _mm512_set1_epi8((char)0x80));
    const __m256i low = _mm256_set1_epi8(15),
                  both = _mm256_maskz_loadu_epi8((__mmask32)first_bytes(left / 2), w + at / 2),
                  a = _mm256_and_si256(both, low),
                  b = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_permute2x128_si256(a, b, 0x20)),
                              _mm256_permute2x128_si256(a, b, 0x31), 1);
}

static void pack_codes(const struct quant_product *p, int64_t k0, int64_t k1, struct panel *to) {
    for (int half = 0; half < QUANT_PANEL; half += 16)
        for (int64_t at = k0; at < k1; at += 64) {
            __m512i r[16];
            for (int i = 0; i < 16; i++) {
                const int64_t row = p->j0 + half + i;
                const char *here = p->w + p->parts.codes + row * (int64_t)p->parts.row_bytes;
                _mm_prefetch(here + QUANT_PANEL * p->parts.row_bytes +
                                 (p->storage.kind == STORAGE_INT8 ? at : at / 2),
                             _MM_HINT_T1);
                r[i] = row < p->j1 ? read_codes(p, row, at) : _mm512_setzero_si512();
            }
            turn(r);
            for (int i = 0; i < 16; i++)
                _mm512_storeu_si512(to->codes[(at - k0) / 4 + i][half], r[i]);
        }
}

static float half_at(const char *part, int64_t index) {
    uint16_t bits;
    memcpy(&bits, part + index * 2, sizeof bits);
    return _cvtsh_ss(bits);
}

static void pack_scales(const struct quant_product *p, int64_t k0, int64_t k1, struct panel *to) {
    if (p->storage.kind == STORAGE_INT8) {
        memset(to->scale[0], 0, sizeof to->scale[0]);
        memcpy(to->scale[0], p->w + p->parts.scales + p->j0 * 4, (size_t)(p->j1 - p->j0) * 4);
        return;
    }
    const int64_t first = k0 / p->storage.group,
                  end = (k1 + p->storage.group - 1) / p->storage.group;
    for (int64_t j = 0; j < QUANT_PANEL; j++)
        for (int64_t g = first; g < end; g++) {
            const int64_t index = (p->j0 + j) * p->parts.groups + g;
            const bool here = p->j0 + j < p->j1;
            to->scale[g - first][j] = here ? half_at(p->w + p->parts.scales, index) : 0;
            if (p->storage.minima)
                to->least[g - first][j] = here ? half_at(p->w + p->parts.minima, index) : 0;
        }
}

// Adds the product of `rows` rows of x with a panel to y.
INLINE void tile(const int rows, const bool int4, const bool minima, const struct quant_product *p,
                 const struct panel *w, int64_t i, int64_t k0, int64_t k1) {
    const int zero = minima ? 0 : int4 ? QUANT_ZERO4 : QUANT_ZERO8;
    __m512 sum[TILE_ROWS][2];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t k = k0; k < k1; k += QUANT_BLOCK) {
        const struct quant_piece *x[TILE_ROWS];
        const int64_t in = k % QUANT_PIECE, block = in / QUANT_BLOCK;
        __m512i dot[TILE_ROWS][2];
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            x[r] = p->row[i + r] + k / QUANT_PIECE;
            dot[r][0] = dot[r][1] = _mm512_set1_epi32(-zero * x[r]->code_sum[block]);
        }
#pragma GCC unroll 8
        for (int q = 0; q < QUANT_BLOCK / 4; q++) {
            const __m512i w0 = _mm512_loadu_si512(w->codes[(k - k0) / 4 + q][0]),
                          w1 = _mm512_loadu_si512(w->codes[(k - k0) / 4 + q][16]);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) {
                int32_t four;
                memcpy(&four, x[r]->codes + in + q * 4, sizeof four);
                const __m512i from = _mm512_set1_epi32(four);
                dot[r][0] = _mm512_dpbusd_epi32(dot[r][0], w0, from);
                dot[r][1] = _mm512_dpbusd_epi32(dot[r][1], w1, from);
            }
        }
        const int64_t group = int4 ? (k - k0) / p->storage.group : 0;
        const __m512 s0 = _mm512_loadu_ps(w->scale[group]),
                     s1 = _mm512_loadu_ps(w->scale[group] + 16);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const __m512 own = _mm512_set1_ps(x[r]->scale[block]);
            sum[r][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][0]),
                                        int4 ? _mm512_mul_ps(own, s0) : own, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][1]),
                                        int4 ? _mm512_mul_ps(own, s1) : own, sum[r][1]);
            if (minima) {
                const __m512 all = _mm512_set1_ps(x[r]->sum[block]);
                sum[r][0] = _mm512_fmadd_ps(_mm512_loadu_ps(w->least[group]), all, sum[r][0]);
                sum[r][1] = _mm512_fmadd_ps(_mm512_loadu_ps(w->least[group] + 16), all, sum[r][1]);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) {
            float *y = p->y + (i + r) * p->ldy + v * 16;
            __m512 add = sum[r][v];
            if (!int4)
                add = _mm512_mul_ps(add, _mm512_loadu_ps(w->scale[0] + v * 16));
            _mm512_storeu_ps(y, k0 > 0 ? _mm512_add_ps(_mm512_loadu_ps(y), add) : add);
        }
}

INLINE void tiles(const bool int4, const bool minima, const struct quant_product *p,
                  const struct panel *w, int64_t k0, int64_t k1) {
    int64_t i = 0;
    for (; i + TILE_ROWS <= p->m; i += TILE_ROWS)
        tile(TILE_ROWS, int4, minima, p, w, i, k0, k1);
    switch (p->m - i) {
    case 5:
        tile(5, int4, minima, p, w, i, k0, k1);
        break;
    case 4:
        tile(4, int4, minima, p, w, i, k0, k1);
        break;
    case 3:
        tile(3, int4, minima, p, w, i, k0, k1);
        break;
    case 2:
        tile(2, int4, minima, p, w, i, k0, k1);
        break;
    case 1:
        tile(1, int4, minima, p, w, i, k0, k1);
        break;
    default:
        break;
    }
}

static void many(const struct quant_product *p, char *scratch) {
    struct panel *w = (struct panel *)(void *)scratch;
    for (int64_t k0 = 0; k0 < p->k; k0 += QUANT_PANEL_K) {
        const int64_t k1 = p->k - k0 < QUANT_PANEL_K ? p->k : k0 + QUANT_PANEL_K;
        pack_codes(p, k0, k1, w);
        pack_scales(p, k0, k1, w);
        if (p->storage.kind == STORAGE_INT8)
            tiles(false, false, p, w, k0, k1);
        else if (p->storage.minima)
            tiles(true, true, p, w, k0, k1);
        else
            tiles(true, false, p, w, k0, k1);
    }
}

const struct cpu_quant cpu_quant_avx512vnni = {
    .name = "avx512_vnni", .encode = encode, .few = few, .many = many, .few_most = 16};

// quant_avx2.c - products with quantized weights by vpmaddubsw, which multiplies unsigned with
// signed bytes and adds pairs in int16.
//
// Two products of 4-bit codes fit int16 with much to spare. Of 8-bit codes, the sign moves from the
// weight to x: magnitudes up to 128 times codes up to 127, twice, is 32512, which still fits. The
// rest is as in quant_avx512vnni.c for few rows, with half as many lanes.
#include "backend/cpu/quant.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

// ---------------------------------------------------------------- rounding x

INLINE __m256 absolute(__m256 x) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

INLINE float largest_of(__m256 x) {
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    a = _mm_max_ss(a, _mm_shuffle_ps(a, a, 1));
    return _mm_cvtss_f32(a);
}

INLINE int sum_of(__m256i x) {
    __m128i a = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1));
    return _mm_cvtsi128_si32(a);
}

// The sums of 4 neighbours: unsigned bytes times signed ones.
INLINE __m256i dot4(__m256i u, __m256i s) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1));
}

static void encode_block(const float *x, enum quant_order order, int zero, int b,
                         struct quant_piece *p) {
    const __m256 none = _mm256_setzero_ps();
    __m256 v[4], most = none, bad = none;
    __m256i code[4], sum = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + i * 8);
        most = _mm256_max_ps(most, absolute(v[i]));
        bad = _mm256_add_ps(bad, _mm256_mul_ps(v[i], none));
    }
    const bool good = _mm256_movemask_ps(_mm256_cmp_ps(bad, none, _CMP_EQ_OQ)) == 0xff;
    const float scale = good ? largest_of(most) / 127 : __builtin_nanf("");
    const __m256 by = _mm256_set1_ps(scale > 0 ? 1 / scale : 0);
    for (int i = 0; i < 4; i++) {
        code[i] = good ? _mm256_cvtps_epi32(_mm256_mul_ps(v[i], by)) : _mm256_setzero_si256();
        code[i] = _mm256_max_epi32(_mm256_min_epi32(code[i], _mm256_set1_epi32(127)),
                                   _mm256_set1_epi32(-127));
        sum = _mm256_add_epi32(sum, code[i]);
    }
    int8_t *to = p->codes + b * QUANT_BLOCK;
    if (order == QUANT_HALVES)
        to = p->codes + b / 4 * 128 + b % 4 * 16;
    // Packing works within halves of a vector, so its dwords come out of order.
    const __m256i bytes =
        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(_mm256_packs_epi32(code[0], code[1]),
                                                       _mm256_packs_epi32(code[2], code[3])),
                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(bytes));
    _mm_storeu_si128((__m128i *)(to + (order == QUANT_HALVES ? 64 : 16)),
                     _mm256_extracti128_si256(bytes, 1));
    p->scale[b] = scale;
    const int all = sum_of(sum);
    p->sum[b] = scale * (float)all;
    p->start[b] = -zero * all;
}

static void encode(const float *x, int64_t n, enum quant_order order, int zero,
                   struct quant_piece *p) {
    float tail[QUANT_PIECE];
    if (n < QUANT_PIECE) {
        memset(tail, 0, sizeof tail);
        memcpy(tail, x, (size_t)n * sizeof *x);
        x = tail;
    }
    for (int b = 0; b < QUANT_PIECE_BLOCKS; b++)
        encode_block(x + b * QUANT_BLOCK, order, zero, b, p);
}

// ---------------------------------------------------------------- products

enum { ROWS_W = 4, PREFETCH = 1024 };

INLINE __m256i load(const void *at) {
    return _mm256_loadu_si256((const __m256i *)at);
}

// `blocks`: of the piece; what W has behind them is not read.
INLINE void piece_int8(const int xs, const int ws, const struct quant_piece *x,
                       const uint8_t *const *w, int blocks, __m256 sum[][4]) {
    for (int b = 0; b < blocks; b++) {
#pragma GCC unroll 4
        for (int r = 0; r < ws; r++) {
            const __m256i codes = load(w[r] + b * 32), size = _mm256_abs_epi8(codes);
            if (b % 2 == 0)
                _mm_prefetch((const char *)w[r] + b * 32 + PREFETCH, _MM_HINT_T0);
#pragma GCC unroll 2
            for (int i = 0; i < xs; i++) {
                const __m256i dot = dot4(size, _mm256_sign_epi8(load(x[i].codes + b * 32), codes));
                sum[i][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot),
                                            _mm256_broadcast_ss(&x[i].scale[b]), sum[i][r]);
            }
        }
    }
}

// The float16 numbers of a piece's groups, one for each of its blocks.
INLINE void spread_halves(const int group, const char *at, float out[QUANT_PIECE_BLOCKS]) {
    const int blocks = group / QUANT_BLOCK;
    float numbers[QUANT_PIECE_BLOCKS];
    for (int i = 0; i < QUANT_PIECE_BLOCKS / blocks; i += 4)
        _mm_storeu_ps(numbers + i,
                      _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(const void *)(at + i * 2))));
    for (int b = 0; b < QUANT_PIECE_BLOCKS; b++)
        out[b] = numbers[b / blocks];
}

INLINE void piece_int4(const int xs, const int ws, const int group, const bool minima,
                       const struct quant_piece *x, const uint8_t *const *w,
                       const char *const *scales, const char *const *least, int blocks,
                       __m256 sum[][4]) {
    const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
    float scale[4][QUANT_PIECE_BLOCKS], least_of[QUANT_PIECE_BLOCKS];
#pragma GCC unroll 4
    for (int r = 0; r < ws; r++) {
        spread_halves(group, scales[r], scale[r]);
        if (minima)
            spread_halves(group, least[r], least_of);
        else // takes off what codes from 0 on add
            for (int b = 0; b < QUANT_PIECE_BLOCKS; b++)
                least_of[b] = -QUANT_ZERO4 * scale[r][b];
        for (int i = 0; i < xs; i++)
            for (int h = 0; h < QUANT_PIECE_BLOCKS; h += 8)
                sum[i][r] = _mm256_fmadd_ps(_mm256_loadu_ps(least_of + h),
                                            _mm256_loadu_ps(x[i].sum + h), sum[i][r]);
    }
    for (int b = 0; b < blocks; b += 2) {
        const int at = b / 4 * 128 + b % 4 * 16;
#pragma GCC unroll 4
        for (int r = 0; r < ws; r++) {
            const __m256i both = load(w[r] + b * 16), first = _mm256_and_si256(both, low),
                          second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
            if (b % 4 == 0)
                _mm_prefetch((const char *)w[r] + b * 16 + PREFETCH, _MM_HINT_T0);
#pragma GCC unroll 2
            for (int i = 0; i < xs; i++) {
                const __m256i pairs =
                    _mm256_add_epi16(_mm256_maddubs_epi16(first, load(x[i].codes + at)),
                                     _mm256_maddubs_epi16(second, load(x[i].codes + at + 64)));
                const __m256i dot = _mm256_madd_epi16(pairs, one);
                const __m256 by = _mm256_set_m128(_mm_set1_ps(scale[r][b + 1] * x[i].scale[b + 1]),
                                                  _mm_set1_ps(scale[r][b] * x[i].scale[b]));
                sum[i][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), by, sum[i][r]);
            }
        }
    }
}

// The rest of a row that ends within a piece, with zeros behind it.
struct rest {
    uint8_t codes[QUANT_PIECE];
    char scales[2 * QUANT_PIECE_BLOCKS], least[2 * QUANT_PIECE_BLOCKS];
};

INLINE float total(__m256 x) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}

INLINE void one_piece(const int xs, const int ws, const int group, const bool minima,
                      const struct quant_piece *x, const uint8_t *const *w,
                      const char *const *scales, const char *const *least, int blocks,
                      __m256 sum[][4]) {
    if (group > 0)
        piece_int4(xs, ws, group, minima, x, w, scales, least, blocks, sum);
    else
        piece_int8(xs, ws, x, w, blocks, sum);
}

// `xs` rows of x from i on, `ws` rows of W from j on. group 0: int8.
INLINE void dot_rows(const int xs, const int ws, const int group, const bool minima,
                     const struct quant_product *p, int64_t i, int64_t j) {
    const int bits = group > 0 ? 4 : 8, groups = group > 0 ? QUANT_PIECE / (group + !group) : 0;
    const struct quant_piece *x = p->row[i];
    const uint8_t *w[4];
    const char *scales[4], *least[4];
    __m256 sum[2][4];
#pragma GCC unroll 4
    for (int r = 0; r < ws; r++) {
        const int64_t first = (j + r) * p->parts.groups * 2;
        w[r] = (const uint8_t *)p->w + p->parts.codes + (j + r) * (int64_t)p->parts.row_bytes;
        scales[r] = p->w + p->parts.scales + first;
        least[r] = p->w + p->parts.minima + first;
#pragma GCC unroll 2
        for (int q = 0; q < xs; q++)
            sum[q][r] = _mm256_setzero_ps();
    }
    int64_t left = p->k;
    for (; left >= QUANT_PIECE; left -= QUANT_PIECE) {
        one_piece(xs, ws, group, minima, x, w, scales, least, QUANT_PIECE_BLOCKS, sum);
        x += QUANT_ROWS;
        for (int r = 0; r < ws; r++) {
            w[r] += QUANT_PIECE * bits / 8;
            scales[r] += groups * 2;
            least[r] += groups * 2;
        }
    }
    if (left > 0) {
        struct rest rest[4];
        for (int r = 0; r < ws; r++) {
            const size_t numbers = group > 0 ? (size_t)(left / (group + !group) * 2) : 0;
            memset(&rest[r], 0, sizeof rest[r]);
            memcpy(rest[r].codes, w[r], (size_t)(left * bits / 8));
            memcpy(rest[r].scales, scales[r], numbers);
            memcpy(rest[r].least, least[r], minima ? numbers : 0);
            w[r] = rest[r].codes, scales[r] = rest[r].scales, least[r] = rest[r].least;
        }
        one_piece(xs, ws, group, minima, x, w, scales, least,
                  (int)((left + QUANT_BLOCK - 1) / QUANT_BLOCK), sum);
    }
    for (int r = 0; r < ws; r++) {
        float scale = 1;
        if (group == 0)
            memcpy(&scale, p->w + p->parts.scales + (j + r) * 4, sizeof scale);
        for (int q = 0; q < xs; q++)
            p->y[(i + q) * p->ldy + j + r - p->j0] = total(sum[q][r]) * scale;
    }
}

INLINE void few_of(const int group, const bool minima, const struct quant_product *p) {
    int64_t j = p->j0;
    for (; j + ROWS_W <= p->j1; j += ROWS_W) {
        int64_t i = 0;
        for (; i + 2 <= p->m; i += 2) {
            dot_rows(2, 2, group, minima, p, i, j);
            dot_rows(2, 2, group, minima, p, i, j + 2);
        }
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

const struct cpu_quant cpu_quant_avx2 = {.name = "avx2",
                                         .encode = encode,
                                         .few = few,
                                         .int8 = {QUANT_NATURAL, INT64_MAX},
                                         .int4 = {QUANT_HALVES, INT64_MAX}};

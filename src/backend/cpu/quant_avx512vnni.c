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

#define CODES_SIGNED false
#include "backend/cpu/quant_panel.inc"

// ---------------------------------------------------------------- turning

// The order of lanes: lane 4 i + j has block 4 j + i of a piece, and block 4 i + j is in lane
// 4 j + i. It is what turning in quarters makes.
INLINE __m512i lane_order(void) {
    return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}

// Turns 4 x 4 dwords in each 128 bits.
INLINE void turn_quarters(__m512i v[4]) {
    const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]),
                  c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi64(a, c);
    v[1] = _mm512_unpackhi_epi64(a, c);
    v[2] = _mm512_unpacklo_epi64(b, d);
    v[3] = _mm512_unpackhi_epi64(b, d);
}

// The 512 codes of a piece: vector q gets dword q of each block, in the order of lanes.
INLINE void turn_piece(__m512i v[8]) {
    __m512i even[4] = {v[0], v[2], v[4], v[6]}, odd[4] = {v[1], v[3], v[5], v[7]};
    turn_quarters(even);
    turn_quarters(odd);
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        v[q] = _mm512_shuffle_i32x4(even[q], odd[q], 0x88);
        v[q + 4] = _mm512_shuffle_i32x4(even[q], odd[q], 0xdd);
    }
}

// Sums, or the largest numbers, compared as integers.
INLINE __m512 combine(const bool sum, __m512 a, __m512 b) {
    return sum ? _mm512_add_ps(a, b)
               : _mm512_castsi512_ps(
                     _mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

// Lane i of the result combines the lanes of v[i], each in the same order. v is used up.
INLINE __m512 across(const bool sum, __m512 v[16]) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        v[i] = combine(sum, _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                       _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        v[i] = combine(sum, _mm512_shuffle_ps(v[2 * i], v[2 * i + 1], 0x44),
                       _mm512_shuffle_ps(v[2 * i], v[2 * i + 1], 0xee));
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) { // the third is made of the first two
        const __m512 a = v[i < 2 ? 2 * i : 0], b = v[i < 2 ? 2 * i + 1 : 1];
        v[i < 2 ? i : 0] =
            combine(sum, _mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    return v[0];
}

// ---------------------------------------------------------------- rounding x

INLINE __m512 load_x(const float *x, int64_t at, int64_t n) {
    const int64_t left = n - at;
    return left >= 16 ? _mm512_loadu_ps(x + at)
                      : _mm512_maskz_loadu_ps((__mmask16)(left > 0 ? (1 << left) - 1 : 0), x + at);
}

void quant_encode_avx512vnni(const float *x, int64_t n, enum quant_order order, int zero,
                             struct quant_piece *p) {
    __m512 most[QUANT_PIECE_BLOCKS];
    __m512i code[QUANT_PIECE / 64], sum = _mm512_setzero_si512();
    float by[QUANT_PIECE_BLOCKS];
    for (int b = 0; b < QUANT_PIECE_BLOCKS; b++)
        most[b] = combine(false, _mm512_abs_ps(load_x(x, b * QUANT_BLOCK, n)),
                          _mm512_abs_ps(load_x(x, b * QUANT_BLOCK + 16, n)));
    // The bits of what is not finite are the largest integers.
    const __m512 largest = across(false, most);
    const __mmask16 bad =
        _mm512_cmpge_epi32_mask(_mm512_castps_si512(largest), _mm512_set1_epi32(0x7f800000));
    __m512 scale = _mm512_div_ps(largest, _mm512_set1_ps(127));
    const __mmask16 some =
        _mm512_mask_cmp_ps_mask((__mmask16)~bad, scale, _mm512_setzero_ps(), _CMP_GT_OQ);
    _mm512_storeu_ps(by, _mm512_maskz_div_ps(some, _mm512_set1_ps(1), scale));
    scale = _mm512_mask_blend_ps(bad, scale, _mm512_set1_ps(__builtin_nanf("")));
    for (int b = 0; b < QUANT_PIECE_BLOCKS; b++)
        for (int half = 0; half < 2; half++) {
            const int at = b * QUANT_BLOCK + half * 16;
            const __m512i whole = _mm512_maskz_cvtps_epi32(
                by[b] > 0 ? 0xffff : 0, _mm512_mul_ps(load_x(x, at, n), _mm512_set1_ps(by[b])));
            _mm_storeu_si128((__m128i *)(void *)(p->codes + at), _mm512_cvtsepi32_epi8(whole));
        }
    for (int q = 0; q < QUANT_PIECE / 64; q++)
        code[q] = _mm512_loadu_si512(p->codes + q * 64);
    turn_piece(code);
    for (int q = 0; q < QUANT_PIECE / 64; q++) {
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), code[q]);
        if (order == QUANT_TURNED)
            _mm512_storeu_si512(p->codes + q * 64, code[q]);
    }
    if (order == QUANT_TURNED)
        scale = _mm512_permutexvar_ps(lane_order(), scale);
    else
        sum = _mm512_permutexvar_epi32(lane_order(), sum);
    _mm512_storeu_ps(p->scale, scale);
    _mm512_storeu_ps(p->sum, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum)));
    _mm512_storeu_si512(p->start, _mm512_mullo_epi32(sum, _mm512_set1_epi32(-zero)));
}

// ---------------------------------------------------------------- few rows

// ROWS_W: rows of W whose sums are finished together. XS_MOST: rows of x that are multiplied with
// the codes of a row of W while these are in registers. STEP: pieces of x in all that are used
// again and again before the next ones are, so that they stay in the first cache.
//
// What is read of W is fetched before, because the hardware does not do it early enough, least of
// all for scales, of which a line is read now and then. AHEAD: by how many elements. With many rows
// of x a line is used for longer, and so many lines on their way to the first cache would hold up
// its other loads. Then they are fetched from `far`: FAR_AHEAD elements ahead into the second
// cache, and NEAR elements ahead into the first.
enum { ROWS_W = 16, XS_MOST = 8, STEP = 32, AHEAD = 8192, FAR_AHEAD = 16384, NEAR = 2048 };

// Where a row of W is read.
struct place {
    const uint8_t *codes;
    const char *scales, *least;
    int64_t near, ahead, numbers_ahead; // bytes
    __m512i spread;                     // which of a piece's groups each lane is of
    int shift;                          // a group has 1 << shift elements
};

// The 512 codes of a piece as unsigned bytes: vector q has 4 of each block, in the order of lanes.
// `left`: elements of the row.
INLINE void read_piece(const bool far, const bool int4, const struct place *w, int64_t left,
                       __m512i code[8]) {
    const int64_t bytes = int4 ? left / 2 : left;
    const int vectors = int4 ? 4 : 8;
#pragma GCC unroll 8
    for (int q = 0; q < vectors; q++) {
        const uint8_t *from = w->codes + q * 64;
        code[q] = left >= QUANT_PIECE ? _mm512_loadu_si512(from)
                                      : _mm512_maskz_loadu_epi8(first_bytes(bytes - q * 64), from);
        _mm_prefetch((const char *)from + w->near, _MM_HINT_T0);
        if (far)
            _mm_prefetch((const char *)from + w->ahead, _MM_HINT_T1);
    }
    if (!int4) {
        turn_piece(code);
#pragma GCC unroll 8
        for (int q = 0; q < 8; q++)
            code[q] = _mm512_xor_si512(code[q], _mm512_set1_epi8((char)QUANT_ZERO8));
        return;
    }
    turn_quarters(code);
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        code[q + 4] = _mm512_and_si512(_mm512_srli_epi16(code[q], 4), _mm512_set1_epi8(15));
        code[q] = _mm512_and_si512(code[q], _mm512_set1_epi8(15));
    }
}

// The float16 numbers of a piece's groups, in the order of lanes.
INLINE __m512 read_halves(const struct place *w, const char *at, int64_t left) {
    const int64_t groups = (left < QUANT_PIECE ? left : QUANT_PIECE) >> w->shift;
    _mm_prefetch(at + w->numbers_ahead, _MM_HINT_T0);
    return _mm512_permutexvar_ps(
        w->spread, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((__mmask16)((1 << groups) - 1), at)));
}

// Multiplies a piece of a row of W with those of `xs` rows of x.
INLINE void dot_piece(const bool far, const int xs, const bool int4, const bool minima,
                      const struct place *w, int64_t left, const struct quant_piece *x,
                      __m512 sum[XS_MOST]) {
    __m512i code[8], dot[XS_MOST];
    __m512 scale = _mm512_setzero_ps(), least = scale;
    read_piece(far, int4, w, left, code);
    if (int4)
        scale = read_halves(w, w->scales, left);
    if (minima)
        least = read_halves(w, w->least, left);
#pragma GCC unroll 8
    for (int i = 0; i < xs; i++)
        dot[i] = _mm512_loadu_si512(x[i].start);
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++)
#pragma GCC unroll 8
        for (int i = 0; i < xs; i++)
            dot[i] = _mm512_dpbusd_epi32(dot[i], code[q], _mm512_loadu_si512(x[i].codes + q * 64));
#pragma GCC unroll 8
    for (int i = 0; i < xs; i++) {
        const __m512 own = _mm512_loadu_ps(x[i].scale);
        sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[i]), int4 ? _mm512_mul_ps(own, scale) : own,
                                 sum[i]);
        if (minima)
            sum[i] = _mm512_fmadd_ps(least, _mm512_loadu_ps(x[i].sum), sum[i]);
    }
}

// Adds elements [k0, k1) of row j of W to the sums of `xs` rows of x from i on.
INLINE void dot_span(const bool far, const int xs, const bool int4, const bool minima,
                     const struct quant_product *p, struct place w, int64_t i, int64_t j,
                     int64_t k0, int64_t k1, __m512 *sum) {
    const int64_t first = j * p->parts.groups + (k0 >> w.shift);
    const struct quant_piece *x = p->row[i] + k0 / QUANT_PIECE * QUANT_ROWS;
    __m512 own[XS_MOST];
    w.codes = (const uint8_t *)p->w + p->parts.codes + j * (int64_t)p->parts.row_bytes +
              (int4 ? k0 / 2 : k0);
    w.scales = p->w + p->parts.scales + first * 2;
    w.least = p->w + p->parts.minima + first * 2;
#pragma GCC unroll 8
    for (int q = 0; q < xs; q++)
        own[q] = k0 > 0 ? sum[q * ROWS_W] : _mm512_setzero_ps();
    for (; k0 + QUANT_PIECE <= k1; k0 += QUANT_PIECE, x += QUANT_ROWS) {
        dot_piece(far, xs, int4, minima, &w, QUANT_PIECE, x, own);
        w.codes += int4 ? QUANT_PIECE / 2 : QUANT_PIECE;
        w.scales += QUANT_PIECE >> w.shift << 1;
        w.least += QUANT_PIECE >> w.shift << 1;
    }
    if (k0 < k1)
        dot_piece(far, xs, int4, minima, &w, k1 - k0, x, own);
#pragma GCC unroll 8
    for (int q = 0; q < xs; q++)
        sum[q * ROWS_W] = own[q];
}

// Columns [j, j + rows) of `xs` rows of y from i on; `rows` is at most ROWS_W.
INLINE void dot_rows(const bool far, const int xs, const bool int4, const bool minima,
                     const struct quant_product *p, int64_t i, int64_t j, int64_t rows) {
    const int64_t step = far ? STEP / xs * (int64_t)QUANT_PIECE : p->k;
    struct place w = {.shift = __builtin_ctz(int4 ? p->storage.group : QUANT_PIECE)};
    __m512 sum[XS_MOST][ROWS_W];
    w.spread = _mm512_srlv_epi32(lane_order(), _mm512_set1_epi32(w.shift - 5)); // blocks of 32
    for (int q = 0; q < xs; q++)
        for (int64_t r = p->k > 0 ? rows : 0; r < ROWS_W; r++)
            sum[q][r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < p->k; k += step) {
        const int64_t end = p->k - k < step ? p->k : k + step;
        for (int64_t r = 0; r < rows; r++) {
            // Rows that are read a part at a time: what is fetched from afar goes through the next
            // ROWS_W rows from their first byte to their last.
            const bool parts = p->k > step;
            const int64_t ahead = parts ? (ROWS_W - r) * p->k + rows * k + r * (end - k) - k
                                  : far ? FAR_AHEAD
                                        : AHEAD,
                          near = parts ? 2 * p->k
                                 : far ? NEAR
                                       : AHEAD;
            w.ahead = int4 ? ahead / 2 : ahead;
            w.near = int4 ? near / 2 : near;
            w.numbers_ahead = ahead >> w.shift << 1;
            dot_span(far, xs, int4, minima, p, w, i, j + r, k, end, &sum[0][r]);
        }
    }
    const __mmask16 mask = (__mmask16)((1 << rows) - 1);
    const __m512 scale =
        int4 ? _mm512_set1_ps(1) : _mm512_maskz_loadu_ps(mask, p->w + p->parts.scales + j * 4);
    for (int q = 0; q < xs; q++)
        _mm512_mask_storeu_ps(p->y + (i + q) * p->ldy + j - p->j0, mask,
                              _mm512_mul_ps(across(true, sum[q]), scale));
}

INLINE void few_of(const bool int4, const bool minima, const struct quant_product *p) {
    for (int64_t j = p->j0; j < p->j1; j += ROWS_W) {
        const int64_t rows = p->j1 - j < ROWS_W ? p->j1 - j : ROWS_W;
        int64_t i = 0;
        for (; i + 8 <= p->m; i += 8)
            dot_rows(true, 8, int4, minima, p, i, j, rows);
        if (i + 4 <= p->m)
            dot_rows(true, 4, int4, minima, p, i, j, rows), i += 4;
        if (i + 2 <= p->m && p->k > STEP / 2 * QUANT_PIECE)
            dot_rows(true, 2, int4, minima, p, i, j, rows), i += 2;
        else if (i + 2 <= p->m)
            dot_rows(false, 2, int4, minima, p, i, j, rows), i += 2;
        if (i < p->m)
            dot_rows(false, 1, int4, minima, p, i, j, rows);
    }
}

void quant_few_avx512vnni(const struct quant_product *p) {
    if (p->storage.kind == STORAGE_INT8)
        few_of(false, false, p);
    else if (p->storage.minima)
        few_of(true, true, p);
    else
        few_of(true, false, p);
}

// ---------------------------------------------------------------- many rows

enum { TILE_ROWS = 6 };

// Adds the product of `rows` rows of x with a panel to y.
INLINE void tile(const int rows, const bool int4, const bool minima, const struct quant_product *p,
                 const struct panel *w, int64_t i, int64_t k0, int64_t k1) {
    const int shift = int4 ? __builtin_ctz(p->storage.group) : 0;
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
            dot[r][0] = dot[r][1] = _mm512_set1_epi32(x[r]->start[block]);
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
        const int64_t group = int4 ? (k - k0) >> shift : 0;
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
        pack_panel(p, k0, k1, w);
        if (p->storage.kind == STORAGE_INT8)
            tiles(false, false, p, w, k0, k1);
        else if (p->storage.minima)
            tiles(true, true, p, w, k0, k1);
        else
            tiles(true, false, p, w, k0, k1);
    }
}

// Unpacking int4 takes `many` longer, so that its rows are many later.
const struct cpu_quant cpu_quant_avx512vnni = {.name = "avx512_vnni",
                                               .encode = quant_encode_avx512vnni,
                                               .few = quant_few_avx512vnni,
                                               .many = many,
                                               .int8 = {QUANT_TURNED, 16},
                                               .int4 = {QUANT_TURNED, 32}};

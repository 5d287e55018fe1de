// quant_amx.c - products of many rows with quantized weights by AMX: tiles of 16 x 16 sums of
// signed bytes. Few rows are quant_avx512vnni.c's.
//
// A block of 32 elements has a scale of its own in each row of x, so a tile of sums holds one
// block: 16 rows of x times 16 rows of W. It is stored, and its rows are multiplied with scales
// and added in float32, while the next ones are computed. Two blocks are under way at a time.
//
// A tile of x is read where its rows are, if they are equally far apart. Rows that other threads
// have rounded are not: they are copied. Rows do not mix, so a row's sums are the same either way.
//
// The tile registers are set up and released inside one panel of one thread; no other code uses
// them. The process must have asked Linux for them before (cpu.c).
#include "backend/cpu/quant.h"

#include <immintrin.h>
#include <string.h>

#define CODES_SIGNED true
#include "backend/cpu/quant_panel.inc"

// A test may define these first, to run on a CPU without the instructions.
#if !defined(QUANT_LOAD)
#define QUANT_CONFIGURE(c)       _tile_loadconfig(c)
#define QUANT_RELEASE()          _tile_release()
#define QUANT_CLEAR(t)           _tile_zero(t)
#define QUANT_LOAD(t, p, bytes)  _tile_loadd(t, p, bytes)
#define QUANT_STORE(t, p, bytes) _tile_stored(t, p, bytes)
#define QUANT_DOT(c, a, b)       _tile_dpbssd(c, a, b)
#endif

enum { TILE = 16, PARTS = QUANT_PANEL_K / QUANT_PIECE, ROW_BYTES = QUANT_PANEL_K + 64 };

// The layout that the instruction LDTILECFG reads (Intel SDM).
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// Tiles 0 and 1 hold sums; 4 and 5 a block of rows of x; 6 and 7 a block of W, a row of which has 4
// columns of k.
static void tiles_open(void) {
    struct tile_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        const int of = t / 2;
        c.row_bytes[t] = of == 2 ? QUANT_BLOCK : of == 1 ? 0 : TILE * 4;
        c.rows[t] = of == 3 ? QUANT_BLOCK / 4 : of == 1 ? 0 : TILE;
    }
    QUANT_CONFIGURE(&c);
}

// Up to 16 rows of x at a part of k.
struct tile_rows {
    const struct quant_piece *row[TILE]; // rows that are missing repeat the last
    const int8_t *codes[PARTS];          // of the first row, by pieces
    int64_t apart;                       // bytes from a row's codes to the next row's
    _Alignas(64) int8_t copy[TILE][ROW_BYTES];
};

static void find_rows(const struct quant_product *p, int64_t i, int64_t k0, int64_t k1,
                      struct tile_rows *x) {
    const int64_t rows = p->m - i < TILE ? p->m - i : TILE;
    const char *first = (const char *)p->row[i], *second = (const char *)p->row[i + (rows > 1)];
    bool even = rows == TILE;
    x->apart = second - first;
    for (int64_t r = 0; r < TILE; r++) {
        const struct quant_piece *row = p->row[i + (r < rows ? r : rows - 1)];
        even = even && (const char *)row == first + r * x->apart;
        x->row[r] = row + k0 / QUANT_PIECE;
    }
    for (int64_t at = 0; at < k1 - k0; at += QUANT_PIECE) {
        x->codes[at / QUANT_PIECE] = even ? x->row[0][at / QUANT_PIECE].codes : x->copy[0] + at;
        for (int64_t r = 0; r < TILE && !even; r++)
            memcpy(x->copy[r] + at, x->row[r][at / QUANT_PIECE].codes, QUANT_PIECE);
    }
    if (!even)
        x->apart = ROW_BYTES;
}

// Adds the sums of block `block` of the part: they are in `dot`, 16 of W for each row of x.
INLINE void add_block(const bool int4, const bool minima, const struct tile_rows *x,
                      const struct panel *w, int shift, int half, int64_t block, const int32_t *dot,
                      __m512 sum[TILE]) {
    const int64_t of = int4 ? block * QUANT_BLOCK >> shift : 0;
    const __m512 scale = _mm512_loadu_ps(w->scale[of] + half * TILE),
                 least = minima ? _mm512_loadu_ps(w->least[of] + half * TILE) : scale;
#pragma GCC unroll 16
    for (int r = 0; r < TILE; r++) {
        const struct quant_piece *piece = x->row[r] + block / QUANT_PIECE_BLOCKS;
        const __m512 own = _mm512_set1_ps(piece->scale[block % QUANT_PIECE_BLOCKS]),
                     value = _mm512_cvtepi32_ps(_mm512_loadu_si512(dot + r * TILE));
        sum[r] = _mm512_fmadd_ps(value, int4 ? _mm512_mul_ps(own, scale) : own, sum[r]);
        if (minima)
            sum[r] = _mm512_fmadd_ps(least, _mm512_set1_ps(piece->sum[block % QUANT_PIECE_BLOCKS]),
                                     sum[r]);
    }
}

// 16 columns of up to 16 rows of y from i on.
INLINE void tile(const bool int4, const bool minima, const struct quant_product *p,
                 const struct tile_rows *x, const struct panel *w, int64_t i, int half, int64_t k0,
                 int64_t k1) {
    const int64_t blocks = (k1 - k0 + QUANT_BLOCK - 1) / QUANT_BLOCK, w_bytes = QUANT_PANEL * 4,
                  dot_bytes = TILE * 4;
    _Alignas(64) int32_t dot[2][TILE * TILE];
    __m512 sum[TILE];
    const int shift = int4 ? __builtin_ctz(p->storage.group) : 0;
    for (int r = 0; r < TILE; r++)
        sum[r] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b += 2) {
        const int64_t in = b % QUANT_PIECE_BLOCKS * QUANT_BLOCK;
        const int8_t *codes = x->codes[b / QUANT_PIECE_BLOCKS] + in;
        const uint8_t *from = w->codes[b * (QUANT_BLOCK / 4)][half * TILE];
        const bool two = b + 1 < blocks;
        QUANT_CLEAR(0);
        QUANT_LOAD(4, codes, x->apart);
        QUANT_LOAD(6, from, w_bytes);
        QUANT_DOT(0, 4, 6);
        QUANT_STORE(0, dot[0], dot_bytes);
        if (two) {
            QUANT_CLEAR(1);
            QUANT_LOAD(5, codes + QUANT_BLOCK, x->apart);
            QUANT_LOAD(7, from + QUANT_BLOCK / 4 * w_bytes, w_bytes);
            QUANT_DOT(1, 5, 7);
            QUANT_STORE(1, dot[1], dot_bytes);
        }
        add_block(int4, minima, x, w, shift, half, b, dot[0], sum);
        if (two)
            add_block(int4, minima, x, w, shift, half, b + 1, dot[1], sum);
    }
    for (int64_t r = 0; r < TILE && i + r < p->m; r++) {
        float *y = p->y + (i + r) * p->ldy + half * TILE;
        __m512 add = sum[r];
        if (!int4)
            add = _mm512_mul_ps(add, _mm512_loadu_ps(w->scale[0] + half * TILE));
        _mm512_storeu_ps(y, k0 > 0 ? _mm512_add_ps(_mm512_loadu_ps(y), add) : add);
    }
}

static void many(const struct quant_product *p, char *scratch) {
    struct panel *w = (struct panel *)(void *)scratch;
    struct tile_rows x;
    tiles_open();
    for (int64_t k0 = 0; k0 < p->k; k0 += QUANT_PANEL_K) {
        const int64_t k1 = p->k - k0 < QUANT_PANEL_K ? p->k : k0 + QUANT_PANEL_K;
        pack_panel(p, k0, k1, w);
        for (int64_t i = 0; i < p->m; i += TILE) {
            find_rows(p, i, k0, k1, &x);
            for (int half = 0; half < QUANT_PANEL / TILE; half++)
                if (p->storage.kind == STORAGE_INT8)
                    tile(false, false, p, &x, w, i, half, k0, k1);
                else if (p->storage.minima)
                    tile(true, true, p, &x, w, i, half, k0, k1);
                else
                    tile(true, false, p, &x, w, i, half, k0, k1);
        }
    }
    QUANT_RELEASE();
}

const struct cpu_quant cpu_quant_amx = {.name = "amx_int8",
                                        .encode = quant_encode_avx512vnni,
                                        .few = quant_few_avx512vnni,
                                        .many = many,
                                        .int8 = {QUANT_TURNED, 16},
                                        .int4 = {QUANT_TURNED, 16}};

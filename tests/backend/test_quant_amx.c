// test_quant_amx.c - products of quantized weights by AMX on any CPU with AVX-512. The tile
// instructions are replaced by the C functions below, which also check what LDTILECFG was told;
// everything around them is the real source, and the plain kernels are the truth. On a CPU that has
// AMX, test_quantized.c runs the real instructions.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

// Eight tiles, and what they were set up as.
static struct {
    unsigned char row[8][16][64];
    int rows[8], bytes[8], open, wrong;
} unit;

static void tile_open(const void *config) {
    const uint8_t *c = config;
    unit.open = c[0] == 1 && c[1] == 0;
    for (int i = 0; i < 8; i++) {
        unit.bytes[i] = c[16 + 2 * i] + 256 * c[17 + 2 * i];
        unit.rows[i] = c[48 + i];
        unit.wrong |= unit.bytes[i] > 64 || unit.rows[i] > 16 || !unit.bytes[i] != !unit.rows[i];
    }
    memset(unit.row, 0xff, sizeof unit.row);
}

static void tile_load(int t, const void *from, int64_t stride) {
    unit.wrong |= !unit.open || unit.rows[t] == 0;
    memset(unit.row[t], 0, sizeof unit.row[t]);
    for (int i = 0; i < unit.rows[t]; i++)
        memcpy(unit.row[t][i], (const char *)from + i * stride, (size_t)unit.bytes[t]);
}

static void tile_clear(int t) {
    unit.wrong |= !unit.open || unit.rows[t] == 0;
    memset(unit.row[t], 0, sizeof unit.row[t]);
}

static void tile_store(int t, void *to, int64_t stride) {
    unit.wrong |= !unit.open;
    for (int i = 0; i < unit.rows[t]; i++)
        memcpy((char *)to + i * stride, unit.row[t][i], (size_t)unit.bytes[t]);
}

// C[i][j] += sum over q and h of A[i][q][h] * B[q][j][h], signed bytes.
static void tile_dot(int c, int a, int b) {
    unit.wrong |= unit.bytes[a] != 4 * unit.rows[b] || unit.rows[c] != unit.rows[a] ||
                  unit.bytes[c] != unit.bytes[b];
    for (int i = 0; i < unit.rows[c]; i++)
        for (int j = 0; j < unit.bytes[c] / 4; j++) {
            int32_t sum;
            memcpy(&sum, unit.row[c][i] + j * 4, sizeof sum);
            for (int q = 0; q < unit.rows[b]; q++)
                for (int h = 0; h < 4; h++)
                    sum += (int8_t)unit.row[a][i][q * 4 + h] * (int8_t)unit.row[b][q][j * 4 + h];
            memcpy(unit.row[c][i] + j * 4, &sum, sizeof sum);
        }
}

#define QUANT_CONFIGURE(c)       tile_open(c)
#define QUANT_RELEASE()          (unit.open = 0)
#define QUANT_CLEAR(t)           tile_clear(t)
#define QUANT_LOAD(t, p, bytes)  tile_load(t, p, bytes)
#define QUANT_STORE(t, p, bytes) tile_store(t, p, bytes)
#define QUANT_DOT(c, a, b)       tile_dot(c, a, b)
#define cpu_quant_amx            written_out
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#include "backend/cpu/quant_amx.c"
#pragma GCC pop_options

#include "base/rng.h"
#include "skips.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { COLUMNS = 40, FIRST = 3 }; // columns of W; where the panel begins

static void check(struct storage s, int64_t m, int64_t n, int64_t k, bool apart) {
    struct quant_product p = {.storage = s, .n = COLUMNS, .k = k, .m = m, .apart = 1};
    const int64_t pieces = (k + QUANT_PIECE - 1) / QUANT_PIECE;
    assert_true(storage_layout(s, COLUMNS, k, &p.parts));
    char *w = malloc(p.parts.bytes);
    struct quant_piece *x = calloc((size_t)(2 * m * pieces), sizeof *x);
    const struct quant_piece **row = calloc((size_t)m, sizeof *row);
    float *values = calloc((size_t)k, sizeof *values), *y = calloc((size_t)m * QUANT_PANEL, 4),
          *want = calloc((size_t)m * QUANT_PANEL, 4);
    char *scratch = aligned_alloc(64, QUANT_SCRATCH);
    assert_true(w && x && row && values && y && want && scratch);
    memset(scratch, 0xff, QUANT_SCRATCH); // what was not unpacked must not count
    for (uint64_t i = 0; i < p.parts.codes_bytes; i++)
        w[i] = (char)((int)rng_below(1, 2, i, 255) - 127);
    for (int64_t i = 0; i < COLUMNS * p.parts.groups; i++) {
        const float scale = 0.01f + (float)(i % 7) * 0.003f;
        const uint16_t half = dtype_f32_to_f16(scale), least = dtype_f32_to_f16(-7 * scale);
        if (s.kind == STORAGE_INT8)
            memcpy(w + p.parts.scales + i * 4, &scale, 4);
        else
            memcpy(w + p.parts.scales + i * 2, &half, 2);
        if (s.minima)
            memcpy(w + p.parts.minima + i * 2, &least, 2);
    }
    for (int64_t i = 0; i < m; i++) {
        struct quant_piece *to = x + (apart && i % 3 == 1 ? m + i : i) * pieces;
        for (int64_t l = 0; l < k; l++)
            values[l] = (float)rng_normal(1, 3 + (uint64_t)i, (uint64_t)l);
        for (int64_t at = 0; at < k; at += QUANT_PIECE)
            cpu_quant_generic.encode(values + at, k - at < QUANT_PIECE ? k - at : QUANT_PIECE,
                                     QUANT_NATURAL, s.minima ? 0 : QUANT_ZERO4,
                                     to + at / QUANT_PIECE);
        row[i] = to;
    }
    p.w = w, p.row = row, p.j0 = FIRST, p.j1 = FIRST + n, p.ldy = QUANT_PANEL;
    p.y = want;
    cpu_quant_generic.few(&p);
    p.y = y;
    written_out.many(&p, scratch);
    assert_false(unit.open);
    assert_false(unit.wrong);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            const double got = (double)y[i * QUANT_PANEL + j],
                         truth = (double)want[i * QUANT_PANEL + j];
            if (!(fabs(got - truth) <= 2e-5 * (sqrt((double)k) + fabs(truth))))
                fail_msg("m=%d n=%d k=%d: y[%d][%d] is %g, not %g", (int)m, (int)n, (int)k, (int)i,
                         (int)j, got, truth);
        }
    free(w), free(x), free(row), free(values), free(y), free(want), free(scratch);
}

static void test_products(void **state) {
    (void)state;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512dq"))
        skip_because("this CPU lacks AVX-512");
    static const struct storage formats[] = {
        {.kind = STORAGE_INT8},
        {.kind = STORAGE_INT4, .group = 32},
        {.kind = STORAGE_INT4, .group = 64},
        {.kind = STORAGE_INT4, .group = 128},
        {.kind = STORAGE_INT4, .group = 32, .minima = true},
        {.kind = STORAGE_INT4, .group = 128, .minima = true},
    };
    static const int64_t rows[] = {1, 16, 17, 37}, columns[] = {1, 17, 32},
                         ks[] = {128, 640, 2048, 2048 + 384};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (int r = 0; r < 4; r++)
            for (int c = 0; c < 3; c++)
                for (int apart = 0; apart < 2; apart++)
                    check(formats[f], rows[r], columns[c], ks[(r + c + apart) % 4], apart);
    static const int64_t odd[] = {1, 31, 33, 95, 513, 2111};
    for (int i = 0; i < 6; i++)
        check(formats[0], 21, 32, odd[i], false);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

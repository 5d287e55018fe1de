// test_cpu_amx.c - the AMX product on any CPU with AVX-512. The tile instructions are replaced by
// the C functions below; everything around them (packing, edges, blocks, sums) is the real source.
// On a CPU that has AMX, test_cpu_kernels.c runs the real instructions.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

// Eight tiles of 16 rows of 64 bytes, and whether they were set up.
static struct {
    unsigned char row[8][16][64];
    int open;
} unit;

static void tile_open(const void *config) {
    const uint8_t *c = config;
    unit.open = c[0] == 1 && c[1] == 0;
    for (int i = 0; i < 8; i++) // bytes of a row, rows
        unit.open &= c[16 + 2 * i] == 64 && c[17 + 2 * i] == 0 && c[48 + i] == 16;
    memset(unit.row, 0xff, sizeof unit.row);
}

static void tile_load(int t, const void *from, int64_t stride) {
    for (int i = 0; i < 16; i++)
        memcpy(unit.row[t][i], (const char *)from + i * stride, 64);
}

static void tile_store(int t, void *to, int64_t stride) {
    for (int i = 0; i < 16; i++)
        memcpy((char *)to + i * stride, unit.row[t][i], 64);
}

static float half_of(uint32_t pair, int upper) {
    uint32_t bits = upper ? pair & 0xffff0000 : pair << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// C[i][j] += sum over pairs p of A[i][p] . B[p][j].
static void tile_dot(int c, int a, int b) {
    float sum[16][16];
    uint32_t left[16][16], right[16][16];
    memcpy(sum, unit.row[c], sizeof sum);
    memcpy(left, unit.row[a], sizeof left);
    memcpy(right, unit.row[b], sizeof right);
    for (int i = 0; i < 16; i++)
        for (int p = 0; p < 16; p++)
            for (int j = 0; j < 16; j++)
                for (int h = 0; h < 2; h++)
                    sum[i][j] += half_of(left[i][p], h) * half_of(right[p][j], h);
    memcpy(unit.row[c], sum, sizeof sum);
}

#define AMX_CONFIGURE(c)       tile_open(c)
#define AMX_RELEASE()          (unit.open = 0)
#define AMX_ZERO(t)            memset(unit.row[t], 0, sizeof unit.row[t])
#define AMX_LOAD(t, p, bytes)  tile_load(t, p, bytes)
#define AMX_STORE(t, p, bytes) tile_store(t, p, bytes)
#define AMX_DOT(c, a, b)       tile_dot(c, a, b)
#define cpu_gemm_amx           written_out
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#include "backend/cpu/gemm_amx.c"
#pragma GCC pop_options
#undef T

#include "base/dtype.h"
#include "base/rng.h"
#include "skips.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

struct product {
    int64_t m, n, k;
    bool ta, tb, accumulate, wide, bias;
};

static double at(const uint16_t *x, int64_t i) {
    return (double)dtype_bf16_to_f32(x[i]);
}

static uint16_t *draw(int64_t n, uint64_t stream) {
    uint16_t *x = malloc((size_t)n * sizeof *x + 2);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = dtype_f32_to_bf16((float)rng_normal(1, stream, (uint64_t)i));
    return x;
}

static void check(const struct product *p) {
    int64_t lda = (p->ta ? p->m : p->k) + 3, ldb = (p->tb ? p->k : p->n) + 5, ldc = p->n + 7;
    uint16_t *a = draw((p->ta ? p->k : p->m) * lda, 1), *b = draw((p->tb ? p->n : p->k) * ldb, 2);
    uint16_t *bias = draw(p->n, 3), *narrow = draw(p->m * ldc, 4), *before = draw(p->m * ldc, 4);
    float *wide = malloc((size_t)(p->m * ldc) * sizeof *wide);
    size_t bytes = (GEMM_PACK_FLOATS + GEMM_SUM_FLOATS) * sizeof(float);
    float *scratch = aligned_alloc(64, bytes);
    assert_true(wide && scratch);
    memset(scratch, 0xff, bytes); // NaN: what was not packed must not count
    for (int64_t i = 0; i < p->m * ldc; i++)
        wide[i] = dtype_bf16_to_f32(before[i]);
    struct gemm_args g = {.m = p->m, .n = p->n, .k = p->k, .alpha = 0.75f, .a = a, .b = b};
    g.lda = lda, g.ldb = ldb, g.ldc = ldc;
    g.ta = p->ta, g.tb = p->tb;
    g.accumulate = p->accumulate;
    g.wide = p->wide;
    g.c = p->wide ? (void *)wide : narrow;
    g.bias = p->bias ? bias : NULL;
    written_out.run(&g, scratch);
    assert_false(unit.open);
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < ldc; j++) {
            double want = at(before, i * ldc + j), size = 0, sum = 0;
            double got = p->wide ? (double)wide[i * ldc + j] : at(narrow, i * ldc + j);
            for (int64_t l = 0; l < p->k && j < p->n; l++) {
                double x = at(a, p->ta ? l * lda + i : i * lda + l) *
                           at(b, p->tb ? j * ldb + l : l * ldb + j);
                sum += x;
                size += x < 0 ? -x : x;
            }
            if (j < p->n)
                want = 0.75 * sum + (p->accumulate ? want : 0) + (p->bias ? at(bias, j) : 0);
            double limit = 1e-6 * (size + 1) + (p->wide ? 0 : 0x1p-8 * (want < 0 ? -want : want));
            if (!(got - want <= limit && want - got <= limit))
                fail_msg("%lld x %lld x %lld, ta %d, tb %d: element %lld,%lld is %g, not %g",
                         (long long)p->m, (long long)p->n, (long long)p->k, p->ta, p->tb,
                         (long long)i, (long long)j, got, want);
        }
    free(a), free(b), free(bias), free(narrow), free(before), free(wide), free(scratch);
}

static void test_products(void **state) {
    (void)state;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512dq"))
        skip_because("this CPU lacks AVX-512");
    static const int64_t sizes[][3] = {
        {9, 1, 1},    {32, 32, 32},  {33, 17, 31},   {16, 16, 64},  {48, 50, 33},
        {70, 400, 9}, {40, 33, 700}, {31, 65, 1030}, {17, 16, 512},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int way = 0; way < 4; way++) {
            struct product p = {.m = sizes[i][0], .n = sizes[i][1], .k = sizes[i][2]};
            p.ta = way == 3, p.tb = way == 1, p.wide = way == 3;
            p.accumulate = (i + (size_t)way) % 2, p.bias = way == 0;
            check(&p);
        }
    check(&(struct product){
        .m = 330, .n = 384, .k = 520, .accumulate = true}); // several blocks of rows
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

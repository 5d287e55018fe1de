// gemm_amx.c - products of bf16 by AMX: tiles of 16 x 16 float32 that take 32 elements of k at a
// time.
//
// A block of 32 x 32 of C is four tiles. Two tiles of A (16 rows of 16 pairs) and two of B (16
// pairs of 16 columns) are loaded for four products, which hides the loads. B is packed into the
// same panels as in gemm_avx512bf16.c. A is always packed row-major, so an A stored [k,m] is
// transposed while it is packed. Panels are padded with 0 to whole tiles along k. A tile is always
// stored whole, which a partial block of C has no room for, so results always go through the sums.
//
// The tile registers are set up and released inside one product of one thread; no other code uses
// them. The process must have asked Linux for them before (cpu.c).
#include "backend/cpu/vec.inc"
#include "backend/cpu/vec16.inc"
#include "backend/cpu/kernels_panel.inc"

// A test may define these first, to run on a CPU without the instructions.
#if !defined(AMX_LOAD)
#define AMX_CONFIGURE(c)       _tile_loadconfig(c)
#define AMX_RELEASE()          _tile_release()
#define AMX_ZERO(t)            _tile_zero(t)
#define AMX_LOAD(t, p, bytes)  _tile_loadd(t, p, bytes)
#define AMX_STORE(t, p, bytes) _tile_stored(t, p, bytes)
#define AMX_DOT(c, a, b)       _tile_dpbf16ps(c, a, b)
#endif

enum { MR = 32, NV = 2, NR = NV * W, KC = 256, NC_MAX = 384 };
enum { KS = KC + 16, PANEL = MR * KS, A_GROUP = 2 };
enum { TILE = 16 }; // rows of a tile, columns of C, pairs of k
_Static_assert(KC *NC_MAX + A_GROUP * PANEL <= GEMM_PACK_FLOATS, "packed blocks fit their buffer");

// The layout that the instruction LDTILECFG reads (Intel SDM).
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// Tiles 0 to 3 hold C, row by row; 4 and 5 hold A; 6 and 7 hold B.
static void tiles_open(void) {
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = TILE * sizeof(float);
        c.rows[i] = TILE;
    }
    AMX_CONFIGURE(&c);
}

// Up to 32 x 32 of C: 16 rows where `rows` is at most 16, 16 columns where `vectors` is 1.
static void amx_tile(int64_t rows, int64_t vectors, int64_t steps, const float *a, const float *b,
                     const struct tile_out *out) {
    bool low = rows > TILE, right = vectors > 1;
    float *c = out->c;
    const int64_t c_bytes = out->ldc * (int64_t)sizeof *c, a_bytes = KS * sizeof *a,
                  b_bytes = vectors * W * (int64_t)sizeof *b;
    if (out->accumulate) {
        AMX_LOAD(0, c, c_bytes);
        if (right)
            AMX_LOAD(1, c + W, c_bytes);
        if (low)
            AMX_LOAD(2, c + TILE * out->ldc, c_bytes);
        if (low && right)
            AMX_LOAD(3, c + TILE * out->ldc + W, c_bytes);
    } else {
        AMX_ZERO(0);
        AMX_ZERO(1);
        AMX_ZERO(2);
        AMX_ZERO(3);
    }
    for (int64_t l = 0; l < steps; l += TILE, a += TILE, b += TILE * vectors * W) {
        AMX_LOAD(4, a, a_bytes);
        AMX_LOAD(6, b, b_bytes);
        AMX_DOT(0, 4, 6);
        if (low) {
            AMX_LOAD(5, a + TILE * KS, a_bytes);
            AMX_DOT(2, 5, 6);
        }
        if (!right)
            continue;
        AMX_LOAD(7, b + W, b_bytes);
        AMX_DOT(1, 4, 7);
        if (low)
            AMX_DOT(3, 5, 7);
    }
    AMX_STORE(0, c, c_bytes);
    if (right)
        AMX_STORE(1, c + W, c_bytes);
    if (low)
        AMX_STORE(2, c + TILE * out->ldc, c_bytes);
    if (low && right)
        AMX_STORE(3, c + TILE * out->ldc + W, c_bytes);
}

#define REAL                                     uint16_t
#define T(name)                                  name##_bf16
#define UNIT                                     2
#define STEPS_STORED(steps)                      (((steps) + TILE - 1) / TILE * TILE)
#define TILE_WRITES_C                            false
#define TILE_OWN_A                               1
#define TILE_RUN(rows, ta, vectors, k, a, b, to) amx_tile(rows, vectors, k, a, b, to)
#include "backend/cpu/real.inc"
#include "backend/cpu/pairs.inc"

// Packs an A stored [k,m]: transposes 16 steps (pairs along k) of 16 rows at a time.
static void pack_a_columns_bf16(float *pack, const real *a, int64_t lda, int64_t rows, int64_t k) {
    int64_t steps = (k + 1) / 2;
    for (int64_t i = 0; i < rows; i += W)
        for (int64_t l = 0; l < steps; l += W) {
            vf r[W];
            for (int s = 0; s < W; s++)
                r[s] = l + s < steps
                           ? pairs_across(rat(a, (l + s) * 2 * lda + i),
                                          (l + s) * 2 + 1 < k ? rat(a, ((l + s) * 2 + 1) * lda + i)
                                                              : NULL,
                                          rows - i)
                           : vset(0);
            vtranspose(r);
            float *to = pack + i / MR * PANEL + i % MR * KS + l;
            for (int s = 0; s < W; s++)
                vstore(to + s * KS, r[s]);
        }
}

#include "backend/cpu/kernels_gemm16.inc"
#include "backend/cpu/kernels_few.inc"

static void gemm_amx(const struct gemm_args *g, float *scratch) {
    bool tiles = g->k > 0 && !g->few_rows;
    if (tiles)
        tiles_open();
    gemm_one_bf16(g, scratch);
    if (tiles)
        AMX_RELEASE();
}

const struct cpu_gemm cpu_gemm_amx = {"amx_bf16", gemm_amx, MR, NR};

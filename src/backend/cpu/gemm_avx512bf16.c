// gemm_avx512bf16.c - products of bf16 by vdpbf16ps, the instruction of AVX512_BF16. Each lane adds
// two products of bf16 to a float32. So a step of k is a pair of elements, and a tile is that of
// float32 in half the steps.
//
// The products are exact in float32. Sums are rounded to float32, and subnormal numbers count as 0.
// Everything else (products of few rows, element access) is the code of avx512.
#include "backend/cpu/vec.inc"
#include "backend/cpu/vec16.inc"

INLINE vf pairs_madd(vf a, vf b, vf sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

// A packed block of B has as many bytes as with float32, but is longer in k: with fewer blocks of
// k, fewer sums wait in memory.
#define TILE_MADD pairs_madd
enum { KC = 384, NC_MAX = 256 };
#include "backend/cpu/kernels_tile.inc"

#define REAL                                     uint16_t
#define T(name)                                  name##_bf16
#define UNIT                                     2
#define STEPS_STORED(steps)                      (steps)
#define TILE_WRITES_C                            true
#define TILE_RUN(rows, ta, vectors, k, a, b, to) tile_table[rows][ta][(vectors)-1](k, a, b, to)
#include "backend/cpu/real.inc"
#include "backend/cpu/pairs.inc"
#include "backend/cpu/kernels_gemm16.inc"
#include "backend/cpu/few_pairs.inc"
#include "backend/cpu/kernels_few.inc"

const struct cpu_gemm cpu_gemm_avx512bf16 = {"avx512_bf16", gemm_one_bf16, MR, NR};

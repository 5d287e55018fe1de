// quant.h - products with quantized weights (base/storage.h): one table of kernels per instruction
// set.
//
// The rows of x are rounded to 8 bits first, so that codes are multiplied with codes in integers.
// QUANT_BLOCK elements of a row share a scale, largest / 127. All sums of integers are exact, so
// instruction sets differ only in the order in which blocks are added in float32. docs/numerics.md
// says what the rounding of x costs.
//
// Weights are codes of one sign and activations have both: 4-bit codes are 0 .. 15, and of 8-bit
// codes the upper bit is flipped, which adds 128. What that adds to a sum depends on the sums of x
// alone, which a rounded row has beside its codes, and is taken off again.
//
// Place: cpu_quant.c splits a product over threads and calls these kernels with rows and columns.
// A result depends on the arguments alone, never on how the caller split the work.
#ifndef HAGGLE_BACKEND_CPU_QUANT_H
#define HAGGLE_BACKEND_CPU_QUANT_H

#include "base/storage.h"

#include <stdbool.h>
#include <stdint.h>

// QUANT_PIECE: elements of x that are kept together, with zeros behind the row's last one.
// QUANT_PANEL: columns of y that a kernel for many rows makes at a time.
enum {
    QUANT_BLOCK = 32,
    QUANT_PIECE = 512,
    QUANT_PIECE_BLOCKS = 16,
    QUANT_PANEL = 32,
    QUANT_ROWS = 8
};
enum { QUANT_ZERO4 = 8, QUANT_ZERO8 = 128 };

// The order of what a piece of x has:
//   natural   element i at i, block i at i
//   halves    of each 128 elements (4 blocks) first elements 0 .. 15 of each block, then elements
//             16 .. 31: as the low and high halves of the bytes of int4
//   turned    the first 4 elements of each block, then the next 4 of each, and so on. Blocks are in
//             the order 0, 4, 8, 12, 1, 5, ..., also their scales and sums.
enum quant_order { QUANT_NATURAL, QUANT_HALVES, QUANT_TURNED };

// Part of a rounded row of x. For few rows, the same part of QUANT_ROWS rows lies side by side, so
// that a kernel reaches all of them from one address; for many, a row's parts follow each other.
struct quant_piece {
    int8_t codes[QUANT_PIECE];
    float scale[QUANT_PIECE_BLOCKS];
    float sum[QUANT_PIECE_BLOCKS];     // of the block's values: scale x the sum of its codes
    int32_t start[QUANT_PIECE_BLOCKS]; // of a sum of products: takes off what was added to codes
};

// y = x W' for columns [j0, j1) of `m` rows, without scale factor or bias.
struct quant_product {
    struct storage storage;
    struct storage_parts parts;
    const char *w;                        // the weight's bytes
    int64_t n, k;                         // of W [n][k]
    const struct quant_piece *const *row; // of x: each row's first piece
    int64_t apart;                        // pieces from one of a row to its next: QUANT_ROWS, or 1
    int64_t m, j0, j1;
    float *y; // [m][ldy]; column j0 is y[0]
    int64_t ldy;
};

struct cpu_quant {
    const char *name;
    // Rounds `n` (at most QUANT_PIECE) elements. Where one of them is not finite, its block's scale
    // is NaN. `zero`: what was added to the codes of W.
    void (*encode)(const float *x, int64_t n, enum quant_order order, int zero,
                   struct quant_piece *out);
    // Products with few rows. A row's result does not depend on the rows and columns beside it.
    void (*few)(const struct quant_product *p);
    // Products with more rows: j1 - j0 is at most QUANT_PANEL. NULL: `few` does them.
    void (*many)(const struct quant_product *p, char *scratch);
    struct quant_few {
        enum quant_order order; // that `few` wants
        int64_t most;           // rows that it is for
    } int8, int4;
};

// What `many` takes of scratch at most.
enum { QUANT_PANEL_K = 2048, QUANT_SCRATCH = QUANT_PANEL * QUANT_PANEL_K * 3 / 2 };

extern const struct cpu_quant cpu_quant_generic;
#if defined(__x86_64__)
extern const struct cpu_quant cpu_quant_avx2;
extern const struct cpu_quant cpu_quant_avx512vnni;
extern const struct cpu_quant cpu_quant_amx; // also needs what avx512vnni does
void quant_encode_avx512vnni(const float *x, int64_t n, enum quant_order order, int zero,
                             struct quant_piece *out);
void quant_few_avx512vnni(const struct quant_product *p);
#endif

#endif

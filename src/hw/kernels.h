// kernels.h - the inner loops that measure the machine, once per instruction set. Private to hw/.
#ifndef HAGGLE_HW_KERNELS_H
#define HAGGLE_HW_KERNELS_H

#include <stddef.h>

// 12 independent chains: a fused multiply-add takes 4 or 5 cycles and two can start per cycle, so
// 10 are the least that keep the units busy, and 12 still fit the 16 registers of AVX2 beside the
// two constants.
enum { HW_CHAINS = 12 };

struct hw_kernels {
    int lanes; // floats per vector: one pass is 2 * lanes * HW_CHAINS floating-point operations
    float (*fma)(long passes);
    // a = s*b and a = b + s*c. Not a plain copy: the compiler would call memcpy, whose streaming
    // stores skip the reads of `a` that kernels pay for.
    void (*scale)(float *a, const float *b, float s, size_t n);
    void (*triad)(float *a, const float *b, const float *c, float s, size_t n);
};

extern const struct hw_kernels hw_kernels_generic, hw_kernels_avx2, hw_kernels_avx512;

#endif

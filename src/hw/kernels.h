// kernels.h - the inner loops that measure the machine, one set per instruction set. Private to
// hw/.
#ifndef HAGGLE_HW_KERNELS_H
#define HAGGLE_HW_KERNELS_H

#include <stddef.h>

// 12 independent chains. A fused multiply-add takes 4 or 5 cycles and two can start per cycle, so
// at least 10 chains are needed to keep the units busy. 12 chains and the two constants still fit
// the 16 registers of AVX2.
enum { HW_CHAINS = 12 };

struct hw_kernels {
    int lanes; // floats per vector: one pass is 2 * lanes * HW_CHAINS floating-point operations
    float (*fma)(long passes);
    // a = s*b and a = b + s*c. A plain copy would not do: the compiler would call memcpy, whose
    // streaming stores skip the reads of `a` that real kernels pay for.
    void (*scale)(float *a, const float *b, float s, size_t n);
    void (*triad)(float *a, const float *b, const float *c, float s, size_t n);
};

extern const struct hw_kernels hw_kernels_generic, hw_kernels_avx2, hw_kernels_avx512;

#endif

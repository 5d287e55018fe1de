// kernels_body.h - the shared source of all kernels_<isa>.c. The including file defines VECTOR (a
// vector of LANES floats), LANES, FMA(a, b, c) and KERNELS, the name of its table. scale and triad
// are plain loops that the compiler vectorizes with that file's flags.
#include "hw/kernels.h"

// x = 0.999 x + 0.001 stays near 1, away from denormals and infinity, however long the loop runs.
// The chains are written out one by one, because the compiler might keep an array of vectors in
// memory.
static float measure_fma(long passes) {
    const VECTOR m = (VECTOR){0} + 0.999f, b = (VECTOR){0} + 0.001f;
    VECTOR c0 = b, c1 = m, c2 = b, c3 = m, c4 = b, c5 = m;
    VECTOR c6 = b, c7 = m, c8 = b, c9 = m, c10 = b, c11 = m;
    for (long p = 0; p < passes; p++) {
        c0 = FMA(c0, m, b), c1 = FMA(c1, m, b), c2 = FMA(c2, m, b), c3 = FMA(c3, m, b);
        c4 = FMA(c4, m, b), c5 = FMA(c5, m, b), c6 = FMA(c6, m, b), c7 = FMA(c7, m, b);
        c8 = FMA(c8, m, b), c9 = FMA(c9, m, b), c10 = FMA(c10, m, b), c11 = FMA(c11, m, b);
        // Without this the compiler would compute equal chains (c0 and c2, ...) only once.
        __asm__ volatile("" : "+x"(c0), "+x"(c1), "+x"(c2), "+x"(c3), "+x"(c4), "+x"(c5));
        __asm__ volatile("" : "+x"(c6), "+x"(c7), "+x"(c8), "+x"(c9), "+x"(c10), "+x"(c11));
    }
    VECTOR sum = ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)) + ((c8 + c9) + (c10 + c11));
    float total = 0;
    for (int i = 0; i < LANES; i++)
        total += sum[i];
    return total; // the caller uses it, so that the compiler cannot drop the loop
}

static void measure_scale(float *restrict a, const float *restrict b, float s, size_t n) {
    for (size_t i = 0; i < n; i++)
        a[i] = s * b[i];
}

static void measure_triad(float *restrict a, const float *restrict b, const float *restrict c,
                          float s, size_t n) {
    for (size_t i = 0; i < n; i++)
        a[i] = b[i] + s * c[i];
}

const struct hw_kernels KERNELS = {LANES, measure_fma, measure_scale, measure_triad};

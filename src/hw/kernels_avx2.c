// kernels_avx2.c - kernels_body.h for AVX2 with FMA.
#include <immintrin.h>

#define VECTOR       __m256
#define LANES        8
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define KERNELS      hw_kernels_avx2
#include "hw/kernels_body.h"

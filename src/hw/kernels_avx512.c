// kernels_avx512.c - kernels_body.h for AVX-512.
#include <immintrin.h>

#define VECTOR       __m512
#define LANES        16
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define KERNELS      hw_kernels_avx512
#include "hw/kernels_body.h"

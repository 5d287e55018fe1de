// kernels_generic.c - kernels_body.h for any x86-64 CPU: SSE2, with separate multiplication and
// addition.
typedef float vector __attribute__((vector_size(16)));

#define VECTOR       vector
#define LANES        4
#define FMA(a, b, c) ((a) * (b) + (c))
#define KERNELS      hw_kernels_generic
#include "hw/kernels_body.h"

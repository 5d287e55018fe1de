// kernels_avx512.c - the kernels of kernels_*.inc, compiled for avx512 (flags in CMakeLists.txt).
#define KERNELS cpu_kernels_avx512
#include "backend/cpu/kernels_all.inc"

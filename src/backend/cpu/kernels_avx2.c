// kernels_avx2.c - the kernels of kernels_*.inc, compiled for avx2 (flags in CMakeLists.txt).
#define KERNELS cpu_kernels_avx2
#include "backend/cpu/kernels_all.inc"

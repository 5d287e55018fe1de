// kernels_avx2.c - the kernels of kernels_*.inc compiled for avx2 (flags: CMakeLists.txt).
#define KERNELS_TABLE cpu_kernels_avx2
#include "backend/cpu/vec.inc"
#include "backend/cpu/kernels_span.inc"
#include "backend/cpu/kernels_moments.inc"
#include "backend/cpu/kernels_row.inc"
#include "backend/cpu/kernels_gemm.inc"
#include "backend/cpu/kernels_attention.inc"
#include "backend/cpu/kernels_table.inc"

// kernels_generic.c - the kernels of kernels_*.inc compiled for generic (flags: CMakeLists.txt).
#define KERNELS_TABLE cpu_kernels_generic
#include "backend/cpu/vec.inc"
#include "backend/cpu/kernels_span.inc"
#include "backend/cpu/kernels_moments.inc"
#include "backend/cpu/kernels_row.inc"
#include "backend/cpu/kernels_gemm.inc"
#include "backend/cpu/kernels_attention.inc"
#include "backend/cpu/kernels_table.inc"

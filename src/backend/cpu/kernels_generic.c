// kernels_generic.c - the kernels of kernels_*.inc, compiled for any CPU of the architecture.
#define KERNELS cpu_kernels_generic
#include "backend/cpu/kernels_all.inc"

// cpu.h - the two CPU backends.
//
// `reference` defines what an op means: plain loops on one thread, in float32 or float64 as the
// operands are. float64 exists for gradient checks. 16-bit operands are widened, and results are
// rounded once.
//
// `cpu` is the fast one, for fp32, bf16 and fp16: SIMD kernels chosen by CPUID, matrix products of
// its own or by a BLAS library, work split over one thread pool. Tests compare every fast kernel
// with the reference, on the table of cases.
#ifndef HAGGLE_BACKEND_CPU_H
#define HAGGLE_BACKEND_CPU_H

#include "backend/backend.h"
#include "base/mem.h"
#include "base/pool.h"

struct cpu_options {
    const char *blas; // "auto", "openblas", "blis", "onednn", "builtin"
    const char *isa;  // "auto", "amx", "avx512_bf16", "avx512", "avx2", "generic"
};

int cpu_reference_open(struct backend **out, struct mem *mem, struct err *e);
// The caller owns the pool, which must outlive the backend. Members of the backend for people:
//   isa             "avx512" also for the options "avx512_bf16" and "amx", because only products
//                   of bf16 use those instructions
//   products[type]  fp32: "openblas 0.3.21 (SkylakeX)" or "builtin"; bf16 and fp16: "avx512_bf16",
//                   "amx_bf16" or "avx512, widened to fp32"
int cpu_backend_open(struct backend **out, struct mem *mem, struct pool *pool,
                     const struct cpu_options *options, struct err *e);

#endif

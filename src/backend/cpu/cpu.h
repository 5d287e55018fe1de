// cpu.h - the two CPU backends.
//
// `reference` is the truth: plain loops, one thread, float32 or float64 throughout (the dtype of
// the operands decides; float64 exists for gradient checks; 16-bit operands are widened, and results
// rounded once). `cpu` is the fast one: SIMD kernels chosen by CPUID, matrix products of its own or by
// BLAS, work split over one thread pool; fp32, bf16 and fp16. Every fast kernel is tested against the
// reference on the case table.
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
// The pool stays the caller's and must outlive the backend.
int cpu_backend_open(struct backend **out, struct mem *mem, struct pool *pool,
                     const struct cpu_options *options, struct err *e);
const char *cpu_backend_blas(
    const struct backend *b); // what was chosen: "openblas 0.3.21 (SkylakeX)", "builtin"
// Of all kernels but products of bf16: "avx512", also for the options "avx512_bf16" and "amx".
const char *cpu_backend_isa(const struct backend *b);
// How matrix products of an element type are computed: fp32 as cpu_backend_blas; bf16 and fp16
// "avx512_bf16", "amx_bf16", or "avx512, widened to fp32". NULL: not at all.
const char *cpu_backend_products(const struct backend *b, enum dtype type);

#endif

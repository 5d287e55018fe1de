// blas.h - matrix products by a library that is found at run time, or by this program's own kernels
// ("builtin").
//
// Libraries are opened with dlopen and never linked, so the program starts on machines that have
// none. A library is told to use one thread and is called from inside pool tasks, so there is only
// one team of threads.
#ifndef HAGGLE_BACKEND_CPU_BLAS_H
#define HAGGLE_BACKEND_CPU_BLAS_H

#include "backend/cpu/kernels.h"
#include "base/err.h"
#include "base/pool.h"

enum { BLAS_NAME_BYTES = 96 };

struct blas {
    void *library; // NULL: builtin
    void (*cblas_sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                        int lda, const float *b, int ldb, float beta, float *c, int ldc);
    int (*dnnl_sgemm)(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha,
                      const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                      float *c, int64_t ldc);
    char name[BLAS_NAME_BYTES]; // "openblas 0.3.21 (SkylakeX)", "builtin"
};

// name: "auto", "openblas", "blis", "onednn" or "builtin". "auto" is builtin where `kernels` has
// fused multiply-add, else the first library that is found, else builtin. ERR_UNSUPPORTED lists the
// files that were tried.
int blas_open(struct blas *out, const char *name, const struct cpu_kernels *kernels,
              struct pool *pool, struct err *e);
void blas_close(struct blas *b);
// One thread's product of float32 by the library. false: not computed, because there is no library,
// a size exceeds int, or one side is a vector.
bool blas_gemm(const struct blas *b, const struct gemm_args *g);

#endif

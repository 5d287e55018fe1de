// few.cuh - products of few rows (few.cu), and of more rows by quantized weights (many.cu).
#ifndef HAGGLE_BACKEND_CUDA_FEW_CUH
#define HAGGLE_BACKEND_CUDA_FEW_CUH

#include "backend/cuda/cuda.cuh"

// Takes a MATMUL or MATMUL_ACT of few rows, or leaves `made` as it is.
template <typename T>
int cuda_make_few(struct cuda *s, const struct op_call *c, struct cuda_made *made, struct err *e);

// Makes one launch of calls that follow one another and read the same x.
void cuda_join_few(struct cuda *s, struct op_call *calls, int n);

// Takes a product by a quantized weight, or leaves `made` as it is.
template <typename T>
int cuda_make_many(struct cuda *s, const struct op_call *c, struct cuda_made *made, struct err *e);

#endif

#include "backend/cuda/cuda.cuh"

template <typename T> void cuda_add_fast_matmul(struct cuda_table *t) {
    (void)t;
}
template void cuda_add_fast_matmul<float>(struct cuda_table *);
template void cuda_add_fast_matmul<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_matmul<__half>(struct cuda_table *);

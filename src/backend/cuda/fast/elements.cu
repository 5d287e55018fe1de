#include "backend/cuda/cuda.cuh"

template <typename T> void cuda_add_fast_elements(struct cuda_table *t) {
    (void)t;
}
template void cuda_add_fast_elements<float>(struct cuda_table *);
template void cuda_add_fast_elements<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_elements<__half>(struct cuda_table *);

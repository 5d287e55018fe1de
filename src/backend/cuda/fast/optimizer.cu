#include "backend/cuda/cuda.cuh"

template <typename T> void cuda_add_fast_optimizer(struct cuda_table *t) {
    (void)t;
}
template void cuda_add_fast_optimizer<float>(struct cuda_table *);
template void cuda_add_fast_optimizer<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_optimizer<__half>(struct cuda_table *);

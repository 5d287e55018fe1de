#include "backend/cuda/cuda.cuh"

template <typename T> void cuda_add_fast_loss(struct cuda_table *t) {
    (void)t;
}
template void cuda_add_fast_loss<float>(struct cuda_table *);
template void cuda_add_fast_loss<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_loss<__half>(struct cuda_table *);

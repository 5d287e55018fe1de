// chain.cuh - launches that begin before the kernel in front of them has ended.
//
// The turns of generation are hundreds of kernels of a few microseconds, so what lies between two
// of them counts. From compute capability 9.0 on, a kernel may be launched while the one before it
// still runs. It waits (chain_wait) before it touches anything that kernels write.
//
// Rules of a chained kernel:
// - All blocks call chain_wait, also those without work: that a kernel has ended then means that
//   all kernels before it have.
// - chain_next, which lets the next kernel begin, comes after chain_wait. So at most two kernels
//   run at a time, and before its chain_wait a kernel may read whatever its direct predecessor does
//   not write: weights and the inputs of the turn, which no chained kernel writes.
//
// Ops of more than CHAIN_ROWS rows, those of training among them, are launched in the ordinary way:
// next to what they take, what lies between two of them is little.
//
// What was enqueued last must be a chained kernel, too, or the launch is an ordinary one: cuda_run
// keeps `leads` and `follows`, and everything else that is enqueued clears `leads`.
#ifndef HAGGLE_BACKEND_CUDA_CHAIN_CUH
#define HAGGLE_BACKEND_CUDA_CHAIN_CUH

#include "backend/cuda/cuda.cuh"

static inline __device__ void chain_wait(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static inline __device__ void chain_next(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---------------------------------------------------------------- clusters

// Waits until all blocks of the cluster are here, and sees what they have written.
static inline __device__ void cluster_barrier(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
#else
    __syncthreads();
#endif
}

// The float that block `rank` of the cluster has at the same place of its shared memory.
static inline __device__ float block_value(const float *mine, int rank) {
    float x = *mine;
#if __CUDA_ARCH__ >= 900
    const unsigned here = (unsigned)__cvta_generic_to_shared(mine);
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there) : "memory");
#else
    (void)rank;
#endif
    return x;
}

// ---------------------------------------------------------------- launches

enum { CHAIN_ROWS = 128 };

struct chain_grid {
    dim3 blocks;
    unsigned threads;
    size_t shared;
    unsigned cluster; // blocks along x that can read each other's shared memory; 0: one
};

// A chained kernel as the only or the last launch of an op on the compute stream.
template <typename... P, typename... A>
static int chain_launch(struct cuda *s, const struct op_call *c, void (*kernel)(P...),
                        const struct chain_grid &g, cudaStream_t stream, struct err *e,
                        A... arguments) {
    cudaLaunchAttribute attribute[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = g.blocks;
    config.blockDim = dim3(g.threads);
    config.dynamicSmemBytes = g.shared;
    config.stream = stream;
    config.attrs = attribute;
    const bool computes = c->op->stream == STREAM_COMPUTE && c->op->m <= CHAIN_ROWS;
    if (computes && s->follows) {
        attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (g.cluster > 1) {
        attribute[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attribute[config.numAttrs].val.clusterDim.x = g.cluster;
        attribute[config.numAttrs].val.clusterDim.y = 1;
        attribute[config.numAttrs++].val.clusterDim.z = 1;
    }
    if (computes)
        s->leads = s->follows = s->chains;
    return cuda_check(s, cudaLaunchKernelEx(&config, kernel, P(arguments)...),
                      s->host.op_name(c->op->kind), e);
}

// Two kernels share a multiprocessor only if both want it divided in the same way between cache and
// shared memory, so all chained kernels want as much shared memory as there is.
template <typename K>
static int chain_allow(struct cuda *s, const struct op_call *c, K *kernel, size_t shared,
                       struct err *e) {
    cudaError_t status =
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
    if (status == cudaSuccess && shared > 0)
        status = cudaFuncSetAttribute((const void *)kernel,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    return cuda_check(s, status, s->host.op_name(c->op->kind), e);
}

// Runs a call that another one's launch does the work of.
static inline int chain_nothing(struct cuda *s, const struct op_call *c, cudaStream_t stream,
                                struct err *e) {
    (void)c, (void)stream, (void)e;
    s->leads = s->follows; // the kernel in front is still what was enqueued last
    return 0;
}

#endif

// cudnn.cuh - cuDNN, opened at run time, and its graphs: tensors, operations on them, and the plan
// that computes them. Only the C interface of the library is used (cudnn_graph.h).
//
// Nothing here exists when the headers of cuDNN 9 were not there at build time.
#ifndef HAGGLE_BACKEND_CUDA_CUDNN_CUH
#define HAGGLE_BACKEND_CUDA_CUDNN_CUH

#include "backend/cuda/cuda.cuh"

#if __has_include(<cudnn_graph.h>)
#define HAGGLE_CUDNN 1
#include <cudnn_graph.h>

#define CUDNN_CALLS(X)                                                                             \
    X(cudnnGetVersion)                                                                             \
    X(cudnnGetErrorString)                                                                         \
    X(cudnnCreate)                                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnSetStream)                                                                              \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendExecute)

struct attention_plan;

struct cudnn {
#define MEMBER(name) decltype(&::name) name;
    CUDNN_CALLS(MEMBER)
#undef MEMBER
    size_t version; // 10000 x major + 100 x minor + patch
    char folder[PLUGIN_PATH_BYTES];
    cudnnHandle_t handle; // made when the first plan is built
    bool unusable;        // it could not be made
    struct attention_plan *plans;
};

// Makes the handle. NULL, or why there is none.
const char *cudnn_ready(struct cuda *s);

typedef cudnnBackendDescriptor_t descriptor;

enum {
    GRAPH_OPS = 32,
    GRAPH_DESCRIPTORS = 192,
    GRAPH_ALIGNMENT = 16, // of every tensor that is given
};

// A graph while it is described, then with its plan. After a failure nothing more is done.
struct graph {
    struct cudnn *cudnn;
    cudnnStatus_t status;                              // the first failure
    descriptor all[GRAPH_DESCRIPTORS], ops[GRAPH_OPS]; // all: in the order they were made
    int n_all, n_ops;
    int64_t inner;   // tensors that exist in the graph only
    descriptor plan; // one of `all`
    int64_t workspace;
};

struct shape {
    int64_t size[4], stride[4];
};

// A tensor that is given when the plan runs, under `id`; a number that is given then, in host
// memory; a tensor that exists in the graph only.
descriptor graph_tensor(struct graph *g, int64_t id, cudnnDataType_t type, struct shape shape);
descriptor graph_number(struct graph *g, int64_t id);
descriptor graph_inner(struct graph *g, cudnnDataType_t type, struct shape shape);

// Operations write `out` and return it.
descriptor graph_matmul(struct graph *g, descriptor out, descriptor a, descriptor b);
descriptor graph_reduce(struct graph *g, descriptor out, cudnnReduceTensorOp_t op, descriptor x);
descriptor graph_reshape(struct graph *g, descriptor out, descriptor x);
descriptor graph_index(struct graph *g, descriptor out, int64_t axis, descriptor x);
// b and t: further operands, NULL: none. With t, `out` is x where t holds, else b.
descriptor graph_pointwise(struct graph *g, descriptor out, cudnnPointwiseMode_t mode, descriptor x,
                           descriptor b, descriptor t);

// Builds the plan, of the first of the library's suggestions that works within `workspace` bytes.
// False, with the reason: there is none.
bool graph_build(struct graph *g, uint64_t workspace, char *why, size_t why_bytes);
void graph_drop(struct graph *g);
#endif

#endif

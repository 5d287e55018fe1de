// update.cuh - clipping, and AdamW on one element, which plain and fast kernels share, so that both
// give the same bits.
#ifndef HAGGLE_BACKEND_CUDA_UPDATE_CUH
#define HAGGLE_BACKEND_CUDA_UPDATE_CUH

#include "backend/cuda/cuda.cuh"

// As torch.nn.utils.clip_grad_norm_: the factor is clip / (norm + 1e-6), at most 1. A clip of 0 or
// less means no clipping. The gradients are multiplied by the loss scale. The norm is given without
// it, and the factor also divides by it.
static inline __device__ void clip_of(double *out, double squares, const double *hyper) {
    double scale = hyper[HYPER_SCALE] > 0 ? hyper[HYPER_SCALE] : 1;
    double norm = sqrt(squares) / scale, clip = hyper[HYPER_CLIP];
    bool skip = !isfinite(norm);
    double factor = clip > 0 ? clip / (norm + 1e-6) : 1;
    out[CLIP_NORM] = norm;
    out[CLIP_SKIP] = skip;
    out[CLIP_FACTOR] = skip ? 0 : (factor < 1 ? factor : 1) / scale;
}

// The values from hyper: computed in double, used as float.
struct adamw_step {
    float factor, beta1, beta2, rest1, rest2, keep, size, root, eps;
};

static inline __device__ struct adamw_step adamw_step_of(const double *hyper, const double *clip,
                                                         bool decay) {
    struct adamw_step s;
    s.factor = clip ? (float)clip[CLIP_FACTOR] : 1;
    s.beta1 = (float)hyper[HYPER_BETA1], s.rest1 = (float)(1 - hyper[HYPER_BETA1]);
    s.beta2 = (float)hyper[HYPER_BETA2], s.rest2 = (float)(1 - hyper[HYPER_BETA2]);
    s.keep = decay ? (float)(1 - hyper[HYPER_LR] * hyper[HYPER_DECAY]) : 1;
    s.size = (float)(hyper[HYPER_LR] / hyper[HYPER_BIAS1]);
    s.root = (float)(1 / sqrt(hyper[HYPER_BIAS2])), s.eps = (float)hyper[HYPER_EPS];
    return s;
}

// torch.optim.AdamW, in its order: decay, moments, then the step. w is the master, if there is one.
static inline __device__ void adamw_element(const struct adamw_step &s, float g, float *m, float *v,
                                            float *w) {
    g *= s.factor;
    *m = s.beta1 * *m + s.rest1 * g;
    *v = s.beta2 * *v + s.rest2 * g * g;
    *w = *w * s.keep - s.size * *m / (sqrtf(*v) * s.root + s.eps);
}

#endif

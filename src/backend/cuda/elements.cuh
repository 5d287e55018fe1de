// elements.cuh - formulas of single elements, which plain and fast kernels share, so that both give
// the same bits.
#ifndef HAGGLE_BACKEND_CUDA_ELEMENTS_CUH
#define HAGGLE_BACKEND_CUDA_ELEMENTS_CUH

#include "backend/cuda/cuda.cuh"
#include "model/shape.h"

// e^x for results of type T. A result of 16 bits does not show the 21st bit, where the device's own
// instruction for 2^x errs. Four times as many instructions would keep a kernel from the speed of
// memory.
template <typename T> static inline __device__ float exp_for(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504088896340736f));
    return y;
}
template <> inline __device__ float exp_for<float>(float x) {
    return expf(x);
}

template <typename T> static inline __device__ float sigmoid(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + exp_for<T>(-x)));
    return y;
}
template <> inline __device__ float sigmoid<float>(float x) {
    return 1.0f / (1.0f + expf(-x));
}

// The tanh form of GELU is 0.5 h (1 + tanh(u)) = h sigmoid(2u). The right side keeps its digits
// where 1 + tanh(u) cancels. For the same reason the erf form uses erfc.
static inline __device__ float gelu_u(float h) {
    return 0.79788456080286535588f * (h + 0.044715f * h * h * h);
}

template <typename T> static inline __device__ float act_value(float h, int kind) {
    if (kind == ACT_RELU)
        return h > 0 || isnan(h) ? h : 0;
    if (kind == ACT_SWIGLU) // the activation of its gate: silu
        return h * sigmoid<T>(h);
    if (kind == ACT_GELU_ERF)
        return 0.5f * h * erfcf(-h * 0.70710678118654752440f);
    return h * sigmoid<T>(2 * gelu_u(h));
}

template <typename T> static inline __device__ float act_slope(float h, int kind) {
    if (kind == ACT_RELU)
        return h > 0 ? 1 : 0;
    if (kind == ACT_SWIGLU) {
        float p = sigmoid<T>(h);
        return p * (1 + h * (1 - p));
    }
    // For large |h| the slope is 0 or 1 to the last digit, but h^3 would overflow.
    if (fabsf(h) > 30)
        return h > 0 ? 1 : 0;
    if (kind == ACT_GELU_ERF)
        return 0.5f * erfcf(-h * 0.70710678118654752440f) +
               h * 0.39894228040143267794f * exp_for<T>(-0.5f * h * h);
    float p = sigmoid<T>(2 * gelu_u(h));
    return p + 2 * h * p * (1 - p) * 0.79788456080286535588f * (1 + 3 * 0.044715f * h * h);
}

template <typename T> static inline __device__ float swiglu_value(float gate, float up) {
    return gate * sigmoid<T>(gate) * up;
}

template <typename T>
static inline __device__ void swiglu_slopes(float d, float gate, float up, float *dgate,
                                            float *dup) {
    float p = sigmoid<T>(gate);
    *dgate = d * up * p * (1 + gate * (1 - p));
    *dup = d * gate * p;
}

// A pair of a rotary embedding: (a, b) turned by the angle with this cosine and sine. Which product
// is rounded is written down, because a compiler chooses differently from kernel to kernel.
static inline __device__ void rotate(float cosine, float sine, float *a, float *b) {
    float x = *a, y = *b;
    *a = fmaf(x, cosine, -(y * sine));
    *b = fmaf(y, cosine, x * sine);
}

#endif

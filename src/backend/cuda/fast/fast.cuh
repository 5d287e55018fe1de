// fast.cuh - what the fast kernels share: accesses of 16 bytes, and the addition of a bias for
// products.
#ifndef HAGGLE_BACKEND_CUDA_FAST_CUH
#define HAGGLE_BACKEND_CUDA_FAST_CUH

#include "backend/cuda/cuda.cuh"

#include <string.h>

// ---------------------------------------------------------------- 16 bytes at a time

// How many elements of T are 16 bytes, the widest access there is.
template <typename T> constexpr int WIDE = 16 / (int)sizeof(T);

// As many elements, as they are computed with.
template <typename T> struct floats { float x[WIDE<T>]; };

static inline __device__ uint4 load16(const void *p) {
    return *(const uint4 *)p;
}
// To global memory. A plain assignment may be compiled to four stores.
static inline __device__ void store16(void *p, uint4 bits) {
    __stwb((uint4 *)p, bits);
}

template <typename T> static inline __device__ floats<T> widen(uint4 bits);
template <> inline __device__ floats<float> widen<float>(uint4 bits) {
    return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
            __uint_as_float(bits.w)};
}
template <> inline __device__ floats<__nv_bfloat16> widen<__nv_bfloat16>(uint4 bits) {
    const unsigned word[4] = {bits.x, bits.y, bits.z, bits.w};
    floats<__nv_bfloat16> f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f.x[2 * i] = __uint_as_float(word[i] << 16);
        f.x[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
    }
    return f;
}
template <> inline __device__ floats<__half> widen<__half>(uint4 bits) {
    const unsigned word[4] = {bits.x, bits.y, bits.z, bits.w};
    floats<__half> f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __half2 pair;
        memcpy(&pair, &word[i], sizeof pair);
        const float2 two = __half22float2(pair);
        f.x[2 * i] = two.x, f.x[2 * i + 1] = two.y;
    }
    return f;
}

// Two floats, rounded to 16 bits each, in one word.
template <typename T> static inline __device__ unsigned two_of(float low, float high);
template <> inline __device__ unsigned two_of<__nv_bfloat16>(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    unsigned word;
    memcpy(&word, &pair, sizeof word);
    return word;
}
template <> inline __device__ unsigned two_of<__half>(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    unsigned word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

template <typename T> static inline __device__ uint4 narrow(const floats<T> &f) {
    return make_uint4(two_of<T>(f.x[0], f.x[1]), two_of<T>(f.x[2], f.x[3]),
                      two_of<T>(f.x[4], f.x[5]), two_of<T>(f.x[6], f.x[7]));
}
template <> inline __device__ uint4 narrow<float>(const floats<float> &f) {
    return make_uint4(__float_as_uint(f.x[0]), __float_as_uint(f.x[1]), __float_as_uint(f.x[2]),
                      __float_as_uint(f.x[3]));
}

template <typename T> static inline __device__ floats<T> read_wide(const T *p) {
    return widen<T>(load16(p));
}
template <typename T> static inline __device__ void write_wide(T *p, const floats<T> &f) {
    store16(p, narrow<T>(f));
}

// Four elements of any type at once. Where floats and 16 bits lie side by side, all accesses of a
// warp are without gaps then.
template <int BYTES> struct word_of;
template <> struct word_of<4> { typedef unsigned type; };
template <> struct word_of<8> { typedef uint2 type; };
template <> struct word_of<16> { typedef uint4 type; };
template <typename U> static inline __device__ void read_four(const U *p, U (&x)[4]) {
    const typename word_of<sizeof x>::type word = *(const typename word_of<sizeof x>::type *)p;
    memcpy(x, &word, sizeof x);
}
template <typename U> static inline __device__ void write_four(U *p, const U (&x)[4]) {
    typename word_of<sizeof x>::type word;
    memcpy(&word, x, sizeof x);
    *(typename word_of<sizeof x>::type *)p = word;
}

// ---------------------------------------------------------------- operands

static inline bool aligned16(const void *p) {
    return (uintptr_t)p % 16 == 0;
}

// Whether each of `rows` rows begins at a multiple of 16 bytes. So does an operand that is absent.
template <typename T> static inline bool wide_rows(const void *data, int64_t ld, int64_t rows) {
    return !data || (aligned16(data) && (rows <= 1 || ld % WIDE<T> == 0));
}

// ---------------------------------------------------------------- for generation

// Two rotations in one launch. In fast/elements.cu.
int cuda_join_ropes(struct cuda *s, struct op_call *calls, int n, struct err *e);

// ---------------------------------------------------------------- for products

// As cuda_add_bias and cuda_add_bias_act (cuda.cuh), 16 bytes at a time where the operands allow
// it. Both give the same bits. In fast/elements.cu.
template <typename T>
void cuda_fast_add_bias(T *y, int64_t ld, const T *bias, int64_t m, int64_t n, cudaStream_t stream);
template <typename T>
void cuda_fast_add_bias_act(T *h, int64_t ldh, T *a, int64_t lda, const T *bias, int kind,
                            int64_t m, int64_t n, cudaStream_t stream);

#endif

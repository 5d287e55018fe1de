// sum.c - sums over ranks, element by element, in the order of the ranks.
#include "comm/comm.h"

#include <string.h>

enum { BLOCK = 1024 };

#define SUM(type, name)                                                                            \
    static void name(type *out, const void *const *in, int n_in, int64_t at, int64_t n,            \
                     bool add) {                                                                   \
        type sum[BLOCK];                                                                           \
        memcpy(sum, (const type *)in[0] + at, (size_t)n * sizeof *sum);                            \
        for (int k = 1; k < n_in; k++)                                                             \
            for (int64_t i = 0; i < n; i++)                                                        \
                sum[i] += ((const type *)in[k])[at + i];                                           \
        for (int64_t i = 0; i < n; i++)                                                            \
            out[at + i] = add ? out[at + i] + sum[i] : sum[i];                                     \
    }
SUM(float, sum_f32)
SUM(double, sum_f64)

// Widened, summed in float32, rounded once.
static void sum_narrow(void *out, const void *const *in, int n_in, int64_t at, int64_t n,
                       enum dtype t, bool add) {
    const size_t skip = (size_t)at * dtype_bytes(t);
    float sum[BLOCK], next[BLOCK];
    dtype_convert(sum, DTYPE_F32, (const char *)in[0] + skip, t, (size_t)n);
    for (int k = 1; k < n_in; k++) {
        dtype_convert(next, DTYPE_F32, (const char *)in[k] + skip, t, (size_t)n);
        for (int64_t i = 0; i < n; i++)
            sum[i] += next[i];
    }
    if (add) {
        dtype_convert(next, DTYPE_F32, (const char *)out + skip, t, (size_t)n);
        for (int64_t i = 0; i < n; i++)
            sum[i] = next[i] + sum[i];
    }
    dtype_convert((char *)out + skip, t, sum, DTYPE_F32, (size_t)n);
}

int comm_sum(void *out, const void *const *in, int n_in, int64_t n, enum dtype t, bool add,
             struct err *e) {
    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t some = n - at < BLOCK ? n - at : BLOCK;
        if (t == DTYPE_F32)
            sum_f32(out, in, n_in, at, some, add);
        else if (t == DTYPE_F64)
            sum_f64(out, in, n_in, at, some, add);
        else if (t == DTYPE_BF16 || t == DTYPE_F16)
            sum_narrow(out, in, n_in, at, some, t, add);
        else
            return err_set(e, ERR_INTERNAL, "ranks cannot sum elements of type %s", dtype_text(t));
    }
    return 0;
}

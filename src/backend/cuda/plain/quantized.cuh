// quantized.cuh - the values of a quantized weight (base/storage.h), one by one.
#ifndef HAGGLE_BACKEND_CUDA_QUANTIZED_CUH
#define HAGGLE_BACKEND_CUDA_QUANTIZED_CUH

#include "backend/cuda/cuda.cuh"

struct quantized {
    const unsigned char *codes;
    const void *scales, *minima; // minima NULL: none
    int64_t row_bytes, groups;
    int group; // 0: int8
};

static inline __device__ float quantized_value(const struct quantized &w, int64_t row, int64_t k) {
    const unsigned char *codes = w.codes + row * w.row_bytes;
    if (w.group == 0)
        return (float)(signed char)codes[k] * ((const float *)w.scales)[row];
    const int64_t at = row * w.groups + k / w.group;
    const unsigned char two = codes[k / 32 * 16 + k % 16];
    const float code = (float)(k % 32 < 16 ? two & 15 : two >> 4),
                scale = __half2float(((const __half *)w.scales)[at]);
    return w.minima ? code * scale + __half2float(((const __half *)w.minima)[at])
                    : (code - 8) * scale;
}

// The parts of the weight of a call, its second input.
static inline int quantized_of(struct cuda *s, const struct op_call *c, struct quantized *out,
                               struct err *e) {
    const struct operand *w = &c->in[1];
    struct storage_parts parts;
    if (!s->host.storage_layout(w->storage, w->rows, w->cols, &parts) ||
        (c->op->kind != OP_EMBED && (w->rows < c->op->n || w->cols != c->op->k)))
        return s->host.err_set(e, ERR_INTERNAL, "%s: the weight is no quantized matrix of its size",
                               s->host.op_name(c->op->kind));
    const unsigned char *data = (const unsigned char *)w->data;
    *out = {data + parts.codes,
            data + parts.scales,
            w->storage.minima ? data + parts.minima : NULL,
            (int64_t)parts.row_bytes,
            parts.groups,
            w->storage.group};
    return 0;
}

#endif

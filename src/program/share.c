// share.c - parts of logical tensors: which elements a rank holds, and where they are in the whole.
//
// Files, checkpoints and people know logical tensors. Code that moves values between a logical
// tensor and a rank walks the part in runs: elements that follow each other in both.
#include "program/program.h"

#include <string.h>

const struct tensor_share *share_make(struct program *p, const struct tensor_share *s) {
    struct tensor_share *copy = region_alloc(&p->region, sizeof *copy);
    if (!copy) {
        p->failed = ERR_MEMORY;
        return NULL;
    }
    return memcpy(copy, s, sizeof *copy);
}

int tensor_whole(const struct tensor *t, int64_t shape[TENSOR_MAX_RANK]) {
    const int rank = t->share ? t->share->rank : t->rank;
    memcpy(shape, t->share ? t->share->shape : t->local, (size_t)rank * sizeof *shape);
    return rank;
}

const struct tensor_share *share_cut(struct program *p, int tensor, int64_t first, int64_t count) {
    const struct tensor *t = &p->tensors[tensor];
    struct tensor_share s = {.axis = -1};
    if (t->share)
        s = *t->share;
    else
        s.rank = tensor_whole(t, s.shape);
    s.first += first;
    s.count = count;
    return share_make(p, &s);
}

static int64_t product(const int64_t *shape, int from, int to) {
    int64_t n = 1;
    for (int i = from; i < to; i++)
        n *= shape[i];
    return n;
}

int64_t share_all(const struct tensor_share *s) {
    return product(s->shape, 0, s->rank);
}

bool share_same(const struct tensor_share *a, const struct tensor_share *b) {
    bool same = a->rank == b->rank && a->axis == b->axis && a->n_spans == b->n_spans &&
                a->first == b->first && a->count == b->count;
    for (int i = 0; same && i < a->rank; i++)
        same = a->shape[i] == b->shape[i];
    for (int i = 0; same && i < a->n_spans; i++)
        same = a->spans[i].begin == b->spans[i].begin && a->spans[i].count == b->spans[i].count;
    return same;
}

static int64_t extent(const struct tensor_share *s) { // of the spans together
    int64_t n = 0;
    for (int i = 0; i < s->n_spans; i++)
        n += s->spans[i].count;
    return n;
}

void share_run(const struct tensor_share *s, int64_t at, int64_t *logical, int64_t *n) {
    const int64_t e = s->first + at;
    *n = s->count - at;
    *logical = e;
    if (s->axis < 0)
        return;
    const int64_t inner = product(s->shape, s->axis + 1, s->rank), row = extent(s) * inner;
    const int64_t outer = row > 0 ? e / row : 0;
    int64_t left = row > 0 ? e % row : 0;
    for (int i = 0; i < s->n_spans; i++) {
        const int64_t span = s->spans[i].count * inner;
        if (left >= span) {
            left -= span;
            continue;
        }
        *logical = outer * s->shape[s->axis] * inner + s->spans[i].begin * inner + left;
        *n = span - left < *n ? span - left : *n;
        return;
    }
}

void tensor_run(const struct tensor *t, int64_t at, int64_t *logical, int64_t *n) {
    if (t->share) {
        share_run(t->share, at, logical, n);
        return;
    }
    *logical = at;
    *n = tensor_elements(t) - at;
}

// Blocks are counted along the elements of the logical tensor. They stay whole if every run begins
// and ends between two of them, on every rank: all ranks must have the same kind of tensor.
bool share_blocks(const struct tensor_share *s, int64_t block, int64_t width,
                  struct tensor_share *out) {
    const int axis = s->axis < 0 ? 0 : s->axis;
    const int64_t outer = product(s->shape, 0, axis), of_axis = s->shape[axis],
                  inner = product(s->shape, axis + 1, s->rank), all = outer * of_axis * inner;
    struct tensor_share b = *s;
    b.rank = 3;
    b.first = s->first / block * width;
    b.count = (s->count + block - 1) / block * width;
    if (s->axis < 0) { // a block may be shorter at the end of the tensor
        b.shape[0] = (all + block - 1) / block, b.shape[1] = width;
        b.rank = 2;
        *out = b;
        return s->first % block == 0 && (s->count % block == 0 || s->first + s->count == all);
    }
    if (s->first % block != 0 || s->count % block != 0 || s->grain * inner % block != 0)
        return false;
    for (int i = 0; i < s->n_spans; i++) {
        b.spans[i].begin = s->spans[i].begin * inner / block;
        b.spans[i].count = s->spans[i].count * inner / block;
    }
    b.axis = 1;
    b.shape[0] = outer, b.shape[1] = of_axis * inner / block, b.shape[2] = width;
    *out = b;
    return true;
}

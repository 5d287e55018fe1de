// moments_read.c - see moments_read.h.
#include "train/moments_read.h"

#include "backend/moments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = ADAMW_BLOCK, BLOCKS = 256, PIECE = BLOCK * BLOCKS, NAME_BYTES = 176 };
enum { M, V, SCALES, KINDS };
static const char *const kinds[KINDS] = {"adam.m.", "adam.v.", "adam.scales."};
static const uint32_t NEAREST = 0x8000; // a draw in the middle

struct piece {
    float m[PIECE], v[PIECE], scales[2 * (BLOCKS + 1)];
    int8_t code_m[PIECE];
    uint8_t code_v[PIECE];
};

struct reading {
    struct session *s;
    struct safetensors *st;
    const char *path, *weight;
    const struct safetensors_entry *there[KINDS];
    int here[KINDS]; // tensors of the training program; -1: it has none
    int64_t all;     // elements of the logical weight
    struct piece *x;
};

bool moments_differ(const char *name, enum dtype here, const struct safetensors_entry *there) {
    return there && strncmp(name, kinds[M], strlen(kinds[M])) == 0 &&
           ((here == DTYPE_F32 && there->dtype == DTYPE_I8) ||
            (here == DTYPE_I8 && there->dtype == DTYPE_F32));
}

static int put(const struct reading *r, int kind, int64_t at, int64_t n, const void *data,
               struct err *e) {
    const int x = plan_find(r->s->plan, PLAN_TRAIN);
    const struct tensor *t = &r->s->plan->programs[x]->tensors[r->here[kind]];
    const uint64_t width = dtype_bytes(t->dtype);
    return exec_write_part(r->s->exec, x, r->here[kind], (uint64_t)at * width, data,
                           (uint64_t)n * width, e);
}

static int get(const struct reading *r, int kind, int64_t first, int64_t n, void *out,
               struct err *e) {
    return safetensors_read(r->st, r->there[kind], first, n, out, r->there[kind]->dtype, e);
}

// Elements [at, at + n) of this rank's moments are elements `logical` and following of the whole.
static int widen(const struct reading *r, int64_t at, int64_t logical, int64_t n, struct err *e) {
    struct piece *x = r->x;
    const int64_t first = logical / BLOCK, last = (logical + n - 1) / BLOCK;
    TRY(get(r, M, logical, n, x->code_m, e));
    TRY(get(r, V, logical, n, x->code_v, e));
    TRY(get(r, SCALES, 2 * first, 2 * (last - first + 1), x->scales, e));
    for (int64_t i = 0; i < n; i++) {
        const float *scale = &x->scales[2 * ((logical + i) / BLOCK - first)];
        x->m[i] = moments_m(x->code_m[i], scale[0]);
        x->v[i] = moments_v(x->code_v[i], scale[1]);
    }
    TRY(put(r, M, at, n, x->m, e));
    return put(r, V, at, n, x->v, e);
}

static void narrow_block(struct piece *x, int64_t begin, int64_t end, float *scales) {
    float most_m = 0, most_v = 0;
    for (int64_t i = begin; i < end; i++) {
        most_m = fmaxf(most_m, fabsf(x->m[i]));
        most_v = fmaxf(most_v, x->v[i]);
    }
    scales[0] = moments_scale(most_m), scales[1] = moments_scale(most_v);
    const float m = moments_inverse(scales[0]), v = moments_inverse(scales[1]);
    for (int64_t i = begin; i < end; i++) {
        x->code_m[i] = moments_code_m(x->m[i], m, NEAREST);
        x->code_v[i] = moments_code_v(x->v[i], v, NEAREST);
    }
}

// at and logical lie between two blocks.
static int narrow(const struct reading *r, int64_t at, int64_t logical, int64_t n, struct err *e) {
    struct piece *x = r->x;
    TRY(get(r, M, logical, n, x->m, e));
    TRY(get(r, V, logical, n, x->v, e));
    const int64_t blocks = (n + BLOCK - 1) / BLOCK;
    for (int64_t b = 0; b < blocks; b++)
        narrow_block(x, b * BLOCK, (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n, &x->scales[2 * b]);
    TRY(put(r, M, at, n, x->code_m, e));
    TRY(put(r, V, at, n, x->code_v, e));
    return put(r, SCALES, at / BLOCK * 2, 2 * blocks, x->scales, e);
}

// The file must have what the conversion reads: whole tensors of the right sizes.
static int check(const struct reading *r, bool narrows, struct err *e) {
    static const enum dtype wide[KINDS] = {DTYPE_F32, DTYPE_F32, DTYPE_F32},
                            codes[KINDS] = {DTYPE_I8, DTYPE_U8, DTYPE_F32};
    const int64_t sizes[KINDS] = {r->all, r->all, (r->all + BLOCK - 1) / BLOCK * 2};
    for (int i = 0; i < (narrows ? SCALES : KINDS); i++) {
        const struct safetensors_entry *t = r->there[i];
        if (!t || t->dtype != (narrows ? wide : codes)[i] || t->elements != sizes[i])
            return err_set(e, ERR_MISMATCH,
                           "%s does not hold '%s%s' as the moments of a weight of %lld elements",
                           r->path, kinds[i], r->weight, (long long)r->all);
    }
    return 0;
}

static int64_t elements_of_whole(const struct tensor *t) {
    int64_t shape[TENSOR_MAX_RANK], n = 1;
    const int rank = tensor_whole(t, shape);
    for (int i = 0; i < rank; i++)
        n *= shape[i];
    return n;
}

int moments_read(struct session *s, struct safetensors *st, const char *path, const char *weight,
                 struct err *e) {
    const struct program *p = plan_program(s->plan, PLAN_TRAIN);
    struct reading r = {.s = s, .st = st, .path = path, .weight = weight};
    for (int i = 0; i < KINDS; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%s%s", kinds[i], weight);
        r.there[i] = safetensors_find(st, name);
        r.here[i] = program_find(p, name);
    }
    if (r.here[M] < 0)
        return 0;
    const struct tensor *t = &p->tensors[r.here[M]];
    const bool narrows = t->dtype == DTYPE_I8;
    r.all = elements_of_whole(t);
    TRY(check(&r, narrows, e));
    r.x = malloc(sizeof *r.x);
    if (!r.x)
        return err_set(e, ERR_MEMORY, "out of memory for the moments of '%s'", weight);
    int rc = 0;
    int64_t logical, n;
    for (int64_t at = 0; rc == 0 && at < tensor_elements(t); at += n) {
        tensor_run(t, at, &logical, &n);
        n = n < PIECE ? n : PIECE;
        rc = (narrows ? narrow : widen)(&r, at, logical, n, e);
    }
    free(r.x);
    return rc;
}

// shape_folder.c - see shape_folder.h.
#include "model/shape_folder.h"

#include "base/file.h"
#include "model/safetensors.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16 }; // elements

static int write_config(const struct model_shape *s, const char *dir, struct err *e) {
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, dir, "config.json", e));
    FILE *f = fopen(path, "we");
    if (!f)
        return err_set(e, ERR_IO, "'%.200s' cannot be written: %s", path, strerror(errno));
    const int rc = model_shape_write_config(s, f, e);
    if (fclose(f) != 0 && rc == 0)
        return err_set(e, ERR_IO, "'%.200s' cannot be written: %s", path, strerror(errno));
    return rc;
}

static int64_t elements_of(const struct model_param *p) {
    return p->dims[0] * (p->rank > 1 ? p->dims[1] : 1);
}

static int put_weights(const struct model_shape *s, uint64_t seed, struct safetensors_writer *w,
                       float *piece, struct err *e) {
    struct model_param p;
    for (int64_t i = 0; model_param_at(s, i, &p); i++)
        TRY(safetensors_writer_declare(w, p.name, DTYPE_F32, p.rank, p.dims, e));
    for (int64_t i = 0; model_param_at(s, i, &p); i++)
        for (int64_t at = 0; at < elements_of(&p); at += PIECE) {
            const int64_t n = elements_of(&p) - at < PIECE ? elements_of(&p) - at : PIECE;
            model_param_init(&p, seed, at, n, piece);
            TRY(safetensors_writer_put(w, piece, (size_t)n * sizeof *piece, e));
        }
    return safetensors_writer_close(w, NULL, NULL, e);
}

int shape_folder_write(const struct model_shape *s, uint64_t seed, const char *dir, struct err *e) {
    struct safetensors_writer *w;
    char path[PATH_MAX];
    TRY(write_config(s, dir, e));
    TRY(file_join(path, sizeof path, dir, "model.safetensors", e));
    float *piece = malloc(PIECE * sizeof *piece);
    if (!piece)
        return err_set(e, ERR_MEMORY, "out of memory for a piece of a weight");
    int rc = safetensors_writer_open(&w, path, e);
    if (rc == 0) {
        rc = put_weights(s, seed, w, piece, e);
        if (rc != 0)
            safetensors_writer_abort(w);
    }
    free(piece);
    return rc;
}

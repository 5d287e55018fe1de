// quantize_folder.c - see quantize_folder.h.
#include "export/quantize_folder.h"
#include "export/parts.h"

#include "base/file.h"
#include "model/chosen.h"
#include "model/export_config.h"
#include "model/load.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MOST_BYTES = 16 << 20, SMALL_FILES_BYTES = 256 << 10, BLOCK_ELEMENTS = 1 << 22 };

struct quantizer {
    const struct quantize_folder *q;
    struct quantize_summary *out;
    struct model_shape shape;
    struct weights *weights;
    char dir[PATH_MAX]; // that is being written
    void *matrix;       // one quantized matrix
    float *rows;        // some rows of it as they were; of a matrix [in, out] all of them
    float *turned;      // some rows of such a matrix
    float *row;         // one row of quantized values
    struct quantize_error sum;
    struct err *e;
};

// ---------------------------------------------------------------- planning

static bool lists(const char *list, const char *name) {
    return list && list[0] != '\0' && chosen_lists(list, name);
}

// Every name in the list stands for at least one matrix.
static int check_list(const struct model_shape *shape, const char *flag, const char *list,
                      struct err *e) {
    while (list && *list) {
        const size_t n = strcspn(list, ",");
        char name[160];
        struct model_param p;
        bool found = false;
        snprintf(name, sizeof name, "%.*s", (int)(n < 159 ? n : 159), list);
        for (int64_t i = 0; !found && model_param_at(shape, i, &p); i++)
            found = quantized_can(&p) && chosen_lists(name, p.name);
        if (!found)
            return err_set(e, ERR_USAGE,
                           "--%s: '%s' names no matrix of %s; accepted: names of weights or parts "
                           "of them between dots, like lm_head, down_proj, layers.0",
                           flag, name, shape->name);
        list += n + (list[n] == ',');
    }
    return 0;
}

int quantize_choose(const struct quantize_folder *q, const struct model_shape *shape,
                    struct quantized *out, int64_t *matrices, struct err *e) {
    const struct storage int8 = {.kind = STORAGE_INT8};
    struct model_param p;
    *out = (struct quantized){.storage = q->how.storage};
    *matrices = 0;
    TRY(check_list(shape, "keep", q->keep, e));
    TRY(check_list(shape, "wider", q->wider, e));
    for (int64_t i = 0; model_param_at(shape, i, &p); i++) {
        if (!quantized_can(&p))
            continue;
        quantized_turn(shape, &p);
        if (lists(q->keep, p.name))
            TRY(quantized_add(out, p.name, (struct storage){0}, e));
        else if (!storage_takes(out->storage, p.dims[1]) || lists(q->wider, p.name))
            TRY(quantized_add(out, p.name, int8, e));
        else
            ++*matrices;
    }
    return *matrices > 0
               ? 0
               : err_set(e, ERR_USAGE,
                         "no matrix is left to quantize in this format: --keep or --wider names "
                         "it, or its rows are no whole groups; choose a smaller --group, or "
                         "--format int8");
}

// Bytes before and after, and what is needed to hold a matrix.
static int measure(struct quantizer *z, uint64_t *matrix, uint64_t *rows, uint64_t *turned,
                   uint64_t *row) {
    struct model_param p;
    *matrix = *rows = *turned = *row = 0;
    for (int64_t i = 0; model_param_at(&z->shape, i, &p); i++) {
        const struct safetensors_entry *t = weights_find_param(z->weights, &z->shape, &p, z->e);
        if (!t)
            return z->e->code;
        const struct storage storage = quantized_as(&z->out->stored, &p);
        struct storage_parts parts;
        struct model_param wide = p;
        z->out->bytes_before += t->bytes;
        quantized_turn(&z->shape, &p);
        if (!storage_layout(storage, p.dims[0], p.dims[1], &parts)) {
            z->out->bytes_after += t->bytes;
            continue;
        }
        const bool whole =
            wide.dims[0] != p.dims[0] || wide.dims[1] != p.dims[1] || z->shape.in_out_weights;
        const int64_t block = BLOCK_ELEMENTS > p.dims[1] ? BLOCK_ELEMENTS : p.dims[1];
        const uint64_t need = (uint64_t)(whole && t->elements > block ? t->elements : block);
        z->out->bytes_after += parts.codes_bytes + parts.scales_bytes + parts.minima_bytes;
        *row = (uint64_t)p.dims[1] > *row ? (uint64_t)p.dims[1] : *row;
        *matrix = parts.bytes > *matrix ? parts.bytes : *matrix;
        *rows = need > *rows ? need : *rows;
        *turned = (uint64_t)block > *turned ? (uint64_t)block : *turned;
    }
    return 0;
}

static int prepare(struct quantizer *z) {
    uint64_t matrix, rows, turned, row;
    bool is_dir = false;
    struct quantized already;
    TRY(export_check_target(z->q->out_dir, z->out->out_dir, z->e));
    TRY(model_shape_open(&z->shape, z->q->source, &is_dir, z->e));
    if (!is_dir)
        return err_set(z->e, ERR_USAGE,
                       "'%.300s' is a shape without weights; name a model's folder", z->q->source);
    TRY(quantized_read(&already, z->q->source, &z->shape, z->e));
    const bool twice = quantized_any(&already);
    quantized_free(&already);
    if (twice)
        return err_set(z->e, ERR_USAGE,
                       "'%.300s' is quantized already; name the model that it was made from",
                       z->q->source);
    TRY(weights_open(&z->weights, z->q->source, z->e));
    TRY(weights_refuse_extra(z->weights, &z->shape, NULL, z->e));
    TRY(quantize_choose(z->q, &z->shape, &z->out->stored, &z->out->matrices, z->e));
    TRY(measure(z, &matrix, &rows, &turned, &row));
    z->matrix = malloc(matrix + 1);
    z->rows = malloc(rows * sizeof *z->rows);
    z->row = malloc((row + 1) * sizeof *z->row);
    z->turned = z->shape.in_out_weights ? malloc(turned * sizeof *z->turned) : NULL;
    if (!z->matrix || !z->rows || !z->row || (z->shape.in_out_weights && !z->turned))
        return err_set(z->e, ERR_MEMORY, "no memory to hold the largest matrix");
    return export_check_space(z->out->out_dir, z->out->bytes_after + SMALL_FILES_BYTES, z->e);
}

// ---------------------------------------------------------------- one matrix

struct rounding {
    const struct quantize_options *how;
    const struct storage_parts *parts;
    int64_t cols, first, n;
    const float *rows;
    void *matrix;
    struct share {
        struct quantize_error sum;
        struct err e;
        int rc;
    } shares[64];
};

static void round_share(void *arg, int thread, int threads) {
    struct rounding *r = arg;
    int64_t begin, end;
    const int used = threads < 64 ? threads : 64;
    if (thread >= used)
        return;
    struct share *s = &r->shares[thread];
    pool_share(r->n, 1, thread, used, &begin, &end);
    s->rc = begin < end ? quantize_rows(r->how, r->parts, r->cols, r->rows + begin * r->cols,
                                        r->first + begin, end - begin, r->matrix, &s->sum, &s->e)
                        : 0;
}

// Rounds some rows, and adds up their errors in the order of the threads' shares.
static int round_block(struct quantizer *z, struct rounding *r, struct quantize_error *sum) {
    memset(r->shares, 0, sizeof r->shares);
    pool_run(z->q->pool, round_share, r);
    for (int i = 0; i < 64; i++) {
        sum->error += r->shares[i].sum.error;
        sum->power += r->shares[i].sum.power;
        if (r->shares[i].rc != 0)
            return err_set(z->e, r->shares[i].rc, "%.400s", r->shares[i].e.text);
    }
    return 0;
}

static int read_rows(struct quantizer *z, const struct safetensors_entry *t,
                     const struct model_param *turned, bool whole, int64_t first, int64_t n,
                     const float **out) {
    const int64_t rows = turned->dims[0], cols = turned->dims[1];
    *out = z->rows;
    if (!whole)
        return weights_read(z->weights, t, first * cols, n * cols, z->rows, DTYPE_F32, z->e);
    if (first == 0)
        TRY(weights_read(z->weights, t, 0, rows * cols, z->rows, DTYPE_F32, z->e));
    for (int64_t i = 0; i < n; i++)
        for (int64_t l = 0; l < cols; l++)
            z->turned[i * cols + l] = z->rows[l * rows + first + i];
    *out = z->turned;
    return 0;
}

// What the tuned bytes have changed.
static void compare_rows(const struct rounding *r, struct storage storage, const void *chosen,
                         float *row, struct quantize_error *sum) {
    for (int64_t i = 0; i < r->n; i++) {
        const float *x = r->rows + i * r->cols;
        storage_read_row(storage, r->parts, chosen, r->first + i, 0, r->cols, row);
        for (int64_t j = 0; j < r->cols; j++) {
            const double off = (double)x[j] - (double)row[j];
            sum->error += off * off;
            sum->power += (double)x[j] * (double)x[j];
        }
    }
}

static int round_matrix(struct quantizer *z, const struct safetensors_entry *t,
                        const struct model_param *param, struct storage storage,
                        const struct storage_parts *parts, const struct model_param *turned) {
    const struct quantize_options how = {.method = z->q->how.method,
                                         .storage = storage,
                                         .power = powers_find(z->q->powers, param->name)};
    const void *chosen = tuned_bytes(z->q->tuned, param->name, storage);
    const bool table = param->role == ROLE_WTE || param->role == ROLE_HEAD_W;
    const bool whole = z->shape.in_out_weights && !table;
    const int64_t rows = turned->dims[0], cols = turned->dims[1];
    const int64_t block = cols > 0 && BLOCK_ELEMENTS / cols > 0 ? BLOCK_ELEMENTS / cols : 1;
    struct quantize_error sum = {0};
    memset(z->matrix, 0, parts->bytes);
    for (int64_t first = 0; first < rows; first += block) {
        struct rounding r = {.how = &how,
                             .parts = parts,
                             .cols = cols,
                             .first = first,
                             .n = rows - first < block ? rows - first : block,
                             .matrix = z->matrix};
        TRY(read_rows(z, t, turned, whole, first, r.n, &r.rows));
        if (chosen)
            compare_rows(&r, storage, chosen, z->row, &sum);
        else if (round_block(z, &r, &sum) != 0)
            return err_context(z->e, "'%s'", param->name);
    }
    if (chosen)
        memcpy(z->matrix, chosen, parts->bytes);
    const double relative = sum.power > 0 ? sqrt(sum.error / sum.power) : 0;
    if (relative > z->out->worst_error || z->out->worst[0] == '\0') {
        z->out->worst_error = relative;
        snprintf(z->out->worst, sizeof z->out->worst, "%s", param->name);
    }
    z->sum.error += sum.error;
    z->sum.power += sum.power;
    return 0;
}

// ---------------------------------------------------------------- writing

static int declare(struct quantizer *z, struct safetensors_writer *w) {
    struct model_param p;
    for (int64_t i = 0; model_param_at(&z->shape, i, &p); i++) {
        const struct safetensors_entry *t = weights_find_param(z->weights, &z->shape, &p, z->e);
        struct quantized_tensor tensors[QUANTIZED_TENSORS];
        const struct storage storage = quantized_as(&z->out->stored, &p);
        if (!t)
            return z->e->code;
        if (storage_plain(storage)) {
            TRY(safetensors_writer_declare(w, p.name, t->dtype, p.rank, p.dims, z->e));
            continue;
        }
        quantized_turn(&z->shape, &p);
        const int n = quantized_tensors(storage, &p, tensors);
        for (int k = 0; k < n; k++)
            TRY(safetensors_writer_declare(w, tensors[k].name, tensors[k].dtype, tensors[k].rank,
                                           tensors[k].dims, z->e));
    }
    return 0;
}

static int copy_wide(struct quantizer *z, struct safetensors_writer *w,
                     const struct safetensors_entry *t) {
    const size_t size = dtype_bytes(t->dtype);
    const int64_t block = BLOCK_ELEMENTS / 2; // of 8 bytes at most, in a buffer of float32
    for (int64_t at = 0; at < t->elements; at += block) {
        const int64_t n = t->elements - at < block ? t->elements - at : block;
        TRY(weights_read(z->weights, t, at, n, z->rows, t->dtype, z->e));
        const int64_t bad = dtype_first_not_finite(z->rows, t->dtype, (size_t)n);
        if (bad >= 0)
            return err_set(z->e, ERR_NUMERIC,
                           "element %" PRId64
                           " of tensor '%.200s' is not finite; every weight must "
                           "be finite",
                           at + bad, t->name);
        TRY(safetensors_writer_put(w, z->rows, (size_t)n * size, z->e));
    }
    return 0;
}

static int put_all(struct quantizer *z, struct safetensors_writer *w) {
    struct model_param p;
    for (int64_t i = 0; model_param_at(&z->shape, i, &p); i++) {
        const struct safetensors_entry *t = weights_find_param(z->weights, &z->shape, &p, z->e);
        const struct storage storage = quantized_as(&z->out->stored, &p);
        struct quantized_tensor tensors[QUANTIZED_TENSORS];
        struct storage_parts parts;
        struct model_param turned = p;
        if (!t)
            return z->e->code;
        if (z->q->stop && *z->q->stop)
            return err_set(z->e, ERR_STOPPED, "stopped on request; nothing is written");
        quantized_turn(&z->shape, &turned);
        if (!storage_layout(storage, turned.dims[0], turned.dims[1], &parts)) {
            TRY(copy_wide(z, w, t));
            continue;
        }
        TRY(round_matrix(z, t, &p, storage, &parts, &turned));
        const int n = quantized_tensors(storage, &turned, tensors);
        for (int k = 0; k < n; k++)
            TRY(safetensors_writer_put(w, (char *)z->matrix + tensors[k].at,
                                       (size_t)tensors[k].bytes, z->e));
    }
    z->out->error = z->sum.power > 0 ? sqrt(z->sum.error / z->sum.power) : 0;
    return 0;
}

static int write_weights(struct quantizer *z) {
    struct safetensors_writer *w;
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, z->dir, "model.safetensors", z->e));
    TRY(safetensors_writer_open(&w, path, z->e));
    int rc = declare(z, w);
    if (rc == 0)
        rc = put_all(z, w);
    if (rc == 0)
        rc = safetensors_writer_close(w, NULL, NULL, z->e);
    if (rc != 0)
        safetensors_writer_abort(w);
    return rc;
}

static int write_config(struct quantizer *z) {
    char path[PATH_MAX], *text = NULL, *edited = NULL;
    size_t bytes, edited_bytes;
    struct json_writer w;
    TRY(file_join(path, sizeof path, z->q->source, "config.json", z->e));
    TRY(file_read_all(path, CONFIG_MOST_BYTES, &text, &bytes, z->e));
    json_writer_to_buffer(&w, 0);
    quantized_put_json(&z->out->stored, &w);
    int rc = json_writer_finish(&w, z->e);
    if (rc == 0)
        rc = export_config_set("config.json", text, bytes, "quantization_config", w.buffer, false,
                               &edited, &edited_bytes, z->e);
    if (rc == 0)
        rc = file_join(path, sizeof path, z->dir, "config.json", z->e);
    if (rc == 0)
        rc = file_write_atomic(path, edited, edited_bytes, z->e);
    free(w.buffer);
    free(text);
    free(edited);
    return rc;
}

static int copy_files(struct quantizer *z) {
    struct export_result files = {0};
    struct exporter x = {.out = &files, .has_source = true, .e = z->e};
    snprintf(files.source, sizeof files.source, "%s", z->q->source);
    snprintf(x.dir, sizeof x.dir, "%s", z->dir);
    const int rc = export_copy_beside(&x);
    export_free(&files);
    return rc;
}

// ---------------------------------------------------------------- reading it back

// What a session will read, by the functions that it reads with.
static int check_folder(struct quantizer *z) {
    struct quantized stored;
    struct weights *w = NULL;
    struct model_shape shape;
    struct model_param p;
    bool is_dir;
    TRY(model_shape_open(&shape, z->dir, &is_dir, z->e));
    TRY(quantized_read(&stored, z->dir, &shape, z->e));
    int rc = weights_open(&w, z->dir, z->e);
    if (rc == 0)
        rc = weights_refuse_extra(w, &shape, &stored, z->e);
    for (int64_t i = 0; rc == 0 && model_param_at(&shape, i, &p); i++) {
        const struct storage storage = quantized_as(&stored, &p);
        if (!storage_same(storage, quantized_as(&z->out->stored, &p)))
            rc = err_set(z->e, ERR_INTERNAL, "'%s' is not kept as was written", p.name);
        if (rc != 0 || storage_plain(storage))
            continue;
        quantized_turn(&shape, &p);
        rc = quantized_load(w, storage, &p, z->matrix, z->e);
    }
    weights_close(w);
    quantized_free(&stored);
    return rc;
}

static int write_folder(struct quantizer *z) {
    TRY(write_weights(z));
    TRY(write_config(z));
    TRY(copy_files(z));
    TRY(file_sync_dir(z->dir, z->e));
    TRY(check_folder(z));
    return z->q->check ? z->q->check(z->q->check_arg, z->dir, z->e) : 0;
}

int quantize_folder(const struct quantize_folder *q, struct quantize_summary *out, struct err *e) {
    struct quantizer z = {.q = q, .out = out, .e = e};
    int fd = -1;
    *out = (struct quantize_summary){.how = q->how, .wider = q->wider};
    int rc = prepare(&z);
    if (rc == 0)
        rc = export_open_folder(out->out_dir, &q->listener, z.dir, &fd, e);
    if (rc == 0)
        rc = write_folder(&z);
    if (fd >= 0)
        rc = export_close_folder(z.dir, out->out_dir, &q->listener, fd, rc, e);
    weights_close(z.weights);
    free(z.matrix);
    free(z.rows);
    free(z.row);
    free(z.turned);
    return rc;
}

void quantize_free(struct quantize_summary *s) {
    quantized_free(&s->stored);
}

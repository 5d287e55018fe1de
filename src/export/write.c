// write.c - the weights of an export: chooses the type and the file of each, then copies
// them block by block from the checkpoint.
//
// Shards are filled in the order of the parameters, as Hugging Face's writer does: a tensor that
// would make a file larger than asked for begins the next one. A tied output head is not written:
// haggle and Hugging Face read the embedding instead.
#include "export/parts.h"

#include "base/checked.h"
#include "base/json.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// SHARDS_MOST: the most files that haggle reads back. ENTRY_BYTES: what a tensor takes in a file's
// header and in the index, without its name. HEADER_BYTES: a file's header without its entries.
enum { SHARDS_MOST = 10000, ENTRY_BYTES = 400, HEADER_BYTES = 256 };

// ---------------------------------------------------------------- planning

static int choose_types(struct exporter *x) {
    struct weights *source = NULL;
    if (x->o->as_source && x->has_source)
        TRY(weights_open(&source, x->out->source, x->e));
    int rc = 0;
    for (int64_t i = 0; rc == 0 && i < x->n_items; i++) {
        struct export_item *item = &x->items[i];
        item->dtype = x->o->as_source ? DTYPE_F32 : x->o->dtype;
        if (source == NULL)
            continue;
        const struct safetensors_entry *t =
            weights_find_param(source, &x->shape, &item->param, x->e);
        if (t == NULL)
            rc = x->e != NULL ? x->e->code : ERR_FORMAT;
        else
            item->dtype = t->dtype;
    }
    if (source != NULL)
        weights_close(source);
    if (rc != 0)
        err_context(x->e, "--dtype as-source: '%s'", x->out->source);
    return rc;
}

static int choose_shards(struct exporter *x) {
    uint64_t used = 0;
    x->shards = 1;
    for (int64_t i = 0; i < x->n_items; i++) {
        struct export_item *item = &x->items[i];
        uint64_t bytes = (uint64_t)item->elements * dtype_bytes(item->dtype), sum;
        bool fits = checked_add_u64(used, bytes, &sum) && sum <= x->o->shard_bytes;
        if (!fits && used > 0) {
            x->shards++;
            used = 0;
        }
        used += bytes;
        item->shard = x->shards - 1;
    }
    if (x->shards > SHARDS_MOST) {
        char text[TEXT_UNIT_BYTES];
        return err_set(x->e, ERR_USAGE,
                       "--shard-bytes %s would make %" PRId64 " files; at most %d are accepted",
                       text_bytes(text, x->o->shard_bytes), x->shards, SHARDS_MOST);
    }
    x->out->shards = x->shards;
    return 0;
}

int export_plan_weights(struct exporter *x) {
    x->n_items = model_param_count(&x->shape);
    x->items = calloc((size_t)x->n_items + 1, sizeof *x->items);
    if (x->items == NULL)
        return err_set(x->e, ERR_MEMORY, "no memory for a list of %" PRId64 " tensors", x->n_items);
    for (int64_t i = 0; i < x->n_items; i++) {
        struct export_item *item = &x->items[i];
        model_param_at(&x->shape, i, &item->param);
        item->elements = item->param.dims[0] * (item->param.rank > 1 ? item->param.dims[1] : 1);
    }
    TRY(choose_types(x));
    return choose_shards(x);
}

uint64_t export_weights_bytes(const struct exporter *x) {
    uint64_t bytes = (uint64_t)x->shards * HEADER_BYTES;
    for (int64_t i = 0; i < x->n_items; i++)
        bytes += (uint64_t)x->items[i].elements * dtype_bytes(x->items[i].dtype) +
                 2 * strlen(x->items[i].param.name) + ENTRY_BYTES;
    return bytes;
}

// ---------------------------------------------------------------- writing

struct blocks {
    float *wide;
    void *narrow;
};

// A model with a weight that is not finite loads without an error and produces nonsense, so the
// export refuses it.
static int check_finite(struct exporter *x, const struct export_item *item, const float *before,
                        const void *after, int64_t at, int64_t n) {
    float back[256];
    for (int64_t i = 0; i < n; i += 256) {
        size_t k = (size_t)(n - i < 256 ? n - i : 256);
        dtype_convert(back, DTYPE_F32, (const char *)after + (size_t)i * dtype_bytes(item->dtype),
                      item->dtype, k);
        for (size_t j = 0; j < k; j++) {
            if (isfinite(back[j]))
                continue;
            float value = before[i + (int64_t)j];
            if (!isfinite(value))
                return err_set(x->e, ERR_NUMERIC,
                               "'%s' holds %g in '%s' (element %" PRId64
                               "): training diverged before this checkpoint was saved",
                               x->out->checkpoint, (double)value, item->param.name,
                               at + i + (int64_t)j);
            return err_set(x->e, ERR_NUMERIC,
                           "%g in '%s' is too large for %s; export as bf16 or fp32 instead",
                           (double)value, item->param.name, dtype_text(item->dtype));
        }
    }
    return 0;
}

static int put_item(struct exporter *x, struct safetensors_writer *w,
                    const struct export_item *item, const struct blocks *b) {
    size_t size = dtype_bytes(item->dtype);
    for (int64_t at = 0; at < item->elements; at += EXPORT_BLOCK) {
        int64_t n = item->elements - at < EXPORT_BLOCK ? item->elements - at : EXPORT_BLOCK;
        TRY(export_read(x, &item->param, at, n, b->wide));
        // Without a conversion the bits are copied unchanged.
        void *data = item->dtype == DTYPE_F32 ? (void *)b->wide : b->narrow;
        if (data == b->narrow)
            dtype_convert(b->narrow, item->dtype, b->wide, DTYPE_F32, (size_t)n);
        TRY(check_finite(x, item, b->wide, data, at, n));
        TRY(safetensors_writer_put(w, data, (size_t)n * size, x->e));
    }
    return 0;
}

static void shard_name(const struct exporter *x, int64_t shard, char out[EXPORT_NAME_BYTES]) {
    if (x->shards == 1)
        snprintf(out, EXPORT_NAME_BYTES, "model.safetensors");
    else
        snprintf(out, EXPORT_NAME_BYTES, "model-%05" PRId64 "-of-%05" PRId64 ".safetensors",
                 shard + 1, x->shards);
}

// Writes the shard that consists of items [begin, end).
static int write_shard(struct exporter *x, int64_t begin, int64_t end, const struct blocks *b) {
    struct safetensors_writer *w;
    char name[EXPORT_NAME_BYTES], path[PATH_MAX], hash[HASH_TEXT_BYTES];
    uint64_t bytes = 0;
    shard_name(x, x->items[begin].shard, name);
    TRY(file_join(path, sizeof path, x->dir, name, x->e));
    TRY(safetensors_writer_open(&w, path, x->e));
    int rc = 0;
    for (int64_t i = begin; rc == 0 && i < end; i++) {
        const struct model_param *p = &x->items[i].param;
        rc = safetensors_writer_declare(w, p->name, x->items[i].dtype, p->rank, p->dims, x->e);
    }
    for (int64_t i = begin; rc == 0 && i < end; i++)
        rc = put_item(x, w, &x->items[i], b);
    if (rc == 0)
        rc = safetensors_writer_close(w, hash, &bytes, x->e);
    if (rc != 0) {
        safetensors_writer_abort(w);
        return rc;
    }
    return export_note_file(x, name, bytes, hash);
}

static int write_index(struct exporter *x) {
    struct json_writer w;
    char name[EXPORT_NAME_BYTES];
    int64_t elements = 0, bytes = 0;
    if (x->shards == 1)
        return 0;
    for (int64_t i = 0; i < x->n_items; i++) {
        elements += x->items[i].elements;
        bytes += x->items[i].elements * (int64_t)dtype_bytes(x->items[i].dtype);
    }
    json_writer_to_buffer(&w, 2);
    json_put_object_begin(&w);
    json_member_object(&w, "metadata");
    json_member_i64(&w, "total_parameters", elements);
    json_member_i64(&w, "total_size", bytes);
    json_put_object_end(&w);
    json_member_object(&w, "weight_map");
    for (int64_t i = 0; i < x->n_items; i++) {
        shard_name(x, x->items[i].shard, name);
        json_member_string(&w, x->items[i].param.name, name);
    }
    json_put_object_end(&w);
    json_put_object_end(&w);
    int rc = json_writer_finish(&w, x->e);
    if (rc == 0)
        rc = export_write_file(x, EXPORT_INDEX, w.buffer, w.bytes);
    free(w.buffer);
    return rc;
}

int export_write_weights(struct exporter *x) {
    struct blocks b = {malloc(EXPORT_BLOCK * sizeof(float)),
                       malloc(EXPORT_BLOCK * dtype_bytes(DTYPE_F64))};
    int rc = b.wide != NULL && b.narrow != NULL
                 ? 0
                 : err_set(x->e, ERR_MEMORY, "no memory for the export's buffers");
    for (int64_t begin = 0, end; rc == 0 && begin < x->n_items; begin = end) {
        for (end = begin; end < x->n_items && x->items[end].shard == x->items[begin].shard;)
            end++;
        rc = write_shard(x, begin, end, &b);
    }
    free(b.wide);
    free(b.narrow);
    return rc == 0 ? write_index(x) : rc;
}

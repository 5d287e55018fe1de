// adapter.c - the export of a run that trained an adapter: as PEFT's folder, or merged into the
// model that it belongs to.
//
// A checkpoint of such a run has the adapter alone, so the base is opened beside it. Its weights
// must be those that the run trained with.
#include "export/parts.h"
#include "plan/adapter.h"
#include "train/adapted.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- values

// Elements of a tensor of the adapter, or of a weight: of the checkpoint if it was trained.
static int read_part(void *arg, const struct model_param *p, int64_t first, int64_t n, float *out,
                     struct err *e) {
    struct export_adapter *a = arg;
    char name[sizeof p->name + sizeof ADAPTER_PREFIX];
    snprintf(name, sizeof name, "%s%s", ADAPTER_PREFIX, p->name);
    const struct safetensors_entry *t = safetensors_find(a->trained, name);
    if (t != NULL) {
        TRY(weights_check_param(t, p, e));
        return safetensors_read(a->trained, t, first, n, out, DTYPE_F32, e);
    }
    if (a->base == NULL) {
        model_param_init(p, (uint64_t)a->knobs.seed, first, n, out);
        return 0;
    }
    t = weights_find_param(a->base, &a->shape, p, e);
    if (t == NULL)
        return e != NULL ? e->code : ERR_FORMAT;
    return weights_read(a->base, t, first, n, out, DTYPE_F32, e);
}

int export_read(struct exporter *x, const struct model_param *p, int64_t first, int64_t n,
                float *out) {
    if (x->adapter.merge != NULL)
        return adapter_merge_read(x->adapter.merge, p, first, n, out, x->e);
    const struct safetensors_entry *t = weights_find_param(x->weights, &x->shape, p, x->e);
    if (t == NULL)
        return x->e != NULL ? x->e->code : ERR_FORMAT;
    return weights_read(x->weights, t, first, n, out, DTYPE_F32, x->e);
}

// ---------------------------------------------------------------- opening

static bool trained_whole(void *arg, const struct model_param *weight) {
    const struct export_adapter *a = arg;
    const struct chosen c = {&a->adapter, a->knobs.train_also, a->knobs.train_freeze};
    return chosen_trains(&c, weight->name, false);
}

bool export_is_adapter(const struct exporter *x) {
    return x->adapter.adapter.rank > 0;
}

bool export_writes_adapter(const struct exporter *x) {
    return export_is_adapter(x) && !x->merges;
}

int export_open_trained(struct exporter *x) {
    struct export_adapter *a = &x->adapter;
    char path[PATH_MAX];
    bool found;
    a->shape = x->shape;
    knobs_init(&a->knobs);
    TRY(adapted_find(x->out->checkpoint, &a->knobs, &found, x->e));
    if (!found) {
        if (x->merges)
            return err_set(x->e, ERR_USAGE,
                           "--merge: '%.300s' holds a whole model, so there is no adapter to merge",
                           x->out->checkpoint);
        return weights_open(&x->weights, x->out->checkpoint, x->e);
    }
    TRY(plan_adapter_of(&a->adapter, &a->knobs, x->e));
    TRY(adapter_check(&a->adapter, &a->shape, x->e));
    TRY(file_join(path, sizeof path, x->out->checkpoint, ADAPTER_FILE, x->e));
    return safetensors_open(&a->trained, path, x->e);
}

static int compare_base(struct exporter *x) {
    struct export_adapter *a = &x->adapter;
    char hash[HASH_TEXT_BYTES];
    TRY(weights_open(&a->base, a->knobs.model, x->e));
    TRY(weights_hash(a->base, &a->shape, hash, x->e));
    if (strcmp(hash, x->manifest.base) == 0)
        return 0;
    return err_set(
        x->e, ERR_MISMATCH,
        "the adapter in '%.300s' belongs to '%.200s' with weights %.8s, but '%.200s' has "
        "weights %.8s; put the base back, or name it with --source",
        x->out->checkpoint, x->manifest.base_name, x->manifest.base, a->knobs.model, hash);
}

int export_open_base(struct exporter *x) {
    struct export_adapter *a = &x->adapter;
    if (!export_is_adapter(x))
        return 0;
    if (x->o->source != NULL)
        snprintf(a->knobs.model, sizeof a->knobs.model, "%s", x->o->source);
    if (!model_shape_is_builtin(a->knobs.model))
        TRY(compare_base(x));
    a->save = (struct adapter_save){.adapter = &a->adapter,
                                    .shape = &a->shape,
                                    .dtype = x->o->as_source ? DTYPE_F32 : x->o->dtype,
                                    .whole = a->knobs.train_also[0] ? trained_whole : NULL,
                                    .read = read_part,
                                    .arg = a};
    // A name on the hub if it is one, because other programs find the base by it.
    if (strchr(x->source_name, '/') != NULL)
        a->save.base = x->source_name;
    else if (a->base != NULL)
        a->save.base = a->knobs.model;
    if (!x->merges)
        return adapter_save_check(&a->save, x->e);
    return adapter_merge_open(&a->merge, &a->adapter, &a->shape, read_part, read_part, a, x->e);
}

void export_close_adapter(struct exporter *x) {
    struct export_adapter *a = &x->adapter;
    adapter_merge_close(a->merge);
    safetensors_close(a->trained);
    if (a->base != NULL)
        weights_close(a->base);
}

// ---------------------------------------------------------------- writing

int export_write_adapter(struct exporter *x) {
    const struct adapter_save *o = &x->adapter.save;
    char path[PATH_MAX], hash[HASH_TEXT_BYTES], *text;
    size_t bytes;
    uint64_t written;
    x->out->shards = x->shards = 1;
    adapter_save_remarks(o, &x->out->remarks);
    TRY(adapter_save_config(o, &text, &bytes, x->e));
    int rc = export_write_file(x, ADAPTER_CONFIG, text, bytes);
    free(text);
    TRY(rc);
    TRY(file_join(path, sizeof path, x->dir, ADAPTER_FILE, x->e));
    TRY(adapter_save_weights(o, path, hash, &written, x->e));
    return export_note_file(x, ADAPTER_FILE, written, hash);
}

// ---------------------------------------------------------------- reading it back

static int compare_tensor(struct exporter *x, struct adapter_file *f, const struct model_param *p,
                          float *blocks, int64_t *differ) {
    const int64_t all = p->dims[0] * (p->rank > 1 ? p->dims[1] : 1);
    const enum dtype type = x->adapter.narrowest;
    float *ours = blocks, *theirs = blocks + EXPORT_BLOCK, *narrow = theirs + EXPORT_BLOCK;
    for (int64_t at = 0; at < all; at += EXPORT_BLOCK) {
        const int64_t n = all - at < EXPORT_BLOCK ? all - at : EXPORT_BLOCK;
        TRY(adapter_file_read(f, p, at, n, theirs, DTYPE_F32, x->e));
        TRY(read_part(&x->adapter, p, at, n, ours, x->e));
        dtype_convert(narrow, type, ours, DTYPE_F32, (size_t)n);
        dtype_convert(ours, DTYPE_F32, narrow, type, (size_t)n);
        for (int64_t i = 0; i < n; i++)
            *differ += memcmp(ours + i, theirs + i, sizeof *ours) != 0;
    }
    return 0;
}

static int compare_tensors(struct exporter *x, struct adapter_file *f, float *blocks) {
    struct export_adapter *a = &x->adapter;
    struct model_param p;
    int64_t differ = 0;
    for (int64_t i = 0; adapter_param_at(&a->adapter, &a->shape, i, &p); i++)
        TRY(compare_tensor(x, f, &p, blocks, &differ));
    for (int64_t i = 0; model_param_at(&a->shape, i, &p); i++)
        if (adapter_config_replaces(adapter_file_config(f), &p))
            TRY(compare_tensor(x, f, &p, blocks, &differ));
        else if (a->save.whole != NULL && trained_whole(a, &p))
            return err_set(x->e, ERR_INTERNAL, "'%s' was trained but is not written", p.name);
    return export_add_figure(x, "values that differ from the checkpoint's", (double)differ, 0);
}

int export_check_adapter(struct exporter *x) {
    struct adapter_file *f;
    float *blocks = malloc((size_t)3 * EXPORT_BLOCK * sizeof *blocks);
    TRY(adapter_file_open(&f, x->dir, &x->shape, x->e));
    x->adapter.narrowest = adapter_file_narrowest(f);
    int rc = blocks != NULL ? compare_tensors(x, f, blocks)
                            : err_set(x->e, ERR_MEMORY, "no memory to compare tensors");
    free(blocks);
    adapter_file_close(f);
    return rc;
}

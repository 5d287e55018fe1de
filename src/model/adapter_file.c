// adapter_file.c - opens an adapter's folder: adapter_config.c reads the settings, this file checks
// the tensors against them.
#include "model/adapter_file.h"
#include "model/load.h"
#include "model/names.h"

#include "base/file.h"
#include "base/region.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { TENSOR_NAME_BYTES = sizeof ADAPTER_PREFIX + sizeof((struct model_param *)NULL)->name };
enum { BLOCK = 4096 }; // elements looked at together

struct adapter_file {
    char path[PATH_MAX]; // of the tensors
    struct model_shape shape;
    struct adapter_config config;
    struct safetensors *tensors;
};

static const char *tensor_name(char out[TENSOR_NAME_BYTES], const struct model_param *p) {
    snprintf(out, TENSOR_NAME_BYTES, ADAPTER_PREFIX "%s", p->name);
    return out;
}

static const struct safetensors_entry *find(const struct adapter_file *f,
                                            const struct model_param *p) {
    char name[TENSOR_NAME_BYTES];
    return safetensors_find(f->tensors, tensor_name(name, p));
}

// The i-th tensor that the settings ask for: the pairs, then the weights that are replaced, of
// which *weight is the next that may be one. False past the end.
static bool wanted(const struct adapter_file *f, int64_t i, int64_t *weight,
                   struct model_param *out) {
    if (adapter_param_at(&f->config.adapter, &f->shape, i, out))
        return true;
    while (f->config.whole[0] != '\0' && model_param_at(&f->shape, (*weight)++, out))
        if (adapter_config_replaces(&f->config, out))
            return true;
    return false;
}

// ---------------------------------------------------------------- checking the tensors

static int check_finite(const struct adapter_file *f, const struct safetensors_entry *t,
                        struct err *e) {
    char quoted[NAMES_QUOTE_BYTES];
    float block[BLOCK];
    for (int64_t at = 0; at < t->elements; at += BLOCK) {
        const int64_t n = t->elements - at < BLOCK ? t->elements - at : BLOCK;
        TRY(safetensors_read(f->tensors, t, at, n, block, DTYPE_F32, e));
        const int64_t bad = dtype_first_not_finite(block, DTYPE_F32, (size_t)n);
        if (bad >= 0)
            return err_set(e, ERR_NUMERIC,
                           "%.400s: tensor %s holds %g (element %" PRId64
                           "); only finite numbers are accepted",
                           f->path, names_quote(quoted, t->name), (double)block[bad], at + bad);
    }
    return 0;
}

static int check_tensor(const struct adapter_file *f, const struct model_param *p, struct err *e) {
    const struct safetensors_entry *t = find(f, p);
    if (t == NULL)
        return err_set(e, ERR_FORMAT,
                       "%.400s: there is no tensor \"" ADAPTER_PREFIX "%s\", which " ADAPTER_CONFIG
                       " asks for",
                       f->path, p->name);
    int rc = weights_check_param(t, p, e);
    if (rc == 0)
        return check_finite(f, t, e);
    err_context(e, "%.400s", f->path);
    return rc;
}

static int refuse_extra(const struct adapter_file *f, const struct names *asked, struct err *e) {
    char quoted[NAMES_QUOTE_BYTES];
    uint32_t i;
    for (size_t t = 0; t < safetensors_count(f->tensors); t++) {
        const char *name = safetensors_at(f->tensors, t)->name;
        if (!names_find(asked, name, &i))
            return err_set(e, ERR_MISMATCH,
                           "%.400s: tensor %s is not part of what " ADAPTER_CONFIG " describes",
                           f->path, names_quote(quoted, name));
    }
    return 0;
}

static int check_tensors(const struct adapter_file *f, struct err *e) {
    char name[TENSOR_NAME_BYTES];
    struct region region = {0};
    struct names asked = {0};
    struct model_param p;
    int64_t weight = 0;
    int rc = 0;
    for (int64_t i = 0; rc == 0 && wanted(f, i, &weight, &p); i++) {
        bool fresh;
        const char *kept = region_copy(&region, tensor_name(name, &p));
        rc = kept != NULL ? names_put(&asked, kept, 0, &fresh, e)
                          : err_set(e, ERR_MEMORY, "no memory for the names of tensors");
        if (rc == 0)
            rc = check_tensor(f, &p, e);
    }
    if (rc == 0)
        rc = refuse_extra(f, &asked, e);
    names_free(&asked);
    region_free(&region);
    return rc;
}

// ---------------------------------------------------------------- targets by pattern

// Where the settings have a regular expression, the pairs of the first layer say what it matched.
// The check of all tensors then finds a layer that is different.
static int find_targets(struct adapter_file *f, struct err *e) {
    struct adapter *a = &f->config.adapter, all = *a;
    struct model_param p;
    strcpy(all.targets, "all");
    for (int64_t i = 0; adapter_param_at(&all, &f->shape, i, &p) && p.layer == 0; i += 2) {
        const size_t used = strlen(a->targets);
        char module[sizeof p.name], *dot;
        snprintf(module, sizeof module, "%.*s", (int)(strlen(p.name) - strlen(".lora_A.weight")),
                 p.name);
        // The last two parts, such as attn.c_proj, name one kind of layer.
        dot = strrchr(module, '.');
        while (dot != NULL && dot > module && dot[-1] != '.')
            dot--;
        if (dot == NULL || find(f, &p) == NULL)
            continue;
        if (used + strlen(dot) + 2 > sizeof a->targets)
            return err_set(e, ERR_INTERNAL, "the names of a block's layers are too long");
        snprintf(a->targets + used, sizeof a->targets - used, "%s%s", used > 0 ? "," : "", dot);
    }
    if (a->targets[0] != '\0')
        return 0;
    return err_set(e, ERR_MISMATCH, "%.400s: there is no pair for any linear layer of the model",
                   f->path);
}

// ---------------------------------------------------------------- the folder

static int open_tensors(struct adapter_file *f, const char *dir, struct err *e) {
    char pickle[PATH_MAX];
    TRY(file_join(f->path, sizeof f->path, dir, ADAPTER_FILE, e));
    TRY(file_join(pickle, sizeof pickle, dir, "adapter_model.bin", e));
    if (!file_exists(f->path) && file_exists(pickle))
        return safetensors_refuse_pickle(pickle, e);
    return safetensors_open(&f->tensors, f->path, e);
}

static int open_folder(struct adapter_file *f, const char *dir, bool tensors, struct err *e) {
    char path[PATH_MAX];
    if (!file_is_dir(dir))
        return err_set(e, ERR_IO,
                       "'%.400s' does not exist or is not a folder; an adapter is a folder with "
                       "" ADAPTER_CONFIG " and " ADAPTER_FILE,
                       dir);
    TRY(file_join(path, sizeof path, dir, ADAPTER_CONFIG, e));
    if (!file_exists(path))
        return err_set(e, ERR_IO,
                       "'%.400s' has no " ADAPTER_CONFIG
                       "; haggle export writes one for a run that "
                       "trained an adapter",
                       dir);
    TRY(adapter_config_read(&f->config, path, &f->shape, e));
    if (tensors || f->config.by_pattern)
        TRY(open_tensors(f, dir, e));
    if (f->config.by_pattern)
        TRY(find_targets(f, e));
    return tensors ? check_tensors(f, e) : 0;
}

static int open_file(struct adapter_file **out, const char *dir, const struct model_shape *s,
                     bool tensors, struct err *e) {
    *out = NULL;
    struct adapter_file *f = calloc(1, sizeof *f);
    if (f == NULL)
        return err_set(e, ERR_MEMORY, "no memory to open '%.400s'", dir);
    f->shape = *s;
    int rc = open_folder(f, dir, tensors, e);
    if (rc != 0) {
        adapter_file_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

int adapter_config_open(struct adapter_config *out, const char *dir, const struct model_shape *s,
                        struct err *e) {
    struct adapter_file *f;
    TRY(open_file(&f, dir, s, false, e));
    *out = f->config;
    adapter_file_close(f);
    return 0;
}

int adapter_file_open(struct adapter_file **out, const char *dir, const struct model_shape *s,
                      struct err *e) {
    return open_file(out, dir, s, true, e);
}

void adapter_file_close(struct adapter_file *f) {
    if (f == NULL)
        return;
    safetensors_close(f->tensors);
    free(f);
}

const struct adapter_config *adapter_file_config(const struct adapter_file *f) {
    return &f->config;
}

enum dtype adapter_file_narrowest(const struct adapter_file *f) {
    bool bf16 = false, f16 = false;
    for (size_t i = 0; i < safetensors_count(f->tensors); i++) {
        bf16 = bf16 || safetensors_at(f->tensors, i)->dtype == DTYPE_BF16;
        f16 = f16 || safetensors_at(f->tensors, i)->dtype == DTYPE_F16;
    }
    return bf16 ? DTYPE_BF16 : f16 ? DTYPE_F16 : DTYPE_F32;
}

int adapter_file_read(struct adapter_file *f, const struct model_param *p, int64_t first, int64_t n,
                      void *out, enum dtype type, struct err *e) {
    const struct safetensors_entry *t = find(f, p);
    if (t == NULL)
        return err_set(e, ERR_INTERNAL, "%.400s has no \"%s\"", f->path, p->name);
    return safetensors_read(f->tensors, t, first, n, out, type, e);
}

// load.c - finds a parameter among the tensors of a folder. load.h says which names are accepted.
#include "model/load.h"
#include "model/names.h"

#include <stdio.h>
#include <string.h>

enum { DIMS_TEXT_BYTES = 96 };

static const char *dims_text(char out[DIMS_TEXT_BYTES], int rank, const int64_t *dims) {
    size_t used = (size_t)snprintf(out, DIMS_TEXT_BYTES, "[");
    for (int i = 0; i < rank && used < DIMS_TEXT_BYTES; i++) {
        int n = snprintf(out + used, DIMS_TEXT_BYTES - used, "%s%lld", i == 0 ? "" : ", ",
                         (long long)dims[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    if (used < DIMS_TEXT_BYTES)
        snprintf(out + used, DIMS_TEXT_BYTES - used, "]");
    return out;
}

// The name without the head's prefix, or NULL when it has none.
static const char *without_prefix(const struct model_shape *s, const char *name) {
    const char *prefix = s->family == FAMILY_GPT2 ? "transformer." : "model.";
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? name + n : NULL;
}

static const struct safetensors_entry *find(const struct weights *w, const struct model_shape *s,
                                            const struct model_param *p, struct err *e) {
    const char *bare = without_prefix(s, p->name);
    const struct safetensors_entry *t = weights_find(w, p->name);
    if (t == NULL && bare != NULL)
        t = weights_find(w, bare);
    // Tied weights are one tensor with two names. A file may have either name.
    if (t == NULL && p->role == ROLE_WTE && s->tied)
        t = weights_find(w, "lm_head.weight");
    if (t != NULL)
        return t;
    if (p->role == ROLE_HEAD_W)
        err_set(e, ERR_FORMAT,
                "the weights have no tensor \"lm_head.weight\", which a model with "
                "\"tie_word_embeddings\" false needs");
    else if (bare != NULL)
        err_set(e, ERR_FORMAT,
                "the weights have no tensor \"%s\" (nor \"%s\"), which the configuration needs",
                p->name, bare);
    else
        err_set(e, ERR_FORMAT, "the weights have no tensor \"%s\", which the configuration needs",
                p->name);
    return NULL;
}

const struct safetensors_entry *weights_find_param(const struct weights *w,
                                                   const struct model_shape *s,
                                                   const struct model_param *p, struct err *e) {
    char quoted[NAMES_QUOTE_BYTES], file_dims[DIMS_TEXT_BYTES], want_dims[DIMS_TEXT_BYTES];
    const struct safetensors_entry *t = find(w, s, p, e);
    if (t == NULL)
        return NULL;
    if (!dtype_is_floating(t->dtype)) {
        err_set(e, ERR_UNSUPPORTED, "tensor %s has type %s; accepted are: F32, F64, BF16, F16",
                names_quote(quoted, t->name), t->dtype_name);
        return NULL;
    }
    bool same = t->rank == p->rank;
    for (int i = 0; same && i < p->rank; i++)
        same = t->dims[i] == p->dims[i];
    if (!same) {
        err_set(e, ERR_MISMATCH, "tensor %s is %s in the file, but the configuration needs %s",
                names_quote(quoted, t->name), dims_text(file_dims, t->rank, t->dims),
                dims_text(want_dims, p->rank, p->dims));
        return NULL;
    }
    return t;
}

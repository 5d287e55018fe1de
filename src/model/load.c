// load.c - finds a parameter among the tensors of a folder. load.h says which names are accepted.
#include "model/load.h"
#include "model/names.h"
#include "model/quantized.h"

#include <stdio.h>
#include <stdlib.h>
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
    if (quantized_holds(w, p->name))
        err_set(e, ERR_UNSUPPORTED,
                "the weight '%s' is quantized (the files hold it as \"%s.q\"), and this needs "
                "weights that are not: use the model that the folder was made from",
                p->name, p->name);
    else if (p->role == ROLE_HEAD_W)
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

int weights_check_param(const struct safetensors_entry *t, const struct model_param *p,
                        struct err *e) {
    char quoted[NAMES_QUOTE_BYTES], file_dims[DIMS_TEXT_BYTES], want_dims[DIMS_TEXT_BYTES];
    if (!dtype_is_floating(t->dtype))
        return err_set(e, ERR_UNSUPPORTED,
                       "tensor %s has type %s; accepted are: F32, F64, BF16, F16",
                       names_quote(quoted, t->name), t->dtype_name);
    bool same = t->rank == p->rank;
    for (int i = 0; same && i < p->rank; i++)
        same = t->dims[i] == p->dims[i];
    if (same)
        return 0;
    return err_set(e, ERR_MISMATCH, "tensor %s is %s in the file, but the configuration needs %s",
                   names_quote(quoted, t->name), dims_text(file_dims, t->rank, t->dims),
                   dims_text(want_dims, p->rank, p->dims));
}

const struct safetensors_entry *weights_find_param(const struct weights *w,
                                                   const struct model_shape *s,
                                                   const struct model_param *p, struct err *e) {
    const struct safetensors_entry *t = find(w, s, p, e);
    return t != NULL && weights_check_param(t, p, e) == 0 ? t : NULL;
}

// ---------------------------------------------------------------- tensors that nobody asked for

enum { EXTRA_NAMED = 3, COMPARE_ELEMENTS = 1 << 16 };

static bool ends_with(const char *text, const char *ending) {
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

// Tables and masks that older tools stored with the weights. They follow from the configuration.
static bool holds_no_weights(const struct model_shape *s, const char *name) {
    static const char *const rotary[] = {"rotary_emb.inv_freq", "rotary_emb.cos_cached",
                                         "rotary_emb.sin_cached"};
    if (s->family == FAMILY_GPT2)
        return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias");
    for (size_t i = 0; i < sizeof rotary / sizeof *rotary; i++)
        if (ends_with(name, rotary[i]))
            return true;
    return false;
}

// Compares the stored head of a tied model with the embedding. *at is the first element that
// differs, -1 when none does.
static int compare_head(struct weights *w, const struct safetensors_entry *head,
                        const struct safetensors_entry *embedding, int64_t *at, struct err *e) {
    *at = head->elements == embedding->elements && dtype_is_floating(head->dtype) ? -1 : 0;
    float *a = malloc(2 * COMPARE_ELEMENTS * sizeof *a), *b = a + COMPARE_ELEMENTS;
    int rc = a != NULL ? 0 : err_set(e, ERR_MEMORY, "no memory to compare two tensors");
    for (int64_t i = 0; rc == 0 && *at < 0 && i < head->elements; i += COMPARE_ELEMENTS) {
        const int64_t left = head->elements - i,
                      n = left < COMPARE_ELEMENTS ? left : COMPARE_ELEMENTS;
        rc = weights_read(w, head, i, n, a, DTYPE_F32, e);
        if (rc == 0)
            rc = weights_read(w, embedding, i, n, b, DTYPE_F32, e);
        if (rc != 0 || memcmp(a, b, (size_t)n * sizeof *a) == 0)
            continue;
        for (*at = i; memcmp(&a[*at - i], &b[*at - i], sizeof *a) == 0;)
            ++*at;
    }
    free(a);
    return rc;
}

static int list_quantized(const struct quantized *q, const struct model_shape *s,
                          struct model_param p, const struct weights *w, struct names *used,
                          struct err *e) {
    struct quantized_tensor tensors[QUANTIZED_TENSORS];
    const struct storage storage = quantized_as(q, &p);
    quantized_turn(s, &p);
    const int n = quantized_tensors(storage, &p, tensors);
    for (int i = 0; i < n; i++) {
        const struct safetensors_entry *t = weights_find(w, tensors[i].name);
        bool fresh;
        if (t != NULL) // what is missing is refused when it is read
            TRY(names_put(used, t->name, 0, &fresh, e));
    }
    return 0;
}

static int list_used(const struct weights *w, const struct model_shape *s,
                     const struct quantized *q, struct names *used,
                     const struct safetensors_entry **embedding, struct err *e) {
    struct model_param p;
    for (int64_t i = 0; model_param_at(s, i, &p); i++) {
        if (!storage_plain(quantized_as(q, &p))) {
            TRY(list_quantized(q, s, p, w, used, e));
            continue;
        }
        const struct safetensors_entry *t = weights_find_param(w, s, &p, e);
        bool fresh;
        if (t == NULL)
            return e != NULL ? e->code : ERR_FORMAT;
        TRY(names_put(used, t->name, 0, &fresh, e));
        if (p.role == ROLE_WTE)
            *embedding = t;
    }
    return 0;
}

static int find_extra(struct weights *w, const struct model_shape *s, const struct quantized *q,
                      struct names *used, struct err *e) {
    const struct safetensors_entry *embedding = NULL;
    char list[EXTRA_NAMED * (NAMES_QUOTE_BYTES + 2)] = "", quoted[NAMES_QUOTE_BYTES];
    size_t extra = 0, length = 0;
    uint32_t value;
    TRY(list_used(w, s, q, used, &embedding, e));
    for (size_t i = 0; i < weights_count(w); i++) {
        const struct safetensors_entry *t = weights_at(w, i);
        int64_t at = -1;
        if (names_find(used, t->name, &value) || holds_no_weights(s, t->name))
            continue;
        if (s->tied && embedding && strcmp(t->name, "lm_head.weight") == 0) {
            TRY(compare_head(w, t, embedding, &at, e));
            if (at < 0)
                continue;
            return err_set(e, ERR_MISMATCH,
                           "config.json says \"tie_word_embeddings\" true, but \"lm_head.weight\" "
                           "differs from the embedding at element %lld: set it to false in "
                           "config.json, or ignore the tensor with allow.extra=true",
                           (long long)at);
        }
        if (extra++ < EXTRA_NAMED)
            length += (size_t)snprintf(list + length, sizeof list - length, "%s%s",
                                       extra > 1 ? ", " : "", names_quote(quoted, t->name));
    }
    if (extra == 0)
        return 0;
    return err_set(e, ERR_MISMATCH,
                   "the weights hold %zu tensor%s that config.json does not ask for: %s%s. Correct "
                   "config.json (does it name all layers?), or ignore %s with allow.extra=true",
                   extra, extra == 1 ? "" : "s", list, extra > EXTRA_NAMED ? ", ..." : "",
                   extra == 1 ? "it" : "them");
}

int weights_refuse_extra(struct weights *w, const struct model_shape *s, const struct quantized *q,
                         struct err *e) {
    struct names used = {0};
    int rc = find_extra(w, s, q, &used, e);
    names_free(&used);
    return rc;
}

// ---------------------------------------------------------------- a hash

enum { HASHED_ELEMENTS = 1 << 17 };

static int hash_tensor(struct weights *w, const struct safetensors_entry *t, struct hash *h,
                       void *buffer, struct err *e) {
    for (int64_t i = 0; i < t->elements; i += HASHED_ELEMENTS) {
        const int64_t left = t->elements - i, n = left < HASHED_ELEMENTS ? left : HASHED_ELEMENTS;
        TRY(weights_read(w, t, i, n, buffer, t->dtype, e));
        hash_add(h, buffer, (size_t)n * dtype_bytes(t->dtype));
    }
    return 0;
}

int weights_hash(struct weights *w, const struct model_shape *s, char out[HASH_TEXT_BYTES],
                 struct err *e) {
    struct model_param p;
    struct hash *h = hash_new();
    void *buffer = malloc(HASHED_ELEMENTS * sizeof(double));
    int rc = h && buffer ? 0 : err_set(e, ERR_MEMORY, "no memory to hash the weights");
    for (int64_t i = 0; rc == 0 && model_param_at(s, i, &p); i++) {
        const struct safetensors_entry *t = weights_find_param(w, s, &p, e);
        if (t == NULL) {
            rc = e != NULL ? e->code : ERR_FORMAT;
            break;
        }
        hash_add(h, p.name, strlen(p.name) + 1);
        hash_add(h, t->dtype_name, strlen(t->dtype_name) + 1);
        rc = hash_tensor(w, t, h, buffer, e);
    }
    if (rc == 0)
        hash_text(h, out);
    hash_free(h);
    free(buffer);
    return rc;
}

// adapted.c - see adapted.h.
#include "train/adapted.h"

#include "base/file.h"
#include "model/load.h"

#include <stdio.h>
#include <string.h>

// ---------------------------------------------------------------- the base

static void hash_builtin(const struct knobs *k, char out[HASH_TEXT_BYTES]) {
    char text[KNOB_STRING_BYTES + 32];
    const int n = snprintf(text, sizeof text, "%s, seed %lld", k->model, (long long)k->seed);
    hash_of(text, (size_t)n, out);
}

int adapted_base(struct session *s, const char **hash, struct err *e) {
    struct weights *files;
    *hash = s->base;
    if (s->base[0] != '\0')
        return 0;
    if (!s->plan->from_folder) {
        hash_builtin(&s->plan->knobs, s->base);
        return 0;
    }
    TRY(weights_open(&files, s->plan->knobs.model, e));
    const int rc = weights_hash(files, &s->plan->shape, s->base, e);
    weights_close(files);
    if (rc != 0)
        s->base[0] = '\0';
    return rc;
}

int adapted_compare(const struct manifest *m, struct session *s, const char *path, struct err *e) {
    const struct knobs *k = &s->plan->knobs;
    const bool adapter = s->plan->adapter.rank > 0;
    const char *hash;
    if (!adapter && m->base[0] == '\0')
        return 0;
    if (adapter != (m->base[0] != '\0'))
        return err_set(e, ERR_MISMATCH,
                       "'%s' holds %s, but this run trains %s (lora.rank=%lld). Choose another "
                       "run.dir, or set resume=false",
                       path, adapter ? "a whole model" : "an adapter",
                       adapter ? "an adapter" : "a whole model", (long long)k->lora_rank);
    TRY(adapted_base(s, &hash, e));
    if (strcmp(hash, m->base) == 0)
        return 0;
    return err_set(e, ERR_MISMATCH,
                   "'%s' holds an adapter of '%.300s' with weights %.8s, but the base here is "
                   "'%.300s' with weights %.8s. An adapter fits only the weights that it was "
                   "trained beside",
                   path, m->base_name, m->base, k->model, hash);
}

// ---------------------------------------------------------------- the adapter

int adapted_find(const char *folder, struct knobs *k, bool *found, struct err *e) {
    static const int ids[] = {KNOB_model,      KNOB_seed,         KNOB_lora_rank,
                              KNOB_lora_alpha, KNOB_lora_rslora,  KNOB_lora_targets,
                              KNOB_train_also, KNOB_train_freeze, KNOB_tokenizer};
    struct manifest m = {0};
    char path[PATH_MAX];
    *found = false;
    TRY(file_join(path, sizeof path, folder, MANIFEST_NAME, e));
    if (!file_exists(path))
        return 0;
    int rc = manifest_read(&m, path, e);
    *found = rc == 0 && m.base[0] != '\0';
    for (size_t i = 0; rc == 0 && *found && i < sizeof ids / sizeof *ids; i++) {
        const bool given = ids[i] == KNOB_tokenizer && k->tokenizer[0] != '\0';
        if (m.knobs[ids[i]] != NULL && !given)
            rc = knobs_set_at(k, ids[i], m.knobs[ids[i]], SET_BY_PLANNER, e);
    }
    if (rc != 0)
        err_context(e, "%.400s", path);
    manifest_free(&m);
    return rc;
}

static int read_values(void *arg, const struct model_param *p, int64_t first, int64_t n, float *out,
                       struct err *e) {
    struct safetensors *st = arg;
    char name[sizeof p->name + sizeof ADAPTER_PREFIX];
    snprintf(name, sizeof name, "%s%s", ADAPTER_PREFIX, p->name);
    const struct safetensors_entry *entry = safetensors_find(st, name);
    bool same = entry && entry->rank == p->rank;
    for (int i = 0; same && i < p->rank; i++)
        same = entry->dims[i] == p->dims[i];
    if (!same)
        return err_set(e, ERR_MISMATCH, "the adapter's file has no tensor '%s' of the right size",
                       name);
    return safetensors_read(st, entry, first, n, out, DTYPE_F32, e);
}

int adapted_fill(struct session *s, const char *folder, struct err *e) {
    struct manifest m = {0};
    struct safetensors *st;
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, folder, MANIFEST_NAME, e));
    int rc = manifest_read(&m, path, e);
    if (rc == 0)
        rc = adapted_compare(&m, s, folder, e);
    manifest_free(&m);
    TRY(rc);
    TRY(file_join(path, sizeof path, folder, ADAPTER_FILE, e));
    TRY(safetensors_open(&st, path, e));
    rc = session_put(s, read_values, st, e);
    safetensors_close(st);
    return rc;
}

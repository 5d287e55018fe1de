// source.c - see source.h.
#include "train/source.h"

#include "base/file.h"
#include "model/shape.h"
#include "train/manifest.h"

#include <stdio.h>

enum { CHAIN_MOST = 32 };

// The path of a checkpoint's manifest; false if the folder is not a checkpoint.
static bool manifest_of(const char *dir, char path[PATH_MAX]) {
    return file_join(path, PATH_MAX, dir, MANIFEST_NAME, NULL) == 0 && file_exists(path);
}

int source_follow(const char *model, char dir[PATH_MAX], struct err *e) {
    char path[PATH_MAX];
    snprintf(dir, PATH_MAX, "%s", model);
    for (int i = 0; i < CHAIN_MOST; i++) {
        struct manifest m = {0};
        if (model_shape_is_builtin(dir)) { // wins over a folder, as in model_shape_open
            dir[0] = '\0';
            return 0;
        }
        if (!file_is_dir(dir))
            return err_set(e, ERR_IO,
                           "the run was trained from '%.400s', which cannot be found from the "
                           "current folder",
                           dir);
        if (!manifest_of(dir, path))
            return 0;
        int rc = manifest_read(&m, path, e);
        if (rc == 0 && m.knobs[KNOB_model] != NULL)
            snprintf(dir, PATH_MAX, "%s", m.knobs[KNOB_model]);
        manifest_free(&m);
        TRY(rc);
    }
    return err_set(
        e, ERR_FORMAT,
        "'%.400s' was trained from a checkpoint, which was trained from a checkpoint, and so on "
        "more than %d times",
        model, CHAIN_MOST);
}

int source_tokenizer(struct knobs *k, char dir[PATH_MAX], struct err *e) {
    char path[PATH_MAX];
    dir[0] = '\0';
    if (model_shape_is_builtin(k->model))
        return 0;
    snprintf(dir, PATH_MAX, "%s", k->model);
    if (k->tokenizer[0] != '\0' || !manifest_of(k->model, path))
        return 0;
    struct manifest m = {0};
    int rc = manifest_read(&m, path, e);
    const char *given = rc == 0 ? m.knobs[KNOB_tokenizer] : NULL;
    if (given != NULL && *given)
        snprintf(k->tokenizer, sizeof k->tokenizer, "%s", given);
    else if (rc == 0 && m.knobs[KNOB_model] != NULL)
        rc = source_follow(m.knobs[KNOB_model], dir, e);
    manifest_free(&m);
    return rc;
}

int source_template(struct knobs *k, bool *of_run, struct err *e) {
    static const int ids[] = {KNOB_data_template, KNOB_data_system};
    char path[PATH_MAX];
    struct manifest m = {0};
    *of_run = !model_shape_is_builtin(k->model) && manifest_of(k->model, path);
    if (!*of_run)
        return 0;
    int rc = manifest_read(&m, path, e);
    for (size_t i = 0; rc == 0 && i < sizeof ids / sizeof *ids; i++)
        if (k->by[ids[i]] == SET_BY_DEFAULT && m.knobs[ids[i]] != NULL)
            rc = knobs_set_at(k, ids[i], m.knobs[ids[i]], SET_BY_PLANNER, e);
    manifest_free(&m);
    return rc;
}

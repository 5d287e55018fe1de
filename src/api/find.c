// find.c - the trained model that a verb was asked for: a run, a checkpoint, an adapter, a folder.
#include "api/api.h"

#include "base/file.h"
#include "export/export.h"
#include "train/adapted.h"
#include "train/checkpoint.h"

#include <string.h>

static int take_model(struct knobs *k, const char *folder, struct err *e) {
    if (strlen(folder) >= sizeof k->model)
        return err_set(e, ERR_USAGE, "the checkpoint's path is longer than %zu bytes: %s",
                       sizeof k->model - 1, folder);
    strcpy(k->model, folder);
    return 0;
}

int call_find_checkpoint(struct call *c, struct knobs *k, bool best, struct err *e) {
    char config[PATH_MAX], checkpoints[PATH_MAX], newest[PATH_MAX];
    struct checkpoint_listener listener = {&c->log, call_say};
    if (best) {
        TRY(checkpoint_find_best(k->model, &listener, newest, e));
        return take_model(k, newest, e);
    }
    TRY(export_find_second(k->model, &listener, newest, e));
    if (newest[0] != '\0')
        return take_model(k, newest, e);
    if (!file_is_dir(k->model))
        return 0;
    TRY(file_join(config, sizeof config, k->model, "config.json", e));
    TRY(file_join(checkpoints, sizeof checkpoints, k->model, "checkpoints", e));
    if (file_exists(config) || !file_is_dir(checkpoints))
        return 0;
    TRY(checkpoint_find_newest(k->model, &listener, newest, e));
    if (newest[0] == '\0')
        return err_set(e, ERR_IO, "%s holds no checkpoint yet", k->model);
    return take_model(k, newest, e);
}

int call_find_adapter(struct knobs *k, char adapter[PATH_MAX], struct err *e) {
    char folder[PATH_MAX];
    bool found = false;
    snprintf(folder, sizeof folder, "%s", k->model);
    adapter[0] = '\0';
    if (file_is_dir(folder))
        TRY(adapted_find(folder, k, &found, e));
    if (found && k->lora_from[0] != '\0')
        return err_set(
            e, ERR_USAGE,
            "'%.300s' is an adapter already, so lora.from=%.200s cannot be used with it; "
            "name the base instead",
            folder, k->lora_from);
    if (found)
        snprintf(adapter, PATH_MAX, "%s", folder);
    return 0;
}

// export.c - see export.h. The order of an export to a folder: find the checkpoint and its source,
// plan, check the free space, write beside the target, check, rename.
#include "export/export.h"
#include "train/checkpoint_dir.h"
#include "train/source.h"
#include "export/parts.h"

#include "base/checked.h"
#include "base/file.h"
#include "base/text.h"
#include "data/bytes.h"
#include "data/dataset.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { SMALL_FILES_BYTES = 256 << 10 };

// ---------------------------------------------------------------- the checkpoint

static int read_manifest(struct exporter *x, const char *dir) {
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, dir, MANIFEST_NAME, x->e));
    return manifest_read(&x->manifest, path, x->e);
}

// The newest checkpoint of the run that verifies, or the best one. If run_dir is a checkpoint's
// folder, that one.
static int find_checkpoint(struct exporter *x) {
    const char *run = x->o->run_dir;
    char *path = x->out->checkpoint;
    if (!file_is_dir(run))
        return err_set(x->e, ERR_IO,
                       "'%s' does not exist or is not a folder; give the folder of a run", run);
    if (x->o->best) {
        TRY(checkpoint_find_best(run, &x->o->listener, path, x->e));
        return read_manifest(x, path);
    }
    if (export_has_file(run, MANIFEST_NAME)) {
        snprintf(path, PATH_MAX, "%s", run);
        return checkpoint_verify(path, &x->manifest, x->e);
    }
    TRY(checkpoint_find_newest(run, &x->o->listener, path, x->e));
    if (path[0] == '\0')
        return err_set(
            x->e, ERR_IO,
            "'%s' holds no checkpoint: the run saved none, or this is not the folder of a run",
            run);
    return read_manifest(x, path);
}

// The checkpoint that an earlier export was made from. It need not be the newest any more.
static int find_checkpoint_of(struct exporter *x, int64_t step, const char *model_hash) {
    const char *run = x->o->run_dir;
    char dir[PATH_MAX], *path = x->out->checkpoint;
    if (export_has_file(run, MANIFEST_NAME)) {
        snprintf(path, PATH_MAX, "%s", run);
    } else {
        TRY(file_join(dir, sizeof dir, run, CHECKPOINT_FOLDER, x->e));
        TRY(checkpoint_path(dir, step, "", path, x->e));
    }
    if (!file_is_dir(path))
        return err_set(x->e, ERR_MISMATCH,
                       "'%s' was exported from step %" PRId64
                       ", but '%s' has no checkpoint of that step (any more)",
                       x->out->out_dir, step, run);
    TRY(checkpoint_verify(path, &x->manifest, x->e));
    if (strcmp(x->manifest.files[MANIFEST_MODEL].hash, model_hash) != 0)
        return err_set(x->e, ERR_MISMATCH,
                       "'%s' was exported from other weights than those in '%s'; is this the run "
                       "it was exported from?",
                       x->out->out_dir, path);
    return 0;
}

static int open_checkpoint(struct exporter *x) {
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, x->out->checkpoint, "config.json", x->e));
    TRY(model_shape_read_config(&x->shape, path, x->e));
    x->out->step = x->manifest.state.step;
    return export_open_trained(x);
}

// ---------------------------------------------------------------- the source

static int follow_source(struct exporter *x, const char *first) {
    struct err why = {0};
    int rc = source_follow(first, x->out->source, &why);
    return rc == 0
               ? 0
               : err_set(x->e, rc,
                         "%.600s. The export needs its config.json and tokenizer; name a folder "
                         "that has them with --source",
                         why.text);
}

// Refuses a source with another shape: its config.json would load these weights, but the model
// would produce nonsense.
static int compare_source(struct exporter *x) {
    struct model_shape shape;
    char path[PATH_MAX], a[MANIFEST_MODEL_BYTES], b[MANIFEST_MODEL_BYTES];
    char identity[HASH_TEXT_BYTES];
    TRY(file_join(path, sizeof path, x->out->source, "config.json", x->e));
    TRY(model_shape_read_config(&shape, path, x->e));
    TRY(checkpoint_model_identity(&shape, identity, NULL, NULL, x->e));
    snprintf(x->source_name, sizeof x->source_name, "%s", shape.name);
    if (strcmp(identity, x->manifest.identity) == 0)
        return 0;
    checkpoint_describe_model(&shape, a);
    checkpoint_describe_model(&x->shape, b);
    return err_set(x->e, ERR_MISMATCH,
                   "'%.300s' is not the model that the run trained: it describes a %s; the "
                   "checkpoint holds a %s%s",
                   path, a, b,
                   strcmp(a, b) == 0 ? ", and they differ in rotary, norm or token settings" : "");
}

static void cut_to_parent(char *path) {
    char *slash = strrchr(path, '/');
    if (slash == NULL)
        strcpy(path, ".");
    else
        slash[slash == path] = '\0';
}

// For a run with tokenizer=PATH: a tokenizer.json, or a folder that has one.
static int use_tokenizer(struct exporter *x, const char *given) {
    char *file = x->tokenizer_file;
    if (file_is_dir(given))
        TRY(file_join(file, PATH_MAX, given, "tokenizer.json", x->e));
    else
        snprintf(file, PATH_MAX, "%s", given);
    if (!file_exists(file))
        return err_set(
            x->e, ERR_IO,
            "the run read its text with '%.400s', which cannot be found from the current folder; "
            "put it back, or name a folder that has a tokenizer with --source",
            file);
    snprintf(x->tokenizer_dir, PATH_MAX, "%s", file);
    cut_to_parent(x->tokenizer_dir);
    return 0;
}

int export_find_tokenizer(struct exporter *x) {
    const char *given = x->manifest.knobs[KNOB_tokenizer], *source = x->out->source;
    bool bytes = given != NULL && strcmp(given, "bytes") == 0;
    if (given != NULL && *given && !bytes && x->o->source == NULL)
        return use_tokenizer(x, given);
    if (x->has_source && !bytes && export_has_tokenizer(source)) {
        snprintf(x->tokenizer_dir, PATH_MAX, "%s", source);
        TRY(file_join(x->tokenizer_file, PATH_MAX, source, "tokenizer.json", x->e));
        if (!file_exists(x->tokenizer_file))
            x->tokenizer_file[0] = '\0';
        return 0;
    }
    // A folder without a tokenizer was trained on ids, or on the built-in corpus in bytes.
    const char *data = x->manifest.knobs[KNOB_data_path];
    const bool corpus = data == NULL || *data == '\0' || strcmp(data, DATASET_SYNTHETIC) == 0;
    x->bytes = x->shape.vocab >= BYTES_VOCAB && (bytes || corpus || !x->has_source);
    return 0;
}

static int find_source(struct exporter *x) {
    if (x->o->source != NULL) {
        if (!file_is_dir(x->o->source))
            return err_set(x->e, ERR_USAGE, "--source %s is not a folder", x->o->source);
        snprintf(x->out->source, PATH_MAX, "%s", x->o->source);
    } else {
        const char *model = x->manifest.knobs[KNOB_model];
        TRY(follow_source(x, model != NULL ? model : "?"));
    }
    x->has_source = x->out->source[0] != '\0';
    if (x->has_source)
        TRY(compare_source(x));
    return export_find_tokenizer(x);
}

// ---------------------------------------------------------------- the folder

int export_check_space(const char *path, uint64_t bytes, struct err *e) {
    char dir[PATH_MAX], need[TEXT_UNIT_BYTES], have[TEXT_UNIT_BYTES];
    uint64_t free_bytes;
    snprintf(dir, sizeof dir, "%s", path);
    // The nearest folder above that exists: the others will be created in it.
    while (!file_is_dir(dir) && strcmp(dir, ".") != 0)
        cut_to_parent(dir);
    TRY(file_free_bytes(dir, &free_bytes, e));
    if (free_bytes >= bytes)
        return 0;
    return err_set(e, ERR_IO,
                   "the disk of '%s' has %s free; the export takes up to %s. Free some space, "
                   "choose another place, or choose a smaller type",
                   path, text_bytes(have, free_bytes), text_bytes(need, bytes));
}

static int note_entry(void *arg, const char *name) {
    (void)name;
    *(bool *)arg = true;
    return 0;
}

static int is_empty(const char *dir, bool *empty, struct err *e) {
    bool any = false;
    TRY(file_list_dir(dir, note_entry, &any, e));
    *empty = !any;
    return 0;
}

static int check_target(struct exporter *x) {
    char *path = x->out->out_dir;
    size_t n = strlen(x->o->out_dir);
    // Leaves room for the longest file name and the endings of temporary files.
    if (n == 0 || n + EXPORT_NAME_BYTES + 32 > KNOB_STRING_BYTES)
        return err_set(x->e, ERR_USAGE,
                       "the path of the folder to write has %zu characters; 1 to %d are accepted",
                       n, KNOB_STRING_BYTES - EXPORT_NAME_BYTES - 32);
    snprintf(path, PATH_MAX, "%s", x->o->out_dir);
    while (n > 1 && path[n - 1] == '/')
        path[--n] = '\0';
    const char *last = strrchr(path, '/');
    last = last != NULL ? last + 1 : path;
    if (*last == '\0' || strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
        return err_set(x->e, ERR_USAGE, "'%s' does not end in a folder's name; give a new name",
                       path);
    if (!file_exists(path))
        return 0;
    bool empty = false;
    if (!file_is_dir(path))
        return err_set(x->e, ERR_USAGE, "'%s' is a file; a new or empty folder is needed", path);
    TRY(is_empty(path, &empty, x->e));
    return empty ? 0
                 : err_set(x->e, ERR_USAGE,
                           "'%s' is not empty; a new or empty folder is needed, so that no file is "
                           "overwritten",
                           path);
}

static int lock_folder(const char *path, int *fd, struct err *e) {
    TRY(file_make_dirs(path, e));
    *fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (*fd < 0)
        return err_set(e, ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return 0;
    close(*fd);
    *fd = -1;
    return err_set(e, ERR_USAGE, "another export is writing '%s'; wait until it ends", path);
}

// Makes the temporary folder, empty and locked. What a crash left there is removed.
static int open_folder(struct exporter *x, int *fd) {
    bool empty = false;
    snprintf(x->dir, sizeof x->dir, "%.*s.tmp-export", KNOB_STRING_BYTES, x->out->out_dir);
    TRY(lock_folder(x->dir, fd, x->e));
    int rc = is_empty(x->dir, &empty, x->e);
    if (rc == 0 && !empty) {
        close(*fd);
        *fd = -1;
        TRY(file_remove_tree(x->dir, x->e));
        checkpoint_say(&x->o->listener, LOG_INFO, "removed '%s', which a crash left unfinished",
                       x->dir);
        rc = lock_folder(x->dir, fd, x->e);
    }
    return rc;
}

// ---------------------------------------------------------------- the export

int export_find_run(struct exporter *x) {
    TRY(find_checkpoint(x));
    TRY(open_checkpoint(x));
    TRY(find_source(x));
    return export_open_base(x);
}

static int prepare(struct exporter *x) {
    uint64_t bytes;
    TRY(check_target(x));
    TRY(export_find_run(x));
    x->out->dtype = !x->o->as_source                             ? dtype_text(x->o->dtype)
                    : x->has_source && !export_writes_adapter(x) ? "as-source"
                                                                 : dtype_text(DTYPE_F32);
    if (!export_writes_adapter(x))
        TRY(export_plan_weights(x));
    if (!checked_add_u64(export_writes_adapter(x) ? adapter_save_bytes(&x->adapter.save)
                                                  : export_weights_bytes(x),
                         export_copied_bytes(x) + SMALL_FILES_BYTES, &bytes))
        bytes = UINT64_MAX;
    return export_check_space(x->out->out_dir, bytes, x->e);
}

static int write_folder(struct exporter *x) {
    TRY(export_writes_adapter(x) ? export_write_adapter(x) : export_write_weights(x));
    TRY(export_write_files(x));
    TRY(file_sync_dir(x->dir, x->e));
    if (x->o->on_written != NULL)
        TRY(x->o->on_written(x->o->arg, x->dir, x->e));
    return export_check_folder(x);
}

static int make(struct exporter *x) {
    int fd = -1;
    TRY(prepare(x));
    int rc = open_folder(x, &fd);
    if (rc == 0)
        rc = write_folder(x);
    if (rc == 0)
        rc = file_rename(x->dir, x->out->out_dir, x->e);
    if (rc != 0 && fd >= 0) { // this process has locked the folder, so no other one writes it
        struct err why = {0};
        if (file_remove_tree(x->dir, &why) != 0)
            checkpoint_say(&x->o->listener, LOG_WARN,
                           "the unfinished export could not be removed: %s", why.text);
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

static int check(struct exporter *x) {
    int64_t step;
    char model_hash[HASH_TEXT_BYTES];
    snprintf(x->out->out_dir, PATH_MAX, "%s", x->o->out_dir);
    snprintf(x->dir, PATH_MAX, "%s", x->o->out_dir);
    if (strlen(x->dir) >= KNOB_STRING_BYTES || !file_is_dir(x->dir))
        return err_set(x->e, ERR_IO, "'%.300s' does not exist or is not a folder", x->o->out_dir);
    TRY(export_read_manifest(x, x->dir, &step, model_hash));
    TRY(find_checkpoint_of(x, step, model_hash));
    x->merges = x->manifest.base[0] != '\0' && !export_has_file(x->dir, ADAPTER_CONFIG);
    TRY(open_checkpoint(x));
    struct err why = {0}, *e = x->e;
    x->e = &why;
    // The check needs the source only for its tokenizer, and the source may no longer exist.
    int rc = find_source(x);
    x->e = e;
    if (rc != 0) {
        checkpoint_say(&x->o->listener, LOG_WARN,
                       "token ids are not compared with the source's: %s", why.text);
        x->out->source[0] = '\0';
        x->has_source = x->bytes = false;
        x->tokenizer_dir[0] = x->tokenizer_file[0] = '\0';
    }
    TRY(export_open_base(x));
    return export_check_folder(x);
}

int export_find_second(const char *path, const struct checkpoint_listener *listener,
                       char out[PATH_MAX], struct err *e) {
    static const char name[] = "/" CHECKPOINT_SECOND;
    char run[PATH_MAX], newest[PATH_MAX];
    const size_t n = strlen(path), tail = sizeof name - 1;
    out[0] = '\0';
    if (n <= tail || n >= sizeof run || strcmp(path + n - tail, name) != 0 || file_exists(path))
        return 0;
    snprintf(run, sizeof run, "%.*s", (int)(n - tail), path);
    TRY(checkpoint_find_newest(run, listener, newest, e));
    TRY(file_join(out, PATH_MAX, newest, CHECKPOINT_SECOND, e));
    if (newest[0] == '\0' || !file_is_dir(out))
        return err_set(e, ERR_IO, "'%s' holds no checkpoint with a second model", run);
    return 0;
}

static int run(const struct export_options *o, struct export_result *out, struct err *e,
               int work(struct exporter *)) {
    char second[PATH_MAX];
    struct export_options own = *o;
    struct exporter x = {.o = &own, .out = out, .merges = o->merge, .e = e};
    memset(out, 0, sizeof *out);
    out->ok = true;
    int rc = export_find_second(o->run_dir, &o->listener, second, e);
    if (second[0] != '\0')
        own.run_dir = second;
    if (rc == 0)
        rc = work(&x);
    out->ok = out->ok && rc == 0;
    if (x.weights != NULL)
        weights_close(x.weights);
    export_close_adapter(&x);
    manifest_free(&x.manifest);
    export_free_chat(&x);
    free(x.items);
    return rc;
}

int export_run(const struct export_options *o, struct export_result *out, struct err *e) {
    return run(o, out, e, make);
}

int export_gguf(const struct export_options *o, struct export_result *out, struct err *e) {
    return run(o, out, e, export_make_gguf);
}

int export_check(const struct export_options *o, struct export_result *out, struct err *e) {
    return run(o, out, e, check);
}

void export_free(struct export_result *r) {
    free(r->files);
    *r = (struct export_result){0};
}

// checkpoint.c - the folder of checkpoints: opening, locking, cleaning up, writing, removing.
// checkpoint.h says what is on disk and why it survives a crash. resume.c reads it back.
#include "train/checkpoint.h"
#include "base/array.h"
#include "train/adapted.h"
#include "train/checkpoint_dir.h"
#include "train/snapshot.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// An upper bound for config.json and manifest.json. They take 1300 and 5000 bytes today, and a few
// knobs may hold paths of a thousand characters.
enum { SMALL_FILES_BYTES = 32 << 10 };
enum { ASIDE_MOST = 10000 };

// ---------------------------------------------------------------- names

// Parses "step-000000120" into *step. *rest is what follows the digits. False for other names.
static bool parse_name(const char *name, int64_t *step, const char **rest) {
    static const char prefix[] = "step-";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    const char *digits = name + sizeof prefix - 1;
    size_t n = strspn(digits, "0123456789");
    if (n < CHECKPOINT_DIGITS || n > CHECKPOINT_DIGITS + 1) // steps go to 10^9
        return false;
    *step = 0;
    for (size_t i = 0; i < n; i++)
        *step = *step * 10 + (digits[i] - '0');
    *rest = digits + n;
    return true;
}

int checkpoint_path(const char *dir, int64_t step, const char *ending, char out[PATH_MAX],
                    struct err *e) {
    char name[64];
    snprintf(name, sizeof name, "step-%0*" PRId64 "%s", CHECKPOINT_DIGITS, step, ending);
    return file_join(out, PATH_MAX, dir, name, e);
}

void checkpoint_say(const struct checkpoint_listener *l, enum log_level level, const char *format,
                    ...) {
    char text[CHECKPOINT_TEXT_BYTES];
    if (l->say == NULL)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    l->say(l->arg, level, text);
}

// ---------------------------------------------------------------- listing

struct scan {
    struct checkpoint_list *list;
    const char *dir;
    struct err *e;
};

static int note_step(void *arg, const char *name) {
    struct scan *s = arg;
    int64_t step;
    const char *rest;
    if (!parse_name(name, &step, &rest) || *rest != '\0')
        return 0;
    struct checkpoint_list *l = s->list;
    if (!array_room(&l->steps, l->count, 1, &l->capacity, sizeof *l->steps, 16))
        return err_set(s->e, ERR_MEMORY, "no memory to list the checkpoints in '%s'", s->dir);
    l->steps[l->count++] = step;
    return 0;
}

static int compare_steps(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int checkpoint_list_open(struct checkpoint_list *l, const char *dir, struct err *e) {
    *l = (struct checkpoint_list){0};
    struct scan s = {l, dir, e};
    struct stat st;
    // Only a missing folder means that there are no checkpoints. A folder that cannot be read may
    // be full of them.
    if (stat(dir, &st) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return 0;
    int rc = file_list_dir(dir, note_step, &s, e);
    if (rc != 0)
        checkpoint_list_close(l);
    else if (l->count > 1)
        qsort(l->steps, l->count, sizeof *l->steps, compare_steps);
    return rc;
}

void checkpoint_list_close(struct checkpoint_list *l) {
    free(l->steps);
    *l = (struct checkpoint_list){0};
}

// ---------------------------------------------------------------- opening

// Unfinished saves and removals: step-N.tmp, step-N.old.tmp.
static int remove_stale(void *arg, const char *name) {
    struct checkpoint_dir *d = arg;
    int64_t step;
    const char *rest;
    char path[PATH_MAX];
    struct err e = {0};
    size_t n = strlen(name);
    if (!parse_name(name, &step, &rest) || n < 4 || strcmp(name + n - 4, ".tmp") != 0)
        return 0;
    int rc = file_join(path, sizeof path, d->path, name, &e);
    if (rc == 0)
        rc = file_remove_tree(path, &e);
    // The leftover is only in the way of its own step, so the run goes on with a warning.
    if (rc != 0)
        checkpoint_say(&d->listener, LOG_WARN, "an unfinished checkpoint could not be removed: %s",
                       e.text);
    else
        checkpoint_say(&d->listener, LOG_INFO, "removed '%s', which a crash left unfinished", path);
    return 0;
}

// For resume=false: moves the checkpoints of an earlier run to another folder, so that they do not
// mix with the new ones and are not lost.
static int move_aside(struct checkpoint_dir *d, struct err *e) {
    struct checkpoint_list list;
    TRY(checkpoint_list_open(&list, d->path, e));
    size_t count = list.count;
    checkpoint_list_close(&list);
    if (count == 0)
        return 0;
    char to[PATH_MAX + 16];
    for (int i = 1; i < ASIDE_MOST; i++) {
        snprintf(to, sizeof to, "%s.%d", d->path, i);
        if (file_exists(to))
            continue;
        TRY(file_rename(d->path, to, e));
        checkpoint_say(&d->listener, LOG_WARN,
                       "resume=false: moved %zu checkpoint%s of an earlier run to '%s'", count,
                       count == 1 ? "" : "s", to);
        rundir_unlock(&d->lock);
        return rundir_lock(&d->lock, d->path, e);
    }
    return err_set(e, ERR_IO, "resume=false: '%s.1' to '.%d' all exist; remove some", d->path,
                   ASIDE_MOST - 1);
}

int checkpoint_set_aside(const struct checkpoint_dir *d, int64_t step, const char *why,
                         struct err *e) {
    char from[PATH_MAX], to[PATH_MAX], ending[32];
    TRY(checkpoint_path(d->path, step, "", from, e));
    for (int i = 0; i < ASIDE_MOST; i++) {
        snprintf(ending, sizeof ending, i == 0 ? ".%s" : ".%s.%d", why, i);
        TRY(checkpoint_path(d->path, step, ending, to, e));
        if (file_exists(to))
            continue;
        TRY(file_rename(from, to, e));
        checkpoint_say(&d->listener, LOG_WARN,
                       "the %s checkpoint is kept as '%s'; remove it when you no longer need it",
                       why, to);
        return 0;
    }
    return err_set(e, ERR_IO, "'%s.%s' to '.%s.%d' all exist; remove some", from, why, why,
                   ASIDE_MOST - 1);
}

static int prepare(struct checkpoint_dir *d, bool resume, struct err *e) {
    TRY(rundir_lock(&d->lock, d->path, e));
    TRY(file_list_dir(d->path, remove_stale, d, e));
    return resume ? 0 : move_aside(d, e);
}

int checkpoint_dir_open(struct checkpoint_dir **out, const struct checkpoint_options *o,
                        struct err *e) {
    *out = NULL;
    if (o->run_dir[0] == '\0')
        return err_set(e, ERR_USAGE, "run.dir is empty: checkpoints need a folder");
    struct checkpoint_dir *d = calloc(1, sizeof *d);
    if (d == NULL)
        return err_set(e, ERR_MEMORY, "no memory to open '%s'", o->run_dir);
    d->lock.fd = -1;
    d->saves = o->save;
    d->comm = o->comm;
    d->keep = o->keep > 1 ? o->keep : 1;
    d->keeps_best = o->best;
    d->best = d->sound = -1;
    d->listener = o->listener;
    int rc = file_join(d->path, sizeof d->path, o->run_dir, CHECKPOINT_FOLDER, e);
    if (rc == 0 && o->save && checkpoint_leads(d))
        rc = prepare(d, o->resume, e);
    if (rc != 0) {
        checkpoint_dir_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void checkpoint_dir_close(struct checkpoint_dir *d) {
    if (d == NULL)
        return;
    rundir_unlock(&d->lock);
    free(d);
}

// ---------------------------------------------------------------- room

uint64_t checkpoint_estimate_bytes(const struct plan *p) {
    const uint64_t own = snapshot_bytes(p) + SMALL_FILES_BYTES;
    return own + (p->second ? checkpoint_estimate_bytes(p->second) : 0);
}

int checkpoint_check_space(const struct checkpoint_dir *d, const struct plan *p, int64_t saves,
                           struct err *e) {
    struct checkpoint_list list;
    uint64_t free_bytes, each = checkpoint_estimate_bytes(p);
    if (!checkpoint_leads(d))
        return 0;
    TRY(checkpoint_list_open(&list, d->path, e));
    const int64_t kept = d->keep + d->keeps_best;
    int64_t there = (int64_t)list.count < kept ? (int64_t)list.count : kept;
    checkpoint_list_close(&list);
    // Room for those that are kept and one more while the next is written, minus those that are
    // already on the disk.
    int64_t count = kept + 1 - there;
    if (saves < count)
        count = saves;
    if (count <= 0)
        return 0;
    TRY(file_free_bytes(d->path, &free_bytes, e));
    if (free_bytes / (uint64_t)count >= each)
        return 0;
    char one[TEXT_UNIT_BYTES], all[TEXT_UNIT_BYTES], have[TEXT_UNIT_BYTES];
    uint64_t need;
    if (__builtin_mul_overflow((uint64_t)count, each, &need))
        need = UINT64_MAX;
    return err_set(e, ERR_IO,
                   "the disk of '%s' has %s free; the run needs %s for %" PRId64
                   " checkpoint%s of %s (save.keep=%" PRId64
                   "%s, plus one while it is written). Free some space, lower save.keep, choose "
                   "another run.dir, or set save.every=0 for a single checkpoint at the end",
                   d->path, text_bytes(have, free_bytes), text_bytes(all, need), count,
                   count == 1 ? "" : "s", text_bytes(one, each), d->keep,
                   d->keeps_best ? ", the best one" : "");
}

// ---------------------------------------------------------------- saving

int checkpoint_model_identity(const struct model_shape *shape, char hash[HASH_TEXT_BYTES],
                              char **config, size_t *config_bytes, struct err *e) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (f == NULL)
        return err_set(e, ERR_MEMORY, "no memory for the model's config.json");
    int rc = model_shape_write_config(shape, f, e);
    if (rc == 0)
        fputc('\n', f);
    if (fclose(f) != 0 && rc == 0)
        rc = err_set(e, ERR_MEMORY, "no memory for the model's config.json");
    if (rc == 0)
        hash_of(text, bytes, hash);
    if (rc == 0 && config != NULL) {
        *config = text;
        *config_bytes = bytes;
        text = NULL;
    }
    free(text);
    return rc;
}

void checkpoint_describe_model(const struct model_shape *s, char out[MANIFEST_MODEL_BYTES]) {
    static const char *const families[FAMILY_COUNT] = {
#define X(name, type, arch) [name] = type,
        MODEL_FAMILY_LIST(X)
#undef X
    };
    snprintf(out, MANIFEST_MODEL_BYTES,
             "%s with vocabulary %" PRId64 ", width %" PRId64 ", %" PRId64 " layers, %" PRId64
             " heads (%" PRId64 " for keys) of %" PRId64 ", MLP %" PRId64 ", %" PRId64
             " positions%s",
             families[s->family], s->vocab, s->width, s->layers, s->heads, s->kv_heads, s->head_dim,
             s->ffn, s->max_positions, s->tied ? ", tied" : "");
}

static int write_manifest(const char *tmp, struct session *s, struct manifest *m, struct err *e) {
    char path[PATH_MAX];
    const char *base;
    if (s->plan->adapter.rank > 0) {
        TRY(adapted_base(s, &base, e));
        memcpy(m->base, base, sizeof m->base);
        m->base_name = s->plan->knobs.model;
    }
    m->tool = "haggle " HAGGLE_VERSION;
    checkpoint_describe_model(&s->plan->shape, m->model);
    TRY(manifest_set_knobs(m, &s->plan->knobs, e));
    TRY(file_join(path, sizeof path, tmp, MANIFEST_NAME, e));
    return manifest_write(m, path, e);
}

static int write_config(const char *tmp, const struct session *s, struct manifest *m,
                        struct err *e) {
    char path[PATH_MAX];
    char *text;
    size_t bytes;
    TRY(file_join(path, sizeof path, tmp, manifest_file_name(MANIFEST_CONFIG), e));
    TRY(checkpoint_model_identity(&s->plan->shape, m->identity, &text, &bytes, e));
    m->files[MANIFEST_CONFIG].bytes = bytes;
    memcpy(m->files[MANIFEST_CONFIG].hash, m->identity, HASH_TEXT_BYTES);
    int rc = file_write_atomic(path, text, bytes, e);
    free(text);
    return rc;
}

struct small_files {
    const char *dir;
    struct session *s;
    struct manifest *m;
};

static int write_small(void *arg, struct err *e) {
    const struct small_files *f = arg;
    TRY(write_config(f->dir, f->s, f->m, e));
    TRY(write_manifest(f->dir, f->s, f->m, e));
    return file_sync_dir(f->dir, e);
}

static int write_folder(const char *dir, struct session *s, const struct train_state *state,
                        const struct pause *between, struct manifest *m, uint64_t *bytes,
                        struct err *e) {
    m->state = *state;
    struct comm *c = s->engine->options.comm;
    int rc = snapshot_write(s, dir, between, m->files, e);
    if (rc == 0 && (!c || c->rank == 0))
        rc = pause_beside(between, write_small, &(struct small_files){dir, s, m}, e);
    for (int i = 0; i < MANIFEST_FILES; i++)
        *bytes += m->files[i].bytes;
    return rc;
}

static int make_dir(const char *path, struct err *e) {
    return mkdir(path, 0777) == 0
               ? 0
               : err_set(e, ERR_IO, "cannot create the directory '%s': %s", path, strerror(errno));
}

// Writes the second model. It comes before the manifest of the bulk model, which holds the hash of
// the second model's manifest.
static int write_second(const char *tmp, struct session *s, const struct train_state *state,
                        const struct pause *between, char hash[HASH_TEXT_BYTES], uint64_t *bytes,
                        struct err *e) {
    char dir[PATH_MAX], path[PATH_MAX];
    struct manifest m = {0};
    TRY(file_join(dir, sizeof dir, tmp, CHECKPOINT_SECOND, e));
    TRY(file_join(path, sizeof path, dir, MANIFEST_NAME, e));
    TRY(make_dir(dir, e));
    int rc = write_folder(dir, s, state, between, &m, bytes, e);
    manifest_free(&m);
    return rc == 0 ? manifest_hash(path, hash, e) : rc;
}

static int write_all(const char *tmp, struct session *s, const struct train_state *state,
                     const struct train_state *second, const struct pause *between, uint64_t *bytes,
                     struct err *e) {
    struct manifest m = {0};
    *bytes = 0;
    int rc = s->second ? write_second(tmp, s->second, second, between, m.second, bytes, e) : 0;
    if (rc == 0)
        rc = write_folder(tmp, s, state, between, &m, bytes, e);
    manifest_free(&m);
    return rc;
}

// Puts the finished folder `tmp` in place as `path`. Checkpoints that did not verify were set aside
// when the run began. So a folder that already has this name is either one whose publication was
// not made durable, or another process wrote it. Where the filesystem can, both folders are swapped
// in one operation, so that at any moment one of them is in place. On failure the old one is put
// back, as far as the disk allows.
struct publication {
    const struct checkpoint_dir *d;
    const char *tmp, *path;
    int64_t step;
    struct err rest; // why the replaced folder could not be removed; code 0: it was
};

static int publish(void *arg, struct err *e) {
    struct publication *p = arg;
    char old[PATH_MAX];
    if (!file_exists(p->path))
        return file_rename(p->tmp, p->path, e);
    if (renameat2(AT_FDCWD, p->tmp, AT_FDCWD, p->path, RENAME_EXCHANGE) == 0) {
        int rc = file_sync_dir(p->d->path, e);
        if (rc == 0)
            file_remove_tree(p->tmp, &p->rest);
        else
            renameat2(AT_FDCWD, p->tmp, AT_FDCWD, p->path, RENAME_EXCHANGE);
        return rc;
    }
    TRY(checkpoint_path(p->d->path, p->step, ".old.tmp", old, e));
    TRY(file_remove_tree(old, e));
    TRY(file_rename(p->path, old, e));
    int rc = file_rename(p->tmp, p->path, e);
    if (rc == 0)
        file_remove_tree(old, &p->rest);
    else if (!file_exists(p->path))
        file_rename(old, p->path, NULL);
    return rc;
}

static bool files_look_whole(const char *path, struct manifest *m) {
    char file[PATH_MAX];
    uint64_t bytes;
    bool whole = file_join(file, sizeof file, path, MANIFEST_NAME, NULL) == 0 &&
                 manifest_read(m, file, NULL) == 0;
    for (int i = 0; whole && i < MANIFEST_FILES; i++)
        whole = file_join(file, sizeof file, path, manifest_name_of(i, m->base[0] != '\0'), NULL) ==
                    0 &&
                file_size(file, &bytes, NULL) == 0 && bytes == m->files[i].bytes;
    return whole;
}

// Whether a folder has all files in their right sizes. Tensors are not read. That is enough to
// decide which checkpoints may be removed.
static bool looks_whole(const char *path) {
    struct manifest m = {0}, second = {0};
    char dir[PATH_MAX];
    bool whole = files_look_whole(path, &m);
    if (whole && m.second[0] != '\0')
        whole = file_join(dir, sizeof dir, path, CHECKPOINT_SECOND, NULL) == 0 &&
                files_look_whole(dir, &second);
    manifest_free(&m);
    manifest_free(&second);
    return whole;
}

void checkpoint_there(const struct checkpoint_dir *d, int64_t step, char path[PATH_MAX]) {
    if (checkpoint_path(d->path, step, "", path, NULL) != 0 || !looks_whole(path))
        path[0] = '\0';
}

bool checkpoint_is_there(const struct checkpoint_dir *d, int64_t step) {
    char path[PATH_MAX];
    checkpoint_there(d, step, path);
    return path[0] != '\0';
}

void checkpoint_newest_there(const struct checkpoint_dir *d, char path[PATH_MAX]) {
    struct checkpoint_list list = {0};
    bool found = false;
    checkpoint_list_open(&list, d->path, NULL); // a folder that cannot be listed counts as empty
    for (size_t i = list.count; !found && i-- > 0;)
        found = checkpoint_path(d->path, list.steps[i], "", path, NULL) == 0 && looks_whole(path);
    if (!found)
        path[0] = '\0';
    checkpoint_list_close(&list);
}

static int remove_one(const struct checkpoint_dir *d, int64_t step, struct err *e) {
    char path[PATH_MAX], tmp[PATH_MAX];
    TRY(checkpoint_path(d->path, step, "", path, e));
    TRY(checkpoint_path(d->path, step, ".tmp", tmp, e));
    TRY(file_rename(path, tmp, e));
    return file_remove_tree(tmp, e);
}

// Keeps the checkpoint just published and the newest before it that look whole, `keep` in all.
// Removes all that are older. One that does not look whole does not count, so it takes no good
// one's place. Up to the published step the order of steps is the order of writing: a run begins at
// the newest that verifies, and those above it were set aside. A checkpoint above the published
// step was put there by another process during the run. It is neither counted nor removed. The
// best one and the newest that is known to be sound stay too.
static int prune(struct checkpoint_dir *d, int64_t published, struct err *e) {
    struct checkpoint_list list;
    char path[PATH_MAX];
    int64_t whole = 1; // the published one
    TRY(checkpoint_list_open(&list, d->path, e));
    int rc = 0;
    d->spares = false;
    for (size_t i = list.count; rc == 0 && i-- > 0;) {
        const int64_t step = list.steps[i];
        if (step >= published)
            continue;
        if (whole >= d->keep) {
            if (step == d->sound && step != d->best)
                d->spares = true;
            else if (step != d->best)
                rc = remove_one(d, step, e);
            continue;
        }
        rc = checkpoint_path(d->path, step, "", path, e);
        whole += rc == 0 && looks_whole(path);
    }
    checkpoint_list_close(&list);
    return rc;
}

struct pruning {
    struct checkpoint_dir *d;
    int64_t published;
};

static int prune_beside(void *arg, struct err *e) { // removing gigabytes takes a while, too
    const struct pruning *p = arg;
    return prune(p->d, p->published, e);
}

static int check_room_for_one(const struct checkpoint_dir *d, const struct session *s,
                              struct err *e) {
    char need[TEXT_UNIT_BYTES], have[TEXT_UNIT_BYTES];
    uint64_t free_bytes, each = checkpoint_estimate_bytes(s->plan);
    TRY(file_free_bytes(d->path, &free_bytes, e));
    if (free_bytes >= each)
        return 0;
    return err_set(e, ERR_IO, "the disk of '%s' has %s free; a checkpoint takes %s", d->path,
                   text_bytes(have, free_bytes), text_bytes(need, each));
}

static int find_folder_again(struct checkpoint_dir *d, struct err *e) {
    bool again;
    TRY(rundir_lock_again(&d->lock, d->path, &again, e));
    if (again)
        checkpoint_say(&d->listener, LOG_WARN,
                       "'%s' was removed or moved during the run, with the checkpoints in it; it "
                       "was made again",
                       d->path);
    return 0;
}

static int make_folder(struct checkpoint_dir *d, const struct session *s, const char *tmp,
                       struct err *e) {
    TRY(find_folder_again(d, e));
    TRY(check_room_for_one(d, s, e));
    TRY(file_remove_tree(tmp, e));
    return make_dir(tmp, e);
}

// The new one is in place and durable. If older ones cannot be removed now, the next start removes
// them.
static void remove_older(struct checkpoint_dir *d, int64_t published, const struct pause *between) {
    struct pruning old = {d, published};
    struct err later = {0};
    if (pause_beside(between, prune_beside, &old, &later) != 0)
        checkpoint_say(&d->listener, LOG_WARN, "an older checkpoint could not be removed: %s",
                       later.text);
}

static void clean_up(struct checkpoint_dir *d, const struct publication *new,
                     const struct pause *between) {
    if (new->rest.code != 0)
        checkpoint_say(&d->listener, LOG_WARN, "a replaced checkpoint could not be removed: %s",
                       new->rest.text);
    remove_older(d, new->step, between);
}

void checkpoint_sound(struct checkpoint_dir *d, int64_t step) {
    d->sound = step;
    if (d->spares && checkpoint_leads(d))
        remove_older(d, step, NULL);
}

void checkpoint_set_diverged_aside(const struct checkpoint_dir *d, int64_t sound) {
    struct checkpoint_list list = {0};
    struct err e = {0};
    if (!d->saves || !checkpoint_leads(d))
        return;
    int rc = checkpoint_list_open(&list, d->path, &e);
    for (size_t i = 0; rc == 0 && i < list.count; i++)
        if (list.steps[i] > sound)
            rc = checkpoint_set_aside(d, list.steps[i], "diverged", &e);
    if (rc != 0)
        checkpoint_say(&d->listener, LOG_WARN,
                       "a checkpoint with diverged weights could not be renamed: %s", e.text);
    checkpoint_list_close(&list);
}

// Ranks agree after each part, so that a failure of one is the same failure for all.
int checkpoint_save(struct checkpoint_dir *d, struct session *s, const struct train_state *state,
                    const struct train_state *second, const struct pause *between,
                    struct checkpoint_saved *out, struct err *e) {
    const bool leads = checkpoint_leads(d);
    char tmp[PATH_MAX];
    struct publication new = {.d = d, .tmp = tmp, .path = out->path, .step = state->step};
    *out = (struct checkpoint_saved){0};
    TRY(checkpoint_path(d->path, state->step, "", out->path, e));
    TRY(checkpoint_path(d->path, state->step, ".tmp", tmp, e));
    int rc = comm_agree(d->comm, leads ? make_folder(d, s, tmp, e) : 0, NULL, 0, e);
    if (rc == 0)
        rc = write_all(tmp, s, state, second, between, &out->bytes, e);
    if (rc == 0 && leads)
        rc = pause_beside(between, publish, &new, e);
    rc = comm_agree(d->comm, rc, NULL, 0, e);
    if (rc != 0) {
        if (leads)
            file_remove_tree(tmp, NULL);
        out->path[0] = '\0';
        err_context(e, "the checkpoint of step %" PRId64 " was not written", state->step);
        return rc;
    }
    d->best = state->best.kept ? state->best.step : -1;
    if (leads)
        clean_up(d, &new, between);
    return 0;
}

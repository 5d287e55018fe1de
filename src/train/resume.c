// resume.c - reads checkpoints back: verifies them, compares them with the run, loads them. The
// rules are in checkpoint.h.
#include "train/checkpoint.h"
#include "train/adapted.h"
#include "train/checkpoint_dir.h"
#include "train/snapshot.h"

#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---------------------------------------------------------------- verifying

// A missing file or another kind of file is damage (ERR_FORMAT). A file that cannot be examined may
// be intact (ERR_IO).
static int check_present(const char *path, struct err *e) {
    struct stat st;
    if (stat(path, &st) != 0)
        return err_set(e, errno == ENOENT || errno == ENOTDIR ? ERR_FORMAT : ERR_IO,
                       "cannot examine '%s': %s", path, strerror(errno));
    return S_ISREG(st.st_mode) ? 0 : err_set(e, ERR_FORMAT, "'%s' is not a regular file", path);
}

static int verify_file(const char *path, const struct manifest_file *f, struct err *e) {
    struct stat st;
    char hash[HASH_TEXT_BYTES];
    int fd;
    TRY(check_present(path, e));
    do { // O_NONBLOCK: if the path is a pipe, opening it must not wait
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return err_set(e, ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    int rc = 0;
    if (fstat(fd, &st) != 0)
        rc = err_set(e, ERR_IO, "cannot examine '%s': %s", path, strerror(errno));
    else if ((uint64_t)st.st_size != f->bytes)
        rc = err_set(e, ERR_FORMAT, "'%s' has %" PRIu64 " bytes; when it was saved it had %" PRIu64,
                     path, (uint64_t)st.st_size, f->bytes);
    if (rc == 0)
        rc = file_hash(fd, path, f->bytes, hash, e);
    if (rc == 0 && strcmp(hash, f->hash) != 0)
        rc = err_set(e, ERR_FORMAT, "'%s' is damaged: its content is not what was saved", path);
    close(fd);
    return rc;
}

// hash: the expected hash of the manifest's file; NULL: not known.
static int verify_folder(const char *path, const char *hash, struct manifest *m, struct err *e) {
    char file[PATH_MAX], found[HASH_TEXT_BYTES];
    TRY(file_join(file, sizeof file, path, MANIFEST_NAME, e));
    TRY(check_present(file, e));
    if (hash != NULL) {
        TRY(manifest_hash(file, found, e));
        if (strcmp(found, hash) != 0)
            return err_set(e, ERR_FORMAT, "'%s' was not saved with the checkpoint it is in", file);
    }
    TRY(manifest_read(m, file, e));
    for (int i = 0; i < MANIFEST_FILES; i++) {
        TRY(file_join(file, sizeof file, path, manifest_name_of(i, m->base[0] != '\0'), e));
        TRY(verify_file(file, &m->files[i], e));
    }
    return 0;
}

static int verify_second(const char *path, const struct manifest *m, struct err *e) {
    char dir[PATH_MAX];
    struct manifest second = {0};
    if (m->second[0] == '\0')
        return 0;
    TRY(file_join(dir, sizeof dir, path, CHECKPOINT_SECOND, e));
    const int rc = verify_folder(dir, m->second, &second, e);
    manifest_free(&second);
    return rc == 0 ? 0 : err_context(e, "its second model");
}

int checkpoint_verify(const char *path, struct manifest *out, struct err *e) {
    struct manifest m = {0};
    int rc = verify_folder(path, NULL, &m, e);
    if (rc == 0)
        rc = verify_second(path, &m, e);
    if (out != NULL)
        *out = m;
    else
        manifest_free(&m);
    return rc;
}

// Finds the newest folder that verifies and whose manifest has the step of its name. path is ""
// when there is no folder at all. *damaged gets the newer ones that failed; the caller closes it
// with checkpoint_list_close after success.
static int find_newest(const char *dir, const struct checkpoint_listener *listener,
                       struct manifest *m, char path[PATH_MAX], struct checkpoint_list *damaged,
                       struct err *e) {
    struct checkpoint_list list;
    struct err damage = {0};
    path[0] = '\0';
    memset(m, 0, sizeof *m);
    *damaged = (struct checkpoint_list){0};
    TRY(checkpoint_list_open(&list, dir, e));
    int rc = 0;
    bool found = false;
    size_t i = list.count;
    while (rc == 0 && !found && i-- > 0) {
        rc = checkpoint_path(dir, list.steps[i], "", path, e);
        if (rc != 0)
            break;
        err_clear(&damage);
        int fault = checkpoint_verify(path, m, &damage);
        if (fault == 0 && m->state.step != list.steps[i])
            fault = err_set(&damage, ERR_FORMAT, "its manifest says step %" PRId64, m->state.step);
        if (fault == 0) {
            found = true;
        } else if (fault != ERR_FORMAT) {
            // Not damage: skipping it would throw good work away.
            rc = err_set(e, fault,
                         "the checkpoint '%s' cannot be used: %s. To continue from the one before, "
                         "move it out of the folder",
                         path, damage.text);
        } else {
            checkpoint_say(listener, LOG_ERROR, "the checkpoint '%s' is damaged: %s. %s", path,
                           damage.text, i > 0 ? "Trying the one before" : "There is none before");
            manifest_free(m);
        }
    }
    if (rc == 0 && !found && list.count > 0)
        rc = err_set(e, ERR_FORMAT, "none of the %zu checkpoints in '%s' is intact (%s)",
                     list.count, dir, damage.text);
    if (!found) {
        path[0] = '\0';
        manifest_free(m);
        checkpoint_list_close(&list);
        return rc;
    }
    list.count -= i + 1;
    memmove(list.steps, list.steps + i + 1, list.count * sizeof *list.steps);
    *damaged = list;
    return 0;
}

// Reads the manifest of a checkpoint that was verified before, by this rank or another.
static int read_found(const char *path, struct manifest *m, struct err *e) {
    char file[PATH_MAX];
    TRY(file_join(file, sizeof file, path, MANIFEST_NAME, e));
    return manifest_read(m, file, e);
}

int checkpoint_find_newest(const char *run_dir, const struct checkpoint_listener *listener,
                           char path[PATH_MAX], struct err *e) {
    struct manifest m;
    char dir[PATH_MAX];
    struct checkpoint_list damaged;
    struct checkpoint_listener silent = {0};
    path[0] = '\0';
    TRY(file_join(dir, sizeof dir, run_dir, CHECKPOINT_FOLDER, e));
    TRY(find_newest(dir, listener != NULL ? listener : &silent, &m, path, &damaged, e));
    checkpoint_list_close(&damaged);
    manifest_free(&m);
    return 0;
}

int checkpoint_find_best(const char *run_dir, const struct checkpoint_listener *listener,
                         char path[PATH_MAX], struct err *e) {
    struct manifest m = {0};
    char dir[PATH_MAX];
    TRY(checkpoint_find_newest(run_dir, listener, path, e));
    int rc = path[0] != '\0' ? read_found(path, &m, e) : 0;
    const struct best_eval best = m.state.best;
    const bool is_newest = best.step == m.state.step;
    manifest_free(&m);
    TRY(rc);
    if (best.step == 0 || !best.kept)
        return err_set(e, ERR_USAGE,
                       "'%.400s' holds no best checkpoint: 'haggle train' keeps one with "
                       "save.best=true, from the first validation on",
                       run_dir);
    if (is_newest)
        return 0;
    TRY(file_join(dir, sizeof dir, run_dir, CHECKPOINT_FOLDER, e));
    TRY(checkpoint_path(dir, best.step, "", path, e));
    rc = checkpoint_verify(path, NULL, e);
    return rc == 0 ? 0 : err_context(e, "the best checkpoint, of step %" PRId64, best.step);
}

// ---------------------------------------------------------------- comparing

// 0 (parallel.data of one rank) and a knob that is newer than the checkpoint count as 1.
static uint64_t factor(const char *text) {
    int64_t x;
    return text != NULL && text_parse_i64(text, &x, NULL) == 0 && x > 0 ? (uint64_t)x : 1;
}

// Compares the product of the factors (batch.micro x batch.accum x parallel.data): only the product
// changes the numbers.
static bool same_product(const struct manifest *m, const struct knobs *k) {
    uint64_t then = 1, now = 1;
    char value[KNOB_VALUE_BYTES];
    for (int i = 0; i < KNOB_COUNT; i++) {
        if (!(knob_info(i)->flags & KNOB_FACTOR))
            continue;
        then *= factor(m->knobs[i]);
        now *= factor(knobs_value(k, i, value));
    }
    return then == now;
}

static bool is_same(const struct manifest *m, const struct knobs *k, int id, bool same_data) {
    char value[KNOB_VALUE_BYTES];
    if (knob_info(id)->flags & KNOB_FACTOR &&
        factor(knobs_value(k, id, value)) == factor(m->knobs[id]))
        return true;
    if (m->knobs[id] == NULL && !(knob_info(id)->flags & KNOB_FACTOR))
        // The knob is newer than the checkpoint, which behaves as its default.
        return strcmp(knobs_value(k, id, value), knob_default(id, (char[KNOB_VALUE_BYTES]){0})) ==
               0;
    if (m->knobs[id] != NULL && strcmp(knobs_value(k, id, value), m->knobs[id]) == 0)
        return true;
    if (id == KNOB_data_path) // files may move: their content counts
        return same_data;
    return (knob_info(id)->flags & KNOB_FACTOR) && same_product(m, k);
}

static void compare_knobs(const struct checkpoint_listener *l, const struct manifest *m,
                          const struct knobs *k, bool same_data) {
    char value[KNOB_VALUE_BYTES];
    for (int i = 0; i < KNOB_COUNT; i++) {
        if (!(knob_info(i)->flags & KNOB_MATH) || is_same(m, k, i, same_data))
            continue;
        const char *then = m->knobs[i] != NULL ? m->knobs[i] : "(not known)";
        if (i == KNOB_steps) // training longer is the usual reason to resume: no warning
            checkpoint_say(l, LOG_INFO,
                           "steps was %s and is %s now; the learning-rate schedule ends there",
                           then, knobs_value(k, i, value));
        else
            checkpoint_say(l, LOG_WARN,
                           "%s was '%.300s' when step %" PRId64
                           " was saved and is '%.300s' now; the results will differ from a run "
                           "that had this value from the start",
                           knob_info(i)->name, then, m->state.step, knobs_value(k, i, value));
    }
}

// A checkpoint has tensors and moments for what trained, and an adapter's factor is part of what it
// means. So another choice cannot go on from it.
static int compare_chosen(const struct manifest *m, const struct knobs *k, const char *path,
                          struct err *e) {
    static const int ids[] = {KNOB_lora_rank,    KNOB_lora_alpha, KNOB_lora_rslora,
                              KNOB_lora_targets, KNOB_train_also, KNOB_train_freeze};
    char value[KNOB_VALUE_BYTES], usual[KNOB_VALUE_BYTES];
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const int id = ids[i];
        if (is_same(m, k, id, true) || (k->lora_rank == 0 && id < KNOB_train_also))
            continue;
        return err_set(e, ERR_MISMATCH,
                       "'%s' was trained with %s=%.200s but this run has %s=%.200s; set it as it "
                       "was, or choose another run.dir",
                       path, knob_info(id)->name,
                       m->knobs[id] != NULL ? m->knobs[id] : knob_default(id, usual),
                       knob_info(id)->name, knobs_value(k, id, value));
    }
    return 0;
}

// Moments are stored in the type of optim.state, so another value of it cannot read them.
static int compare_state(const struct manifest *m, const struct knobs *k, const char *path,
                         struct err *e) {
    char value[KNOB_VALUE_BYTES], usual[KNOB_VALUE_BYTES];
    const int id = KNOB_optim_state;
    if (is_same(m, k, id, true))
        return 0;
    return err_set(
        e, ERR_MISMATCH,
        "'%s' holds the optimizer's moments in %.40s but this run has optim.state=%s; set it "
        "as it was, or choose another run.dir",
        path, m->knobs[id] != NULL ? m->knobs[id] : knob_default(id, usual),
        knobs_value(k, id, value));
}

static int compare(const struct checkpoint_listener *l, const struct manifest *m, struct session *s,
                   const char *dataset, const char *path, struct err *e) {
    const struct plan *p = s->plan;
    char identity[HASH_TEXT_BYTES], model[MANIFEST_MODEL_BYTES];
    TRY(checkpoint_model_identity(&p->shape, identity, NULL, NULL, e));
    if (strcmp(identity, m->identity) != 0) {
        checkpoint_describe_model(&p->shape, model);
        return err_set(e, ERR_MISMATCH,
                       "'%s' holds another model, a %s; this run has a %s. Choose another run.dir, "
                       "or set resume=false",
                       path, m->model, model);
    }
    bool same_data = strcmp(dataset, m->state.dataset) == 0;
    if (!same_data)
        checkpoint_say(l, LOG_WARN,
                       "the data has changed since step %" PRId64
                       " was saved (fingerprint %s then, %s now); the run continues with the new "
                       "data from the same position",
                       m->state.step, m->state.dataset, dataset);
    TRY(adapted_compare(m, s, path, e));
    TRY(compare_chosen(m, &p->knobs, path, e));
    TRY(compare_state(m, &p->knobs, path, e));
    compare_knobs(l, m, &p->knobs, same_data);
    return 0;
}

// ---------------------------------------------------------------- loading

static void say_second(void *arg, enum log_level level, const char *text) {
    checkpoint_say(arg, level, "the second model: %s", text);
}

// If only the run or only the checkpoint has a second model, this warns and the run goes on.
static bool both_have_second(const struct checkpoint_dir *d, const struct session *s,
                             const struct manifest *m, const char *path) {
    if (s->second != NULL && m->second[0] == '\0')
        checkpoint_say(&d->listener, LOG_WARN,
                       "'%s' holds no second model; the one in interactive.recipe starts from its "
                       "initial weights",
                       path);
    else if (s->second == NULL && m->second[0] != '\0')
        checkpoint_say(&d->listener, LOG_WARN,
                       "'%s' holds a second model, which this run does not have "
                       "(interactive.recipe); later checkpoints will not contain it",
                       path);
    return s->second != NULL && m->second[0] != '\0';
}

static int load_second(struct checkpoint_dir *d, struct session *s, const char *path,
                       struct train_state *state, struct err *e) {
    const struct checkpoint_listener listener = {.arg = &d->listener, .say = say_second};
    struct manifest m = {0};
    char dir[PATH_MAX], file[PATH_MAX];
    TRY(file_join(dir, sizeof dir, path, CHECKPOINT_SECOND, e));
    TRY(file_join(file, sizeof file, dir, MANIFEST_NAME, e));
    int rc = manifest_read(&m, file, e);
    if (rc == 0)
        rc = compare(&listener, &m, s, state->dataset, dir, e);
    if (rc == 0)
        rc = snapshot_read(s, dir, e);
    if (rc == 0)
        *state = m.state;
    if (!loss_scale_valid(&state->scale, &s->plan->knobs)) // saved in another precision
        loss_scale_start(&state->scale, &s->plan->knobs);
    manifest_free(&m);
    return rc;
}

// What rank 0 finds: the newest checkpoint that verifies and goes with the run, and those that did
// not verify.
struct found {
    struct manifest m;
    struct checkpoint_list damaged;
};

static int find_to_load(struct checkpoint_dir *d, struct session *s, const char *dataset,
                        char path[PATH_MAX], struct found *f, struct err *e) {
    int rc = find_newest(d->path, &d->listener, &f->m, path, &f->damaged, e);
    if (rc == ERR_FORMAT && e != NULL) {
        const size_t n = strlen(e->text);
        snprintf(e->text + n, sizeof e->text - n,
                 ". To start over, set resume=false; they will be moved to another folder");
    }
    if (rc == 0 && path[0] != '\0')
        rc = compare(&d->listener, &f->m, s, dataset, path, e);
    return rc;
}

static int load(struct checkpoint_dir *d, struct session *s, const char *dataset,
                struct train_state *state, struct train_state *second, char path[PATH_MAX],
                struct found *f, struct err *e) {
    const bool leads = checkpoint_leads(d);
    const char *base;
    int rc = 0;
    if (leads && d->saves && s->plan->adapter.rank > 0) // of the weights that were just loaded
        rc = adapted_base(s, &base, e);
    if (rc == 0 && leads)
        rc = find_to_load(d, s, dataset, path, f, e);
    TRY(comm_agree(d->comm, rc, NULL, 0, e));
    TRY(comm_share(d->comm, path, PATH_MAX, e));
    if (path[0] == '\0')
        return 0;
    TRY(comm_agree(d->comm, leads ? 0 : read_found(path, &f->m, e), NULL, 0, e));
    TRY(snapshot_read(s, path, e));
    if (both_have_second(d, s, &f->m, path))
        TRY(load_second(d, s->second, path, second, e));
    *state = f->m.state;
    // This comes last, so that a refused run has changed nothing. It never happens when all are
    // damaged: the next run would find none and silently start from zero.
    for (size_t i = 0; rc == 0 && leads && d->saves && i < f->damaged.count; i++)
        rc = checkpoint_set_aside(d, f->damaged.steps[i], "damaged", e);
    return comm_agree(d->comm, rc, NULL, 0, e);
}

int checkpoint_load_newest(struct checkpoint_dir *d, struct session *s, const char *dataset,
                           struct train_state *state, struct train_state *second,
                           char path[PATH_MAX], struct err *e) {
    struct found f = {0};
    memset(path, 0, PATH_MAX);
    const int rc = load(d, s, dataset, state, second, path, &f, e);
    checkpoint_list_close(&f.damaged);
    manifest_free(&f.m);
    return rc;
}

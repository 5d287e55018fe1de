// shard_obtain.c - gets the shard of a source: computes its key, looks in the cache, makes it if
// missing.
#include "data/shard_task.h"

#include "base/clock.h"
#include "base/file.h"
#include "data/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    READ_BYTES = 1 << 20, // buffer for hashing
    LEFT_BEHIND_S = 3600  // without locks, a temporary file this old is abandoned
};

void shard_task_say(const struct shard_task *t, enum log_level level, const char *format, ...) {
    const struct shard_listener *l = &t->o->listener;
    char text[ERR_TEXT_BYTES + PATH_MAX];
    va_list args;
    if (l->say == NULL)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    l->say(l->arg, level, text);
}

static int no_memory(const struct shard_task *t, struct err *e) {
    return err_set(e, ERR_MEMORY, "%s: no memory to tokenize it", t->name);
}

// ---------------------------------------------------------------- identity

static int hash_file(struct shard_task *t, struct hash *h, struct err *e) {
    char *buffer = malloc(READ_BYTES);
    int fd = -1, rc = buffer == NULL ? no_memory(t, e) : 0;
    if (rc == 0) {
        fd = open(t->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
            rc = err_set(e, ERR_IO, "%s: %s", t->name, strerror(errno));
    }
    for (size_t got = READ_BYTES; rc == 0 && got == READ_BYTES;) {
        rc = shard_task_read(t, fd, buffer, READ_BYTES, &got, e);
        if (rc == 0)
            hash_add(h, buffer, got);
        if (rc == 0)
            rc = shard_task_tell(t, e);
    }
    if (fd >= 0)
        close(fd);
    free(buffer);
    return rc;
}

static int find_key(struct shard_task *t, char key[HASH_TEXT_BYTES], struct err *e) {
    const struct shard_options *o = t->o;
    char text[256];
    struct hash *h = hash_new();
    if (h == NULL)
        return no_memory(t, e);
    int n = snprintf(text, sizeof text, "shard %d tokenizer %s renderer %s kind %d shape %d%s\n",
                     SHARD_VERSION, tokenizer_fingerprint(o->tokenizer),
                     renderer_fingerprint(o->renderer), t->source->records,
                     t->source->records ? (int)o->shape : 0,
                     t->source->records && o->bad == DATA_BAD_SKIP ? " skip" : "");
    hash_add(h, text, (size_t)n);
    int rc = 0;
    if (t->source->path != NULL) {
        rc = hash_file(t, h, e);
    } else {
        n = snprintf(text, sizeof text, "corpus %d seed %llu documents %llu", CORPUS_VERSION,
                     (unsigned long long)t->source->corpus_seed,
                     (unsigned long long)t->source->corpus_documents);
        hash_add(h, text, (size_t)n);
    }
    if (rc == 0)
        hash_text(h, key);
    hash_free(h);
    return rc;
}

static int look_at(const char *path, struct stat *st, struct err *e) {
    if (path == NULL)
        return 0;
    if (stat(path, st) != 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    return S_ISREG(st->st_mode) ? 0 : err_set(e, ERR_FORMAT, "%s: is not a regular file", path);
}

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

// ---------------------------------------------------------------- the cache

int shard_default_cache(char *out, size_t bytes, struct err *e) {
    int rc = file_user_path(out, bytes, FILE_CACHE, "shards", e);
    if (rc != 0)
        err_context(e, "data.cache is not set");
    return rc;
}

// Removes files that a killed process left behind: <key>.shard.<process>, with or without .tmp. A
// running process has its file locked. Where there are no locks, it writes to it all the time.
static int sweep(void *arg, const char *name) {
    const struct shard_task *t = arg;
    char path[PATH_MAX];
    struct stat st;
    if (strstr(name, ".shard.") == NULL ||
        file_join(path, sizeof path, t->o->cache, name, NULL) != 0 || lstat(path, &st) != 0 ||
        !S_ISREG(st.st_mode))
        return 0;
    if (clock_wall_s() - (double)st.st_mtim.tv_sec > LEFT_BEHIND_S)
        unlink(path);
    else
        file_remove_abandoned(path);
    return 0;
}

// Finds the shard's path ("" when it can only be in memory), and opens the shard if it is there and
// valid.
static bool find_shard(struct shard_task *t, const char *key, char path[PATH_MAX],
                       struct shard *out) {
    struct err e = {0};
    char name[HASH_TEXT_BYTES + 8];
    path[0] = '\0';
    if (t->o->cache == NULL)
        return false;
    snprintf(name, sizeof name, "%s.shard", key);
    if (file_make_dirs(t->o->cache, &e) != 0 ||
        file_join(path, PATH_MAX, t->o->cache, name, &e) != 0) {
        path[0] = '\0';
        shard_task_say(t, LOG_WARN, "%s; tokenized data stays in memory and is not reused", e.text);
        return false;
    }
    file_list_dir(t->o->cache, sweep, t, NULL); // a failure to tidy up is ignored
    if (!file_exists(path))
        return false;
    if (shard_open(out, path, key, &e) == 0 && out->vocab == tokenizer_size(t->o->tokenizer)) {
        out->reused = true;
        return true;
    }
    if (out->map != NULL) { // valid, but not made here: its key is of this tokenizer
        shard_close(out);
        err_set(&e, ERR_FORMAT, "%s: has the ids of another tokenizer", path);
    }
    shard_task_say(t, LOG_INFO, "%s; it is made again", e.text);
    return false;
}

static int build(struct shard_task *t, const char *path, const char *key, struct shard *out,
                 struct err *e) {
    bool write_failed;
    if (path[0] == '\0')
        return shard_make(t, NULL, key, out, &write_failed, e);
    int rc = shard_make(t, path, key, out, &write_failed, e);
    if (rc == 0 || !write_failed)
        return rc;
    // Training can go on with a full disk or a folder that is not writable.
    shard_task_say(t, LOG_WARN, "%s; tokenized data stays in memory and is not reused", e->text);
    return shard_make(t, NULL, key, out, &write_failed, e);
}

void shard_bad_path(const char *path, char out[PATH_MAX]) {
    const char *dot = strrchr(path, '.');
    snprintf(out, PATH_MAX, "%.*s.bad.jsonl", (int)(dot - path), path);
}

static void say_bad(const struct shard_task *t, const struct shard *s) {
    char path[PATH_MAX];
    if (s->counts.bad == 0)
        return;
    if (s->path[0] != '\0')
        shard_bad_path(s->path, path);
    const bool listed = s->path[0] != '\0' && file_exists(path);
    shard_task_say(t, LOG_WARN, "%s: %llu bad line%s left out (data.bad=skip)%s%s%s", t->name,
                   (unsigned long long)s->counts.bad, s->counts.bad == 1 ? " is" : "s are",
                   listed ? "; '" : "", listed ? path : "", listed ? "' lists them" : "");
}

int shard_obtain(struct shard *out, const struct shard_source *source,
                 const struct shard_options *o, struct err *given) {
    struct err own = {0}, *e = given != NULL ? given : &own; // a warning may quote the error
    struct stat before = {0}, after = {0};
    char key[HASH_TEXT_BYTES], path[PATH_MAX];
    struct shard_task t = {.source = source,
                           .o = o,
                           .name = source->path != NULL ? source->path : "built-in corpus",
                           .begin_ns = clock_ns(),
                           .told_ns = clock_ns()};
    *out = (struct shard){.fd = -1};
    TRY(look_at(source->path, &before, e));
    t.of_bytes = source->path != NULL
                     ? (uint64_t)before.st_size
                     : source->corpus_documents * (CORPUS_MIN_BYTES + CORPUS_MAX_BYTES) / 2;
    TRY(find_key(&t, key, e));
    if (!find_shard(&t, key, path, out))
        TRY(build(&t, path, key, out, e));
    int rc = look_at(source->path, &after, e);
    if (rc == 0 && source->path != NULL && !same_file(&before, &after))
        rc = err_set(e, ERR_MISMATCH,
                     "%s: changed while it was read (%lld bytes, then %lld); data must not change "
                     "during a run",
                     source->path, (long long)before.st_size, (long long)after.st_size);
    if (rc != 0) {
        if (!out->reused && out->path[0])
            unlink(out->path); // its contents do not match its name
        shard_close(out);
        return rc;
    }
    say_bad(&t, out);
    out->seconds = 1e-9 * (double)(clock_ns() - t.begin_ns);
    return 0;
}

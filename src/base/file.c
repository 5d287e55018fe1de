// file.c - files: whole reads with a size limit, durable writes.
//
// Every system call that can be interrupted is retried on EINTR, with two exceptions. close is not
// retried, because on Linux the descriptor is closed either way. A failed fsync is not retried,
// because the kernel may have dropped the dirty pages and marked them clean: a second fsync could
// succeed although the data is lost. Files are opened with O_NONBLOCK, so that a FIFO in place of a
// file is refused and does not block.
#include "base/file.h"
#include "base/array.h"
#include "base/hash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

// Linux transfers at most 0x7ffff000 bytes per call. With this smaller step the result always fits
// ssize_t.
static const size_t IO_STEP_BYTES = (size_t)1 << 30;
enum { TREE_DEPTH_MAX = 128 };

static int fail_io(struct err *e, const char *what, const char *path) {
    int cause = errno;
    return err_set(e, cause == ENOMEM ? ERR_MEMORY : ERR_IO, "%s '%s': %s", what, path,
                   strerror(cause));
}

static int open_retry(int dir, const char *path, int flags, mode_t mode) {
    int fd;
    do {
        fd = dir == AT_FDCWD ? open(path, flags, mode) : openat(dir, path, flags, mode);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

// Opens a regular file for reading. On failure *fd is closed again.
static int open_regular(const char *path, int *fd, struct stat *st, struct err *e) {
    *fd = open_retry(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
    if (*fd < 0)
        return fail_io(e, "cannot open", path);
    int rc = 0;
    if (fstat(*fd, st) != 0)
        rc = fail_io(e, "cannot examine", path);
    else if (!S_ISREG(st->st_mode))
        rc = err_set(e, ERR_FORMAT, "'%s' is %s, not a regular file", path,
                     S_ISDIR(st->st_mode) ? "a directory" : "a device, pipe or socket");
    if (rc)
        close(*fd);
    return rc;
}

int file_read_all(const char *path, size_t max_bytes, char **out, size_t *out_bytes,
                  struct err *e) {
    int fd;
    struct stat st;
    *out = NULL;
    *out_bytes = 0;
    TRY(open_regular(path, &fd, &st, e));
    int rc = 0;
    char *buffer = NULL;
    size_t used = 0, capacity = 0;
    if (max_bytes > SIZE_MAX / 2 - 2)
        max_bytes = SIZE_MAX / 2 - 2;
    if ((uint64_t)st.st_size > max_bytes) {
        rc = err_set(e, ERR_FORMAT, "'%s' has %llu bytes; at most %zu are accepted", path,
                     (unsigned long long)st.st_size, max_bytes);
        goto done;
    }
    // The size is only a hint: files in /proc report 0, and a file may grow while it is read. The
    // loop reads up to one byte more than the limit, to notice a file that grows past it.
    capacity = (size_t)st.st_size + 2;
    for (;;) {
        if (!buffer || used + 1 >= capacity) {
            if (buffer)
                capacity = capacity * 2 > max_bytes + 2 ? max_bytes + 2 : capacity * 2;
            char *wider = realloc(buffer, capacity);
            if (!wider) {
                rc = err_set(e, ERR_MEMORY, "no memory to read '%s' (%zu bytes)", path, capacity);
                goto done;
            }
            buffer = wider;
        }
        size_t step = capacity - 1 - used;
        ssize_t n = read(fd, buffer + used, step < IO_STEP_BYTES ? step : IO_STEP_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            rc = fail_io(e, "cannot read", path);
            goto done;
        }
        if (n == 0)
            break;
        used += (size_t)n;
        if (used > max_bytes) {
            rc = err_set(e, ERR_FORMAT, "'%s' has more than the %zu bytes accepted", path,
                         max_bytes);
            goto done;
        }
    }
    buffer[used] = '\0';
    *out = buffer;
    *out_bytes = used;
    buffer = NULL;
done:
    free(buffer);
    close(fd);
    return rc;
}

// ---- durable writing ----

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)                    ? "a directory"
           : S_ISLNK(mode)                  ? "a symbolic link"
           : S_ISFIFO(mode)                 ? "a pipe"
           : S_ISSOCK(mode)                 ? "a socket"
           : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                                            : "not a regular file";
}

// If stat fails for another reason than a missing file, the later write fails and says why.
int file_check_replaceable(const char *path, struct err *e) {
    struct stat st;
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode))
        return 0;
    return err_set(e, ERR_USAGE,
                   "'%s' is %s and must not be replaced; accepted: a new name or a regular file",
                   path, kind_of(st.st_mode));
}

// Opens a regular file for writing, creates it if it does not exist, and opens nothing else.
// O_NONBLOCK: opening a pipe would wait for a reader before it could be refused.
static int open_to_write(const char *path, int flags, int *fd, struct err *e) {
    struct stat st;
    *fd = open_retry(AT_FDCWD, path,
                     flags | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0666);
    const int why = errno;
    const bool known = (*fd >= 0 ? fstat(*fd, &st) : lstat(path, &st)) == 0;
    if (*fd >= 0 && known && S_ISREG(st.st_mode))
        return 0;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    if (known && !S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "'%s' is %s; a regular file is needed to write to", path,
                       kind_of(st.st_mode));
    errno = why;
    return fail_io(e, "cannot create", path);
}

int file_open_append(const char *path, int *fd, struct err *e) {
    return open_to_write(path, O_RDWR | O_APPEND, fd, e);
}

bool file_is_open_as(const char *path, int fd) {
    struct stat open, there;
    return fd >= 0 && fstat(fd, &open) == 0 && stat(path, &there) == 0 &&
           open.st_dev == there.st_dev && open.st_ino == there.st_ino;
}

int file_writer_begin(struct file_writer *w, const char *path, struct err *e) {
    w->fd = -1;
    w->bytes = 0;
    w->hash = NULL;
    w->path[0] = w->tmp[0] = '\0';
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof w->path)
        return err_set(e, ERR_USAGE, "a path to write has %zu characters; 1 to %zu are accepted", n,
                       sizeof w->path - 1);
    TRY(file_check_replaceable(path, e));
    memcpy(w->path, path, n + 1);
    snprintf(w->tmp, sizeof w->tmp, "%s.tmp", path);
    // A temporary file left by a crash is overwritten.
    int rc = open_to_write(w->tmp, O_WRONLY | O_TRUNC, &w->fd, e);
    if (rc != 0)
        w->tmp[0] = '\0';
    return rc;
}

int file_writer_put(struct file_writer *w, const void *data, size_t bytes, struct err *e) {
    if (w->fd < 0 || !w->tmp[0])
        return err_set(e, ERR_INTERNAL, "a file that is not open for writing was written to");
    const unsigned char *p = data;
    size_t left = bytes;
    while (left > 0) {
        ssize_t n = write(w->fd, p, left < IO_STEP_BYTES ? left : IO_STEP_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_io(e, "cannot write", w->tmp);
        if (n == 0)
            return err_set(e, ERR_IO, "cannot write '%s': the device accepts no more data", w->tmp);
        p += n;
        left -= (size_t)n;
        w->bytes += (uint64_t)n;
    }
    if (w->hash && bytes)
        hash_add(w->hash, data, bytes);
    return 0;
}

int file_writer_reserve(struct file_writer *w, uint64_t bytes, struct err *e) {
    if (w->fd < 0 || !w->tmp[0])
        return err_set(e, ERR_INTERNAL, "a file that is not open for writing was reserved");
    int why = bytes > w->bytes ? posix_fallocate(w->fd, 0, (off_t)bytes) : 0;
    if (why == EOPNOTSUPP || why == EINVAL) // this filesystem gives room as it is written
        why = ftruncate(w->fd, (off_t)bytes) == 0 ? 0 : errno;
    if (why == 0 && fsync(w->fd) != 0)
        why = errno;
    errno = why;
    if (why != 0)
        return fail_io(e, "cannot take room for", w->tmp);
    w->bytes = bytes;
    return 0;
}

enum { HASH_STEP_BYTES = 1 << 20 }; // stays in the second-level cache between read and hash

int file_hash(int fd, const char *path, uint64_t bytes, char out[HASH_TEXT_BYTES], struct err *e) {
    char *buffer = malloc(HASH_STEP_BYTES);
    struct hash *h = hash_new();
    int rc = 0;
    if (!buffer || !h)
        rc = err_set(e, ERR_MEMORY, "no memory to read '%s'", path);
    for (uint64_t at = 0; rc == 0 && at < bytes;) {
        const uint64_t left = bytes - at;
        const ssize_t n =
            pread(fd, buffer, left < HASH_STEP_BYTES ? (size_t)left : HASH_STEP_BYTES, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            rc = err_set(e, ERR_IO, "cannot read '%s' at byte %llu: %s", path,
                         (unsigned long long)at, strerror(errno));
            break;
        }
        if (n == 0) { // it became shorter after its size was asked for
            rc = err_set(e, ERR_FORMAT, "'%s' ends at byte %llu", path, (unsigned long long)at);
            break;
        }
        hash_add(h, buffer, (size_t)n);
        at += (uint64_t)n;
    }
    if (rc == 0)
        hash_text(h, out);
    hash_free(h);
    free(buffer);
    return rc;
}

// fsync of an open directory. Filesystems that do not support it fail with EINVAL or ENOTSUP. That
// is no error, because there is nothing to sync on them.
static int sync_dir_fd(int fd, const char *path, struct err *e) {
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        return fail_io(e, "cannot sync the directory", path);
    return 0;
}

int file_sync_dir(const char *path, struct err *e) {
    int fd = open_retry(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return fail_io(e, "cannot open the directory", path);
    int rc = sync_dir_fd(fd, path, e);
    close(fd);
    return rc;
}

// The directory that holds a path's last component: "a/b" -> "a", "b" -> ".", "/b" -> "/".
static int parent_of(const char *path, char out[PATH_MAX], struct err *e) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n >= PATH_MAX)
        return err_set(e, ERR_USAGE, "a path has more than %d characters", PATH_MAX - 1);
    if (n == 0) {
        out[0] = '.';
        n = 1;
    } else {
        memcpy(out, path, n);
    }
    out[n] = '\0';
    return 0;
}

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool file_same_entry(const char *a, const char *b) {
    char parent[2][PATH_MAX];
    if (strcmp(a, b) == 0)
        return true;
    return strcmp(last_name(a), last_name(b)) == 0 && parent_of(a, parent[0], NULL) == 0 &&
           parent_of(b, parent[1], NULL) == 0 && file_same(parent[0], parent[1]);
}

bool file_same(const char *a, const char *b) {
    struct stat at[2];
    return stat(a, &at[0]) == 0 && stat(b, &at[1]) == 0 && at[0].st_dev == at[1].st_dev &&
           at[0].st_ino == at[1].st_ino;
}

static int sync_parent(const char *path, struct err *e) {
    char parent[PATH_MAX];
    TRY(parent_of(path, parent, e));
    return file_sync_dir(parent, e);
}

int file_writer_end(struct file_writer *w, struct err *e) {
    if (w->fd < 0 || !w->tmp[0])
        return err_set(e, ERR_INTERNAL, "a file that is not open for writing was ended");
    if (fsync(w->fd) != 0)
        return fail_io(e, "cannot sync", w->tmp);
    int closed = close(w->fd);
    w->fd = -1;
    // Network filesystems may report a full disk only here.
    if (closed != 0 && errno != EINTR)
        return fail_io(e, "cannot close", w->tmp);
    if (rename(w->tmp, w->path) != 0)
        return fail_io(e, "cannot rename the temporary file to", w->path);
    w->tmp[0] = '\0';
    return sync_parent(w->path, e);
}

void file_writer_abort(struct file_writer *w) {
    // tmp is empty in a zeroed struct, after end, and after a failed begin. The writer then owns no
    // descriptor.
    if (!w->tmp[0])
        return;
    if (w->fd >= 0)
        close(w->fd);
    unlink(w->tmp);
    w->fd = -1;
    w->tmp[0] = '\0';
}

int file_write_atomic(const char *path, const void *data, size_t bytes, struct err *e) {
    struct file_writer w;
    int rc = file_writer_begin(&w, path, e);
    if (rc == 0)
        rc = file_writer_put(&w, data, bytes, e);
    if (rc == 0)
        rc = file_writer_end(&w, e);
    if (rc)
        file_writer_abort(&w);
    return rc;
}

// ---- directories ----

int file_make_dirs(const char *path, struct err *e) {
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part)
        return err_set(e, ERR_USAGE, "a directory name has %zu characters; 1 to %zu are accepted",
                       n, sizeof part - 1);
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != '\0')
            continue;
        char stop = part[i];
        part[i] = '\0';
        if (part[i - 1] != '/') {
            if (mkdir(part, 0777) == 0)
                // Files below are durable only if the directories above them are.
                TRY(sync_parent(part, e));
            else if (errno != EEXIST) {
                int why = errno; // file_is_dir overwrites it
                if (!file_is_dir(part)) {
                    errno = why;
                    return fail_io(e, "cannot create the directory", part);
                }
            }
        }
        part[i] = stop;
    }
    if (!file_is_dir(path))
        return err_set(e, ERR_IO, "cannot create the directory '%s': a file has that name", path);
    return 0;
}

int file_make_parent(const char *path, struct err *e) {
    char folder[PATH_MAX];
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder)
        return err_set(e, ERR_USAGE, "the path '%.80s...' is too long", path);
    char *slash = strrchr(folder, '/');
    if (!slash || slash == folder)
        return 0;
    *slash = '\0';
    return file_make_dirs(folder, e);
}

static const char *temp_base(void) {
    const char *base = getenv("TMPDIR");
    return base && *base ? base : "/tmp";
}

int file_make_temp_dir(char *out, size_t out_bytes, const char *name, struct err *e) {
    const char *base = temp_base();
    const int n = snprintf(out, out_bytes, "%s/haggle-%s-XXXXXX", base, name);
    const bool fits = n > 0 && (size_t)n < out_bytes;
    if (fits && mkdtemp(out))
        return 0;
    out[0] = '\0';
    if (fits)
        return fail_io(e, "cannot create a directory in", base);
    return err_set(e, ERR_USAGE, "the path '%.80s...' (TMPDIR) is too long", base);
}

bool file_lock(int fd) {
    int rc;
    do {
        rc = flock(fd, LOCK_EX | LOCK_NB);
    } while (rc != 0 && errno == EINTR);
    return rc == 0;
}

void file_remove_abandoned(const char *path) {
    struct stat st;
    int fd =
        open_retry(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
        (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) && file_lock(fd))
        (void)file_remove_tree(path, NULL);
    close(fd);
}

struct abandoned {
    const char *base, *prefix;
};

static int remove_abandoned(void *arg, const char *name) {
    const struct abandoned *a = arg;
    char path[PATH_MAX];
    if (strncmp(name, a->prefix, strlen(a->prefix)) == 0 &&
        file_join(path, sizeof path, a->base, name, NULL) == 0)
        file_remove_abandoned(path);
    return 0;
}

int file_make_locked_dir(char *out, size_t out_bytes, const char *name, int *lock, struct err *e) {
    char prefix[64];
    struct abandoned a = {.base = temp_base(), .prefix = prefix};
    snprintf(prefix, sizeof prefix, "haggle-%s-", name);
    (void)file_list_dir(a.base, remove_abandoned, &a, NULL); // failing to tidy up is no failure
    *lock = -1;
    // Another process may take the new folder for an abandoned one before it is locked.
    for (int i = 0; i < 10; i++) {
        TRY(file_make_temp_dir(out, out_bytes, name, e));
        *lock = open_retry(AT_FDCWD, out, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
        if (*lock >= 0 && (file_lock(*lock) || errno != EWOULDBLOCK) && file_is_open_as(out, *lock))
            return 0;
        if (*lock >= 0)
            close(*lock);
        *lock = -1;
    }
    return err_set(e, ERR_IO, "a directory that was made in '%s' is removed at once by others",
                   a.base);
}

int file_user_path(char *out, size_t out_bytes, enum file_place place, const char *name,
                   struct err *e) {
    const char *variable = place == FILE_CACHE ? "XDG_CACHE_HOME" : "XDG_DATA_HOME";
    const char *chosen = getenv(variable), *home = getenv("HOME");
    int n;
    if (chosen && chosen[0] == '/') // the XDG specification says to ignore relative paths
        n = snprintf(out, out_bytes, "%s/haggle/%s", chosen, name);
    else if (home && home[0] == '/')
        n = snprintf(out, out_bytes, "%s/%s/haggle/%s", home,
                     place == FILE_CACHE ? ".cache" : ".local/share", name);
    else
        return err_set(e, ERR_UNSUPPORTED, "no folder for haggle/%s: set %s or HOME", name,
                       variable);
    if (n < 0 || (size_t)n >= out_bytes)
        return err_set(e, ERR_UNSUPPORTED, "the path of haggle/%s is longer than %zu bytes", name,
                       out_bytes - 1);
    return 0;
}

int file_rename(const char *from, const char *to, struct err *e) {
    if (rename(from, to) != 0) {
        int cause = errno;
        return err_set(e, ERR_IO, "cannot rename '%s' to '%s': %s", from, to, strerror(cause));
    }
    return sync_parent(to, e);
}

// The next name in a directory, except "." and "..". NULL at the end, and on an error, which sets
// *rc.
static const char *next_name(DIR *d, const char *path, int *rc, struct err *e) {
    struct dirent *entry;
    do {
        errno = 0;
        entry = readdir(d);
    } while (entry && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    if (!entry && errno)
        *rc = fail_io(e, "cannot list the directory", path);
    return entry ? entry->d_name : NULL;
}

static int remove_entry(int dir, const char *name, int depth, struct err *e);

// Empties the directory `fd` and closes it. Repeats until a scan removes nothing, because some
// filesystems skip entries when others are removed during the scan.
static int empty_dir(int fd, const char *name, int depth, struct err *e) {
    DIR *d = fdopendir(fd);
    if (!d) {
        int rc = fail_io(e, "cannot list the directory", name);
        close(fd);
        return rc;
    }
    int rc = 0;
    for (bool again = true; again && rc == 0;) {
        again = false;
        for (const char *entry; rc == 0 && (entry = next_name(d, name, &rc, e)); again = true)
            rc = remove_entry(dirfd(d), entry, depth, e);
        rewinddir(d);
    }
    closedir(d);
    return rc;
}

static int remove_entry(int dir, const char *name, int depth, struct err *e) {
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
        return 0;
    // EISDIR (Linux) and EPERM (POSIX) mean a directory. Any other error is final.
    if (errno != EISDIR && errno != EPERM)
        return fail_io(e, "cannot remove", name);
    if (depth == 0)
        return err_set(e, ERR_UNSUPPORTED, "cannot remove '%s': nested deeper than %d directories",
                       name, TREE_DEPTH_MAX);
    int fd = open_retry(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd < 0)
        return errno == ENOENT ? 0 : fail_io(e, "cannot open the directory", name);
    TRY(empty_dir(fd, name, depth - 1, e));
    if (unlinkat(dir, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        return fail_io(e, "cannot remove the directory", name);
    return 0;
}

int file_remove_tree(const char *path, struct err *e) {
    char name[PATH_MAX];
    size_t n = strlen(path);
    // A trailing slash is removed first, because "link/" would follow the link.
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n == 0 || n >= sizeof name)
        return err_set(e, ERR_USAGE, "a path to remove has %zu characters; 1 to %zu are accepted",
                       n, sizeof name - 1);
    memcpy(name, path, n);
    name[n] = '\0';
    // The last component must name the tree. "x/.." is the folder *around* x, which holds other
    // files too.
    const char *last = last_name(name);
    if (!*last || strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
        return err_set(e, ERR_USAGE, "cannot remove '%s': name the directory itself", path);
    int rc = remove_entry(AT_FDCWD, name, TREE_DEPTH_MAX, e);
    if (rc)
        err_context(e, "removing '%s'", name);
    return rc;
}

bool file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

int file_refuse_dead_link(const char *path, struct err *e) {
    char target[PATH_MAX];
    const ssize_t n = file_exists(path) ? -1 : readlink(path, target, sizeof target - 1);
    if (n < 0)
        return 0;
    target[n] = '\0';
    return err_set(e, ERR_IO, "'%s' is a link to '%s', which does not exist", path, target);
}

bool file_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int file_size(const char *path, uint64_t *out, struct err *e) {
    struct stat st;
    if (stat(path, &st) != 0)
        return fail_io(e, "cannot examine", path);
    *out = (uint64_t)st.st_size;
    return 0;
}

int file_free_bytes(const char *dir, uint64_t *out, struct err *e) {
    struct statvfs fs;
    int rc;
    do {
        rc = statvfs(dir, &fs);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0)
        return fail_io(e, "cannot examine the filesystem of", dir);
    *out = (uint64_t)fs.f_bavail * (uint64_t)fs.f_frsize;
    return 0;
}

int file_join(char *out, size_t out_bytes, const char *dir, const char *name, struct err *e) {
    size_t n = strlen(dir);
    const char *slash = n > 0 && dir[n - 1] != '/' ? "/" : "";
    int want = snprintf(out, out_bytes, "%s%s%s", dir, slash, name);
    if (want < 0 || (size_t)want >= out_bytes) {
        if (out_bytes)
            out[0] = '\0';
        return err_set(e, ERR_USAGE, "the path '%s' + '%s' is longer than %zu characters", dir,
                       name, out_bytes ? out_bytes - 1 : 0);
    }
    return 0;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int file_list_dir(const char *path, int (*fn)(void *arg, const char *name), void *arg,
                  struct err *e) {
    DIR *d = opendir(path);
    if (!d)
        return fail_io(e, "cannot list the directory", path);
    char **names = NULL;
    size_t count = 0, capacity = 0;
    int rc = 0;
    for (const char *name; rc == 0 && (name = next_name(d, path, &rc, e));) {
        if (array_room(&names, count, 1, &capacity, sizeof *names, 64) &&
            (names[count] = strdup(name)))
            count++;
        else
            rc = err_set(e, ERR_MEMORY, "no memory to list '%s'", path);
    }
    closedir(d);
    if (rc == 0 && count)
        qsort(names, count, sizeof *names, compare_names);
    for (size_t i = 0; i < count; i++) {
        if (rc == 0)
            rc = fn(arg, names[i]);
        free(names[i]);
    }
    free(names);
    return rc;
}

// listen.c - see listen.h.
#include "serve/listen.h"

#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 16 };

static int set_address(struct sockaddr_un *a, const char *path, struct err *e) {
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a->sun_path)
        return err_set(
            e, ERR_USAGE,
            "interactive.socket: '%.200s' has %zu bytes; accepted: a path of at most %zu", path,
            strlen(path), sizeof a->sun_path - 1);
    strcpy(a->sun_path, path);
    return 0;
}

// *stale: no process listens on the socket; a killed process left it behind.
static int look_at(const struct sockaddr_un *a, bool *stale, struct err *e) {
    const char *path = a->sun_path;
    struct stat st;
    *stale = false;
    if (lstat(path, &st) != 0)
        return errno == ENOENT
                   ? 0
                   : err_set(e, ERR_IO, "interactive.socket: '%s': %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, ERR_USAGE,
                       "interactive.socket: '%s' exists and is not a socket; give another path",
                       path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_set(e, ERR_IO, "interactive.socket: cannot create a socket: %s",
                       strerror(errno));
    const int rc = connect(fd, (const struct sockaddr *)a, sizeof *a), why = rc == 0 ? 0 : errno;
    close(fd);
    if (why != ECONNREFUSED && why != ENOENT) // EAGAIN: a process listens, and its backlog is full
        return err_set(e, ERR_USAGE,
                       "interactive.socket: '%s' is in use%s%s; give another path, or stop the "
                       "process that listens there",
                       path, why == 0 || why == EAGAIN ? "" : ": ",
                       why == 0 || why == EAGAIN ? "" : strerror(why));
    *stale = why == ECONNREFUSED;
    return 0;
}

static int check_folder(const char *path, const char *to_be_made, struct err *e) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const int n = slash == NULL ? 1 : slash == path ? 1 : (int)(slash - path);
    snprintf(folder, sizeof folder, "%.*s", n, slash == NULL ? "." : path);
    if (access(folder, W_OK | X_OK) == 0)
        return 0;
    const int why = errno;
    char made[PATH_MAX];
    snprintf(made, sizeof made, "%s", to_be_made);
    for (size_t end = strlen(made); end > 1 && made[end - 1] == '/'; end--)
        made[end - 1] = '\0';
    if (why == ENOENT && made[0] != '\0' && file_same_entry(folder, made))
        return 0;
    return err_set(e, ERR_IO, "interactive.socket: cannot create a socket in '%s': %s", folder,
                   strerror(why));
}

int listen_check(const char *path, const char *to_be_made, struct err *e) {
    struct sockaddr_un a;
    bool stale;
    TRY(set_address(&a, path, e));
    TRY(check_folder(path, to_be_made, e));
    return look_at(&a, &stale, e);
}

static int remove_stale(const struct sockaddr_un *a, struct err *e) {
    bool stale;
    TRY(look_at(a, &stale, e));
    if (stale && unlink(a->sun_path) != 0 && errno != ENOENT)
        return err_set(e, ERR_IO,
                       "interactive.socket: '%s' is a stale socket that cannot be removed: %s",
                       a->sun_path, strerror(errno));
    return 0;
}

int listen_open(struct listener *l, const char *path, struct err *e) {
    struct sockaddr_un a;
    struct stat st;
    *l = (struct listener){.fd = -1};
    TRY(set_address(&a, path, e));
    TRY(remove_stale(&a, e));
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    // On Linux the file gets the mode of the socket, so that other users can never connect.
    if (l->fd < 0 || fchmod(l->fd, S_IRUSR | S_IWUSR) != 0 ||
        bind(l->fd, (const struct sockaddr *)&a, sizeof a) != 0)
        return err_set(e, ERR_IO, "interactive.socket: '%s': %s", path, strerror(errno));
    snprintf(l->path, sizeof l->path, "%s", path);
    if (chmod(path, S_IRUSR | S_IWUSR) != 0 || listen(l->fd, BACKLOG) != 0 || stat(path, &st) != 0)
        return err_set(e, ERR_IO, "interactive.socket: '%s': %s", path, strerror(errno));
    l->device = st.st_dev;
    l->inode = st.st_ino;
    return 0;
}

void listen_close(struct listener *l) {
    struct stat st;
    if (l->path[0] != '\0' && lstat(l->path, &st) == 0 && S_ISSOCK(st.st_mode) &&
        (l->inode == 0 || (st.st_dev == l->device && st.st_ino == l->inode)))
        unlink(l->path);
    if (l->fd >= 0)
        close(l->fd);
    *l = (struct listener){.fd = -1};
}

int listen_accept(struct listener *l) {
    int fd;
    if (l->fd < 0)
        return -1;
    do
        fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    return fd;
}

// rundir.c - see rundir.h.
#include "train/rundir.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int rundir_lock(struct rundir_lock *l, const char *run_dir, struct err *e) {
    l->fd = -1;
    TRY(file_make_dirs(run_dir, e));
    do {
        l->fd = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } while (l->fd < 0 && errno == EINTR);
    if (l->fd < 0)
        return err_set(e, ERR_IO, "cannot open the directory '%s': %s", run_dir, strerror(errno));
    // Filesystems without locks fail with various codes. Only EWOULDBLOCK means that another
    // process has the lock.
    if (file_lock(l->fd) || errno != EWOULDBLOCK)
        return 0;
    rundir_unlock(l);
    return err_set(e, ERR_USAGE,
                   "another process is training in '%s'; wait for it, or choose another run.dir",
                   run_dir);
}

int rundir_lock_again(struct rundir_lock *l, const char *run_dir, bool *again, struct err *e) {
    *again = !file_is_open_as(run_dir, l->fd);
    if (!*again)
        return 0;
    rundir_unlock(l);
    return rundir_lock(l, run_dir, e);
}

void rundir_unlock(struct rundir_lock *l) {
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}

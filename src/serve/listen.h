// listen.h - a Unix socket of a run: made, kept to its user, and removed again.
#ifndef HAGGLE_SERVE_LISTEN_H
#define HAGGLE_SERVE_LISTEN_H

#include "base/err.h"

#include <limits.h>
#include <sys/types.h>

struct listener {
    int fd; // -1: none
    char path[PATH_MAX];
    dev_t device; // of the file, so that only our own is removed
    ino_t inode;
};

// ERR_USAGE for a path that is too long, that is something else, or where somebody listens; ERR_IO for a folder that
// is not there or cannot be written, unless it is the one to be made ("": none). Changes nothing.
int listen_check(const char *path, const char *to_be_made, struct err *e);
int listen_open(struct listener *l, const char *path, struct err *e);
void listen_close(struct listener *l); // also after a failed open
int listen_accept(struct listener *l); // a descriptor; -1: nobody is there (any more)

#endif

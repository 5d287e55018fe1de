// listen.h - the Unix socket of a run: created for its user only, and removed again.
#ifndef HAGGLE_SERVE_LISTEN_H
#define HAGGLE_SERVE_LISTEN_H

#include "base/err.h"

#include <limits.h>
#include <sys/types.h>

struct listener {
    int fd; // -1: none
    char path[PATH_MAX];
    dev_t device; // of the file, so that only the socket made here is removed
    ino_t inode;
};

// ERR_USAGE for a path that is too long, that is not a socket, or where another process listens.
// ERR_IO for a folder that does not exist or is not writable, unless it is to_be_made, a folder
// that will be created ("": none). Changes nothing.
int listen_check(const char *path, const char *to_be_made, struct err *e);
int listen_open(struct listener *l, const char *path, struct err *e);
void listen_close(struct listener *l); // also after a failed open
int listen_accept(struct listener *l); // returns a descriptor; -1: no client is waiting

#endif

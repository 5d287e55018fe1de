// child.h - a process forked for one piece of work: how it begins, and how its owner waits for it.
//
// Place: work that must not harm the owning process (trials, workers, opening a device) runs in a
// child.
#ifndef HAGGLE_BASE_CHILD_H
#define HAGGLE_BASE_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// The child must call this first. `owner` is what getpid returned before the fork. Afterwards the
// child dies when the owner dies, ignores Ctrl-C (the owner receives it too and decides), and has
// the default handlers for SIGTERM, SIGHUP and SIGPIPE.
void child_begin(pid_t owner);

// Forks with an open pair of connected descriptors: a pipe, or sockets. In the child it calls
// child_begin, closes ends[0] and returns 0. In the owner it closes ends[1] and returns the child's
// id. Returns -1 if there is no child; then errno says why, and both ends are closed.
pid_t child_fork(const int ends[2]);

// Reads what a child sends, until there are `bytes` bytes or the child closes its end. Gives up
// when *stop is not 0 (stop may be NULL), or when the child sends nothing and the time is after
// until_ns. Returns the number of bytes read.
size_t child_receive(int fd, void *out, size_t bytes, const volatile sig_atomic_t *stop,
                     uint64_t until_ns);

// Sends bytes to the owner. False: it has gone.
bool child_send(int fd, const void *data, size_t bytes);

// Waits for the child and returns its status as waitpid gives it. Returns 0 when the kernel kept no
// status: the program that started this one may have ignored SIGCHLD, and that is inherited.
int child_wait(pid_t child);

#endif

// child.h - a process forked for one piece of work: how it begins, and how its owner waits for its end.
//
// Place: whatever must not harm its owner (trials, workers, opening a device) runs in one.
#ifndef HAGGLE_BASE_CHILD_H
#define HAGGLE_BASE_CHILD_H

#include <sys/types.h>

// In the child, first of all; owner is what getpid said before the fork. The process dies with its owner,
// leaves Ctrl-C to it (which hears it too), and forgets its handlers.
void child_begin(pid_t owner);

// The status of its end, as of waitpid. 0 where the kernel did not keep one: whoever started this program
// may have had SIGCHLD ignored, and that is inherited.
int child_wait(pid_t child);

#endif

// pause.h - lets the thread that trains answer requests while it writes a checkpoint to a disk.
//
// Place: the trainer passes a pause to the code that saves (checkpoint.h, snapshot.h). That code
// calls it between two pieces of its work, and while it only waits for the disk.
#ifndef HAGGLE_TRAIN_PAUSE_H
#define HAGGLE_TRAIN_PAUSE_H

#include "base/err.h"

// `let` may do anything that does not change the tensors being saved. It returns no error: its
// owner must remember a failure, and the files are complete all the same.
struct pause {
    void (*let)(void *arg); // NULL: there is nothing to do in between
    void *arg;
};
void pause_let(const struct pause *p); // NULL is accepted

// Runs fn in a new thread and calls `let` every millisecond until fn is done. Without `let`, or if
// no thread can be started, fn runs in this thread.
int pause_beside(const struct pause *p, int (*fn)(void *arg, struct err *e), void *arg,
                 struct err *e);

#endif

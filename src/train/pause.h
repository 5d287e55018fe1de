// pause.h - somebody who waits for the thread that trains is let in while it writes to a disk.
//
// Place: the trainer gives one to what saves (checkpoint.h, snapshot.h), which calls it between two pieces
// of its work and while the disk is at work alone.
#ifndef HAGGLE_TRAIN_PAUSE_H
#define HAGGLE_TRAIN_PAUSE_H

#include "base/err.h"

// It may run whatever leaves the tensors that are saved as they are. It cannot fail: what fails in it is the
// caller's to remember, and the files are whole all the same.
struct pause {
    void (*let)(void *arg); // NULL: nobody waits
    void *arg;
};
void pause_let(const struct pause *p); // NULL is accepted

// Runs fn in a thread of its own and lets others in every millisecond until it is done. Where nobody waits, or
// no thread can be had, fn runs here.
int pause_beside(const struct pause *p, int (*fn)(void *arg, struct err *e), void *arg,
                 struct err *e);

#endif

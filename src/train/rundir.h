// rundir.h - a lock that allows one run at a time in a folder, whether the run saves checkpoints or
// only writes its log.
//
// Place: trainer.c locks run.dir before anything is written there. checkpoint.c locks the folder of
// checkpoints in the same way, for callers that open it without a trainer.
//
// The lock is on the folder itself, so no lock file is left behind. It ends with the process,
// however that ends. It also excludes a second lock of the same folder in the same process.
#ifndef HAGGLE_TRAIN_RUNDIR_H
#define HAGGLE_TRAIN_RUNDIR_H

#include "base/err.h"

#include <stdbool.h>

struct rundir_lock {
    int fd; // -1: not locked
};

// Creates the folder if it does not exist. ERR_USAGE when another process has locked it. On failure
// nothing is locked.
int rundir_lock(struct rundir_lock *l, const char *run_dir, struct err *e);
// Does nothing while the path names the locked folder. If that folder was removed or moved, gives
// up its lock, then creates and locks the path again and sets *again.
int rundir_lock_again(struct rundir_lock *l, const char *run_dir, bool *again, struct err *e);
void rundir_unlock(struct rundir_lock *l); // does nothing if it is not locked

#endif

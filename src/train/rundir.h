// rundir.h - one run at a time in a folder, whether it saves checkpoints or only writes its log.
//
// Place: trainer.c locks run.dir before anything is written there; checkpoint.c locks the folder of
// checkpoints in the same way, for those who open it without a trainer.
//
// The lock is on the folder itself: nothing is left behind, and it ends with the process, however
// that ends. It holds between two openings of one folder, also within a process.
#ifndef HAGGLE_TRAIN_RUNDIR_H
#define HAGGLE_TRAIN_RUNDIR_H

#include "base/err.h"

struct rundir_lock {
    int fd; // -1: not locked
};

// Creates the folder when it is not there. ERR_USAGE when another process has it. On failure
// nothing is held.
int rundir_lock(struct rundir_lock *l, const char *run_dir, struct err *e);
void rundir_unlock(struct rundir_lock *l); // one that is not locked is accepted

#endif

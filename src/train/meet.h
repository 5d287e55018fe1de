// meet.h - what ranks tell each other between steps, so that all of them do the same.
//
// Place: the trainer of every rank meets the others once per step, when it has its batch. What one
// rank alone sees (a stop request, the end of the time, data that cannot be read) is then known to
// all before any of them computes. One rank alone meets nobody and hears itself.
//
// Nothing is allocated by a meeting.
#ifndef HAGGLE_TRAIN_MEET_H
#define HAGGLE_TRAIN_MEET_H

#include "comm/comm.h"
#include "measure/trace.h"

enum meet_flag {
    MEET_STOP = 1 << 0, // asked to stop
    MEET_TIME = 1 << 1, // the run's time is over
    MEET_LATE = 1 << 2, // it was over while the data was waited for
    MEET_SAVE = 1 << 3, // a checkpoint is due by time
};

struct rank_step { // one rank's last step
    uint64_t step_ns;
    uint64_t waits_ns; // of these: for data and for other ranks
};

struct rank_batch { // the trained tokens of one rank's next step
    int64_t first;  // in its first micro-batch
    int64_t all;
};

struct meet_note {
    int32_t rc;
    uint32_t flags;
    struct rank_step last;
    struct rank_batch next;
};

struct meeting {
    struct comm *comm; // NULL: one rank
    int world, rank;
    int everyone; // the group of all ranks
    bool lost;    // the ranks cannot reach each other any more
    struct meet_note own;
    struct meet_note *all; // by rank
};

int meet_open(struct meeting *m, struct comm *c, struct err *e);
void meet_close(struct meeting *m);
// All ranks tell what they have to tell. *flags becomes what any rank has said. If a rank gave a
// code, every rank gets the same error, which names the rank (comm_agree).
int meet(struct meeting *m, int rc, unsigned *flags, const struct rank_step *last,
         const struct rank_batch *next, struct err *e);
// The same error for all if one rank gave a code. For the steps before and after training.
int meet_agree(struct meeting *m, int rc, struct err *e);
// What rank 0 says.
int meet_decide(struct meeting *m, bool *answer, struct err *e);

#endif

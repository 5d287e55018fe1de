// mpi_rank.h - one rank that is a process of an MPI job: what the files of the plug-in share.
//
// Only point-to-point messages of MPI are used, because sums must have one order (comm.h). All of
// them go over one communicator; tags tell collectives from messages. A group is a list of ranks.
//
// One lock guards every call of MPI, so that the library needs no locks of its own. No call blocks:
// whoever waits tests, and sleeps between two tests.
#ifndef HAGGLE_COMM_MPI_RANK_H
#define HAGGLE_COMM_MPI_RANK_H

#include "comm/plugin.h"

#include <mpi.h>
#include <pthread.h>
#include <sys/types.h>

enum {
    TAG_PARTS, // a member's terms of another member's part
    TAG_SUMS,  // a part that is summed, or that is gathered
    TAG_CHANNEL,
    // Four requests per member and chunk under way: terms in and out, sums in and out.
    KINDS = 4,
    UNDER_WAY = 2,
};

struct group {
    int n, me;
    int *ranks;
};

struct sending { // a piece of a message
    uint64_t ticket;
    int to;
    MPI_Request request;
};

struct mpi {
    const struct comm_plugin_host *host;
    MPI_Comm comm;
    int rank, world;
    uint64_t timeout_ns;
    bool initialized; // by this plug-in, which then finalizes
    bool ended;       // finalized, or not its business
    pid_t process;    // that joined
    struct group groups[COMM_GROUPS_MOST];
    int n_groups;
    char *scratch; // terms of other members, or their small vectors
    size_t scratch_bytes;
    MPI_Request *requests; // KINDS x UNDER_WAY per member
    int *missing;          // by rank
    pthread_mutex_t lock;
    // Under the lock:
    struct err failed;       // the first failure; code 0: none
    struct sending *sending; // in the order of sending
    int n_sending, room;
    uint64_t tickets;
    // The thread that moves messages on while nobody waits (mpi_message.c).
    pthread_t pusher;
    pthread_cond_t work;
    bool pushes, stop;
};

// ---------------------------------------------------------------- mpi_wait.c

// The first failure stays, and is what every later call returns.
int fail(struct mpi *m, int code, const char *text, struct err *e);
int failed_before(struct mpi *m, struct err *e);     // 0, or the first failure
int check_mpi(struct mpi *m, int rc, struct err *e); // turns a code of MPI into an error

struct wait {
    uint64_t begin_ns;
    int turns;
};
// Between two tests: looks whether the job is lost, then yields or sleeps. *late: the time is over.
int wait_turn(struct mpi *m, struct wait *w, bool *late, struct err *e);
// Waits for n requests; that at i is of member i % g->n.
int wait_all(struct mpi *m, const struct group *g, MPI_Request *r, int n, struct err *e);
// Says that these ranks are missing.
int fail_late(struct mpi *m, const int *missing, int n, const struct wait *w, struct err *e);

// ---------------------------------------------------------------- the calls of struct comm

int mpi_group(struct comm *c, const int *ranks, int n, int *out, struct err *e);
int mpi_all_reduce(struct comm *c, int group, void *x, int64_t n, enum dtype t, struct err *e);
int mpi_reduce_scatter(struct comm *c, int group, const void *full, void *part, int64_t n,
                       enum dtype t, bool add, struct err *e);
int mpi_all_gather(struct comm *c, int group, const void *part, void *full, int64_t n, enum dtype t,
                   struct err *e);
int mpi_send(struct comm *c, int to, int channel, const void *data, uint64_t bytes,
             uint64_t *ticket, struct err *e);
int mpi_sent(struct comm *c, uint64_t ticket, struct err *e);
int mpi_recv(struct comm *c, int from, int channel, void *data, uint64_t bytes, struct err *e);
void stop_pushing(struct mpi *m);

// Counts of MPI are int.
enum { PIECE_BYTES = 1 << 30 };

#endif

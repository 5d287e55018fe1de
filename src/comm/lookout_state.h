// lookout_state.h - what the two files of a lookout share: lookout.c (the calls, the table, what is
// decided) and lookout_watch.c (the thread and its connections).
#ifndef HAGGLE_COMM_LOOKOUT_STATE_H
#define HAGGLE_COMM_LOOKOUT_STATE_H

#include "comm/lookout.h"
#include "comm/lookout_net.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    LOOKOUT_STRANGERS = 32, // connections that have not shown the key
    // A state that was not sent, one before LATE, one before BYE, and each of the others once.
    LOOKOUT_OUT_BYTES =
        3 * LOOKOUT_STATE_MOST + LOOKOUT_FRAME_MOST + LOOKOUT_FAIL_MOST + 2 * LOOKOUT_HEADER_BYTES
};

struct link {                                  // a connection to a rank
    int fd;                                    // -1: none
    bool told_late, told_fail, told_bye, shut; // what was said
    bool bye;                                  // the other said goodbye
    size_t n_in, n_out;
    uint8_t in[LOOKOUT_FRAME_MOST], out[LOOKOUT_OUT_BYTES];
};

struct stranger { // a connection that has not shown the key
    int fd;       // -1: none
    uint64_t since_ns;
    size_t n;
    uint8_t in[LOOKOUT_HELLO_BYTES];
};

struct lookout {
    int rank, world;
    unsigned char key[LOOKOUT_KEY_BYTES];
    char address[LOOKOUT_ADDRESS_BYTES];
    uint64_t pace_ns; // between two states, at least
    int wake;         // an eventfd: the thread has something to do
    pthread_t thread;
    atomic_bool failed;
    void (*lost)(void *arg, const char *why);
    void *arg;
    atomic_ullong refused;

    // The thread's, after the opening:
    int door; // the listening socket of rank 0, until all are there; -1: none
    uint64_t door_rests_ns;
    int n_links, joined;
    struct link *links; // rank 0: by rank. Others: one, to rank 0
    struct stranger strangers[LOOKOUT_STRANGERS];
    struct pollfd *polled;
    int *who; // of each: a link (from 0), or one of the numbers in lookout_watch.c
    uint64_t spoke_ns, next_ns;

    pthread_mutex_t lock;
    pthread_cond_t changed; // by the monotonic clock
    // Under the lock:
    struct late_rank *table; // by rank. Other ranks than 0 know of rank 0 and themselves
    uint64_t *heard_ns;      // by rank
    bool noted;              // the own note has changed since it was sent
    bool late_asked, closing;
    uint64_t waited_ns, decide_ns; // decide_ns: when rank 0 tells who is late; 0: nobody is
    uint64_t leaves_ns, leave_ns;  // since when this rank only waits for the others, and how long
    uint64_t lost_ns;              // when the failure was known
    uint64_t first_gone_ns;        // when rank 0 was gone, or known to be silent; 0: it is here
    bool first_knew;               // of the failure, before it was gone
    uint64_t turn_ns;              // when lookout_turn was called; 0: not yet
    struct err why;                // the failure; code 0: none
    bool tell_why;                 // it is this rank's own
    bool final;                    // it is rank 0's word
};

void *lookout_watch(void *lookout); // the thread
// Rank 0: listens. Others: are let in by rank 0.
int lookout_join(struct lookout *l, const struct lookout_options *o, struct err *e);
// A rank that was let in, and whose thread cannot begin, says so to rank 0.
void lookout_say_failed(const struct lookout *l, const char *why);

// Under the lock. The job is lost: the first reason stays, but rank 0's replaces a rank's own.
void lookout_lose(struct lookout *l, bool final, const char *format, ...) ERR_PRINTF(3, 4);
void lookout_mark_late(struct lookout *l, int rank, const uint16_t *missing, int n,
                       uint64_t waited_ns);
// Says who is missing, by what this rank knows.
void lookout_conclude(struct lookout *l);
// This rank is leaving, and another one has been silent for too long.
void lookout_check_leaving(struct lookout *l, uint64_t now);
// When it is this rank's turn to tell the user.
uint64_t lookout_turn_at(const struct lookout *l);

#endif

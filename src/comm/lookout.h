// lookout.h - how ranks that are processes learn that one of them has died, hangs or has failed,
// and what each was doing.
//
// Place: an engine whose ranks are processes opens a lookout beside its own means of communication,
// notes every operation, and asks it while it waits. Libraries of communication do not tell why
// nothing comes, or end the process; the lookout needs none of them.
//
// A star of TCP connections: rank 0 listens, the others connect. In every rank one thread sleeps in
// poll, sends what the rank does, and hears. Rank 0's thread keeps the table of all ranks and
// spreads what it decides, so that all ranks tell the same.
//
//   what happens                              what all other ranks hear
//   a connection ends without goodbye         the rank has ended, what it did last; at once
//   lookout_fail                              its reason; at once
//   lookout_late                              who is missing, who waits, what all did last
//   a rank does not answer (it is stopped)    nothing: it may go on. lookout_late names it
//   lookout_close                             nothing
//
// A job of which one rank failed is lost: lookout_failed becomes true on every rank, and stays so.
// The first reason that rank 0 hears is everyone's. If rank 0 itself is stopped, lookout_late says
// so from what its caller knows, and rank 0 and all others say the same if it goes on. If it has
// ended, every rank knows by its own connection.
//
// Who tells the user. All ranks know the same reason, and one of them should print it: the first
// that can. So ranks take turns. Rank 0 is first; the others wait until it has ended, which ends
// all of them, or until it is clear that it tells nothing. A rank whose work does not notice that
// the job is lost (it computes, or reads) is ended by its lookout: `lost`.
//
// Strangers. Who connects must show the job's key (256 random bits) in its first message, within
// seconds. Comparing takes the same time whatever was guessed. All else is refused and counted, and
// nothing grows: there are a fixed number of places for connections that have not shown the key,
// the oldest makes room, and a rank's place is given once. When all ranks are there, nobody listens
// any more. The key is sent as it is. On the loopback interface only this machine's administrator
// can read it. On a network it keeps strays and guesses out, and not those who read the network:
// a cluster's network must be private, as for MPI itself.
//
// Not known: why a process ended. A process that forked keeps the connection open until its
// children have ended too.
#ifndef HAGGLE_COMM_LOOKOUT_H
#define HAGGLE_COMM_LOOKOUT_H

#include "base/err.h"
#include "comm/lookout_frame.h"

#include <stdbool.h>
#include <stdint.h>

struct lookout;

struct lookout_options {
    int rank, world;     // at most COMM_RANKS_MOST ranks
    const char *address; // rank 0: the host to listen at; NULL: 127.0.0.1. Others: its HOST:PORT
    unsigned char key[LOOKOUT_KEY_BYTES]; // the same on all ranks
    uint64_t timeout_ns;                  // of the opening; 0: wait for ever
    // Called on the lookout's thread when the job is lost, it is this rank's turn to tell, and its
    // work has not come to lookout_turn for seconds. It should end the process. NULL: nothing ends.
    void (*lost)(void *arg, const char *why);
    void *arg;
};

int lookout_key(unsigned char key[LOOKOUT_KEY_BYTES], struct err *e); // a fresh one

// Rank 0 returns as soon as it listens, others when rank 0 has let them in.
int lookout_open(struct lookout **out, const struct lookout_options *o, struct err *e);
const char *lookout_address(const struct lookout *l); // HOST:PORT of rank 0
// How many connections rank 0 has refused so far.
uint64_t lookout_refused(const struct lookout *l);

// The calls below may come from any thread.

// What this rank does from now on; what it did before is completed. NULL: that is completed, and
// what follows has no note. No system call; others see it within a second (of up to 64 ranks:
// within a fifth of one).
void lookout_note(struct lookout *l, const char *about);
// True if the job is lost; then e (ERR_RANK) says why. One atomic read as long as all is well. An
// engine that gets an error from its own library waits here for a moment first: the end of another
// process explains the error, and the reason arrives within milliseconds.
bool lookout_failed(struct lookout *l, struct err *e);
// This rank has failed. Does nothing if the job is lost already. The thread tells it at once; a
// process that ends without lookout_close may be faster.
void lookout_fail(struct lookout *l, const char *why);
// This rank has waited too long for these ranks. Returns ERR_RANK with the message that all ranks
// get; within two seconds, whatever the others do. Ranks that say so at about the same time are
// told in one message.
int lookout_late(struct lookout *l, const int *missing, int n, uint64_t waited_ns, struct err *e);
// This rank has done its work and waits for the others to leave; it does nothing else. A rank that
// then does not answer for so long (0: for ever) has failed.
void lookout_leaving(struct lookout *l, uint64_t timeout_ns);
// The job is lost. Returns when it is this rank's turn to tell the user, within seconds. A launcher
// may end the process before that.
void lookout_turn(struct lookout *l);
// Says goodbye: the end of this connection is then no failure. Waits at most two seconds for what
// is still to be sent. NULL is accepted.
void lookout_close(struct lookout *l);

#endif

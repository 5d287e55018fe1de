// comm.h - what connects ranks: an engine of communication, seen from one rank.
//
// Place: an executor gives the ops of the stream `comm` to an engine, in issue order, on a thread
// of its own (exec/comm_stream.c). The trainer asks it for agreement between steps. Programs know
// groups and tensors, and nothing of engines.
//
// An engine is a table of functions, like a backend:
//   thread   ranks are threads of one process (comm_thread.c): tests, debuggers, small machines
//   mpi      ranks are processes (a plug-in)
//
// Invariants:
//   1. Sums have one order: the ranks of the group, ascending, whatever the engine, the number of
//      elements or what else runs. bf16 and fp16 are widened, summed in float32 and rounded once.
//      So a sum has the same bits on every rank and in every layout of the same ranks.
//   2. The calls of one rank come from one thread at a time. A call returns when its result is
//      there; only a send may return earlier (comm_send_fn).
//   3. Waiting sleeps. A wait ends after `timeout_ns`, or as soon as a rank of the job has failed,
//      with an error that names the rank.
//   4. After any error the job is lost: every later call fails with the first error.
#ifndef HAGGLE_COMM_COMM_H
#define HAGGLE_COMM_COMM_H

#include "base/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { COMM_GROUPS_MOST = 32, COMM_RANKS_MOST = 1024, COMM_ABOUT_BYTES = 160 };

struct comm;

// What a rank does from now on, for the message of a rank that waits for it: "'all_reduce' of
// 'backward.last' in 'train'". What it did before is completed. NULL: that is completed, and what
// follows has no note. The engine keeps the current note and the last completed one.
typedef void comm_note_fn(struct comm *c, const char *about);

struct comm {
    const char *name; // "thread", "mpi"
    int rank, world;
    int local_rank, local_world; // among the ranks on this machine
    bool one_process;            // these are threads of one process
    uint64_t timeout_ns;         // 0: wait for ever

    // Makes a group known. Every member calls it with the same ranks, ascending. *out is a number
    // for the calls below. The same members give the same number.
    int (*group)(struct comm *c, const int *ranks, int n, int *out, struct err *e);

    // x becomes the sum over the group.
    int (*all_reduce)(struct comm *c, int group, void *x, int64_t n, enum dtype t, struct err *e);
    // `full` has n elements, divisible by the ranks of the group. Member i gets part i of the sum:
    // written to `part`, or added to it. part may be member i's part of full.
    int (*reduce_scatter)(struct comm *c, int group, const void *full, void *part, int64_t n,
                          enum dtype t, bool add, struct err *e);
    // The parts of all members, n elements together, in full. part may be member i's part of full.
    int (*all_gather)(struct comm *c, int group, const void *part, void *full, int64_t n,
                      enum dtype t, struct err *e);

    // Messages of the same (sender, receiver, channel) match in order. A send returns at once;
    // `data` must not change until the send was waited for. *ticket is for `sent`.
    int (*send)(struct comm *c, int to, int channel, const void *data, uint64_t bytes,
                uint64_t *ticket, struct err *e);
    // Waits until the receiver has the data of a send. Another thread than that of the other calls
    // may ask.
    int (*sent)(struct comm *c, uint64_t ticket, struct err *e);
    int (*recv)(struct comm *c, int from, int channel, void *data, uint64_t bytes, struct err *e);

    comm_note_fn *note;
    // Tells all ranks that this one has failed. They end soon with this reason.
    void (*give_up)(struct comm *c, const char *why);
    // The end of this rank. Waits for the others, because they may still read its memory. After a
    // failure a rank that is a process waits until it is its turn to tell the user why
    // (lookout.h); its end is then the end of the others.
    void (*close)(struct comm *c);
    void *state;
};

// ---------------------------------------------------------------- agreement (agree.c)

// All ranks of the job meet. Returns 0 if every rank gave rc 0. Otherwise every rank gets the same
// error: that of the lowest rank that failed, with its number in front. `words` (may be NULL) are
// replaced by the largest value that any rank gave. c may be NULL: one rank alone.
enum { COMM_WORDS_MOST = 8 };
int comm_agree(struct comm *c, int rc, double *words, int n, struct err *e);
// Every rank's `bytes` bytes in `all`, in the order of ranks. With c NULL that is one rank's.
int comm_gather(struct comm *c, const void *mine, uint64_t bytes, void *all, struct err *e);
// data becomes what it is on rank 0. For paths and settings, not for tensors.
int comm_share(struct comm *c, void *data, uint64_t bytes, struct err *e);
// ERR_MISMATCH unless every rank gave the same bytes; `what` names them in the message.
int comm_same(struct comm *c, const void *data, uint64_t bytes, const char *what, struct err *e);

// ---------------------------------------------------------------- sums (sum.c)

// out[i] = sum over k of in[k][i], in this order. With `add`: out[i] + that sum.
int comm_sum(void *out, const void *const *in, int n_in, int64_t n, enum dtype t, bool add,
             struct err *e);

// ---------------------------------------------------------------- the engine of threads

// A job whose ranks are threads of this process.
struct comm_job;
int comm_job_open(struct comm_job **out, int world, uint64_t timeout_ns, struct err *e);
// The end of one rank. It belongs to the job. Each rank asks once.
struct comm *comm_job_rank(struct comm_job *j, int rank);
void comm_job_close(struct comm_job *j); // after all ranks have ended

// Runs fn on every rank of such a job, rank 0 on this thread (job_run.c). A rank that fails gives
// up itself, and every rank closes its end before it frees memory that others may read. Returns the
// error of the lowest rank that failed for a reason of its own. One rank has no job: c is NULL.
typedef int comm_rank_fn(void *arg, struct comm *c, struct err *e);
int comm_job_run(int world, uint64_t timeout_ns, comm_rank_fn *fn, void *arg, struct err *e);

// ---------------------------------------------------------------- ranks that are processes

// As one of how many mpirun or srun has started this process, as the environment says. world 0:
// none of them did.
struct comm_started {
    int world, rank;
    const char *by; // "mpirun", "srun"
};
struct comm_started comm_started(void);

// The job is lost, and the work of this rank has not noticed for seconds: it waits for no rank, or
// joins a job in which one does not answer. Called on another thread. It should tell the user and
// end the process, because nothing else may end it. fn NULL: it goes on.
struct comm_lost {
    void (*fn)(void *arg, const char *why);
    void *arg;
};

// Joins the `world` processes that were started together, through the MPI plug-in. All of them call
// it once. After a failure, and after a rank has failed, the process can only end: its end is the
// end of the others.
int comm_join(struct comm **out, int world, uint64_t timeout_ns, const struct comm_lost *lost,
              struct err *e);

#endif

// job_run.c - runs a function on every rank of a job whose ranks are threads of this process.
#include "comm/comm.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct runner {
    struct comm *comm;
    comm_rank_fn *fn;
    void *arg;
    pthread_t thread;
    int rc;
    struct err e;
};

static void *run(void *arg) {
    struct runner *r = arg;
    r->rc = r->fn(r->arg, r->comm, &r->e);
    return NULL;
}

int comm_job_run(int world, uint64_t timeout_ns, comm_rank_fn *fn, void *arg, struct err *e) {
    struct comm_job *job = NULL;
    if (world < 2)
        return fn(arg, NULL, e);
    struct runner *all = calloc((size_t)world, sizeof *all);
    if (!all)
        return err_set(e, ERR_MEMORY, "out of memory for %d ranks", world);
    int rc = comm_job_open(&job, world, timeout_ns, e), started = 1, cause = 0;
    // The other ranks inherit this mask: the caller's thread handles signals.
    sigset_t blocked, before;
    sigfillset(&blocked);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    for (int i = 0; rc == 0 && i < world; i++)
        all[i] = (struct runner){.comm = comm_job_rank(job, i), .fn = fn, .arg = arg};
    for (; rc == 0 && cause == 0 && started < world; started += cause == 0)
        cause = pthread_create(&all[started].thread, NULL, run, &all[started]);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (cause != 0) {
        rc = err_set(e, ERR_MEMORY, "rank %d of %d could not be started: %s", started, world,
                     strerror(cause));
        all[0].comm->give_up(all[0].comm, "not all ranks could be started");
        all[0].comm->close(all[0].comm);
    } else if (rc == 0) {
        run(&all[0]);
    }
    for (int i = 1; job && i < started; i++)
        pthread_join(all[i].thread, NULL);
    // The lowest rank that failed for a reason of its own, before those that only heard of it.
    for (int heard = 0; rc == 0 && heard < 2; heard++)
        for (int i = 0; rc == 0 && i < world; i++)
            if (all[i].rc != 0 && (heard || all[i].rc != ERR_RANK))
                rc = err_set(e, all[i].rc, "%s", all[i].e.text);
    comm_job_close(job);
    free(all);
    return rc;
}

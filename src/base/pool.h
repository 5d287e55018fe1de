// pool.h - a fixed team of threads that runs one function at a time, all members together.
//
// The engine's only source of parallelism inside a rank: kernels split their work by (thread,
// threads) and BLAS is called single-threaded from inside, so there is never a second team to
// oversubscribe the cores. Workers spin for a while after a task before they sleep (a step issues
// hundreds of tasks back to back), so a fork-join costs about a microsecond. Nothing is allocated
// after pool_open.
#ifndef HAGGLE_BASE_POOL_H
#define HAGGLE_BASE_POOL_H

#include "base/err.h"

#include <stdint.h>

struct pool;

// A task: called once per member, thread in [0, threads).
typedef void pool_fn(void *arg, int thread, int threads);

// threads >= 1, counting the caller, who takes part as thread 0. pin != 0: member i is bound to the
// i-th CPU of the process's affinity mask (modulo their number), the caller too until pool_close;
// threads that the caller starts meanwhile inherit its one CPU. Workers block all signals.
int pool_open(struct pool **out, int threads, int pin, struct err *e);
void pool_close(struct pool *p);
int pool_threads(const struct pool *p);
// Returns when every member has returned. One at a time per pool, never from inside a task.
void pool_run(struct pool *p, pool_fn *fn, void *arg);
// Meeting point inside a task: all members must call it the same number of times.
void pool_barrier(struct pool *p);

// The share [*begin, *end) of n items for one member; shares differ by at most `grain`, boundaries
// are multiples of grain (the last one n).
void pool_share(int64_t n, int64_t grain, int thread, int threads, int64_t *begin, int64_t *end);

int pool_machine_cpus(void); // CPUs this process may use (affinity and cgroup quota)

#endif

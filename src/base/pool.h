// pool.h - a fixed team of threads that runs one function at a time, all members together.
//
// The pool is the engine's only source of parallelism inside a process. Kernels split their work by
// (thread, threads) and call BLAS single-threaded, so no second team of threads competes for the
// cores. After a task the workers spin for a while before they sleep, because a step issues
// hundreds of tasks back to back. A fork and join therefore costs about a microsecond. Nothing is
// allocated after pool_open.
#ifndef HAGGLE_BASE_POOL_H
#define HAGGLE_BASE_POOL_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct pool;

// A task: called once per member, thread in [0, threads).
typedef void pool_fn(void *arg, int thread, int threads);

// threads >= 1 includes the caller, which takes part as thread 0. With pin != 0, member i is bound
// to the i-th CPU of the process's affinity mask, modulo the number of CPUs. The caller is bound
// too, until pool_close, and threads that it starts meanwhile inherit its single CPU. Workers block
// all signals.
int pool_open(struct pool **out, int threads, int pin, struct err *e);
// One of `pools` such pools that compute at the same time on this machine, number `number`. Each is
// bound to other CPUs than the others, as far as there are any. None spins if together they have
// more threads than the machine has CPUs.
int pool_open_beside(struct pool **out, int threads, int pin, int number, int pools, struct err *e);
void pool_close(struct pool *p);
int pool_threads(const struct pool *p);
bool pool_spins(const struct pool *p); // each of its threads may have a CPU of its own
// Runs fn on every member and returns when all have returned. A pool runs one task at a time. Must
// not be called from inside a task.
void pool_run(struct pool *p, pool_fn *fn, void *arg);

// The share [*begin, *end) of n items for one member. Shares differ by at most `grain`. Boundaries
// are multiples of grain, except the last one, which is n.
void pool_share(int64_t n, int64_t grain, int thread, int threads, int64_t *begin, int64_t *end);

// For loops that wait for another thread.
static inline void pool_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int pool_machine_cpus(void); // CPUs this process may use (affinity and cgroup quota)

#endif

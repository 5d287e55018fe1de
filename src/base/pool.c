// pool.c - a fixed team of threads that runs one function at a time, all members together.
//
// - Fork: the caller writes the task, then increments `task_number`. The workers see it change.
// - Join: each worker decrements `working`. The caller waits until it is zero.
//
// A waiting thread spins for SPIN_NS and then sleeps on a futex. It increments `sleepers` before it
// checks the word for the last time. The waker changes the word before it reads `sleepers`. All
// four accesses are sequentially consistent, so at least one thread sees the other's change: no
// wake-up is lost, and none is sent when no thread sleeps. Each word has a separate cache line, so
// that spinning on one word does not slow writes to another.
#include "base/pool.h"

#include "base/c_locale.h"
#include "base/cgroup.h"
#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    THREADS_MAX = 4096,
    LINE_BYTES = 64,
    // Gaps between the tasks of a step are a few microseconds. A longer gap is likely to stay long,
    // so the core is released. A futex wake-up costs about 5 to 50 us, so spinning at worst doubles
    // that.
    SPIN_NS = 30000,
    PAUSES_PER_LOOK = 16, // reading the clock costs more than a pause
    CPU_SETS = 8,         // 8 x 1024 CPUs
};

// A word that threads wait on to change.
struct gate {
    alignas(LINE_BYTES) _Atomic uint32_t word;
    alignas(LINE_BYTES) _Atomic uint32_t sleepers;
};

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;
};

struct pool {
    int threads;
    int started; // workers that exist and must be joined
    uint64_t spin_ns;
    bool pinned;
    pid_t caller;                    // the thread that was pinned together with the workers
    cpu_set_t caller_cpus[CPU_SETS]; // the CPUs it was allowed before

    pool_fn *fn; // the task; written before task_number changes, read after
    void *arg;
    bool stop;

    struct gate task_number;
    struct gate working;
    struct worker *workers; // threads - 1
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

// Waits until g->word is no longer `value`. Returns the new value.
static uint32_t gate_wait(struct gate *g, uint32_t value, uint64_t spin_ns) {
    uint32_t now = atomic_load_explicit(&g->word, memory_order_acquire);
    if (now != value)
        return now;
    if (spin_ns) {
        uint64_t start = clock_ns();
        do {
            for (int i = 0; i < PAUSES_PER_LOOK; i++) {
                pool_pause();
                now = atomic_load_explicit(&g->word, memory_order_acquire);
                if (now != value)
                    return now;
            }
        } while (clock_ns() - start < spin_ns);
    }
    atomic_fetch_add(&g->sleepers, 1);
    while ((now = atomic_load(&g->word)) == value)
        futex_wait(&g->word, value); // EINTR and EAGAIN: look again
    atomic_fetch_sub(&g->sleepers, 1);
    return now;
}

static void gate_wake(struct gate *g) {
    if (atomic_load(&g->sleepers) != 0)
        futex_wake_all(&g->word);
}

// ---- CPUs ----

// Reads the CPUs that the calling thread may run on. Returns how many, or 0 when that is unknown.
static int read_affinity(cpu_set_t sets[CPU_SETS]) {
    memset(sets, 0, CPU_SETS * sizeof *sets);
    if (sched_getaffinity(0, CPU_SETS * sizeof *sets, sets) != 0)
        return 0;
    return CPU_COUNT_S(CPU_SETS * sizeof *sets, sets);
}

int pool_machine_cpus(void) {
    cpu_set_t sets[CPU_SETS];
    int cpus = read_affinity(sets);
    if (cpus < 1) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        cpus = online > 0 && online < INT_MAX ? (int)online : 1;
    }
    double quota = cgroup_cpu_quota();
    if (quota > 0 && quota <= cpus - 1) {
        // Rounded up: two threads use a quota of 1.5 CPUs better than one thread does.
        int whole = (int)quota;
        cpus = whole + (quota > whole);
    }
    return cpus < 1 ? 1 : cpus;
}

// Fills `one` with a mask of a single CPU: the (member mod count)-th of `allowed`.
static void choose_cpu(const cpu_set_t *allowed, int count, int member, cpu_set_t *one) {
    int left = member % count;
    memset(one, 0, CPU_SETS * sizeof *one);
    for (int cpu = 0; cpu < CPU_SETS * CPU_SETSIZE; cpu++) {
        if (CPU_ISSET_S(cpu, CPU_SETS * sizeof *allowed, allowed) && left-- == 0) {
            CPU_SET_S(cpu, CPU_SETS * sizeof *one, one);
            return;
        }
    }
}

// ---- the team ----

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    c_locale_enter();
    for (uint32_t seen = 0;;) {
        seen = gate_wait(&p->task_number, seen, p->spin_ns);
        if (p->stop)
            return NULL;
        p->fn(p->arg, w->index, p->threads);
        if (atomic_fetch_sub(&p->working.word, 1) == 1)
            gate_wake(&p->working);
    }
}

static void issue(struct pool *p) {
    atomic_fetch_add(&p->task_number.word, 1);
    gate_wake(&p->task_number);
}

void pool_close(struct pool *p) {
    if (!p)
        return;
    p->stop = true;
    issue(p);
    for (int i = 0; i < p->started; i++)
        pthread_join(p->workers[i].thread, NULL);
    if (p->pinned)
        sched_setaffinity(p->caller, sizeof p->caller_cpus, p->caller_cpus);
    free(p->workers);
    free(p);
}

static int start_worker(struct pool *p, int index, int pin, int first, int cpus, struct err *e) {
    struct worker *w = &p->workers[index - 1];
    *w = (struct worker){.pool = p, .index = index};
    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);
    if (rc == 0 && pin) {
        cpu_set_t one[CPU_SETS];
        choose_cpu(p->caller_cpus, cpus, first + index, one);
        rc = pthread_attr_setaffinity_np(&attr, sizeof one, one);
    }
    if (rc == 0)
        rc = pthread_create(&w->thread, &attr, worker_main, w);
    pthread_attr_destroy(&attr);
    if (rc != 0)
        return err_set(e, rc == ENOMEM || rc == EAGAIN ? ERR_MEMORY : ERR_UNSUPPORTED,
                       "cannot start thread %d of %d: %s", index + 1, p->threads, strerror(rc));
    p->started++;
    return 0;
}

int pool_open(struct pool **out, int threads, int pin, struct err *e) {
    return pool_open_beside(out, threads, pin, 0, 1, e);
}

int pool_open_beside(struct pool **out, int threads, int pin, int number, int pools,
                     struct err *e) {
    const int first = number * threads; // CPU of the first member
    *out = NULL;
    if (threads < 1 || threads > THREADS_MAX)
        return err_set(e, ERR_USAGE, "%d threads; 1 to %d are accepted", threads, THREADS_MAX);
    struct pool *p = aligned_alloc(alignof(struct pool), sizeof(struct pool));
    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    if (!p || !workers) {
        free(p);
        free(workers);
        return err_set(e, ERR_MEMORY, "no memory for a pool of %d threads", threads);
    }
    memset(p, 0, sizeof *p);
    p->threads = threads;
    p->workers = workers;
    // With fewer CPUs than threads, a spinning waiter could block the CPU that the awaited thread
    // needs.
    p->spin_ns = (int64_t)threads * pools <= pool_machine_cpus() ? SPIN_NS : 0;

    int cpus = 0, rc = 0;
    if (pin) {
        cpus = read_affinity(p->caller_cpus);
        if (cpus < 1) {
            pool_close(p);
            return err_set(e, ERR_UNSUPPORTED,
                           "threads cannot be pinned: the kernel does not say which CPUs to use");
        }
    }
    // Workers inherit this mask, so signals go to the main thread. Its handlers decide when to
    // stop.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 1; i < threads && rc == 0; i++)
        rc = start_worker(p, i, pin, first, cpus, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0 && pin) {
        cpu_set_t one[CPU_SETS];
        choose_cpu(p->caller_cpus, cpus, first, one);
        if (sched_setaffinity(0, sizeof one, one) != 0)
            rc = err_set(e, ERR_UNSUPPORTED, "threads cannot be pinned: %s", strerror(errno));
        p->caller = (pid_t)syscall(SYS_gettid);
        p->pinned = rc == 0;
    }
    if (rc) {
        pool_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

int pool_threads(const struct pool *p) {
    return p->threads;
}

bool pool_spins(const struct pool *p) {
    return p->spin_ns > 0;
}

void pool_run(struct pool *p, pool_fn *fn, void *arg) {
    if (p->threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->working.word, (uint32_t)p->threads - 1, memory_order_relaxed);
    issue(p);
    fn(arg, 0, p->threads);
    for (uint32_t left = atomic_load(&p->working.word); left != 0;)
        left = gate_wait(&p->working, left, p->spin_ns);
}

void pool_share(int64_t n, int64_t grain, int thread, int threads, int64_t *begin, int64_t *end) {
    if (n < 0)
        n = 0;
    if (grain < 1)
        grain = 1;
    int64_t blocks = n / grain + (n % grain != 0);
    int64_t each = blocks / threads, more = blocks % threads;
    // `more` members take one extra block. Usually these are the last members, so that the
    // incomplete block at the end is part of a long share. Otherwise shares could differ by almost
    // two blocks. With fewer blocks than members these are the first members: the caller (thread 0)
    // then works itself and does not wait for a thread it had to wake.
    int64_t late = each > 0 ? threads - more : 0;
    int64_t extra_before = thread < late ? 0 : thread - late < more ? thread - late : more;
    int64_t first = each * thread + extra_before;
    int64_t last = first + each + (thread >= late && thread < late + more);
    *begin = first < blocks ? first * grain : n;
    *end = last < blocks ? last * grain : n;
}

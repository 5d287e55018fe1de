// open.c - joins the ranks that are processes: the plug-in moves bytes, the lookout sees who fails.
#include "comm/comm.h"

#include "backend/plugin.h"
#include "base/clock.h"
#include "base/text.h"
#include "comm/address.h"
#include "comm/installed.h"
#include "comm/lookout.h"
#include "comm/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct process {       // a rank that is one
    struct comm table; // first: a comm is also its process
    struct comm_plugin_host host;
    void (*leave)(struct comm *c); // the plug-in's end
    struct lookout *lookout;       // NULL: not yet
    struct comm_lost lost;
    atomic_bool gave_up;
};

static struct process *process_of(struct comm *c) {
    return (struct process *)(void *)c;
}

// ---------------------------------------------------------------- the plug-in

// RTLD_GLOBAL: parts of an MPI library are opened by the library and expect its symbols.
static int open_library(void **out, struct err *e) {
    char path[PLUGIN_PATH_BYTES];
    plugin_find(COMM_PLUGIN_NAME, path);
    *out = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (*out)
        return 0;
    const char *why = dlerror();
    return err_set(e, ERR_UNSUPPORTED, "the MPI plug-in %s cannot be opened: %s", path,
                   why ? why : "no reason given");
}

static int find_function(void *library, const char *name, void **out, struct err *e) {
    *out = dlsym(library, name);
    return *out
               ? 0
               : err_set(e, ERR_UNSUPPORTED,
                         "the MPI plug-in is not one of this program: it has no function %s", name);
}

int comm_library(char out[COMM_LIBRARY_BYTES], struct err *e) {
    void *library;
    union { // ISO C has no conversion from data to function pointers
        void *data;
        comm_plugin_library_fn *fn;
    } symbol;
    out[0] = '\0';
    TRY(open_library(&library, e));
    TRY(find_function(library, COMM_PLUGIN_LIBRARY, &symbol.data, e));
    if (symbol.fn(COMM_PLUGIN_ABI, out) != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "the MPI plug-in was built for another version of haggle");
    return 0;
}

// ---------------------------------------------------------------- the lookout

static bool lost(void *arg, struct err *e) {
    struct process *p = arg;
    return p->lookout && lookout_failed(p->lookout, e);
}

static int late(void *arg, const int *missing, int n, uint64_t waited_ns, struct err *e) {
    struct process *p = arg;
    if (p->lookout)
        return lookout_late(p->lookout, missing, n, waited_ns, e);
    return err_set(e, ERR_RANK, "rank %d has not joined in time", missing[0]);
}

static void note(struct comm *c, const char *about) {
    struct process *p = process_of(c);
    if (p->lookout) // else it is about to be opened
        lookout_note(p->lookout, about);
}

static void give_up(struct comm *c, const char *why) {
    struct process *p = process_of(c);
    atomic_store(&p->gave_up, true);
    lookout_fail(p->lookout, why);
}

// After a failure another thread may still be in a call, so what it uses stays. The process ends
// soon: it cannot join again.
static void close_process(struct comm *c) {
    struct process *p = process_of(c);
    struct err why = {0};
    lookout_leaving(p->lookout, c->timeout_ns);
    p->leave(c);
    if (atomic_load(&p->gave_up) || lost(p, &why)) {
        lookout_turn(p->lookout);
        return;
    }
    lookout_close(p->lookout);
    free(p);
}

struct meeting_point { // rank 0 tells all
    int32_t rc;
    char text[256];
    char address[128];
    unsigned char key[LOOKOUT_KEY_BYTES];
};

static int open_first(struct process *p, struct lookout_options *o, struct meeting_point *at,
                      struct err *e) {
    TRY(lookout_key(o->key, e));
    TRY(lookout_open(&p->lookout, o, e));
    snprintf(at->address, sizeof at->address, "%s", lookout_address(p->lookout));
    memcpy(at->key, o->key, sizeof at->key);
    return 0;
}

// On rank 0. at->rc: there is none.
static int choose_address(struct comm *c, char host[ADDRESS_TEXT_BYTES], struct meeting_point *at,
                          struct err *e) {
    struct addresses own, *all = malloc((size_t)c->world * sizeof *all);
    int rc = all ? address_list(&own, e)
                 : err_set(e, ERR_MEMORY, "out of memory for %d ranks", c->world);
    rc = comm_agree(c, rc, NULL, 0, e);
    if (rc == 0)
        rc = comm_gather(c, &own, sizeof own, all, e);
    if (rc == 0 && c->rank == 0)
        at->rc = address_choose(host, all, c->world, c->local_world, e);
    free(all);
    return rc;
}

static int open_lookout(struct process *p, uint64_t timeout_ns, struct err *e) {
    struct comm *c = &p->table;
    struct meeting_point at = {0};
    struct lookout_options o = {.rank = c->rank,
                                .world = c->world,
                                .timeout_ns = timeout_ns,
                                .lost = p->lost.fn,
                                .arg = p->lost.arg};
    char host[ADDRESS_TEXT_BYTES] = "";
    const bool apart = c->local_world < c->world; // other machines cannot reach loopback
    if (apart)
        TRY(choose_address(c, host, &at, e));
    if (c->rank == 0) {
        o.address = apart ? host : NULL;
        at.rc = at.rc != 0 ? at.rc : open_first(p, &o, &at, e);
        if (at.rc != 0 && e)
            snprintf(at.text, sizeof at.text, "%.255s", e->text);
    }
    TRY(comm_share(c, &at, sizeof at, e));
    if (at.rc != 0)
        return err_set(e, at.rc, "rank 0: %s", at.text);
    if (c->rank > 0) {
        memcpy(o.key, at.key, sizeof o.key);
        o.address = at.address;
        at.rc = lookout_open(&p->lookout, &o, e);
    }
    return comm_agree(c, at.rc, NULL, 0, e);
}

// ---------------------------------------------------------------- joining

// MPI waits for all ranks to start, and for ever. Until the lookout is open, this thread watches.
struct watch {
    const struct process *p;
    uint64_t begin_ns, limit_ns;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool joined;
};
static const uint64_t START_NS = 2000000000; // beside the timeout: processes start one by one

static void *watch_joining(void *arg) {
    struct watch *w = arg;
    const uint64_t at = w->begin_ns + w->limit_ns;
    const struct timespec until = {.tv_sec = (time_t)(at / 1000000000u),
                                   .tv_nsec = (long)(at % 1000000000u)};
    char why[256], limit[TEXT_UNIT_BYTES];
    int rc = 0;
    pthread_mutex_lock(&w->lock);
    while (!w->joined && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&w->changed, &w->lock, &until);
    const bool joined = w->joined;
    pthread_mutex_unlock(&w->lock);
    if (joined)
        return NULL;
    snprintf(why, sizeof why,
             "the ranks that were started have not found each other within %s: one of them has "
             "ended, is stopped, or cannot be reached",
             text_duration(limit, 1e-9 * (double)w->limit_ns));
    w->p->lost.fn(w->p->lost.arg, why);
    return NULL;
}

static int begin_watch(struct watch *w, const struct process *p, uint64_t timeout_ns,
                       struct err *e) {
    sigset_t all, before;
    pthread_condattr_t clock;
    *w = (struct watch){.p = p, .begin_ns = clock_ns(), .limit_ns = timeout_ns + START_NS};
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &clock);
    pthread_condattr_destroy(&clock);
    w->joined = timeout_ns == 0 || !p->lost.fn; // nobody asks
    if (w->joined)
        return 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&w->thread, NULL, watch_joining, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    w->joined = rc != 0;
    return rc == 0 ? 0 : err_set(e, ERR_MEMORY, "cannot start a thread: %s", strerror(rc));
}

static void end_watch(struct watch *w) {
    const bool runs = !w->joined;
    pthread_mutex_lock(&w->lock);
    w->joined = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (runs)
        pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}

static int join(struct process *p, int world, uint64_t timeout_ns, struct err *e) {
    void *library;
    char text[COMM_LIBRARY_BYTES];
    union {
        void *data;
        comm_plugin_open_fn *fn;
    } symbol;
    TRY(comm_library(text, e));
    TRY(open_library(&library, e));
    TRY(find_function(library, COMM_PLUGIN_OPEN, &symbol.data, e));
    const int rc = symbol.fn(COMM_PLUGIN_ABI, &p->host, timeout_ns, &p->table, e);
    if (rc != 0) { // others do not hear of it
        err_context(e, "rank %d", comm_started().rank);
        return rc;
    }
    p->leave = p->table.close;
    if (p->table.world != world)
        return err_set(e, ERR_MISMATCH,
                       "%d processes were started, and this one's MPI library (%s) sees %d: the "
                       "mpirun that started them belongs to another library",
                       world, text, p->table.world);
    p->table.note = note;
    p->table.give_up = give_up;
    p->table.close = close_process;
    return open_lookout(p, timeout_ns, e);
}

int comm_join(struct comm **out, int world, uint64_t timeout_ns, const struct comm_lost *lost_fn,
              struct err *e) {
    struct watch w;
    struct process *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return err_set(e, ERR_MEMORY, "out of memory for the ranks");
    p->host = (struct comm_plugin_host){.abi = COMM_PLUGIN_ABI,
                                        .comm_bytes = sizeof(struct comm),
                                        .err_bytes = sizeof(struct err),
                                        .dtype_count = DTYPE_COUNT,
                                        .err_set = err_set,
                                        .dtype_bytes = dtype_bytes,
                                        .sum = comm_sum,
                                        .lost = lost,
                                        .late = late,
                                        .arg = p};
    p->lost = *lost_fn;
    int rc = begin_watch(&w, p, timeout_ns, e);
    if (rc == 0)
        rc = join(p, world, timeout_ns, e);
    end_watch(&w);
    TRY(rc); // the plug-in may know p for as long as the process runs
    *out = &p->table;
    return 0;
}

// pause.c - see pause.h.
#include "train/pause.h"

#include "base/c_locale.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

struct beside {
    int (*fn)(void *arg, struct err *e);
    void *arg;
    struct err e;
    int rc;
    atomic_bool done;
};

void pause_let(const struct pause *p) {
    if (p != NULL && p->let != NULL)
        p->let(p->arg);
}

static void *run(void *arg) {
    struct beside *b = arg;
    c_locale_enter();
    b->rc = b->fn(b->arg, &b->e);
    atomic_store(&b->done, true);
    return NULL;
}

// The new thread blocks all signals: the main thread handles them.
static int start(pthread_t *thread, struct beside *b) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(thread, NULL, run, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

int pause_beside(const struct pause *p, int (*fn)(void *arg, struct err *e), void *arg,
                 struct err *e) {
    const struct timespec turn = {.tv_nsec = 1000000};
    struct beside b = {.fn = fn, .arg = arg};
    pthread_t thread;
    if (p == NULL || p->let == NULL || start(&thread, &b) != 0)
        return fn(arg, e);
    while (!atomic_load(&b.done)) {
        p->let(p->arg);
        nanosleep(&turn, NULL);
    }
    pthread_join(thread, NULL);
    return b.rc != 0 ? err_set(e, b.rc, "%s", b.e.text) : 0;
}

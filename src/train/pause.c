// pause.c - see pause.h.
#include "train/pause.h"

#include <pthread.h>
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
    b->rc = b->fn(b->arg, &b->e);
    atomic_store(&b->done, true);
    return NULL;
}

int pause_beside(const struct pause *p, int (*fn)(void *arg, struct err *e), void *arg,
                 struct err *e) {
    const struct timespec turn = {.tv_nsec = 1000000};
    struct beside b = {.fn = fn, .arg = arg};
    pthread_t thread;
    if (p == NULL || p->let == NULL || pthread_create(&thread, NULL, run, &b) != 0)
        return fn(arg, e);
    while (!atomic_load(&b.done)) {
        p->let(p->arg);
        nanosleep(&turn, NULL);
    }
    pthread_join(thread, NULL);
    return b.rc != 0 ? err_set(e, b.rc, "%s", b.e.text) : 0;
}

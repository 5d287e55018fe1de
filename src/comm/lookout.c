// lookout.c - see lookout.h. Knows this rank only.
#include "comm/lookout.h"

#include "base/text.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

struct lookout {
    int rank;
    atomic_bool failed;
    pthread_mutex_t lock;
    struct err why;
    char about[160];
};

int lookout_open(struct lookout **out, const struct lookout_options *o, struct err *e) {
    struct lookout *l = *out = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_MEMORY, "out of memory for the lookout");
    l->rank = o->rank;
    pthread_mutex_init(&l->lock, NULL);
    snprintf(l->about, sizeof l->about, "the start");
    return 0;
}

const char *lookout_address(const struct lookout *l) {
    (void)l;
    return "";
}

void lookout_note(struct lookout *l, const char *about) {
    pthread_mutex_lock(&l->lock);
    snprintf(l->about, sizeof l->about, "%s", about);
    pthread_mutex_unlock(&l->lock);
}

bool lookout_failed(struct lookout *l, struct err *e) {
    if (!atomic_load(&l->failed))
        return false;
    pthread_mutex_lock(&l->lock);
    err_set(e, l->why.code, "%s", l->why.text);
    pthread_mutex_unlock(&l->lock);
    return true;
}

static void set(struct lookout *l, const char *text) {
    pthread_mutex_lock(&l->lock);
    if (l->why.code == 0)
        err_set(&l->why, ERR_RANK, "%s", text);
    atomic_store(&l->failed, true);
    pthread_mutex_unlock(&l->lock);
}

void lookout_fail(struct lookout *l, const char *why) {
    char text[ERR_TEXT_BYTES];
    snprintf(text, sizeof text, "rank %d failed: %.900s", l->rank, why);
    set(l, text);
}

int lookout_late(struct lookout *l, const int *missing, int n, uint64_t waited_ns, struct err *e) {
    char text[ERR_TEXT_BYTES], limit[TEXT_UNIT_BYTES];
    size_t used =
        (size_t)snprintf(text, sizeof text, "after waiting for %s at %s these ranks are missing:",
                         text_duration(limit, 1e-9 * (double)waited_ns), l->about);
    for (int i = 0; i < n && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, " rank %d;", missing[i]);
    set(l, text);
    return lookout_failed(l, e) ? ERR_RANK : ERR_INTERNAL;
}

void lookout_close(struct lookout *l) {
    if (l)
        pthread_mutex_destroy(&l->lock);
    free(l);
}

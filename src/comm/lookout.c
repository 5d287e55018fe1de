// lookout.c - see lookout.h: the calls, the table of what ranks do, and what is decided from it.
// The thread and its connections are in lookout_watch.c.
#include "comm/lookout_state.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

static const uint64_t PACE_LEAST_NS = 100000000, PACE_MOST_NS = 1000000000,
                      PACE_RANK_NS = 1500000, // rank 0 hears at most some 650 states in a second
    SILENT_NS = 3000000000,                   // three heartbeats
    ANSWER_NS = 2000000000,                   // rank 0 has so long to say who is late
    GATHER_NS = 200000000,                    // other late ranks, beside what the pace takes
    FIRST_NS = 3000000000,                    // rank 0 has so long to tell the user
    END_NS = 2500000000, // the end of the one that has told has so long to end the others
    NEXT_NS = 200000000, QUEUE_NS = 4000000000; // between two turns, and of all together

// ---------------------------------------------------------------- decisions, under the lock

void lookout_lose(struct lookout *l, bool final, const char *format, ...) {
    char text[ERR_TEXT_BYTES];
    va_list args;
    if (final ? l->final : l->why.code != 0)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    l->lost_ns = l->why.code == 0 ? clock_ns() : l->lost_ns;
    l->why.code = ERR_RANK;
    lookout_clean(l->why.text, sizeof l->why.text, text, strlen(text));
    l->final = final;
    atomic_store(&l->failed, true);
    pthread_cond_broadcast(&l->changed);
}

// This rank's own reason. Rank 0 hears it; if rank 0 was only stopped, all hear it in the end.
static void lose_here(struct lookout *l, const char *text) {
    if (l->why.code != 0)
        return; // this rank fails because the job is lost
    lookout_lose(l, l->rank == 0, "%s", text);
    l->tell_why = true;
}

void lookout_mark_late(struct lookout *l, int rank, const uint16_t *missing, int n,
                       uint64_t waited_ns) {
    l->table[rank].waits = true;
    for (int i = 0; i < n; i++)
        if (missing[i] < l->world)
            l->table[missing[i]].missing = true;
    l->waited_ns = waited_ns > l->waited_ns ? waited_ns : l->waited_ns;
    if (l->decide_ns == 0)
        l->decide_ns = clock_ns() + l->pace_ns + GATHER_NS;
}

void lookout_conclude(struct lookout *l) {
    char text[ERR_TEXT_BYTES];
    const uint64_t now = clock_ns();
    for (int r = 0; r < l->world; r++) {
        const bool speaks = r != l->rank && l->table[r].where == LATE_HERE;
        const uint64_t silent = speaks && now > l->heard_ns[r] ? now - l->heard_ns[r] : 0;
        // Rank 0 was asked, and has not answered.
        l->table[r].silent_ns = silent > SILENT_NS || (l->rank != 0 && r == 0) ? silent : 0;
    }
    if (l->rank != 0 && l->first_gone_ns == 0)
        l->first_gone_ns = now;
    late_text(text, l->table, l->world, l->waited_ns);
    lose_here(l, text);
}

void lookout_check_leaving(struct lookout *l, uint64_t now) {
    uint16_t silent[COMM_RANKS_MOST];
    int n = 0;
    if (l->leaves_ns == 0 || l->why.code != 0 || now - l->leaves_ns < l->leave_ns)
        return;
    for (int r = 0; r < l->world; r++) {
        const bool speaks = r != l->rank && l->table[r].where == LATE_HERE;
        if (speaks && now > l->heard_ns[r] && now - l->heard_ns[r] > SILENT_NS &&
            now - l->heard_ns[r] >= l->leave_ns)
            silent[n++] = (uint16_t)r;
    }
    if (n == 0)
        return;
    lookout_mark_late(l, l->rank, silent, n, now - l->leaves_ns);
    lookout_conclude(l);
}

// ---------------------------------------------------------------- whose turn it is

// If rank 0 knows of the failure and has ended, it has told. If it has ended without that, or does
// not answer, the next may tell at once.
static uint64_t first_done(const struct lookout *l) {
    if (l->first_gone_ns == 0)
        return l->lost_ns + FIRST_NS;
    if (l->first_knew)
        return l->first_gone_ns + END_NS;
    return l->first_gone_ns > l->lost_ns ? l->first_gone_ns : l->lost_ns;
}

uint64_t lookout_turn_at(const struct lookout *l) {
    if (l->rank == 0)
        return l->lost_ns;
    const uint64_t queue = l->rank == 1 ? 0 : END_NS + (uint64_t)(l->rank - 2) * NEXT_NS;
    return first_done(l) + (queue < QUEUE_NS ? queue : QUEUE_NS);
}

static struct timespec at_ns(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
}

void lookout_turn(struct lookout *l) {
    pthread_mutex_lock(&l->lock);
    l->turn_ns = clock_ns();
    while (l->why.code != 0 && clock_ns() < lookout_turn_at(l)) {
        const struct timespec until = at_ns(lookout_turn_at(l));
        pthread_cond_timedwait(&l->changed, &l->lock, &until);
    }
    pthread_mutex_unlock(&l->lock);
}

// ---------------------------------------------------------------- calls

static void wake(const struct lookout *l) {
    const uint64_t one = 1;
    if (write(l->wake, &one, sizeof one) != sizeof one)
        return; // it is awake, or will be at its next turn
}

const char *lookout_address(const struct lookout *l) {
    return l->address;
}

uint64_t lookout_refused(const struct lookout *l) {
    return atomic_load(&l->refused);
}

void lookout_note(struct lookout *l, const char *about) {
    pthread_mutex_lock(&l->lock);
    doing_note(&l->table[l->rank].doing, about);
    l->noted = true;
    pthread_mutex_unlock(&l->lock);
}

bool lookout_failed(struct lookout *l, struct err *e) {
    if (!atomic_load_explicit(&l->failed, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&l->lock);
    err_set(e, l->why.code, "%s", l->why.text);
    pthread_mutex_unlock(&l->lock);
    return true;
}

void lookout_fail(struct lookout *l, const char *why) {
    char text[ERR_TEXT_BYTES];
    snprintf(text, sizeof text, "rank %d failed: %.900s", l->rank, why);
    pthread_mutex_lock(&l->lock);
    lose_here(l, text);
    pthread_mutex_unlock(&l->lock);
    wake(l);
}

int lookout_late(struct lookout *l, const int *missing, int n, uint64_t waited_ns, struct err *e) {
    const struct timespec until = at_ns(clock_ns() + ANSWER_NS);
    pthread_mutex_lock(&l->lock);
    if (!l->late_asked && l->why.code == 0) {
        uint16_t named[COMM_RANKS_MOST];
        int n_named = 0;
        for (int i = 0; i < n && n_named < COMM_RANKS_MOST; i++)
            if (missing[i] >= 0 && missing[i] < l->world)
                named[n_named++] = (uint16_t)missing[i];
        lookout_mark_late(l, l->rank, named, n_named, waited_ns);
        l->late_asked = true;
        wake(l);
    }
    while (l->why.code == 0) {
        const bool nobody = l->table[0].where == LATE_LEFT;
        if (nobody || pthread_cond_timedwait(&l->changed, &l->lock, &until) == ETIMEDOUT)
            lookout_conclude(l);
    }
    const int rc = err_set(e, l->why.code, "%s", l->why.text);
    pthread_mutex_unlock(&l->lock);
    return rc;
}

// ---------------------------------------------------------------- opening and closing

int lookout_key(unsigned char key[LOOKOUT_KEY_BYTES], struct err *e) {
    for (size_t n = 0; n < LOOKOUT_KEY_BYTES;) {
        const ssize_t more = getrandom(key + n, LOOKOUT_KEY_BYTES - n, 0);
        if (more < 0 && errno != EINTR)
            return err_set(e, ERR_UNSUPPORTED, "the kernel gives no random bytes: %s",
                           strerror(errno));
        n += more > 0 ? (size_t)more : 0;
    }
    return 0;
}

static int allocate(struct lookout *l, struct err *e) {
    const size_t polled = (size_t)l->n_links + LOOKOUT_STRANGERS + 2;
    l->links = calloc((size_t)l->n_links, sizeof *l->links);
    l->polled = calloc(polled, sizeof *l->polled);
    l->who = calloc(polled, sizeof *l->who);
    l->table = calloc((size_t)l->world, sizeof *l->table);
    l->heard_ns = calloc((size_t)l->world, sizeof *l->heard_ns);
    if (!l->links || !l->polled || !l->who || !l->table || !l->heard_ns)
        return err_set(e, ERR_MEMORY, "out of memory for %d ranks", l->world);
    for (int r = 0; r < l->world; r++)
        l->table[r].where = l->rank == 0 ? LATE_ABSENT : LATE_UNKNOWN;
    l->table[0].where = l->table[l->rank].where = LATE_HERE;
    for (int i = 0; i < l->n_links; i++)
        l->links[i].fd = -1;
    return 0;
}

static int start(struct lookout *l, struct err *e) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&l->thread, NULL, lookout_watch, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc == 0 ? 0 : err_set(e, ERR_MEMORY, "cannot start a thread: %s", strerror(rc));
}

static void release(struct lookout *l) {
    for (int i = 0; l->links && i < l->n_links; i++)
        if (l->links[i].fd >= 0)
            close(l->links[i].fd);
    for (int i = 0; i < LOOKOUT_STRANGERS; i++)
        if (l->strangers[i].fd >= 0)
            close(l->strangers[i].fd);
    if (l->door >= 0)
        close(l->door);
    if (l->wake >= 0)
        close(l->wake);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l->links);
    free(l->polled);
    free(l->who);
    free(l->table);
    free(l->heard_ns);
    explicit_bzero(l->key, sizeof l->key);
    free(l);
}

static uint64_t pace(int world) {
    const uint64_t ns = (uint64_t)world * PACE_RANK_NS;
    return ns < PACE_LEAST_NS ? PACE_LEAST_NS : ns > PACE_MOST_NS ? PACE_MOST_NS : ns;
}

int lookout_open(struct lookout **out, const struct lookout_options *o, struct err *e) {
    *out = NULL;
    if (o->world < 1 || o->world > COMM_RANKS_MOST || o->rank < 0 || o->rank >= o->world)
        return err_set(e, ERR_USAGE, "rank %d of %d; accepted: at most %d ranks, counted from 0",
                       o->rank, o->world, COMM_RANKS_MOST);
    struct lookout *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_MEMORY, "out of memory for %d ranks", o->world);
    l->rank = o->rank;
    l->world = o->world;
    l->n_links = o->rank == 0 ? o->world : 1;
    l->pace_ns = pace(o->world);
    l->lost = o->lost;
    l->arg = o->arg;
    l->door = -1;
    memcpy(l->key, o->key, sizeof l->key);
    for (int i = 0; i < LOOKOUT_STRANGERS; i++)
        l->strangers[i].fd = -1;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&l->changed, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&l->lock, NULL);
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = l->wake >= 0 ? allocate(l, e)
                          : err_set(e, ERR_IO, "cannot create an event: %s", strerror(errno));
    if (rc == 0)
        rc = lookout_join(l, o, e);
    if (rc == 0 && (rc = start(l, e)) != 0 && e)
        lookout_say_failed(l, e->text);
    if (rc == 0)
        *out = l;
    else
        release(l);
    return rc;
}

void lookout_leaving(struct lookout *l, uint64_t timeout_ns) {
    pthread_mutex_lock(&l->lock);
    l->leaves_ns = timeout_ns > 0 ? clock_ns() : 0;
    l->leave_ns = timeout_ns;
    pthread_mutex_unlock(&l->lock);
}

void lookout_close(struct lookout *l) {
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->closing = true;
    pthread_mutex_unlock(&l->lock);
    wake(l);
    pthread_join(l->thread, NULL);
    release(l);
}

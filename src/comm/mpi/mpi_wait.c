// mpi_wait.c - how a rank waits, and what it says when it waited in vain.
#include "comm/mpi/mpi_rank.h"

#include "base/clock.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

// ---------------------------------------------------------------- failures

int fail(struct mpi *m, int code, const char *text, struct err *e) {
    struct err first;
    pthread_mutex_lock(&m->lock);
    if (m->failed.code == 0)
        m->host->err_set(&m->failed, code, "%s", text);
    first = m->failed;
    pthread_mutex_unlock(&m->lock);
    return m->host->err_set(e, first.code, "%s", first.text);
}

int failed_before(struct mpi *m, struct err *e) {
    pthread_mutex_lock(&m->lock);
    const struct err first = m->failed;
    pthread_mutex_unlock(&m->lock);
    return first.code == 0 ? 0 : m->host->err_set(e, first.code, "%s", first.text);
}

int check_mpi(struct mpi *m, int rc, struct err *e) {
    char why[MPI_MAX_ERROR_STRING] = "", text[MPI_MAX_ERROR_STRING + 32];
    int length = 0;
    if (rc == MPI_SUCCESS)
        return 0;
    // The end of another process explains it better, and is told within milliseconds.
    struct err lost = {0};
    enum { LOOKS = 100, LOOK_NS = 5000000 };
    for (int i = 0; i < LOOKS; i++) {
        if (m->host->lost(m->host->arg, &lost))
            return fail(m, lost.code, lost.text, e);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    pthread_mutex_lock(&m->lock);
    MPI_Error_string(rc, why, &length);
    pthread_mutex_unlock(&m->lock);
    snprintf(text, sizeof text, "MPI failed: %s", why);
    return fail(m, ERR_RANK, text, e);
}

// ---------------------------------------------------------------- waiting

// A rank whose message is about to come is not worth a sleep. One that computes needs the core.
enum { YIELDS = 40, SLEEP_LEAST_NS = 20000, SLEEP_MOST_NS = 200000, SLACK_NS = 5000 };

int wait_turn(struct mpi *m, struct wait *w, bool *late, struct err *e) {
    struct err why = {0};
    *late = false;
    if (m->host->lost(m->host->arg, &why))
        return fail(m, why.code, why.text, e);
    if (w->turns++ < YIELDS) {
        sched_yield();
        return 0;
    }
    const uint64_t now_ns = clock_ns(), waited_ns = now_ns - w->begin_ns;
    *late = m->timeout_ns > 0 && waited_ns >= m->timeout_ns;
    // An eighth of the wait so far costs at most an eighth more.
    const uint64_t nap_ns = waited_ns / 8 < SLEEP_LEAST_NS  ? SLEEP_LEAST_NS
                            : waited_ns / 8 > SLEEP_MOST_NS ? SLEEP_MOST_NS
                                                            : waited_ns / 8;
    if (w->turns == YIELDS + 1)
        prctl(PR_SET_TIMERSLACK, (unsigned long)SLACK_NS); // of this thread: 50 us are usual
    nanosleep(&(struct timespec){.tv_nsec = (long)nap_ns}, NULL);
    return 0;
}

int fail_late(struct mpi *m, const int *missing, int n, const struct wait *w, struct err *e) {
    struct err why = {0};
    const int rc = m->host->late(m->host->arg, missing, n, clock_ns() - w->begin_ns, &why);
    return fail(m, rc, why.text, e);
}

static int name_missing(struct mpi *m, const struct group *g, MPI_Request *r, int n,
                        const struct wait *w, struct err *e) {
    int n_missing = 0;
    pthread_mutex_lock(&m->lock);
    for (int k = 0; k < g->n; k++) {
        bool here = true;
        for (int i = k; i < n && here; i += g->n) {
            int done = 1;
            if (MPI_Test(&r[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS)
                here = done != 0;
        }
        if (!here)
            m->missing[n_missing++] = g->ranks[k];
    }
    pthread_mutex_unlock(&m->lock);
    return n_missing > 0 ? fail_late(m, m->missing, n_missing, w, e) : 0; // came at the last moment
}

int wait_all(struct mpi *m, const struct group *g, MPI_Request *r, int n, struct err *e) {
    struct wait w = {.begin_ns = clock_ns()};
    for (;;) {
        int done = 0;
        bool late;
        pthread_mutex_lock(&m->lock);
        const int rc = MPI_Testall(n, r, &done, MPI_STATUSES_IGNORE);
        pthread_mutex_unlock(&m->lock);
        TRY(check_mpi(m, rc, e));
        if (done)
            return 0;
        TRY(wait_turn(m, &w, &late, e));
        if (late)
            TRY(name_missing(m, g, r, n, &w, e));
    }
}

// mpi_message.c - messages between two ranks. A send is over when the receiver has taken it, which
// is what MPI calls synchronous.
//
// MPI moves bytes only inside of calls. A rank that has sent something may compute for a long time
// before its next call, and the receiver would wait as long. So a thread tests sends that are under
// way; it sleeps on a condition when there are none.
#include "comm/mpi/mpi_rank.h"

#include "base/clock.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct mpi *mpi_of(struct comm *c) {
    return c->state;
}

// ---------------------------------------------------------------- sends under way

// With the lock. Drops what is over.
static int test_sends(struct mpi *m) {
    int left = 0, rc = MPI_SUCCESS;
    for (int i = 0; i < m->n_sending; i++) {
        int done = 0;
        if (rc == MPI_SUCCESS)
            rc = MPI_Test(&m->sending[i].request, &done, MPI_STATUS_IGNORE);
        if (!done)
            m->sending[left++] = m->sending[i];
    }
    m->n_sending = left;
    return rc;
}

static void *push(void *arg) {
    enum { NAP_NS = 100000 };
    struct mpi *m = arg;
    pthread_mutex_lock(&m->lock);
    while (!m->stop) {
        if (m->n_sending == 0 || m->failed.code != 0) {
            pthread_cond_wait(&m->work, &m->lock);
            continue;
        }
        (void)test_sends(m); // whoever waits for the send hears of a failure
        pthread_mutex_unlock(&m->lock);
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static int start_pushing(struct mpi *m, struct err *e) {
    sigset_t all, before;
    if (m->pushes)
        return 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&m->pusher, NULL, push, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    m->pushes = rc == 0;
    return rc == 0 ? 0 : m->host->err_set(e, ERR_MEMORY, "cannot start a thread: %s", strerror(rc));
}

void stop_pushing(struct mpi *m) {
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->lock);
    if (m->pushes)
        pthread_join(m->pusher, NULL);
    m->pushes = false;
}

// ---------------------------------------------------------------- sending

static bool has_room(struct mpi *m) {
    if (m->n_sending < m->room)
        return true;
    const int room = m->room > 0 ? 2 * m->room : 64;
    struct sending *more = realloc(m->sending, (size_t)room * sizeof *more);
    if (!more)
        return false;
    m->sending = more;
    m->room = room;
    return true;
}

// With the lock.
static int send_piece(struct mpi *m, int to, int channel, const char *data, int bytes,
                      uint64_t ticket) {
    struct sending *s = &m->sending[m->n_sending];
    *s = (struct sending){.ticket = ticket, .to = to};
    const int rc = MPI_Issend((void *)(uintptr_t)data, bytes, MPI_BYTE, to, TAG_CHANNEL + channel,
                              m->comm, &s->request);
    m->n_sending += rc == MPI_SUCCESS;
    return rc;
}

int mpi_send(struct comm *c, int to, int channel, const void *data, uint64_t bytes,
             uint64_t *ticket, struct err *e) {
    struct mpi *m = mpi_of(c);
    int rc = MPI_SUCCESS;
    bool room = true;
    TRY(failed_before(m, e));
    TRY(start_pushing(m, e));
    pthread_mutex_lock(&m->lock);
    *ticket = ++m->tickets;
    uint64_t at = 0;
    do { // also a message without any bytes
        const uint64_t left = bytes - at, some = left < PIECE_BYTES ? left : PIECE_BYTES;
        room = has_room(m);
        if (room)
            rc = send_piece(m, to, channel, (const char *)data + at, (int)some, *ticket);
        at += some;
    } while (room && rc == MPI_SUCCESS && at < bytes);
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->lock);
    if (!room)
        return fail(m, ERR_MEMORY, "out of memory for a message", e);
    return check_mpi(m, rc, e);
}

int mpi_sent(struct comm *c, uint64_t ticket, struct err *e) {
    struct mpi *m = mpi_of(c);
    struct wait w = {.begin_ns = clock_ns()};
    for (;;) {
        bool late;
        int to = -1;
        TRY(failed_before(m, e));
        pthread_mutex_lock(&m->lock);
        const int rc = test_sends(m);
        for (int i = 0; i < m->n_sending && to < 0; i++)
            if (m->sending[i].ticket == ticket)
                to = m->sending[i].to;
        pthread_mutex_unlock(&m->lock);
        TRY(check_mpi(m, rc, e));
        if (to < 0)
            return 0;
        TRY(wait_turn(m, &w, &late, e));
        if (late)
            return fail_late(m, &to, 1, &w, e);
    }
}

// ---------------------------------------------------------------- receiving

static int wait_message(struct mpi *m, int from, MPI_Request *r, int *bytes, struct err *e) {
    struct wait w = {.begin_ns = clock_ns()};
    for (;;) {
        int done = 0;
        bool late;
        MPI_Status status;
        pthread_mutex_lock(&m->lock);
        int rc = MPI_Test(r, &done, &status);
        if (rc == MPI_SUCCESS && done)
            rc = MPI_Get_count(&status, MPI_BYTE, bytes);
        pthread_mutex_unlock(&m->lock);
        TRY(check_mpi(m, rc, e));
        if (done)
            return 0;
        TRY(wait_turn(m, &w, &late, e));
        if (late)
            return fail_late(m, &from, 1, &w, e);
    }
}

int mpi_recv(struct comm *c, int from, int channel, void *data, uint64_t bytes, struct err *e) {
    struct mpi *m = mpi_of(c);
    TRY(failed_before(m, e));
    uint64_t at = 0;
    do {
        const uint64_t left = bytes - at, some = left < PIECE_BYTES ? left : PIECE_BYTES;
        MPI_Request r;
        int got = 0;
        pthread_mutex_lock(&m->lock);
        const int rc = MPI_Irecv((char *)data + at, (int)some, MPI_BYTE, from,
                                 TAG_CHANNEL + channel, m->comm, &r);
        pthread_mutex_unlock(&m->lock);
        TRY(check_mpi(m, rc, e));
        TRY(wait_message(m, from, &r, &got, e));
        if ((uint64_t)got != some) {
            char text[160];
            snprintf(text, sizeof text, "rank %d sent %d bytes to rank %d, which expects %llu",
                     from, got, m->rank, (unsigned long long)some);
            return fail(m, ERR_INTERNAL, text, e);
        }
        at += some;
    } while (at < bytes);
    return 0;
}

// mpi_open.c - the MPI plug-in: joins the processes that mpirun or srun has started, and leaves.
#include "comm/mpi/mpi_rank.h"

#include "base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
comm_plugin_open_fn haggle_comm_open EXPORTED;
comm_plugin_library_fn haggle_comm_library EXPORTED;

// For chunks of 512 KiB among 4 ranks. More ranks have smaller chunks.
enum { SCRATCH_BYTES = 4 << 20, SCRATCH_LEAST = 4096 };

int haggle_comm_library(uint32_t abi, char out[COMM_LIBRARY_BYTES]) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    if (abi != COMM_PLUGIN_ABI || MPI_Get_library_version(text, &length) != MPI_SUCCESS)
        return ERR_UNSUPPORTED;
    text[strcspn(text, ",\n")] = '\0';
    for (char *at = text; *at; at++) // MPICH puts tabs between name and value
        *at = *at == '\t' ? ' ' : *at;
    snprintf(out, COMM_LIBRARY_BYTES, "%s", text);
    return 0;
}

// ---------------------------------------------------------------- the end

// A process that ends while MPI is at work ends the whole job: without that, some launchers would
// let the others wait for ever, and none could end one that is stopped.
static void at_exit(int status, void *arg) {
    struct mpi *m = arg;
    if (!m->ended && getpid() == m->process)
        MPI_Abort(MPI_COMM_WORLD, status != 0 ? status : 1);
}

// Memory that other ranks may still read must not go before they have left. The program watches for
// ranks that do not come.
static void close_rank(struct comm *c) {
    struct mpi *m = c->state;
    struct err why = {0};
    char here = 0;
    stop_pushing(m);
    m->timeout_ns = 0; // rank 0 has more to do than the others
    char *all = malloc((size_t)m->world);
    if (!all || m->host->lost(m->host->arg, &why) ||
        mpi_all_gather(c, 0, &here, all, m->world, DTYPE_U8, &why) != 0) {
        free(all);
        return; // what is left of m is needed until the process ends
    }
    free(all);
    pthread_mutex_lock(&m->lock);
    MPI_Comm_free(&m->comm);
    if (m->initialized)
        MPI_Finalize();
    m->ended = true;
    pthread_mutex_unlock(&m->lock);
    c->state = NULL;
    for (int i = 0; i < m->n_groups; i++)
        free(m->groups[i].ranks);
    free(m->sending);
    free(m->scratch);
    free(m->requests);
    free(m->missing);
    m->sending = NULL; // m itself stays for at_exit
}

// ---------------------------------------------------------------- the beginning

static int start_mpi(struct mpi *m, struct err *e) {
    int is = 0, was = 0, level = MPI_THREAD_SINGLE;
    MPI_Finalized(&was);
    if (was)
        return m->host->err_set(e, ERR_UNSUPPORTED,
                                "MPI has ended in this process, and it cannot begin again");
    MPI_Initialized(&is);
    if (is) {
        MPI_Query_thread(&level);
    } else {
        // Threads that MPI starts must not take the signals of this one.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        const int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (rc != MPI_SUCCESS)
            return m->host->err_set(e, ERR_RANK, "MPI could not be started (MPI_Init_thread: %d)",
                                    rc);
        m->initialized = true;
    }
    if (level < MPI_THREAD_SERIALIZED)
        return m->host->err_set(e, ERR_UNSUPPORTED,
                                "this MPI library lets one thread call it only; accepted: one that "
                                "grants MPI_THREAD_SERIALIZED");
    return 0;
}

static int join(struct mpi *m, struct comm *out, struct err *e) {
    MPI_Comm here = MPI_COMM_NULL;
    if (MPI_Comm_dup(MPI_COMM_WORLD, &m->comm) != MPI_SUCCESS ||
        MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN) != MPI_SUCCESS ||
        MPI_Comm_rank(m->comm, &m->rank) != MPI_SUCCESS ||
        MPI_Comm_size(m->comm, &m->world) != MPI_SUCCESS ||
        MPI_Comm_split_type(m->comm, MPI_COMM_TYPE_SHARED, m->rank, MPI_INFO_NULL, &here) !=
            MPI_SUCCESS)
        return m->host->err_set(e, ERR_RANK, "the ranks cannot reach each other over MPI");
    MPI_Comm_rank(here, &out->local_rank);
    MPI_Comm_size(here, &out->local_world);
    MPI_Comm_free(&here);
    if (m->world > COMM_RANKS_MOST)
        return m->host->err_set(e, ERR_UNSUPPORTED, "%d ranks are not accepted; accepted: up to %d",
                                m->world, COMM_RANKS_MOST);
    return 0;
}

// All memory that collectives need, for the largest group. It is touched now, so that it is part of
// what the process is measured to need.
static int take_memory(struct mpi *m, struct err *e) {
    const size_t world = (size_t)m->world, least = world * UNDER_WAY * SCRATCH_LEAST;
    m->scratch_bytes = SCRATCH_BYTES > least ? SCRATCH_BYTES : least;
    m->scratch = malloc(m->scratch_bytes);
    m->requests = malloc(world * KINDS * UNDER_WAY * sizeof(MPI_Request));
    m->missing = malloc(world * sizeof *m->missing);
    int *everyone = malloc(world * sizeof *everyone), group;
    if (!m->scratch || !m->requests || !m->missing || !everyone) {
        free(everyone);
        return m->host->err_set(e, ERR_MEMORY, "out of memory for %d ranks", m->world);
    }
    memset(m->scratch, 0, m->scratch_bytes);
    for (int i = 0; i < m->world; i++)
        everyone[i] = i;
    const int rc = mpi_group(&(struct comm){.state = m}, everyone, m->world, &group, e);
    free(everyone);
    return rc;
}

int haggle_comm_open(uint32_t abi, const struct comm_plugin_host *host, uint64_t timeout_ns,
                     struct comm *out, struct err *e) {
    if (abi != COMM_PLUGIN_ABI || host->abi != COMM_PLUGIN_ABI ||
        host->comm_bytes != sizeof(struct comm) || host->err_bytes != sizeof(struct err) ||
        host->dtype_count != DTYPE_COUNT) {
        if (e && host->err_bytes == sizeof *e) {
            e->code = ERR_UNSUPPORTED;
            snprintf(e->text, sizeof e->text,
                     "libhaggle_mpi.so was built for another version of haggle");
        }
        return ERR_UNSUPPORTED;
    }
    struct mpi *m = calloc(1, sizeof *m);
    if (!m)
        return host->err_set(e, ERR_MEMORY, "out of memory for the ranks");
    m->host = host;
    m->timeout_ns = timeout_ns;
    m->process = getpid();
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->work, NULL);
    int rc = start_mpi(m, e);
    if (m->initialized && on_exit(at_exit, m) != 0 && rc == 0)
        rc = host->err_set(e, ERR_MEMORY, "out of memory for the ranks");
    if (rc == 0)
        rc = join(m, out, e);
    if (rc == 0)
        rc = take_memory(m, e);
    if (rc != 0)
        return rc; // the process cannot try again, and its end is the end of the job
    out->name = "mpi";
    out->rank = m->rank;
    out->world = m->world;
    out->one_process = false;
    out->timeout_ns = timeout_ns;
    out->group = mpi_group;
    out->all_reduce = mpi_all_reduce;
    out->reduce_scatter = mpi_reduce_scatter;
    out->all_gather = mpi_all_gather;
    out->send = mpi_send;
    out->sent = mpi_sent;
    out->recv = mpi_recv;
    out->close = close_rank;
    out->state = m;
    return 0;
}

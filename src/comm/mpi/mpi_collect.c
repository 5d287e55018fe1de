// mpi_collect.c - collectives. Every member owns a part of the vector. It gets the terms of its
// part from all members, chunk by chunk, sums them in the order of ranks and, where all want the
// sum, sends it to all. While a chunk is summed, the terms of the next one are under way.
#include "comm/mpi/mpi_rank.h"

#include <stdlib.h>
#include <string.h>

// Small enough to stay in a core's cache, large enough that a message's own cost does not show.
enum { CHUNK_MOST = 256 << 10, SMALL_BYTES = 8192 };

static struct mpi *mpi_of(struct comm *c) {
    return c->state;
}

// ---------------------------------------------------------------- groups

int mpi_group(struct comm *c, const int *ranks, int n, int *out, struct err *e) {
    struct mpi *m = mpi_of(c);
    const size_t bytes = sizeof *ranks * (size_t)n;
    for (*out = 0; *out < m->n_groups; ++*out)
        if (m->groups[*out].n == n && memcmp(m->groups[*out].ranks, ranks, bytes) == 0)
            return 0;
    if (*out == COMM_GROUPS_MOST)
        return m->host->err_set(e, ERR_INTERNAL, "more than %d groups of ranks", COMM_GROUPS_MOST);
    struct group g = {.n = n, .me = -1, .ranks = malloc(bytes)};
    if (!g.ranks)
        return m->host->err_set(e, ERR_MEMORY, "out of memory for a group of %d ranks", n);
    memcpy(g.ranks, ranks, bytes);
    for (int i = 0; i < n; i++)
        if (ranks[i] == m->rank)
            g.me = i;
    m->groups[m->n_groups++] = g;
    return 0;
}

static int begin(struct comm *c, int group, const struct group **g, struct err *e) {
    struct mpi *m = mpi_of(c);
    *g = &m->groups[group];
    if ((*g)->me < 0)
        return m->host->err_set(e, ERR_INTERNAL, "rank %d is not in the group it names", m->rank);
    return failed_before(m, e);
}

// ---------------------------------------------------------------- one message

static int post(struct mpi *m, bool sends, void *data, size_t bytes, int rank, int tag,
                MPI_Request *r, struct err *e) {
    if (bytes == 0)
        return 0;
    pthread_mutex_lock(&m->lock);
    const int rc = sends ? MPI_Isend(data, (int)bytes, MPI_BYTE, rank, tag, m->comm, r)
                         : MPI_Irecv(data, (int)bytes, MPI_BYTE, rank, tag, m->comm, r);
    pthread_mutex_unlock(&m->lock);
    return check_mpi(m, rc, e);
}

// MPI before its version 3 took no const.
static void *plain(const void *x) {
    return (void *)(uintptr_t)x;
}

// ---------------------------------------------------------------- sums

struct reduction {
    struct mpi *m;
    const struct group *g;
    const char *full; // this rank's terms
    char *part;       // where the own part's sum goes
    char *all;        // where all parts' sums go; NULL: nowhere
    int64_t n;        // elements of full
    int64_t chunk;    // most elements of a chunk
    enum dtype type;
    size_t width;
    bool add;
};

// The chunk of a member's part: elements [from, from + length).
struct span {
    int64_t from, length;
};

static struct span chunk_of(const struct reduction *r, int member, int64_t chunk) {
    const int64_t begin = r->n * member / r->g->n, end = r->n * (member + 1) / r->g->n,
                  from = begin + chunk * r->chunk, left = end - from;
    return (struct span){from, left < 0 ? 0 : left < r->chunk ? left : r->chunk};
}

static MPI_Request *requests(const struct reduction *r, int64_t chunk, int kind) {
    return r->m->requests + ((chunk % UNDER_WAY) * KINDS + kind) * r->g->n;
}
enum { TERMS_IN, TERMS_OUT, SUMS_IN, SUMS_OUT };

static char *terms_of(const struct reduction *r, int64_t chunk, int member) {
    return r->m->scratch +
           (size_t)((chunk % UNDER_WAY) * r->g->n + member) * (size_t)r->chunk * r->width;
}

// Terms of the chunk go out and come in. What used its room before has to be over.
static int begin_chunk(const struct reduction *r, int64_t chunk, struct err *e) {
    const struct group *g = r->g;
    const struct span own = chunk_of(r, g->me, chunk);
    TRY(wait_all(r->m, g, requests(r, chunk, SUMS_IN), 2 * g->n, e));
    for (int k = 0; k < g->n; k++)
        if (k != g->me)
            TRY(post(r->m, false, terms_of(r, chunk, k), (size_t)own.length * r->width, g->ranks[k],
                     TAG_PARTS, &requests(r, chunk, TERMS_IN)[k], e));
    for (int i = 1; i < g->n; i++) { // not all to the same member first
        const int k = (g->me + i) % g->n;
        const struct span s = chunk_of(r, k, chunk);
        TRY(post(r->m, true, plain(r->full + (size_t)s.from * r->width),
                 (size_t)s.length * r->width, g->ranks[k], TAG_PARTS,
                 &requests(r, chunk, TERMS_OUT)[k], e));
    }
    return 0;
}

static int sum_chunk(const struct reduction *r, int64_t chunk, char *out, struct err *e) {
    const struct group *g = r->g;
    const struct span own = chunk_of(r, g->me, chunk);
    const void *in[COMM_RANKS_MOST];
    for (int k = 0; k < g->n; k++)
        in[k] = k == g->me ? r->full + (size_t)own.from * r->width : terms_of(r, chunk, k);
    return r->m->host->sum(out, in, g->n, own.length, r->type, r->add, e);
}

// Sums the chunk of the own part. Sums may be received where terms were sent from, because those
// have gone.
static int end_chunk(const struct reduction *r, int64_t chunk, struct err *e) {
    const struct group *g = r->g;
    const struct span own = chunk_of(r, g->me, chunk);
    char *out = r->part + (size_t)(own.from - r->n * g->me / g->n) * r->width;
    TRY(wait_all(r->m, g, requests(r, chunk, TERMS_IN), 2 * g->n, e));
    TRY(sum_chunk(r, chunk, out, e));
    for (int k = 0; r->all && k < g->n; k++) {
        const struct span s = chunk_of(r, k, chunk);
        if (k != g->me)
            TRY(post(r->m, false, r->all + (size_t)s.from * r->width, (size_t)s.length * r->width,
                     g->ranks[k], TAG_SUMS, &requests(r, chunk, SUMS_IN)[k], e));
    }
    for (int i = 1; r->all && i < g->n; i++) {
        const int k = (g->me + i) % g->n;
        TRY(post(r->m, true, out, (size_t)own.length * r->width, g->ranks[k], TAG_SUMS,
                 &requests(r, chunk, SUMS_OUT)[k], e));
    }
    return 0;
}

static void no_requests(struct mpi *m, const struct group *g) {
    for (int i = 0; i < KINDS * UNDER_WAY * g->n; i++)
        m->requests[i] = MPI_REQUEST_NULL;
}

static int reduce(struct reduction *r, struct err *e) {
    struct mpi *m = r->m;
    const struct group *g = r->g;
    const size_t room = m->scratch_bytes / (size_t)(UNDER_WAY * g->n),
                 bytes = room < CHUNK_MOST ? room : CHUNK_MOST;
    const int64_t longest = (r->n + g->n - 1) / g->n;
    r->chunk = (int64_t)(bytes / r->width);
    const int64_t chunks = (longest + r->chunk - 1) / r->chunk;
    no_requests(m, g);
    if (chunks > 0)
        TRY(begin_chunk(r, 0, e));
    for (int64_t c = 0; c < chunks; c++) {
        if (c + 1 < chunks)
            TRY(begin_chunk(r, c + 1, e));
        TRY(end_chunk(r, c, e));
    }
    return wait_all(m, g, m->requests, KINDS * UNDER_WAY * g->n, e);
}

// Everybody gets everything, and sums all of it.
static int all_reduce_small(struct mpi *m, const struct group *g, void *x, int64_t n, enum dtype t,
                            struct err *e) {
    const size_t bytes = (size_t)n * m->host->dtype_bytes(t);
    const void *in[COMM_RANKS_MOST];
    no_requests(m, g);
    for (int k = 0; k < g->n; k++) {
        in[k] = k == g->me ? x : m->scratch + (size_t)k * bytes;
        if (k != g->me)
            TRY(post(m, false, plain(in[k]), bytes, g->ranks[k], TAG_PARTS, &m->requests[k], e));
    }
    for (int i = 1; i < g->n; i++) {
        const int k = (g->me + i) % g->n;
        TRY(post(m, true, x, bytes, g->ranks[k], TAG_PARTS, &m->requests[g->n + k], e));
    }
    TRY(wait_all(m, g, m->requests, 2 * g->n, e));
    return m->host->sum(x, in, g->n, n, t, false, e);
}

int mpi_all_reduce(struct comm *c, int group, void *x, int64_t n, enum dtype t, struct err *e) {
    struct mpi *m = mpi_of(c);
    const struct group *g;
    TRY(begin(c, group, &g, e));
    const size_t width = m->host->dtype_bytes(t), bytes = (size_t)n * width;
    if (bytes <= SMALL_BYTES && bytes * (size_t)g->n <= m->scratch_bytes)
        return all_reduce_small(m, g, x, n, t, e);
    struct reduction r = {.m = m,
                          .g = g,
                          .full = x,
                          .part = (char *)x + (size_t)(n * g->me / g->n) * width,
                          .all = x,
                          .n = n,
                          .type = t,
                          .width = width};
    return reduce(&r, e);
}

int mpi_reduce_scatter(struct comm *c, int group, const void *full, void *part, int64_t n,
                       enum dtype t, bool add, struct err *e) {
    struct mpi *m = mpi_of(c);
    struct reduction r = {.m = m,
                          .full = full,
                          .part = part,
                          .n = n,
                          .type = t,
                          .width = m->host->dtype_bytes(t),
                          .add = add};
    TRY(begin(c, group, &r.g, e));
    return reduce(&r, e);
}

// ---------------------------------------------------------------- gathers

// A piece [from, from + some) of every part. What used its requests before has to be over.
static int gather_piece(struct mpi *m, const struct group *g, const char *part, char *full,
                        size_t bytes, size_t from, MPI_Request *r, struct err *e) {
    const size_t left = bytes - from, some = left < CHUNK_MOST ? left : CHUNK_MOST;
    TRY(wait_all(m, g, r, 2 * g->n, e));
    for (int k = 0; k < g->n; k++)
        if (k != g->me)
            TRY(post(m, false, full + (size_t)k * bytes + from, some, g->ranks[k], TAG_SUMS, &r[k],
                     e));
    for (int i = 1; i < g->n; i++) {
        const int k = (g->me + i) % g->n;
        TRY(post(m, true, plain(part + from), some, g->ranks[k], TAG_SUMS, &r[g->n + k], e));
    }
    return 0;
}

int mpi_all_gather(struct comm *c, int group, const void *part, void *full, int64_t n, enum dtype t,
                   struct err *e) {
    struct mpi *m = mpi_of(c);
    const struct group *g;
    TRY(begin(c, group, &g, e));
    const size_t bytes = (size_t)(n / g->n) * m->host->dtype_bytes(t);
    char *own = (char *)full + (size_t)g->me * bytes;
    no_requests(m, g);
    for (size_t from = 0, i = 0; from < bytes; from += CHUNK_MOST, i++)
        TRY(gather_piece(m, g, part, full, bytes, from,
                         m->requests + i % (2 * UNDER_WAY) * 2 * (size_t)g->n, e));
    TRY(wait_all(m, g, m->requests, KINDS * UNDER_WAY * g->n, e));
    if (part != own)
        memmove(own, part, bytes);
    return 0;
}

// comm_thread.c - the engine whose ranks are threads of one process.
//
// Ranks read each other's memory. A collective is a few meetings: at the first one every rank has
// posted the addresses of its tensors, at the last one no rank needs another's any more. Between
// them each rank sums its own part, reading all others' in the order of the ranks, and copies the
// parts that others have summed.
//
// One lock guards the whole job. It is held to post and to meet, never while bytes are moved.
#include "comm/late.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct post { // what one member brings to a meeting
    const void *in;
    void *out;
    int64_t n;
    enum dtype type;
};

struct group {
    int n;
    int *ranks;
    struct post *posts; // by member
    bool *here;         // by member: waits at the meeting
    int arrived;
    uint64_t meetings;
};

struct letter {
    int from, to, channel;
    const void *data;
    uint64_t bytes, ticket;
    bool taken, read;
    struct letter *next;
};

struct rank {
    struct comm table; // first: a comm is also its rank
    struct comm_job *job;
    int receives_from; // under the lock: the rank it waits for a message of; -1: none
};

struct comm_job {
    int world;
    uint64_t timeout_ns;
    struct rank *ranks;
    pthread_mutex_t lock;
    pthread_cond_t changed; // by the monotonic clock
    // Under the lock:
    struct late_rank *table; // by rank
    struct group groups[COMM_GROUPS_MOST];
    int n_groups;
    struct letter *letters; // in the order of sending
    uint64_t tickets;
    struct err failed; // the first failure; code 0: none
    int left;          // ranks that have ended
};

static struct rank *rank_of(struct comm *c) {
    return (struct rank *)(void *)c;
}

// ---------------------------------------------------------------- waiting

static struct timespec deadline(const struct comm_job *j) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(j->timeout_ns / 1000000000u);
    t.tv_nsec += (long)(j->timeout_ns % 1000000000u);
    if (t.tv_nsec >= 1000000000L)
        t.tv_sec++, t.tv_nsec -= 1000000000L;
    return t;
}

// Waits for a change. False: the time is over.
static bool wait_change(struct comm_job *j, const struct timespec *until) {
    return j->timeout_ns == 0 ? pthread_cond_wait(&j->changed, &j->lock) == 0
                              : pthread_cond_timedwait(&j->changed, &j->lock, until) != ETIMEDOUT;
}

static int lost(struct comm_job *j, struct err *e) {
    return err_set(e, j->failed.code, "%s", j->failed.text);
}

// The first failure stays. Every rank that waits hears of it.
static void fail_job(struct comm_job *j, int code, const char *text) {
    if (j->failed.code == 0)
        err_set(&j->failed, code, "%s", text);
    pthread_cond_broadcast(&j->changed);
}

static void mark_wait(struct comm_job *j, int waits, int missing) {
    j->table[waits].waits = true;
    j->table[missing].missing = true;
}

// A rank has waited too long. Tells who waits for whom at this moment, and what all ranks do.
static void fail_late(struct comm_job *j) {
    char text[ERR_TEXT_BYTES];
    for (int k = 0; k < j->n_groups; k++) {
        const struct group *g = &j->groups[k];
        for (int i = 0; i < g->n && g->arrived > 0; i++)
            *(g->here[i] ? &j->table[g->ranks[i]].waits : &j->table[g->ranks[i]].missing) = true;
    }
    for (int r = 0; r < j->world; r++)
        if (j->ranks[r].receives_from >= 0)
            mark_wait(j, r, j->ranks[r].receives_from);
    late_text(text, j->table, j->world, j->timeout_ns);
    fail_job(j, ERR_RANK, text);
}

// ---------------------------------------------------------------- groups and meetings

static int find_group(struct comm *c, const int *ranks, int n, int *out, struct err *e) {
    struct comm_job *j = rank_of(c)->job;
    const size_t bytes = sizeof *ranks * (size_t)n;
    int rc = 0;
    pthread_mutex_lock(&j->lock);
    for (*out = 0; *out < j->n_groups; ++*out)
        if (j->groups[*out].n == n && memcmp(j->groups[*out].ranks, ranks, bytes) == 0)
            break;
    if (*out == COMM_GROUPS_MOST) {
        rc = err_set(e, ERR_INTERNAL, "more than %d groups of ranks", COMM_GROUPS_MOST);
    } else if (*out == j->n_groups) {
        struct group g = {.n = n,
                          .ranks = malloc(bytes),
                          .posts = calloc((size_t)n, sizeof *g.posts),
                          .here = calloc((size_t)n, sizeof *g.here)};
        if (g.ranks && g.posts && g.here) {
            memcpy(g.ranks, ranks, bytes);
            j->groups[j->n_groups++] = g;
        } else {
            free(g.ranks), free(g.posts), free(g.here);
            rc = err_set(e, ERR_MEMORY, "out of memory for a group of %d ranks", n);
        }
    }
    pthread_mutex_unlock(&j->lock);
    return rc;
}

static int member_of(const struct group *g, int rank) {
    for (int i = 0; i < g->n; i++)
        if (g->ranks[i] == rank)
            return i;
    return -1;
}

// Waits until every member is here. post: what this member brings; NULL: what it brought before.
static int meet(struct rank *r, struct group *g, int me, const struct post *post, struct err *e) {
    struct comm_job *j = r->job;
    const struct timespec until = deadline(j);
    pthread_mutex_lock(&j->lock);
    const uint64_t meeting = g->meetings;
    if (post)
        g->posts[me] = *post;
    g->here[me] = true;
    if (++g->arrived == g->n) {
        g->arrived = 0;
        memset(g->here, 0, (size_t)g->n * sizeof *g->here);
        g->meetings++;
        pthread_cond_broadcast(&j->changed);
    }
    while (g->meetings == meeting && j->failed.code == 0)
        if (!wait_change(j, &until) && g->meetings == meeting && j->failed.code == 0)
            fail_late(j);
    const int rc = j->failed.code != 0 ? lost(j, e) : 0;
    pthread_mutex_unlock(&j->lock);
    return rc;
}

// Posts and meets. Members that do not move the same elements would read each other's memory beyond
// its end.
static int begin(struct rank *r, int group, const struct post *post, struct group **out, int *me,
                 struct err *e) {
    struct group *g = *out = &r->job->groups[group];
    *me = member_of(g, r->table.rank);
    if (*me < 0)
        return err_set(e, ERR_INTERNAL, "rank %d is not in the group it names", r->table.rank);
    TRY(meet(r, g, *me, post, e));
    for (int i = 0; i < g->n; i++)
        if (g->posts[i].n != post->n || g->posts[i].type != post->type)
            return err_set(e, ERR_INTERNAL, "ranks %d and %d move different numbers of elements",
                           r->table.rank, g->ranks[i]);
    return 0;
}

// ---------------------------------------------------------------- collectives

static const void *element(const void *x, int64_t i, enum dtype t) {
    return (const char *)x + (size_t)i * dtype_bytes(t);
}

// Sums elements [from, to) of what all members posted.
static int sum_range(const struct group *g, int64_t from, int64_t to, void *out, enum dtype t,
                     bool add, struct err *e) {
    const void *in[COMM_RANKS_MOST];
    for (int i = 0; i < g->n; i++)
        in[i] = element(g->posts[i].in, from, t);
    return comm_sum(out, in, g->n, to - from, t, add, e);
}

enum { SMALL_BYTES = 4096 };

// Each member sums all of it. One meeting fewer.
static int all_reduce_small(struct rank *r, struct group *g, int me, void *x, int64_t n,
                            enum dtype t, struct err *e) {
    char sum[SMALL_BYTES];
    TRY(sum_range(g, 0, n, sum, t, false, e));
    TRY(meet(r, g, me, NULL, e));
    memcpy(x, sum, (size_t)n * dtype_bytes(t));
    return 0;
}

static int all_reduce(struct comm *c, int group, void *x, int64_t n, enum dtype t, struct err *e) {
    struct rank *r = rank_of(c);
    struct group *g;
    int me;
    TRY(begin(r, group, &(struct post){x, x, n, t}, &g, &me, e));
    if ((size_t)n * dtype_bytes(t) <= SMALL_BYTES)
        return all_reduce_small(r, g, me, x, n, t, e);
    const int64_t from = n * me / g->n, to = n * (me + 1) / g->n;
    TRY(sum_range(g, from, to, (void *)(uintptr_t)element(x, from, t), t, false, e));
    TRY(meet(r, g, me, NULL, e));
    for (int i = 0; i < g->n; i++) {
        const int64_t begin_i = n * i / g->n, end_i = n * (i + 1) / g->n;
        if (i != me)
            memcpy((void *)(uintptr_t)element(x, begin_i, t), element(g->posts[i].out, begin_i, t),
                   (size_t)(end_i - begin_i) * dtype_bytes(t));
    }
    return meet(r, g, me, NULL, e);
}

static int reduce_scatter(struct comm *c, int group, const void *full, void *part, int64_t n,
                          enum dtype t, bool add, struct err *e) {
    struct rank *r = rank_of(c);
    struct group *g;
    int me;
    TRY(begin(r, group, &(struct post){full, part, n, t}, &g, &me, e));
    const int64_t share = n / g->n;
    TRY(sum_range(g, me * share, (me + 1) * share, part, t, add, e));
    return meet(r, g, me, NULL, e);
}

static int all_gather(struct comm *c, int group, const void *part, void *full, int64_t n,
                      enum dtype t, struct err *e) {
    struct rank *r = rank_of(c);
    struct group *g;
    int me;
    TRY(begin(r, group, &(struct post){part, full, n, t}, &g, &me, e));
    const size_t bytes = (size_t)(n / g->n) * dtype_bytes(t);
    for (int i = 0; i < g->n; i++) {
        void *to = (char *)full + (size_t)i * bytes;
        if (g->posts[i].in != to)
            memcpy(to, g->posts[i].in, bytes);
    }
    return meet(r, g, me, NULL, e);
}

// ---------------------------------------------------------------- messages

static int send(struct comm *c, int to, int channel, const void *data, uint64_t bytes,
                uint64_t *ticket, struct err *e) {
    struct comm_job *j = rank_of(c)->job;
    struct letter *l = malloc(sizeof *l), **end = &j->letters;
    if (!l)
        return err_set(e, ERR_MEMORY, "out of memory for a message");
    pthread_mutex_lock(&j->lock);
    *ticket = ++j->tickets;
    *l = (struct letter){c->rank, to, channel, data, bytes, *ticket, false, false, NULL};
    while (*end)
        end = &(*end)->next;
    *end = l;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    return 0;
}

static int sent(struct comm *c, uint64_t ticket, struct err *e) {
    struct rank *r = rank_of(c);
    struct comm_job *j = r->job;
    const struct timespec until = deadline(j);
    pthread_mutex_lock(&j->lock);
    struct letter **at = &j->letters;
    while (*at && (*at)->ticket != ticket)
        at = &(*at)->next;
    struct letter *l = *at;
    while (l && !l->read && j->failed.code == 0)
        if (!wait_change(j, &until) && !l->read && j->failed.code == 0) {
            mark_wait(j, c->rank, l->to);
            fail_late(j);
        }
    const int rc = j->failed.code != 0 ? lost(j, e) : 0;
    for (at = &j->letters; rc == 0 && *at; at = &(*at)->next) // others may have changed the list
        if (*at == l) {
            *at = l->next;
            free(l);
            break;
        }
    pthread_mutex_unlock(&j->lock);
    return rc;
}

static struct letter *find_letter(struct comm_job *j, int from, int to, int channel) {
    struct letter *l = j->letters;
    while (l && (l->taken || l->from != from || l->to != to || l->channel != channel))
        l = l->next;
    return l;
}

static int recv(struct comm *c, int from, int channel, void *data, uint64_t bytes, struct err *e) {
    struct rank *r = rank_of(c);
    struct comm_job *j = r->job;
    const struct timespec until = deadline(j);
    struct letter *l;
    pthread_mutex_lock(&j->lock);
    r->receives_from = from;
    while (!(l = find_letter(j, from, c->rank, channel)) && j->failed.code == 0)
        if (!wait_change(j, &until) && !find_letter(j, from, c->rank, channel) &&
            j->failed.code == 0)
            fail_late(j);
    r->receives_from = -1;
    int rc = j->failed.code != 0 ? lost(j, e) : 0;
    if (rc == 0 && l->bytes != bytes)
        rc = err_set(e, ERR_INTERNAL, "rank %d sent %llu bytes to rank %d, which expects %llu",
                     from, (unsigned long long)l->bytes, c->rank, (unsigned long long)bytes);
    if (rc == 0)
        l->taken = true;
    pthread_mutex_unlock(&j->lock);
    if (rc != 0)
        return rc;
    memcpy(data, l->data, bytes);
    pthread_mutex_lock(&j->lock);
    l->read = true;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    return 0;
}

// ---------------------------------------------------------------- the job

static void note(struct comm *c, const char *about) {
    struct comm_job *j = rank_of(c)->job;
    pthread_mutex_lock(&j->lock);
    doing_note(&j->table[c->rank].doing, about);
    pthread_mutex_unlock(&j->lock);
}

static void give_up(struct comm *c, const char *why) {
    struct comm_job *j = rank_of(c)->job;
    char text[ERR_TEXT_BYTES];
    snprintf(text, sizeof text, "rank %d failed: %.900s", c->rank, why);
    pthread_mutex_lock(&j->lock);
    fail_job(j, ERR_RANK, text);
    pthread_mutex_unlock(&j->lock);
}

// Another rank may still read this one's memory after a failure. So a rank leaves when all do, or
// when those that are left have had their time.
enum { LEAVE_S = 10 };
static void close_rank(struct comm *c) {
    struct comm_job *j = rank_of(c)->job;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LEAVE_S;
    pthread_mutex_lock(&j->lock);
    j->left++;
    j->table[c->rank].where = LATE_LEFT;
    pthread_cond_broadcast(&j->changed);
    while (j->left < j->world && pthread_cond_timedwait(&j->changed, &j->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&j->lock);
}

int comm_job_open(struct comm_job **out, int world, uint64_t timeout_ns, struct err *e) {
    struct comm_job *j = *out = calloc(1, sizeof *j);
    if (j) {
        j->ranks = calloc((size_t)world, sizeof *j->ranks);
        j->table = calloc((size_t)world, sizeof *j->table);
    }
    if (!j || !j->ranks || !j->table) {
        if (j)
            free(j->ranks), free(j->table);
        free(j);
        *out = NULL;
        return err_set(e, ERR_MEMORY, "out of memory for %d ranks", world);
    }
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->changed, &clock);
    pthread_condattr_destroy(&clock);
    j->world = world;
    j->timeout_ns = timeout_ns;
    for (int i = 0; i < world; i++) {
        j->ranks[i] = (struct rank){.job = j, .receives_from = -1};
        j->ranks[i].table = (struct comm){.name = "thread",
                                          .rank = i,
                                          .world = world,
                                          .local_rank = i,
                                          .local_world = world,
                                          .one_process = true,
                                          .timeout_ns = timeout_ns,
                                          .group = find_group,
                                          .all_reduce = all_reduce,
                                          .reduce_scatter = reduce_scatter,
                                          .all_gather = all_gather,
                                          .send = send,
                                          .sent = sent,
                                          .recv = recv,
                                          .note = note,
                                          .give_up = give_up,
                                          .close = close_rank};
    }
    return 0;
}

struct comm *comm_job_rank(struct comm_job *j, int rank) {
    return &j->ranks[rank].table;
}

void comm_job_close(struct comm_job *j) {
    if (!j)
        return;
    for (int i = 0; i < j->n_groups; i++)
        free(j->groups[i].ranks), free(j->groups[i].posts), free(j->groups[i].here);
    for (struct letter *l = j->letters, *next; l; l = next) {
        next = l->next;
        free(l);
    }
    pthread_cond_destroy(&j->changed);
    pthread_mutex_destroy(&j->lock);
    free(j->ranks);
    free(j->table);
    free(j);
}

// test_comm.c - engines of communication: sums have one order and the same bits on every rank,
// messages arrive in order, and a rank that is missing or fails is named to all others.
//
// Ranks are threads. Under mpirun -n 5 (tests/cli/test_mpi.sh) they are processes, and the argument
// says which ranks' work is done: "good", or one of the faults.
#include "comm/comm.h"

#include "base/clock.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>

enum { RANKS = 5, MOST = 20000, CHUNKS = 700001 };

// What a rank does; a failure is an error, because cmocka cannot fail in another thread.
typedef int rank_fn(struct comm *c, struct err *e);

struct team {
    struct comm *c;
    rank_fn *fn;
    int rc;
    struct err e;
    pthread_t thread;
};

static void *begin(void *arg) {
    struct team *t = arg;
    t->rc = t->fn(t->c, &t->e);
    t->c->close(t->c);
    return NULL;
}

static void run_team(struct team team[RANKS], rank_fn *fn, uint64_t timeout_ns) {
    struct comm_job *job;
    struct err e = {0};
    assert_int_equal(comm_job_open(&job, RANKS, timeout_ns, &e), 0);
    for (int i = 0; i < RANKS; i++) {
        team[i] = (struct team){.c = comm_job_rank(job, i), .fn = fn};
        assert_int_equal(pthread_create(&team[i].thread, NULL, begin, &team[i]), 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(team[i].thread, NULL);
    comm_job_close(job);
}

static void run_all(rank_fn *fn) {
    struct team team[RANKS];
    run_team(team, fn, 10000000000u);
    for (int i = 0; i < RANKS; i++)
        if (team[i].rc != 0)
            fail_msg("rank %d: %s", i, team[i].e.text);
}

static int wrong(struct err *e, const char *what, int64_t at) {
    return err_set(e, ERR_INTERNAL, "%s: element %lld is wrong", what, (long long)at);
}

static float value(int rank, int64_t i) {
    return (float)rng_normal(7, (uint64_t)rank, (uint64_t)i);
}

// ---------------------------------------------------------------- sums

static const int world[RANKS] = {0, 1, 2, 3, 4}, some[3] = {1, 2, 4};

// In the order of the ranks, in float32.
static float expected(const int *ranks, int n, int64_t i) {
    float sum = value(ranks[0], i);
    for (int k = 1; k < n; k++)
        sum += value(ranks[k], i);
    return sum;
}

static int try_sums(struct comm *c, const int *ranks, int n, int64_t elements, struct err *e) {
    float *x = malloc((size_t)elements * sizeof *x), *part = malloc((size_t)elements * sizeof *x);
    int group, me = 0, rc = x && part ? c->group(c, ranks, n, &group, e) : ERR_MEMORY;
    while (me < n && ranks[me] != c->rank)
        me++;
    for (int64_t i = 0; rc == 0 && i < elements; i++)
        x[i] = value(c->rank, i);
    if (rc == 0)
        rc = c->all_reduce(c, group, x, elements, DTYPE_F32, e);
    for (int64_t i = 0; rc == 0 && i < elements; i++)
        if (x[i] != expected(ranks, n, i))
            rc = wrong(e, "all_reduce", i);
    const int64_t share = elements / n, whole = share * n;
    for (int add = 0; add < 2 && rc == 0; add++) {
        for (int64_t i = 0; i < whole; i++)
            x[i] = value(c->rank, i);
        for (int64_t i = 0; i < share; i++)
            part[i] = 1;
        rc = c->reduce_scatter(c, group, x, part, whole, DTYPE_F32, add, e);
        for (int64_t i = 0; rc == 0 && i < share; i++)
            if (part[i] !=
                (add ? 1 + expected(ranks, n, me * share + i) : expected(ranks, n, me * share + i)))
                rc = wrong(e, "reduce_scatter", i);
    }
    if (rc == 0) // in place: the own part of the whole
        rc = c->reduce_scatter(c, group, x, x + me * share, whole, DTYPE_F32, false, e);
    if (rc == 0)
        rc = c->all_gather(c, group, x + me * share, x, whole, DTYPE_F32, e);
    for (int64_t i = 0; rc == 0 && i < whole; i++)
        if (x[i] != expected(ranks, n, i))
            rc = wrong(e, "all_gather", i);
    free(x);
    free(part);
    return rc;
}

static int sums(struct comm *c, struct err *e) {
    static const int64_t sizes[] = {1, 3, 5, 255, 1030, MOST};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        TRY(try_sums(c, world, RANKS, sizes[i], e));
        if (c->rank == 1 || c->rank == 2 || c->rank == 4)
            TRY(try_sums(c, some, 3, sizes[i], e));
    }
    return try_sums(c, world, RANKS, CHUNKS, e); // several chunks of each part, the last one short
}

static void test_sums(void **state) {
    (void)state;
    run_all(sums);
}

// 16-bit values are summed in float32 and rounded once: 256 + 1 + 1 is 258, not 256.
static int narrow_sums(struct comm *c, struct err *e) {
    static const float terms[RANKS] = {256, 1, 1, 0, 0};
    uint16_t x[2000], half[2000];
    int group;
    TRY(c->group(c, world, RANKS, &group, e));
    for (int i = 0; i < 2000; i++) {
        x[i] = dtype_f32_to_bf16(terms[c->rank]);
        half[i] = dtype_f32_to_f16(terms[c->rank]);
    }
    TRY(c->all_reduce(c, group, x, 2000, DTYPE_BF16, e));
    TRY(c->all_reduce(c, group, half, 2000, DTYPE_F16, e));
    for (int i = 0; i < 2000; i++)
        if (dtype_bf16_to_f32(x[i]) != 258 || dtype_f16_to_f32(half[i]) != 258)
            return wrong(e, "a 16-bit sum", i);
    int32_t ids[2] = {1, 2};
    struct err refused = {0};
    if (c->rank == 0 &&
        comm_sum(ids, (const void *const[]){ids}, 1, 2, DTYPE_I32, false, &refused) != ERR_INTERNAL)
        return err_set(e, ERR_INTERNAL, "integers were summed");
    return 0;
}

static void test_narrow_sums(void **state) {
    (void)state;
    run_all(narrow_sums);
}

// ---------------------------------------------------------------- messages

// A ring: all send before any receives. Channels do not mix, and messages keep their order.
static int ring(struct comm *c, struct err *e) {
    enum { MESSAGES = 20 };
    double sent[2 * MESSAGES], got;
    uint64_t tickets[2 * MESSAGES];
    const int next = (c->rank + 1) % RANKS, before = (c->rank + RANKS - 1) % RANKS;
    for (int i = 0; i < 2 * MESSAGES; i++) {
        sent[i] = 100 * c->rank + i;
        TRY(c->send(c, next, i % 2, &sent[i], sizeof sent[i], &tickets[i], e));
    }
    for (int channel = 1; channel >= 0; channel--)
        for (int i = channel; i < 2 * MESSAGES; i += 2) {
            TRY(c->recv(c, before, channel, &got, sizeof got, e));
            if (got != 100 * before + i)
                return wrong(e, "a message", i);
        }
    for (int i = 0; i < 2 * MESSAGES; i++)
        TRY(c->sent(c, tickets[i], e));
    return 0;
}

// Longer than what an engine could keep until it is asked for. Both ranks send first.
static int long_messages(struct comm *c, struct err *e) {
    const int64_t n = 1 << 20;
    const int other = c->rank ^ 1;
    if (other >= RANKS)
        return 0;
    int32_t *mine = malloc((size_t)n * 2 * sizeof *mine), *theirs = mine + n;
    uint64_t ticket;
    if (!mine)
        return err_set(e, ERR_MEMORY, "out of memory");
    for (int64_t i = 0; i < n; i++)
        mine[i] = (int32_t)(i * (c->rank + 1));
    int rc = c->send(c, other, 3, mine, (uint64_t)n * sizeof *mine, &ticket, e);
    if (rc == 0)
        rc = c->recv(c, other, 3, theirs, (uint64_t)n * sizeof *mine, e);
    if (rc == 0)
        rc = c->sent(c, ticket, e);
    for (int64_t i = 0; rc == 0 && i < n; i++)
        if (theirs[i] != (int32_t)(i * (other + 1)))
            rc = wrong(e, "a long message", i);
    free(mine);
    return rc;
}

static void test_messages(void **state) {
    (void)state;
    run_all(ring);
    run_all(long_messages);
}

// ---------------------------------------------------------------- agreement

static int agreement(struct comm *c, struct err *e) {
    double words[2] = {c->rank, -c->rank};
    TRY(comm_agree(c, 0, words, 2, e));
    if (words[0] != RANKS - 1 || words[1] != 0)
        return wrong(e, "agreed words", 0);
    // Two ranks fail. All hear of the first of them.
    struct err mine = {0};
    const int rc = c->rank == 3 || c->rank == 2
                       ? err_set(&mine, ERR_MEMORY, "rank has no room: %d", c->rank)
                       : 0;
    if (comm_agree(c, rc, NULL, 0, &mine) != ERR_MEMORY || !strstr(mine.text, "rank 2: ") ||
        !strstr(mine.text, "no room: 2"))
        return err_set(e, ERR_INTERNAL, "rank %d heard: %s", c->rank, mine.text);
    TRY(comm_same(c, "same", 4, "knobs", e));
    err_clear(&mine);
    if (comm_same(c, c->rank == 4 ? "other" : "equal", 5, "knobs", &mine) != ERR_MISMATCH ||
        !strstr(mine.text, "rank 4 has other knobs"))
        return err_set(e, ERR_INTERNAL, "rank %d heard: %s", c->rank, mine.text);
    return 0;
}

static void test_agreement(void **state) {
    (void)state;
    struct err e = {0};
    run_all(agreement);
    assert_int_equal(comm_agree(NULL, ERR_IO, NULL, 0, &e), ERR_IO); // alone
    assert_int_equal(comm_same(NULL, "x", 1, "knobs", &e), 0);
}

// ---------------------------------------------------------------- faults

static int one_is_missing(struct comm *c, struct err *e) {
    double x = 1;
    int group;
    TRY(c->group(c, world, RANKS, &group, e));
    c->note(c, "the hall");
    c->note(c, c->rank == 3 ? "the kitchen" : "the sum");
    return c->rank == 3 ? 0 : c->all_reduce(c, group, &x, 1, DTYPE_F64, e);
}

// Rank 0 waits for rank 1, which waits for rank 2. Only rank 2 is to blame.
static int a_chain_waits(struct comm *c, struct err *e) {
    double x;
    c->note(c, "the cellar");
    if (c->rank < 2)
        return c->recv(c, c->rank + 1, 0, &x, sizeof x, e);
    c->note(c, NULL);
    return 0;
}

static int nothing_comes(struct comm *c, struct err *e) {
    double x;
    c->note(c, "the garden");
    return c->rank == 0 ? c->recv(c, 2, 0, &x, sizeof x, e) : 0;
}

static int nobody_takes_it(struct comm *c, struct err *e) {
    double x = 1;
    uint64_t ticket;
    c->note(c, "the attic");
    if (c->rank != 0)
        return 0;
    TRY(c->send(c, 1, 0, &x, sizeof x, &ticket, e));
    return c->sent(c, ticket, e);
}

static int one_gives_up(struct comm *c, struct err *e) {
    double x = 1;
    int group;
    TRY(c->group(c, world, RANKS, &group, e));
    if (c->rank == 1) {
        c->give_up(c, "its disk is full");
        return 0;
    }
    return c->all_reduce(c, group, &x, 1, DTYPE_F64, e);
}

static void expect(rank_fn *fn, uint64_t timeout_ns, const char *a, const char *b) {
    struct team team[RANKS];
    int failed = 0;
    const uint64_t begin_ns = clock_ns();
    run_team(team, fn, timeout_ns);
    for (int i = 0; i < RANKS; i++) {
        failed += team[i].rc != 0;
        if (team[i].rc != 0 && (!strstr(team[i].e.text, a) || !strstr(team[i].e.text, b)))
            fail_msg("rank %d says: %s", i, team[i].e.text);
    }
    assert_true(failed > 0);
    assert_true(clock_ns() - begin_ns < 8000000000u);
}

static void test_faults(void **state) {
    (void)state;
    expect(one_is_missing, 200000000, "waiting for 200 ms these ranks are missing: rank 3",
           "last in the kitchen, after the hall); these wait: ranks 0-2, 4 (in the sum, after the");
    expect(nothing_comes, 200000000, "are missing: rank 2 (",
           "last in the garden); these wait: rank 0 (");
    expect(nobody_takes_it, 200000000, "are missing: rank 1 (",
           "these wait: rank 0 (in the attic)");
    expect(a_chain_waits, 200000000, "are missing: rank 2 (",
           "last in its own work, after the cellar); these wait: ranks 0-1 (in the cellar)");
    expect(one_gives_up, 60000000000u, "rank 1 failed", "its disk is full");
}

// ---------------------------------------------------------------- ranks that are processes

static int good(struct comm *c, struct err *e) {
    TRY(sums(c, e));
    TRY(narrow_sums(c, e));
    TRY(ring(c, e));
    TRY(long_messages(c, e));
    return agreement(c, e);
}

// Each rank says what came of its work before it leaves: after a fault the first to end ends all.
static int run_process(const char *name) {
    static const struct {
        const char *name;
        rank_fn *fn;
        const char *expected; // in the error of a rank; NULL: none may fail
    } works[] = {
        {"good", good, NULL},
        {"one_is_missing", one_is_missing, "rank 3"},
        {"nothing_comes", nothing_comes, "rank 2"},
        {"nobody_takes_it", nobody_takes_it, "rank 1"},
        {"a_chain_waits", a_chain_waits, "are missing: rank 2 ("},
        {"one_gives_up", one_gives_up, "its disk is full"},
    };
    const struct comm_started by = comm_started();
    struct err e = {0};
    struct comm *c;
    size_t i = 0;
    while (i < sizeof works / sizeof *works && strcmp(works[i].name, name) != 0)
        i++;
    if (i == sizeof works / sizeof *works || by.world != RANKS) {
        fprintf(stderr, "'%s' on %d ranks is not known; %d ranks are needed\n", name, by.world,
                RANKS);
        return 2;
    }
    int rc = comm_join(&c, by.world, works[i].expected ? 2000000000u : 60000000000u,
                       &(struct comm_lost){0}, &e);
    if (rc != 0) {
        fprintf(stderr, "rank %d did not join: %s\n", by.rank, e.text);
        return 1;
    }
    rc = works[i].fn(c, &e);
    const bool well = works[i].expected ? rc == 0 || strstr(e.text, works[i].expected) : rc == 0;
    printf("rank %d %s%s%s\n", c->rank,
           !well     ? "is wrong: "
           : rc == 0 ? "is done"
                     : "heard: ",
           e.text, c->one_process ? " (one process)" : "");
    fflush(stdout);
    c->close(c);
    return rc == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    if (comm_started().world > 0)
        return run_process(argc > 1 ? argv[1] : "");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),     cmocka_unit_test(test_narrow_sums),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_agreement),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

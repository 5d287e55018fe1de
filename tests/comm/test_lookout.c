// test_lookout.c - every rank of a job of processes learns that one has died, hangs or has failed,
// and what it did last; strangers at the port change nothing.
//
// Ranks are threads of this process where none has to die, and forked processes where one has.
#include "comm/lookout.h"

#include "base/clock.h"
#include "base/rng.h"
#include "comm/lookout_net.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 };

static const uint64_t SECOND = 1000000000;

static void nap_ms(int ms) {
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

// ---------------------------------------------------------------- ranks of this process

static unsigned char key[LOOKOUT_KEY_BYTES];

static struct lookout *open_rank(int rank, int world, const char *address) {
    struct lookout_options o = {
        .rank = rank, .world = world, .address = address, .timeout_ns = 20 * SECOND};
    struct lookout *l;
    struct err e = {0};
    memcpy(o.key, key, sizeof key);
    if (lookout_open(&l, &o, &e) != 0)
        fail_msg("rank %d: %s", rank, e.text);
    return l;
}

static void open_all(struct lookout **l, int world) {
    l[0] = open_rank(0, world, NULL);
    for (int r = 1; r < world; r++)
        l[r] = open_rank(r, world, lookout_address(l[0]));
}

static void close_all(struct lookout **l, int world) {
    for (int r = world; r-- > 0;)
        lookout_close(l[r]);
}

static bool hears(struct lookout *l, uint64_t within_ns, struct err *e) {
    const uint64_t until = clock_ns() + within_ns;
    while (!lookout_failed(l, e))
        if (clock_ns() > until)
            return false;
        else
            nap_ms(2);
    return true;
}

// All ranks say the same, soon.
static void all_hear(struct lookout **l, int world, const char *text) {
    struct err e = {0};
    for (int r = 0; r < world; r++) {
        if (!hears(l[r], SECOND, &e))
            fail_msg("rank %d has heard nothing", r);
        for (int i = 0; i < 100 && strcmp(e.text, text) != 0; i++) { // its own reason goes before
            nap_ms(10);
            lookout_failed(l[r], &e);
        }
        assert_int_equal(e.code, ERR_RANK);
        assert_string_equal(e.text, text);
    }
}

static void all_is_well(struct lookout **l, int world) {
    for (int r = 0; r < world; r++)
        assert_false(l[r] && lookout_failed(l[r], NULL));
}

static void note_all(struct lookout **l, int world, const char *about) {
    for (int r = 0; r < world; r++)
        lookout_note(l[r], about);
}

static void test_late(void **state) {
    struct lookout *l[5];
    struct err e = {0};
    (void)state;
    open_all(l, 5);
    note_all(l, 5, "the hall");
    note_all(l, 5, "the sum");
    lookout_note(l[3], "the kitchen");
    lookout_note(l[4], NULL);
    const uint64_t begin = clock_ns();
    assert_int_equal(lookout_late(l[1], (const int[]){3, 4, -1, 99}, 4, 31 * SECOND, &e), ERR_RANK);
    assert_true(clock_ns() - begin < 2 * SECOND);
    assert_string_equal(
        e.text,
        "after waiting for 31.0 s these ranks are missing: rank 3 (last in the kitchen, after "
        "the sum), rank 4 (last in its own work, after the sum); these wait: rank 1 (in the "
        "sum, after the hall); the others: ranks 0, 2 (in the sum, after the hall)");
    all_hear(l, 5, e.text);
    close_all(l, 5);
}

struct waiter {
    struct lookout *l;
    int missing;
    struct err e;
    pthread_t thread;
};

static void *wait_too_long(void *arg) {
    struct waiter *w = arg;
    lookout_late(w->l, &w->missing, 1, SECOND, &w->e);
    return NULL;
}

// Rank 0 waits for rank 2, rank 2 for rank 1. They say so together. Only rank 1 is to blame.
static void test_chain(void **state) {
    struct lookout *l[3];
    (void)state;
    open_all(l, 3);
    note_all(l, 3, "the hall");
    struct waiter w[2] = {{.l = l[0], .missing = 2}, {.l = l[2], .missing = 1}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&w[i].thread, NULL, wait_too_long, &w[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(w[i].thread, NULL);
    all_hear(l, 3,
             "after waiting for 1.0 s these ranks are missing: rank 1 (last in the hall); "
             "these wait: ranks 0, 2 (in the hall)");
    assert_string_equal(w[0].e.text, w[1].e.text);
    close_all(l, 3);
}

static void test_fail(void **state) {
    struct lookout *l[4];
    struct err e = {0};
    (void)state;
    open_all(l, 4);
    assert_false(lookout_failed(l[2], &e));
    lookout_fail(l[2], "its disk is full\n\033[2J\xc3(");
    all_hear(l, 4, "rank 2 failed: its disk is full??[2J?(");
    lookout_fail(l[3], "it came too late"); // the first reason stays, everywhere
    lookout_fail(l[0], "so did this");
    nap_ms(200);
    all_hear(l, 4, "rank 2 failed: its disk is full??[2J?(");
    assert_int_equal(lookout_late(l[1], (const int[]){2}, 1, 1, &e), ERR_RANK);
    assert_string_equal(e.text, "rank 2 failed: its disk is full??[2J?(");
    close_all(l, 4);
    // Two at the same time: rank 0 hears one of them first, and then all say that.
    open_all(l, 4);
    lookout_fail(l[1], "a");
    lookout_fail(l[2], "b");
    assert_true(hears(l[0], SECOND, &e));
    all_hear(l, 4, e.text);
    close_all(l, 4);
    // A rank that fails and leaves at once is heard.
    open_all(l, 4);
    lookout_fail(l[0], "gone");
    lookout_close(l[0]);
    all_hear(l + 1, 3, "rank 0 failed: gone");
    close_all(l + 1, 3);
    open_all(l, 4);
    lookout_fail(l[1], "gone");
    lookout_close(l[1]);
    all_hear(l + 2, 2, "rank 1 failed: gone");
    lookout_close(l[0]);
    close_all(l + 2, 2);
}

static void test_goodbye(void **state) {
    struct lookout *l[4];
    struct err e = {0};
    (void)state;
    open_all(l, 4);
    lookout_note(l[1], "the garden");
    lookout_close(l[1]);
    nap_ms(300);
    l[1] = NULL;
    all_is_well(l, 4);
    lookout_late(l[2], (const int[]){1}, 1, SECOND, &e);
    assert_non_null(strstr(e.text, "rank 1 (has left the job; last in the garden)"));
    lookout_close(l[0]); // the first to leave, with connections that are open
    lookout_close(l[2]);
    lookout_close(l[3]);
    open_all(l, 4);
    lookout_close(l[0]);
    l[0] = NULL;
    nap_ms(300);
    all_is_well(l, 4);
    lookout_late(l[2], (const int[]){1}, 1, SECOND, &e); // there is nobody to ask
    assert_non_null(strstr(e.text, "missing: rank 1 (nothing is known of it)"));
    assert_non_null(strstr(e.text, "rank 0 (has left the job"));
    close_all(l + 1, 3);
    lookout_close(NULL);
}

// ---------------------------------------------------------------- many ranks

struct member {
    int rank;
    const char *address;
    struct lookout *l;
    pthread_t thread;
};

static void *join_job(void *arg) {
    struct member *m = arg;
    struct lookout_options o = {
        .rank = m->rank, .world = MOST, .address = m->address, .timeout_ns = 20 * SECOND};
    memcpy(o.key, key, sizeof key);
    if (lookout_open(&m->l, &o, NULL) == 0)
        for (int i = 0; i < 1000; i++)
            lookout_note(m->l, i % 2 ? "the sum" : "the hall");
    return NULL;
}

static void *leave_job(void *arg) {
    lookout_close(((struct member *)arg)->l);
    return NULL;
}

static void for_all(struct member *m, void *(*fn)(void *)) {
    for (int r = 1; r < MOST; r++)
        assert_int_equal(pthread_create(&m[r].thread, NULL, fn, &m[r]), 0);
    for (int r = 1; r < MOST; r++)
        pthread_join(m[r].thread, NULL);
}

static void test_many(void **state) {
    struct lookout *l[MOST] = {open_rank(0, MOST, NULL)};
    struct member m[MOST] = {0};
    struct err e = {0};
    (void)state;
    const uint64_t begin = clock_ns();
    for (int r = 1; r < MOST; r++)
        m[r] = (struct member){.rank = r, .address = lookout_address(l[0])};
    for_all(m, join_job);
    for (int r = 1; r < MOST; r++)
        assert_non_null(l[r] = m[r].l);
    all_is_well(l, MOST);
    lookout_late(l[7], (const int[]){40}, 1, SECOND, &e);
    assert_string_equal(
        e.text, "after waiting for 1.0 s these ranks are missing: rank 40 (last in the sum, "
                "after the hall); these wait: rank 7 (in the sum, after the hall); the others: "
                "rank 0 (at the start), ranks 1-6, 8-39, 41-63 (in the sum, after the hall)");
    all_hear(l, MOST, e.text);
    for_all(m, leave_job);
    lookout_close(l[0]);
    if (clock_ns() - begin > 8 * SECOND)
        fail_msg("%d ranks took %.1f s", MOST, 1e-9 * (double)(clock_ns() - begin));
}

// ---------------------------------------------------------------- strangers

static int connect_to(const struct lookout *l) {
    int fd;
    struct err e = {0};
    if (lookout_connect(lookout_address(l), clock_ns() + 5 * SECOND, &fd, &e) != 0)
        fail_msg("%s", e.text);
    return fd;
}

// Reads until the other side ends the connection. Returns the bytes, or -1 if it does not end.
static long read_all(int fd, uint8_t *out, size_t room, uint64_t within_ns) {
    const uint64_t until = clock_ns() + within_ns;
    size_t n = 0;
    while (n < room && lookout_ready(fd, POLLIN, until)) {
        const long more = lookout_recv(fd, out + n, room - n);
        if (more < 0)
            return (long)n;
        n += (size_t)more;
    }
    return -1;
}

// The connection is ended, and answered with `reason` (NULL: with nothing).
static void refused(struct lookout *l, const void *bytes, size_t n, const char *reason) {
    uint8_t in[4096];
    struct lookout_frame f;
    size_t used;
    const uint64_t before = lookout_refused(l);
    const int fd = connect_to(l);
    if (n > 0)
        assert_int_equal(lookout_send(fd, bytes, n), n);
    const long got = read_all(fd, in, sizeof in, 2 * SECOND);
    if (got < 0)
        fail_msg("a stranger was not sent away: %s", reason);
    close(fd);
    if (reason) {
        assert_int_equal(lookout_frame_read(in, (size_t)got, &f, &used, NULL), 0);
        assert_int_equal(used, got);
        assert_int_equal(f.type, LOOKOUT_FAIL);
        assert_string_equal(f.why, reason);
    } else {
        assert_int_equal(got, 0);
    }
    assert_int_equal(lookout_refused(l), before + 1);
}

static size_t hello(uint8_t out[LOOKOUT_FRAME_MOST], uint32_t rank, uint32_t world, bool right) {
    struct lookout_frame f = {.type = LOOKOUT_HELLO, .rank = rank, .world = world};
    memcpy(f.key, key, sizeof key);
    f.key[31] ^= !right;
    return lookout_frame_write(&f, out);
}

static void refused_hello(struct lookout *l, uint32_t rank, uint32_t world, bool right,
                          const char *reason) {
    uint8_t bytes[LOOKOUT_FRAME_MOST];
    refused(l, bytes, hello(bytes, rank, world, right), reason);
}

static int open_files(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void refuse_messages(struct lookout *l) {
    static const uint8_t oversized[] = "HGL1\1\0\0\0\377\377\377\377",
                         empty[] = "HGL1\1\0\0\0\0\0\0",
                         http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                         state[LOOKOUT_HELLO_BYTES] = "HGL1\3\0\0\0\60\1\0\0",
                         bye[] = "HGL1\6\0\0\0\0\0\0";
    refused_hello(l, 2, 3, false, "the key is not that of this job");
    refused_hello(l, 2, 4, true, "the job has another number of ranks");
    refused_hello(l, 0, 3, true, "there is no other rank of this number");
    refused_hello(l, 3, 3, true, "there is no other rank of this number");
    refused_hello(l, UINT32_MAX, 3, true, "there is no other rank of this number");
    refused_hello(l, 1, 3, true, "a rank of this number has joined before");
    refused(l, http, sizeof http - 1, NULL);
    refused(l, oversized, sizeof oversized - 1, NULL);
    refused(l, empty, sizeof empty, NULL);
    refused(l, state, sizeof state, NULL);
    refused(l, bye, sizeof bye, NULL);
}

// What a fuzzer would send, to a lookout that is at work. The rank stays a taken one: a right HELLO
// of the other rank would be welcome.
static void refuse_noise(struct lookout *l) {
    uint64_t draw = 0;
    const uint64_t before = lookout_refused(l);
    for (int i = 0; i < 300; i++) {
        uint8_t bytes[LOOKOUT_FRAME_MOST] = {0}, in[4096];
        size_t n = hello(bytes, 1, 3, i % 2);
        for (int k = 0; k < 1 + i % 5; k++) {
            const uint64_t x = rng_u64(11, draw++, 0);
            const size_t at = x % n;
            if (at < LOOKOUT_HEADER_BYTES || at >= LOOKOUT_HEADER_BYTES + 8)
                bytes[at] ^= (uint8_t)(x >> 32);
        }
        n = i % 3 ? n : rng_u64(12, draw++, 0) % (sizeof bytes - 1) + 1;
        const int fd = connect_to(l);
        lookout_send(fd, bytes, n);
        if (n >= LOOKOUT_HELLO_BYTES) // else it is cut off
            assert_true(read_all(fd, in, sizeof in, 2 * SECOND) >= 0);
        close(fd);
    }
    for (int i = 0; i < 300 && lookout_refused(l) < before + 300; i++)
        nap_ms(10);
    assert_int_equal(lookout_refused(l), before + 300);
}

static void crowd_the_door(struct lookout *l) {
    enum { CROWD = 150 };
    int fd[CROWD];
    const int before = open_files();
    const uint64_t refusals = lookout_refused(l);
    for (int i = 0; i < CROWD; i++)
        fd[i] = connect_to(l);
    for (int i = 0; i < 300 && lookout_refused(l) < refusals + CROWD - 32; i++)
        nap_ms(10);
    assert_true(lookout_refused(l) >= refusals + CROWD - 32);
    assert_true(open_files() <= before + CROWD + 32);
    for (int i = 0; i < CROWD; i++)
        close(fd[i]);
}

static void test_strangers(void **state) {
    struct lookout *l[3] = {open_rank(0, 3, NULL)};
    struct err e = {0};
    uint8_t in[16];
    int fd;
    (void)state;
    const uint64_t begin = clock_ns();
    const int slow = connect_to(l[0]); // says four bytes, and nothing more
    assert_int_equal(lookout_send(slow, "HGL1", 4), 4);
    l[1] = open_rank(1, 3, lookout_address(l[0]));
    refuse_messages(l[0]);
    refuse_noise(l[0]);
    assert_int_equal(read_all(slow, in, sizeof in, 7 * SECOND), 0);
    assert_true(clock_ns() - begin >= 4 * SECOND);
    close(slow);
    crowd_the_door(l[0]);
    all_is_well(l, 2);
    l[2] = open_rank(2, 3, lookout_address(l[0]));
    // All are there: nobody listens any more.
    assert_int_equal(lookout_connect(lookout_address(l[0]), clock_ns() + SECOND, &fd, &e),
                     ERR_RANK);
    assert_non_null(strstr(e.text, "Connection refused"));
    all_is_well(l, 3);
    lookout_fail(l[2], "for a reason of its own");
    all_hear(l, 3, "rank 2 failed: for a reason of its own");
    close_all(l, 3);
}

// A rank has the key, so the job believes it, but not what no rank sends.
static void test_mad_rank(void **state) {
    uint8_t bytes[LOOKOUT_FRAME_MOST];
    struct lookout_frame f = {.type = LOOKOUT_STATE, .doing = {"a\nroom", "the hall"}};
    (void)state;
    for (int how = 0; how < 3; how++) {
        struct lookout *l[2] = {open_rank(0, 3, NULL)};
        l[1] = open_rank(1, 3, lookout_address(l[0]));
        const int fd = connect_to(l[0]);
        const size_t n = hello(bytes, 2, 3, true);
        for (size_t i = 0; i < n; i++) { // as slowly as the network pleases
            assert_int_equal(lookout_send(fd, bytes + i, 1), 1);
            nap_ms(1);
        }
        assert_int_equal(lookout_send(fd, bytes, lookout_frame_write(&f, bytes)), 28);
        nap_ms(50);
        all_is_well(l, 2);
        if (how == 0)
            assert_int_equal(lookout_send(fd, "no frame", 8), 8);
        else if (how == 1)
            assert_int_equal(lookout_send(fd, bytes, hello(bytes, 2, 3, true)), n); // once more
        else
            close(fd);
        all_hear(l, 2,
                 how < 2
                     ? "rank 2 has sent what no rank sends; it was last in a?room, after the hall"
                     : "rank 2 has ended without a word (killed?); it was last in a?room, after "
                       "the hall");
        if (how < 2)
            close(fd);
        close_all(l, 2);
    }
}

// ---------------------------------------------------------------- what cannot be opened

static void cannot_open(int rank, int world, const char *address, bool right, int code,
                        const char *why) {
    struct lookout_options o = {
        .rank = rank, .world = world, .address = address, .timeout_ns = SECOND / 5};
    struct lookout *l;
    struct err e = {0};
    memcpy(o.key, key, sizeof key);
    o.key[0] ^= !right;
    assert_int_equal(lookout_open(&l, &o, &e), code);
    assert_null(l);
    if (!strstr(e.text, why))
        fail_msg("says: %s", e.text);
}

static void test_opening(void **state) {
    struct lookout *l = open_rank(0, 2, "127.0.0.1");
    char address[LOOKOUT_ADDRESS_BYTES], silent[LOOKOUT_ADDRESS_BYTES];
    unsigned char other[LOOKOUT_KEY_BYTES];
    struct err e = {0};
    int fd;
    (void)state;
    snprintf(address, sizeof address, "%s", lookout_address(l));
    assert_int_equal(lookout_key(other, &e), 0);
    assert_memory_not_equal(other, key, sizeof key);
    assert_int_equal(lookout_listen("127.0.0.1", &fd, silent, &e), 0);
    cannot_open(2, 2, address, true, ERR_USAGE, "rank 2 of 2");
    cannot_open(0, COMM_RANKS_MOST + 1, NULL, true, ERR_USAGE, "at most 1024 ranks");
    cannot_open(0, 2, "0.0.0.0", true, ERR_USAGE, "give the address of one network");
    cannot_open(0, 2, "::", true, ERR_USAGE, "give the address of one network");
    cannot_open(0, 2, "256.1.1.1.1", true, ERR_USAGE, "'256.1.1.1.1' is not known");
    cannot_open(1, 2, NULL, true, ERR_USAGE, "accepted: HOST:PORT");
    cannot_open(1, 2, "127.0.0.1", true, ERR_USAGE, "accepted: HOST:PORT");
    cannot_open(1, 2, "[]:1", true, ERR_USAGE, "accepted: HOST:PORT");
    cannot_open(1, 2, "127.0.0.1:99999", true, ERR_USAGE, "accepted: HOST:PORT");
    cannot_open(1, 2, address, false, ERR_RANK, "refuses rank 1: the key is not that of this job");
    cannot_open(1, 3, address, true, ERR_RANK, "refuses rank 1: the job has another number");
    cannot_open(1, 2, silent, true, ERR_RANK, "has not answered for 200 ms");
    lookout_close(l);
    cannot_open(1, 2, address, true, ERR_RANK, "Connection refused");
    close(fd);
    l = open_rank(0, 1, NULL); // alone
    assert_int_equal(lookout_late(l, (const int[]){0}, 1, SECOND, &e), ERR_RANK);
    lookout_close(l);
}

// ---------------------------------------------------------------- ranks that are processes

enum { RANKS = 4 };

struct shared { // between this process and the ranks
    char address[LOOKOUT_ADDRESS_BYTES];
    atomic_int listens, joined, go, heard;
    struct {
        struct err e;
        uint64_t ns;
    } rank[RANKS];
};

struct crew {
    struct shared *s;
    pid_t pid[RANKS];
};

static void await(atomic_int *x, int least) {
    for (int i = 0; i < 3000 && atomic_load(x) < least; i++)
        nap_ms(10);
}

// late: the rank for which rank 1 waits too long, when told to go; -1: it only watches.
static void live(struct shared *s, int rank, int late) {
    struct lookout_options o = {.rank = rank,
                                .world = RANKS,
                                .address = rank ? s->address : NULL,
                                .timeout_ns = 20 * SECOND};
    struct lookout *l;
    memcpy(o.key, key, sizeof key);
    if (lookout_open(&l, &o, &s->rank[rank].e) != 0)
        _exit(1);
    if (rank == 0) {
        snprintf(s->address, sizeof s->address, "%s", lookout_address(l));
        atomic_store(&s->listens, 1);
    }
    lookout_note(l, "the hall");
    lookout_note(l, rank == 1 ? "the sum" : "the kitchen");
    atomic_fetch_add(&s->joined, 1);
    if (rank == 1 && late >= 0) {
        await(&s->go, 1);
        lookout_late(l, &late, 1, 31 * SECOND, &s->rank[rank].e);
    } else {
        hears(l, 30 * SECOND, &s->rank[rank].e);
    }
    s->rank[rank].ns = clock_ns();
    atomic_fetch_add(&s->heard, 1);
    lookout_close(l);
    _exit(0);
}

static void fork_crew(struct crew *c, int late) {
    c->s = mmap(NULL, sizeof *c->s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(c->s, MAP_FAILED);
    for (int r = 0; r < RANKS; r++) {
        c->pid[r] = fork();
        assert_true(c->pid[r] >= 0);
        if (c->pid[r] == 0)
            live(c->s, r, late);
        if (r == 0)
            await(&c->s->listens, 1);
    }
    await(&c->s->joined, RANKS);
    assert_int_equal(atomic_load(&c->s->joined), RANKS);
    nap_ms(500); // what all do is known
    assert_int_equal(atomic_load(&c->s->heard), 0);
}

static void reap(struct crew *c) {
    for (int r = 0; r < RANKS; r++) {
        kill(c->pid[r], SIGKILL);
        waitpid(c->pid[r], NULL, 0);
    }
    munmap(c->s, sizeof *c->s);
}

static void says(const struct crew *c, int rank, const char *text) {
    if (!strstr(c->s->rank[rank].e.text, text))
        fail_msg("rank %d says: '%s', and not: '%s'", rank, c->s->rank[rank].e.text, text);
}

static void test_killed(void **state) {
    (void)state;
    for (int victim = 2; victim >= 0; victim -= 2) {
        struct crew c;
        char expected[200];
        fork_crew(&c, -1);
        const uint64_t begin = clock_ns();
        kill(c.pid[victim], SIGKILL);
        await(&c.s->heard, RANKS - 1);
        snprintf(
            expected, sizeof expected,
            "rank %d has ended without a word (killed?); it was last in the kitchen, after the "
            "hall",
            victim);
        for (int r = 0; r < RANKS; r++)
            if (r != victim) {
                assert_string_equal(c.s->rank[r].e.text, expected);
                assert_true(c.s->rank[r].ns - begin < 2 * SECOND);
            }
        reap(&c);
    }
}

static void test_stopped(void **state) {
    struct crew c;
    (void)state;
    fork_crew(&c, 2);
    kill(c.pid[2], SIGSTOP);
    nap_ms(3300);
    assert_int_equal(atomic_load(&c.s->heard), 0); // it may go on
    atomic_store(&c.s->go, 1);
    await(&c.s->heard, RANKS - 1);
    says(&c, 0, "after waiting for 31.0 s these ranks are missing: rank 2 (has not answered for ");
    says(&c, 0,
         "stopped, or its machine is gone; last in the kitchen, after the hall); these wait: "
         "rank 1 (in the sum, after the hall); the others: ranks 0, 3 (in the kitchen, after "
         "the hall)");
    assert_string_equal(c.s->rank[1].e.text, c.s->rank[0].e.text);
    assert_string_equal(c.s->rank[3].e.text, c.s->rank[0].e.text);
    reap(&c);
}

static void test_rank_0_stopped(void **state) {
    struct crew c;
    (void)state;
    fork_crew(&c, 2);
    kill(c.pid[0], SIGSTOP);
    atomic_store(&c.s->go, 1);
    await(&c.s->heard, 1);
    says(&c, 1, "missing: rank 0 (has not answered for ");
    says(&c, 1,
         "last in the kitchen, after the hall), rank 2 (nothing is known of it); these wait: "
         "rank 1 (in the sum, after the hall)");
    assert_int_equal(atomic_load(&c.s->heard), 1); // the others hear as soon as rank 0 goes on
    kill(c.pid[0], SIGCONT);
    await(&c.s->heard, RANKS);
    for (int r = 0; r < RANKS; r++)
        assert_string_equal(c.s->rank[r].e.text, c.s->rank[1].e.text);
    reap(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),         cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_rank_0_stopped), cmocka_unit_test(test_late),
        cmocka_unit_test(test_chain),          cmocka_unit_test(test_fail),
        cmocka_unit_test(test_goodbye),        cmocka_unit_test(test_many),
        cmocka_unit_test(test_strangers),      cmocka_unit_test(test_mad_rank),
        cmocka_unit_test(test_opening),
    };
    struct err e = {0};
    if (lookout_key(key, &e) != 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

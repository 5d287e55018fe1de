// test_pool.c - pool.h: every member runs every task once, a task sees what the one before wrote,
// waiting members sleep and wake, signals stay with the caller, shares cover all items.
//
// Members only count and compare. The caller makes the assertions, because those of cmocka do not
// work in other threads.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/pool.h"
#include "skips.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MEMBERS = 8, STAGES = 50 };

struct tally {
    struct pool *pool;
    int calls[MEMBERS]; // not atomic: fork and join must order the accesses
    int wrong_threads;
    _Atomic int signals_open;
    _Atomic int broken;
    int now; // stage
    int stage[STAGES][MEMBERS];
};

static void count(void *arg, int thread, int threads) {
    struct tally *t = arg;
    t->calls[thread]++;
    if (threads != pool_threads(t->pool))
        t->wrong_threads = 1;
}

static void test_run(void **state) {
    (void)state;
    for (int threads = 1; threads <= MEMBERS; threads++) {
        struct tally t = {0};
        struct err e = {0};
        assert_int_equal(pool_open(&t.pool, threads, 0, &e), 0);
        assert_int_equal(pool_threads(t.pool), threads);
        int rounds = threads <= 2 ? 5000 : 500; // with more members than CPUs each join sleeps
        for (int i = 0; i < rounds; i++) {
            pool_run(t.pool, count, &t);
            for (int k = 0; k < threads; k++)
                assert_int_equal(t.calls[k], i + 1);
        }
        assert_int_equal(t.wrong_threads, 0);
        pool_close(t.pool);
    }
}

static void test_sleep_and_wake(void **state) {
    (void)state;
    struct tally t = {0};
    assert_int_equal(pool_open(&t.pool, 2, 0, NULL), 0);
    for (int i = 0; i < 40; i++) {
        usleep((useconds_t)(i % 4) * 40); // shorter and longer than the spinning
        pool_run(t.pool, count, &t);
    }
    assert_int_equal(t.calls[0], 40);
    assert_int_equal(t.calls[1], 40);
    pool_close(t.pool);
}

static void slow_member(void *arg, int thread, int threads) {
    struct tally *t = arg;
    if (thread == threads - 1)
        usleep(2000);
    t->calls[thread]++;
}

static void test_slow_member(void **state) {
    (void)state;
    struct tally t = {0};
    assert_int_equal(pool_open(&t.pool, 3, 0, NULL), 0);
    for (int i = 0; i < 10; i++) {
        pool_run(t.pool, slow_member, &t);
        assert_int_equal(t.calls[2], i + 1);
    }
    pool_close(t.pool);
}

// In each stage every member writes its cell in one task and checks the cells of all in the next.
static void write_cell(void *arg, int thread, int threads) {
    struct tally *t = arg;
    (void)threads;
    if (t->now % 7 == thread)
        sched_yield();
    t->stage[t->now][thread]++;
}

static void check_cells(void *arg, int thread, int threads) {
    struct tally *t = arg;
    for (int k = 0; k < threads; k++)
        if (t->stage[t->now][k] != t->stage[t->now][thread])
            t->broken = 1;
}

static void test_stages(void **state) {
    (void)state;
    for (int threads = 1; threads <= MEMBERS; threads += threads < 4 ? 1 : 4) {
        struct tally *t = calloc(1, sizeof *t);
        assert_non_null(t);
        assert_int_equal(pool_open(&t->pool, threads, 0, NULL), 0);
        int rounds = threads <= 2 ? 100 : 10;
        for (int i = 0; i < rounds; i++)
            for (t->now = 0; t->now < STAGES; t->now++) {
                pool_run(t->pool, write_cell, t);
                pool_run(t->pool, check_cells, t);
            }
        assert_int_equal(t->broken, 0);
        for (int k = 0; k < threads; k++)
            assert_int_equal(t->stage[STAGES - 1][k], rounds);
        pool_close(t->pool);
        free(t);
    }
}

static void look_at_signals(void *arg, int thread, int threads) {
    struct tally *t = arg;
    (void)threads;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    if (thread > 0 && (!sigismember(&mask, SIGINT) || !sigismember(&mask, SIGTERM)))
        t->signals_open++;
}

static void test_signals(void **state) {
    (void)state;
    struct tally t = {0};
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(pool_open(&t.pool, 3, 0, NULL), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_int_equal(sigismember(&before, SIGINT), sigismember(&after, SIGINT));
    pool_run(t.pool, look_at_signals, &t);
    assert_int_equal(t.signals_open, 0);
    pool_close(t.pool);
}

static void look_at_cpus(void *arg, int thread, int threads) {
    struct tally *t = arg;
    (void)threads;
    cpu_set_t set;
    CPU_ZERO(&set);
    t->calls[thread] = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : -1;
}

static void test_pin(void **state) {
    (void)state;
    cpu_set_t before, after;
    CPU_ZERO(&before);
    CPU_ZERO(&after);
    if (sched_getaffinity(0, sizeof before, &before) != 0)
        skip_because("the CPUs of this process cannot be read");
    struct tally t = {0};
    struct err e = {0};
    int rc = pool_open(&t.pool, 3, 1, &e); // if there are fewer CPUs, members share them
    if (rc == ERR_UNSUPPORTED)
        skip_because("threads cannot be bound to CPUs here");
    assert_int_equal(rc, 0);
    pool_run(t.pool, look_at_cpus, &t);
    pool_close(t.pool);
    for (int i = 0; i < 3; i++)
        assert_int_equal(t.calls[i], 1);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after)); // the caller gets its CPUs back
}

static void test_open_errors(void **state) {
    (void)state;
    struct pool *p = (struct pool *)1;
    struct err e = {0};
    assert_int_equal(pool_open(&p, 0, 0, &e), ERR_USAGE);
    assert_null(p);
    assert_int_equal(pool_open(&p, -3, 0, &e), ERR_USAGE);
    assert_int_equal(pool_open(&p, 1000000, 0, &e), ERR_USAGE);
    pool_close(NULL);
    assert_true(pool_machine_cpus() >= 1);
    for (int i = 0; i < 50; i++) { // closed before any task ran
        assert_int_equal(pool_open(&p, 4, 0, &e), 0);
        pool_close(p);
    }
}

static void test_share(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 1000, 4097};
    static const int64_t grains[] = {0, 1, 4, 16, 64, 5000};
    for (size_t a = 0; a < sizeof sizes / sizeof *sizes; a++) {
        for (size_t b = 0; b < sizeof grains / sizeof *grains; b++) {
            for (int threads = 1; threads <= 9; threads++) {
                int64_t n = sizes[a], grain = grains[b] ? grains[b] : 1, at = 0;
                int64_t least = INT64_MAX, most = 0;
                for (int i = 0; i < threads; i++) {
                    int64_t begin, end;
                    pool_share(n, grains[b], i, threads, &begin, &end);
                    assert_true(begin == at && end >= begin);
                    assert_true(end == n || end % grain == 0);
                    least = end - begin < least ? end - begin : least;
                    most = end - begin > most ? end - begin : most;
                    at = end;
                }
                assert_true(at == n);
                assert_true(most - least <= grain);
            }
        }
    }
    int64_t begin, end;
    pool_share(INT64_MAX, 1, 3, 4, &begin, &end);
    assert_true(end == INT64_MAX && begin == INT64_MAX / 4 * 3 + 2);
    pool_share(INT64_MAX, 64, 3, 4, &begin, &end); // no overflow at the rounded-up end
    assert_true(end == INT64_MAX);
    pool_share(-5, 1, 0, 2, &begin, &end);
    assert_true(begin == 0 && end == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run),         cmocka_unit_test(test_sleep_and_wake),
        cmocka_unit_test(test_slow_member), cmocka_unit_test(test_stages),
        cmocka_unit_test(test_signals),     cmocka_unit_test(test_pin),
        cmocka_unit_test(test_open_errors), cmocka_unit_test(test_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

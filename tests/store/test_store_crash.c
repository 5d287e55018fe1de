// Several writers at once, and writers that are killed: rows are whole, and no reported row is
// lost.
#include "scratch.h"

#include <errno.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { WRITERS = 4, ROWS = 12, KILLS = 12, SAMPLES = 700 };

// Rows have samples of several pages: a transaction that touches only one page could not be torn.
static int add_row(struct store *s, int64_t i) {
    static double step_ns[SAMPLES];
    struct store_trial t = scratch_trial(i);
    for (int k = 0; k < SAMPLES; k++)
        step_ns[k] = (double)(i * SAMPLES + k);
    return store_trial_add(s, &t, step_ns, SAMPLES, NULL, NULL);
}

struct tally {
    struct store *samples_of; // another connection: fn of a row must not use the store
    int64_t n, most;
};

static int check_row(void *arg, const struct store_trial *t) {
    struct tally *tally = arg;
    struct err e = {0};
    double *step_ns;
    size_t n;
    assert_int_equal(t->tokens, 7 * t->steps);
    assert_true(t->loss_last == (double)t->steps && t->tokens_per_s == 0.5 * (double)t->steps);
    assert_string_equal(t->key, t->steps & 1 ? "key odd" : "key even");
    assert_int_equal(store_samples(tally->samples_of, t->id, &step_ns, &n, &e), 0);
    assert_int_equal(n, SAMPLES);
    assert_true(step_ns[0] == (double)(t->steps * SAMPLES));
    assert_true(step_ns[n - 1] == step_ns[0] + SAMPLES - 1);
    free(step_ns);
    tally->n++;
    tally->most = t->steps > tally->most ? t->steps : tally->most;
    return 0;
}

static struct tally check_all(void) {
    struct store *s = scratch_store(STORE_READ);
    struct tally tally = {.samples_of = scratch_store(STORE_READ), .most = -1};
    struct err e = {0};
    assert_int_equal(store_trials(s, &(struct store_filter){0}, check_row, &tally, &e), 0);
    store_close(s);
    store_close(tally.samples_of);
    return tally;
}

static void check_integrity(void) {
    sqlite3 *db;
    sqlite3_stmt *st;
    assert_int_equal(sqlite3_open(scratch_db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &st, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(st, 0), "ok");
    sqlite3_finalize(st);
    sqlite3_close(db);
}

static void wait_for(pid_t child, int *status) {
    while (waitpid(child, status, 0) < 0)
        assert_int_equal(errno, EINTR);
}

// All writers begin without a file, so they also race to create it.
static void writers_at_once_all_succeed(void **state) {
    (void)state;
    pid_t children[WRITERS];
    int status;
    for (int w = 0; w < WRITERS; w++) {
        children[w] = fork();
        if (children[w] == 0) {
            struct store *s;
            struct err e = {0};
            int rc = store_open(&s, scratch_db, STORE_WRITE, &e);
            if (rc != 0)
                print_error("a writer: %s\n", e.text);
            for (int i = 0; i < ROWS && rc == 0; i++)
                rc = add_row(s, w * ROWS + i);
            store_close(rc == 0 ? s : NULL);
            _exit(rc == 0 ? 0 : 1);
        }
    }
    for (int w = 0; w < WRITERS; w++) {
        wait_for(children[w], &status);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(check_all().n, WRITERS * ROWS);
    check_integrity();
}

// The child stores in shared memory which rows were reported as written.
_Noreturn static void write_until_killed(volatile int64_t *reported, int64_t first) {
    struct store *s;
    if (store_open(&s, scratch_db, STORE_WRITE, NULL) != 0)
        _exit(1);
    for (int64_t i = first;; i++) {
        if (add_row(s, i) != 0)
            _exit(2);
        *reported = i + 1;
    }
}

static void a_writer_that_is_killed_leaves_whole_rows(void **state) {
    (void)state;
    volatile int64_t *reported =
        mmap(NULL, sizeof *reported, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(reported != MAP_FAILED);
    int64_t rows = 0;
    for (int round = 0; round < KILLS; round++) {
        int status;
        *reported = rows;
        pid_t child = fork();
        if (child == 0)
            write_until_killed(reported, rows);
        // From the creation of the file to the middle of some row.
        usleep((useconds_t)(round < 4 ? 500 * round : 4000 + 3700 * round));
        kill(child, SIGKILL);
        wait_for(child, &status);
        assert_true(WIFSIGNALED(status)); // it did not fail by itself
        if (*reported > 0)
            check_all();                         // a reader is first and undoes what is half done
        store_close(scratch_store(STORE_WRITE)); // nothing, half a file, or rows
        struct tally tally = check_all();
        // Reported rows are there. The row in progress is there whole or not at all.
        assert_true(tally.n == *reported || tally.n == *reported + 1);
        assert_int_equal(tally.most, tally.n - 1);
        check_integrity();
        rows = tally.n;
    }
    assert_true(rows > 0);
    munmap((void *)reported, sizeof *reported);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_open, scratch_close)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(writers_at_once_all_succeed),
        TEST(a_writer_that_is_killed_leaves_whole_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

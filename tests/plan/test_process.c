// test_process.c - the store of the memory that a process takes: measured once, found again, and
// read like a file from an untrusted source.
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "plan/process.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { MIB = 1 << 20, KEY_BYTES = HASH_TEXT_BYTES - 1, FILE_BYTES = 1 << 16, LINES_MOST = 64 };

struct scratch {
    char dir[256], path[300]; // the cache folder; the store in it
};

static void assert_worked(int rc, const struct err *e) {
    if (rc != 0)
        fail_msg("unexpected error %d: %s", rc, e->text);
}

static int setup(void **state) {
    struct scratch *s = calloc(1, sizeof *s);
    *state = s;
    if (!s || file_make_temp_dir(s->dir, sizeof s->dir, "process", NULL) != 0)
        return -1;
    snprintf(s->path, sizeof s->path, "%s/haggle/process", s->dir);
    return setenv("XDG_CACHE_HOME", s->dir, 1);
}

static int teardown(void **state) {
    const int rc = file_remove_tree(((struct scratch *)*state)->dir, NULL);
    free(*state);
    return rc;
}

static struct plan plan_of(int64_t threads, int64_t accum) {
    struct knobs k;
    struct plan p;
    struct err e = {0};
    knobs_init(&k);
    k.device = DEVICE_CPU, k.seq = 16, k.threads = threads, k.batch_accum = accum;
    assert_worked(knobs_set(&k, "model", "tiny", SET_BY_COMMAND_LINE, &e), &e);
    const struct plan_options o = {.knobs = &k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    assert_worked(plan_make(&p, &o, &e), &e);
    return p;
}

// Stores what a run with these knobs measured.
static void keep(int64_t threads, int64_t accum, uint64_t bytes, enum plan_how how) {
    struct plan p = plan_of(threads, accum);
    process_estimate(&p);
    plan_set_process(&p, bytes, how);
    process_keep(&p, true); // measured on a device, which this plan does not ask for: not stored
    process_keep(&p, false);
    plan_free(&p);
}

// Checks the estimate of another plan. bytes: without its tables.
static void assert_estimate(int64_t threads, int64_t accum, enum plan_how how, uint64_t bytes) {
    struct plan p = plan_of(threads, accum);
    process_estimate(&p);
    assert_int_equal(p.process_how, how);
    if (how == PLAN_STORED)
        assert_int_equal(p.process_bytes, bytes + process_table_bytes(&p));
    else
        assert_true(p.process_bytes > 0); // what is resident now
    plan_free(&p);
}

static uint64_t tables_of(int64_t threads, int64_t accum) {
    struct plan p = plan_of(threads, accum);
    const uint64_t bytes = process_table_bytes(&p);
    plan_free(&p);
    return bytes;
}

static char *read_text(const struct scratch *s) {
    struct err e = {0};
    char *text;
    size_t n;
    assert_worked(file_read_all(s->path, FILE_BYTES, &text, &n, &e), &e);
    return text;
}

static void write_text(const struct scratch *s, const void *text, size_t bytes) {
    struct err e = {0};
    assert_worked(file_make_parent(s->path, &e), &e);
    assert_worked(file_write_atomic(s->path, text, bytes, &e), &e);
}

// ---------------------------------------------------------------- tests

static void test_measured_once(void **state) {
    const struct scratch *s = *state;
    const uint64_t one = tables_of(1, 1), four = tables_of(1, 4), bytes = 100 * MIB;
    assert_true(one > 0 && four > one);
    assert_estimate(1, 1, PLAN_UNKNOWN, 0);
    assert_false(file_exists(s->path)); // looking writes nothing
    keep(1, 1, bytes + one, PLAN_UNKNOWN);
    keep(1, 1, bytes + one, PLAN_STORED);
    keep(1, 1, one, PLAN_MEASURED); // nothing but tables, so there is no figure
    assert_false(file_exists(s->path));
    keep(1, 1, bytes + one, PLAN_MEASURED);
    assert_estimate(1, 1, PLAN_STORED, bytes);
    assert_estimate(1, 4, PLAN_STORED, bytes); // the same process with larger tables
    assert_estimate(2, 1, PLAN_UNKNOWN, 0);    // another process
    keep(2, 1, 2 * bytes + tables_of(2, 1), PLAN_MEASURED);
    assert_estimate(1, 1, PLAN_STORED, bytes);
    assert_estimate(2, 1, PLAN_STORED, 2 * bytes);
    // A figure within 2 % changes nothing. A different one replaces the old one.
    keep(1, 4, bytes + bytes / 100 + four, PLAN_MEASURED);
    assert_estimate(1, 1, PLAN_STORED, bytes);
    keep(1, 4, bytes + bytes / 10 + four, PLAN_MEASURED);
    assert_estimate(1, 1, PLAN_STORED, bytes + bytes / 10);
    assert_estimate(2, 1, PLAN_STORED, 2 * bytes);
}

// The store has a limit: the oldest figures are removed.
static void test_the_newest_stay(void **state) {
    const struct scratch *s = *state;
    for (int64_t threads = 1; threads <= LINES_MOST + 3; threads++)
        keep(threads, 1, 100 * MIB, PLAN_MEASURED);
    char *text = read_text(s);
    int lines = 0;
    for (const char *at = text; *at; at++)
        lines += *at == '\n';
    assert_int_equal(lines, LINES_MOST);
    free(text);
    assert_estimate(3, 1, PLAN_UNKNOWN, 0);
    assert_estimate(4, 1, PLAN_STORED, 100 * MIB - tables_of(4, 1));
    assert_estimate(LINES_MOST + 3, 1, PLAN_STORED, 100 * MIB - tables_of(LINES_MOST + 3, 1));
}

// KEY stands for the key of the plan in question.
static const char *const hostile[] = {
    "",
    "\n\n\n",
    "KEY",
    "KEY\n",
    "KEY ",
    "KEY  \n",
    "KEY\n123456789\n", // a number on the next line is not the key's
    "KEY\n123456789",
    "123456789\nKEY\n",
    "KEY 12345678x\n",
    "KEY 123456789 1\n",
    "KEY x123456789\n",
    "KEY 0\n",
    "KEY -1\n",
    "KEY -123456789\n",
    "KEY 1e9\n",
    "KEY nan\n",
    "KEY 18446744073709551615\n",
    "KEY 18446744073709551616\n",
    "KEY 99999999999999999999\n",
    "KEY 9999999999999999999999999999999999999999999999999999999999\n",
    "KEY 00000000000000000000000000000000000000000000000123456789\n",
    "xKEY 123456789\n",
    " KEY 123456789\n",
    "KEY\t123456789\n",
    "KEYx 123456789\n",
    "00000000000000000000000000000000 123456789\n",
    "{\"KEY\": 123456789}\n",
};

static size_t fill_in(const char *pattern, const char *key, char out[256]) {
    const char *at = strstr(pattern, "KEY");
    if (!at)
        return (size_t)snprintf(out, 256, "%s", pattern);
    return (size_t)snprintf(out, 256, "%.*s%.*s%s", (int)(at - pattern), pattern, KEY_BYTES, key,
                            at + strlen("KEY"));
}

// Never a crash and never a figure. What is measured afterwards is stored nevertheless.
static void test_hostile_store(void **state) {
    const struct scratch *s = *state;
    const uint64_t bytes = 100 * MIB, all = bytes + tables_of(1, 1);
    keep(1, 1, all, PLAN_MEASURED);
    char *good = read_text(s);
    const size_t n = strlen(good);
    assert_true(n > KEY_BYTES + 2 && good[KEY_BYTES] == ' ' && good[n - 1] == '\n');
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        char text[256];
        write_text(s, text, fill_in(hostile[i], good, text));
        print_message("%s\n", hostile[i]);
        assert_estimate(1, 1, PLAN_UNKNOWN, 0);
        keep(1, 1, all, PLAN_MEASURED);
        assert_estimate(1, 1, PLAN_STORED, bytes);
    }
    // Cut before the number. (A shortened number cannot be told from a whole one.)
    for (size_t cut = 0; cut <= KEY_BYTES + 1; cut++) {
        write_text(s, good, cut);
        assert_estimate(1, 1, PLAN_UNKNOWN, 0);
    }
    // Random bytes, and a NUL before the line.
    char noise[2048];
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)(i * 131 % 256);
    write_text(s, noise, sizeof noise);
    assert_estimate(1, 1, PLAN_UNKNOWN, 0);
    noise[0] = '\0';
    memcpy(noise + 1, good, n);
    write_text(s, noise, n + 1);
    assert_estimate(1, 1, PLAN_UNKNOWN, 0);
    // A good line among bad ones is found, and the bad ones are removed.
    snprintf(noise, sizeof noise, "garbage\n%s\n%.20s", good, good);
    write_text(s, noise, strlen(noise));
    assert_estimate(1, 1, PLAN_STORED, bytes);
    keep(2, 1, 2 * all, PLAN_MEASURED);
    char *text = read_text(s);
    assert_null(strstr(text, "garbage"));
    assert_non_null(strstr(text, good));
    assert_int_equal(strlen(text), 2 * n);
    free(text);
    free(good);
}

// A file too long for a store, a folder, a pipe without a writer, or no cache folder at all.
static void test_not_a_store(void **state) {
    const struct scratch *s = *state;
    const uint64_t all = 100 * MIB + tables_of(1, 1);
    char *large = malloc(FILE_BYTES);
    assert_non_null(large);
    memset(large, '1', FILE_BYTES);
    write_text(s, large, FILE_BYTES);
    free(large);
    assert_estimate(1, 1, PLAN_UNKNOWN, 0);
    keep(1, 1, all, PLAN_MEASURED);
    assert_estimate(1, 1, PLAN_STORED, 100 * MIB);
    assert_int_equal(unlink(s->path), 0);
    assert_int_equal(mkdir(s->path, 0700), 0);
    assert_estimate(1, 1, PLAN_UNKNOWN, 0);
    keep(1, 1, all, PLAN_MEASURED);
    assert_estimate(1, 1, PLAN_UNKNOWN, 0);
    assert_true(file_is_dir(s->path));
    assert_int_equal(rmdir(s->path), 0);
    assert_int_equal(mkfifo(s->path, 0600), 0);
    assert_estimate(1, 1, PLAN_UNKNOWN, 0);
    assert_int_equal(unlink(s->path), 0);
    assert_int_equal(setenv("XDG_CACHE_HOME", "/dev/null", 1), 0);
    assert_estimate(1, 1, PLAN_UNKNOWN, 0);
    keep(1, 1, all, PLAN_MEASURED);
    assert_estimate(1, 1, PLAN_UNKNOWN, 0);
}

// A measurement near the figure that is there leaves it: two processes then count the same bytes.
static void test_near_figures(void **state) {
    (void)state;
    const uint64_t all = 100 * MIB + tables_of(1, 1);
    keep(1, 1, all, PLAN_MEASURED);
    for (uint64_t more = MIB; more <= 3 * MIB; more += 2 * MIB) {
        struct plan p = plan_of(1, 1);
        process_estimate(&p);
        process_measured(&p, all + more);
        assert_int_equal(p.process_how, PLAN_MEASURED);
        assert_int_equal(p.process_bytes, more < 2 * MIB ? all : all + more);
        plan_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_measured_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_near_figures, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_newest_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hostile_store, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_a_store, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

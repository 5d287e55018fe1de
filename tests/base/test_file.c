// test_file.c - file.h in a temporary directory: size limits, durable writes under failure, trees
// and links.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

struct place {
    char dir[256];
};

static int setup(void **state) {
    struct place *p = calloc(1, sizeof *p);
    if (!p)
        return -1;
    *state = p;
    return file_make_temp_dir(p->dir, sizeof p->dir, "test", NULL);
}

static int teardown(void **state) {
    struct place *p = *state;
    int rc = file_remove_tree(p->dir, NULL);
    rc = rc ? rc : file_exists(p->dir);
    free(p);
    return rc;
}

// dir/name, in one of four static buffers: enough for the calls in one statement.
static const char *at(void **state, const char *name) {
    static char paths[4][512];
    static int next;
    char *out = paths[next++ % 4];
    assert_int_equal(file_join(out, 512, ((struct place *)*state)->dir, name, NULL), 0);
    return out;
}

static void test_read_all(void **state) {
    struct err e = {0};
    char *text;
    size_t n;
    assert_int_equal(file_read_all(at(state, "none"), 10, &text, &n, &e), ERR_IO);
    assert_non_null(strstr(e.text, "none"));
    assert_null(text);
    assert_int_equal(file_write_atomic(at(state, "f"), "0123456789", 10, &e), 0);
    assert_int_equal(file_read_all(at(state, "f"), 10, &text, &n, &e), 0);
    assert_int_equal(n, 10);
    assert_memory_equal(text, "0123456789", 11);
    free(text);
    assert_int_equal(file_read_all(at(state, "f"), 9, &text, &n, &e), ERR_FORMAT);
    assert_int_equal(file_read_all(at(state, "f"), SIZE_MAX, &text, &n, &e), 0);
    free(text);
    assert_int_equal(file_write_atomic(at(state, "f"), NULL, 0, &e), 0);
    assert_int_equal(file_read_all(at(state, "f"), 0, &text, &n, &e), 0);
    assert_int_equal(n, 0);
    assert_string_equal(text, "");
    free(text);
    assert_int_equal(file_read_all(((struct place *)*state)->dir, 9, &text, &n, &e), ERR_FORMAT);
    // A FIFO without a writer is refused and does not block.
    assert_int_equal(mkfifo(at(state, "fifo"), 0600), 0);
    assert_int_equal(file_read_all(at(state, "fifo"), 9, &text, &n, &e), ERR_FORMAT);
    // Files in /proc report a size of 0 but are not empty.
    assert_int_equal(file_read_all("/proc/self/status", 1 << 20, &text, &n, &e), 0);
    assert_true(n > 100 && strlen(text) == n);
    free(text);
    assert_int_equal(file_read_all("/proc/self/status", 20, &text, &n, &e), ERR_FORMAT);
}

static void test_read_limits(void **state) {
    struct err e = {0};
    char *text;
    size_t n;
    assert_int_equal(file_read_all(at(state, "none"), 9, &text, &n, &e), ERR_IO);
    assert_int_equal(file_write_atomic(at(state, "f"), "abc", 3, &e), 0);
    assert_int_equal(file_read_all(at(state, "f"), 3, &text, &n, &e), 0);
    assert_int_equal(n, 3);
    assert_string_equal(text, "abc");
    free(text);
    assert_int_equal(file_read_all(at(state, "f"), 2, &text, &n, &e), ERR_FORMAT);
    assert_null(text);
    assert_int_equal(file_write_atomic(at(state, "f"), "", 0, &e), 0);
    assert_int_equal(file_read_all(at(state, "f"), 0, &text, &n, &e), 0);
    assert_string_equal(text, "");
    assert_int_equal(n, 0);
    free(text);
    assert_int_equal(file_read_all(((struct place *)*state)->dir, 0, &text, &n, &e), ERR_FORMAT);
}

static void test_writer(void **state) {
    struct err e = {0};
    struct file_writer w;
    struct hash *h = hash_new();
    assert_non_null(h);
    // A temporary file left by a crash does no harm.
    assert_int_equal(file_write_atomic(at(state, "f.tmp"), "old rubbish, longer", 19, &e), 0);
    assert_int_equal(file_writer_begin(&w, at(state, "f"), &e), 0);
    w.hash = h;
    assert_int_equal(file_writer_put(&w, "hello ", 6, &e), 0);
    assert_int_equal(file_writer_put(&w, "", 0, &e), 0);
    assert_int_equal(file_writer_put(&w, "world", 5, &e), 0);
    assert_int_equal(w.bytes, 11);
    assert_false(file_exists(at(state, "f"))); // not before end
    assert_int_equal(file_writer_end(&w, &e), 0);
    assert_false(file_exists(at(state, "f.tmp")));
    char streamed[HASH_TEXT_BYTES], whole[HASH_TEXT_BYTES];
    hash_text(h, streamed);
    hash_of("hello world", 11, whole);
    assert_string_equal(streamed, whole);
    hash_free(h);
    file_writer_abort(&w); // after end: nothing happens
    assert_true(file_exists(at(state, "f")));
    assert_int_equal(file_writer_put(&w, "x", 1, &e), ERR_INTERNAL);
    assert_int_equal(file_writer_end(&w, &e), ERR_INTERNAL);

    assert_int_equal(file_writer_begin(&w, at(state, "f"), &e), 0);
    assert_int_equal(file_writer_put(&w, "new", 3, &e), 0);
    file_writer_abort(&w);
    assert_false(file_exists(at(state, "f.tmp")));
    uint64_t size;
    assert_int_equal(file_size(at(state, "f"), &size, &e), 0);
    assert_int_equal(size, 11);

    struct file_writer zeroed = {0};
    file_writer_abort(&zeroed); // must not close descriptor 0
    assert_true(fcntl(0, F_GETFD) >= 0 || errno == EBADF);
    assert_int_equal(file_writer_begin(&w, at(state, "no/such/f"), &e), ERR_IO);
    file_writer_abort(&w);
    char wide[2000];
    memset(wide, 'a', sizeof wide);
    wide[1999] = '\0';
    assert_int_equal(file_writer_begin(&w, wide, &e), ERR_USAGE);
    file_writer_abort(&w);
    // A symbolic link where the temporary file should be is not written through.
    assert_int_equal(file_write_atomic(at(state, "victim"), "safe", 4, &e), 0);
    assert_int_equal(symlink(at(state, "victim"), at(state, "g.tmp")), 0);
    assert_int_equal(file_write_atomic(at(state, "g"), "x", 1, &e), ERR_IO);
    assert_int_equal(file_size(at(state, "victim"), &size, &e), 0);
    assert_int_equal(size, 4);
    // A pipe there is not waited for, with and without a reader.
    assert_int_equal(mkfifo(at(state, "h.tmp"), 0600), 0);
    assert_int_equal(file_write_atomic(at(state, "h"), "x", 1, &e), ERR_IO);
    assert_non_null(strstr(e.text, "h.tmp' is a pipe"));
}

static void test_append(void **state) {
    struct err e = {0};
    int fd;
    char text[4] = {0};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(file_open_append(at(state, "log"), &fd, &e), 0);
        assert_true(file_is_open_as(at(state, "log"), fd));
        assert_int_equal(write(fd, "x", 1), 1);
        assert_int_equal(pread(fd, text, 3, 0), i + 1);
        assert_int_equal(close(fd), 0);
    }
    // Neither followed nor waited for.
    assert_int_equal(symlink("log", at(state, "log-link")), 0);
    assert_int_equal(mkfifo(at(state, "log-pipe"), 0600), 0);
    assert_int_equal(file_open_append(at(state, "log-link"), &fd, &e), ERR_IO);
    assert_non_null(strstr(e.text, "log-link' is a symbolic link"));
    assert_int_equal(file_open_append(at(state, "log-pipe"), &fd, &e), ERR_IO);
    assert_non_null(strstr(e.text, "log-pipe' is a pipe"));
    assert_int_equal(file_open_append(at(state, "none/log"), &fd, &e), ERR_IO);
    assert_int_equal(fd, -1);
    // A file that another one has replaced is not the open one.
    assert_int_equal(file_open_append(at(state, "log"), &fd, &e), 0);
    assert_int_equal(file_rename(at(state, "log"), at(state, "moved"), &e), 0);
    assert_false(file_is_open_as(at(state, "log"), fd));
    assert_int_equal(file_write_atomic(at(state, "log"), "y", 1, &e), 0);
    assert_false(file_is_open_as(at(state, "log"), fd));
    assert_true(file_is_open_as(at(state, "moved"), fd));
    close(fd);
}

// The folder of a process that still runs stays, one that a killed process left is removed.
static void test_locked_dir(void **state) {
    struct err e = {0};
    char ours[500], theirs[500], left[500], other[500];
    int lock, their_lock;
    assert_int_equal(setenv("TMPDIR", at(state, "."), 1), 0);
    assert_int_equal(file_make_locked_dir(theirs, sizeof theirs, "x", &their_lock, &e), 0);
    assert_int_equal(file_make_temp_dir(left, sizeof left, "x", &e), 0);
    assert_int_equal(file_make_temp_dir(other, sizeof other, "y", &e), 0);
    char inside[520];
    snprintf(inside, sizeof inside, "%s/file", left);
    assert_int_equal(file_write_atomic(inside, "x", 1, &e), 0);
    assert_int_equal(file_make_locked_dir(ours, sizeof ours, "x", &lock, &e), 0);
    assert_true(file_is_dir(ours) && file_is_dir(theirs) && file_is_dir(other));
    assert_false(file_exists(left));
    assert_int_equal(unsetenv("TMPDIR"), 0);
    close(lock);
    close(their_lock);
}

// A path that a rename would destroy is refused before anything is written. Links to files are
// replaced.
static void test_what_is_no_file_stays(void **state) {
    struct err e = {0};
    struct stat st;
    assert_int_equal(mkfifo(at(state, "pipe"), 0600), 0);
    assert_int_equal(symlink(at(state, "pipe"), at(state, "to-pipe")), 0);
    assert_int_equal(file_make_dirs(at(state, "folder"), &e), 0);
    static const struct {
        const char *name, *what;
    } kept[] = {{"pipe", "is a pipe"}, {"to-pipe", "is a pipe"}, {"folder", "is a directory"}};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        assert_int_equal(file_check_replaceable(at(state, kept[i].name), &e), ERR_USAGE);
        err_clear(&e);
        assert_int_equal(file_write_atomic(at(state, kept[i].name), "x", 1, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, kept[i].what));
        assert_non_null(strstr(e.text, at(state, kept[i].name)));
    }
    assert_int_equal(stat(at(state, "pipe"), &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_false(file_exists(at(state, "pipe.tmp")));
    assert_int_equal(file_write_atomic(at(state, "f"), "x", 1, &e), 0);
    assert_int_equal(symlink(at(state, "f"), at(state, "to-f")), 0);
    assert_int_equal(symlink("nowhere", at(state, "dangling")), 0);
    assert_int_equal(file_write_atomic(at(state, "to-f"), "xy", 2, &e), 0);
    assert_int_equal(file_write_atomic(at(state, "dangling"), "xy", 2, &e), 0);
    assert_true(lstat(at(state, "dangling"), &st) == 0 && S_ISREG(st.st_mode));
    assert_int_equal(file_check_replaceable(at(state, "none"), &e), 0);
}

static void test_same_entry(void **state) {
    struct err e = {0};
    assert_int_equal(file_make_dirs(at(state, "a/b"), &e), 0);
    assert_int_equal(symlink("a", at(state, "link")), 0);
    assert_true(file_same_entry(at(state, "a/f"), at(state, "a/f")));
    assert_true(file_same_entry(at(state, "a/f"), at(state, "a/b/../f")));
    assert_true(file_same_entry(at(state, "a//f"), at(state, "link/f")));
    assert_true(file_same_entry("f", "./f"));
    assert_false(file_same_entry(at(state, "a/f"), at(state, "f")));
    assert_false(file_same_entry(at(state, "a/f"), at(state, "a/g")));
    assert_false(file_same_entry(at(state, "none/f"), at(state, "a/f")));
}

// Simulates a full disk with a file size limit: first a short write, then an error.
static void test_write_failure(void **state) {
    struct err e = {0};
    static char data[5000];
    assert_int_equal(file_write_atomic(at(state, "f"), "good", 4, &e), 0);
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = file_write_atomic(at(state, "f"), data, sizeof data, &e);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
    assert_int_equal(rc, ERR_IO);
    assert_false(file_exists(at(state, "f.tmp")));
    char *text;
    size_t n;
    assert_int_equal(file_read_all(at(state, "f"), 100, &text, &n, &e), 0);
    assert_string_equal(text, "good");
    free(text);
}

static void test_dirs(void **state) {
    struct err e = {0};
    assert_int_equal(file_make_dirs(at(state, "a/b//c/"), &e), 0);
    assert_int_equal(file_make_dirs(at(state, "a/b/c"), &e), 0);
    assert_true(file_is_dir(at(state, "a/b/c")));
    assert_int_equal(file_make_dirs("/", &e), 0);
    assert_int_equal(file_make_dirs("", &e), ERR_USAGE);
    assert_int_equal(file_write_atomic(at(state, "a/f"), "x", 1, &e), 0);
    assert_int_equal(file_make_dirs(at(state, "a/f"), &e), ERR_IO);
    assert_int_equal(file_make_dirs(at(state, "a/f/g"), &e), ERR_IO);
    assert_false(file_is_dir(at(state, "a/f")));
    assert_int_equal(file_sync_dir(at(state, "a"), &e), 0);
    assert_int_equal(file_sync_dir(at(state, "none"), &e), ERR_IO);
    assert_int_equal(file_rename(at(state, "a/f"), at(state, "a/b/g"), &e), 0);
    assert_true(file_exists(at(state, "a/b/g")));
    assert_int_equal(file_rename(at(state, "none"), at(state, "b"), &e), ERR_IO);
    assert_true(strstr(e.text, "none") && strstr(e.text, "/b"));
    uint64_t bytes = 0;
    assert_int_equal(file_free_bytes(at(state, "a"), &bytes, &e), 0);
    assert_true(bytes > 0);
    assert_int_equal(file_free_bytes(at(state, "none"), &bytes, &e), ERR_IO);
    assert_int_equal(file_size(at(state, "none"), &bytes, &e), ERR_IO);
    // A path relative to the working directory has a parent too.
    char home[4096];
    assert_non_null(getcwd(home, sizeof home));
    assert_int_equal(chdir(at(state, "a")), 0);
    int rc = file_write_atomic("plain", "x", 1, &e);
    rc = rc ? rc : file_make_dirs("d/e", &e);
    rc = rc ? rc : file_remove_tree("d", &e);
    assert_int_equal(chdir(home), 0);
    assert_int_equal(rc, 0);
    assert_true(file_exists(at(state, "a/plain")));
    assert_false(file_exists(at(state, "a/d")));
}

static void test_remove_tree(void **state) {
    struct err e = {0};
    char name[64];
    assert_int_equal(file_make_dirs(at(state, "keep/inner"), &e), 0);
    assert_int_equal(file_write_atomic(at(state, "keep/inner/f"), "x", 1, &e), 0);
    assert_int_equal(file_make_dirs(at(state, "t/x/y/z"), &e), 0);
    for (int i = 0; i < 500; i++) {
        snprintf(name, sizeof name, "t/x/%d", i);
        int fd = open(at(state, name), O_CREAT | O_WRONLY, 0600);
        assert_true(fd >= 0);
        close(fd);
    }
    assert_int_equal(symlink(at(state, "keep"), at(state, "t/x/link")), 0);
    assert_int_equal(symlink("nowhere", at(state, "t/dangling")), 0);
    assert_int_equal(symlink(at(state, "keep"), at(state, "link")), 0);
    assert_int_equal(file_remove_tree(at(state, "t"), &e), 0);
    assert_false(file_exists(at(state, "t")));
    assert_int_equal(file_remove_tree(at(state, "link/"), &e), 0); // the link, not its target
    assert_true(file_exists(at(state, "keep/inner/f")));
    struct stat st;
    assert_int_equal(lstat(at(state, "link"), &st), -1);
    assert_int_equal(file_remove_tree(at(state, "t"), &e), 0); // already gone
}

// Each path is tried where wrongly accepting it could only remove files of this test.
static void test_remove_tree_refusals(void **state) {
    struct err e = {0};
    static const char *const inside[] = {"n/m/..", "n/m/../", "n/m/.", "n/m/./", "n/m/..//"};
    assert_int_equal(file_make_dirs(at(state, "n/m"), &e), 0);
    assert_int_equal(file_write_atomic(at(state, "n/f"), "x", 1, &e), 0);
    assert_int_equal(file_write_atomic(at(state, "n/m/f"), "x", 1, &e), 0);
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
        assert_int_equal(file_remove_tree(at(state, inside[i]), &e), ERR_USAGE);
        assert_true(file_exists(at(state, "n/f")) && file_exists(at(state, "n/m/f")));
    }
    char home[4096];
    assert_non_null(getcwd(home, sizeof home));
    assert_int_equal(chdir(at(state, "n/m")), 0);
    int dot = file_remove_tree(".", &e), dots = file_remove_tree("..", &e);
    int slash = file_remove_tree("./", &e), nothing = file_remove_tree("", &e);
    assert_int_equal(chdir(home), 0);
    assert_true(dot == ERR_USAGE && dots == ERR_USAGE);
    assert_true(slash == ERR_USAGE && nothing == ERR_USAGE);
    assert_true(file_exists(at(state, "n/f")) && file_exists(at(state, "n/m/f")));
    // A name that only begins with dots is accepted.
    assert_int_equal(file_make_dirs(at(state, "n/..m"), &e), 0);
    assert_int_equal(file_remove_tree(at(state, "n/..m"), &e), 0);
    assert_false(file_exists(at(state, "n/..m")));
}

static void test_join(void **state) {
    (void)state;
    struct err e = {0};
    char out[8];
    assert_int_equal(file_join(out, sizeof out, "a", "b", &e), 0);
    assert_string_equal(out, "a/b");
    assert_int_equal(file_join(out, sizeof out, "a/", "b", &e), 0);
    assert_string_equal(out, "a/b");
    assert_int_equal(file_join(out, sizeof out, "", "b", &e), 0);
    assert_string_equal(out, "b");
    assert_int_equal(file_join(out, sizeof out, "abc", "def", &e), 0);
    assert_int_equal(file_join(out, sizeof out, "abc", "defg", &e), ERR_USAGE);
    assert_true(strstr(e.text, "abc") && strstr(e.text, "defg"));
    assert_string_equal(out, "");
}

static void test_parent_and_temp_dir(void **state) {
    struct err e = {0};
    char dir[256], shortest[8];
    char *before = getenv("TMPDIR") ? strdup(getenv("TMPDIR")) : NULL;
    assert_int_equal(file_make_parent(at(state, "up/and/down"), &e), 0);
    assert_true(file_is_dir(at(state, "up/and")) && !file_exists(at(state, "up/and/down")));
    assert_int_equal(file_make_parent("just-a-name", &e), 0);
    setenv("TMPDIR", at(state, "up"), 1);
    assert_int_equal(file_make_temp_dir(dir, sizeof dir, "one", &e), 0);
    assert_non_null(strstr(dir, "/up/haggle-one-"));
    assert_true(file_is_dir(dir));
    assert_int_equal(file_make_temp_dir(shortest, sizeof shortest, "one", &e), ERR_USAGE);
    setenv("TMPDIR", at(state, "nowhere"), 1);
    assert_int_equal(file_make_temp_dir(dir, sizeof dir, "one", &e), ERR_IO);
    assert_non_null(strstr(e.text, "/nowhere"));
    assert_string_equal(dir, "");
    if (before)
        setenv("TMPDIR", before, 1);
    else
        unsetenv("TMPDIR");
    free(before);
}

struct seen {
    char text[256];
    int stop_after;
};

static int see(void *arg, const char *name) {
    struct seen *s = arg;
    strcat(s->text, name);
    strcat(s->text, " ");
    return --s->stop_after == 0 ? 42 : 0;
}

static void test_list(void **state) {
    struct err e = {0};
    static const char *const names[] = {"b", "a", "c", "B", "10", ".h"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(file_write_atomic(at(state, names[i]), "", 0, &e), 0);
    struct seen s = {0};
    assert_int_equal(file_list_dir(((struct place *)*state)->dir, see, &s, &e), 0);
    assert_string_equal(s.text, ".h 10 B a b c ");
    s = (struct seen){.stop_after = 2};
    assert_int_equal(file_list_dir(((struct place *)*state)->dir, see, &s, &e), 42);
    assert_string_equal(s.text, ".h 10 ");
    assert_int_equal(file_list_dir(at(state, "none"), see, &s, &e), ERR_IO);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_read_all),
        TEST(test_read_limits),
        TEST(test_writer),
        TEST(test_append),
        TEST(test_locked_dir),
        TEST(test_what_is_no_file_stays),
        TEST(test_same_entry),
        TEST(test_write_failure),
        TEST(test_dirs),
        TEST(test_remove_tree),
        TEST(test_remove_tree_refusals),
        TEST(test_join),
        TEST(test_parent_and_temp_dir),
        TEST(test_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

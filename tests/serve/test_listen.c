// test_listen.c - the path of a run's socket: what is refused, by the check without changes as well
// as by opening.
#include "serve/listen.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    char dir[96], path[104];
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_int_equal(file_make_temp_dir(f->dir, sizeof f->dir, "listen", NULL), 0);
    snprintf(f->path, sizeof f->path, "%s/s", f->dir);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    const int rc = file_remove_tree(f->dir, NULL);
    free(f);
    return rc;
}

static void refused(const char *path, const char *part) {
    struct listener l;
    struct err e = {0}, again = {0};
    assert_int_equal(listen_check(path, "", &e), ERR_USAGE);
    if (strstr(e.text, part) == NULL)
        fail_msg("expected '%s', got: %s", part, e.text);
    assert_int_equal(listen_open(&l, path, &again), ERR_USAGE);
    assert_string_equal(e.text, again.text);
    listen_close(&l);
}

static void test_refusals(void **state) {
    const struct fixture *f = *state;
    char path[200];
    struct err e = {0};
    memset(path, 'x', sizeof path);
    path[108] = '\0';
    refused(path, "has 108 bytes; accepted: a path of at most 107");
    assert_int_equal(file_write_atomic(f->path, "mine", 4, &e), 0);
    refused(f->path, "is not a socket");
    assert_true(file_exists(f->path));
    unlink(f->path);
    struct listener l;
    assert_int_equal(listen_open(&l, f->path, &e), 0);
    refused(f->path, "is in use");
    assert_true(file_exists(f->path));
    listen_close(&l);
    assert_false(file_exists(f->path));
    char run[104];
    snprintf(run, sizeof run, "%s/run", f->dir);
    snprintf(path, sizeof path, "%s/s", run);
    assert_int_equal(listen_check(path, "", &e), ERR_IO);
    assert_non_null(strstr(e.text, "cannot create a socket in"));
    assert_int_equal(listen_check(path, f->path, &e), ERR_IO); // another folder
    assert_int_equal(listen_check(path, run, &e), 0);
    strcat(run, "/");
    assert_int_equal(listen_check(path, run, &e), 0);
}

static void test_a_look_changes_nothing(void **state) {
    const struct fixture *f = *state;
    struct err e = {0};
    struct listener l;
    struct stat before, after;
    assert_int_equal(listen_check(f->path, "", &e), 0);
    assert_false(file_exists(f->path));
    assert_int_equal(listen_open(&l, f->path, &e), 0);
    close(l.fd); // like a killed process
    l.fd = -1;
    assert_int_equal(lstat(f->path, &before), 0);
    assert_int_equal(listen_check(f->path, "", &e), 0);
    assert_int_equal(lstat(f->path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    struct listener next;
    assert_int_equal(listen_open(&next, f->path, &e), 0); // replaced
    listen_close(&next);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_look_changes_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_pause.c - pause_beside: other work may run while a job blocks, and the job's result is
// returned.
#include "train/pause.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

struct work {
    atomic_int let; // number of times that other work was let in
    int rc;
    int ended_after; // how many of them were over when the job ended
};

static void let(void *arg) {
    atomic_fetch_add(&((struct work *)arg)->let, 1);
}

// Blocks like a disk: it ends only after the other work had its turns.
static int block(void *arg, struct err *e) {
    const struct timespec turn = {.tv_nsec = 100000};
    struct work *w = arg;
    while (atomic_load(&w->let) < 3)
        nanosleep(&turn, NULL);
    w->ended_after = atomic_load(&w->let);
    return w->rc != 0 ? err_set(e, w->rc, "the disk is full") : 0;
}

static int at_once(void *arg, struct err *e) {
    (void)e;
    ((struct work *)arg)->ended_after = 1;
    return 0;
}

static void test_others_are_let_in(void **state) {
    (void)state;
    struct work w = {0};
    struct err e = {0};
    const struct pause p = {.let = let, .arg = &w};
    assert_int_equal(pause_beside(&p, block, &w, &e), 0);
    assert_true(w.ended_after >= 3);
    w = (struct work){.rc = ERR_IO};
    assert_int_equal(pause_beside(&p, block, &w, &e), ERR_IO);
    assert_non_null(strstr(e.text, "the disk is full"));
}

static void test_nobody_waits(void **state) {
    (void)state;
    struct work w = {0};
    const struct pause none = {0};
    pause_let(NULL);
    pause_let(&none);
    assert_int_equal(pause_beside(NULL, at_once, &w, NULL), 0);
    assert_int_equal(w.ended_after, 1);
    w.ended_after = 0;
    assert_int_equal(pause_beside(&none, at_once, &w, NULL), 0);
    assert_int_equal(w.ended_after, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_others_are_let_in),
        cmocka_unit_test(test_nobody_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

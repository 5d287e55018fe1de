// test_late.c - the message about ranks that do not come: who is missing, who waits, what each does
// and did last; in few words for many ranks, and never more than there is room for.
#include "comm/late.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static struct late_rank all[COMM_RANKS_MOST];

static void set(int first, int last, const char *before, const char *now) {
    for (int r = first; r <= last; r++) {
        memset(&all[r], 0, sizeof all[r]);
        doing_note(&all[r].doing, before);
        doing_note(&all[r].doing, now);
    }
}

static void expect(int world, const char *expected) {
    char text[ERR_TEXT_BYTES];
    late_text(text, all, world, 30000000000u);
    assert_string_equal(text, expected);
}

static void test_notes(void **state) {
    struct doing d = {0};
    char text[DOING_TEXT_BYTES], note[2 * COMM_ABOUT_BYTES];
    (void)state;
    assert_string_equal(doing_text(text, &d), "at the start");
    doing_note(&d, "a");
    assert_string_equal(doing_text(text, &d), "in a");
    doing_note(&d, "b");
    assert_string_equal(doing_text(text, &d), "in b, after a");
    doing_note(&d, NULL);
    doing_note(&d, NULL);
    assert_string_equal(doing_text(text, &d), "in its own work, after b");
    doing_note(&d, "c");
    assert_string_equal(doing_text(text, &d), "in c, after b");
    memset(note, 'x', sizeof note);
    note[sizeof note - 1] = '\0';
    doing_note(&d, note);
    doing_note(&d, note);
    assert_int_equal(strlen(doing_text(text, &d)),
                     2 * (COMM_ABOUT_BYTES - 1) + strlen("in , after "));
}

static void test_message(void **state) {
    (void)state;
    set(0, 5, "the hall", "the sum");
    set(3, 3, "the hall", "the kitchen");
    all[3].missing = true;
    all[0].waits = all[1].waits = all[2].waits = all[5].waits = true;
    expect(6,
           "after waiting for 30.0 s these ranks are missing: rank 3 (last in the kitchen, after "
           "the hall); these wait: ranks 0-2, 5 (in the sum, after the hall); the others: rank 4 "
           "(in the sum, after the hall)");
    all[3].silent_ns = 12000000000u;
    all[4].where = LATE_ABSENT;
    all[5] = (struct late_rank){.where = LATE_UNKNOWN};
    expect(6,
           "after waiting for 30.0 s these ranks are missing: rank 3 (has not answered for 12.0 s: "
           "stopped, or its machine is gone; last in the kitchen, after the hall); these wait: "
           "ranks 0-2 (in the sum, after the hall); the others: rank 4 (has not joined the job)");
}

// Rank 0 waits for rank 1, which waits for rank 2.
static void test_chain(void **state) {
    (void)state;
    set(0, 2, NULL, "x");
    all[0].waits = all[1].waits = all[1].missing = all[2].missing = true;
    all[2].where = LATE_LEFT;
    expect(3, "after waiting for 30.0 s these ranks are missing: rank 2 (has left the job; last in "
              "x); these wait: ranks 0-1 (in x)");
    all[2] = (struct late_rank){.waits = true, .missing = true};
    all[0].missing = true;
    expect(3,
           "after waiting for 30.0 s these ranks wait for each other: ranks 0-1 (in x), rank 2 (at "
           "the start)");
    all[0].silent_ns = 4000000000u; // it does not answer, so it is named, though it waits
    expect(3,
           "after waiting for 30.0 s these ranks are missing: rank 0 (has not answered for 4.0 s: "
           "stopped, or its machine is gone; last in x); these wait: rank 1 (in x), rank 2 (at the "
           "start)");
}

static void test_many(void **state) {
    char text[ERR_TEXT_BYTES], note[COMM_ABOUT_BYTES];
    (void)state;
    set(0, COMM_RANKS_MOST - 1, "the hall", "the sum");
    for (int r = 0; r < COMM_RANKS_MOST; r++)
        *(r % 2 ? &all[r].missing : &all[r].waits) = true;
    expect(
        COMM_RANKS_MOST,
        "after waiting for 30.0 s these ranks are missing: ranks 1, 3, 5, 7, 9, 11, 13, 15 and 504 "
        "more (last in the sum, after the hall); these wait: ranks 0, 2, 4, 6, 8, 10, 12, 14 and "
        "504 more (in the sum, after the hall)");
    for (int r = 0; r < COMM_RANKS_MOST; r++) {
        snprintf(note, sizeof note, "room %d", r);
        doing_note(&all[r].doing, note);
    }
    late_text(text, all, COMM_RANKS_MOST, 1);
    assert_int_equal(strlen(text), sizeof text - 1);
    assert_string_equal(text + sizeof text - 4, "...");
    assert_non_null(
        strstr(text, "rank 1 (last in room 1, after the sum), rank 3 (last in room 3,"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_notes),
        cmocka_unit_test(test_message),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

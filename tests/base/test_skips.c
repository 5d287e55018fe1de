// test_skips.c - skips.c: a program whose cases are all skipped ends with another status than one
// that tested something.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_without(void **state) {
    (void)state;
    skip(); // without a reason: it would be in the summary of every `make test`
}

static void test_with(void **state) {
    (void)state;
}

static void test_status(void **state) {
    const int *status = *state;
    assert_int_equal(status[0], 77);
    assert_int_equal(status[1], 0);
    assert_int_equal(status[2], 0);
}

static int status[3];

static int give_status(void **state) {
    *state = status;
    return 0;
}

int main(void) {
    const struct CMUnitTest both[] = {cmocka_unit_test(test_without),
                                      cmocka_unit_test(test_without)};
    const struct CMUnitTest half[] = {cmocka_unit_test(test_without), cmocka_unit_test(test_with)};
    const struct CMUnitTest none[] = {cmocka_unit_test(test_with)};
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_status)};
    status[0] = cmocka_run_group_tests(both, NULL, NULL);
    status[1] = cmocka_run_group_tests(half, NULL, NULL);
    status[2] = cmocka_run_group_tests(none, NULL, NULL);
    return cmocka_run_group_tests(tests, give_status, NULL);
}

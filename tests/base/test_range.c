// test_range.c - range.h: the address never changes, bytes stay until range_trim, and resident
// bytes are reported.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/range.h"

#include <string.h>

static const size_t MIB = 1 << 20;

static void test_grows_in_place(void **state) {
    struct range *r;
    struct err e = {0};
    void *a, *b;
    (void)state;
    assert_int_equal(range_open(&r, 256 * MIB, &e), 0);
    assert_int_equal(range_most(r), 256 * MIB);
    assert_int_equal(range_resident_bytes(r, 0), 0);
    assert_int_equal(range_use(r, 3 * MIB, &a, &e), 0);
    assert_int_equal((uintptr_t)a % (2 * MIB), 0);
    assert_int_equal(((unsigned char *)a)[3 * MIB - 1], 0);
    memset(a, 7, 3 * MIB);
    assert_int_equal(range_use(r, 20 * MIB, &b, &e), 0);
    assert_ptr_equal(a, b);
    assert_int_equal(((unsigned char *)b)[3 * MIB - 1], 7);
    assert_int_equal(((unsigned char *)b)[20 * MIB - 1], 0);
    assert_int_equal(range_use(r, 1 * MIB, &b, &e), 0); // less: nothing changes
    assert_int_equal(((unsigned char *)b)[3 * MIB - 1], 7);
    range_close(r);
}

static void test_tells_and_gives_back(void **state) {
    struct range *r;
    struct err e = {0};
    void *a;
    (void)state;
    assert_int_equal(range_open(&r, 256 * MIB, &e), 0);
    assert_int_equal(range_use(r, 40 * MIB, &a, &e), 0);
    memset(a, 7, 40 * MIB);
    assert_int_equal(range_resident_bytes(r, 0), 40 * MIB);
    assert_int_equal(range_resident_bytes(r, 9 * MIB), 30 * MIB); // from 10 MiB on
    assert_int_equal(range_resident_bytes(r, 64 * MIB), 0);
    range_trim(r, 9 * MIB);
    assert_int_equal(range_resident_bytes(r, 0), 10 * MIB);
    assert_int_equal(((unsigned char *)a)[10 * MIB - 1], 7);
    assert_int_equal(((unsigned char *)a)[10 * MIB], 0);
    range_trim(r, 64 * MIB); // nothing is there
    range_close(r);
}

static void test_refuses_what_is_too_much(void **state) {
    struct range *r;
    struct err e = {0};
    void *a;
    (void)state;
    assert_int_equal(range_open(&r, 64 * MIB, &e), 0);
    assert_int_equal(range_use(r, 64 * MIB + 1, &a, &e), ERR_MEMORY);
    assert_null(a);
    assert_non_null(strstr(e.text, "64.00 MiB available"));
    range_close(r);
    e = (struct err){0};
    assert_int_equal(range_open(&r, SIZE_MAX, &e), 0); // as many addresses as there are
    assert_true(range_most(r) >= 1024 * MIB);
    assert_int_equal(range_use(r, range_most(r), &a, &e), ERR_MEMORY);
    range_close(r);
    range_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grows_in_place),
        cmocka_unit_test(test_tells_and_gives_back),
        cmocka_unit_test(test_refuses_what_is_too_much),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

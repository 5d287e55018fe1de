// test_array.c - array.h: growth keeps the elements, impossible sizes change nothing.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/array.h"

#include <stdlib.h>

static void test_grow(void **state) {
    (void)state;
    int *items = NULL;
    size_t capacity = 0, moves = 0;
    for (size_t i = 0; i < 10000; i++) {
        size_t before = capacity;
        assert_true(array_room(&items, i, 1, &capacity, sizeof *items, 8));
        assert_true(capacity > i && capacity >= 8);
        moves += capacity != before;
        items[i] = (int)i;
    }
    for (size_t i = 0; i < 10000; i++)
        assert_int_equal(items[i], i);
    assert_true(moves < 24); // grows by half
    assert_true(array_room(&items, 10000, 90000, &capacity, sizeof *items, 8));
    assert_int_equal(capacity, 100000);
    assert_int_equal(items[9999], 9999);
    free(items);
}

static void test_impossible(void **state) {
    (void)state;
    int *items = NULL;
    size_t capacity = 0;
    assert_true(array_room(&items, 0, 4, &capacity, sizeof *items, 0));
    int *before = items;
    assert_false(array_room(&items, 4, SIZE_MAX, &capacity, sizeof *items, 0));
    assert_false(array_room(&items, 4, SIZE_MAX / sizeof *items, &capacity, sizeof *items, 0));
    assert_ptr_equal(items, before);
    assert_int_equal(capacity, 4);
    free(items);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grow),
        cmocka_unit_test(test_impossible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

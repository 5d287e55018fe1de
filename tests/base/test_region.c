// test_region.c - region.h: alignment, zeroing, growth, large objects, impossible sizes.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/region.h"

#include <stdlib.h>
#include <string.h>

static void test_alloc(void **state) {
    (void)state;
    struct region r = {0};
    size_t total = 0;
    unsigned char *kept[600];
    for (size_t i = 0; i < 600; i++) {
        size_t bytes = i * 7 % 1000;
        unsigned char *p = region_alloc(&r, bytes);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t k = 0; k < bytes; k++)
            assert_int_equal(p[k], 0);
        memset(p, (int)(i & 0xFF), bytes);
        kept[i] = p;
        total += bytes;
    }
    // No object was overwritten by another.
    for (size_t i = 0; i < 600; i++)
        for (size_t k = 0; k < i * 7 % 1000; k++)
            assert_int_equal(kept[i][k], i & 0xFF);
    assert_true(r.bytes >= total && r.bytes <= total + 600 * 16);
    region_free(&r);
    assert_null(r.chunk);
    assert_int_equal(r.bytes, 0);
    region_free(&r); // twice is harmless
}

static void test_large(void **state) {
    (void)state;
    struct region r = {0};
    char *first = region_alloc(&r, 5 << 20); // before any chunk exists
    char *small = region_alloc(&r, 16);
    char *large = region_alloc(&r, 3 << 20);
    char *after = region_alloc(&r, 16);
    assert_true(first && small && large && after);
    memset(first, 1, 5 << 20);
    memset(large, 2, 3 << 20);
    assert_int_equal(after - small, 16); // the large object did not end the current chunk
    assert_int_equal(after[0], 0);
    region_free(&r);
}

static void test_impossible(void **state) {
    (void)state;
    struct region r = {0};
    size_t capacity = 0;
    assert_null(region_alloc(&r, SIZE_MAX));
    assert_null(region_alloc(&r, SIZE_MAX - 15));
    assert_null(region_grow(&r, NULL, SIZE_MAX / 2 + 1, &capacity, 1));
    assert_null(region_grow(&r, NULL, SIZE_MAX / 16, &capacity, 64));
    assert_int_equal(capacity, 0);
    assert_int_equal(r.bytes, 0);
    region_free(&r);
}

static void test_text(void **state) {
    (void)state;
    struct region r = {0};
    assert_string_equal(region_copy(&r, ""), "");
    assert_string_equal(region_copy(&r, "abc"), "abc");
    assert_string_equal(region_printf(&r, "%s-%d", "layer", 12), "layer-12");
    char *wide = region_printf(&r, "%05000d", 7);
    assert_int_equal(strlen(wide), 5000);
    region_free(&r);
}

static void test_grow(void **state) {
    (void)state;
    struct region r = {0};
    uint32_t *items = NULL;
    size_t count = 0, capacity = 0, moves = 0;
    for (; count < 10000; count++) {
        uint32_t *p = region_grow(&r, items, count, &capacity, sizeof *items);
        assert_non_null(p);
        moves += p != items;
        items = p;
        items[count] = (uint32_t)count * 3;
    }
    for (size_t i = 0; i < count; i++)
        assert_int_equal(items[i], i * 3);
    assert_true(moves < 16); // doubling
    region_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc),      cmocka_unit_test(test_large),
        cmocka_unit_test(test_impossible), cmocka_unit_test(test_text),
        cmocka_unit_test(test_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

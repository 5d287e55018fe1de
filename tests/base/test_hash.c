// test_hash.c - hash.h: known answers, and streaming gives the same as one call.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

static void test_known(void **state) {
    (void)state;
    char text[HASH_TEXT_BYTES];
    hash_of(NULL, 0, text);
    assert_string_equal(text, "99aa06d3014798d86001c324468d497f"); // xxh128sum of nothing
    assert_true(hash_u64(NULL, 0) == UINT64_C(0x2d06800538d394c2));
    assert_int_equal(hash_crc32c("123456789", 9), 0xE3069283);
    assert_int_equal(hash_crc32c("", 0), 0);
    // RFC 3720, appendix B.4.
    unsigned char block[32] = {0};
    assert_int_equal(hash_crc32c(block, 32), 0x8A9136AA);
    memset(block, 0xFF, 32);
    assert_int_equal(hash_crc32c(block, 32), 0x62A8AB43);
    for (int i = 0; i < 32; i++)
        block[i] = (unsigned char)i;
    assert_int_equal(hash_crc32c(block, 32), 0x46DD794E);
}

static void test_streaming(void **state) {
    (void)state;
    enum { BYTES = 10000 };
    unsigned char *data = malloc(BYTES);
    struct hash *h = hash_new();
    assert_true(data && h);
    for (int i = 0; i < BYTES; i++)
        data[i] = (unsigned char)(i * 131 + i / 256);
    char whole[HASH_TEXT_BYTES], parts[HASH_TEXT_BYTES];
    for (size_t n = 0; n <= BYTES; n = n * 2 + 1) {
        hash_of(data, n, whole);
        for (size_t step = 1; step < 1200; step = step * 3 + 1) {
            hash_reset(h);
            for (size_t i = 0; i < n; i += step)
                hash_add(h, data + i, i + step < n ? step : n - i);
            hash_text(h, parts);
            assert_string_equal(whole, parts);
            assert_int_equal(strlen(parts), 32);
        }
    }
    hash_add(h, NULL, 0);
    hash_free(h);
    hash_free(NULL);
    free(data);
}

static void test_damage(void **state) {
    (void)state;
    unsigned char data[300] = {0};
    char clean[HASH_TEXT_BYTES], damaged[HASH_TEXT_BYTES];
    hash_of(data, sizeof data, clean);
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] ^= 1;
        hash_of(data, sizeof data, damaged);
        assert_string_not_equal(clean, damaged);
        data[i] ^= 1;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

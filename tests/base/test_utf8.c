// test_utf8.c - utf8.h: every character survives encoding and decoding, bad bytes count one each.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/utf8.h"

#include <string.h>

static void test_round_trip(void **state) {
    (void)state;
    for (uint32_t c = 0; c <= UTF8_BAD; c++) {
        char text[4];
        const uint8_t *p = (const uint8_t *)text;
        unsigned n = utf8_encode(c, text), bytes = 0;
        if (c == UTF8_BAD || (c >= 0xD800 && c < 0xE000)) {
            assert_int_equal(n, 0);
            continue;
        }
        assert_int_equal(n, c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
        assert_int_equal(utf8_decode(p, p + n, &bytes), c);
        assert_int_equal(bytes, n);
        assert_int_equal(utf8_decode_back(p, p + n, &bytes), c);
        assert_int_equal(bytes, n);
        if (n > 1) // cut off
            assert_int_equal(utf8_decode(p, p + n - 1, &bytes), UTF8_BAD);
    }
}

static void test_bad(void **state) {
    (void)state;
    // Lone continuation, overlong forms, a surrogate, beyond the last character, wrong second byte.
    static const char *const bad[] = {"\x80",         "\xC0\x80",         "\xC1\xBF",
                                      "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xED\xA0\x80",
                                      "\xFF",         "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
                                      "\xC3(",        "\xE2\x82("};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const uint8_t *p = (const uint8_t *)bad[i];
        unsigned bytes = 0;
        assert_int_equal(utf8_decode(p, p + strlen(bad[i]), &bytes), UTF8_BAD);
        assert_int_equal(bytes, 1);
    }
}

static void test_repair(void **state) {
    (void)state;
#define R "\xEF\xBF\xBD"
    static const struct {
        const char *text, *valid;
    } cases[] = {
        {"", ""},
        {"plain \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80",
         "plain \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"},
        {"a\x80z", "a" R "z"},
        {"\xE2\x82", R}, // cut off: one character, one mark
        {"\xF0\x9F\x98(", R "("},
        {"\xC0\x80", R R},
        {"\xED\xA0\x80", R R R}, // a surrogate
        {"\xFF\xFE", R R},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[64] = {0};
        const size_t n = utf8_repair(cases[i].text, strlen(cases[i].text), out);
        assert_int_equal(n, strlen(cases[i].valid));
        assert_memory_equal(out, cases[i].valid, n);
    }
#undef R
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_repair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

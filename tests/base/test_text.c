// test_text.c - text.h: units printed and parsed, strict parsers, suggestions.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/text.h"

#include <math.h>
#include <string.h>

static void test_print(void **state) {
    (void)state;
    char t[TEXT_UNIT_BYTES];
    assert_string_equal(text_bytes(t, 0), "0 B");
    assert_string_equal(text_bytes(t, 812), "812 B");
    assert_string_equal(text_bytes(t, 1023), "1023 B");
    assert_string_equal(text_bytes(t, 1024), "1.00 KiB");
    assert_string_equal(text_bytes(t, 1048575), "1.00 MiB");
    assert_string_equal(text_bytes(t, (UINT64_C(3) << 30) / 2), "1.50 GiB");
    assert_string_equal(text_bytes(t, UINT64_MAX), "16.00 EiB");
    assert_string_equal(text_count(t, 812), "812");
    assert_string_equal(text_count(t, 0), "0");
    assert_string_equal(text_count(t, 0.5), "0.5");
    assert_string_equal(text_count(t, 1000), "1.00K");
    assert_string_equal(text_count(t, 999.7), "1.00K");
    assert_string_equal(text_count(t, 124439808), "124.4M");
    assert_string_equal(text_count(t, 999.99e3), "1.00M");
    assert_string_equal(text_count(t, 1.02e9), "1.02G");
    assert_string_equal(text_count(t, -5300), "-5.30K");
    assert_string_equal(text_count(t, 1e300), "1e+300");
    assert_string_equal(text_count(t, NAN), "nan");
    assert_string_equal(text_duration(t, 0), "0 ns");
    assert_string_equal(text_duration(t, 12e-9), "12 ns");
    assert_string_equal(text_duration(t, 812e-6), "812 us");
    assert_string_equal(text_duration(t, 0.9999996e-3), "1.0 ms");
    assert_string_equal(text_duration(t, 41.2e-3), "41.2 ms");
    assert_string_equal(text_duration(t, 3.1), "3.1 s");
    assert_string_equal(text_duration(t, 59.97), "1m 00s");
    assert_string_equal(text_duration(t, 247), "4m 07s");
    assert_string_equal(text_duration(t, 3599.7), "1h 00m");
    assert_string_equal(text_duration(t, 11100), "3h 05m");
    assert_string_equal(text_duration(t, 2 * 86400 + 4 * 3600), "2d 04h");
    assert_string_equal(text_duration(t, -3.1), "-3.1 s");
    assert_string_equal(text_duration(t, INFINITY), "inf s");
}

static void test_parse_i64(void **state) {
    (void)state;
    struct err e;
    int64_t x = 7;
    assert_int_equal(text_parse_i64("-12", &x, &e), 0);
    assert_int_equal(x, -12);
    assert_int_equal(text_parse_i64("+3", &x, &e), 0);
    assert_int_equal(text_parse_i64("9223372036854775807", &x, &e), 0);
    assert_true(x == INT64_MAX);
    assert_int_equal(text_parse_i64("-9223372036854775808", &x, &e), 0);
    assert_true(x == INT64_MIN);
    static const char *const bad[] = {
        "", "-", " 1", "1 ", "1.0", "0x10", "1e3", "--1", "1k", "nan", "9223372036854775808"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        x = 7;
        assert_int_equal(text_parse_i64(bad[i], &x, &e), ERR_USAGE);
        assert_int_equal(x, 7);
        assert_non_null(strstr(e.text, bad[i]));
    }
}

static void test_parse_double(void **state) {
    (void)state;
    struct err e;
    double x;
    assert_int_equal(text_parse_double("3e-4", &x, &e), 0);
    assert_true(x == 3e-4);
    assert_int_equal(text_parse_double("-.5", &x, &e), 0);
    assert_true(x == -0.5);
    assert_int_equal(text_parse_double("2.", &x, &e), 0);
    assert_true(x == 2);
    assert_int_equal(text_parse_double("1e-400", &x, &e), 0);
    assert_true(x == 0);
    static const char *const bad[] = {"",   ".",   "inf",  "nan", "0x1p3", "1e", "1e+", "1 ",
                                      " 1", "1,5", "1..2", "+-1", "1e400", "e3", "1f"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(text_parse_double(bad[i], &x, &e), ERR_USAGE);
}

static void check_bytes(const char *s, uint64_t want) {
    struct err e;
    uint64_t x = 0;
    if (text_parse_bytes(s, &x, &e) != 0)
        fail_msg("%s: %s", s, e.text);
    assert_true(x == want);
}

static void test_parse_bytes(void **state) {
    (void)state;
    check_bytes("0", 0);
    check_bytes("812", 812);
    check_bytes("812B", 812);
    check_bytes("6GiB", UINT64_C(6) << 30);
    check_bytes("6 GiB", UINT64_C(6) << 30);
    check_bytes("1.5gib", (UINT64_C(3) << 30) / 2);
    check_bytes("80G", UINT64_C(80000000000));
    check_bytes("80GB", UINT64_C(80000000000));
    check_bytes("2e3K", 2000000);
    check_bytes("1TiB", UINT64_C(1) << 40);
    check_bytes("18446744073709551615", UINT64_MAX);
    check_bytes("9007199254740993", UINT64_C(9007199254740993)); // a double cannot hold it
    struct err e;
    uint64_t x;
    static const char *const bad[] = {"",
                                      "GiB",
                                      "-1",
                                      "-1GiB",
                                      "1 ",
                                      "1X",
                                      "1GiBB",
                                      "1 2",
                                      "0x1G",
                                      "infG",
                                      "1Gi",
                                      " 1",
                                      "18446744073709551616",
                                      "99999999TiB",
                                      "1e30"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(text_parse_bytes(bad[i], &x, &e), ERR_USAGE);
}

static void test_parse_duration(void **state) {
    (void)state;
    struct err e;
    uint64_t x;
    static const struct {
        const char *text;
        uint64_t ns;
    } good[] = {{"80ms", 80000000},
                {"1.5s", 1500000000},
                {"3m", UINT64_C(180000000000)},
                {"2 h", UINT64_C(7200000000000)},
                {"12ns", 12},
                {"7us", 7000},
                {"0", 0},
                {"0s", 0}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(text_parse_duration_ns(good[i].text, &x, &e), 0);
        assert_true(x == good[i].ns);
    }
    static const char *const bad[] = {"", "80", "ms", "-1s", "1min", "1M", "1e30h", "1s2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(text_parse_duration_ns(bad[i], &x, &e), ERR_USAGE);
}

static void test_parse_bool(void **state) {
    (void)state;
    struct err e;
    bool x = false;
    static const char *const words[] = {"true", "no", "ON", "off", "1", "0", "Yes", "false"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        assert_int_equal(text_parse_bool(words[i], &x, &e), 0);
        assert_true(x == (i % 2 == 0));
    }
    assert_int_equal(text_parse_bool("2", &x, &e), ERR_USAGE);
    assert_int_equal(text_parse_bool("", &x, &e), ERR_USAGE);
}

static void test_suggest(void **state) {
    (void)state;
    static const char *const names[] = {
        "batch.micro", "batch.tokens", "optimizer.lr", "seed", "precision", "checkpoint", "x"};
    const size_t n = sizeof names / sizeof *names;
    assert_string_equal(text_suggest("batch.mirco", names, n), "batch.micro"); // swapped
    assert_string_equal(text_suggest("batchmicro", names, n), "batch.micro");
    assert_string_equal(text_suggest("Precison", names, n), "precision");
    assert_string_equal(text_suggest("seeed", names, n), "seed");
    assert_string_equal(text_suggest("micro", names, n), "batch.micro");
    assert_string_equal(text_suggest("tokns", names, n), "batch.tokens");
    assert_string_equal(text_suggest("chekpiont", names, n), "checkpoint");
    assert_null(text_suggest("temperature", names, n));
    assert_null(text_suggest("ab", names, n));
    static const char *const devices[] = {"auto", "cpu", "cuda"};
    assert_null(text_suggest("mps", devices, 3)); // two of three letters are wrong
    assert_string_equal(text_suggest("cpi", devices, 3), "cpu");
    assert_null(text_suggest("", names, n));
    assert_null(text_suggest("y", names, n));
    assert_null(text_suggest("seed", names, 0));
    char wide[300];
    memset(wide, 's', sizeof wide);
    wide[299] = '\0';
    assert_null(text_suggest(wide, names, n));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_print),          cmocka_unit_test(test_parse_i64),
        cmocka_unit_test(test_parse_double),   cmocka_unit_test(test_parse_bytes),
        cmocka_unit_test(test_parse_duration), cmocka_unit_test(test_parse_bool),
        cmocka_unit_test(test_suggest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_err.c - err.h and checked.h: codes, messages, context, truncation.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/checked.h"
#include "base/err.h"

#include <stdio.h>
#include <string.h>

static int fail_three(struct err *e) {
    return err_set(e, ERR_FORMAT, "bad %s %d", "value", 3);
}

static int propagate(struct err *e) {
    TRY(fail_three(e));
    return 0;
}

static void test_set_and_context(void **state) {
    (void)state;
    struct err e = {0};
    assert_int_equal(propagate(&e), ERR_FORMAT);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_string_equal(e.text, "bad value 3");
    assert_int_equal(err_context(&e, "reading '%s'", "x.json"), ERR_FORMAT);
    assert_string_equal(e.text, "reading 'x.json': bad value 3");
    // The text of the struct that is filled may be an argument.
    assert_int_equal(err_set(&e, ERR_IO, "again (%s)", e.text), ERR_IO);
    assert_string_equal(e.text, "again (reading 'x.json': bad value 3)");
    err_clear(&e);
    assert_int_equal(e.code, 0);
    assert_string_equal(e.text, "");
}

static void test_null_struct(void **state) {
    (void)state;
    assert_int_equal(err_set(NULL, ERR_MEMORY, "x"), ERR_MEMORY);
    assert_true(err_context(NULL, "x") < 0); // a failing path stays a failing path
    err_clear(NULL);
    struct err e = {0};
    assert_int_equal(err_context(&e, "while saving"), ERR_INTERNAL);
    assert_non_null(strstr(e.text, "while saving: "));
}

static void test_truncation(void **state) {
    (void)state;
    struct err e = {0};
    char wide[3 * ERR_TEXT_BYTES];
    // Three-byte characters after 0 to 3 single bytes: for some offsets the cut falls inside one.
    for (int lead = 0; lead < 4; lead++) {
        memset(wide, 'a', (size_t)lead);
        size_t n = (size_t)lead;
        while (n + 3 < sizeof wide) {
            memcpy(wide + n, "\xE2\x82\xAC", 3);
            n += 3;
        }
        wide[n] = '\0';
        err_set(&e, ERR_IO, "%s", wide);
        size_t length = strlen(e.text);
        assert_true(length < ERR_TEXT_BYTES && length > ERR_TEXT_BYTES - 5);
        assert_int_equal((length - (size_t)lead) % 3, 0);
        // No room is left for context, so only the cause stays.
        assert_int_equal(err_context(&e, "saving"), ERR_IO);
        assert_memory_equal(e.text, wide, (size_t)lead);
    }
    // A long context is cut to keep the cause.
    err_set(&e, ERR_IO, "the cause");
    err_context(&e, "%s", wide);
    assert_true(strlen(e.text) < ERR_TEXT_BYTES);
    assert_non_null(strstr(e.text, ": the cause"));
}

static void test_names(void **state) {
    (void)state;
    assert_string_equal(err_name(0), "OK");
    assert_string_equal(err_name(ERR_IO), "ERR_IO");
    assert_string_equal(err_name(ERR_INTERNAL), "ERR_INTERNAL");
    assert_string_equal(err_name(-1000), "unknown");
    assert_string_equal(err_phrase(ERR_USAGE), "a value or argument is not accepted");
    assert_string_equal(err_phrase(5), "unknown");
}

static void test_checked(void **state) {
    (void)state;
    uint64_t u;
    int64_t i;
    assert_true(checked_add_u64(1, 2, &u) && u == 3);
    assert_false(checked_add_u64(UINT64_MAX, 1, &u));
    assert_true(checked_mul_u64(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &u));
    assert_false(checked_mul_u64(UINT64_C(1) << 32, UINT64_C(1) << 32, &u));
    assert_false(checked_add_i64(INT64_MAX, 1, &i));
    assert_false(checked_mul_i64(INT64_MIN, -1, &i));
    assert_true(checked_mul_i64(-4, 5, &i) && i == -20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_and_context), cmocka_unit_test(test_null_struct),
        cmocka_unit_test(test_truncation),      cmocka_unit_test(test_names),
        cmocka_unit_test(test_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

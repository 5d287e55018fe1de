// expect.h - cmocka, and what most tests expect of a call: that it worked, or that it failed with a
// certain error.
#ifndef HAGGLE_TESTS_EXPECT_H
#define HAGGLE_TESTS_EXPECT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"

#include <string.h>

static inline void assert_worked(int rc, const struct err *e) {
    if (rc != 0)
        fail_msg("failed with %d: %s", rc, e->text);
}

// `part`: of the error's text.
static inline void assert_error(int rc, int code, const struct err *e, const char *part) {
    assert_int_equal(rc, code);
    if (!strstr(e->text, part))
        fail_msg("the error '%s' does not say '%s'", e->text, part);
}

#endif

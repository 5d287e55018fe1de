// test_build.c - build.h: the build has an id, which is the linker's build id where there is one.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/build.h"

#include <string.h>

static void test_id(void **state) {
    char id[BUILD_ID_BYTES], again[BUILD_ID_BYTES];
    (void)state;
    build_id(id);
    build_id(again);
    assert_string_equal(id, again);
    assert_true(strlen(id) > 8);
    if (strncmp(id, "version ", 8) != 0)
        assert_int_equal(strspn(id, "0123456789abcdef"), strlen(id));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

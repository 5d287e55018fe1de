// skips.c - linked into every unit test: a program whose cases were all skipped tested nothing, and
// says so with exit status 77, which CTest shows as skipped. cmocka would count it as passed.
//
// The linker sends calls of these two functions of cmocka here (--wrap, see CMakeLists.txt).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <unistd.h>

enum { SKIPPED_STATUS = 77 };

static size_t skipped;
static pid_t own; // cases that fork and skip in the child do not count

void __real__skip(const char *const file, const int line) __attribute__((noreturn));
void __wrap__skip(const char *const file, const int line) __attribute__((noreturn));
int __real__cmocka_run_group_tests(const char *group, const struct CMUnitTest *const tests,
                                   const size_t n, CMFixtureFunction setup,
                                   CMFixtureFunction teardown);
int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *const tests,
                                   const size_t n, CMFixtureFunction setup,
                                   CMFixtureFunction teardown);

void __wrap__skip(const char *const file, const int line) {
    skipped += getpid() == own;
    __real__skip(file, line);
}

int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *const tests,
                                   const size_t n, CMFixtureFunction setup,
                                   CMFixtureFunction teardown) {
    own = getpid();
    skipped = 0;
    int rc = __real__cmocka_run_group_tests(group, tests, n, setup, teardown);
    return rc == 0 && n > 0 && skipped == n ? SKIPPED_STATUS : rc;
}

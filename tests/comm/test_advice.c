// test_advice.c - what doctor tells people who start ranks with a mpirun of their own, from
// machines that are made up: binding, more ranks than cores, root, and shared memory.
#include "comm/installed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct comm_installed plain = {.library_is = COMM_OPEN_MPI,
                                            .ptrace_scope = -1,
                                            .reads_others = true,
                                            .shared_bytes = 1u << 30};

// The sentence about a topic; NULL: there is none.
static const char *about(const struct comm_installed *i, const char *topic) {
    static struct comm_advice advice[COMM_ADVICE_MOST];
    const int n = comm_advise(i, 2, advice);
    assert_true(n <= COMM_ADVICE_MOST);
    for (int k = 0; k < n; k++)
        if (strcmp(advice[k].topic, topic) == 0)
            return advice[k].text;
    return NULL;
}

static void says(const struct comm_installed *i, const char *topic, const char *words) {
    const char *text = about(i, topic);
    if (!text || !strstr(text, words))
        fail_msg("about %s: '%s' is not in '%s'", topic, words, text ? text : "nothing");
}

static void test_open_mpi(void **state) {
    struct comm_installed i = plain;
    (void)state;
    says(&i, "binding", "--bind-to none");
    says(&i, "cores", "(2 CPUs here) unless it gets --oversubscribe");
    assert_null(about(&i, "root"));
    i.root = true;
    says(&i, "root", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1");
}

static void test_shared_memory(void **state) {
    struct comm_installed i = plain;
    (void)state;
    assert_null(strstr(about(&i, "memory"), "single_copy_mechanism"));
    i.ptrace_scope = 1;
    says(&i, "memory", "ptrace_scope 1");
    i.reads_others = false, i.ptrace_scope = -1;
    says(&i, "memory", "as in many containers; set OMPI_MCA_btl_vader_single_copy_mechanism=none");
    i.ptrace_scope = 2;
    says(&i, "memory", "Yama's ptrace_scope is 2 or 3");
    says(&i, "/dev/shm", "1.00 GiB of shared memory");
    assert_null(strstr(about(&i, "/dev/shm"), "--shm-size"));
    i.shared_bytes = 64 << 20;
    says(&i, "/dev/shm", "--shm-size=1g");
    i.shared_bytes = 0;
    says(&i, "/dev/shm", "there is none");
}

// MPICH neither binds nor counts cores nor refuses root.
static void test_mpich(void **state) {
    struct comm_installed i = plain;
    (void)state;
    i.library_is = COMM_MPICH;
    i.root = true;
    assert_null(about(&i, "binding"));
    assert_null(about(&i, "cores"));
    assert_null(about(&i, "root"));
    assert_non_null(about(&i, "/dev/shm"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_mpi),
        cmocka_unit_test(test_shared_memory),
        cmocka_unit_test(test_mpich),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

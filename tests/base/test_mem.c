// test_mem.c - mem.h and cgroup.h: accounting by class, alignment, refusal as an error value, the
// machine's numbers.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/cgroup.h"
#include "base/mem.h"
#include "skips.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void test_account(void **state) {
    (void)state;
    struct mem *m;
    struct err e = {0};
    struct mem_line lines[8];
    void *a, *b, *c;
    assert_int_equal(mem_open(&m, &e), 0);
    assert_int_equal(mem_lines(m, lines, 8), 0);
    assert_int_equal(mem_take(m, "weight", "arena", 5000000, &a, &e), 0);
    assert_int_equal(mem_take(m, "input", "tokens", 100, &b, &e), 0);
    assert_int_equal(mem_take(m, "weight", "lora", 1, &c, &e), 0);
    assert_int_equal((uintptr_t)a % (2 << 20), 0);
    assert_int_equal((uintptr_t)b % (2 << 20), 0);
    for (size_t i = 0; i < 5000000; i += 4096)
        assert_int_equal(((unsigned char *)a)[i], 0);
    memset(a, 1, 5000000);
    memset(b, 2, 100);
    assert_int_equal(mem_bytes(m), 5000101); // what was requested, to the byte
    assert_int_equal(mem_lines(m, lines, 8), 2);
    assert_string_equal(lines[0].class_name, "weight");
    assert_int_equal(lines[0].bytes, 5000001);
    assert_string_equal(lines[1].class_name, "input");
    assert_int_equal(lines[1].bytes, 100);
    assert_int_equal(mem_lines(m, lines, 1), 1);
    mem_give(m, a);
    mem_give(m, NULL);
    mem_give(m, &e); // not a block: nothing happens
    assert_int_equal(mem_bytes(m), 101);
    assert_int_equal(mem_peak_bytes(m), 5000101);
    assert_int_equal(mem_lines(m, lines, 8), 2);
    assert_int_equal(lines[0].bytes, 1);
    assert_int_equal(lines[0].peak_bytes, 5000001);
    assert_int_equal(mem_take(m, "input", "empty", 0, &a, &e), 0);
    assert_non_null(a);
    mem_close(m); // with blocks still held
    mem_close(NULL);
}

static void test_refusal(void **state) {
    (void)state;
    struct mem *m;
    struct err e = {0};
    void *p = &e;
    assert_int_equal(mem_open(&m, &e), 0);
    static const size_t sizes[] = {(size_t)1 << 46, (size_t)1 << 62, SIZE_MAX, SIZE_MAX - 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(mem_take(m, "activation", "step arena", sizes[i], &p, &e), ERR_MEMORY);
        assert_null(p);
        assert_true(strstr(e.text, "step arena") && strstr(e.text, "iB asked for"));
    }
    assert_int_equal(mem_take(m, "a", "b", (size_t)1 << 50, &p, NULL), ERR_MEMORY);
    assert_int_equal(mem_bytes(m), 0);
    assert_int_equal(mem_peak_bytes(m), 0);
    mem_close(m);
}

static void *take_and_give(void *arg) {
    struct mem *m = arg;
    for (int i = 0; i < 200; i++) {
        void *p;
        if (mem_take(m, i % 2 ? "odd" : "even", "block", 1000, &p, NULL) == 0) {
            memset(p, i, 1000);
            mem_give(m, p);
        }
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    struct mem *m;
    pthread_t threads[4];
    assert_int_equal(mem_open(&m, NULL), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, m), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(mem_bytes(m), 0);
    assert_true(mem_peak_bytes(m) >= 1000 && mem_peak_bytes(m) <= 4000);
    mem_close(m);
}

static void test_machine(void **state) {
    (void)state;
    uint64_t limit, left;
    assert_true(mem_process_rss_bytes() > 100000);
    assert_true(mem_machine_total_bytes() > (uint64_t)64 << 20);
    assert_true(mem_machine_available_bytes() <= mem_machine_total_bytes());
    cgroup_memory(&limit, &left);
    assert_true(left <= limit);
    assert_true(cgroup_cpu_quota() >= 0);
    uint64_t peak = mem_process_peak_rss_bytes();
    if (peak == 0)
        skip_because("no VmHWM in /proc/self/status");
    assert_true(peak > 100000);
    // Touching much memory raises the peak. A reset lowers it again where the kernel supports one.
    struct mem *m;
    void *p;
    assert_int_equal(mem_open(&m, NULL), 0);
    assert_int_equal(mem_take(m, "test", "touch", 64 << 20, &p, NULL), 0);
    memset(p, 1, 64 << 20);
    uint64_t high = mem_process_peak_rss_bytes();
    assert_true(high >= (uint64_t)64 << 20);
    mem_close(m);
    if (mem_process_reset_peak() == 0)
        assert_true(mem_process_peak_rss_bytes() <= high);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_account),
        cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

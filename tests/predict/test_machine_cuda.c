// test_machine_cuda.c - what this machine's GPU reaches, measured by the ops of the CUDA backend.
// Says nothing about how fast a GPU must be.
#include "base/file.h"
#include "engine/engine.h"
#include "predict/machine.h"
#include "skips.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_rates(void **state) {
    char dir[128];
    struct knobs k;
    struct backend *b;
    struct machine m, later;
    struct err e = {0};
    (void)state;
    assert_int_equal(file_make_temp_dir(dir, sizeof dir, "gpu", NULL), 0);
    setenv("XDG_CACHE_HOME", dir, 1);
    knobs_init(&k);
    k.device = DEVICE_CUDA;
    if (engine_open_device(&b, &k, &e) != 0) {
        (void)file_remove_tree(dir, NULL);
        skip_because("no CUDA backend: %s", e.text);
    }
    assert_int_equal(machine_open(&m, &k, MACHINE_FRESH, &e), 0);
    if (machine_measure_device(&m, b, &k, &e) != 0)
        fail_msg("%s", e.text);
    if (m.gpu_lacks[0])
        fail_msg("%s", m.gpu_lacks);
    assert_true(m.has_gpu);
    print_message("%s\n", m.gpu.device);
#define X(name)                                                                                    \
    print_message("%s %.4g\n", #name, m.gpu.name);                                                 \
    assert_true(m.gpu.name > 0);
    HW_GPU_RATE_LIST(X)
#undef X
    assert_int_equal(machine_open(&later, &k, MACHINE_KNOWN, &e), 0);
    assert_true(later.has_gpu && later.cached);
    assert_memory_equal(&later.gpu, &m.gpu, sizeof m.gpu);
    // Nothing is left behind: the device has the memory again, and ops still run.
    uint64_t free_bytes, total_bytes;
    void *arena;
    assert_int_equal(b->memory(b, &free_bytes, &total_bytes, &e), 0);
    assert_int_equal(b->arena_take(b, free_bytes / 4, &arena, &e), 0);
    b->arena_give(b, arena);
    b->close(b);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

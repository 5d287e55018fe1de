// test_hw.c - reading machines (this one, and others from a folder), measuring, and the cache of
// measured rates.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/file.h"
#include "hw/apart.h"
#include "hw/hw.h"
#include "hw/others.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIR_BYTES = 256 };

static void make_dir(char dir[DIR_BYTES]) {
    assert_int_equal(file_make_temp_dir(dir, DIR_BYTES, "hw", NULL), 0);
}

static void put(const char *root, const char *path, const char *text) {
    char full[512];
    struct err e = {0};
    snprintf(full, sizeof full, "%s%s", root, path);
    assert_int_equal(file_make_parent(full, &e), 0);
    assert_int_equal(file_write_atomic(full, text, strlen(text), &e), 0);
}

static void test_this_machine(void **state) {
    (void)state;
    struct hw_machine m;
    hw_machine_read(&m, "");
    assert_true(m.usable_cpus >= 1 && m.cpus >= m.usable_cpus && m.cores <= m.cpus);
    assert_true(m.sockets >= 1 && m.sockets <= m.cores);
    assert_true(m.memory_bytes > 0 && m.memory_available_bytes <= m.memory_bytes);
    assert_true(m.n_nodes >= 1);
    assert_string_equal(m.arch, "x86_64");
    // The compiler's detection must agree.
    assert_int_equal(m.isa.avx2, __builtin_cpu_supports("avx2") != 0);
    assert_int_equal(m.isa.fma, __builtin_cpu_supports("fma") != 0);
    assert_int_equal(m.isa.avx512f, __builtin_cpu_supports("avx512f") != 0);
    assert_int_equal(m.isa.avx512bw, __builtin_cpu_supports("avx512bw") != 0);
    assert_int_equal(m.isa.avx512vl, __builtin_cpu_supports("avx512vl") != 0);
    assert_int_equal(m.isa.avx512_vnni, __builtin_cpu_supports("avx512vnni") != 0);
    assert_int_equal(m.isa.avx512_bf16, __builtin_cpu_supports("avx512bf16") != 0);
}

static void test_levels(void **state) {
    (void)state;
    struct hw_isa isa = {0};
    assert_int_equal(hw_isa_level_of(&isa), HW_GENERIC);
    isa.avx512f = isa.avx512bw = isa.avx512dq = isa.avx512vl = true;
    assert_int_equal(hw_isa_level_of(&isa), HW_GENERIC); // AVX-512 kernels also need AVX2 and FMA
    isa.avx2 = isa.fma = isa.f16c = true;
    assert_int_equal(hw_isa_level_of(&isa), HW_AVX512);
    isa.avx512dq = false;
    assert_int_equal(hw_isa_level_of(&isa), HW_AVX2);
    assert_string_equal(hw_isa_level_name(HW_AVX2), "avx2");
    assert_string_equal(hw_isa_level_name((enum hw_isa_level)7), "unknown");
}

// Two sockets of two cores with two threads each; L3 per socket.
static void test_other_machine(void **state) {
    (void)state;
    char root[DIR_BYTES], path[256], text[64];
    make_dir(root);
    put(root, "/proc/cpuinfo",
        "processor\t: 0\nmodel name\t:   Made   Up 9000  \nprocessor\t: 1\n");
    put(root, "/sys/devices/system/cpu/online", "0-3,4-7\n");
    put(root, "/sys/devices/system/node/online", "0-1\n");
    put(root, "/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
    for (int cpu = 0; cpu < 8; cpu++) {
        int socket = cpu / 2 % 2; // CPUs 0 1 4 5 are on socket 0; c and c+4 are siblings
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                 cpu);
        snprintf(text, sizeof text, "%d,%d\n", cpu % 4, cpu % 4 + 4);
        put(root, path, text);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id",
                 cpu);
        put(root, path, socket ? "1\n" : "0\n");
        static const struct {
            const char *level, *type, *size;
        } caches[] = {{"1", "Data", "48K"},
                      {"1", "Instruction", "32K"},
                      {"2", "Unified", "2048K"},
                      {"3", "Unified", "30M"}};
        for (int i = 0; i < 4; i++) {
            char base[128];
            snprintf(base, sizeof base, "/sys/devices/system/cpu/cpu%d/cache/index%d", cpu, i);
            snprintf(path, sizeof path, "%s/level", base);
            put(root, path, caches[i].level);
            snprintf(path, sizeof path, "%s/type", base);
            put(root, path, caches[i].type);
            snprintf(path, sizeof path, "%s/size", base);
            put(root, path, caches[i].size);
            snprintf(path, sizeof path, "%s/shared_cpu_list", base);
            if (i < 3)
                snprintf(text, sizeof text, "%d,%d", cpu % 4, cpu % 4 + 4);
            else
                snprintf(text, sizeof text, "%s", socket ? "2-3,6-7" : "0-1,4-5");
            put(root, path, text);
        }
    }
    for (int node = 0; node < 2; node++) {
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
        put(root, path, node ? "2-3,6-7\n" : "0-1,4-5\n");
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
        put(root, path, "Node 0 MemTotal:       1048576 kB\nNode 0 MemFree: 5 kB\n");
    }
    struct hw_machine m;
    hw_machine_read(&m, root);
    assert_string_equal(m.cpu, "Made Up 9000");
    assert_int_equal(m.cpus, 8);
    assert_int_equal(m.cores, 4);
    assert_int_equal(m.sockets, 2);
    assert_string_equal(m.huge_pages, "always");
    assert_int_equal(m.n_caches, 4);
    assert_int_equal(hw_cache_total_bytes(&m, 1), 4 * 48 << 10);
    assert_int_equal(hw_cache_total_bytes(&m, 2), 4 * 2048 << 10);
    assert_int_equal(hw_cache_total_bytes(&m, 3), 2 * 30 << 20);
    assert_int_equal(hw_cache_total_bytes(&m, 4), 0);
    assert_int_equal(m.n_nodes, 2);
    assert_int_equal(m.nodes[1].cpus, 4);
    assert_int_equal(m.nodes[1].memory_bytes, 1 << 30);
    char a[HW_FINGERPRINT_BYTES], b[HW_FINGERPRINT_BYTES];
    hw_fingerprint(&m, 4, a);
    hw_fingerprint(&m, 8, b);
    assert_string_not_equal(a, b);
    m.memory_available_bytes /= 2; // not part of the fingerprint
    hw_fingerprint(&m, 8, a);
    assert_string_equal(a, b);
    m.isa.amx_int8 = !m.isa.amx_int8;
    hw_fingerprint(&m, 8, a);
    assert_string_not_equal(a, b);
    assert_int_equal(file_remove_tree(root, NULL), 0);
}

// Missing files and nonsense in files give "unknown" and never a crash.
static void test_odd_machines(void **state) {
    (void)state;
    char root[DIR_BYTES];
    make_dir(root);
    struct hw_machine m;
    hw_machine_read(&m, root);
    assert_string_equal(m.cpu, "unknown CPU");
    assert_string_equal(m.huge_pages, "unknown");
    assert_int_equal(m.n_nodes, 1);
    assert_true(m.cpus >= 1 && m.cores >= 1 && m.sockets == 1);
    assert_int_equal(m.n_caches, 0);
    static const char *const lists[] = {"",
                                        "\n",
                                        "x",
                                        "-3",
                                        "3-1",
                                        "0-99999999999",
                                        "0,,",
                                        "0-",
                                        "0-3,q",
                                        "7",
                                        "99999999999999999999"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        put(root, "/sys/devices/system/cpu/online", lists[i]);
        put(root, "/sys/devices/system/node/online", lists[i]);
        put(root, "/sys/devices/system/cpu/cpu0/cache/index0/size", lists[i]);
        put(root, "/sys/kernel/mm/transparent_hugepage/enabled", i % 2 ? "[" : "][");
        put(root, "/proc/cpuinfo", i % 2 ? "model name" : "model name : \x01\xff");
        hw_machine_read(&m, root);
        assert_true(m.cpus >= 1 && m.cores >= 1 && m.sockets >= 1 && m.n_nodes >= 1);
        assert_string_equal(m.huge_pages, "unknown");
    }
    assert_int_equal(file_remove_tree(root, NULL), 0);
}

// Supports fp32 and bf16, which is twice as fast, but not fp16.
static int fake_matmul(void *arg, enum dtype type, double *flops, struct err *e) {
    if (type == DTYPE_F16)
        return err_set(e, ERR_UNSUPPORTED, "no fp16");
    *(int *)arg += type == DTYPE_F32;
    *flops = type == DTYPE_F32 ? 42e9 : 84e9;
    return 0;
}

static int broken_matmul(void *arg, enum dtype type, double *flops, struct err *e) {
    (void)arg, (void)flops, (void)type;
    return err_set(e, ERR_UNSUPPORTED, "no backend");
}

static void test_measure(void **state) {
    (void)state;
    struct hw_machine m;
    struct pool *pool = NULL;
    struct mem *mem = NULL;
    struct err e = {0};
    hw_machine_read(&m, "");
    assert_int_equal(mem_open(&mem, &e), 0);
    assert_int_equal(pool_open(&pool, m.usable_cpus < 4 ? m.usable_cpus : 4, 0, &e), 0);
    struct hw_rates r;
    if (hw_rates_measure(&r, &m, pool, mem, NULL, NULL, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(mem_bytes(mem), 0); // scratch was given back
    assert_int_equal(r.threads, pool_threads(pool));
    assert_int_equal(r.level, m.level);
    // The bounds are wide, because sanitizers and busy machines are slow. A mistake in units would
    // be off by a factor of a thousand.
    assert_true(r.vector_flops > 1e8 && r.vector_flops < 1e15);
    assert_true(r.memory_bytes_per_s > 1e8 && r.memory_bytes_per_s < 1e13);
    assert_true(r.copy_bytes_per_s > 1e8 && r.copy_bytes_per_s < 1e13);
    assert_true(r.fork_join_ns > 0 && r.fork_join_ns < 1e8);
    assert_true(r.matmul_flops == 0);
    assert_true(r.cpu_share > 0 && r.cpu_share <= 1);
    hw_print(stdout, &m, &r);
    struct hw_device d;
    hw_device_from_rates(&d, &m, &r);
    assert_true(d.matmul_flops == 0.5 * r.vector_flops);
    r.matmul_flops = 5e9;
    hw_device_from_rates(&d, &m, &r);
    assert_true(d.matmul_flops == 5e9 && d.memory_bytes_per_s == r.memory_bytes_per_s);
    // Every instruction set below the machine's level runs too.
    for (int l = 0; l < (int)m.level; l++) {
        struct hw_machine lesser = m;
        lesser.level = l;
        struct hw_rates slower;
        assert_int_equal(hw_rates_measure(&slower, &lesser, pool, mem, NULL, NULL, &e), 0);
        assert_true(slower.vector_flops > 1e8);
        printf("  (%s: %.1f GFLOP/s)\n", hw_isa_level_name(l), 1e-9 * slower.vector_flops);
    }
    assert_int_equal(hw_rates_measure(&r, &m, pool, mem, broken_matmul, NULL, &e), ERR_UNSUPPORTED);
    assert_int_equal(mem_bytes(mem), 0);
    pool_close(pool);
    mem_close(mem);
}

static struct hw_rates some_rates(double measured_at) {
    return (struct hw_rates){2, HW_AVX2, 1e11, 2e10, 3e10, 900, 0, 0.95, measured_at, 0, 0};
}

static void test_get_uses_the_cache(void **state) {
    (void)state;
    char dir[DIR_BYTES], path[HW_PATH_BYTES];
    struct hw_machine m;
    struct pool *pool = NULL;
    struct mem *mem = NULL;
    struct err e = {0};
    make_dir(dir);
    setenv("XDG_CACHE_HOME", dir, 1);
    hw_machine_read(&m, "");
    m.memory_available_bytes = 64 << 20; // gives small arrays, as this test is about the file
    assert_int_equal(mem_open(&mem, &e), 0);
    assert_int_equal(pool_open(&pool, 1, 0, &e), 0);
    struct hw_rates a, b;
    bool stored = false;
    int calls = 0;
    char key[HW_FINGERPRINT_BYTES];
    assert_int_equal(hw_rates_path(path, &e), 0);
    hw_fingerprint(&m, 1, key);
    // Without a cache file the rates are measured, and kept unless the machine was too busy.
    assert_int_equal(hw_rates_get(&a, &m, pool, mem, false, NULL, NULL, &stored, &e), 0);
    assert_int_equal(stored, a.cpu_share >= HW_CPU_SHARE_MIN);
    assert_int_equal(file_exists(path), stored);
    // With a cache file they are loaded.
    a = some_rates(7);
    assert_int_equal(hw_rates_store(&a, path, key, &e), 0);
    assert_int_equal(hw_rates_get(&b, &m, pool, mem, false, NULL, NULL, &stored, &e), 0);
    assert_true(stored && b.measured_at == 7 && b.vector_flops == a.vector_flops);
    // When a backend is added, only the products are measured.
    assert_int_equal(hw_rates_get(&b, &m, pool, mem, false, fake_matmul, &calls, &stored, &e), 0);
    assert_true(stored && calls == 1 && b.matmul_flops == 42e9 && b.measured_at == 7);
    assert_int_equal(hw_rates_get(&b, &m, pool, mem, false, fake_matmul, &calls, NULL, &e), 0);
    assert_int_equal(calls, 1);
    assert_true(hw_rates_products(&b, DTYPE_BF16) == 84e9);
    assert_true(hw_rates_products(&b, DTYPE_F16) == 0 && hw_rates_products(&b, DTYPE_F32) == 42e9);
    assert_int_equal(hw_rates_get(&b, &m, pool, mem, true, fake_matmul, &calls, NULL, &e), 0);
    assert_true(calls == 2 && b.measured_at > 7);
    // Without a place to write, the rates are measured and not stored.
    setenv("XDG_CACHE_HOME", "/dev/null/nowhere", 1);
    assert_int_equal(hw_rates_get(&b, &m, pool, mem, false, NULL, NULL, &stored, &e), 0);
    assert_false(stored);
    unsetenv("XDG_CACHE_HOME");
    pool_close(pool);
    mem_close(mem);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

static void test_path(void **state) {
    (void)state;
    char path[HW_PATH_BYTES], *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    setenv("HOME", "/home/somebody", 1);
    setenv("XDG_CACHE_HOME", "/var/cache/me", 1);
    assert_int_equal(hw_rates_path(path, NULL), 0);
    assert_string_equal(path, "/var/cache/me/haggle/rates.json");
    setenv("XDG_CACHE_HOME", "relative", 1);
    assert_int_equal(hw_rates_path(path, NULL), 0);
    assert_string_equal(path, "/home/somebody/.cache/haggle/rates.json");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_int_equal(hw_rates_path(path, NULL), ERR_UNSUPPORTED);
    char *longest = malloc(3000);
    memset(longest, '/', 2999);
    longest[2999] = '\0';
    setenv("HOME", longest, 1);
    assert_int_equal(hw_rates_path(path, NULL), ERR_UNSUPPORTED);
    free(longest);
    if (home)
        setenv("HOME", home, 1);
    else
        unsetenv("HOME");
    free(home);
}

static void test_store(void **state) {
    (void)state;
    char dir[DIR_BYTES], path[512], key[HW_FINGERPRINT_BYTES];
    struct err e = {0};
    make_dir(dir);
    snprintf(path, sizeof path, "%s/a/b/rates.json", dir);
    struct hw_rates r;
    assert_int_equal(hw_rates_load(&r, path, "nobody", &e), ERR_IO);
    // With more machines than are kept, the oldest are dropped and the newest stay.
    for (int i = 0; i < 70; i++) {
        struct hw_rates in = some_rates(1000 + i);
        snprintf(key, sizeof key, "%032d", i);
        assert_int_equal(hw_rates_store(&in, path, key, &e), 0);
    }
    for (int i = 0; i < 70; i++) {
        snprintf(key, sizeof key, "%032d", i);
        int rc = hw_rates_load(&r, path, key, &e);
        assert_int_equal(rc, i < 6 ? ERR_IO : 0);
        if (rc == 0)
            assert_true(r.measured_at == 1000 + i && r.level == HW_AVX2 && r.threads == 2 &&
                        r.vector_flops == 1e11 && r.copy_bytes_per_s == 2e10 &&
                        r.memory_bytes_per_s == 3e10 && r.fork_join_ns == 900 &&
                        r.cpu_share == 0.95 && r.matmul_flops == 0);
    }
    struct hw_rates bad = some_rates(1);
    bad.vector_flops = NAN;
    assert_int_equal(hw_rates_store(&bad, path, key, &e), ERR_NUMERIC);
    assert_int_equal(hw_rates_load(&r, path, key, &e), 0);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

static void test_damaged_cache(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "{\"format\": 3, \"machines\": {\"k\": {}}}",
        "{\"format\": 1, \"machines\": {\"k\": {}}}",
        "{\"format\": 2, \"machines\": {\"k\": {}}}",
        "{\"format\": 2, \"machines\": {\"k\": {\"threads\": -1}}}",
        "{\"format\": 2, \"machines\": {\"k\": {\"threads\": 1, \"vector_flops\": 1e99}}}",
        "{\"format\": 2, \"machines\": {\"k\": {\"threads\": 2, \"isa\": \"avx2\", "
        "\"vector_flops\": -1, "
        "\"copy_bytes_per_s\": 1, \"memory_bytes_per_s\": 1, \"fork_join_ns\": 1}}}",
        "{\"format\": 2, \"machines\": {\"k\": {\"threads\": \"two\"}}}",
        "{\"format\": 2, \"machines\": 3}",
        "{\"format\": 2} x",
    };
    char dir[DIR_BYTES], path[512];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/rates.json", dir);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct hw_rates r, in = some_rates(5);
        struct err e = {0};
        put(dir, "/rates.json", texts[i]);
        assert_true(hw_rates_load(&r, path, "k", &e) < 0);
        assert_true(strlen(e.text) > 0);
        assert_int_equal(hw_rates_store(&in, path, "k", &e), 0); // replaced
        assert_int_equal(hw_rates_load(&r, path, "k", &e), 0);
        assert_true(r.measured_at == 5);
    }
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

static struct hw_gpu_rates some_gpu(const char *name) {
    return (struct hw_gpu_rates){.matmul_flops = 5e13,
                                 .matmul_bf16_flops = 7e14,
                                 .attention_64_flops = 3.3e14,
                                 .attention_64_bwd_flops = 2.3e14,
                                 .attention_128_flops = 4.8e14,
                                 .attention_128_bwd_flops = 3.7e14,
                                 .copy_bytes_per_s = 3.8e12,
                                 .launch_s = 2e-6,
                                 .matmul_size = 8192,
                                 .measured_at = 7 + (double)strlen(name)};
}

static void store_gpu(const char *path, const char *key, const char *name) {
    struct hw_gpu_rates r = some_gpu(name);
    struct err e = {0};
    snprintf(r.device, sizeof r.device, "%s", name);
    assert_int_equal(hw_gpu_rates_store(&r, path, key, &e), 0);
}

// What a GPU reaches is kept by device; what is unknown stays unknown; a damaged file is replaced.
static void test_gpu_rates(void **state) {
    char dir[DIR_BYTES], path[512];
    struct hw_gpu_rates r;
    struct err e = {0};
    (void)state;
    make_dir(dir);
    snprintf(path, sizeof path, "%s/a/gpu_rates.json", dir);
    assert_int_equal(hw_gpu_rates_load(&r, path, "k", &e), ERR_IO);
    store_gpu(path, "k", "one \"GPU\"");
    store_gpu(path, "l", "another GPU");
    assert_int_equal(hw_gpu_rates_load(&r, path, "m", &e), ERR_IO);
    assert_int_equal(hw_gpu_rates_load(&r, path, "k", &e), 0);
    struct hw_gpu_rates same = some_gpu("one \"GPU\"");
    assert_string_equal(r.device, "one \"GPU\"");
#define X(name) assert_true(r.name == same.name);
    HW_GPU_RATE_LIST(X)
#undef X
    assert_true(hw_gpu_products(&r, DTYPE_BF16) == 7e14 && hw_gpu_products(&r, DTYPE_F16) == 0);
    assert_true(hw_gpu_products(&r, DTYPE_F32) == 5e13);
    assert_true(hw_gpu_attention(&r, 64, false) == 3.3e14);
    assert_true(hw_gpu_attention(&r, 128, true) == 3.7e14);
    struct hw_device d;
    hw_device_from_gpu(&d, &r);
    assert_true(d.matmul_bf16_flops == 7e14 && d.attention_bwd_flops == 2.3e14 &&
                d.memory_bytes_per_s == 3.8e12 && d.op_overhead_s == 2e-6);
    r.copy_bytes_per_s = NAN;
    assert_int_equal(hw_gpu_rates_store(&r, path, "k", &e), ERR_NUMERIC);
    static const char *const texts[] = {
        "{",
        "{\"format\": 2, \"gpus\": {\"k\": {\"device\": \"x\", \"measured_at\": 3}}}",
        "{\"format\": 1, \"gpus\": {\"k\": {\"device\": \"x\", \"launch_s\": -1, \"measured_at\": "
        "3}}}",
        "{\"format\": 1, \"gpus\": {\"k\": {\"measured_at\": 3}}}",
        "{\"format\": 1, \"gpus\": {\"k\": {\"device\": 4, \"measured_at\": 3}}}",
        "{\"format\": 1, \"gpus\": 3}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put(dir, "/a/gpu_rates.json", texts[i]);
        e = (struct err){0};
        assert_true(hw_gpu_rates_load(&r, path, "k", &e) < 0 && e.text[0]);
        store_gpu(path, "k", "again");
        assert_int_equal(hw_gpu_rates_load(&r, path, "k", &e), 0);
        assert_string_equal(r.device, "again");
    }
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

static void test_json(void **state) {
    (void)state;
    struct hw_machine m;
    hw_machine_read(&m, "");
    struct hw_rates r = some_rates(7);
    struct json_writer w;
    json_writer_to_buffer(&w, 1);
    json_put_object_begin(&w);
    json_put_key(&w, "machine");
    hw_machine_put_json(&m, &w);
    json_put_key(&w, "rates");
    hw_rates_put_json(&r, &w);
    json_put_object_end(&w);
    assert_int_equal(json_writer_finish(&w, NULL), 0);
    assert_non_null(strstr(w.buffer, "\"matmul_flops\": null"));
    struct region strings = {0};
    struct json_reader reader;
    struct err e = {0};
    json_reader_init(&reader, "doctor", w.buffer, w.bytes, &strings, &e);
    json_skip(&reader);
    assert_int_equal(json_finish(&reader), 0);
    region_free(&strings);
    free(w.buffer);
}

// ---------------------------------------------------------------- other programs

// A folder with /proc and /sys of a machine, at a moment. Only this process's CPUs count, so the
// line of CPU 0 stands for all that the test may run on.
static void put_moment(const char *root, int busy, int stolen, int waited_ms, int stopped_ms) {
    char stat[8192] = "cpu  1 1 1 1\n", text[128];
    size_t used = strlen(stat);
    for (int cpu = 0; cpu < 128; cpu++)
        used += (size_t)snprintf(stat + used, sizeof stat - used, "cpu%d %d 0 0 900 0 0 0 %d\n",
                                 cpu, busy, stolen);
    put(root, "/proc/stat", stat);
    snprintf(text, sizeof text, "5 %d000000 7\n", waited_ms);
    put(root, "/proc/self/task/11/schedstat", text);
    put(root, "/proc/self/task/12/schedstat", "5 1000 7\n");
    put(root, "/proc/self/cgroup", "0::/box\n");
    snprintf(text, sizeof text, "usage_usec 5\nthrottled_usec %d000\n", stopped_ms);
    put(root, "/sys/fs/cgroup/box/cpu.stat", text);
}

static void test_others(void **state) {
    (void)state;
    char dir[DIR_BYTES], text[OTHERS_TEXT_BYTES];
    struct others_mark from, to;
    struct others o, more;
    make_dir(dir);
    put_moment(dir, 100, 10, 40, 7);
    others_mark(&from, dir);
    put_moment(dir, 150, 15, 340, 107);
    others_mark(&to, dir);
    assert_true(from.cpus >= 1 && from.n_threads == 2);
    to.ns = from.ns + 1000000000;
    to.own_s = from.own_s;
    others_between(&o, &from, &to);
    const double ticks = 50.0 * from.cpus / (double)sysconf(_SC_CLK_TCK);
    assert_true(fabs(o.cpus - ticks) < 1e-6);
    assert_true(fabs(o.waited - 0.3) < 1e-9); // the unluckiest thread
    assert_true(fabs(o.stolen - 5.0 / 55) < 1e-9);
    assert_true(fabs(o.stopped - 0.1) < 1e-9);
    assert_true(fabs(others_share(&o) - 0.3) < 1e-9);
    assert_non_null(strstr(others_text(text, &o), "other programs used"));
    to.own_s += ticks; // this process was the busy one
    others_between(&more, &from, &to);
    assert_true(fabs(more.cpus) < 1e-6);
    assert_true(fabs(others_share(&more) - 0.1) < 1e-9); // its threads waited for each other
    others_add(&o, &more);
    assert_true(o.seconds == 2 && fabs(o.cpus - ticks / 2) < 1e-6);
    // Nothing to read: nothing is known, and the text says so.
    others_mark(&from, "/nowhere");
    to = from;
    to.ns += 1000;
    others_between(&o, &from, &to);
    assert_true(isnan(others_share(&o)));
    assert_non_null(strstr(others_text(text, &o), "cannot be seen"));
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

// How far threads are apart. On a machine with free CPUs there is a figure; where others hold them,
// there may be none, but no look takes long, and none hangs.
static void test_apart(void **state) {
    (void)state;
    struct err e = {0};
    struct apart seen = {0};
    for (int threads = 1; threads <= 9; threads++) {
        struct pool *pool;
        assert_int_equal(pool_open(&pool, threads, 0, &e), 0);
        for (int look = 0; look < 20; look++) {
            const double ns = apart_measure(pool);
            assert_true(isnan(ns) || (threads > 1 && pool_spins(pool)));
            assert_true(isnan(ns) || (ns > 1 && ns < 1e5));
            apart_add(&seen, ns);
        }
        pool_close(pool);
    }
    if (seen.least_ns == 0)
        print_message("no thread answered: other programs hold the CPUs\n");
    assert_true(seen.least_ns <= seen.most_ns);
}

static void test_apart_over_looks(void **state) {
    (void)state;
    struct apart a = {0}, b = {0};
    assert_true(isnan(apart_typical_ns(&a)) && isnan(apart_least_ns(&a)));
    assert_false(apart_changed(&a, 2));
    apart_add(&a, NAN);
    apart_join(&a, &b);
    assert_true(isnan(apart_most_ns(&a)));
    apart_add(&a, 50);
    apart_add(&a, 40);
    assert_true(a.least_ns == 40 && a.most_ns == 50 && !apart_changed(&a, 2));
    assert_true(apart_typical_ns(&a) > 44 && apart_typical_ns(&a) < 45);
    apart_add(&b, 370);
    apart_join(&b, &a);
    assert_true(b.least_ns == 40 && b.most_ns == 370 && apart_changed(&b, 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_apart),
        cmocka_unit_test(test_apart_over_looks),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_other_machine),
        cmocka_unit_test(test_odd_machines),
        cmocka_unit_test(test_measure),
        cmocka_unit_test(test_get_uses_the_cache),
        cmocka_unit_test(test_path),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_damaged_cache),
        cmocka_unit_test(test_gpu_rates),
        cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

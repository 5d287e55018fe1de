// test_energy.c - meters with a fake /sys and a fake NVML: sums, wrap-arounds, and every way to
// have no meter.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "measure/energy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[256];

static int begin(void **state) {
    (void)state;
    unsetenv("FAKE_NVML");
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("CUDA_DEVICE_ORDER");
    if (file_make_temp_dir(root, sizeof root, "energy", NULL) != 0)
        return -1;
    return chmod(root, 0755);
}

static int end(void **state) {
    (void)state;
    return file_remove_tree(root, NULL);
}

// Writes the file in place, as sysfs does, because readers keep the file open.
static void put(const char *zone, const char *file, const char *text) {
    char dir[400], path[512];
    snprintf(dir, sizeof dir, "%s/sys/class/powercap/%s", root, zone);
    snprintf(path, sizeof path, "%s/%s", dir, file);
    assert_int_equal(file_make_dirs(dir, NULL), 0);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void put_package(int i, const char *name, const char *uj) {
    char zone[32];
    snprintf(zone, sizeof zone, "intel-rapl:%d", i);
    put(zone, "name", name);
    put(zone, "max_energy_range_uj", "262143328850\n");
    put(zone, "energy_uj", uj);
}

static void open_cpu(struct energy_meter *m) {
    energy_open(m, &(struct energy_options){.root = root});
}

static void expect_none(const char *words) {
    struct energy_meter m;
    struct energy_use use;
    open_cpu(&m);
    if (m.present || strstr(m.why, words) == NULL)
        fail_msg("present %d, '%s' does not say '%s'", m.present, m.why, words);
    assert_true(isnan(energy_read(&m)));
    energy_use_of(&use, &m, 0); // without a meter: NaN, never 0 joules
    assert_true(isnan(use.joules) && !use.meter[0] && use.why[0]);
    energy_close(&m);
}

static void test_packages_add_up(void **state) {
    (void)state;
    struct energy_meter m;
    put_package(0, "package-0\n", "1000000\n");
    put_package(1, "package-1\n", "5000000\n");
    put_package(2, "psys\n", "7000000\n"); // contains the packages: would count them twice
    put("intel-rapl:0:0", "name", "core\n");
    put("intel-rapl:0:0", "energy_uj", "100\n");
    put("intel-rapl-mmio:0", "name", "package-0\n");
    put("intel-rapl-mmio:0", "energy_uj", "1000000\n");
    put("dtpm", "name", "package-9\n");
    open_cpu(&m);
    assert_true(m.present && m.n_packages == 2 && !m.why[0]);
    assert_string_equal(m.name, "RAPL (2 packages)");
    assert_true(energy_read(&m) == 0);
    put_package(0, "package-0\n", "3500000\n");
    put_package(1, "package-1\n", "5250000\n");
    put_package(2, "psys\n", "99000000\n");
    assert_true(fabs(energy_read(&m) - 2.75) < 1e-9);
    assert_true(fabs(energy_read(&m) - 2.75) < 1e-9); // no energy was used since then
    energy_close(&m);
    energy_close(&m);
}

static void test_counter_starts_over(void **state) {
    (void)state;
    struct energy_meter m;
    put_package(0, "package-0\n", "262143000000\n");
    open_cpu(&m);
    put_package(0, "package-0\n", "171149\n"); // 328850 to the range, one to 0, 171149 more
    assert_true(fabs(energy_read(&m) - 0.5) < 1e-9);
    put_package(0, "package-0\n", "171148\n"); // almost all the way around
    assert_true(fabs(energy_read(&m) - 0.5 - 262143.32885) < 1e-6);
    energy_close(&m);
    // Without a range, a counter that falls cannot be followed. From then on the energy is unknown,
    // and the meter says so.
    put_package(0, "package-0\n", "500\n");
    put("intel-rapl:0", "max_energy_range_uj", "junk\n");
    open_cpu(&m);
    put_package(0, "package-0\n", "900\n");
    assert_true(fabs(energy_read(&m) - 400e-6) < 1e-12);
    put_package(0, "package-0\n", "100\n");
    assert_true(isnan(energy_read(&m)) && strstr(m.why, "started over"));
    put_package(0, "package-0\n", "2000\n");
    assert_true(isnan(energy_read(&m)));
    struct energy_use use;
    energy_use_of(&use, &m, 3);
    assert_true(isnan(use.joules) && use.why[0]);
    energy_close(&m);
}

static void test_no_meter(void **state) {
    (void)state;
    expect_none("no RAPL packages"); // no folder
    put("intel-rapl:0", "name", "psys\n");
    expect_none("no RAPL packages"); // a zone that is not a package
    put("intel-rapl:0", "name", "package-0\n");
    expect_none("intel-rapl:0/energy_uj"); // no counter
    put("intel-rapl:0", "energy_uj", "");
    expect_none("not a number");
    put("intel-rapl:0", "energy_uj", "12x34\n");
    expect_none("12x34");
    put("intel-rapl:0", "energy_uj", "-5\n");
    expect_none("-5");
    put("intel-rapl:0", "energy_uj", "99999999999999999999999999999999999999999\n");
    expect_none("not a number");
    // One package that cannot be read: half of the energy is not reported as all of it.
    put("intel-rapl:0", "energy_uj", "1\n");
    put("intel-rapl:1", "name", "package-1\n");
    expect_none("intel-rapl:1/energy_uj");
    char path[400];
    snprintf(path, sizeof path, "%s/sys/class/powercap/intel-rapl:1/energy_uj", root);
    assert_int_equal(mkdir(path, 0755), 0);
    expect_none("intel-rapl:1/energy_uj");
}

static void test_permission_denied(void **state) {
    (void)state;
    char path[400];
    struct energy_meter m;
    put_package(0, "package-0\n", "1000000\n");
    snprintf(path, sizeof path, "%s/sys/class/powercap/intel-rapl:0/energy_uj", root);
    assert_int_equal(chmod(path, 0400), 0);
    if (geteuid() == 0)
        assert_int_equal(seteuid(65534), 0); // root could read everything
    else
        assert_int_equal(chmod(path, 0), 0);
    open_cpu(&m);
    const bool said = !m.present && strstr(m.why, "only root may read") != NULL && m.fix != NULL;
    energy_close(&m);
    if (getuid() == 0)
        assert_int_equal(seteuid(0), 0);
    assert_true(said);
}

static void test_too_many_packages(void **state) {
    (void)state;
    for (int i = 0; i <= ENERGY_MAX_PACKAGES; i++)
        put_package(i, "package-0\n", "1\n");
    expect_none("more than");
}

static void test_laps_leave_out_pauses(void **state) {
    (void)state;
    struct energy_meter m;
    struct energy_lap lap = {0};
    put_package(0, "package-0\n", "0\n");
    open_cpu(&m);
    put_package(0, "package-0\n", "1000000\n"); // before the first step
    energy_lap_begin(&lap, &m);
    put_package(0, "package-0\n", "3000000\n");
    energy_lap_begin(&lap, &m); // already running: ignored
    energy_lap_end(&lap, &m);
    put_package(0, "package-0\n", "103000000\n"); // a pause
    energy_lap_end(&lap, &m);
    energy_lap_begin(&lap, &m);
    put_package(0, "package-0\n", "103500000\n");
    energy_lap_end(&lap, &m);
    assert_true(fabs(lap.joules - 2.5) < 1e-9);
    // The counter wraps around once while no figure is asked for, but polling sees it.
    const uint64_t now = clock_ns();
    put_package(0, "package-0\n", "1\n");
    energy_poll(&m, now); // too soon: does not read
    put_package(0, "package-0\n", "103600000\n");
    energy_poll(&m, now + 2000000000);
    assert_true(fabs(energy_read(&m) - 103.6) < 1e-9);
    struct energy_use sum = {.joules = 0}, use;
    energy_use_of(&use, &m, lap.joules);
    energy_use_add(&sum, &use);
    energy_use_add(&sum, &use);
    assert_true(sum.joules == 5 && strcmp(sum.meter, "RAPL (1 package)") == 0);
    use.joules = NAN;
    energy_use_add(&sum, &use);
    assert_true(isnan(sum.joules));
    energy_close(&m);
}

static void open_gpu(struct energy_meter *m) {
    energy_open(m, &(struct energy_options){.device = true, .root = root, .nvml = FAKE_NVML});
}

static void expect_no_gpu(const char *words) {
    struct energy_meter m;
    open_gpu(&m);
    if (m.present || strstr(m.why, words) == NULL)
        fail_msg("present %d, '%s' does not say '%s'", m.present, m.why, words);
    energy_close(&m);
}

static void test_gpu_counts(void **state) {
    (void)state;
    struct energy_meter m;
    setenv("FAKE_MJ", "1000000", 1);
    open_gpu(&m);
    assert_string_equal(m.name, "NVML (Fake A)");
    assert_true(m.present && strstr(m.why, "the GPU alone")); // there is no RAPL
    setenv("FAKE_MJ", "1002500", 1);
    assert_true(fabs(energy_read(&m) - 2.5) < 1e-9);
    energy_close(&m);
    put_package(0, "package-0\n", "0\n");
    open_gpu(&m);
    assert_string_equal(m.name, "NVML (Fake A) + RAPL (1 package)");
    put_package(0, "package-0\n", "1000000\n");
    setenv("FAKE_MJ", "1003500", 1);
    assert_true(fabs(energy_read(&m) - 2) < 1e-9 && !m.why[0]);
    setenv("FAKE_MJ", "5", 1);
    assert_true(isnan(energy_read(&m)) && strstr(m.why, "started over"));
    energy_close(&m);
}

// The clock is the mean of samples that are taken a few times a second.
static void test_gpu_clock(void **state) {
    (void)state;
    struct energy_meter m;
    struct energy_use use;
    struct energy_lap lap = {0};
    const uint64_t now = clock_ns(), second = 1000000000;
    setenv("FAKE_MJ", "1000", 1);
    setenv("FAKE_MHZ", "1500", 1);
    open_gpu(&m);
    energy_use_of(&use, &m, 0);
    assert_true(use.clock_mhz == 0); // no sample yet
    energy_poll(&m, now + second);
    setenv("FAKE_MHZ", "1800", 1);
    energy_poll(&m, now + second + second / 100); // too soon
    energy_poll(&m, now + 2 * second);
    energy_use_of(&use, &m, 0);
    assert_true(use.clock_mhz == 1650 && use.clock_most_mhz == 1980);
    energy_close(&m);
    open_gpu(&m); // steps that end before they are polled
    energy_lap_begin(&lap, &m);
    energy_lap_end(&lap, &m);
    energy_use_of(&use, &m, lap.joules);
    assert_true(use.clock_mhz == 1800);
    energy_close(&m);
    unsetenv("FAKE_MHZ"); // a driver that does not say
    open_gpu(&m);
    energy_poll(&m, now + 3 * second);
    energy_use_of(&use, &m, 0);
    assert_true(use.clock_mhz == 0);
    energy_close(&m);
}

static void test_gpu_is_shared(void **state) {
    (void)state;
    struct energy_meter m;
    assert_true(isnan(energy_device_disturbed(NULL, 0)));
    open_gpu(&m);
    setenv("FAKE_OTHERS", "30", 1);
    assert_true(fabs(energy_device_disturbed(&m, 1e9) - 0.3) < 1e-9);
    assert_true(isnan(energy_device_used(NULL, 0)));
    assert_true(fabs(energy_device_used(&m, 1e9) - 0.9) < 1e-9); // this one's, too
    setenv("FAKE_NVML", "strange", 1);
    assert_true(fabs(energy_device_disturbed(&m, 1e9) - 0.3) < 1e-9);
    setenv("FAKE_OTHERS", "0", 1);
    assert_true(energy_device_disturbed(&m, 1e9) == 0);
    setenv("FAKE_NVML", "hot", 1);
    assert_true(energy_device_disturbed(&m, 1e9) == 1);
    energy_close(&m);
}

static void test_gpu_power_is_sampled(void **state) {
    (void)state;
    struct energy_meter m;
    setenv("FAKE_NVML", "power", 1);
    setenv("FAKE_MW", "100000", 1);
    open_gpu(&m);
    assert_string_equal(m.name, "NVML (Fake A, sampled power)");
    const uint64_t begin_ns = m.read_ns;
    setenv("FAKE_MW", "300000", 1);
    usleep(30000);
    const double joules = energy_read(&m); // 200 W on average
    const double seconds = 1e-9 * (double)(m.read_ns - begin_ns);
    assert_true(fabs(joules - 200 * seconds) < 1e-9 && joules > 5);
    energy_close(&m);
    setenv("FAKE_NVML", "blind", 1);
    expect_no_gpu("Not Supported");
}

static void test_gpu_is_the_right_one(void **state) {
    (void)state;
    struct energy_meter m;
    setenv("FAKE_NVML", "two", 1);
    expect_no_gpu("CUDA_DEVICE_ORDER"); // two GPUs that differ, and no stated order
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
    setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
    open_gpu(&m);
    assert_string_equal(m.name, "NVML (Fake B)");
    energy_close(&m);
    setenv("CUDA_VISIBLE_DEVICES", "7", 1);
    expect_no_gpu("no GPU 7");
    setenv("CUDA_VISIBLE_DEVICES", "GPU-1234", 1);
    open_gpu(&m);
    assert_string_equal(m.name, "NVML (Fake A)");
    energy_close(&m);
    setenv("CUDA_VISIBLE_DEVICES", "MIG-77", 1);
    expect_no_gpu("MIG-77");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    expect_no_gpu("CUDA_VISIBLE_DEVICES");
    unsetenv("CUDA_VISIBLE_DEVICES");
    setenv("FAKE_NVML", "down", 1);
    expect_no_gpu("Driver Not Loaded");
    energy_open(&m, &(struct energy_options){.device = true, .root = root, .nvml = "no-such.so"});
    assert_true(!m.present && strstr(m.why, "no-such.so"));
    // A library that can be opened but is not NVML.
    energy_open(&m, &(struct energy_options){.device = true, .root = root, .nvml = "libm.so.6"});
    assert_true(!m.present && strstr(m.why, "nvmlInit_v2"));
    energy_close(&m);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(test_packages_add_up),
        TEST(test_counter_starts_over),
        TEST(test_no_meter),
        TEST(test_permission_denied),
        TEST(test_too_many_packages),
        TEST(test_laps_leave_out_pauses),
        TEST(test_gpu_counts),
        TEST(test_gpu_clock),
        TEST(test_gpu_is_shared),
        TEST(test_gpu_power_is_sampled),
        TEST(test_gpu_is_the_right_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

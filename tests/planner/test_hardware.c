// test_hardware.c - the catalog, files that add to it, and the text of a cluster.
#include "planner/hardware.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static void open_catalog(struct hardware *h) {
    struct err e = {0};
    if (hardware_open(h, &e) != 0)
        fail_msg("%s", e.text);
}

static void the_catalog_is_whole(void **state) {
    struct hardware h;
    (void)state;
    open_catalog(&h);
    static const char *const names[] = {
        "v100-32g", "a100-40g", "a100-80g", "a800-80g",  "a5000",     "a6000",
        "l4",       "l40s",     "h100-80g", "h100-pcie", "h100-nvl",  "h800-80g",
        "h200",     "b200",     "b300",     "gb200",     "gb300",     "mi300x",
        "mi325x",   "rtx-3090", "rtx-4090", "rtx-5090",  "epyc-9654", "xeon-8480"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct hardware_device d;
        struct err e = {0};
        if (hardware_find(&h, names[i], &d, &e) != 0)
            fail_msg("%s", e.text);
        assert_true(d.memory_gib > 0 && d.memory_gbps > 0 && d.half_tflops > d.fp32_tflops / 2);
        assert_true(d.tdp_w > 0 && d.link_gbps > 0 && d.units > 0);
    }
    hardware_free(&h);
}

static void refuse(const char *text, const char *says) {
    struct hardware h;
    struct err e = {0};
    open_catalog(&h);
    assert_int_equal(hardware_read_text(&h, "mine.csv", text, strlen(text), &e), ERR_FORMAT);
    if (!strstr(e.text, says))
        fail_msg("'%s' does not say '%s'", e.text, says);
    hardware_free(&h);
}

static void bad_lines_are_refused_by_name(void **state) {
    (void)state;
    refuse("device,x,memory_gib,12\n", "mine.csv:1: fewer than five fields");
    refuse("# fine\ndevice,x,memory_gib,12,source,more\n", "mine.csv:2: more than five fields");
    refuse("device,x,memory_gib,nan,source\n", "a number from 0.01 to 1e+06");
    refuse("device,x,memory_gib,-1,source\n", "memory_gib '-1'");
    refuse("device,x,size,1,source\n", "the figure 'size' is not accepted; accepted: memory_gib");
    refuse("device,X y,memory_gib,1,source\n", "the name 'X y'");
    refuse("device,x,arch,pascal,source\n", "volta, ampere");
    refuse("thing,x,memory_gib,1,source\n", "device, network, node");
    refuse("device,x,memory_gib,1,\n", "the source of the figure is missing");
    refuse("device,x,memory_gib,1,source\n", "device 'x' has no memory_gbps");
}

static void a_file_replaces_figures(void **state) {
    struct hardware h;
    struct hardware_device d;
    struct err e = {0};
    static const char text[] = "device,h200,memory_gbps,4100,measured here\r\n";
    (void)state;
    open_catalog(&h);
    assert_int_equal(hardware_read_text(&h, "mine.csv", text, strlen(text), &e), 0);
    assert_int_equal(hardware_find(&h, "h200", &d, &e), 0);
    assert_true(d.memory_gbps == 4100 && d.half_tflops > 900);
    hardware_free(&h);
}

static void clusters_are_read(void **state) {
    struct hardware h;
    struct cluster c;
    struct err e = {0};
    (void)state;
    open_catalog(&h);
    assert_int_equal(cluster_parse(&c, &h, "8xa100-80g", &e), 0);
    assert_true(c.nodes == 1 && c.per_node == 8);
    assert_int_equal(cluster_parse(&c, &h, "64xh100-80g", &e), 0);
    assert_true(c.nodes == 8 && c.per_node == 8 && c.node_bytes_per_s == 400e9);
    assert_int_equal(cluster_parse(&c, &h, "16x4xh100-80g", &e), 0);
    assert_true(c.nodes == 16 && c.per_node == 4 && c.node_bytes_per_s == 200e9);
    assert_int_equal(cluster_parse(&c, &h, "h200", &e), 0);
    assert_int_equal(cluster_devices(&c), 1);
    assert_int_equal(cluster_parse(&c, &h, "2xaws-p5", &e), 0);
    assert_true(cluster_devices(&c) == 16 && c.usd_per_hour > 100 && c.price[0]);
    assert_int_equal(cluster_parse(&c, &h, "2x8xl40s@100", &e), 0);
    assert_true(c.node_bytes_per_s == 12.5e9);
    assert_int_equal(cluster_parse(&c, &h, "2x8xl40s@2xib-hdr", &e), 0);
    assert_true(c.node_bytes_per_s == 50e9);
    hardware_free(&h);
}

static void refuse_cluster(const struct hardware *h, const char *text, const char *says) {
    struct cluster c;
    struct err e = {0};
    assert_int_equal(cluster_parse(&c, h, text, &e), ERR_USAGE);
    if (!strstr(e.text, says))
        fail_msg("'%s' does not say '%s'", e.text, says);
}

static void bad_clusters_name_what_is_near(void **state) {
    struct hardware h;
    (void)state;
    open_catalog(&h);
    refuse_cluster(&h, "8xa100-81g", "did you mean 'a100-80g'?");
    refuse_cluster(&h, "8xb20", "did you mean 'b200'?");
    refuse_cluster(&h, "0xa100-80g", "0 nodes");
    refuse_cluster(&h, "12xh100-80g", "accepted: 1 to 8 devices, a multiple of 8");
    refuse_cluster(&h, "99999999999999999999xh200", "accepted: 1 to 65536");
    refuse_cluster(&h, "2x8xl40s", "no network for l40s");
    refuse_cluster(&h, "2x8xl40s@ib-hd", "did you mean 'ib-hdr'?");
    refuse_cluster(&h, "", "the catalog has no device");
    hardware_free(&h);
}

static void names_in_tables_are_understood(void **state) {
    static const struct {
        const char *text, *name;
        double gib;
    } cases[] = {{"A100-80GB-SXM", "a100-80g", 80},   {"A100", "a100-80g", 80},
                 {"A100-40GB-SXM", "a100-40g", 40},   {"V100-32GB (DGX-2)", "v100-32g", 32},
                 {"H100-94GB", "h100-80g", 94},       {"B200 (power limited)", "b200", 179},
                 {"H100-80GB-PCIe", "h100-pcie", 80}, {"RTX4090-24GB", "rtx-4090", 24}};
    struct hardware h;
    (void)state;
    open_catalog(&h);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hardware_device d;
        char changed[96];
        struct err e = {0};
        if (hardware_find_written(&h, cases[i].text, &d, changed, &e) != 0)
            fail_msg("%s", e.text);
        assert_string_equal(d.name, cases[i].name);
        assert_true(d.memory_gib == cases[i].gib);
    }
    hardware_free(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_catalog_is_whole),
        cmocka_unit_test(bad_lines_are_refused_by_name),
        cmocka_unit_test(a_file_replaces_figures),
        cmocka_unit_test(clusters_are_read),
        cmocka_unit_test(bad_clusters_name_what_is_near),
        cmocka_unit_test(names_in_tables_are_understood),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

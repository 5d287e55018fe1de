// test_costs.c - times of ops grow with work and shrink with better devices, and never are nothing.
#include "planner/costs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

struct place {
    struct hardware h;
    struct cluster cluster;
    struct planner_constants k;
    struct costing c;
};

static void open_place(struct place *p, const char *cluster) {
    struct err e = {0};
    if (hardware_open(&p->h, &e) != 0 || cluster_parse(&p->cluster, &p->h, cluster, &e) != 0)
        fail_msg("%s", e.text);
    p->k = planner_constants_default();
    p->c = (struct costing){.cluster = &p->cluster,
                            .constants = &p->k,
                            .profile = planner_profile_find("haggle"),
                            .math = PLANNER_BF16,
                            .tensor = 1,
                            .data = 8,
                            .context = 1,
                            .stages = 1};
}

static double product(const struct costing *c, double m, double n, double k) {
    return cost_product(c, m, n, k, 2 * m * n * k);
}

static void larger_products_take_longer(void **state) {
    struct place p;
    (void)state;
    open_place(&p, "8xa100-80g");
    // Whole tiles: an edge may make a slightly larger product faster per tile, never the sum.
    for (double n = 128; n < 16384; n *= 2) {
        assert_true(product(&p.c, n, 4096, 4096) <= product(&p.c, 2 * n, 4096, 4096));
        assert_true(product(&p.c, 4096, n, 4096) <= product(&p.c, 4096, 2 * n, 4096));
        assert_true(product(&p.c, 4096, 4096, n) < product(&p.c, 4096, 4096, 2 * n));
    }
    // A column is as dear as a tile of them.
    assert_true(product(&p.c, 4096, 1, 4096) * 128 > product(&p.c, 4096, 128, 4096) * 100);
    // Nothing is faster than the catalog's peak.
    assert_true(product(&p.c, 16384, 16384, 16384) >
                2 * pow(16384, 3) / cost_peak(&p.cluster.device, PLANNER_BF16));
    hardware_free(&p.h);
}

static void eight_bits_are_faster_where_there_are_units_for_them(void **state) {
    struct place a, h;
    (void)state;
    open_place(&a, "8xa100-80g");
    open_place(&h, "8xh100-80g");
    assert_true(cost_peak(&a.cluster.device, PLANNER_FP8) ==
                cost_peak(&a.cluster.device, PLANNER_BF16));
    assert_true(cost_peak(&h.cluster.device, PLANNER_FP8) >
                1.9 * cost_peak(&h.cluster.device, PLANNER_BF16));
    assert_true(product(&h.c, 8192, 8192, 8192) < product(&a.c, 8192, 8192, 8192));
    hardware_free(&a.h);
    hardware_free(&h.h);
}

static void collectives_cost_by_bytes_ranks_and_nodes(void **state) {
    struct place p;
    (void)state;
    open_place(&p, "4x8xa100-80g");
    assert_true(cost_collective(&p.c, 1, 1, 1e9) == 0);
    for (double bytes = 1e3; bytes < 1e10; bytes *= 10) {
        assert_true(cost_collective(&p.c, 8, 1, bytes) < cost_collective(&p.c, 8, 1, 10 * bytes));
        assert_true(cost_collective(&p.c, 2, 1, bytes) < cost_collective(&p.c, 8, 1, bytes));
        assert_true(cost_collective(&p.c, 8, 1, bytes) < cost_collective(&p.c, 16, 1, bytes));
        // Ranks that are alone on their nodes share the network with seven other groups.
        assert_true(cost_collective(&p.c, 32, 1, bytes) < cost_collective(&p.c, 4, 8, bytes) ||
                    bytes < 1e7);
    }
    // At large sizes the network decides: eight groups of four get an eighth of it each.
    const double one = cost_collective(&p.c, 4, 8, 1e10), all = cost_collective(&p.c, 32, 1, 1e10);
    assert_true(one > 4 * all && one < 16 * all);
    hardware_free(&p.h);
}

static void constants_lie_in_their_ranges(void **state) {
    int fitted = 0;
    (void)state;
    for (int i = 0; i < COST_COUNT; i++) {
        const struct planner_constant_info *c = planner_constant_info((enum planner_constant)i);
        assert_true(c->value >= c->least && c->value <= c->most);
        assert_true(c->start >= c->least && c->start <= c->most);
        assert_true(strlen(c->unit) > 0 && strlen(c->meaning) > 5);
        fitted += c->fitted;
    }
    assert_true(fitted <= 30);
    assert_null(planner_profile_find("no such framework"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(larger_products_take_longer),
        cmocka_unit_test(eight_bits_are_faster_where_there_are_units_for_them),
        cmocka_unit_test(collectives_cost_by_bytes_ranks_and_nodes),
        cmocka_unit_test(constants_lie_in_their_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

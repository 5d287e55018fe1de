// test_grid.c - value lists and ranges of a benchmark, and their product.
#include "bench/grid.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static int read(struct grid *g, const char *a, const char *b, struct err *e) {
    const char *list[2] = {a, b};
    return grid_read(g, list, b ? 2 : 1, e);
}

static void expect_values(const char *assignment, const char *wanted) {
    struct grid g;
    struct err e = {0};
    char got[512] = "";
    assert_int_equal(read(&g, assignment, NULL, &e), 0);
    for (size_t i = 0; i < g.axes[0].n; i++) {
        strcat(got, i ? " " : "");
        strcat(got, g.axes[0].values[i]);
    }
    assert_string_equal(got, wanted);
    grid_free(&g);
}

static void test_values(void **state) {
    (void)state;
    expect_values("batch.micro=1,2,4", "1 2 4");
    expect_values("batch.micro=8", "8");
    expect_values("seq=64-512*2", "64 128 256 512");
    expect_values("seq=64-500*2", "64 128 256");
    expect_values("threads=1-4", "1 2 3 4");
    expect_values("threads=1-9+4", "1 5 9");
    expect_values("threads=1-2,8", "1 2 8");
    // Only whole numbers have ranges.
    expect_values("model=gpt2-124m,tiny", "gpt2-124m tiny");
    expect_values("optim.lr=1e-3,3e-4", "1e-3 3e-4");
    // What is no range is left for the knob to refuse: in a grid that is a row.
    expect_values("seq=1-", "1-");
    expect_values("seq=1-4/2", "1-4/2");
    expect_values("seq=-3", "-3");
    expect_values("seq=1,,2", "1  2");
    expect_values("seq=9223372036854775807-9223372036854775807", "9223372036854775807");
}

static void test_product(void **state) {
    (void)state;
    struct grid g;
    struct knobs base, k;
    struct err e = {0};
    char name[GRID_NAME_BYTES];
    knobs_init(&base);
    assert_int_equal(read(&g, "batch.micro=1,2,3", "seq=16,32", &e), 0);
    assert_int_equal(g.n, 6);
    assert_int_equal(grid_knobs(&g, 3, &base, &k, &e), 0);
    assert_int_equal(k.batch_micro, 2);
    assert_int_equal(k.seq, 32);
    assert_int_equal(k.by[KNOB_seq], SET_BY_COMMAND_LINE);
    assert_string_equal(grid_name(&g, 5, name), "batch.micro=3 seq=32");
    grid_free(&g);

    // The later list of a knob counts; a name is short when only one knob varies.
    assert_int_equal(read(&g, "seq=16,32", "seq=8", &e), 0);
    assert_int_equal(g.n, 1);
    assert_string_equal(grid_name(&g, 0, name), "seq=8");
    grid_free(&g);
    assert_int_equal(grid_read(&g, NULL, 0, &e), 0);
    assert_int_equal(g.n, 1);
    assert_string_equal(grid_name(&g, 0, name), "as given");
    grid_free(&g);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *a, *b, *says;
    } cases[] = {
        {"batch.micor=1", NULL, "batch.micro"},
        {"batch.micro", NULL, "knob=value"},
        {"batch.micro=4-1", NULL, "is not a range"},
        {"batch.micro=0-8*2", NULL, "is not a range"}, // 0 times anything stays 0
        {"batch.micro=1-8*1", NULL, "is not a range"},
        {"batch.micro=1-8+0", NULL, "is not a range"},
        {"seq=1-100000", NULL, "more than 4096"},
        {"seq=1-100", "batch.micro=1-100", "more than 4096"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grid g;
        struct err e = {0};
        assert_int_equal(read(&g, cases[i].a, cases[i].b, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, cases[i].says));
        grid_free(&g);
    }
    // A bad value is that configuration's own.
    struct grid g;
    struct knobs base, k;
    struct err e = {0};
    knobs_init(&base);
    assert_int_equal(read(&g, "batch.micro=0,1", NULL, &e), 0);
    assert_int_equal(grid_knobs(&g, 0, &base, &k, &e), ERR_USAGE);
    assert_int_equal(grid_knobs(&g, 1, &base, &k, &e), 0);
    grid_free(&g);
}

static void test_list(void **state) {
    (void)state;
    static const struct grid_setting list[] = {
        {"as it is", ""}, {"split", "batch.micro/2 batch.accum*2 seq=32"}, {"odd", "seq/3"}};
    struct grid g;
    struct knobs base, k;
    struct err e = {0};
    char name[GRID_NAME_BYTES];
    knobs_init(&base);
    base.batch_micro = 6;
    grid_from_list(&g, list, 3);
    assert_int_equal(g.n, 3);
    assert_int_equal(grid_knobs(&g, 0, &base, &k, &e), 0);
    assert_true(knobs_equal(&base, &k));
    assert_int_equal(grid_knobs(&g, 1, &base, &k, &e), 0);
    assert_true(k.batch_micro == 3 && k.batch_accum == 2 && k.seq == 32);
    assert_string_equal(grid_name(&g, 1, name), "split");
    assert_int_equal(grid_knobs(&g, 2, &base, &k, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "seq=128 cannot be divided by 3"));
    grid_free(&g);
    // What cannot be a change.
    static const char *const bad[] = {"optim.lr*2",    "batch.micro*0",     "batch.micro",
                                      "batch.micor*2", "batch.micro*65536", "seq=0",
                                      "batch.micro*-1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        k = base;
        assert_int_equal(grid_change(&k, bad[i], &e), ERR_USAGE);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_product),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

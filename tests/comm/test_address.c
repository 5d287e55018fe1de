// test_address.c - at which address rank 0 listens when ranks are on several machines.
#include "comm/address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include <arpa/inet.h>

enum { WORLD = 4, HERE = 2 };

// "10.0.0.1/24 fd00::1/64"
static struct addresses machine(const char *text) {
    struct addresses m = {0};
    char word[64];
    int used, prefix;
    for (; sscanf(text, " %63[^/]/%d%n", word, &prefix, &used) == 2; text += used) {
        struct address *a = &m.at[m.n++];
        a->family = strchr(word, ':') ? 6 : 4;
        a->prefix = (uint8_t)prefix;
        assert_int_equal(inet_pton(a->family == 6 ? AF_INET6 : AF_INET, word, a->bytes), 1);
    }
    return m;
}

// Two ranks on each of two machines.
static const char *choose(const char *one, const char *other) {
    static char out[ADDRESS_TEXT_BYTES];
    const struct addresses a = machine(one), b = machine(other);
    const struct addresses all[WORLD] = {a, a, b, b};
    struct err e = {0};
    return address_choose(out, all, WORLD, HERE, &e) == 0 ? out : "none";
}

static void test_networks(void **state) {
    (void)state;
    assert_string_equal(choose("10.0.0.1/24", "10.0.0.2/24"), "10.0.0.1");
    // the bridge of containers has the same address everywhere
    assert_string_equal(choose("172.17.0.1/16 10.0.0.1/24", "172.17.0.1/16 10.0.0.2/24"),
                        "10.0.0.1");
    // a network that only one of them is in
    assert_string_equal(choose("192.168.7.1/24 10.0.0.1/24", "10.0.0.2/24"), "10.0.0.1");
    assert_string_equal(choose("10.0.0.1/30 10.0.1.1/24", "10.0.0.5/30 10.0.1.2/24"), "10.0.1.1");
    assert_string_equal(choose("10.0.0.1/20", "10.0.15.9/20"), "10.0.0.1");
    assert_string_equal(choose("10.0.0.1/24 fd00::1/64", "10.1.0.1/24 fd00::2/64"), "fd00::1");
}

static void test_none(void **state) {
    (void)state;
    // Addresses for documentation: nothing of this machine leads there.
    assert_string_equal(choose("192.0.2.1/32", "192.0.2.1/32"), "none");
    assert_string_equal(choose("", "198.51.100.1/24"), "none");
    assert_string_equal(choose("198.51.100.1/24", ""), "none");
    const struct addresses broken[2] = {{.n = -5}, {.n = 1 << 30}};
    char out[ADDRESS_TEXT_BYTES];
    struct err e = {0};
    assert_int_equal(address_choose(out, broken, 2, 1, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "a network in common"));
}

static void test_list(void **state) {
    struct addresses own;
    struct err e = {0};
    (void)state;
    assert_int_equal(address_list(&own, &e), 0);
    for (int i = 0; i < own.n; i++) {
        assert_true(own.at[i].family == 4 || own.at[i].family == 6);
        assert_true(own.at[i].prefix <= (own.at[i].family == 6 ? 128 : 32));
        assert_false(own.at[i].family == 4 && own.at[i].bytes[0] == 127);
        assert_true(i == 0 || own.at[i].family >= own.at[i - 1].family);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_networks),
        cmocka_unit_test(test_none),
        cmocka_unit_test(test_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

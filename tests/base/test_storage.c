// test_storage.c - quantized matrices as bytes: sizes, places, values, what is refused.
#include "base/storage.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct storage int8 = {.kind = STORAGE_INT8};

static struct storage int4(int group, bool minima) {
    return (struct storage){.kind = STORAGE_INT4, .group = (uint16_t)group, .minima = minima};
}

static void test_formats(void **state) {
    (void)state;
    char text[STORAGE_TEXT_BYTES];
    uint8_t codes[16];
    int n = 0;
    assert_true(storage_known((struct storage){0}) && storage_known(int8));
    assert_string_equal(storage_text((struct storage){0}, text), "plain");
    assert_string_equal(storage_text(int8, text), "int8");
    assert_string_equal(storage_text(int4(32, false), text), "int4 g32");
    assert_string_equal(storage_text(int4(128, true), text), "int4 g128 minima");
    for (int group = 0; group <= 256; group++)
        assert_int_equal(storage_known(int4(group, false)),
                         group == 32 || group == 64 || group == 128);
    assert_false(storage_known((struct storage){.kind = STORAGE_INT8, .minima = true}));
    assert_false(storage_known((struct storage){.kind = STORAGE_INT8, .group = 32}));
    assert_false(storage_known((struct storage){.kind = STORAGE_KINDS}));
    codes[n++] = storage_code((struct storage){0});
    codes[n++] = storage_code(int8);
    for (int group = 32; group <= 128; group *= 2)
        for (int minima = 0; minima < 2; minima++)
            codes[n++] = storage_code(int4(group, minima));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) {
            assert_int_not_equal(codes[i], codes[j]);
            assert_true(codes[i] <= STORAGE_CODES);
        }
    assert_true(storage_takes(int8, 77) && storage_takes(int4(64, false), 128));
    assert_false(storage_takes(int4(64, false), 96));
}

// The bytes per element that a comparison with llama.cpp's Q4_0 (18 bytes of 32) and Q8_0 (34)
// needs.
static void test_sizes(void **state) {
    (void)state;
    struct storage_parts p;
    assert_true(storage_layout(int4(32, false), 2048, 2048, &p));
    assert_int_equal(p.bytes, 2048 * 2048 / 32 * 18);
    assert_true(storage_layout(int8, 2048, 2048, &p));
    assert_int_equal(p.bytes, 2048 * 2048 + 2048 * 4);
    assert_true(p.bytes < 2048 * 2048 / 32 * 34);
    // Parts begin at multiples of STORAGE_ALIGN, in this order.
    assert_true(storage_layout(int4(32, true), 3, 96, &p));
    assert_int_equal(p.codes, 0);
    assert_int_equal(p.codes_bytes, 144);
    assert_int_equal(p.scales, 192);
    assert_int_equal(p.scales_bytes, 3 * 3 * 2);
    assert_int_equal(p.minima, 256);
    assert_int_equal(p.minima_bytes, 18);
    assert_int_equal(p.bytes, 320);
    assert_true(storage_layout(int8, 5, 7, &p));
    assert_true(p.scales == 64 && p.scales_bytes == 20 && p.minima_bytes == 0 && p.bytes == 128);
    assert_true(storage_layout(int8, 0, 7, &p));
    assert_int_equal(p.bytes, 0);
    assert_false(storage_layout((struct storage){0}, 3, 96, &p));
    assert_false(storage_layout(int4(64, false), 3, 96, &p));
    assert_false(storage_layout(int8, -1, 96, &p));
    assert_false(storage_layout(int8, INT64_MAX, 96, &p)); // more than 2^64 bytes
    assert_false(storage_layout(int8, INT64_MAX / 2, 1, &p));
}

static void put_half(char *at, float x) {
    const uint16_t bits = dtype_f32_to_f16(x);
    memcpy(at, &bits, sizeof bits);
}

static void test_values(void **state) {
    (void)state;
    enum { COLS = 64 };
    uint8_t codes[COLS];
    char data[512] = {0};
    float out[COLS];
    struct storage_parts p;
    for (int minima = 0; minima < 2; minima++) {
        const struct storage s = int4(32, minima);
        assert_true(storage_layout(s, 2, COLS, &p));
        for (int i = 0; i < COLS; i++)
            codes[i] = (uint8_t)((i * 7 + i / 16) % 16);
        for (int b = 0; b < 2; b++) // the second row
            storage_pack_block(codes + b * 32, (uint8_t *)data + p.row_bytes + b * 16);
        put_half(data + p.scales + 4, 0.5f), put_half(data + p.scales + 6, 0.25f);
        put_half(data + p.minima + 4, -3), put_half(data + p.minima + 6, 2);
        storage_read_row(s, &p, data, 1, 0, COLS, out);
        for (int i = 0; i < COLS; i++) {
            const float scale = i < 32 ? 0.5f : 0.25f, least = i < 32 ? -3 : 2;
            assert_true(out[i] ==
                        (minima ? (float)codes[i] * scale + least : (float)(codes[i] - 8) * scale));
        }
        float part[10]; // a part of a row is the same numbers
        storage_read_row(s, &p, data, 1, 27, 10, part);
        assert_memory_equal(part, out + 27, sizeof part);
        assert_int_equal((uint8_t)data[p.row_bytes + 3] & 15, codes[3]);
        assert_int_equal((uint8_t)data[p.row_bytes + 3] >> 4, codes[19]);
    }
    const float scale = 0.125f;
    const int8_t signs[3] = {-127, 0, 100};
    assert_true(storage_layout(int8, 2, 3, &p));
    memcpy(data + 3, signs, 3);
    memcpy(data + p.scales + 4, &scale, 4);
    storage_read_row(int8, &p, data, 1, 0, 3, out);
    assert_true(out[0] == -127 * scale && out[1] == 0 && out[2] == 100 * scale);
}

static void refused(struct storage s, const struct storage_parts *p, const char *data,
                    const char *part) {
    struct err e = {0};
    assert_int_equal(storage_check(s, p, data, "w.name", &e), ERR_NUMERIC);
    assert_non_null(strstr(e.text, part));
    assert_non_null(strstr(e.text, "w.name"));
}

static void test_refusals(void **state) {
    (void)state;
    const struct storage s = int4(32, true);
    struct storage_parts p;
    char data[1024] = {0};
    struct err e = {0};
    assert_true(storage_layout(s, 2, 64, &p));
    assert_int_equal(storage_check(s, &p, data, "w.name", &e), 0); // zeros are scales, too
    static const float bad[] = {-1, INFINITY, NAN, -INFINITY};
    for (int i = 0; i < 4; i++) {
        put_half(data + p.scales + 6, bad[i]);
        refused(s, &p, data, "scale 3");
        put_half(data + p.scales + 6, 1);
        put_half(data + p.minima + 2, bad[i]);
        if (i > 0)
            refused(s, &p, data, "minimum 1");
        else
            assert_int_equal(storage_check(s, &p, data, "w.name", &e), 0);
        put_half(data + p.minima + 2, 0);
    }
    memset(data, 0, sizeof data);
    assert_true(storage_layout(int8, 2, 64, &p));
    data[100] = -128;
    refused(int8, &p, data, "element 100 has the code -128");
    data[100] = -127;
    assert_int_equal(storage_check(int8, &p, data, "w.name", &e), 0);
    const float nan = NAN;
    memcpy(data + p.scales + 4, &nan, 4);
    refused(int8, &p, data, "scale 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

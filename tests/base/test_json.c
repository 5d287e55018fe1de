// test_json.c - json.h: what is accepted, what is refused and where, hostile input, the writer's
// round trip.
//
// Hostile texts are in malloc'd buffers of the exact size, so AddressSanitizer reports one byte
// read too far. Every text is read twice, value by value and with json_skip. The two must agree.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/json.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Reads one value of any kind through the public calls. The reader limits the depth.
static void read_any(struct json_reader *r) {
    const char *s;
    size_t n;
    double x;
    bool b;
    switch (json_peek(r)) {
    case JSON_NULL:
        json_read_null(r);
        break;
    case JSON_BOOL:
        json_read_bool(r, &b);
        break;
    case JSON_NUMBER:
        json_read_double(r, &x);
        break;
    case JSON_STRING:
        json_read_string(r, &s, &n);
        assert_int_equal(s[n], 0);
        break;
    case JSON_ARRAY:
        json_enter_array(r);
        while (json_next_element(r))
            read_any(r);
        break;
    case JSON_OBJECT:
        json_enter_object(r);
        while (json_next_key(r, &s))
            read_any(r);
        break;
    case JSON_INVALID:
        break;
    }
}

// Reads the text both ways. Returns 0 or the error.
static int check_text(const char *text, size_t bytes, struct err *e) {
    char *exact = malloc(bytes ? bytes : 1);
    assert_non_null(exact);
    memcpy(exact, text, bytes);
    struct region strings = {0};
    struct json_reader r;
    err_clear(e);
    json_reader_init(&r, "t.json", exact, bytes, &strings, e);
    read_any(&r);
    int rc = json_finish(&r);
    assert_int_equal(rc, e->code);
    assert_int_equal(json_finish(&r), rc); // the first error stays
    assert_true(strings.bytes <= bytes * 17 + 32);

    struct json_reader skipper;
    struct err other = {0};
    json_reader_init(&skipper, "t.json", exact, bytes, NULL, &other);
    json_skip(&skipper);
    if ((json_finish(&skipper) == 0) != (rc == 0))
        fail_msg("read says '%s', skip says '%s' of %.*s", e->text, other.text, (int)bytes, text);
    region_free(&strings);
    free(exact);
    return rc;
}

static void test_accepted(void **state) {
    (void)state;
    static const char *const good[] = {
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1",
        "-1.5e+3",
        "1E-2",
        "0.0",
        "123456789012345678901",
        "\"\"",
        "\" \"",
        "\"a\\b\"",
        "\"\\u00e9\\n\\/\"",
        "\"\\ud83d\\ude00\"",
        "\"\xF0\x9F\x98\x80\"",
        "\"\xC2\x80\xE0\xA0\x80\xEF\xBF\xBF\xF4\x8F\xBF\xBF\"",
        "\"\x7F\"",
        "[]",
        "[ ]",
        "{}",
        "{ }",
        "[1]",
        " [ 1 , 2 ] ",
        "{\"a\":1}",
        "\t\r\n{ \"a\" : [ { } , null ] } \n",
        "[[[[]]]]",
        "{\"a\":1,\"a\":2}",
        "{\"\":0}",
        "1e308",
        "1e-999",
        "\"\\u0000\"",
    };
    struct err e;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (check_text(good[i], strlen(good[i]), &e) != 0)
            fail_msg("refused %s: %s", good[i], e.text);
}

static void test_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        " ",
        "nul",
        "nulll",
        "True",
        "NaN",
        "Infinity",
        "-Infinity",
        "-",
        "+1",
        "01",
        "-01",
        "00",
        "1.",
        ".5",
        "1.e3",
        "1e",
        "1e+",
        "0x10",
        "1_0",
        "- 1",
        "1 2",
        "\"",
        "\"a",
        "\"\\",
        "\"\\\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\u\"",
        "'a'",
        "a",
        "\"\n\"",
        "\"\t\"",
        "\"\x01\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800x\"",
        "\"\\ud800\\u0041\"",
        "\"\\ud800\\ud800\"",
        "\"\\udc00\\ud800\"",
        "\"\\ud83d\\ude\"",
        "\"\x80\"",
        "\"\xC0\x80\"",
        "\"\xC1\xBF\"",
        "\"\xC3\"",
        "\"\xE0\x9F\xBF\"",
        "\"\xED\xA0\x80\"",
        "\"\xF0\x8F\xBF\xBF\"",
        "\"\xF4\x90\x80\x80\"",
        "\"\xF5\x80\x80\x80\"",
        "\"\xFF\"",
        "\"\xE2\x82\"",
        "[",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,]",
        "[,1]",
        "[1,,2]",
        "[1 2]",
        "[1}",
        "[1]]",
        "[\"a\":1]",
        "{",
        "}",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\" 1}",
        "{a:1}",
        "{1:1}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":1]",
        "{null:1}",
        "{\"a\"::1}",
        "[1]//c",
        "/* c */1",
        "# c\n1",
        "\xEF\xBB\xBF{}",
        "[1]x",
        "\xC2\xA0[]",
        "[\x0B]",
        "{\"a\\u0000\":1",
        "tru",
        "fals",
        "t",
        "f",
        "n",
        "[true,fals]",
    };
    struct err e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int rc = check_text(bad[i], strlen(bad[i]), &e);
        if (rc != ERR_FORMAT)
            fail_msg("%s: code %d, %s", bad[i], rc, e.text);
        assert_non_null(strstr(e.text, "t.json: line "));
    }
    assert_int_equal(check_text("1\0", 2, &e), ERR_FORMAT);
    assert_int_equal(check_text("\"a\0b\"", 5, &e), ERR_FORMAT);
}

static void test_position(void **state) {
    (void)state;
    struct err e;
    const char *text = "{\n  \"k\xC3\xA9\": [1,\n  x]}";
    assert_int_equal(check_text(text, strlen(text), &e), ERR_FORMAT);
    assert_string_equal(e.text, "t.json: line 3, column 3 (byte 17): expected a value, found 'x'");
    text = "{\"k\xC3\xA9\" 1}";
    assert_int_equal(check_text(text, strlen(text), &e), ERR_FORMAT);
    assert_string_equal(e.text,
                        "t.json: line 1, column 7 (byte 7): expected ':' after a key, found '1'");
}

static void test_values(void **state) {
    (void)state;
    const char *text =
        "{\"name\": \"a\\u00e9\\\"\\ud83d\\ude00\", \"list\": [1, 2.5, true, null], "
        "\"skip\": {\"deep\": [[{}], \"x\"]}, \"big\": 9223372036854775807, \"nul\": "
        "\"a\\u0000b\"}";
    struct region strings = {0};
    struct json_reader r;
    struct err e = {0};
    json_reader_init(&r, "t", text, strlen(text), &strings, &e);
    const char *key, *s;
    size_t n;
    int64_t i;
    double x;
    bool b;
    assert_int_equal(json_peek(&r), JSON_OBJECT);
    assert_int_equal(json_enter_object(&r), 0);
    assert_true(json_next_key(&r, &key));
    assert_string_equal(key, "name");
    assert_int_equal(json_read_string(&r, &s, NULL), 0);
    assert_string_equal(s, "a\xC3\xA9\"\xF0\x9F\x98\x80");
    assert_true(json_next_key(&r, &key));
    assert_int_equal(json_enter_array(&r), 0);
    assert_true(json_next_element(&r));
    assert_int_equal(json_read_i64(&r, &i), 0);
    assert_int_equal(i, 1);
    assert_true(json_next_element(&r));
    assert_int_equal(json_read_double(&r, &x), 0);
    assert_true(x == 2.5);
    assert_true(json_next_element(&r));
    assert_int_equal(json_read_bool(&r, &b), 0);
    assert_true(b);
    assert_true(json_next_element(&r));
    assert_int_equal(json_read_null(&r), 0);
    assert_false(json_next_element(&r));
    assert_true(json_next_key(&r, &key));
    assert_string_equal(key, "skip");
    size_t before = strings.bytes;
    assert_int_equal(json_skip(&r), 0);
    assert_int_equal(strings.bytes, before); // skipping keeps nothing
    assert_true(json_next_key(&r, &key));
    assert_int_equal(json_read_i64(&r, &i), 0);
    assert_true(i == INT64_MAX);
    assert_true(json_next_key(&r, &key));
    assert_int_equal(json_read_string(&r, &s, &n), 0);
    assert_int_equal(n, 3);
    assert_memory_equal(s, "a\0b", 4);
    assert_false(json_next_key(&r, &key));
    assert_int_equal(json_finish(&r), 0);
    region_free(&strings);
}

static void test_i64(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int rc;
        int64_t value;
    } cases[] = {
        {"0", 0, 0},
        {"-0", 0, 0},
        {"-0.0e5", 0, 0},
        {"1.0", 0, 1},
        {"1e3", 0, 1000},
        {"1.25e2", 0, 125},
        {"12500e-2", 0, 125},
        {"100e-2", 0, 1},
        {"0e999999999999", 0, 0},
        {"9223372036854775807", 0, INT64_MAX},
        {"-9223372036854775808", 0, INT64_MIN},
        {"9007199254740993", 0, 9007199254740993},
        {"922337203685477580.7e1", 0, INT64_MAX},
        {"9223372036854775808", ERR_FORMAT, 0},
        {"-9223372036854775809", ERR_FORMAT, 0},
        {"1e19", ERR_FORMAT, 0},
        {"1e99999999999999999999", ERR_FORMAT, 0},
        {"1e-99999999999999999999", ERR_FORMAT, 0},
        {"1.5", ERR_FORMAT, 0},
        {"125e-2", ERR_FORMAT, 0},
        {"\"1\"", ERR_FORMAT, 0},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct json_reader r;
        struct err e = {0};
        int64_t x = 77;
        json_reader_init(&r, "t", cases[k].text, strlen(cases[k].text), NULL, &e);
        if (json_read_i64(&r, &x) != cases[k].rc)
            fail_msg("%s: %s", cases[k].text, e.text);
        assert_true(x == cases[k].value);
    }
    // A number out of range is an error only when it is read. json_skip checks only the grammar.
    static const char *const huge[] = {"1e999", "-1e999"};
    for (size_t k = 0; k < 2; k++) {
        struct json_reader r;
        double x = 77;
        json_reader_init(&r, "t", huge[k], strlen(huge[k]), NULL, NULL);
        assert_int_equal(json_read_double(&r, &x), ERR_FORMAT);
        assert_true(x == 0);
        json_reader_init(&r, "t", huge[k], strlen(huge[k]), NULL, NULL);
        assert_int_equal(json_skip(&r), 0);
    }
    // A number of 512 characters is accepted, one of 513 is not.
    char wide[514];
    memset(wide, '0', sizeof wide);
    wide[0] = '1';
    wide[1] = '.';
    struct json_reader r;
    struct err e = {0};
    int64_t i;
    double x;
    json_reader_init(&r, "t", wide, 512, NULL, &e);
    assert_int_equal(json_read_i64(&r, &i), 0);
    assert_int_equal(i, 1);
    json_reader_init(&r, "t", wide, 513, NULL, &e);
    assert_int_equal(json_read_double(&r, &x), ERR_FORMAT);
}

static void test_first_error_stays(void **state) {
    (void)state;
    struct json_reader r;
    struct err e = {0};
    struct region strings = {0};
    const char *text = "[1, x, \"s\"]", *s = NULL;
    json_reader_init(&r, "t", text, strlen(text), &strings, &e);
    json_enter_array(&r);
    int rounds = 0;
    int64_t i = 5;
    while (json_next_element(&r)) {
        json_read_i64(&r, &i);
        rounds++;
    }
    assert_int_equal(rounds, 1);
    char first[ERR_TEXT_BYTES];
    strcpy(first, e.text);
    double x = 1;
    bool b = true;
    assert_int_equal(json_read_string(&r, &s, NULL), ERR_FORMAT);
    assert_string_equal(s, ""); // outputs are harmless, so one check at the end is enough
    assert_int_equal(json_read_double(&r, &x), ERR_FORMAT);
    assert_true(x == 0);
    assert_int_equal(json_read_bool(&r, &b), ERR_FORMAT);
    assert_false(b);
    assert_int_equal(json_skip(&r), ERR_FORMAT);
    assert_false(json_next_key(&r, &s));
    assert_int_equal(json_peek(&r), JSON_INVALID);
    assert_int_equal(json_fail(&r, ERR_MISMATCH, "later"), ERR_FORMAT);
    assert_string_equal(e.text, first);
    // The position is put in front of a caller's sentence. A NULL struct err is allowed.
    json_reader_init(&r, "t", text, strlen(text), &strings, &e);
    json_enter_array(&r);
    assert_int_equal(json_fail(&r, ERR_MISMATCH, "%d of %s", 2, "these"), ERR_MISMATCH);
    assert_string_equal(e.text, "t: line 1, column 2 (byte 1): 2 of these");
    json_reader_init(&r, "t", text, strlen(text), &strings, NULL);
    assert_int_equal(json_skip(&r), ERR_FORMAT);
    region_free(&strings);
}

static void test_misuse(void **state) {
    (void)state;
    struct json_reader r;
    struct err e = {0};
    struct region strings = {0};
    const char *key;
    json_reader_init(&r, "t", "[1]", 3, &strings, &e);
    assert_false(json_next_element(&r)); // not inside anything yet
    assert_int_equal(r.rc, ERR_INTERNAL);
    json_reader_init(&r, "t", "[1]", 3, &strings, &e);
    json_enter_array(&r);
    assert_false(json_next_key(&r, &key));
    assert_int_equal(r.rc, ERR_INTERNAL);
    json_reader_init(&r, "t", "[1,2]", 5, &strings, &e);
    json_enter_array(&r);
    assert_int_equal(json_finish(&r), ERR_INTERNAL);
    // An element that was not read cannot be stepped over.
    json_reader_init(&r, "t", "[1,2]", 5, &strings, &e);
    json_enter_array(&r);
    assert_true(json_next_element(&r));
    assert_false(json_next_element(&r));
    assert_int_equal(r.rc, ERR_FORMAT);
    json_reader_init(&r, "t", NULL, 0, &strings, &e);
    assert_int_equal(json_peek(&r), JSON_INVALID);
    region_free(&strings);
}

static void test_depth(void **state) {
    (void)state;
    enum { BOMB = 200000 };
    char *text = malloc(2 * BOMB + 1);
    struct err e;
    assert_non_null(text);
    for (int deep = 60; deep <= 70; deep++) {
        memset(text, '[', (size_t)deep);
        memset(text + deep, ']', (size_t)deep);
        assert_int_equal(check_text(text, 2 * (size_t)deep, &e), deep <= 64 ? 0 : ERR_FORMAT);
    }
    assert_non_null(strstr(e.text, "64 levels"));
    memset(text, '[', BOMB);
    memset(text + BOMB, ']', BOMB);
    assert_int_equal(check_text(text, 2 * BOMB, &e), ERR_FORMAT);
    assert_int_equal(check_text(text, BOMB, &e), ERR_FORMAT);
    for (int i = 0; i < BOMB; i += 5)
        memcpy(text + i, "{\"\": ", 5);
    assert_int_equal(check_text(text, BOMB, &e), ERR_FORMAT);
    // 64 levels, left and entered again many times. The bits of a level must be set anew each time.
    size_t n = 0;
    for (int i = 0; i < 63; i++)
        text[n++] = i % 2 ? '[' : '{', n += i % 2 ? 0 : (size_t)sprintf(text + n, "\"k\":");
    n += (size_t)sprintf(text + n, "{\"a\":[1,{},[],{\"b\":[]}],\"c\":[[],[2]],\"d\":{}}");
    for (int i = 62; i >= 0; i--)
        text[n++] = i % 2 ? ']' : '}';
    text[n] = '\0';
    assert_int_equal(check_text(text, n, &e), ERR_FORMAT); // 63 + "{" + "[" is one too deep
    free(text);
}

static void test_long_string(void **state) {
    (void)state;
    enum { LONG = 3 << 20 };
    char *text = malloc(LONG + 2);
    assert_non_null(text);
    memset(text, 'a', LONG + 2);
    text[0] = text[LONG + 1] = '"';
    struct err e;
    assert_int_equal(check_text(text, LONG + 2, &e), 0);
    assert_int_equal(check_text(text, LONG + 1, &e), ERR_FORMAT);
    memcpy(text + LONG - 5, "\\u00e9", 6);
    assert_int_equal(check_text(text, LONG + 2, &e), 0);
    free(text);
}

static const char sample[] =
    "{\"name\": \"llama \\u00e9\\ud83d\\ude00\\n\\\\\", \"utf8\": "
    "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\",\n"
    "  \"shape\": [768, -3.25e2, 0.5, 1E-7, 0], \"flags\": {\"tied\": true, \"bias\": false, "
    "\"none\": null},\n"
    "  \"empty\": [[], {}, \"\"], \"nested\": {\"a\": {\"b\": [{\"c\": [[1]]}]}}}\r\n";

static void test_every_prefix(void **state) {
    (void)state;
    struct err e;
    size_t n = sizeof sample - 1;
    assert_int_equal(check_text(sample, n, &e), 0);
    for (size_t i = 0; i < n - 2; i++) // the last two bytes are a line break
        assert_int_equal(check_text(sample, i, &e), ERR_FORMAT);
}

static void test_every_bit_flip(void **state) {
    (void)state;
    struct err e;
    char text[sizeof sample];
    for (size_t i = 0; i < sizeof sample - 1; i++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(text, sample, sizeof text);
            text[i] = (char)(text[i] ^ 1 << bit);
            check_text(text, sizeof sample - 1, &e);
        }
    }
    // Every byte replaced by each character that has a meaning in JSON.
    static const char tokens[] = "{}[]:,\"\\u0e-.tn \x80\xED\xF4";
    for (size_t i = 0; i < sizeof sample - 1; i++) {
        for (size_t k = 0; k < sizeof tokens; k++) { // including the NUL
            memcpy(text, sample, sizeof text);
            text[i] = tokens[k];
            check_text(text, sizeof sample - 1, &e);
        }
    }
}

static void test_random_tokens(void **state) {
    (void)state;
    static const char *const pieces[] = {"{",           "}",  "[",      "]",       ":",    ",",
                                         "\"a\"",       "1",  "-0.5e1", "true",    "null", " ",
                                         "\"\\u00e9\"", "\"", "0",      "{\"k\":", "[1,"};
    struct err e;
    uint64_t draw = 0;
    int accepted = 0;
    for (int round = 0; round < 60000; round++) {
        char text[256];
        size_t n = 0, count = 1 + rng_below(1, 2, draw++, 12);
        for (size_t i = 0; i < count; i++) {
            const char *p = pieces[rng_below(1, 2, draw++, sizeof pieces / sizeof *pieces)];
            memcpy(text + n, p, strlen(p));
            n += strlen(p);
        }
        accepted += check_text(text, n, &e) == 0;
    }
    assert_true(accepted > 100);
}

// ---- writing ----

static void write_sample(struct json_writer *w) {
    json_put_object_begin(w);
    json_member_string(w, "name", "a\"b\\c\n\x01");
    json_member_double(w, "pi", 3.25);
    json_member_i64(w, "n", INT64_MIN);
    json_member_bool(w, "yes", true);
    json_put_key(w, "list");
    json_put_array_begin(w);
    json_put_i64(w, 1);
    json_put_null(w);
    json_put_double(w, NAN);
    json_put_array_begin(w);
    json_put_array_end(w);
    json_put_object_begin(w);
    json_put_object_end(w);
    json_put_string_n(w, "x\0y", 3);
    json_put_string(w, NULL);
    json_put_array_end(w);
    json_put_object_end(w);
}

static void test_write(void **state) {
    (void)state;
    struct err e = {0};
    struct json_writer w;
    json_writer_to_buffer(&w, 0);
    write_sample(&w);
    assert_int_equal(json_writer_finish(&w, &e), 0);
    assert_string_equal(
        w.buffer, "{\"name\":\"a\\\"b\\\\c\\n\\u0001\",\"pi\":3.25,\"n\":-9223372036854775808,"
                  "\"yes\":true,\"list\":[1,null,null,[],{},\"x\\u0000y\",null]}");
    assert_int_equal(w.bytes, strlen(w.buffer));
    assert_int_equal(check_text(w.buffer, w.bytes, &e), 0);
    free(w.buffer);

    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    assert_non_null(f);
    json_writer_to_file(&w, f, 2);
    write_sample(&w);
    assert_int_equal(json_writer_finish(&w, &e), 0);
    fclose(f);
    assert_string_equal(
        text, "{\n  \"name\": \"a\\\"b\\\\c\\n\\u0001\",\n  \"pi\": 3.25,\n"
              "  \"n\": -9223372036854775808,\n  \"yes\": true,\n  \"list\": [\n    1,\n"
              "    null,\n    null,\n    [],\n    {},\n    \"x\\u0000y\",\n    null\n  ]\n}");
    free(text);
}

static void test_write_utf8(void **state) {
    (void)state;
    struct err e = {0};
    struct json_writer w;
    json_writer_to_buffer(&w, 0);
    json_put_string(&w, "\xC3\xA9 \xFF\xC3 \xE2\x82");
    assert_int_equal(json_writer_finish(&w, &e), 0);
    assert_string_equal(w.buffer, "\"\xC3\xA9 \xEF\xBF\xBD\xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBD\"");
    assert_int_equal(check_text(w.buffer, w.bytes, &e), 0);
    free(w.buffer);
}

static void test_write_failures(void **state) {
    (void)state;
    struct err e = {0};
    struct json_writer w;
    json_writer_to_buffer(&w, 0);
    assert_int_equal(json_writer_finish(&w, &e), 0); // no value gives an empty string
    assert_string_equal(w.buffer, "");
    free(w.buffer);
    json_writer_to_buffer(&w, 0);
    json_put_object_begin(&w);
    assert_int_equal(json_writer_finish(&w, &e), ERR_INTERNAL);
    free(w.buffer);
    json_writer_to_buffer(&w, 0);
    json_put_array_end(&w);
    assert_int_equal(json_writer_finish(&w, &e), ERR_INTERNAL);
    free(w.buffer);
    json_writer_to_buffer(&w, 1);
    for (int i = 0; i < 100; i++)
        json_put_array_begin(&w);
    for (int i = 0; i < 100; i++)
        json_put_array_end(&w);
    assert_int_equal(json_writer_finish(&w, &e), ERR_INTERNAL);
    free(w.buffer);
    FILE *full = fopen("/dev/full", "w");
    if (full) {
        json_writer_to_file(&w, full, 0);
        write_sample(&w);
        assert_int_equal(json_writer_finish(&w, &e), ERR_IO);
        fclose(full);
    }
}

static void test_double_round_trip(void **state) {
    (void)state;
    static const double special[] = {0,
                                     -0.0,
                                     0.1,
                                     1e22,
                                     1e23,
                                     5e-324,
                                     1.0 / 3,
                                     1e-7,
                                     1e308,
                                     2.2250738585072014e-308,
                                     123456789.125,
                                     4503599627370497.5,
                                     -1.7976931348623157e308,
                                     100};
    struct json_writer w;
    struct err e = {0};
    uint64_t draw = 0;
    for (int i = 0; i < 20000; i++) {
        double x;
        if (i < (int)(sizeof special / sizeof *special)) {
            x = special[i];
        } else {
            uint64_t bits = rng_u64(3, 4, draw++);
            memcpy(&x, &bits, sizeof x);
            if (!isfinite(x))
                continue;
        }
        json_writer_to_buffer(&w, 0);
        json_put_double(&w, x);
        assert_int_equal(json_writer_finish(&w, &e), 0);
        struct json_reader r;
        double y = 77;
        json_reader_init(&r, "t", w.buffer, w.bytes, NULL, &e);
        assert_int_equal(json_read_double(&r, &y), 0);
        assert_int_equal(json_finish(&r), 0);
        assert_memory_equal(&x, &y, sizeof x);
        free(w.buffer);
    }
    json_writer_to_buffer(&w, 0);
    json_put_array_begin(&w);
    json_put_double(&w, 0.1);
    json_put_double(&w, 0.3);
    json_put_double(&w, 3);
    json_put_array_end(&w);
    assert_string_equal(w.buffer, "[0.1,0.3,3]");
    free(w.buffer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_position),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_i64),
        cmocka_unit_test(test_first_error_stays),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_long_string),
        cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_every_bit_flip),
        cmocka_unit_test(test_random_tokens),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_write_utf8),
        cmocka_unit_test(test_write_failures),
        cmocka_unit_test(test_double_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_safetensors.c - one safetensors file: valid files are read correctly, invalid ones are
// refused with a reason, damaged ones never cause a crash.
#include "scratch.h"

#include "base/clock.h"
#include "base/hash.h"
#include "model/safetensors.h"

#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

// Makes a file from its header text and a number of data bytes (0, 1, 2, ...).
static const char *put_file(const struct scratch *d, const char *header, size_t data_bytes) {
    size_t n = strlen(header);
    unsigned char *bytes = malloc(8 + n + data_bytes);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(n >> 8 * i);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + n + i] = (unsigned char)i;
    const char *path = scratch_put(d, "t.safetensors", bytes, 8 + n + data_bytes);
    free(bytes);
    return path;
}

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_good(void **state) {
    static const struct {
        const char *header;
        size_t data_bytes, count;
    } cases[] = {
        {"{}", 0, 0},
        {"  {} ", 0, 0},
        {"{\"__metadata__\":{}}", 0, 0},
        {"{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\\u0000\"}," T("a", "F32", "[2]",
                                                                      "[0,8]") "}   ",
         8, 1},
        {"{" T("a", "F32", "[]", "[0,4]") "}", 4, 1}, // rank 0
        // An empty tensor in front, one at the end, and tensors that are not in order.
        {"{" T("a", "F32", "[0]", "[0,0]") "," T("b", "U8", "[3]", "[0,3]") "}", 3, 2},
        {"{" T("b", "U8", "[3]", "[0,3]") "," T("a", "F32", "[5,0]", "[3,3]") "}", 3, 2},
        {"{" T("b", "U8", "[1]", "[2,3]") "," T("a", "F16", "[1]", "[0,2]") "}", 3, 2},
        {"{" T("m", "BOOL", "[4]", "[0,4]") "," T("x", "F4", "[4]",
                                                  "[4,6]") "," T("c", "C64", "[1]", "[6,14]") "}",
         14, 3},
        {"{" T("a", "I64", "[1,1,1,1,1,1,1,1]", "[0,8]") "}", 8, 1},
        {"{" T("\\u00e9\xc3\xa9/\\\"", "I8", "[2]", "[0,2]") "}", 2, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct safetensors *st;
        struct err e = {0};
        int rc = safetensors_open(&st, put_file(*state, cases[i].header, cases[i].data_bytes), &e);
        if (rc != 0)
            fail_msg("refused: %s\n%s", cases[i].header, e.text);
        assert_int_equal(safetensors_count(st), cases[i].count);
        assert_null(safetensors_at(st, cases[i].count));
        assert_null(safetensors_find(st, "not there"));
        uint64_t at = 0;
        for (size_t t = 0; t < cases[i].count; t++) {
            const struct safetensors_entry *x = safetensors_at(st, t);
            assert_int_equal(x->begin, at);
            at += x->bytes;
            assert_ptr_equal(safetensors_find(st, x->name), x);
        }
        assert_int_equal(at, cases[i].data_bytes);
        safetensors_close(st);
    }
    safetensors_close(NULL);
}

static void test_bad_headers(void **state) {
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *parts;
    } cases[] = {
        {"", 0, "header length is 0"},
        {"{", 0, "header length is 1"},
        {"[]", 0, "line 1"},
        {"12", 0, "line 1"},
        {"xx", 0, "line 1"},
        {"\"a\"", 0, "line 1"},
        {"null", 0, "line 1"},
        {"{}x", 0, "line 1"},
        {"{},", 0, "line 1"},
        {"{}{}", 0, "line 1"},
        {"{\xff:1}", 0, "line 1"},
        {"{\"\xff\":{}}", 0, "UTF-8"},
        {"{\"\xc0\x80\":{}}", 0, "UTF-8"},
        {"{\"\\ud800\":{}}", 0, "surrogate"},
        {"\xef\xbb\xbf{}", 0, "line 1"},
        {"{" T("a", "F32", "[1]", "[0,4]") ",}", 4, "line 1"},
        {"{/**/}", 0, "line 1"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8, "\"a\"|twice"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[0,4]") "}", 4, "\"a\"|twice"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("\\u0061", "F32", "[1]", "[4,8]") "}", 8,
         "\"a\"|twice"},
        {"{\"a\":[]}", 0, "\"a\"|object"},
        {"{\"a\":{}}", 0, "\"a\"|dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"data_offsets\":[0,4]}}",
         4, "data_offsets|twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "dtype|twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "shape|twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4,
         "\"more\""},
        {"{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "string"},
        {"{" T("a", "F33", "[1]", "[0,4]") "}", 4, "\"F33\""},
        {"{" T("a", "f32", "[1]", "[0,4]") "}", 4, "\"f32\""},
        {"{" T("a", "", "[1]", "[0,4]") "}", 4, "type"},
        {"{" T("a", "F32", "1", "[0,4]") "}", 4, "array"},
        {"{" T("a", "F32", "{}", "[0,4]") "}", 4, "array"},
        {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "whole numbers"},
        {"{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, "whole numbers"},
        {"{" T("a", "F32", "[1.5]", "[0,4]") "}", 4, "whole numbers"},
        {"{" T("a", "F32", "[1e0]", "[0,4]") "}", 4, "whole numbers"},
        {"{" T("a", "F32", "[1e999]", "[0,4]") "}", 4, "whole numbers"},
        {"{" T("a", "F32", "[0x1]", "[0,4]") "}", 4, "line 1"},
        {"{" T("a", "F32", "[01]", "[0,4]") "}", 4, "line 1"},
        {"{" T("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "number"},
        {"{" T("a", "F32", "[null]", "[0,4]") "}", 4, "number"},
        {"{" T("a", "F32", "[true]", "[0,4]") "}", 4, "number"},
        {"{" T("a", "F32", "[9223372036854775808]", "[0,4]") "}", 4, "line 1"},
        {"{" T("a", "F32", "[18446744073709551616]", "[0,4]") "}", 4, "line 1"},
        {"{" T("a", "F32", "[4294967296,4294967296]", "[0,4]") "}", 4, "2^63"},
        {"{" T("a", "F32", "[4294967296,4294967296,0]", "[0,0]") "}", 0, "2^63"},
        // Multiplied by 32 bits this would wrap to 32.
        {"{" T("a", "F32", "[4611686018427387905]", "[0,4]") "}", 4, "2^64"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "dimensions"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "dimensions"},
        {"{" T("a", "F32", "[1]", "[]") "}", 4, "data_offsets"},
        {"{" T("a", "F32", "[1]", "[4]") "}", 4, "data_offsets"},
        {"{" T("a", "F32", "[1]", "[0,4,4]") "}", 4, "data_offsets"},
        {"{" T("a", "F32", "[1]", "4") "}", 4, "array"},
        {"{" T("a", "F32", "[1]", "[-4,0]") "}", 4, "whole numbers"},
        {"{" T("a", "F32", "[1]", "[-0,4]") "}", 4, "whole numbers"},
        {"{" T("a", "F32", "[1]", "[4,0]") "}", 4, "data_offsets"},
        {"{" T("a", "F32", "[2]", "[0,8]") "}", 4, "data_offsets|4 bytes"},
        {"{" T("a", "F32", "[1]", "[18446744073709551612,18446744073709551616]") "}", 4, "line 1"},
        {"{" T("a", "F32", "[1]", "[9223372036854775804,9223372036854775807]") "}", 4,
         "data_offsets"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[4,12]") "}", 12, "overlap"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[0,8]") "}", 8, "overlap"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[8,12]") "}", 12,
         "\"b\"|hole"},
        {"{" T("a", "F32", "[1]", "[4,8]") "}", 8, "\"a\"|hole"},
        {"{" T("a", "F32", "[1]", "[0,4]") "}", 5, "end at byte 4"},
        {"{" T("a", "F32", "[1]", "[0,4]") "}", 3, "3 bytes"},
        {"{}", 1, "end at byte 0"},
        {"{" T("a", "F32", "[1]", "[0,3]") "}", 3, "4 bytes"},
        {"{" T("a", "F32", "[1]", "[0,5]") "}", 5, "4 bytes"},
        // A type that haggle does not read is also checked.
        {"{" T("a", "BOOL", "[3]", "[0,4]") "}", 4, "3 bytes"},
        {"{" T("a", "F4", "[3]", "[0,2]") "}", 2, "whole bytes"},
        {"{" T("a", "F6_E2M3", "[5]", "[0,4]") "}", 4, "whole bytes"},
        {"{\"__metadata__\":[]}", 0, "object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "strings only"},
        {"{\"__metadata__\":{\"a\":{}}}", 0, "strings only"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice"},
        {"{" T("__metadata__", "F32", "[1]", "[0,4]") "}", 4, "strings only"},
        {"{" T("", "F32", "[1]", "[0,4]") "}", 4, "name has 0 bytes"},
        {"{" T("a\\u0000b", "F32", "[1]", "[0,4]") "}", 4, "line 1"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[[[[[[[[1]]]]]]]],\"data_offsets\":[0,4]}}", 4,
         "number"},
        {"{" T("evil\\u001b[2J", "F32", "[1]", "[0,5]") "}", 5, "evil?[2J"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct safetensors *st;
        struct err e = {0};
        const char *path = put_file(*state, cases[i].header, cases[i].data_bytes);
        int rc = safetensors_open(&st, path, &e);
        assert_failed(rc, &e, cases[i].parts, cases[i].header);
        assert_failed(rc, &e, "t.safetensors", cases[i].header);
        assert_int_equal(rc, ERR_FORMAT);
        assert_null(st);
        assert_int_equal(safetensors_open(&st, path, NULL), rc);
    }
    print_message("%zu bad headers refused\n", sizeof cases / sizeof cases[0]);
}

static void test_bad_files(void **state) {
    struct safetensors *st;
    struct err e = {0};
    static const uint64_t lengths[] = {
        0, 1, 100000001, UINT64_C(1) << 63, UINT64_MAX, UINT64_MAX - 7, 1000};
    unsigned char bytes[64] = {0};
    for (size_t n = 0; n < 8; n++)
        assert_failed(safetensors_open(&st, scratch_put(*state, "t.safetensors", bytes, n), &e), &e,
                      "t.safetensors|bytes", "shorter than the length");
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memcpy(bytes, &lengths[i], 8);
        assert_failed(
            safetensors_open(&st, scratch_put(*state, "t.safetensors", bytes, sizeof bytes), &e),
            &e, "t.safetensors|byte 0|header length", "length");
    }
    // A name longer than 4 KiB, nesting deeper than 64, a header that is a single long string.
    char *long_name = malloc(20000);
    assert_non_null(long_name);
    int n = snprintf(long_name, 20000,
                     "{\"%05000d\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 7);
    assert_true(n > 5000);
    assert_failed(safetensors_open(&st, put_file(*state, long_name, 4), &e), &e, "5000 bytes|4096",
                  "long name");
    strcpy(long_name, "{\"a\":");
    memset(long_name + 5, '[', 10000);
    long_name[10005] = '\0';
    assert_failed(safetensors_open(&st, put_file(*state, long_name, 0), &e), &e, "t.safetensors",
                  "deep");
    strcpy(long_name, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":");
    size_t used = strlen(long_name);
    memset(long_name + used, '[', 5000);
    long_name[used + 5000] = '\0';
    assert_failed(safetensors_open(&st, put_file(*state, long_name, 4), &e), &e, "t.safetensors",
                  "deep field");
    free(long_name);

    assert_int_equal(safetensors_open(&st, scratch_path(*state, "missing"), &e), ERR_IO);
    assert_failed(ERR_IO, &e, "missing", "missing");
    assert_int_equal(safetensors_open(&st, ((struct scratch *)*state)->dir, &e), ERR_FORMAT);
    assert_int_equal(mkfifo(scratch_path(*state, "pipe"), 0666), 0);
    assert_int_equal(safetensors_open(&st, scratch_path(*state, "pipe"), &e), ERR_FORMAT);
    static const char *const pickles[] = {"a.bin", "a.pt", "a.pth", "a.pkl", "a.ckpt", "a.PT"};
    for (size_t i = 0; i < sizeof pickles / sizeof pickles[0]; i++)
        assert_failed(safetensors_open(&st, scratch_text(*state, pickles[i], "{}"), &e), &e,
                      "pickle|safetensors", pickles[i]);
}

// ---- damage ----

static const char small_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"}," T("model.a", "F32", "[2,3]", "[0,24]") "," T(
        "b", "BF16", "[2]", "[24,28]") "," T("c\\u00e9", "I64", "[]",
                                             "[28,36]") "," T("e", "U8", "[0,7]", "[36,36]") "}  ";

// Reads all tensors of an accepted file.
static void read_all(struct safetensors *st) {
    char out[256];
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_entry *t = safetensors_at(st, i);
        struct err e = {0};
        assert_true(t->bytes <= 64);
        if (t->dtype != DTYPE_COUNT)
            assert_worked(safetensors_read(st, t, 0, t->elements, out, t->dtype, &e), &e);
    }
}

static void test_prefixes(void **state) {
    const char *path = put_file(*state, small_header, 36);
    char *bytes;
    size_t n;
    struct err e = {0};
    assert_worked(file_read_all(path, 4096, &bytes, &n, &e), &e);
    for (size_t i = 0; i < n; i++) {
        struct safetensors *st;
        e.text[0] = '\0';
        int rc = safetensors_open(&st, scratch_put(*state, "p.safetensors", bytes, i), &e);
        if (rc >= 0 || e.text[0] == '\0')
            fail_msg("a prefix of %zu of %zu bytes was accepted", i, n);
    }
    free(bytes);
}

static void test_bit_flips(void **state) {
    const char *path = put_file(*state, small_header, 36);
    char *bytes;
    size_t n, accepted = 0, header = 8 + strlen(small_header);
    struct err e = {0};
    assert_worked(file_read_all(path, 4096, &bytes, &n, &e), &e);
    for (size_t bit = 0; bit < 8 * header; bit++) {
        struct safetensors *st;
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
        e.text[0] = '\0';
        int rc = safetensors_open(&st, scratch_put(*state, "f.safetensors", bytes, n), &e);
        assert_true(rc == 0 || e.text[0] != '\0');
        if (rc == 0) { // for example a letter of a name was changed
            accepted++;
            read_all(st);
            safetensors_close(st);
        }
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
    }
    print_message("%zu flips, %zu still legal\n", 8 * header, accepted);
    free(bytes);
}

// Replaces bytes and tokens at random. The header length stays correct, so that the JSON is
// reached.
static void test_mutations(void **state) {
    static const char *const tokens[] = {"[",
                                         "]",
                                         "{",
                                         "}",
                                         ",",
                                         ":",
                                         "\"",
                                         "0",
                                         "-1",
                                         "1e9",
                                         "9223372036854775807",
                                         "null",
                                         "true",
                                         "\\u0000",
                                         "F32",
                                         "\"a\"",
                                         "[[",
                                         "0,0",
                                         "\xff",
                                         " "};
    uint64_t x = 88172645463325252u; // xorshift64
    char text[1024];
    int accepted = 0;
    for (int round = 0; round < 4000; round++) {
        strcpy(text, small_header);
        for (int edit = 0; edit < 1 + round % 3; edit++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            size_t n = strlen(text), at = x % n, cut = (x >> 20) % 4;
            const char *token = tokens[(x >> 32) % (sizeof tokens / sizeof tokens[0])];
            if (at + cut > n || n + strlen(token) >= sizeof text - 8)
                continue;
            memmove(text + at + strlen(token), text + at + cut, n - at - cut + 1);
            memcpy(text + at, token, strlen(token));
        }
        struct safetensors *st;
        struct err e = {0};
        if (safetensors_open(&st, put_file(*state, text, 36), &e) == 0) {
            accepted++;
            read_all(st);
            safetensors_close(st);
        } else {
            assert_true(e.text[0] != '\0');
        }
    }
    print_message("4000 mutations, %d still legal\n", accepted);
}

// A header of one megabyte that is made to be slow: many small tensors, all out of order.
static void test_hostile_size(void **state) {
    enum { TENSORS = 16000 };
    char *text = malloc(TENSORS * 80 + 16);
    assert_non_null(text);
    size_t n = (size_t)sprintf(text, "{");
    for (int i = 0; i < TENSORS; i++)
        n += (size_t)sprintf(text + n,
                             "%s\"%x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                             i ? "," : "", i * 7, TENSORS - 1 - i, TENSORS - i);
    strcpy(text + n, "}");
    const char *path = put_file(*state, text, TENSORS);
    struct safetensors *st;
    struct err e = {0};
    clock_t start = clock();
    assert_worked(safetensors_open(&st, path, &e), &e);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    print_message("header of %zu bytes, %d tensors: %.1f ms\n", n, TENSORS, seconds * 1e3);
    assert_true(seconds < 1); // the goal is 100 ms; sanitizers and shared machines are slower
    assert_int_equal(safetensors_count(st), TENSORS);
    unsigned char value;
    const struct safetensors_entry *t = safetensors_find(st, "0");
    assert_non_null(t);
    assert_worked(safetensors_read(st, t, 0, 1, &value, DTYPE_U8, &e), &e);
    assert_int_equal(value, (TENSORS - 1) & 255);
    safetensors_close(st);
    free(text);
}

static void test_shrunk(void **state) {
    struct safetensors *st;
    struct err e = {0};
    unsigned char out[64];
    const char *path = put_file(*state, "{" T("a", "U8", "[64]", "[0,64]") "}", 64);
    assert_worked(safetensors_open(&st, path, &e), &e);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    assert_worked(safetensors_read(st, safetensors_at(st, 0), 0, 63, out, DTYPE_U8, &e), &e);
    assert_int_equal(safetensors_read(st, safetensors_at(st, 0), 0, 64, out, DTYPE_U8, &e), ERR_IO);
    safetensors_close(st);
}

// ---- round trips ----

enum { LONG = 70001 }; // more than one conversion buffer of any type

static float sample(int64_t i) {
    // Values that every floating-point type can represent exactly: seven bits of mantissa, small
    // exponents, both signs.
    return (float)((i % 255 - 127) * (i % 3 == 0 ? 1 : 0.125));
}

static void test_round_trip(void **state) {
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16};
    const char *path = scratch_path(*state, "model.safetensors");
    float *values = malloc(LONG * sizeof *values), *back = malloc(LONG * sizeof *back);
    double *wide = malloc(LONG * sizeof *wide);
    unsigned char *stored = malloc(LONG * 8);
    assert_true(values != NULL && back != NULL && wide != NULL && stored != NULL);
    for (int64_t i = 0; i < LONG; i++)
        values[i] = sample(i);
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        struct safetensors_writer *w;
        struct err e = {0};
        size_t bytes = LONG * dtype_bytes(types[k]);
        int32_t numbers[3] = {1, -2, 3};
        char hash[HASH_TEXT_BYTES];
        uint64_t file_bytes;
        assert_worked(safetensors_writer_open(&w, path, &e), &e);
        assert_worked(safetensors_writer_declare(w, "steps", DTYPE_I32, 1, (int64_t[]){3}, &e), &e);
        assert_worked(safetensors_writer_declare(w, "none", DTYPE_F32, 2, (int64_t[]){0, 4}, &e),
                      &e);
        assert_worked(
            safetensors_writer_declare(w, "x\"\n", types[k], 2, (int64_t[]){7, LONG / 7}, &e), &e);
        assert_worked(safetensors_writer_declare(w, "scalar", DTYPE_F32, 0, NULL, &e), &e);
        dtype_convert(stored, types[k], values, DTYPE_F32, LONG / 7 * 7);
        bytes = LONG / 7 * 7 * dtype_bytes(types[k]);
        assert_worked(safetensors_writer_put(w, numbers, sizeof numbers, &e), &e);
        assert_worked(safetensors_writer_put(w, stored, 1000, &e), &e); // in pieces
        assert_worked(safetensors_writer_put(w, stored + 1000, bytes - 1000, &e), &e);
        assert_worked(safetensors_writer_put(w, &values[5], 4, &e), &e);
        assert_worked(safetensors_writer_close(w, hash, &file_bytes, &e), &e);

        char *file, fingerprint[HASH_TEXT_BYTES];
        size_t file_size_bytes;
        assert_worked(file_read_all(path, 1 << 20, &file, &file_size_bytes, &e), &e);
        hash_of(file, file_size_bytes, fingerprint);
        assert_string_equal(hash, fingerprint);
        assert_int_equal(file_bytes, file_size_bytes);
        uint64_t header;
        memcpy(&header, file, 8);
        assert_int_equal(header % 8, 0); // data starts aligned
        assert_int_equal(file[8], '{');
        assert_non_null(strstr(file + 8, "\"format\":\"pt\""));
        free(file);

        struct safetensors *st;
        assert_worked(safetensors_open(&st, path, &e), &e);
        assert_int_equal(safetensors_count(st), 4);
        assert_string_equal(safetensors_at(st, 0)->name, "steps");
        const struct safetensors_entry *t = safetensors_find(st, "x\"\n");
        assert_non_null(t);
        assert_int_equal(t->dtype, types[k]);
        assert_string_equal(t->dtype_name, dtype_safetensors(types[k]));
        assert_int_equal(t->dims[1], LONG / 7);
        assert_worked(safetensors_read(st, t, 0, t->elements, back, DTYPE_F32, &e), &e);
        assert_memory_equal(back, values, (size_t)t->elements * sizeof *back);
        assert_worked(safetensors_read(st, t, 0, t->elements, wide, DTYPE_F64, &e), &e);
        for (int64_t i = 0; i < t->elements; i++)
            assert_true(wide[i] == (double)values[i]);
        assert_worked(safetensors_read(st, t, 12345, 17, back, DTYPE_F32, &e), &e);
        assert_memory_equal(back, values + 12345, 17 * sizeof *back);
        assert_worked(safetensors_read(st, t, t->elements, 0, back, DTYPE_F32, &e), &e);
        assert_failed(safetensors_read(st, t, t->elements, 1, back, DTYPE_F32, &e), &e, "has",
                      "past the end");
        assert_failed(safetensors_read(st, t, -1, 1, back, DTYPE_F32, &e), &e, "-1", "before");
        assert_failed(safetensors_read(st, t, 1, INT64_MAX, back, DTYPE_F32, &e), &e, "has",
                      "overflow");
        assert_int_equal(safetensors_read(st, t, 0, 1, back, DTYPE_I32, &e), ERR_UNSUPPORTED);
        int32_t got[3];
        t = safetensors_find(st, "steps");
        assert_worked(safetensors_read(st, t, 0, 3, got, DTYPE_I32, &e), &e);
        assert_memory_equal(got, numbers, sizeof got);
        assert_int_equal(safetensors_read(st, t, 0, 3, back, DTYPE_F32, &e), ERR_UNSUPPORTED);
        safetensors_close(st);
    }
    free(values);
    free(back);
    free(wide);
    free(stored);
}

static void test_unread_types(void **state) {
    struct safetensors *st;
    struct err e = {0};
    char out[8];
    assert_worked(
        safetensors_open(&st, put_file(*state, "{" T("m", "BOOL", "[4]", "[0,4]") "}", 4), &e), &e);
    const struct safetensors_entry *t = safetensors_find(st, "m");
    assert_int_equal(t->dtype, DTYPE_COUNT);
    assert_string_equal(t->dtype_name, "BOOL");
    assert_failed(safetensors_read(st, t, 0, 4, out, DTYPE_U8, &e), &e, "\"m\"|BOOL", "BOOL");
    safetensors_close(st);
}

// ---- misuse of the writer ----

static void test_writer_errors(void **state) {
    struct safetensors_writer *w;
    struct err e = {0};
    char data[64] = {0};
    const char *path = scratch_text(*state, "w.safetensors", "what was there before");
    assert_worked(safetensors_writer_open(&w, path, &e), &e);
    assert_worked(safetensors_writer_declare(w, "a", DTYPE_F32, 1, (int64_t[]){4}, &e), &e);
    assert_failed(safetensors_writer_declare(w, "a", DTYPE_F32, 1, (int64_t[]){4}, &e), &e,
                  "\"a\"|before", "twice");
    assert_failed(safetensors_writer_declare(w, "", DTYPE_F32, 1, (int64_t[]){4}, &e), &e, "name",
                  "empty");
    assert_failed(safetensors_writer_declare(w, "__metadata__", DTYPE_F32, 0, NULL, &e), &e, "name",
                  "reserved");
    assert_failed(safetensors_writer_declare(w, "b", DTYPE_COUNT, 0, NULL, &e), &e, "type", "type");
    assert_failed(safetensors_writer_declare(w, "c", DTYPE_F32, 9, NULL, &e), &e, "rank 9", "rank");
    assert_failed(safetensors_writer_declare(w, "d", DTYPE_F32, 1, (int64_t[]){-1}, &e), &e, "-1",
                  "negative");
    assert_failed(
        safetensors_writer_declare(w, "e", DTYPE_F32, 2, (int64_t[]){INT64_MAX, INT64_MAX}, &e), &e,
        "\"e\"", "product");
    assert_worked(safetensors_writer_put(w, data, 8, &e), &e);
    assert_failed(safetensors_writer_put(w, data, 9, &e), &e, "\"a\"|8 more", "over the end");
    assert_failed(safetensors_writer_declare(w, "late", DTYPE_F32, 0, NULL, &e), &e, "late",
                  "late");
    assert_failed(safetensors_writer_close(w, NULL, NULL, &e), &e, "\"a\"|8 of its 16",
                  "unfinished");
    safetensors_writer_abort(w);
    char *text;
    size_t n;
    assert_worked(file_read_all(path, 100, &text, &n, &e), &e);
    assert_string_equal(text, "what was there before"); // a failed write leaves the old file
    free(text);
    assert_false(file_exists(scratch_path(*state, "w.safetensors.tmp")));

    assert_int_equal(safetensors_writer_open(&w, "/no/such/dir/x.safetensors", &e), ERR_IO);
    assert_null(w);
    safetensors_writer_abort(NULL);
    // A file without tensors is valid. Bytes after the last tensor are not.
    assert_worked(safetensors_writer_open(&w, path, &e), &e);
    assert_failed(safetensors_writer_put(w, data, 1, &e), &e, "last tensor", "nothing declared");
    assert_worked(safetensors_writer_close(w, NULL, NULL, &e), &e);
    struct safetensors *st;
    assert_worked(safetensors_open(&st, path, &e), &e);
    assert_int_equal(safetensors_count(st), 0);
    safetensors_close(st);
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(test_good),         IN_SCRATCH(test_bad_headers),   IN_SCRATCH(test_bad_files),
        IN_SCRATCH(test_prefixes),     IN_SCRATCH(test_bit_flips),     IN_SCRATCH(test_mutations),
        IN_SCRATCH(test_hostile_size), IN_SCRATCH(test_shrunk),        IN_SCRATCH(test_round_trip),
        IN_SCRATCH(test_unread_types), IN_SCRATCH(test_writer_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

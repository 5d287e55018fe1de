// test_logs.c - the JSONL log and its repair, and TensorBoard files read by separate code.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "report/jsonl.h"
#include "report/tensorboard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[256], log_path[512];

static int make_dir(void **state) {
    (void)state;
    int rc = file_make_temp_dir(dir, sizeof dir, "report", NULL);
    snprintf(log_path, sizeof log_path, "%s/log.jsonl", dir);
    return rc;
}
static int remove_dir(void **state) {
    (void)state;
    return file_remove_tree(dir, NULL);
}

static char *contents(void) {
    char *text;
    size_t bytes;
    assert_int_equal(file_read_all(log_path, 1 << 24, &text, &bytes, NULL), 0);
    return text;
}

static const struct jsonl_record record = {.step = 7,
                                           .loss = 2.5,
                                           .lr = 0.001,
                                           .grad_norm = NAN,
                                           .tokens = 4096,
                                           .tokens_per_s = 1000,
                                           .step_ms = 4.5,
                                           .data_wait_ms = 0.25,
                                           .time = 1700000000.5,
                                           .validation_loss = NAN};
static const char line[] =
    "{\"step\":7,\"loss\":2.5,\"lr\":0.001,\"grad_norm\":null,\"tokens\":4096,"
    "\"tokens_per_s\":1000,\"step_ms\":4.5,\"data_wait_ms\":0.25,"
    "\"time\":1700000000.5}\n";

static void test_jsonl_lines(void **state) {
    (void)state;
    struct jsonl j;
    struct err e = {0};
    assert_int_equal(jsonl_open(&j, log_path, NULL, &e), 0);
    assert_int_equal(jsonl_put(&j, &record, &e), 0);
    char *text = contents(); // on disk before close
    assert_string_equal(text, line);
    free(text);
    struct jsonl_record second = record;
    second.validation_loss = 3;
    assert_int_equal(jsonl_put(&j, &second, &e), 0);
    struct json_writer *w = jsonl_begin(&j);
    json_member_string(w, "event", "resumed \"here\"");
    assert_int_equal(jsonl_end(&j, &e), 0);
    assert_int_equal(jsonl_close(&j, &e), 0);
    text = contents();
    assert_non_null(strstr(text, "\"validation_loss\":3,"));
    const char tail[] = "{\"event\":\"resumed \\\"here\\\"\"}\n";
    assert_string_equal(text + strlen(text) - strlen(tail), tail);
    free(text);
    assert_int_equal(jsonl_open(&j, "/no/such/folder/log.jsonl", NULL, &e), ERR_IO);
    assert_non_null(strstr(e.text, "/no/such/folder/log.jsonl"));
}

// A crash may cut the file anywhere. After reopening, the log has only whole lines.
static void test_jsonl_heals_every_cut(void **state) {
    (void)state;
    const size_t n = strlen(line);
    char two[2 * sizeof line];
    snprintf(two, sizeof two, "%s%s", line, line);
    for (size_t cut = 0; cut <= 2 * n; cut++) {
        struct jsonl j;
        struct err e = {0};
        uint64_t healed = 99;
        assert_int_equal(file_write_atomic(log_path, two, cut, NULL), 0);
        assert_int_equal(jsonl_open(&j, log_path, &healed, &e), 0);
        assert_int_equal(jsonl_put(&j, &record, &e), 0);
        assert_int_equal(jsonl_close(&j, &e), 0);
        size_t whole = (cut + 1) / n; // a line that lacks only its newline is kept
        bool torn = cut % n != 0 && cut % n != n - 1;
        assert_int_equal(healed, torn ? cut % n : 0);
        char *text = contents();
        assert_int_equal(strlen(text), (whole + 1) * n);
        for (size_t i = 0; i <= whole; i++)
            assert_memory_equal(text + i * n, line, n);
        free(text);
    }
}

static void test_jsonl_refuses_other_files(void **state) {
    (void)state;
    size_t bytes = 100000;
    char *junk = malloc(bytes);
    assert_non_null(junk);
    memset(junk, 'x', bytes);
    assert_int_equal(file_write_atomic(log_path, junk, bytes, NULL), 0);
    struct jsonl j;
    struct err e = {0};
    assert_int_equal(jsonl_open(&j, log_path, NULL, &e), ERR_FORMAT);
    uint64_t size;
    assert_int_equal(file_size(log_path, &size, NULL), 0);
    assert_int_equal(size, bytes); // untouched
    free(junk);
    // A link is not followed, a pipe is not waited for.
    char other[600];
    snprintf(other, sizeof other, "%s.other", log_path);
    assert_int_equal(symlink(log_path, other), 0);
    assert_int_equal(jsonl_open(&j, other, NULL, &e), ERR_IO);
    assert_non_null(strstr(e.text, "is a symbolic link"));
    assert_int_equal(unlink(other), 0);
    assert_int_equal(mkfifo(other, 0600), 0);
    assert_int_equal(jsonl_open(&j, other, NULL, &e), ERR_IO);
    assert_non_null(strstr(e.text, "is a pipe"));
    assert_int_equal(unlink(other), 0);
}

// ---------------------------------------------------------------- TensorBoard, read back

// CRC-32C bit by bit (Castagnoli polynomial, reflected): shares nothing with base/hash.c.
static uint32_t slow_crc32c(const unsigned char *p, size_t n) {
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
    }
    return ~crc;
}
static uint32_t unmask(uint32_t masked) {
    uint32_t rotated = masked - 0xa282ead8;
    return rotated >> 17 | rotated << 15;
}
static uint64_t little(const unsigned char *p, int bytes) {
    uint64_t x = 0;
    for (int i = bytes - 1; i >= 0; i--)
        x = x << 8 | p[i];
    return x;
}

struct field {
    unsigned number, wire;
    uint64_t value; // varint and fixed
    const unsigned char *data;
    size_t bytes;
};

static const unsigned char *varint(const unsigned char *p, const unsigned char *end,
                                   uint64_t *out) {
    *out = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(p < end && shift < 64);
        *out |= (uint64_t)(*p & 0x7f) << shift;
        if ((*p++ & 0x80) == 0)
            return p;
    }
}

static const unsigned char *next_field(const unsigned char *p, const unsigned char *end,
                                       struct field *f) {
    uint64_t key;
    p = varint(p, end, &key);
    *f = (struct field){.number = (unsigned)(key >> 3), .wire = key & 7};
    switch (f->wire) {
    case 0:
        return varint(p, end, &f->value);
    case 1:
    case 5:
        f->bytes = f->wire == 1 ? 8 : 4;
        f->value = little(p, (int)f->bytes);
        break;
    case 2: {
        uint64_t n;
        p = varint(p, end, &n);
        f->bytes = n;
        break;
    }
    default:
        fail_msg("wire type %u", f->wire);
    }
    f->data = p;
    assert_true(f->bytes <= (size_t)(end - p));
    return p + f->bytes;
}

struct scalar {
    char tag[256];
    float value;
    uint64_t step;
    double wall_time;
    char version[32];
};

static struct scalar parse_event(const unsigned char *p, size_t n) {
    struct scalar s = {0};
    struct field f, g, h;
    for (const unsigned char *end = p + n; p < end;) {
        p = next_field(p, end, &f);
        if (f.number == 1)
            memcpy(&s.wall_time, &f.value, 8);
        else if (f.number == 2)
            s.step = f.value;
        else if (f.number == 3)
            memcpy(s.version, f.data, f.bytes);
        else {
            assert_int_equal(f.number, 5);
            assert_true(next_field(f.data, f.data + f.bytes, &g) == f.data + f.bytes);
            assert_int_equal(g.number, 1);
            for (const unsigned char *q = g.data; q < g.data + g.bytes;) {
                q = next_field(q, g.data + g.bytes, &h);
                if (h.number == 1)
                    memcpy(s.tag, h.data, h.bytes);
                else {
                    assert_true(h.number == 2 && h.wire == 5);
                    uint32_t bits = (uint32_t)h.value;
                    memcpy(&s.value, &bits, 4);
                }
            }
        }
    }
    return s;
}

static void test_tensorboard(void **state) {
    (void)state;
    struct tensorboard t, u;
    struct err e = {0};
    char path[512], long_tag[TENSORBOARD_TAG_BYTES + 2], file[1024];
    snprintf(path, sizeof path, "%s/tb/run", dir);
    memset(long_tag, 't', sizeof long_tag);
    long_tag[sizeof long_tag - 1] = '\0';
    assert_int_equal(tensorboard_open(&t, path, &e), 0);
    assert_int_equal(tensorboard_open(&u, path, &e), 0); // a second file within one second
    assert_string_not_equal(t.path, u.path);
    assert_int_equal(tensorboard_close(&u, &e), 0);
    assert_int_equal(tensorboard_put(&t, "train/loss", 1, 5.5, &e), 0);
    assert_int_equal(tensorboard_put(&t, "train/lr", 300, 3e-4, &e), 0);
    assert_int_equal(tensorboard_put(&t, "x", (int64_t)1 << 40, NAN, &e), 0);
    assert_int_equal(tensorboard_put(&t, long_tag, 1, 0, &e), ERR_USAGE);
    assert_int_equal(tensorboard_put(&t, long_tag + 1, 1, -1, &e), 0);
    assert_non_null(strstr(t.path, "/events.out.tfevents."));
    strcpy(file, t.path);
    assert_int_equal(tensorboard_close(&t, &e), 0);

    char *text;
    size_t bytes, at = 0;
    assert_int_equal(file_read_all(file, 1 << 20, &text, &bytes, &e), 0);
    const unsigned char *p = (const unsigned char *)text;
    struct scalar s[8] = {0};
    int n = 0;
    while (at < bytes) {
        assert_true(n < 8 && bytes - at >= 16);
        uint64_t length = little(p + at, 8);
        assert_int_equal(unmask((uint32_t)little(p + at + 8, 4)), slow_crc32c(p + at, 8));
        assert_true(length <= bytes - at - 16);
        assert_int_equal(unmask((uint32_t)little(p + at + 12 + length, 4)),
                         slow_crc32c(p + at + 12, length));
        s[n++] = parse_event(p + at + 12, length);
        at += 16 + length;
    }
    assert_int_equal(n, 5);
    assert_string_equal(s[0].version, "brain.Event:2");
    assert_true(s[0].wall_time > 1.6e9);
    assert_string_equal(s[1].tag, "train/loss");
    assert_true(s[1].step == 1 && s[1].value == 5.5f);
    assert_string_equal(s[2].tag, "train/lr");
    assert_true(s[2].step == 300 && s[2].value == 3e-4f);
    assert_true(s[3].step == (uint64_t)1 << 40 && isnan(s[3].value));
    assert_string_equal(s[4].tag, long_tag + 1);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_jsonl_lines, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_jsonl_heals_every_cut, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_jsonl_refuses_other_files, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_tensorboard, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_lines.c - lines of a file: ends, limits, and files that change while they are read.
#include "data/lines.h"
#include "scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

// Returns the lines of a file, each in [brackets] with its number.
static const char *shown(const char *path, char out[4096]) {
    struct lines *l;
    struct err e;
    const char *text;
    size_t bytes, n = 0;
    uint64_t number;
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(lines_open(&l, path, &e), 0);
    out[0] = '\0';
    while (lines_next(l, &text, &bytes, &number, &e) == 0 && text != NULL)
        n += (size_t)sprintf(out + n, "%d[%.*s]", (int)number, (int)bytes, text);
    assert_int_equal(lines_offset(l), s.st_size);
    assert_int_equal(lines_next(l, &text, &bytes, &number, &e), 0); // and again
    assert_null(text);
    lines_close(l);
    return out;
}

static void test_ends(void **state) {
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"", ""},
        {"a", "1[a]"},
        {"a\n", "1[a]"},
        {"a\nb", "1[a]2[b]"},
        {"a\r\nb\r\n", "1[a]2[b]"},
        {"\n\na\n\n", "1[]2[]3[a]4[]"},
        {"\r\n", "1[]"},
        {"\r", "1[]"},
        {"a\rb\n", "1[a\rb]"},
        {"\xef\xbb\xbf"
         "a\n\xef\xbb\xbf"
         "b\n",
         "1[a]2[\xef\xbb\xbf"
         "b]"},
        {"\xef\xbb\xbf", "1[]"},
        {"\xef\xbb", "1[\xef\xbb]"},
    };
    char out[4096];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(
            shown(folder_file(*state, "f", cases[i].text, strlen(cases[i].text)), out),
            cases[i].expected);
}

// Lines of every length around the buffer's size come whole and in order.
static void test_windows(void **state) {
    enum { LINES = 300 };
    size_t total = 0, at = 0;
    for (size_t i = 0; i < LINES; i++)
        total += i * 131 + 1;
    total += (3 << 20) + 1;
    char *text = malloc(total);
    for (size_t i = 0; i < LINES; i++) {
        memset(text + at, 'a' + (int)(i % 26), i * 131);
        at += i * 131;
        text[at++] = '\n';
    }
    memset(text + at, 'Z', 3 << 20); // longer than the buffer
    text[total - 1] = '\n';
    struct lines *l;
    struct err e;
    const char *line;
    size_t bytes;
    uint64_t number;
    assert_int_equal(lines_open(&l, folder_file(*state, "f", text, total), &e), 0);
    for (size_t i = 0; i < LINES; i++) {
        assert_int_equal(lines_next(l, &line, &bytes, &number, &e), 0);
        assert_int_equal(bytes, i * 131);
        assert_int_equal(number, i + 1);
        assert_true(bytes == 0 ||
                    (line[0] == (char)('a' + (int)(i % 26)) && line[bytes - 1] == line[0]));
    }
    assert_int_equal(lines_next(l, &line, &bytes, &number, &e), 0);
    assert_int_equal(bytes, 3 << 20);
    assert_true(line[0] == 'Z' && line[bytes - 1] == 'Z');
    assert_int_equal(lines_next(l, &line, &bytes, &number, &e), 0);
    assert_null(line);
    lines_close(l);
    free(text);
}

static void test_longest(void **state) {
    struct lines *l;
    struct err e;
    const char *line, *path;
    size_t bytes, n = (size_t)LINES_MAX_BYTES + 2;
    uint64_t number;
    char *text = malloc(n);
    memset(text, 'x', n);
    text[1] = '\n';
    // The longest accepted line.
    path = folder_file(*state, "f", text, n);
    assert_int_equal(lines_open(&l, path, &e), 0);
    assert_int_equal(lines_next(l, &line, &bytes, &number, &e), 0);
    assert_int_equal(lines_next(l, &line, &bytes, &number, &e), 0);
    assert_int_equal(bytes, LINES_MAX_BYTES);
    lines_close(l);
    // One byte more is refused. The lines before it are read.
    text[1] = 'x', text[0] = '\n';
    path = folder_file(*state, "f", text, n);
    assert_int_equal(lines_open(&l, path, &e), 0);
    assert_int_equal(lines_next(l, &line, &bytes, &number, &e), 0);
    assert_int_equal(lines_next(l, &line, &bytes, &number, &e), ERR_FORMAT);
    assert_null(line);
    assert_non_null(strstr(e.text, "line 2: longer than 16777216 bytes"));
    assert_int_equal(lines_next(l, &line, &bytes, &number, &e), ERR_FORMAT);
    lines_close(l);
    free(text);
}

static void test_changes(void **state) {
    struct lines *l;
    struct err e;
    const char *line;
    size_t bytes, n = 3 << 20;
    uint64_t number, count = 0;
    char *text = malloc(n);
    for (size_t i = 0; i < n; i++)
        text[i] = i % 64 == 63 ? '\n' : 'x';
    char path[256];
    snprintf(path, sizeof path, "%s", folder_file(*state, "f", text, n));
    // A file that shrinks gives an error that says so, not a signal.
    assert_int_equal(lines_open(&l, path, &e), 0);
    assert_int_equal(lines_next(l, &line, &bytes, &number, &e), 0);
    assert_int_equal(truncate(path, 100), 0);
    int rc;
    while ((rc = lines_next(l, &line, &bytes, &number, &e)) == 0 && line != NULL)
        assert_int_equal(bytes, 63);
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(e.text, "shrank while it was read"));
    lines_close(l);
    // A file that grows: the new bytes are not seen.
    folder_file(*state, "f", text, n);
    assert_int_equal(lines_open(&l, path, &e), 0);
    FILE *f = fopen(path, "ab");
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    while ((rc = lines_next(l, &line, &bytes, &number, &e)) == 0 && line != NULL)
        count++;
    assert_int_equal(rc, 0);
    assert_int_equal(count, n / 64);
    lines_close(l);
    free(text);
}

static void test_not_files(void **state) {
    struct folder *f = *state;
    struct lines *l;
    struct err e;
    assert_int_equal(lines_open(&l, folder_path(f, "none"), &e), ERR_IO);
    assert_null(l);
    assert_int_equal(lines_open(&l, f->path, &e), ERR_FORMAT);
    const char *fifo = folder_path(f, "fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(lines_open(&l, fifo, &e), ERR_FORMAT); // does not wait for a writer
    lines_close(NULL);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {TEST(test_ends), TEST(test_windows), TEST(test_longest),
                                       TEST(test_changes), TEST(test_not_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

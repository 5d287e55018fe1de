// test_notes.c - notes about a device: kept from one process to the next, the first one counts, and
// whatever is wrong with the file costs a measurement and nothing else.
#include "backend/notes.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct folder {
    char path[256], file[320];
};

static int setup(void **state) {
    static struct folder f;
    struct err e = {0};
    *state = &f;
    if (file_make_temp_dir(f.path, sizeof f.path, "notes", &e) != 0)
        return -1;
    snprintf(f.file, sizeof f.file, "%s/cache/a-device--9.0.notes", f.path);
    return 0;
}

static int teardown(void **state) {
    struct folder *f = *state;
    struct err e = {0};
    return file_remove_tree(f->path, &e);
}

static struct notes *opened(const struct folder *f) {
    struct notes *n;
    struct err e = {0};
    char cache[300];
    snprintf(cache, sizeof cache, "%s/cache", f->path);
    assert_int_equal(notes_open(&n, cache, "a device, 9.0", &e), 0);
    return n;
}

static void test_kept(void **state) {
    struct notes *n = opened(*state);
    assert_true(notes_kept(n));
    assert_null(notes_find(n, "a"));
    assert_string_equal(notes_add(n, "a", "1 2"), "1 2");
    assert_string_equal(notes_add(n, "b", "3"), "3");
    assert_string_equal(notes_add(n, "a", "other"), "1 2"); // the first one counts
    notes_close(n);
    n = opened(*state);
    assert_string_equal(notes_find(n, "a"), "1 2");
    assert_string_equal(notes_find(n, "b"), "3");
    notes_close(n);
}

static void test_first_of_several(void **state) {
    struct notes *one = opened(*state), *other = opened(*state);
    assert_string_equal(notes_add(one, "k", "one"), "one");
    assert_null(notes_find(other, "k")); // not read yet
    assert_string_equal(notes_add(other, "k", "other"), "one");
    notes_close(one);
    notes_close(other);
}

static void test_refused(void **state) {
    struct notes *n = opened(*state);
    char long_text[NOTE_BYTES + 1];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    assert_null(notes_add(n, "", "1"));
    assert_null(notes_add(n, "a", ""));
    assert_null(notes_add(n, "a\tb", "1"));
    assert_null(notes_add(n, "a", "1\n2"));
    assert_null(notes_add(n, "a", long_text));
    long_text[NOTE_BYTES - 3] = '\0'; // with "a" and two ends: all of NOTE_BYTES
    assert_string_equal(notes_add(n, "a", long_text), long_text);
    notes_close(n);
    n = opened(*state);
    assert_string_equal(notes_find(n, "a"), long_text);
    notes_close(n);
}

static void write_file(const struct folder *f, const void *bytes, size_t n) {
    FILE *file = fopen(f->file, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static char *read_file(const struct folder *f, size_t *n) {
    struct err e = {0};
    char *text;
    assert_int_equal(file_read_all(f->file, 1 << 20, &text, n, &e), 0);
    return text;
}

// Each byte of a file of three lines is changed, and the file is cut after each byte: no key ever
// gets a value that was not noted, the other lines hold, and what is added then is found again.
static void test_damaged(void **state) {
    const struct folder *f = *state;
    const char *keys[] = {"first", "second", "third"}, *values[] = {"1", "22", "333"};
    struct notes *n = opened(f);
    for (int i = 0; i < 3; i++)
        assert_non_null(notes_add(n, keys[i], values[i]));
    notes_close(n);
    size_t bytes;
    char *text = read_file(f, &bytes);
    for (size_t at = 0; at < 2 * bytes; at++) {
        const bool cut = at >= bytes;
        char *copy = malloc(bytes);
        memcpy(copy, text, bytes);
        if (!cut)
            copy[at] ^= 0x21;
        write_file(f, copy, cut ? at - bytes : bytes);
        free(copy);
        n = opened(f);
        int found = 0;
        for (int i = 0; i < 3; i++) {
            const char *value = notes_find(n, keys[i]);
            found += value != NULL;
            if (value)
                assert_string_equal(value, values[i]);
        }
        // A changed line feed joins two lines, and both are lost.
        assert_true(cut || (found >= 1 && found < 3));
        assert_string_equal(notes_add(n, "late", "4"), "4");
        notes_close(n);
        n = opened(f);
        assert_string_equal(notes_find(n, "late"), "4");
        notes_close(n);
    }
    free(text);
}

static void test_other_files(void **state) {
    const struct folder *f = *state;
    notes_close(opened(f)); // makes the folder
    char *junk = malloc(1 << 20);
    for (int i = 0; i < 1 << 20; i++)
        junk[i] = (char)((i * 2654435761u) >> 13);
    write_file(f, junk, 1 << 20);
    struct notes *n = opened(f);
    assert_string_equal(notes_add(n, "a", "1"), "1");
    notes_close(n);
    memset(junk, 'x', 1 << 20); // one line that is far too long
    write_file(f, junk, 1 << 20);
    free(junk);
    n = opened(f);
    assert_string_equal(notes_add(n, "a", "1"), "1");
    notes_close(n);
    n = opened(f);
    assert_string_equal(notes_find(n, "a"), "1");
    notes_close(n);
    // A link, and a folder that cannot be made: the notes are not kept, and work.
    assert_int_equal(unlink(f->file), 0);
    assert_int_equal(symlink("/dev/null", f->file), 0);
    n = opened(f);
    assert_false(notes_kept(n));
    assert_string_equal(notes_add(n, "a", "1"), "1");
    notes_close(n);
    struct err e = {0};
    assert_int_equal(notes_open(&n, "/dev/null/x", "y", &e), 0);
    assert_false(notes_kept(n));
    assert_string_equal(notes_add(n, "a", "1"), "1");
    notes_close(n);
}

// Processes that add at once: every line is whole, and all agree on each value.
static void test_at_once(void **state) {
    enum { PROCESSES = 4, KEYS = 50 };
    const struct folder *f = *state;
    notes_close(opened(f));
    for (int p = 0; p < PROCESSES; p++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child > 0)
            continue;
        struct notes *n = opened(f);
        int wrong = 0;
        for (int i = 0; i < KEYS; i++) {
            char key[16], value[16];
            snprintf(key, sizeof key, "k%d", i);
            snprintf(value, sizeof value, "%d", p);
            wrong += notes_add(n, key, value) == NULL;
        }
        notes_close(n);
        _exit(wrong > 0);
    }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    size_t bytes, lines = 0;
    char *text = read_file(f, &bytes);
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    free(text);
    assert_int_equal(lines, KEYS);
    struct notes *n = opened(f);
    for (int i = 0; i < KEYS; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_non_null(notes_find(n, key));
    }
    notes_close(n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_first_of_several, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_at_once, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

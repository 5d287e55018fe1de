// test_yaml.c - yaml.h: flattening, lines, every refusal with file and line, hostile input.
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/yaml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int parse(const char *text, size_t bytes, struct region *r, struct yaml_entry **entries,
                 size_t *count, struct err *e) {
    // A copy of the exact size, so that AddressSanitizer reports a read past the end.
    char *exact = malloc(bytes ? bytes : 1);
    assert_non_null(exact);
    memcpy(exact, text, bytes);
    err_clear(e);
    int rc = yaml_read_text("r.yaml", exact, bytes, r, entries, count, e);
    free(exact);
    assert_int_equal(rc, e->code);
    return rc;
}

static void test_flatten(void **state) {
    (void)state;
    static const char text[] = "# a recipe\n"
                               "model: tiny\n"
                               "batch:\n"
                               "  micro: 4\n"
                               "  sizes: [1, 2, \"4\"]\n"
                               "  deep: {a: {b: 'x: y'}}\n"
                               "data:\n"
                               "  files:\n"
                               "    - one.txt\n"
                               "    - two.txt\n"
                               "optimizer.lr: 3e-4\n"
                               "note: \"line\\n\xC3\xA9\"\n"
                               "empty:\n"
                               "none: []\n"
                               "nothing: {}\n"
                               "list: [x]\n";
    static const struct yaml_entry want[] = {
        {"model", "tiny", 2},
        {"batch.micro", "4", 4},
        {"batch.sizes", "1,2,4", 5},
        {"batch.deep.a.b", "x: y", 6},
        {"data.files", "one.txt,two.txt", 8},
        {"optimizer.lr", "3e-4", 11},
        {"note", "line\n\xC3\xA9", 12},
        {"empty", "", 13},
        {"none", "", 14},
        {"list", "x", 16},
    };
    struct region r = {0};
    struct yaml_entry *entries;
    size_t count;
    struct err e;
    if (parse(text, sizeof text - 1, &r, &entries, &count, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(count, sizeof want / sizeof *want);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(entries[i].key, want[i].key);
        assert_string_equal(entries[i].value, want[i].value);
        assert_int_equal(entries[i].line, want[i].line);
    }
    region_free(&r);
}

static void test_empty(void **state) {
    (void)state;
    static const char *const texts[] = {"",      "\n", "# only a comment\n",
                                        "---\n", "{}", "---\n...\n"};
    struct region r = {0};
    struct yaml_entry *entries;
    size_t count = 7;
    struct err e;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(parse(texts[i], strlen(texts[i]), &r, &entries, &count, &e), 0);
        assert_int_equal(count, 0);
    }
    region_free(&r);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"a: 1\nb: 2\na: 3\n", "line 3: 'a' is set twice (first on line 1)"},
        {"a:\n  b: 1\na.b: 2\n", "line 3: 'a.b' is set twice (first on line 2)"},
        {"a: &x 1\n", "line 1: anchors"},
        {"a: &x {b: 1}\n", "anchors"},
        {"a: 1\nb: *a\n", "line 2: aliases"},
        {"a: !!int 1\n", "line 1: tags"},
        {"!x a: 1\n", "tags"},
        {"a: ! 1\n", "tags"},
        {"a: [!!str 1]\n", "tags"},
        {"a: 1\n---\nb: 2\n", "second document"},
        {"--- \n---\n", "second document"},
        {"- a\n- b\n", "line 1: expected settings"},
        {"just text\n", "expected settings"},
        {"a: [[1]]\n", "plain values only"},
        {"a: [{b: 1}]\n", "plain values only"},
        {"a: [\"1,2\"]\n", "comma"},
        {"? [a]\n: 1\n", "plain word"},
        {"? {a: 1}\n: 1\n", "plain word"},
        {"\"\": 1\n", "a key is empty"},
        {"a: \"x\\0y\"\n", "NUL"},
        {"a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}\n", "nested deeper than 8"},
        {"a: [1\nb: 2\n", "r.yaml: line "},
        {"a: 'x\n", "r.yaml: line "},
        {"\ta: 1\n", "r.yaml: line 1"},
        {"a: b: c\n", "r.yaml: line 1"},
        {"a: \xFF\n", "r.yaml: byte 3"},
        {"a: \x01\n", "r.yaml: byte"},
    };
    struct err e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct region r = {0};
        struct yaml_entry *entries = (struct yaml_entry *)1;
        size_t count = 7;
        int rc = parse(cases[i].text, strlen(cases[i].text), &r, &entries, &count, &e);
        if (rc != ERR_FORMAT || !strstr(e.text, cases[i].says))
            fail_msg("case %zu: code %d: '%s' does not say '%s'", i, rc, e.text, cases[i].says);
        assert_null(entries);
        assert_int_equal(count, 0);
        region_free(&r);
    }
    // Eight levels are accepted.
    struct region r = {0};
    struct yaml_entry *entries;
    size_t count;
    const char *eight = "a: {b: {c: {d: {e: {f: {g: {h: 1}}}}}}}\n";
    assert_int_equal(parse(eight, strlen(eight), &r, &entries, &count, &e), 0);
    assert_string_equal(entries[0].key, "a.b.c.d.e.f.g.h");
    region_free(&r);
}

static void test_limits(void **state) {
    (void)state;
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES + 1);
    assert_non_null(text);
    struct region r = {0};
    struct yaml_entry *entries;
    size_t count, n = 0;
    struct err e;
    for (int i = 0; i < 4096; i++)
        n += (size_t)sprintf(text + n, "k%d: %d\n", i, i);
    assert_int_equal(parse(text, n, &r, &entries, &count, &e), 0);
    assert_int_equal(count, 4096);
    n += (size_t)sprintf(text + n, "one: more\n");
    assert_int_equal(parse(text, n, &r, &entries, &count, &e), ERR_FORMAT);
    memset(text, 'k', 300);
    strcpy(text + 300, ": 1\n");
    assert_int_equal(parse(text, strlen(text), &r, &entries, &count, &e), ERR_FORMAT);
    static const char bombs[] = "[{-?";
    for (size_t i = 0; i < sizeof bombs - 1; i++) {
        memset(text, bombs[i], 100000);
        memcpy(text, "a: ", 3);
        parse(text, 100000, &r, &entries, &count, &e);
    }
    memset(text, ' ', BYTES + 1);
    assert_int_equal(parse(text, BYTES + 1, &r, &entries, &count, &e), ERR_FORMAT);
    region_free(&r);
    free(text);
}

static void test_mutations(void **state) {
    (void)state;
    static const char text[] =
        "a: 1\nb:\n  c: [x, 'y', \"z\\n\"]\n  d: {e: 2}\n# n\nf: |\n  t\n  u\n";
    char copy[sizeof text];
    struct region r = {0};
    struct yaml_entry *entries;
    size_t count;
    struct err e;
    for (size_t n = 0; n < sizeof text; n++)
        parse(text, n, &r, &entries, &count, &e);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(copy, text, sizeof text);
            copy[i] = (char)(copy[i] ^ 1 << bit);
            parse(copy, sizeof text - 1, &r, &entries, &count, &e);
        }
    }
    region_free(&r);
}

static void test_file(void **state) {
    (void)state;
    char dir[256], path[300];
    assert_int_equal(file_make_temp_dir(dir, sizeof dir, "yaml", NULL), 0);
    snprintf(path, sizeof path, "%s/a.yaml", dir);
    struct region r = {0};
    struct yaml_entry *entries;
    size_t count;
    struct err e = {0};
    assert_int_equal(file_write_atomic(path, "a:\n  b: 1\n", 10, &e), 0);
    assert_int_equal(yaml_read_file(path, &r, &entries, &count, &e), 0);
    assert_int_equal(count, 1);
    assert_string_equal(entries[0].key, "a.b");
    assert_int_equal(file_write_atomic(path, "a: [\n", 5, &e), 0);
    assert_int_equal(yaml_read_file(path, &r, &entries, &count, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, path));
    unlink(path);
    assert_int_equal(yaml_read_file(path, &r, &entries, &count, &e), ERR_IO);
    region_free(&r);
    assert_int_equal(file_remove_tree(dir, &e), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flatten),   cmocka_unit_test(test_empty),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_limits),
        cmocka_unit_test(test_mutations), cmocka_unit_test(test_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

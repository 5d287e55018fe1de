// test_table.c - one list of columns in two forms: aligned Markdown with rounded figures for
// people, CSV with all digits for programs. No text can break a row.
#include "report/table.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct row {
    const char *name;
    double speed, ms, busy;
    bool bounded;
    uint64_t bytes;
    int64_t id;
};

static const struct row rows[] = {
    {"a|b", 1234.5678, 1.25, 0.5, true, 2048, 7},
    {"caf\xc3\xa9, \"x\"\n", NAN, 20.5, NAN, false, 0, 0},
};

#define ROW(X)                                                                                     \
    X("name", "name", LEFT, table_text(t, r->name))                                                \
    X("speed", "tokens_per_s", RIGHT, table_real(t, r->speed, 0))                                  \
    X(NULL, "ms", RIGHT, table_significant(t, r->ms, 2))                                           \
    X("p99", NULL, RIGHT, table_percentile(t, r->ms, r->bounded))                                  \
    X("busy", "busy", RIGHT, table_share(t, r->busy, 0))                                           \
    X("memory", "bytes", RIGHT, table_bytes(t, r->bytes))                                          \
    X("id", "id", RIGHT, table_opt(t, r->id))                                                      \
    X("none", "none", RIGHT, table_text(t, ""))                                                    \
    X("last", NULL, LEFT, table_put(t, "%s!", r->bounded ? "yes" : "surely not"))

static const struct table_column columns[] = {ROW(TABLE_COLUMN)};

static void expect(enum table_format format, struct table_style style, const char *wanted) {
    struct table table, *t = &table;
    char *text;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    table_init(t, columns, sizeof columns / sizeof *columns, format, style);
    for (const struct row *r = rows; r < rows + 2; r++) {
        table_row(t);
        ROW(TABLE_CELL)
    }
    table_row(t);
    table_text(t, "third");
    table_rest(t, "not %s", "here|");
    assert_int_equal(table_print(t, f, NULL), 0);
    fclose(f);
    assert_string_equal(text, wanted);
    table_free(t);
    free(text);
}

static void test_people(void **state) {
    (void)state;
    expect(TABLE_MARKDOWN, (struct table_style){.unknown = "-", .digits = 9},
           "| name       | speed |    p99 | busy |   memory | id | last |\n"
           "|:-----------|------:|-------:|-----:|---------:|---:|:-----|\n"
           "| a b        |  1235 |   1.25 | 50 % | 2.00 KiB |  7 | yes! |\n"
           "| caf\xc3\xa9, \"x\"  |     - | 20.50? |    - |        - |  - | surely not! |\n"
           "| third      | not here  |\n");
    expect(TABLE_MARKDOWN, (struct table_style){.compact = true, .whole = true},
           "| name | speed | p99 | busy | memory | id | none | last |\n"
           "|---|--:|--:|--:|--:|--:|--:|---|\n"
           "| a b | 1235 | 1.25 | 50 % | 2.00 KiB | 7 |  | yes! |\n"
           "| caf\xc3\xa9, \"x\"  |  | 20.50? |  |  |  |  | surely not! |\n"
           "| third | not here  |\n");
}

static void test_programs(void **state) {
    (void)state;
    expect(TABLE_CSV, (struct table_style){.unknown = "-", .digits = 6},
           "name,tokens_per_s,ms,busy,bytes,id,none\n"
           "a|b,1234.57,1.25,0.5,2048,7,\n"
           "\"caf\xc3\xa9, \"\"x\"\" \",,20.5,,,,\n"
           "third,,,,,,\n");
    expect(TABLE_CSV, (struct table_style){0},
           "name,tokens_per_s,ms,busy,bytes,id,none\n"
           "a|b,1235,1.2,50 %,2.00 KiB,7,\n"
           "\"caf\xc3\xa9, \"\"x\"\" \",,20,,,,\n"
           "third,,,,,,\n");
}

static void put_object(const void *arg, size_t i, struct json_writer *w) {
    const struct row *r = arg;
    json_put_object_begin(w);
    json_member_i64(w, "id", r[i].id);
    json_put_object_end(w);
}

static void test_json(void **state) {
    (void)state;
    static const char *const wanted[2] = {
        "[\n  {\n    \"id\": 7\n  },\n  {\n    \"id\": 0\n  }\n]\n", "{\"id\":7}\n{\"id\":0}\n"};
    for (int i = 0; i < 2; i++) {
        char *text;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);
        enum table_format format = i == 0 ? TABLE_JSON : TABLE_JSONL;
        assert_int_equal(table_print_json(format, 2, put_object, rows, f, NULL), 0);
        fclose(f);
        assert_string_equal(text, wanted[i]);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_people),
        cmocka_unit_test(test_programs),
        cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

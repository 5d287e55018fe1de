// test_request.c - a line of a hybrid run's requests: what is read, and every way to refuse it.
#include "serve/request.h"

#include "base/file.h"
#include "data/dataset.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { COLUMNS = 3 * 16 };

struct fixture {
    struct knobs knobs;
    struct request_reader *reader;
    int32_t columns[REQUEST_ROWS][COLUMNS];
    int32_t *rows[REQUEST_ROWS];
    char dir[256]; // holds the records of interactive.data
};

static void set(struct fixture *f, const char *assignment) {
    struct err e = {0};
    if (knobs_set_assignment(&f->knobs, assignment, SET_BY_COMMAND_LINE, &e) != 0)
        fail_msg("%s", e.text);
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    struct err e = {0};
    char path[300], text[320];
    assert_int_equal(file_make_temp_dir(f->dir, sizeof f->dir, "request", NULL), 0);
    snprintf(path, sizeof path, "%s/a.jsonl", f->dir);
    assert_int_equal(file_write_atomic(path, "{\"text\": \"ab\"}\n{\"text\": \"cde\"}\n", 31, NULL),
                     0);
    knobs_init(&f->knobs);
    set(f, "goal=hybrid");
    set(f, "interactive.micro=3");
    set(f, "interactive.seq=16");
    snprintf(text, sizeof text, "interactive.data=%s", path);
    set(f, text);
    for (int i = 0; i < REQUEST_ROWS; i++)
        f->rows[i] = f->columns[i];
    const struct request_options o = {.knobs = &f->knobs, .vocab = 320};
    if (request_reader_open(&f->reader, &o, &e) != 0)
        fail_msg("%s", e.text);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    request_reader_close(f->reader);
    const int rc = file_remove_tree(f->dir, NULL);
    free(f);
    return rc;
}

static struct request reads(struct fixture *f, const char *line) {
    struct request x;
    struct err e = {0};
    if (request_read(f->reader, line, strlen(line), f->rows, &x, &e) != 0)
        fail_msg("%s: %s", line, e.text);
    return x;
}

// "ab" in bytes: end of text, a, b, end of text.
static void test_a_document_is_a_row(void **state) {
    struct fixture *f = *state;
    struct request x = reads(f, "{\"evaluate\": {\"text\": \"ab\"}, \"id\": 7}");
    assert_int_equal(x.kind, GUEST_EVALUATE);
    assert_int_equal(x.id.type, REQUEST_ID_NUMBER);
    assert_int_equal(x.id.number, 7);
    assert_int_equal(x.tokens, 3);
    assert_int_equal(x.trained_tokens, 3);
    assert_int_equal(f->rows[0][1], 'a');
    assert_int_equal(f->rows[1][0], 'a');
    assert_int_equal(f->rows[1][1], 'b');
    assert_int_equal(f->rows[1][2], f->rows[0][0]);
    for (int t = 0; t < 3; t++) {
        assert_int_equal(f->rows[2][t], t);
        assert_int_equal(f->rows[3][t], 0);
    }
    for (int t = 3; t < COLUMNS; t++) { // padding of this row and the others
        assert_int_equal(f->rows[1][t], DATASET_NOT_TRAINED);
        assert_int_equal(f->rows[2][t], 0);
        assert_int_equal(f->rows[3][t], t % 16);
    }
}

static void test_prompts_are_context(void **state) {
    struct fixture *f = *state;
    struct request x =
        reads(f, "{\"id\": \"a\", \"train\": {\"prompt\": \"ab\", \"completion\": \"c\"}}");
    assert_int_equal(x.kind, GUEST_TRAIN);
    assert_string_equal(x.id.text, "a");
    assert_int_equal(x.tokens, 4);
    assert_int_equal(x.trained_tokens, 2); // c and the end of text
    assert_int_equal(f->rows[1][0], DATASET_NOT_TRAINED);
    assert_int_equal(f->rows[1][2], 'c');
}

static void test_several_records(void **state) {
    struct fixture *f = *state;
    struct request x = reads(f, " {\"train\" : [ {\"text\":\"a\"} , {\"index\":1} ] } ");
    assert_int_equal(x.tokens, 2 + 4);
    assert_int_equal(f->rows[0][1], 'a');
    assert_int_equal(f->rows[0][16 + 1], 'c');
    assert_int_equal(f->rows[3][16 + 1], 0);
    assert_int_equal(f->rows[1][32], DATASET_NOT_TRAINED);
    x = reads(f, "{\"evaluate\": {\"index\": 0}}");
    assert_int_equal(x.tokens, 3);
    assert_int_equal(f->rows[0][2], 'b');
    x = reads(f, "{\"evaluate\": {\"input_ids\": [1, 2, 3]}}");
    assert_int_equal(x.tokens, 2);
    assert_int_equal(f->rows[1][1], 3);
}

static void refused(struct fixture *f, const char *line, size_t bytes, const char *part) {
    struct request x;
    struct err e = {0};
    const int rc = request_read(f->reader, line, bytes, f->rows, &x, &e);
    if (rc == 0 || strstr(e.text, part) == NULL)
        fail_msg("%s: expected '%s', got %d: %s", line, part, rc, e.text);
}

static void test_refusals(void **state) {
    static const char *const cases[][2] = {
        {"", "the text ends"},
        {"x", "expected a value"},
        {"[]", "expected an object"},
        {"nonsense", "expected an object, found 'nonsense'"},
        {"null", "expected an object, found null"},
        {"{}", "needs \"train\" or \"evaluate\""},
        {"{\"id\": 1}", "needs \"train\" or \"evaluate\""},
        {"{\"train\": {\"text\": \"a\"}", "line 1"},
        {"{\"train\": {\"text\": \"a\"}} x", "line 1"},
        {"{\"train\": {\"text\": \"a\"}, \"evaluate\": {\"text\": \"a\"}}", "exactly one of"},
        {"{\"train\": {\"text\": \"a\"}, \"train\": {\"text\": \"a\"}}", "exactly one of"},
        {"{\"learn\": {\"text\": \"a\"}}", "unknown or repeated member \"learn\""},
        {"{\"id\": 1, \"id\": 2, \"train\": {\"text\": \"a\"}}",
         "unknown or repeated member \"id\""},
        {"{\"id\": 1.5, \"train\": {\"text\": \"a\"}}", "whole number"},
        {"{\"id\": [1], \"train\": {\"text\": \"a\"}}", "expected a string"},
        {"{\"id\": \"01234567890123456789012345678901234567890123456789012345678901234\"}",
         "at most 64"},
        {"{\"train\": \"a\"}", "a record or a list of records"},
        {"{\"train\": []}", "empty"},
        {"{\"train\": [1]}", "record"},
        {"{\"train\": [{\"text\": \"a\"}, {\"text\": \"a\"}, {\"text\": \"a\"}, {\"text\": "
         "\"a\"}]}",
         "interactive.micro=3"},
        {"{\"train\": {\"words\": \"a\"}}", "words"},
        {"{\"train\": {\"text\": 5}}", "text"},
        {"{\"train\": {\"text\": \"12345678901234567\"}}", "accepted: 2 to 17"},
        {"{\"train\": {\"input_ids\": [1]}}", "accepted: 2 to 17"},
        {"{\"train\": {\"input_ids\": [1, 2000000]}}", "2000000"},
        {"{\"train\": {\"input_ids\": [1, -3]}}", "-3"},
        {"{\"train\": {\"input_ids\": [1, 2], \"labels\": [-100, -100]}}", "trained"},
        {"{\"train\": {\"index\": 2}}", "interactive.data has 0 to 1"},
        {"{\"train\": {\"index\": -1}}", "interactive.data has 0 to 1"},
        {"{\"train\": {\"text\": \"\xff\"}}", "UTF-8"},
        {"{\"train\": {\"text\": \"\\ud800\"}}", "surrogate"},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(f, cases[i][0], strlen(cases[i][0]), cases[i][1]);
    static const char nul[] = "{\"train\": {\"text\": \"a\0b\"}}";
    refused(f, nul, sizeof nul - 1, "line 1");
    char deep[512] = "{\"train\": ";
    memset(deep + strlen(deep), '[', 400);
    refused(f, deep, strlen(deep), "nested deeper");
}

// A model may have fewer ids than its tokenizer. Ids it does not have are refused, and padding is
// an id it has.
static void test_fewer_ids_than_the_tokenizer(void **state) {
    struct fixture *f = *state;
    const struct request_options o = {.knobs = &f->knobs, .vocab = 'c'};
    struct request_reader *all = f->reader;
    struct err e = {0};
    assert_int_equal(request_reader_open(&f->reader, &o, &e), 0);
    static const char line[] = "{\"evaluate\": {\"text\": \"abc\"}}";
    refused(f, line, sizeof line - 1, "the model has ids 0 to 98");
    reads(f, "{\"evaluate\": {\"input_ids\": [97, 98]}}");
    for (int t = 1; t < COLUMNS; t++)
        assert_int_equal(f->rows[0][t], 0);
    request_reader_close(f->reader);
    request_reader_close(NULL);
    f->reader = all;
}

static void test_room_of_a_line(void **state) {
    struct fixture *f = *state;
    assert_int_equal(request_columns(&f->knobs), COLUMNS);
    const size_t least = request_line_most(&f->knobs);
    set(f, "interactive.seq=8192");
    assert_int_equal(request_columns(&f->knobs), 3 * 8192);
    assert_true(request_line_most(&f->knobs) > least);
}

// The id is known if it could be read. A bad record does not lose it.
static void test_the_id_survives(void **state) {
    struct fixture *f = *state;
    struct request x;
    static const char line[] = "{\"id\": 12, \"train\": {\"words\": 1}}";
    assert_int_not_equal(request_read(f->reader, line, sizeof line - 1, f->rows, &x, NULL), 0);
    assert_int_equal(x.id.number, 12);
    assert_int_equal(request_read(f->reader, line, sizeof line - 1, NULL, &x, NULL), 0);
    assert_int_equal(x.id.number, 12);
}

// An id that is not valid gives no id: the answer must not have the id 0.
static void test_no_id_from_half_a_number(void **state) {
    struct fixture *f = *state;
    static const char *const ids[] = {"1.5", "1e400", "99999999999999999999",
                                      "-",   "[1]",   "\"\\x\""};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        struct request x;
        char line[128];
        const int n =
            snprintf(line, sizeof line, "{\"id\": %s, \"train\": {\"text\": \"a\"}}", ids[i]);
        assert_int_not_equal(request_read(f->reader, line, (size_t)n, f->rows, &x, NULL), 0);
        assert_int_equal(x.id.type, REQUEST_ID_NONE);
    }
}

// Every prefix and every changed byte of a good line gives an answer or an error.
static void test_damaged_lines(void **state) {
    struct fixture *f = *state;
    static const char good[] =
        "{\"train\": [{\"messages\": [{\"role\": \"user\", \"content\": \"a\"},"
        "{\"role\": \"assistant\", \"content\": \"b\"}]}], \"id\": \"x\\u00e9\"}";
    char line[sizeof good];
    struct request x;
    for (size_t n = 0; n < sizeof good; n++) {
        memcpy(line, good, sizeof good);
        request_read(f->reader, line, n, f->rows, &x, NULL);
        for (int c = 0; n < sizeof good - 1 && c < 256; c += 5) {
            line[n] = (char)c;
            if (request_read(f->reader, line, sizeof good - 1, f->rows, &x, NULL) == 0)
                assert_true(x.tokens > 0 && x.trained_tokens > 0);
        }
    }
}

static void test_no_data_to_name(void **state) {
    struct fixture *f = *state, other = {0};
    struct err e = {0};
    struct request x;
    static const char line[] = "{\"train\": {\"index\": 0}}";
    other.knobs = f->knobs;
    other.knobs.interactive_data[0] = '\0';
    const struct request_options o = {.knobs = &other.knobs, .vocab = 320};
    assert_int_equal(request_reader_open(&other.reader, &o, &e), 0);
    assert_int_equal(request_reader_bytes(other.reader), 0);
    assert_true(request_reader_bytes(f->reader) > 0);
    assert_int_equal(request_read(other.reader, line, sizeof line - 1, f->rows, &x, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "interactive.data is empty"));
    request_reader_close(other.reader);
    strcpy(other.knobs.interactive_data, "/nowhere.jsonl");
    assert_int_equal(request_reader_open(&other.reader, &o, &e), ERR_IO);
    assert_non_null(strstr(e.text, "interactive.data"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_document_is_a_row),
        cmocka_unit_test(test_prompts_are_context),
        cmocka_unit_test(test_several_records),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_the_id_survives),
        cmocka_unit_test(test_no_id_from_half_a_number),
        cmocka_unit_test(test_damaged_lines),
        cmocka_unit_test(test_no_data_to_name),
        cmocka_unit_test(test_fewer_ids_than_the_tokenizer),
        cmocka_unit_test(test_room_of_a_line),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

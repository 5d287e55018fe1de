// test_sentences.c - a list of sentences: one a line, whatever is added.
#include "base/sentences.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// The sentences of lines, each followed by a bar.
static const char *barred(const char *lines, char out[SENTENCES_BYTES]) {
    const char *sentence;
    size_t n, used = 0;
    while (sentences_next(&lines, &sentence, &n)) {
        memcpy(out + used, sentence, n);
        used += n;
        out[used++] = '|';
    }
    out[used] = '\0';
    return out;
}

static void test_add_and_next(void **state) {
    (void)state;
    struct sentences s = {0};
    char out[SENTENCES_BYTES];
    assert_string_equal(barred(s.lines, out), "");
    sentences_add(&s, "%d steps; and a half", 3);
    assert_string_equal(s.lines, "3 steps; and a half");
    sentences_add(&s, "%s", "100 %");
    assert_string_equal(s.lines, "3 steps; and a half\n100 %");
    assert_string_equal(barred(s.lines, out), "3 steps; and a half|100 %|");
}

static void test_next_says_where_it_is(void **state) {
    (void)state;
    const char *lines = "ab\nc", *at = lines, *sentence = NULL, *none = NULL;
    size_t n = 9;
    assert_false(sentences_next(&none, &sentence, &n));
    assert_true(sentences_next(&at, &sentence, &n));
    assert_ptr_equal(sentence, lines);
    assert_int_equal(n, 2);
    assert_ptr_equal(at, lines + 3);
    assert_true(sentences_next(&at, &sentence, &n));
    assert_ptr_equal(sentence, lines + 3);
    assert_int_equal(n, 1);
    assert_false(sentences_next(&at, &sentence, &n));
    assert_false(sentences_next(&at, &sentence, &n)); // and stays so
    assert_ptr_equal(at, lines + 4);
}

static void test_a_line_break_does_not_end_one(void **state) {
    (void)state;
    struct sentences s = {0};
    char out[SENTENCES_BYTES];
    sentences_add(&s, "one");
    sentences_add(&s, "\ntwo\n%s\n", "still\ntwo");
    sentences_add(&s, "three");
    assert_string_equal(barred(s.lines, out), "one| two still two |three|");
}

static void test_what_does_not_fit_is_cut_off(void **state) {
    (void)state;
    char text[2 * SENTENCES_BYTES], out[SENTENCES_BYTES + 2];
    memset(text, 'x', sizeof text);
    // So many bytes are free when the second sentence comes; its line break is one of them.
    for (size_t room = 0; room < 4; room++) {
        struct {
            struct sentences s;
            char after;
        } x = {.after = '!'};
        const size_t first = SENTENCES_BYTES - 1 - room;
        sentences_add(&x.s, "%.*s", (int)first, text);
        assert_int_equal(strlen(x.s.lines), first);
        sentences_add(&x.s, "yz\nyz");
        sentences_add(&x.s, "%.*s", (int)sizeof text, text);
        assert_int_equal(strlen(x.s.lines), SENTENCES_BYTES - 1);
        assert_int_equal(x.after, '!');
        assert_memory_equal(x.s.lines, text, first);
        assert_string_equal(x.s.lines + first, room == 0   ? ""
                                               : room == 1 ? "\n"
                                               : room == 2 ? "\ny"
                                                           : "\nyz");
        barred(x.s.lines, out);
        assert_int_equal(strlen(out), first + (room > 1 ? room - 1 + 2 : 1));
    }
}

static void check_json(const char *lines, const char *wanted) {
    struct json_writer w;
    struct err e = {0};
    json_writer_to_buffer(&w, 0);
    json_put_object_begin(&w);
    sentences_put_json(lines, "verdict", &w);
    json_put_object_end(&w);
    assert_int_equal(json_writer_finish(&w, &e), 0);
    assert_string_equal(w.buffer, wanted);
    free(w.buffer);
}

static void test_json(void **state) {
    (void)state;
    check_json(NULL, "{\"verdict\":[]}");
    check_json("", "{\"verdict\":[]}");
    check_json("a; b", "{\"verdict\":[\"a; b\"]}"); // one line is one sentence
    check_json("a \"b\"\nc\td", "{\"verdict\":[\"a \\\"b\\\"\",\"c\\td\"]}");
    check_json("a\n", "{\"verdict\":[\"a\"]}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add_and_next),
        cmocka_unit_test(test_next_says_where_it_is),
        cmocka_unit_test(test_a_line_break_does_not_end_one),
        cmocka_unit_test(test_what_does_not_fit_is_cut_off),
        cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

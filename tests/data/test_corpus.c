// test_corpus.c - documents are functions of (seed, index); everything they state is true.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "data/corpus.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOCUMENTS = 30000, SEED = 11 };

static size_t document(uint64_t seed, uint64_t index, char text[CORPUS_MAX_BYTES + 1]) {
    size_t n = corpus_write(seed, index, text);
    text[n] = '\0';
    return n;
}

static enum corpus_kind kind_of(const char *text) { // from its heading
    for (int k = 0; k < CORPUS_KINDS; k++) {
        const char *heading = corpus_heading((enum corpus_kind)k);
        const size_t n = strlen(heading);
        if (strncmp(text, heading, n) == 0 && text[n] == ' ')
            return (enum corpus_kind)k;
    }
    fail_msg("no known heading: %.40s", text);
    return CORPUS_KINDS;
}

static void test_shape_and_determinism(void **state) {
    (void)state;
    size_t kinds[CORPUS_KINDS] = {0}, shortest = SIZE_MAX, longest = 0, total = 0;
    for (uint64_t i = 0; i < DOCUMENTS; i++) {
        char text[CORPUS_MAX_BYTES + 1], again[CORPUS_MAX_BYTES + 1];
        size_t n = document(SEED, i, text);
        assert_int_equal(document(SEED, i, again), n);
        assert_memory_equal(text, again, n);
        assert_in_range(n, CORPUS_MIN_BYTES, CORPUS_MAX_BYTES);
        assert_int_equal(text[n - 1], '\n');
        for (size_t j = 0; j < n; j++)
            assert_true(text[j] == '\n' || (text[j] >= ' ' && text[j] <= '~'));
        kinds[kind_of(text)]++;
        shortest = n < shortest ? n : shortest;
        longest = n > longest ? n : longest;
        total += n;
    }
    for (int k = 0; k < CORPUS_KINDS; k++)
        assert_true(kinds[k] > DOCUMENTS / 30);
    print_message("%zu to %zu bytes, mean %zu\n", shortest, longest, total / DOCUMENTS);
    assert_true(longest > 500 && shortest < 120);
    char a[CORPUS_MAX_BYTES + 1], b[CORPUS_MAX_BYTES + 1];
    document(SEED, 5, a);
    document(SEED + 1, 5, b);
    assert_string_not_equal(a, b);
}

// The grammar bounds the length of a document. A million draws stay inside.
static void test_bounds_over_many(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 300000; i++) {
        char text[CORPUS_MAX_BYTES];
        size_t n = corpus_write(99, i * 0x9e3779b97f4a7c15, text);
        assert_true(n >= CORPUS_MIN_BYTES && n <= CORPUS_MAX_BYTES);
    }
}

static void check_sums(char *line) {
    int a, b, c, used = 0;
    char op;
    assert_int_equal(sscanf(line, "%d %c %d = %d%n", &a, &op, &b, &c, &used), 4);
    assert_int_equal(line[used], '\0');
    assert_true(op == '+' || op == '-');
    assert_int_equal(c, op == '+' ? a + b : a - b);
    assert_true(c >= 0);
}

static void check_count(char *line) {
    int n = 0, previous = 0, step = 0;
    char *rest = NULL;
    for (char *term = strtok_r(line, ",", &rest); term; term = strtok_r(NULL, ",", &rest), n++) {
        int x = atoi(term);
        if (n == 1)
            step = x - previous;
        if (n > 1)
            assert_int_equal(x - previous, step);
        previous = x;
    }
    assert_true(n >= 6 && step != 0);
}

static void check_copy(char *line) {
    char *middle = strstr(line, " = ");
    assert_non_null(middle);
    *middle = '\0';
    assert_string_equal(line, middle + 3);
}

static void check_reverse(char *line) {
    char *middle = strstr(line, " / ");
    assert_non_null(middle);
    *middle = '\0';
    size_t n = strlen(line);
    assert_int_equal(strlen(middle + 3), n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(line[i], middle[3 + n - 1 - i]);
}

struct facts {
    char name[8][16];
    int number[8], n, questions;
};

static void check_recall(char *line, struct facts *f) {
    char name[16], word[16];
    int number;
    if (sscanf(line, "How many has %15[A-Za-z]? %d", name, &number) == 2) {
        int found = 0;
        for (int i = 0; i < f->n; i++)
            if (strcmp(f->name[i], name) == 0) {
                assert_int_equal(f->number[i], number);
                found++;
            }
        assert_int_equal(found, 1);
        f->questions++;
        return;
    }
    assert_int_equal(sscanf(line, "%15[A-Za-z] has %d %15[a-z].", name, &number, word), 3);
    assert_int_equal(f->questions, 0);
    memcpy(f->name[f->n], name, sizeof name);
    f->number[f->n++] = number;
}

static void check_lines(char *text, enum corpus_kind kind) {
    struct facts facts = {0};
    char *rest = NULL;
    strtok_r(text, "\n", &rest); // heading
    for (char *line = strtok_r(NULL, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (kind == CORPUS_SUM)
            check_sums(line);
        else if (kind == CORPUS_COUNT_UP)
            check_count(line);
        else if (kind == CORPUS_COPY)
            check_copy(line);
        else if (kind == CORPUS_REVERSE)
            check_reverse(line);
        else
            check_recall(line, &facts);
    }
    if (kind == CORPUS_RECALL)
        assert_true(facts.questions > 0 && facts.n >= 2);
}

// A separate list: with the generator's tables the test would agree with it in any case.
static bool is_she(const char *name) {
    static const char she[] = " Anna Bella Clara Dora Emma Fiona Grace Hanna Iris Julia Kira Lucy ";
    static const char he[] = " Adam Ben Carl David Erik Felix Georg Hugo Jakob Leo Max Paul ";
    char key[32];
    snprintf(key, sizeof key, " %.20s ", name);
    bool female = strstr(she, key) != NULL;
    assert_true(female || strstr(he, key) != NULL);
    return female;
}

static void check_story(char *text) {
    char thing[4][16], owner[4][16], subject[16] = "";
    int n = 0;
    bool asked = false;
    char *at = strchr(text, '\n') + 1;
    while (*at != '\0' && *at != '\n') {
        char a[16], b[16], c[16];
        size_t length = strcspn(at, ".?");
        assert_true(at[length] != '\0');
        if (sscanf(at, "Who has the %15[a-z]? %15[A-Za-z].", a, b) == 2) {
            int found = 0;
            for (int i = 0; i < n; i++)
                if (strcmp(thing[i], a) == 0) {
                    assert_string_equal(owner[i], b);
                    found++;
                }
            assert_int_equal(found, 1);
            asked = true;
            at += length + 1;
            at += strcspn(at, ".") + 1;
            continue;
        }
        assert_false(asked);
        char first[16];
        assert_int_equal(sscanf(at, "%15[A-Za-z]", first), 1);
        char sentence[128];
        snprintf(sentence, sizeof sentence, "%.*s", (int)length, at);
        if (strcmp(first, "She") == 0 || strcmp(first, "He") == 0) {
            assert_true(subject[0] != '\0');
            assert_int_equal(is_she(subject), strcmp(first, "She") == 0);
        } else {
            memcpy(subject, first, sizeof subject);
            bool she = is_she(first);
            if (strstr(sentence, " her "))
                assert_true(she);
            if (strstr(sentence, " his "))
                assert_false(she);
            if (sscanf(sentence, "%15[A-Za-z] has %15[a-z] %*s %15[a-z]", a, b, c) == 3) {
                const char *adjective = strstr(sentence, " has ") + 5 + strlen(b) + 1;
                bool vowel = strchr("aeiou", adjective[0]) != NULL;
                assert_string_equal(b, vowel ? "an" : "a");
                memcpy(thing[n], c, sizeof c);
                memcpy(owner[n++], a, sizeof a);
            } else if (sscanf(sentence, "%15[A-Za-z] gave the %15[a-z] to %15[A-Za-z]", a, b, c) ==
                       3) {
                int found = 0;
                for (int i = 0; i < n; i++)
                    if (strcmp(thing[i], b) == 0) {
                        assert_string_equal(owner[i], a);
                        memcpy(owner[i], c, sizeof c);
                        found++;
                    }
                assert_int_equal(found, 1);
                assert_string_not_equal(a, c);
            }
        }
        at += length + 1;
        while (*at == ' ')
            at++;
    }
    assert_true(asked);
}

static void test_statements_are_true(void **state) {
    (void)state;
    for (uint64_t i = 0; i < DOCUMENTS; i++) {
        char text[CORPUS_MAX_BYTES + 1];
        document(SEED, i, text);
        if (kind_of(text) == CORPUS_STORY)
            check_story(text);
        else
            check_lines(text, kind_of(text));
    }
}

static void test_speed(void **state) {
    (void)state;
    char text[CORPUS_MAX_BYTES];
    uint64_t begin = clock_ns(), bytes = 0;
    for (uint64_t i = 0; i < 100000; i++)
        bytes += corpus_write(1, i, text);
    double mb_per_s = (double)bytes / 1e6 / (1e-9 * (double)(clock_ns() - begin));
    print_message("corpus: %.0f MB/s\n", mb_per_s);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(mb_per_s > 20);
#endif
}

int main(int argc, char **argv) {
    if (argc > 1) { // prints some documents: test_corpus FIRST
        for (uint64_t i = 0; i < 12; i++) {
            char text[CORPUS_MAX_BYTES + 1];
            document(1, strtoull(argv[1], NULL, 10) + i, text);
            printf("%s---\n", text);
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shape_and_determinism),
        cmocka_unit_test(test_bounds_over_many),
        cmocka_unit_test(test_statements_are_true),
        cmocka_unit_test(test_speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_pattern.c - patterns of published tokenizers, and corner cases of the syntax. The expected
// matches were found with Oniguruma 6.9.8, the library that published tokenizers were made with.
#include "model/scratch.h"

#include "model/pattern.h"

struct sample {
    const char *pattern, *text;
    const char *matches; // separated by |
};

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
static const struct sample samples[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     "It's 42  now,\n\n ok", "It|'s| 42| | now|,|\n\n| ok"},
    {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                 "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     "WE'LL\xE2\x80\xA6 1234!\n x  y", "WE|'LL|\xE2\x80\xA6| |123|4|!\n| x| | y"},
    {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*"
     "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
     "a.b\n\n  'Re", "a|.b|\n\n| | '|Re"},
    {" ?[^(\\s|[.,!?\xE2\x80\xA6])]+", "Hi there (you), a|b", "Hi| there|you| a|b"},
    {"[0-9][0-9][0-9]", "12345678", "123|456"},
    {"(?=(\\d{3})+(?!\\d))", "1234567 12", "|"},
    {"\\d{1,3}(?=(?:\\d{3})*\\b)", "1234567", "1|234|567"},
    {"a+?b|a*?c|x??y", "aab aac xy", "aab|aac|xy"},
    {"a*|b", "baab", "|aa|"},
    {"(?:ab|a){2,3}|b{,2}c", "ababaa bbbc", "ababa|bbc"},
    {"\\b\\w|\\w\\B.", "ab cd", "a|c"},
    {"^.|.$", "ab\ncd\n", "a|b|c|d"},
    {"\\h+|\\H", "fg", "f|g"},
    {"[a-c&&[^b]]+|[[xy]z]+", "abcxyzw", "a|c|xyz"},
    {"[[:punct:]]+|[^[:space:]a-z]", "a+b.,A", "+|.,|A"},
    {"(?i)stra\xC3\x9F", "STRA\xC3\x9F", "STRA\xC3\x9F"},
    {"(?i:k)", "kK\xE2\x84\xAA", "k|K|\xE2\x84\xAA"},
    {"(?i:[a-z])", "\xC4\xB0\xC4\xB1x\xC5\xBF", "x|\xC5\xBF"},
    {"a(?i)b|c", "aB aC b", "aB|aC"},
    {"x(?=yz)|y(?!z+x)|(?<=xy)z", "xyz xyzx", "x|y|z|x|z"},
    {"\\p{Han}+|\\p{^L}", "\xE4\xBD\xA0\xE5\xA5\xBDz!", "\xE4\xBD\xA0\xE5\xA5\xBD|!"},
    {"\\x41\\x{42}\\u0043\\t", "ABC\t", "ABC\t"},
    {"a{2}?", "aaa", "aa|"},
    {"a{,", "a{,", "a{,"},
    {"(?m:a.b)|a.c", "a\nb a\nc", "a\nb"},
    {"\\0101\\x42", "AB", ""},
    {"[[:^digit:]x]+", "ab12x", "ab|x"},
    {"[\\b]", "a\010c", "\010"},
    {"a(?=b|$)|(?<=x|^)c", "ab aa c\012c xc", "a|c|c"},
    {"(?i:a(?-i:b))", "AB Ab", "Ab"},
    {"(?<!a)b|(?<!ab)c", "ab cb abc", "c|b"},
    {"\\Aa|a\\z", "aaa", "a|a"},
    {"\\p{Any}\\p{ASCII}", "\303\251a1", "\303\251a"},
    {"\\p{Digit}+|\\p{Uppercase_Letter}|\\p{ Lu}", "12Ab", "12|A"},
    {"(?<name>ab)+", "abab", "abab"},
    {"\\s{2,}|[^\\S]", "a  b c", "  | "},
    {"(?:)|a", "aa", "||"},
    {"]a|[]b]", "]a]b", "]a|]|b"},
    {"a{,2}b{1}c{2,}", "aabcc abc", "aabcc"},
    {"[^&&a]", "ab&", "a|b|&"},
    {"\\w+", "\xC2\xBD\xC2\xB2\xE0\xA7\xB4", "\xC2\xBD\xC2\xB2"},
    {"[\\w]+",
     "\xC2\xBD"
     "a",
     "a"},
};

static void find_all(char *out, size_t most, const struct pattern *p, const char *text, size_t n) {
    struct pattern_scan s;
    struct err e = {0};
    size_t begin, end, used = 0;
    bool first = true;
    out[0] = '\0';
    pattern_scan_begin(&s, p, (const uint8_t *)text, n, false);
    while (pattern_scan_next(&s, &begin, &end) && used + (end - begin) + 2 < most) {
        used += (size_t)snprintf(out + used, most - used, "%s%.*s", first ? "" : "|",
                                 (int)(end - begin), text + begin);
        first = false;
    }
    if (pattern_scan_end(&s, &e) != 0)
        fail_msg("%s", e.text);
}

static void test_samples(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        struct pattern *p;
        struct err e = {0};
        char found[512];
        const struct sample *s = &samples[i];
        if (pattern_open(&p, s->pattern, strlen(s->pattern), false, &e) != 0)
            fail_msg("%s: %s", s->pattern, e.text);
        find_all(found, sizeof found, p, s->text, strlen(s->text));
        if (strcmp(found, s->matches) != 0)
            fail_msg("%s on '%s': found '%s', expected '%s'", s->pattern, s->text, found,
                     s->matches);
        pattern_close(p);
    }
}

// Patterns that exceed a limit.
static void test_limits(void **state) {
    (void)state;
    static const struct {
        const char *repeat;
        int times;
        const char *after, *says;
    } limits[] = {{"a", 20000, "", "16384"},
                  {"a", 5000, "", "too long"},
                  {"(", 100, "", "too deep"},
                  {"[", 100, "", "too deep"},
                  {"a", 1, "{2}{2}{2}{2}{2}{2}", "quantifiers"},
                  {"(?=ab)", 6, "", "lookaround"},
                  {"(?:a{100}b?){100}", 1, "", "expanded"}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct pattern *p;
        struct err e = {0};
        size_t n = strlen(limits[i].repeat);
        char *text = malloc(n * (size_t)limits[i].times + 64);
        assert_non_null(text);
        for (int k = 0; k < limits[i].times; k++)
            memcpy(text + n * (size_t)k, limits[i].repeat, n);
        strcpy(text + n * (size_t)limits[i].times, limits[i].after);
        assert_int_equal(pattern_open(&p, text, strlen(text), false, &e), ERR_UNSUPPORTED);
        if (!strstr(e.text, limits[i].says))
            fail_msg("%.40s...: '%s' does not have '%s'", text, e.text, limits[i].says);
        free(text);
    }
    char sets[400];
    size_t n = 0;
    for (int c = 0; c < 70; c++)
        n += (size_t)snprintf(sets + n, sizeof sets - n, "\\x%02x", 0x20 + c);
    struct pattern *p;
    struct err e = {0};
    assert_int_equal(pattern_open(&p, sets, n, false, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "64 different"));
}

// A text that is searched as characters of the byte-level alphabet.
static void test_mapped(void **state) {
    (void)state;
    struct pattern *p;
    struct pattern_scan s;
    struct err e = {0};
    size_t begin, end;
    assert_int_equal(pattern_open(&p, "\\b\\p{No}", 8, false, &e), 0);
    // The bytes are spelled as G with a dot and two superscripts 2.
    pattern_scan_begin(&s, p, (const uint8_t *)" \xB2\xB2", 3, true);
    assert_false(pattern_scan_next(&s, &begin, &end));
    assert_int_equal(pattern_scan_end(&s, &e), 0);
    pattern_scan_begin(&s, p, (const uint8_t *)"!\xB2", 2, true);
    assert_true(pattern_scan_next(&s, &begin, &end));
    assert_int_equal(begin, 1);
    assert_int_equal(end, 2);
    assert_int_equal(pattern_scan_end(&s, &e), 0);
    pattern_close(p);
}

static void test_literal(void **state) {
    (void)state;
    struct pattern *p;
    struct err e = {0};
    char found[64];
    assert_int_equal(pattern_open(&p, "a.+", 3, true, &e), 0);
    find_all(found, sizeof found, p, "abc a.+ aa.+", 12);
    assert_string_equal(found, "a.+|a.+");
    pattern_close(p);
}

// Each byte that is not UTF-8 is one character, and no text is lost.
static void test_bad_bytes(void **state) {
    (void)state;
    struct pattern *p;
    struct err e = {0};
    struct pattern_scan s;
    static const uint8_t text[] = {'a', 0xFF, 0xC3, 'b', 0xE2, 0x82, 0xF0, 0x9F, 0x98};
    size_t begin, end, covered = 0, n = 0;
    assert_int_equal(pattern_open(&p, "\\p{L}+|[^\\p{L}]", 15, false, &e), 0);
    pattern_scan_begin(&s, p, text, sizeof text, false);
    for (; pattern_scan_next(&s, &begin, &end); n++) {
        assert_int_equal(begin, covered);
        covered = end;
    }
    assert_int_equal(pattern_scan_end(&s, &e), 0);
    assert_int_equal(covered, sizeof text);
    assert_int_equal(n, 9);
    pattern_close(p);
}

static void test_refused(void **state) {
    (void)state;
    static const char *const refused[] = {
        "(a)\\1",
        "(?>a+)b",
        "a(?>b)",
        "(?<n>a)\\k<n>",
        "\\G",
        "(?#x)a",
        "[a",
        "(a",
        "a)",
        "*a",
        "a{2,1}",
        "a{1,100000}",
        "\\p{Nonsense}",
        "\\p{L",
        "\\pL",
        "[b-a]",
        "[[:bogus:]]",
        "\\",
        "(?x: a b)",
        "(ab)++",
        "(?<n",
        "\\x{110000}",
        "\\u12",
        "a****+",
        "(?=a(?=bc)d)",
        "((((a{900}){900}){900}){900})",
        "(?:a|b)*a(?:a|b){14}c",
        "\\R",
        "\\X",
        "a\xFF",
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct pattern *p;
        struct err e = {0};
        int rc = pattern_open(&p, refused[i], strlen(refused[i]), false, &e);
        if (rc == 0)
            fail_msg("'%s' was accepted", refused[i]);
        assert_int_equal(rc, ERR_UNSUPPORTED);
        assert_null(p);
        assert_true(e.text[0] != '\0');
    }
}

// Patterns for which a backtracking matcher needs quadratic or exponential time. The test counts
// work and does not measure time: each byte is read a bounded number of times, and twice the text
// is twice the work.
static void test_linear(void **state) {
    (void)state;
    static const char *const patterns[] = {"a*b",         "(a+)+b",      "(a|aa)+$b",
                                           "a*a*a*a*b|a", "x|a*[bc]a*d", "(?=a*b)a|c"};
    enum { N = 1 << 15 };
    char *text = malloc(2 * N);
    assert_non_null(text);
    memset(text, 'a', 2 * N);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        struct pattern *p;
        struct err e = {0};
        uint64_t steps[2];
        if (pattern_open(&p, patterns[i], strlen(patterns[i]), false, &e) != 0)
            fail_msg("%s: %s", patterns[i], e.text);
        for (int k = 0; k < 2; k++) {
            struct pattern_scan s;
            size_t begin, end;
            pattern_scan_begin(&s, p, (const uint8_t *)text, (size_t)N << k, false);
            while (pattern_scan_next(&s, &begin, &end))
                assert_true(end <= (size_t)N << k);
            steps[k] = s.steps;
            assert_int_equal(pattern_scan_end(&s, &e), 0);
        }
        if (steps[0] > 100 * N || 2 * steps[1] > 5 * steps[0])
            fail_msg("%s: %llu steps for %d bytes, %llu for twice that", patterns[i],
                     (unsigned long long)steps[0], N, (unsigned long long)steps[1]);
        pattern_close(p);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples),   cmocka_unit_test(test_literal),
        cmocka_unit_test(test_bad_bytes), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_linear),    cmocka_unit_test(test_limits),
        cmocka_unit_test(test_mapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

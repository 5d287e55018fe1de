// test_tokenizer_parts.c - where a text is cut by each pre-tokenizer, behavior, normalizer and flag
// of added tokens. tokenizer_file.h explains how the pieces become visible.
#include "model/tokenizer_file.h"

#define BYTES      "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define SEQ(parts) "{\"type\": \"Sequence\", \"pretokenizers\": [" parts ", " BYTES "]}"
#define SPLIT(pattern, behavior, invert)                                                           \
    SEQ("{\"type\": \"Split\", \"pattern\": " pattern ", \"behavior\": \"" behavior                \
        "\", \"invert\": " invert "}")
#define COMMA    "{\"String\": \",\"}"
#define REGEX(r) "{\"Regex\": \"" r "\"}"

struct cut {
    const char *pre, *normalizer, *text, *pieces;
};

static const struct cut cuts[] = {
    {BYTES, NULL, "a b 12", "a b 12"},
    {SPLIT(COMMA, "Removed", "false"), NULL, "a,,b,", "a|b"},
    {SPLIT(COMMA, "Isolated", "false"), NULL, "a,,b,", "a|,|,|b|,"},
    {SPLIT(COMMA, "MergedWithPrevious", "false"), NULL, ",a,,b,", ",|a,|,|b,"},
    {SPLIT(COMMA, "MergedWithNext", "false"), NULL, ",a,,b,", ",a|,|,b|,"},
    {SPLIT(COMMA, "Contiguous", "false"), NULL, "a,,b,", "a|,,|b|,"},
    {SPLIT(COMMA, "Removed", "true"), NULL, "a,,b,", ",|,|,"},
    {SPLIT(COMMA, "MergedWithPrevious", "true"), NULL, "a,,b,", "a|,|,b|,"},
    {SPLIT(REGEX("\\\\d+"), "Isolated", "false"), NULL, "ab12c3", "ab|12|c|3"},
    {SPLIT(REGEX("(?=[A-Z])"), "Isolated", "false"), NULL, "aBcD", "a|Bc|D"},
    {SEQ("{\"type\": \"Digits\", \"individual_digits\": true}"), NULL, "a12b\xC2\xB2",
     "a|1|2|b|\xC2\xB2"},
    {SEQ("{\"type\": \"Digits\", \"individual_digits\": false}"), NULL, "a12b", "a|12|b"},
    {SEQ("{\"type\": \"Punctuation\"}"), NULL, "a,.b$", "a|,|.|b|$"},
    {SEQ("{\"type\": \"Punctuation\", \"behavior\": \"Contiguous\"}"), NULL, "a,.b", "a|,.|b"},
    {SEQ("{\"type\": \"WhitespaceSplit\"}"), NULL,
     " a  b\xE3\x80\x80"
     "c",
     "a|b|c"},
    {SEQ("{\"type\": \"Whitespace\"}"), NULL, "ab, c!?", "ab|,|c|!?"},
    {SEQ("{\"type\": \"CharDelimiterSplit\", \"delimiter\": \"-\"}"), NULL, "a-b--c", "a|b|c"},
    {"{\"type\": \"ByteLevel\", \"add_prefix_space\": false}", NULL, "it's a 12", "it|'s| a| 12"},
    // After ByteLevel each byte is a character. In E2 B2 B2, two bytes are spelled as superscripts.
    {"{\"type\": \"Sequence\", \"pretokenizers\": [" BYTES ", {\"type\": \"Digits\", "
     "\"individual_digits\": false}]}",
     NULL,
     "\xE2\xB2\xB2"
     "a1",
     "\xE2|\xB2\xB2|a|1"},
    {BYTES, "{\"type\": \"NFC\"}", "e\xCC\x81x", "\xC3|\xA9|x"},
    {BYTES, "{\"type\": \"Lowercase\"}", "AbC", "a|b|c"},
    {BYTES, "{\"type\": \"Prepend\", \"prepend\": \"_\"}", "x", "_|x"},
    {BYTES, "{\"type\": \"Strip\", \"strip_left\": true, \"strip_right\": false}", " x ", "x "},
    {BYTES,
     "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Replace\", \"pattern\": "
     "{\"Regex\": \"b+\"}, \"content\": \"c\"}, {\"type\": \"NFKC\"}]}",
     "abb\xEF\xAC\x81", "a|c|f|i"},
};

static void test_cuts(void **state) {
    struct scratch *s = *state;
    char path[512], pieces[512];
    snprintf(path, sizeof path, "%s/tokenizer.json", s->dir);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        const struct cut *c = &cuts[i];
        write_tokenizer(path, &(struct file_parts){c->pre, c->normalizer, NULL, c->text});
        encode_pieces(pieces, sizeof pieces, path, c->text, 0);
        if (strcmp(pieces, c->pieces) != 0)
            fail_msg("%s %s: '%s' became '%s', expected '%s'", c->pre,
                     c->normalizer ? c->normalizer : "", c->text, pieces, c->pieces);
    }
}

static void test_prefix_space(void **state) {
    struct scratch *s = *state;
    char path[512], pieces[512];
    snprintf(path, sizeof path, "%s/tokenizer.json", s->dir);
    write_tokenizer(path, &(struct file_parts){"{\"type\": \"ByteLevel\", \"use_regex\": true}",
                                               NULL, NULL, " ab cd"});
    encode_pieces(pieces, sizeof pieces, path, "ab cd", 0);
    assert_string_equal(pieces, " ab| cd");
    encode_pieces(pieces, sizeof pieces, path, " ab", 0);
    assert_string_equal(pieces, " ab");
    encode_pieces(pieces, sizeof pieces, path, "", 0);
    assert_string_equal(pieces, "");
}

struct added {
    const char *flags, *text, *pieces, *plain;
};

// The token is <t>. It is special, so `plain` does not recognize it.
static const struct added added_cases[] = {
    {"", "a<t>b", "a|<t>|b", "a<t>b"},
    {"", "<t>", "<t>", "<|t|>"}, // a whole piece of the vocabulary, but still not forged
    {", \"lstrip\": true", "a <t> b", "a|<t>| b", "a <t> b"},
    {", \"rstrip\": true", "a <t>  b", "a |<t>|b", "a <t>  b"},
    {", \"single_word\": true", "<t>a <t> (<t>) a<t>", "<t>a |<t>| (|<t>|) a<t>",
     "<t>a <t> (<t>) a<t>"},
};

static void test_added(void **state) {
    struct scratch *s = *state;
    char path[512], pieces[512], list[512];
    snprintf(path, sizeof path, "%s/tokenizer.json", s->dir);
    for (size_t i = 0; i < sizeof added_cases / sizeof *added_cases; i++) {
        const struct added *a = &added_cases[i];
        int id = write_tokenizer(path, &(struct file_parts){BYTES, NULL, NULL, a->text});
        // "<t>" is a part of the text and therefore in the vocabulary, which gives its id.
        struct tokenizer *t;
        struct err e = {0};
        assert_int_equal(tokenizer_open(&t, path, &e), 0);
        id = tokenizer_find(t, "<t>");
        tokenizer_close(t);
        snprintf(list, sizeof list,
                 "[{\"id\": %d, \"content\": \"<t>\", \"normalized\": false, \"special\": true%s}]",
                 id, a->flags);
        write_tokenizer(path, &(struct file_parts){BYTES, NULL, list, a->text});
        encode_pieces(pieces, sizeof pieces, path, a->text, TOKENIZER_SPECIAL);
        assert_string_equal(pieces, a->pieces);
        encode_pieces(pieces, sizeof pieces, path, a->text, 0);
        assert_string_equal(pieces, a->plain);
    }
}

// The longest token at a place counts. A normalized token is searched in normalized text, after the
// others.
static void test_added_order(void **state) {
    struct scratch *s = *state;
    char path[512], pieces[512], list[512];
    const char *text = "<a><ab> <B>";
    snprintf(path, sizeof path, "%s/tokenizer.json", s->dir);
    int id = write_tokenizer(path, &(struct file_parts){BYTES, NULL, NULL, "xy"});
    snprintf(list, sizeof list,
             "[{\"id\": %d, \"content\": \"<a\", \"normalized\": false}, {\"id\": %d, \"content\": "
             "\"<ab>\", \"normalized\": false}, {\"id\": %d, \"content\": \"<B>\", \"normalized\": "
             "true}]",
             id, id + 1, id + 2);
    write_tokenizer(path, &(struct file_parts){BYTES, "{\"type\": \"Lowercase\"}", list, "xy"});
    encode_pieces(pieces, sizeof pieces, path, text, 0);
    assert_string_equal(pieces, "<a|>|<ab>| |<B>");
    encode_pieces(pieces, sizeof pieces, path, "<b>", 0);
    assert_string_equal(pieces, "<B>");
}

static void test_normal_forms(void **state) {
    (void)state;
    static const struct {
        const char *text, *form[4]; // NFC, NFD, NFKC, NFKD
    } forms[] = {
        {"\xC3\xA9", {"\xC3\xA9", "e\xCC\x81", "\xC3\xA9", "e\xCC\x81"}},
        {"e\xCC\x81", {"\xC3\xA9", "e\xCC\x81", "\xC3\xA9", "e\xCC\x81"}},
        {"\xE2\x84\xAB", {"\xC3\x85", "A\xCC\x8A", "\xC3\x85", "A\xCC\x8A"}},
        {"\xEF\xAC\x81", {"\xEF\xAC\x81", "\xEF\xAC\x81", "fi", "fi"}},
        {"\xEA\xB0\x81",
         {"\xEA\xB0\x81", "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81",
          "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"}},
        // Marks are sorted by class and then composed.
        {"a\xCC\x81\xCC\xA3",
         {"\xE1\xBA\xA1\xCC\x81", "a\xCC\xA3\xCC\x81", "\xE1\xBA\xA1\xCC\x81",
          "a\xCC\xA3\xCC\x81"}},
        {"\xFF"
         "e\xCC\x81\xCC", // bytes that are not UTF-8 stay
         {"\xFF\xC3\xA9\xCC",
          "\xFF"
          "e\xCC\x81\xCC",
          "\xFF\xC3\xA9\xCC",
          "\xFF"
          "e\xCC\x81\xCC"}},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (int k = 0; k < 4; k++) {
            struct unicode_buffer b = {0};
            struct err e = {0};
            const uint8_t *text = (const uint8_t *)forms[i].text;
            size_t n = strlen(forms[i].text);
            assert_int_equal(unicode_normalize(&b, text, n, (enum unicode_form)k, &e), 0);
            assert_int_equal(b.n, strlen(forms[i].form[k]));
            assert_memory_equal(b.data, forms[i].form[k], b.n);
            if (unicode_is_normal(text, n, (enum unicode_form)k))
                assert_memory_equal(b.data, text, n);
            free(b.data);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cuts, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_prefix_space, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_added, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_added_order, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_normal_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

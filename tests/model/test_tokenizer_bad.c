// test_tokenizer_bad.c - tokenizer.json files that must be refused with a message that says what is
// wrong. Also cut and damaged files.
#include "model/tokenizer_file.h"

// A valid file, in pieces that a case may replace.
#define VOCAB  "\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"abc\": 4"
#define MERGES "\"a b\", \"ab c\""
#define MODEL(more, vocab, merges)                                                                 \
    "{\"type\": \"BPE\", " more "\"vocab\": {" vocab "}, \"merges\": [" merges "]}"

#define PRE "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true}"

#define ADDED(id, content) "{\"id\": " id ", \"content\": " content ", \"special\": true}"
#define FILE_OF(more, added, normalizer, pre, post, model)                                         \
    "{\"version\": \"1.0\", " more "\"added_tokens\": [" added "], \"normalizer\": " normalizer    \
    ", \"pre_tokenizer\": " pre ", \"post_processor\": " post                                      \
    ", \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": " model "}"
#define GOOD_MODEL     MODEL("", VOCAB, MERGES)
#define GOOD           FILE_OF("", ADDED("5", "\"<e>\""), "null", PRE, "null", GOOD_MODEL)
#define WITH_MODEL(m)  FILE_OF("", ADDED("5", "\"<e>\""), "null", PRE, "null", m)
#define WITH_ADDED(a)  FILE_OF("", a, "null", PRE, "null", GOOD_MODEL)
#define WITH_NORMAL(n) FILE_OF("", ADDED("5", "\"<e>\""), n, PRE, "null", GOOD_MODEL)
#define WITH_PRE(p)    FILE_OF("", ADDED("5", "\"<e>\""), "null", p, "null", GOOD_MODEL)
#define WITH_POST(p)   FILE_OF("", ADDED("5", "\"<e>\""), "null", PRE, p, GOOD_MODEL)
#define WITH_MORE(m)   FILE_OF(m, ADDED("5", "\"<e>\""), "null", PRE, "null", GOOD_MODEL)
// Where symbols are characters.
#define WITH_DECODER(d)                                                                            \
    "{\"version\": \"1.0\", \"pre_tokenizer\": null, \"decoder\": " d ", \"model\": " GOOD_MODEL "}"
#define SPLIT(pattern, behavior)                                                                   \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": " pattern     \
    ", \"behavior\": \"" behavior "\"}, " PRE "]}"
#define TEMPLATE(single, specials)                                                                 \
    "{\"type\": \"TemplateProcessing\", \"single\": [" single "], \"pair\": [], "                  \
    "\"special_tokens\": {" specials "}}"
#define SPECIAL_E "{\"SpecialToken\": {\"id\": \"<e>\", \"type_id\": 0}}"
#define NAMED_E(id, token)                                                                         \
    "\"<e>\": {\"id\": \"<e>\", \"ids\": [" id "], \"tokens\": [\"" token "\"]}"

static const char *const good[] = {
    GOOD,
    FILE_OF("", "", "null", PRE, "null", GOOD_MODEL),
    WITH_MODEL("{"
               "\"vocab\": {" VOCAB "}, \"merges\": [" MERGES "]}"), // no type: an old file
    WITH_MODEL("{\"merges\": [" MERGES "], \"vocab\": {" VOCAB "}, \"type\": \"BPE\"}"),
    WITH_MODEL(MODEL("\"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": \"\", "
                     "\"end_of_word_suffix\": \"\", \"fuse_unk\": false, \"byte_fallback\": false, "
                     "\"ignore_merges\": false, ",
                     VOCAB, "[\"a\", \"b\"], [\"ab\", \"c\"]")),
    WITH_MODEL(MODEL("\"dropout\": 0.0, \"unk_token\": \"<e>\", ", VOCAB, "\"#version: 0.2\"")),
    // A token that no text can become, and a merge that makes a special token, which is ignored.
    WITH_MODEL(
        MODEL("", "\"a\": 0, \"b\": 1, \" x\": 2, \"<e>\": 5, \"<\": 3, \"e>\": 4", "\"< e>\"")),
    WITH_POST(TEMPLATE(SPECIAL_E ", {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}",
                       NAMED_E("5", "<e>"))),
    WITH_POST("{\"type\": \"Sequence\", \"processors\": [" PRE
              ", {\"type\": \"RobertaProcessing\", "
              "\"sep\": [\"<e>\", 5], \"cls\": [\"a\", 0], \"trim_offsets\": true, "
              "\"add_prefix_space\": false}]}"),
    WITH_MORE(
        "\"truncation\": {\"max_length\": 8, \"strategy\": \"LongestFirst\", \"stride\": 0, "
        "\"direction\": \"Right\"}, \"padding\": {\"strategy\": {\"Fixed\": 8}, \"pad_id\": 0, "
        "\"direction\": \"Right\", \"pad_type_id\": 0, \"pad_token\": \"a\", "
        "\"pad_to_multiple_of\": null}, "),
};

struct bad {
    const char *text, *says;
};

static const struct bad bad[] = {
    {"", "ends"},
    {"[]", "object"},
    {"{}", "no member"},
    {GOOD "x", "nothing more"},
    {WITH_MORE("\"extra\": 1, "), "'extra'"},
    {WITH_MORE("\"normalizer\": null, "), "two members"},
    {FILE_OF("", "", "null", PRE, "null", "null"), "expected"},
    {"{\"version\": \"2.0\", \"pre_tokenizer\": " PRE ", \"model\": " GOOD_MODEL "}", "version"},
    // ids
    {WITH_MODEL(MODEL("", "\"a\": -1, \"b\": 1", "")), "the id -1"},
    {WITH_MODEL(MODEL("", "\"a\": 4194304, \"b\": 1", "")), "4194304"},
    {WITH_MODEL(MODEL("", "\"a\": 9223372036854775808", "")), "64-bit"},
    {WITH_MODEL(MODEL("", "\"a\": 0.5", "")), "whole number"},
    {WITH_MODEL(MODEL("", "\"a\": \"0\"", "")), "expected"},
    {WITH_MODEL(MODEL("", "\"a\": 0, \"b\": 0, \"c\": 1, \"d\": 2, \"e\": 3, \"f\": 4", "")),
     "two tokens"},
    {WITH_MODEL(MODEL("", "\"a\": 0, \"b\": 2", "")), "gaps"},
    {WITH_MODEL(MODEL("", "\"a\": 0, \"a\": 1, \"b\": 2, \"c\": 3, \"d\": 4", "")), "two ids"},
    {WITH_MODEL(MODEL("", "", "")), "gaps"},
    {WITH_MODEL(MODEL("", "\"a\": 0, \"b\": 1, \"c\": 2, \"d\": 4, \"<e>\": 5", "")), "the id 3"},
    {WITH_MODEL(MODEL("", "\"\xC3\": 0", "")), "UTF-8"},
    {WITH_MODEL(MODEL("", "\"\\ud800\": 0", "")), "surrogate"},
    {WITH_MODEL("{\"type\": \"BPE\", \"vocab\": [[\"a\", 0.5]], \"merges\": []}"), "vocab"},
    {WITH_MODEL("{\"type\": \"BPE\", \"vocab\": null, \"merges\": []}"), "null"},
    {WITH_MODEL("{\"type\": \"BPE\", \"vocab\": {" VOCAB "}, \"merges\": null}"), "null"},
    {WITH_MODEL("{\"type\": \"BPE\", \"vocab\": {" VOCAB "}}"), "'merges'"},
    // merges
    {WITH_MODEL(MODEL("", VOCAB, "\"\"")), "two parts"},
    {WITH_MODEL(MODEL("", VOCAB, "\"a\"")), "two parts"},
    {WITH_MODEL(MODEL("", VOCAB, "\"a b c\"")), "two parts"},
    {WITH_MODEL(MODEL("", VOCAB, "[]")), "0 parts"},
    {WITH_MODEL(MODEL("", VOCAB, "[\"a\"]")), "1 parts"},
    {WITH_MODEL(MODEL("", VOCAB, "[\"a\", \"b\", \"c\"]")), "3 parts"},
    {WITH_MODEL(MODEL("", VOCAB, "[\"a\", 1]")), "expected"},
    {WITH_MODEL(MODEL("", VOCAB, "7")), "expected"},
    {WITH_MODEL(MODEL("", VOCAB, "\"a z\"")), "'a' and 'z': the vocabulary has no token 'z'"},
    {WITH_MODEL(MODEL("", VOCAB, "\"y b\"")), "'y' and 'b': the vocabulary has no token 'y'"},
    {WITH_MODEL(MODEL("", VOCAB, "[\"y\", \"b\"]")), "has no token 'y'"},
    {WITH_MODEL(MODEL("", VOCAB, "\"a  b\"")), "two parts"},
    {WITH_MODEL(MODEL("", VOCAB, "\"b a\"")), "'b' and 'a' makes a token"},
    {WITH_MODEL(MODEL("", VOCAB, "\"abc abc\"")), "makes a token"},
    // added tokens
    {WITH_ADDED(ADDED("5", "\"\"")), "no text"},
    {WITH_ADDED(ADDED("1", "\"<e>\"")), "two tokens"},
    {WITH_ADDED(ADDED("6", "\"<e>\"")), "gaps"},
    {WITH_ADDED(ADDED("5", "\"a\"")), "two ids"},
    {WITH_ADDED(ADDED("5", "\"<e>\"") ", " ADDED("5", "\"<f>\"")), "two tokens"},
    {WITH_ADDED(ADDED("5", "\"<e>\"") ", " ADDED("6", "\"<e>\"")), "two ids"},
    {WITH_ADDED(ADDED("-1", "\"<e>\"")), "the id -1"},
    {WITH_ADDED("{\"content\": \"<e>\"}"), "'id'"},
    {WITH_ADDED("{\"id\": 5, \"content\": \"<e>\", \"color\": 1}"), "'color'"},
    {WITH_ADDED("{\"id\": 5, \"content\": \"<e>\", \"special\": 1}"), "expected"},
    {WITH_ADDED("5"), "expected"},
    // the model
    {WITH_MODEL("{\"type\": \"Unigram\", \"vocab\": [], \"unk_id\": 0}"), "Unigram"},
    {WITH_MODEL("{\"type\": \"WordPiece\", \"vocab\": {}}"), "WordPiece"},
    {WITH_MODEL(MODEL("\"dropout\": 0.1, ", VOCAB, "")), "dropout"},
    {WITH_MODEL(MODEL("\"dropout\": \"x\", ", VOCAB, "")), "expected"},
    {WITH_MODEL(MODEL("\"unk_token\": \"<none>\", ", VOCAB, "")), "unk_token"},
    {WITH_MODEL(MODEL("\"continuing_subword_prefix\": \"##\", ", VOCAB, "")), "prefix"},
    {WITH_MODEL(MODEL("\"end_of_word_suffix\": \"</w>\", ", VOCAB, "")), "suffix"},
    {WITH_MODEL(MODEL("\"byte_fallback\": true, ", VOCAB, "")), "<0x00>"},
    {WITH_MODEL(MODEL("\"ignore_merges\": 1, ", VOCAB, "")), "expected"},
    {WITH_MODEL(MODEL("\"surprise\": true, ", VOCAB, "")), "'surprise'"},
    // normalizers
    {WITH_NORMAL("{\"type\": \"BertNormalizer\"}"), "BertNormalizer"},
    {WITH_NORMAL("{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AA==\"}"), "Precompiled"},
    {WITH_NORMAL("{\"kind\": \"NFC\"}"), "not supported"},
    {WITH_NORMAL("{\"type\": \"NFC\", \"x\": 1}"), "'x'"},
    {WITH_NORMAL("\"NFC\""), "expected"},
    {WITH_NORMAL("{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"(\"}, \"content\": \"\"}"),
     "pattern"},
    {WITH_NORMAL("{\"type\": \"Prepend\", \"prepend\": 1}"), "expected"},
    // pre-tokenizers
    {WITH_PRE("null"), "a decoder of type 'ByteLevel'"},
    {WITH_PRE("{\"type\": \"Whitespace\"}"), "a decoder of type 'ByteLevel'"},
    {WITH_PRE("{\"type\": \"Metaspace\", \"replacement\": \"__\"}"), "one character"},
    {WITH_PRE("{\"type\": \"Metaspace\", \"replacement\": \"\"}"), "one character"},
    {WITH_PRE("{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": "
              "\"sometimes\"}"),
     "'sometimes'"},
    {WITH_PRE("{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": "
              "\"first\", \"add_prefix_space\": false}"),
     "add_prefix_space is false"},
    {WITH_PRE("{\"type\": \"Sequence\", \"pretokenizers\": [" PRE
              ", {\"type\": \"Metaspace\", \"replacement\": \"_\"}]}"),
     "behind ByteLevel"},
    {WITH_DECODER("{\"type\": \"WordPiece\"}"), "WordPiece"},
    {WITH_DECODER("{\"type\": \"Strip\", \"content\": \" \", \"start\": -1, \"stop\": 0}"),
     "start -1"},
    {WITH_DECODER("{\"type\": \"Strip\", \"content\": \"  \", \"start\": 1, \"stop\": 0}"),
     "one character"},
    {WITH_DECODER("{\"type\": \"ByteFallback\", \"x\": 1}"), "'x'"},
    {WITH_PRE("{\"type\": \"UnicodeScripts\"}"), "UnicodeScripts"},
    {WITH_PRE("{\"type\": \"Sequence\", \"pretokenizers\": [" PRE ", " PRE "]}"), "two ByteLevel"},
    {WITH_PRE("{\"type\": \"Sequence\", \"pretokenizers\": 1}"), "expected"},
    {WITH_PRE("{\"type\": \"ByteLevel\", \"add_prefix_space\": \"no\"}"), "expected"},
    {WITH_PRE("{\"type\": \"ByteLevel\", \"what\": true}"), "'what'"},
    {WITH_PRE(SPLIT("{\"Regex\": \"a\"}", "Sideways")), "Sideways"},
    {WITH_PRE(SPLIT("{\"Regex\": \"(a)\\\\1\"}", "Isolated")), "not accepted"},
    {WITH_PRE(SPLIT("{\"Regex\": \"(?>a)b\"}", "Isolated")), "not supported"},
    {WITH_PRE(SPLIT("{\"Regex\": \"[a\"}", "Isolated")), "byte 2"},
    {WITH_PRE(SPLIT("{\"Regex\": \"(?:a|b)*a(?:a|b){20}c\"}", "Isolated")), "linear"},
    {WITH_PRE(SPLIT("{\"Regex\": \"a\", \"String\": \"b\"}", "Isolated")), "one member"},
    {WITH_PRE(SPLIT("{\"Glob\": \"a\"}", "Isolated")), "'Glob'"},
    {WITH_PRE(SPLIT("\"a\"", "Isolated")), "expected"},
    // post-processors, truncation, padding
    {WITH_POST("{\"type\": \"Mystery\"}"), "Mystery"},
    {WITH_POST(TEMPLATE(SPECIAL_E, "")), "special_tokens"},
    {WITH_POST(TEMPLATE(SPECIAL_E, NAMED_E("5", "<x>"))), "does not exist"},
    {WITH_POST(TEMPLATE(SPECIAL_E, NAMED_E("4", "<e>"))), "the id 4"},
    {WITH_POST(TEMPLATE(SPECIAL_E, NAMED_E("-1", "<e>"))), "the id"},
    {WITH_POST(TEMPLATE(SPECIAL_E, NAMED_E("5, 5", "<e>"))), "numbers"},
    {WITH_POST(TEMPLATE("{\"Sequence\": {\"id\": \"C\", \"type_id\": 0}}", "")), "'C'"},
    {WITH_POST("{\"type\": \"RobertaProcessing\", \"sep\": [\"<z>\", 5], \"cls\": [\"a\", 0]}"),
     "<z>"},
    {WITH_POST("{\"type\": \"BertProcessing\", \"sep\": [\"<e>\", 5, 1], \"cls\": [\"a\", 0]}"),
     "nothing more"},
    {WITH_MORE("\"truncation\": {\"max_length\": 8, \"stride\": 8}, "), "stride"},
    {WITH_MORE("\"truncation\": {\"max_length\": 0, \"stride\": 0}, "), "max_length"},
    {WITH_MORE("\"truncation\": {\"stride\": 0}, "), "'max_length'"},
    {WITH_MORE("\"padding\": {\"strategy\": {\"Fixed\": 0}}, "), "Fixed 0"},
    {WITH_MORE("\"padding\": {\"pad_to_multiple_of\": 0}, "), "pad_to_multiple_of"},
    {"{\"version\": \"1.0\", \"pre_tokenizer\": " PRE ", \"decoder\": {\"type\": \"WordPiece\"}, "
     "\"model\": " GOOD_MODEL "}",
     "WordPiece"},
};

static int open_text(struct scratch *s, const char *text, size_t n, struct err *e) {
    char path[512];
    struct tokenizer *t = NULL;
    snprintf(path, sizeof path, "%s/tokenizer.json", s->dir);
    unlink(path); // some file systems flush a file that is truncated and written again
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    int rc = tokenizer_open(&t, path, e);
    assert_true((rc == 0) == (t != NULL));
    if (rc != 0)
        assert_true(rc == e->code && strstr(e->text, "tokenizer.json") != NULL);
    tokenizer_close(t);
    return rc;
}

static void test_good(void **state) {
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct err e = {0};
        if (open_text(*state, good[i], strlen(good[i]), &e) != 0)
            fail_msg("%s\n%s", good[i], e.text);
    }
}

static void test_bad(void **state) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        if (open_text(*state, bad[i].text, strlen(bad[i].text), &e) == 0)
            fail_msg("accepted: %s", bad[i].text);
        if (!strstr(e.text, bad[i].says))
            fail_msg("%s\nsays '%s', which does not have '%s'", bad[i].text, e.text, bad[i].says);
    }
    print_message("%zu files refused\n", sizeof bad / sizeof *bad);
}

static void test_prefixes_and_flips(void **state) {
    // Without a pattern, because building one takes nearly all the time of opening.
    static const char text[] = WITH_PRE("{\"type\": \"ByteLevel\", \"use_regex\": false}");
    size_t n = sizeof text - 1;
    for (size_t i = 0; i < n; i++) {
        struct err e = {0};
        if (open_text(*state, text, i, &e) == 0)
            fail_msg("the first %zu bytes were accepted", i);
    }
    char *copy = malloc(n);
    assert_non_null(copy);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        struct err e = {0};
        memcpy(copy, text, n);
        copy[bit / 8] ^= (char)(1 << bit % 8);
        open_text(*state, copy, n, &e); // may be accepted or refused
    }
    free(copy);
}

static void test_deep(void **state) {
    char text[4096];
    struct err e = {0};
    size_t n = 0;
    n += (size_t)snprintf(text, sizeof text, "{\"pre_tokenizer\": ");
    for (int i = 0; i < 10; i++)
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "{\"type\": \"Sequence\", \"pretokenizers\": [");
    n += (size_t)snprintf(text + n, sizeof text - n, "%s", PRE);
    for (int i = 0; i < 10; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "]}");
    n += (size_t)snprintf(text + n, sizeof text - n, ", \"model\": %s}", GOOD_MODEL);
    assert_int_not_equal(open_text(*state, text, n, &e), 0);
    assert_non_null(strstr(e.text, "nested"));
    memset(text, '[', 100);
    assert_int_not_equal(open_text(*state, text, 100, &e), 0);
}

static void test_long_added(void **state) {
    char text[2048], name[400];
    struct err e = {0};
    memset(name, 'x', sizeof name);
    name[300] = '\0';
    int n = snprintf(text, sizeof text, WITH_ADDED("{\"id\": 5, \"content\": \"%s\"}"), name);
    assert_int_not_equal(open_text(*state, text, (size_t)n, &e), 0);
    assert_non_null(strstr(e.text, "300 bytes"));
}

static void test_no_file(void **state) {
    (void)state;
    struct tokenizer *t;
    struct err e = {0};
    assert_int_not_equal(tokenizer_open(&t, "/no/such/tokenizer.json", &e), 0);
    assert_null(t);
    assert_non_null(strstr(e.text, "/no/such/tokenizer.json"));
}

// The limit is 100 MB. A sparse file of that size takes no disk space.
static void test_large_file(void **state) {
    struct scratch *s = *state;
    char path[512];
    struct tokenizer *t;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/large.json", s->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(ftruncate(fileno(f), 100 * 1000 * 1000 + 1), 0);
    fclose(f);
    assert_int_equal(tokenizer_open(&t, path, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "large.json"));
}

// A byte without a token is an error when there is no unknown token, and else becomes that token.
static void test_missing_bytes(void **state) {
    struct scratch *s = *state;
    char path[512];
    static const char *const files[] = {
        GOOD, WITH_MODEL(MODEL("\"unk_token\": \"<e>\", ", VOCAB, MERGES)),
        WITH_MODEL(MODEL("\"unk_token\": \"<e>\", \"fuse_unk\": true, ", VOCAB, MERGES))};
    static const size_t counts[] = {0, 4, 2};
    snprintf(path, sizeof path, "%s/tokenizer.json", s->dir);
    for (int i = 0; i < 3; i++) {
        struct tokenizer *t;
        struct tokenizer_encoder *c;
        struct token_list l = {0};
        struct err e = {0};
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(files[i], f);
        fclose(f);
        assert_int_equal(tokenizer_open(&t, path, &e), 0);
        assert_int_equal(tokenizer_encoder_open(&c, t, &e), 0);
        int rc = tokenizer_encode(c, "abcxyz", 6, 0, &l, &e);
        assert_int_equal(rc, i == 0 ? ERR_UNSUPPORTED : 0);
        if (i == 0)
            assert_non_null(strstr(e.text, "0x78"));
        assert_int_equal(l.n, counts[i]);
        if (i > 0)
            assert_int_equal(l.ids[0], 4);
        token_list_free(&l);
        tokenizer_encoder_close(c);
        tokenizer_close(t);
    }
}

// A file whose Replace makes text much longer: refused by name, and quickly.
static void test_growth(void **state) {
    struct scratch *s = *state;
    char path[512], content[1001], step[1200],
        normal[6000] = "{\"type\": \"Sequence\", "
                       "\"normalizers\": [";
    struct tokenizer *t;
    struct tokenizer_encoder *c;
    struct token_list l = {0};
    struct err e = {0};
    memset(content, 'a', 1000);
    content[1000] = '\0';
    snprintf(step, sizeof step,
             "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"%s\"}",
             content);
    for (int i = 0; i < 4; i++) {
        strcat(normal, i ? ", " : "");
        strcat(normal, step);
    }
    strcat(normal, "]}");
    snprintf(path, sizeof path, "%s/tokenizer.json", s->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "{\"added_tokens\": [], \"normalizer\": %s, \"pre_tokenizer\": %s, \"model\": %s}",
            normal, PRE, GOOD_MODEL);
    fclose(f);
    assert_int_equal(tokenizer_open(&t, path, &e), 0);
    assert_int_equal(tokenizer_encoder_open(&c, t, &e), 0);
    assert_int_equal(tokenizer_encode(c, "b", 1, 0, &l, &e), 0);
    assert_int_equal(tokenizer_encode(c, "abcabcabc", 9, 0, &l, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, path));
    assert_non_null(strstr(e.text, "Replace (2 of 4)"));
    assert_int_equal(l.n, 1);
    tokenizer_encoder_close(c);
    tokenizer_close(t);
    // The same for the decoder, and for an added token that is normalized.
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "{\"pre_tokenizer\": null, \"decoder\": {\"type\": \"Sequence\", \"decoders\": [%s, "
            "%s, %s]}, \"model\": %s}",
            step, step, step, GOOD_MODEL);
    fclose(f);
    char *out = NULL;
    size_t bytes = 0, capacity = 0;
    assert_int_equal(tokenizer_open(&t, path, &e), 0);
    assert_int_equal(tokenizer_decode(t, &(int32_t){0}, 1, 0, &out, &bytes, &capacity, &e),
                     ERR_FORMAT);
    assert_non_null(strstr(e.text, "Replace (2 of 3)"));
    free(out);
    tokenizer_close(t);
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "{\"added_tokens\": [{\"id\": 5, \"content\": \"<aaa>\", \"normalized\": true}], "
            "\"normalizer\": %s, \"pre_tokenizer\": %s, \"model\": %s}",
            normal, PRE, GOOD_MODEL);
    fclose(f);
    assert_int_equal(tokenizer_open(&t, path, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "Replace (1 of 4)"));
    token_list_free(&l);
}

// Many short texts between added tokens share one bound.
static void test_growth_of_many(void **state) {
    struct scratch *s = *state;
    char path[512], content[401];
    struct tokenizer *t;
    struct tokenizer_encoder *c;
    struct token_list l = {0};
    struct err e = {0};
    memset(content, 'b', 400);
    content[400] = '\0';
    snprintf(path, sizeof path, "%s/tokenizer.json", s->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "{\"added_tokens\": [%s], \"normalizer\": {\"type\": \"Replace\", \"pattern\": "
            "{\"String\": \"a\"}, \"content\": \"%s\"}, \"pre_tokenizer\": %s, \"model\": %s}",
            ADDED("5", "\"<e>\""), content, PRE, GOOD_MODEL);
    fclose(f);
    assert_int_equal(tokenizer_open(&t, path, &e), 0);
    assert_int_equal(tokenizer_encoder_open(&c, t, &e), 0);
    char text[4 * 1000];
    for (size_t i = 0; i < sizeof text; i += 4)
        memcpy(text + i, "a<e>", 4);
    assert_int_equal(tokenizer_encode(c, text, 40, TOKENIZER_SPECIAL, &l, &e), 0);
    assert_int_equal(l.n, 10 * 401);
    assert_int_equal(tokenizer_encode(c, text, sizeof text, TOKENIZER_SPECIAL, &l, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "Replace (1 of 1)"));
    token_list_free(&l);
    tokenizer_encoder_close(c);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_good, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_bad, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_prefixes_and_flips, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_deep, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_long_added, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_no_file),
        cmocka_unit_test_setup_teardown(test_large_file, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_missing_bytes, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_growth, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_growth_of_many, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

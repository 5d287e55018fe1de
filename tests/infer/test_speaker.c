// test_speaker.c - a text that is said piece by piece is the text decoded at once, for every
// tokenizer, random ids and any cut; stop strings end it at the same byte.
#include "base/rng.h"
#include "base/utf8.h"
#include "expect.h"
#include "infer/speaker.h"
#include "skips.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { IDS = 60, ROUNDS = 40 };

struct said {
    char text[1 << 16];
    size_t n;
    bool stopped;
};

static void add(struct said *s, const struct speaker_piece *p) {
    assert_true(s->n + p->bytes < sizeof s->text);
    char valid[1 << 12];
    if (p->bytes < sizeof valid / 3) { // every piece is valid by itself
        assert_int_equal(utf8_repair(p->text, p->bytes, valid), p->bytes);
        assert_memory_equal(valid, p->text, p->bytes);
    }
    memcpy(s->text + s->n, p->text, p->bytes);
    s->n += p->bytes;
    s->stopped = p->stopped;
}

// In pieces of `step` ids, the first `prompt` of them in one piece in which no stop is looked for.
static void say(struct speaker *s, const int32_t *ids, int64_t n, int64_t prompt, int64_t step,
                unsigned flags, struct said *out) {
    struct err e = {0};
    struct speaker_piece p;
    out->n = 0;
    out->stopped = false;
    speaker_begin(s, flags);
    assert_worked(speaker_say(s, ids, prompt, false, &p, &e), &e);
    add(out, &p);
    for (int64_t i = prompt; i < n && !out->stopped; i += step) {
        assert_worked(speaker_say(s, ids + i, step < n - i ? step : n - i, true, &p, &e), &e);
        add(out, &p);
    }
    if (!out->stopped) {
        assert_worked(speaker_finish(s, &p, &e), &e);
        add(out, &p);
    }
}

static void at_once(const struct tokenizer *t, const int32_t *ids, int64_t n, unsigned flags,
                    struct said *out) {
    struct err e = {0};
    char *text = NULL;
    size_t bytes = 0, capacity = 0;
    int32_t known[IDS];
    size_t k = 0;
    for (int64_t i = 0; i < n; i++)
        if (tokenizer_has(t, ids[i]))
            known[k++] = ids[i];
    assert_worked(tokenizer_decode(t, known, k, flags, &text, &bytes, &capacity, &e), &e);
    assert_true(3 * bytes < sizeof out->text);
    out->n = utf8_repair(text, bytes, out->text);
    free(text);
}

// Cuts at the first byte where a stop string ends, there at the longest. Plain, as the header says.
static void cut(struct said *s, const char *const *stops, size_t n) {
    s->stopped = false;
    for (size_t end = 1; end <= s->n; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n; i++) {
            const size_t bytes = strlen(stops[i]);
            if (bytes <= end && bytes > longest &&
                memcmp(s->text + end - bytes, stops[i], bytes) == 0)
                longest = bytes;
        }
        if (longest > 0) {
            s->n = end - longest;
            s->stopped = true;
            return;
        }
    }
}

static int32_t byte_token(const struct tokenizer *t, unsigned byte) {
    char name[8];
    snprintf(name, sizeof name, "<0x%02X>", byte & 255);
    return tokenizer_find(t, name);
}

// Random ids; in some rounds mostly bytes, which are parts of characters or nonsense.
static void draw(const struct tokenizer *t, uint64_t seed, int round, int32_t ids[IDS]) {
    static const char some[] = "\xE4\xBD\xA0\xC3\xA9\xF0\x9F\x98\x80 a";
    for (int i = 0; i < IDS; i++) {
        const uint64_t at = (uint64_t)(round * IDS + i);
        ids[i] = (int32_t)rng_below(seed, 1, at, (uint64_t)tokenizer_size(t) + 2); // not all exist
        if (round % 3 == 0 || rng_below(seed, 2, at, 8) == 0)
            continue;
        const unsigned byte = round % 3 == 1 ? (unsigned char)some[(size_t)i % (sizeof some - 1)]
                                             : (unsigned)rng_below(seed, 3, at, 256);
        const int32_t id = byte_token(t, byte);
        ids[i] = id >= 0 ? id : ids[i];
    }
    for (int i = 0; i < IDS; i++)
        if (ids[i] >= tokenizer_size(t))
            ids[i] = tokenizer_size(t) - 1;
}

static void check(const struct tokenizer *t, const char *name) {
    static struct said one, pieces;
    struct err e = {0};
    struct speaker *s;
    assert_worked(speaker_open(&s, t, IDS, NULL, 0, &e), &e);
    for (int round = 0; round < ROUNDS; round++) {
        int32_t ids[IDS];
        draw(t, 7, round, ids);
        const unsigned flags = round & 1 ? TOKENIZER_CONTINUES : 0;
        at_once(t, ids, IDS, flags, &one);
        for (int64_t step = 1; step < IDS; step += step < 3 ? 1 : 9) {
            say(s, ids, IDS, (round * 5) % IDS, step, flags, &pieces);
            if (one.n != pieces.n || memcmp(one.text, pieces.text, one.n) != 0)
                fail_msg("%s, round %d, %lld at once: the text differs", name, round,
                         (long long)step);
        }
    }
    speaker_close(s);
}

static int check_folder(const char *folder) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *f; d && (f = readdir(d));) {
        char path[1024];
        struct tokenizer *t;
        struct err e = {0};
        snprintf(path, sizeof path, "%s/%s/tokenizer.json", folder, f->d_name);
        if (f->d_name[0] == '.' || access(path, F_OK) != 0)
            continue;
        assert_worked(tokenizer_open(&t, path, &e), &e);
        check(t, f->d_name);
        tokenizer_close(t);
        n++;
    }
    if (d)
        closedir(d);
    return n;
}

static void test_own_tokenizers(void **state) {
    (void)state;
    struct tokenizer *t;
    struct err e = {0};
    assert_true(check_folder(HAGGLE_SOURCE_DIR "/tests/tokenizers") > 40);
    assert_worked(tokenizer_open_bytes(&t, &e), &e);
    check(t, "bytes");
    tokenizer_close(t);
}

static void test_real_tokenizers(void **state) {
    (void)state;
    const char *fixtures = HAGGLE_SOURCE_DIR "/../shared/fixtures";
    char folder[1024];
    const char *given = getenv("HAGGLE_FIXTURES"); // .../fixtures/hf
    snprintf(folder, sizeof folder, "%s/../tokenizers", given ? given : HAGGLE_SOURCE_DIR);
    int n = given ? check_folder(folder) : 0;
    snprintf(folder, sizeof folder, "%s/tokenizers", fixtures);
    n += check_folder(folder);
    snprintf(folder, sizeof folder, "%s/lm", fixtures);
    n += check_folder(folder);
    if (n == 0)
        skip();
}

static void test_stops(void **state) {
    (void)state;
    static const char *const lists[][4] = {
        {"abc"},      {"ab", "abab"}, {"abab", "ba"}, {"aab", "abc", "b\xC3\xA9"},
        {"\xC3\xA9"}, {"aaaa"},       {"c", "bc"},    {"zz", "abcabcabd"},
    };
    static const char letters[] = "aabbc\xC3\xA9"; // the last two are one character
    static struct said one, pieces;
    struct tokenizer *t;
    struct err e = {0};
    assert_worked(tokenizer_open_bytes(&t, &e), &e);
    int stopped = 0, whole = 0;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct speaker *s;
        size_t n = 0;
        while (n < 4 && lists[i][n])
            n++;
        assert_worked(speaker_open(&s, t, IDS, lists[i], n, &e), &e);
        for (int round = 0; round < 200; round++) {
            int32_t ids[IDS];
            for (int k = 0; k < IDS; k++)
                ids[k] = (unsigned char)letters[rng_below(5, i, (uint64_t)(round * IDS + k), 7)];
            const int64_t length = 1 + round % IDS;
            at_once(t, ids, length, 0, &one);
            cut(&one, lists[i], n);
            for (int64_t step = 1; step < 12; step += 3) {
                say(s, ids, length, 0, step, 0, &pieces);
                assert_int_equal(pieces.stopped, one.stopped);
                assert_int_equal(pieces.n, one.n);
                assert_memory_equal(pieces.text, one.text, one.n);
            }
            stopped += one.stopped, whole += !one.stopped;
        }
        speaker_close(s);
    }
    assert_true(stopped > 100 && whole > 100);
    tokenizer_close(t);
}

static void test_when_it_comes(void **state) {
    (void)state;
    struct tokenizer *t;
    struct speaker *s;
    struct speaker_piece p;
    struct err e = {0};
    static const char *const stops[] = {"END"};
    assert_worked(tokenizer_open_bytes(&t, &e), &e);
    assert_worked(speaker_open(&s, t, IDS, stops, 1, &e), &e);
    speaker_begin(s, 0);
    // A stop string in the prompt is text, and none is made of the prompt's end and the text.
    assert_worked(speaker_say(s, (int32_t[]){'E', 'N', 'D', 'E', 'N'}, 5, false, &p, &e), &e);
    assert_int_equal(p.bytes, 5);
    assert_worked(speaker_say(s, (int32_t[]){'D'}, 1, true, &p, &e), &e);
    assert_int_equal(p.bytes, 1);
    // Plain text comes at once, half a character and half a stop string do not.
    assert_worked(speaker_say(s, (int32_t[]){'x', 0xC3}, 2, true, &p, &e), &e);
    assert_int_equal(p.bytes, 1);
    assert_worked(speaker_say(s, (int32_t[]){0xA9, 'E'}, 2, true, &p, &e), &e);
    assert_int_equal(p.bytes, 2);
    assert_worked(speaker_say(s, (int32_t[]){'N'}, 1, true, &p, &e), &e);
    assert_int_equal(p.bytes, 0);
    assert_worked(speaker_say(s, (int32_t[]){'E', 'N'}, 2, true, &p, &e), &e);
    assert_int_equal(p.bytes, 2);
    assert_worked(speaker_say(s, (int32_t[]){'D', 'y'}, 2, true, &p, &e), &e);
    assert_true(p.stopped && p.bytes == 0);
    speaker_close(s);
    static const char *const bad[] = {"", "\xC3"};
    assert_error(speaker_open(&s, t, 1, &bad[0], 1, &e), ERR_USAGE, &e, "has 0 bytes");
    assert_error(speaker_open(&s, t, 1, &bad[1], 1, &e), ERR_USAGE, &e, "not UTF-8");
    tokenizer_close(t);
}

static void test_print(void **state) {
    (void)state;
    static const char text[] = "a\x1b[2J\n\xC2\x9B\xC3\xA9";
    for (int terminal = 0; terminal < 2; terminal++) {
        char *out = NULL;
        size_t n;
        FILE *f = open_memstream(&out, &n);
        speaker_print(text, sizeof text - 1, terminal, f);
        fclose(f);
        assert_string_equal(out, terminal ? "a\\x1b[2J\n\\x9b\xC3\xA9" : text);
        free(out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_tokenizers), cmocka_unit_test(test_real_tokenizers),
        cmocka_unit_test(test_stops),          cmocka_unit_test(test_when_it_comes),
        cmocka_unit_test(test_print),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

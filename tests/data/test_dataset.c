// test_dataset.c - windows: targets, documents, epochs, splits, fingerprints, unusual files.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "data/bytes.h"
#include "data/corpus.h"
#include "data/dataset.h"
#include "data/scratch.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

struct buffer {
    int32_t *ids;
    struct dataset_window w;
    void *scratch;
    int64_t seq;
};

static struct buffer buffer_of(const struct dataset *d) {
    struct buffer b = {.seq = dataset_seq(d)};
    size_t n = (size_t)b.seq;
    b.ids = malloc(4 * n * sizeof *b.ids);
    b.scratch = malloc(dataset_scratch_bytes(d));
    assert_true(b.ids != NULL && b.scratch != NULL);
    dataset_scratch_clear(d, b.scratch);
    b.w = (struct dataset_window){b.ids, b.ids + n, b.ids + 2 * n, b.ids + 3 * n};
    return b;
}
static void buffer_free(struct buffer *b) {
    free(b->ids);
    free(b->scratch);
}

static struct dataset *open_ok(const char *paths, int64_t seq, double fraction, uint64_t seed) {
    struct dataset *d;
    struct err e = {0};
    struct dataset_options o = {
        .paths = paths, .seed = seed, .seq = seq, .validation_fraction = fraction};
    if (dataset_open(&d, &o, &e) != 0)
        fail_msg("%s", e.text);
    return d;
}

static void expect_error(const char *paths, int64_t seq, double fraction, int code,
                         const char *contains) {
    struct dataset *d;
    struct err e = {0};
    struct dataset_options o = {
        .paths = paths, .seed = 1, .seq = seq, .validation_fraction = fraction};
    assert_int_equal(dataset_open(&d, &o, &e), code);
    assert_null(d);
    if (strstr(e.text, contains) == NULL)
        fail_msg("'%s' is not in '%s'", contains, e.text);
}

// Checks what must hold in any window.
static void check_window(const struct buffer *b) {
    int32_t start = 0;
    for (int32_t t = 0; t < b->seq; t++) {
        assert_in_range(b->w.tokens[t], 0, BYTES_VOCAB - 1);
        if (b->w.tokens[t] == BYTES_END_OF_TEXT)
            start = t;
        assert_int_equal(b->w.doc_start[t], start);
        assert_int_equal(b->w.positions[t], t - start);
        if (t + 1 < b->seq && b->w.targets[t] != DATASET_NOT_TRAINED)
            assert_int_equal(b->w.targets[t], b->w.tokens[t + 1]);
    }
}

// The bytes among n ids; returns how many.
static size_t bytes_of(const int32_t *ids, size_t n, char *out) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < 256)
            out[at++] = (char)(unsigned char)ids[i];
    return at;
}

static void test_bytes(void **state) {
    (void)state;
    int32_t ids[3];
    bytes_encode("a\xff\n", 3, ids);
    assert_true(ids[0] == 'a' && ids[1] == 255 && ids[2] == '\n');
}

// Corpus windows follow one another. Joined, they are whole documents in order.
static void test_corpus_windows(void **state) {
    (void)state;
    static const int64_t seqs[] = {1, 7, 64, 128, 1000, 16384, 20000};
    for (size_t s = 0; s < sizeof seqs / sizeof *seqs; s++) {
        struct dataset *d = open_ok(NULL, seqs[s], 0.05, 3);
        struct buffer b = buffer_of(d);
        assert_true(dataset_windows(d, SPLIT_TRAIN) == DATASET_ENDLESS);
        uint64_t index = 0;
        char text[CORPUS_MAX_BYTES];
        size_t length = 0, at = 0;
        bool begun = false;
        int64_t seen = 0;
        for (uint64_t i = 0; seen + seqs[s] <= 16384; i++, seen += seqs[s]) {
            assert_int_equal(dataset_fetch(d, SPLIT_TRAIN, i, b.scratch, &b.w, NULL), 0);
            check_window(&b);
            assert_int_equal(dataset_trained(d, SPLIT_TRAIN, i), seqs[s]);
            for (int64_t t = 0; t < seqs[s]; t++) {
                int32_t expected = at < length ? (unsigned char)text[at] : BYTES_END_OF_TEXT;
                assert_int_equal(b.w.tokens[t], expected);
                assert_true(b.w.targets[t] >= 0);
                if (at == length) {
                    assert_true(!begun || length > 0);
                    length = corpus_write(3, index++, text);
                    at = 0;
                    begun = true;
                } else {
                    at++;
                }
            }
        }
        buffer_free(&b);
        dataset_close(d);
    }
}

static void test_corpus_any_order(void **state) {
    (void)state;
    struct dataset *d = open_ok("synthetic", 96, 0, 5);
    struct buffer a = buffer_of(d), b = buffer_of(d), v = buffer_of(d);
    for (uint64_t i = 0; i < 2000; i += 37) {
        assert_int_equal(dataset_fetch(d, SPLIT_TRAIN, i, a.scratch, &a.w, NULL), 0);
        dataset_fetch(d, SPLIT_VALIDATION, i, b.scratch, &v.w, NULL);
        dataset_fetch(d, SPLIT_TRAIN, 5000 - i, b.scratch, &b.w, NULL);
        dataset_fetch(d, SPLIT_TRAIN, i, b.scratch, &b.w, NULL);
        assert_memory_equal(a.ids, b.ids, 4 * 96 * sizeof *a.ids);
        assert_memory_not_equal(a.ids, v.ids, 96 * sizeof *a.ids);
    }
    struct dataset *other = open_ok("", 96, 0, 6);
    assert_string_not_equal(dataset_fingerprint(d), dataset_fingerprint(other));
    assert_int_equal(strlen(dataset_fingerprint(d)), 32);
    buffer_free(&a);
    buffer_free(&b);
    buffer_free(&v);
    dataset_close(other);
    dataset_close(d);
}

// Every token of three files is a target exactly once per epoch, for every T, in either split.
static void test_text_covers_once(void **state) {
    struct folder *f = *state;
    char big[1000];
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)rng_u64(1, 2, i);
    char paths[600];
    const char *a = folder_file(f, "a.txt", "x", 1), *b = folder_file(f, "b.txt", "hello", 5);
    const char *c = folder_file(f, "c.txt", big, sizeof big);
    snprintf(paths, sizeof paths, "%s,%s,%s", a, b, c);
    int32_t stream[1010];
    int64_t total = 0;
    stream[total++] = BYTES_END_OF_TEXT;
    stream[total++] = 'x';
    stream[total++] = BYTES_END_OF_TEXT;
    for (int i = 0; i < 5; i++)
        stream[total++] = (unsigned char)"hello"[i];
    stream[total++] = BYTES_END_OF_TEXT;
    for (size_t i = 0; i < sizeof big; i++)
        stream[total++] = (unsigned char)big[i];
    stream[total] = BYTES_END_OF_TEXT; // last target

    for (int64_t seq = 1; seq <= 400; seq += seq < 20 ? 1 : 31)
        for (int with_validation = 0; with_validation < 2; with_validation++) {
            struct dataset *d = open_ok(paths, seq, with_validation ? 0.3 : 0, 9);
            struct buffer buf = buffer_of(d);
            int64_t counted[2] = {0, 0};
            static int used[1010];
            memset(used, 0, sizeof used);
            for (int split = 0; split <= with_validation; split++) {
                uint64_t windows = dataset_windows(d, (enum dataset_split)split);
                assert_true(windows > 0);
                // The second epoch, which has another order.
                for (uint64_t i = windows; i < 2 * windows; i++) {
                    assert_int_equal(
                        dataset_fetch(d, (enum dataset_split)split, i, buf.scratch, &buf.w, NULL),
                        0);
                    check_window(&buf);
                    int64_t trained = 0, place = -1;
                    // The window's place in the stream, which is unique when the window is long
                    // enough.
                    for (int64_t p = 0; p + seq <= total && place < 0; p++) {
                        place = p;
                        for (int64_t t = 0; t < seq && place >= 0; t++)
                            if (stream[p + t] != buf.w.tokens[t])
                                place = -1;
                    }
                    assert_true(place >= 0);
                    for (int64_t t = 0; t < seq; t++) {
                        if (buf.w.targets[t] == DATASET_NOT_TRAINED)
                            continue;
                        trained++;
                        if (seq > 12) {
                            assert_int_equal(buf.w.targets[t], stream[place + t + 1]);
                            used[place + t + 1]++;
                        }
                    }
                    assert_int_equal(trained, dataset_trained(d, (enum dataset_split)split, i));
                    counted[split] += trained;
                }
                assert_int_equal(counted[split],
                                 dataset_stats(d, (enum dataset_split)split).used_trained);
            }
            assert_int_equal(counted[0] + counted[1], total);
            if (seq > 12)
                for (int64_t i = 1; i <= total; i++)
                    assert_int_equal(used[i], 1);
            buffer_free(&buf);
            dataset_close(d);
        }
}

static void test_text_shuffles_by_epoch(void **state) {
    struct folder *f = *state;
    char text[1 << 14];
    for (size_t i = 0; i < sizeof text; i += 2) {
        text[i] = (char)(i >> 9);
        text[i + 1] = (char)(i >> 1);
    }
    const char *path = folder_file(f, "t.txt", text, sizeof text);
    struct dataset *d = open_ok(path, 64, 0, 1), *e = open_ok(path, 64, 0, 1),
                   *g = open_ok(path, 64, 0, 2);
    struct buffer a = buffer_of(d), b = buffer_of(d), c = buffer_of(d);
    uint64_t windows = dataset_windows(d, SPLIT_TRAIN);
    int same_epoch = 0, same_seed = 0;
    for (uint64_t i = 0; i < windows; i++) {
        dataset_fetch(d, SPLIT_TRAIN, i, a.scratch, &a.w, NULL);
        dataset_fetch(e, SPLIT_TRAIN, i, b.scratch, &b.w, NULL);
        assert_memory_equal(a.ids, b.ids, 4 * 64 * sizeof *a.ids);
        dataset_fetch(d, SPLIT_TRAIN, i + windows, b.scratch, &b.w, NULL);
        dataset_fetch(g, SPLIT_TRAIN, i, c.scratch, &c.w, NULL);
        same_epoch += memcmp(a.w.tokens, b.w.tokens, 64 * sizeof *a.ids) == 0;
        same_seed += memcmp(a.w.tokens, c.w.tokens, 64 * sizeof *a.ids) == 0;
    }
    assert_true(same_epoch < 10 && same_seed < 10);
    buffer_free(&a);
    buffer_free(&b);
    buffer_free(&c);
    dataset_close(d);
    dataset_close(e);
    dataset_close(g);
}

static void test_text_edges(void **state) {
    struct folder *f = *state;
    const char *one = folder_file(f, "one.txt", "\xff", 1); // not UTF-8
    struct dataset *d = open_ok(one, 2, 0, 1);
    struct buffer b = buffer_of(d);
    assert_int_equal(dataset_windows(d, SPLIT_TRAIN), 1);
    assert_int_equal(dataset_fetch(d, SPLIT_TRAIN, 12345, b.scratch, &b.w, NULL), 0);
    assert_int_equal(b.w.tokens[0], BYTES_END_OF_TEXT);
    assert_int_equal(b.w.tokens[1], 255);
    assert_int_equal(b.w.targets[0], 255);
    assert_int_equal(b.w.targets[1], BYTES_END_OF_TEXT);
    struct err e = {0};
    assert_int_equal(dataset_fetch(d, SPLIT_VALIDATION, 0, b.scratch, &b.w, &e), ERR_USAGE);
    buffer_free(&b);
    dataset_close(d);

    expect_error(one, 3, 0, ERR_USAGE, "has 2 tokens, fewer than one window of seq=3");
    expect_error(one, 2, 0.1, ERR_USAGE, "data.val=0");
    expect_error(one, 0, 0, ERR_USAGE, "seq=0");
    expect_error(one, -5, 0, ERR_USAGE, "seq=-5");
    expect_error(one, 1, -0.1, ERR_USAGE, "data.val=-0.1");
    expect_error(one, 1, NAN, ERR_USAGE, "data.val=nan");
    expect_error(folder_path(f, "missing.txt"), 4, 0, ERR_IO, "missing.txt: there is no such");
    expect_error(folder_file(f, "empty.txt", "", 0), 4, 0, ERR_USAGE,
                 "empty.txt: the file is empty");
    expect_error(",", 4, 0, ERR_USAGE, "names no file");
    expect_error("/dev/null", 4, 0, ERR_FORMAT, "/dev/null");
    const char *dir = folder_path(f, "folder");
    assert_int_equal(mkdir(dir, 0777), 0);
    expect_error(dir, 4, 0, ERR_USAGE, "folder: the folder holds no .txt");
    folder_file(f, "folder/readme.md", "not text data", 13);
    folder_file(f, "folder/empty.txt", "", 0);
    expect_error(dir, 4, 0, ERR_USAGE, "folder: the folder holds no .txt");
    folder_file(f, "folder/b.txt", "second", 6);
    folder_file(f, "folder/a.txt", "first", 5);
    d = open_ok(dir, 13, 0, 1);
    b = buffer_of(d);
    assert_int_equal(dataset_windows(d, SPLIT_TRAIN), 1);
    dataset_fetch(d, SPLIT_TRAIN, 0, b.scratch, &b.w, NULL);
    char text[16];
    assert_int_equal(bytes_of(b.w.tokens, 13, text), 11);
    assert_memory_equal(text, "firstsecond", 11);
    assert_int_equal(b.w.doc_start[12], 6);
    assert_int_equal(b.w.targets[5], BYTES_END_OF_TEXT);
    buffer_free(&b);
    dataset_close(d);
    const char *comma = folder_file(f, "a,b.txt", "comma in a name", 15);
    dataset_close(open_ok(comma, 4, 0, 1));
}

static struct dataset *open_divided(const char *paths, double fraction, uint64_t seed) {
    struct dataset *d;
    struct err e = {0};
    const struct dataset_options o = {
        .paths = paths, .seed = seed, .seq = 64, .validation_fraction = fraction, .by_text = true};
    if (dataset_open(&d, &o, &e) != 0)
        fail_msg("%s", e.text);
    return d;
}

// A bit for each of the records "r0" .. "r63" that a split has.
static uint64_t records_of(const struct dataset *d, enum dataset_split split) {
    uint64_t found = 0;
    for (uint64_t w = 0; w < dataset_windows(d, split); w++)
        for (struct dataset_piece p = {0}; dataset_next_piece(d, split, w, &p);) {
            const struct shard *s = dataset_file_shard(d, p.file);
            char text[64] = "";
            size_t n = 0;
            for (uint64_t i = s->offsets[p.document]; i < s->offsets[p.document + 1]; i++)
                if (shard_id(s, i) < 256)
                    text[n++] = (char)shard_id(s, i);
            found |= UINT64_C(1) << atoi(text + 1);
        }
    return found;
}

// Divided by text, equal records are on one side, in whatever order and number, for every seed.
static void test_by_text(void **state) {
    struct folder *f = *state;
    char text[2 * 64 * 24], other[1200];
    size_t n = 0, m = 0;
    for (int i = 0; i < 64; i++)
        n += (size_t)sprintf(text + n, "{\"text\": \"r%d\"}\n", i);
    for (int i = 63; i >= 0; i--) // again, backwards
        n += (size_t)sprintf(text + n, "{\"text\": \"r%d\"}\n", i);
    const char *path = folder_file(f, "d.jsonl", text, n);
    uint64_t kept = 0;
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct dataset *d = open_divided(path, 0.25, seed);
        const uint64_t train = records_of(d, SPLIT_TRAIN), held = records_of(d, SPLIT_VALIDATION);
        assert_int_equal(train & held, 0);
        assert_int_equal(train | held, UINT64_MAX);
        const int count = __builtin_popcountll(held);
        assert_true(count >= 6 && count <= 28);
        assert_true(seed == 0 || held == kept);
        kept = held;
        dataset_close(d);
    }
    struct dataset *whole = open_divided(path, 0, 0);
    assert_int_equal(dataset_windows(whole, SPLIT_VALIDATION), 0);
    // The first record of another file that is here too.
    m = (size_t)sprintf(other, "{\"text\": \"r64\"}\n{\"text\": \"r\"}\n{\"text\": \"r7\"}\n");
    struct dataset *some = open_divided(folder_file(f, "o.jsonl", other, m), 0, 0);
    struct dataset *none = open_divided(folder_file(f, "n.jsonl", other, m - 15), 0, 0);
    bool found;
    size_t file = 9;
    uint64_t record = 9;
    assert_int_equal(dataset_shared(whole, some, &found, &file, &record, NULL), 0);
    assert_true(found && file == 0 && record == 2);
    assert_int_equal(dataset_shared(whole, none, &found, &file, &record, NULL), 0);
    assert_false(found);
    dataset_close(whole), dataset_close(some), dataset_close(none);
    // Two records of which one must be held out; and copies of one record, which cannot be parted.
    struct dataset *two = open_divided(folder_file(f, "2.jsonl", text, 2 * 15), 0.01, 0);
    assert_int_equal(__builtin_popcountll(records_of(two, SPLIT_VALIDATION)), 1);
    assert_int_equal(__builtin_popcountll(records_of(two, SPLIT_TRAIN)), 1);
    dataset_close(two);
    static const char same[] = "{\"text\": \"r1\"}\n{\"text\": \"r1\"}\n";
    const struct dataset_options o = {.paths = folder_file(f, "s.jsonl", same, sizeof same - 1),
                                      .seq = 64,
                                      .validation_fraction = 0.25,
                                      .by_text = true};
    struct err e = {0};
    assert_int_equal(dataset_open(&two, &o, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "all its records are equal"));
}

// The run reads the tokenized data. When it is truncated, the run ends with an error. The text file
// itself may change.
static void test_data_changes_during_run(void **state) {
    struct folder *f = *state;
    char text[9000];
    memset(text, 'z', sizeof text);
    const char *path = folder_file(f, "t.txt", text, sizeof text);
    struct dataset_options o = {
        .paths = path, .seed = 1, .seq = 100, .cache = folder_path(f, "cache")};
    struct dataset *d;
    assert_int_equal(dataset_open(&d, &o, NULL), 0);
    struct buffer b = buffer_of(d);
    assert_int_equal(dataset_fetch(d, SPLIT_TRAIN, 0, b.scratch, &b.w, NULL), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(dataset_fetch(d, SPLIT_TRAIN, 0, b.scratch, &b.w, NULL), 0);
    assert_int_equal(truncate(dataset_file_shard(d, 0)->path, 300), 0);
    struct err e = {0};
    assert_int_equal(dataset_fetch(d, SPLIT_TRAIN, 1, b.scratch, &b.w, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "was changed since (300 bytes now)"));
    buffer_free(&b);
    dataset_close(d);
}

static void test_jsonl(void **state) {
    struct folder *f = *state;
    static const char good[] =
        "\xef\xbb\xbf{\"text\": \"caf\\u00e9\\n\", \"id\": [1, {\"a\": null}]}\r\n\n"
        "{\"text\": \"two\"}";
    struct dataset *d = open_ok(folder_file(f, "g.jsonl", good, sizeof good - 1), 11, 0, 1);
    struct buffer b = buffer_of(d);
    assert_int_equal(dataset_stats(d, SPLIT_TRAIN).used_trained, 1 + 6 + 1 + 3);
    dataset_fetch(d, SPLIT_TRAIN, 0, b.scratch, &b.w, NULL);
    check_window(&b);
    char text[16];
    assert_int_equal(bytes_of(b.w.tokens, 11, text), 9);
    assert_memory_equal(text, "caf\xc3\xa9\ntwo", 9);
    assert_int_equal(dataset_file_shard(d, 0)->shape, RENDER_TEXT);
    buffer_free(&b);
    dataset_close(d);
    static const struct {
        const char *text, *contains;
        int code;
    } bad[] = {
        {"{\"text\": \"a\"}\n[1]\n", "line 2", ERR_FORMAT},
        {"{\"text\": \"a\"}\n{\"messages\": []}\n", "line 2", ERR_FORMAT},
        {"{\"text\": 5}\n", "line 1", ERR_FORMAT},
        {"{\"text\": \"a\", \"text\": \"b\"}\n", "line 1", ERR_FORMAT},
        {"{\"text\": \"a\"} x\n", "line 1", ERR_FORMAT},
        {"{\"text\": \"\\ud800\"}\n", "line 1", ERR_FORMAT},
        {"{\"text\": \"a\n", "line 1", ERR_FORMAT},
        {"\n  \n\n", "every document is empty", ERR_USAGE},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_error(folder_file(f, "b.jsonl", bad[i].text, strlen(bad[i].text)), 1, 0, bad[i].code,
                     bad[i].contains);
}

// ---------------------------------------------------------------- records: pools, splits, packing

// Writes n records "prompt p<number>" -> a completion of varying length.
static const char *make_records(struct folder *f, const char *name, char letter, int n) {
    char *text = malloc((size_t)n * 400), *at = text;
    assert_non_null(text);
    for (int i = 0; i < n; i++) {
        at += sprintf(at, "{\"prompt\": \"%c%04d\", \"completion\": \"", letter, i);
        int length = 1 + (int)rng_below(3, (uint64_t)letter, (uint64_t)i, 60);
        memset(at, letter, (size_t)length);
        at += length;
        at += sprintf(at, "\"}\n");
    }
    const char *path = folder_file(f, name, text, (size_t)(at - text));
    free(text);
    return path;
}

static struct dataset *open_options(const struct dataset_options *o) {
    struct dataset *d;
    struct err e = {0};
    if (dataset_open(&d, o, &e) != 0)
        fail_msg("%s", e.text);
    return d;
}

// Marks the numbers of the records that begin in a window. Checks columns, padding and targets.
static void read_window(const struct buffer *b, int *seen, int64_t *trained, int64_t *real) {
    *trained = *real = 0;
    for (int32_t t = 0; t < b->seq; t++) {
        const int32_t start = b->w.doc_start[t];
        *trained += b->w.targets[t] != DATASET_NOT_TRAINED;
        assert_int_equal(b->w.positions[t], t - start);
        if (start == t && b->w.tokens[t] == BYTES_END_OF_TEXT) {
            bool padding = t + 1 == b->seq || b->w.doc_start[t + 1] == t + 1;
            if (padding) {
                assert_int_equal(b->w.targets[t], DATASET_NOT_TRAINED);
                continue;
            }
            int number = 0;
            for (int32_t i = t + 2; i < t + 6; i++)
                number = 10 * number + b->w.tokens[i] - '0';
            seen[number]++;
        }
        (*real)++;
        // The prompt (END_OF_TEXT, a letter, four digits) is not a target. Everything after it is.
        assert_int_equal(b->w.targets[t] != DATASET_NOT_TRAINED, t - start >= 5);
    }
}

static void test_records_split_and_pack(void **state) {
    struct folder *f = *state;
    enum { N = 500 };
    static const enum data_pack modes[] = {DATA_PACK_AUTO, DATA_PACK_BEST_FIT, DATA_PACK_NONE};
    const char *path = make_records(f, "r.jsonl", 'q', N);
    int validates[N] = {0};
    for (size_t m = 0; m < 3; m++) {
        struct dataset_options o = {
            .paths = path, .seed = 7, .seq = 96, .validation_fraction = 0.1, .pack = modes[m]};
        struct dataset *d = open_options(&o);
        struct buffer b = buffer_of(d);
        int seen[2][N] = {{0}};
        for (int split = 0; split < SPLITS; split++) {
            const enum dataset_split s = (enum dataset_split)split;
            for (uint64_t i = 0; i < dataset_windows(d, s); i++) {
                int64_t trained, real;
                assert_int_equal(dataset_fetch(d, s, i, b.scratch, &b.w, NULL), 0);
                read_window(&b, seen[split], &trained, &real);
                assert_int_equal(trained, dataset_trained(d, s, i));
                assert_int_equal(real, dataset_about(d, s, i).real);
                assert_true(trained > 0);
            }
        }
        int n_validation = 0;
        for (int i = 0; i < N; i++) {
            assert_int_equal(seen[0][i] + seen[1][i], 1); // each record is in one split, once
            n_validation += seen[1][i];
            if (m == 0)
                validates[i] = seen[1][i];
            assert_int_equal(seen[1][i], validates[i]); // independent of the packing
        }
        assert_in_range(n_validation, 25, 80);
        if (modes[m] == DATA_PACK_NONE)
            assert_int_equal(dataset_windows(d, SPLIT_TRAIN), N - n_validation);
        else
            assert_true(dataset_windows(d, SPLIT_TRAIN) < (uint64_t)(N - n_validation) / 2);
        buffer_free(&b);
        dataset_close(d);
    }
}

// Beside records, a plain text still keeps its end for validation, but never all of it.
static void test_text_beside_records(void **state) {
    struct folder *f = *state;
    char text[5000], paths[600];
    char records[256];
    memset(text, 'P', sizeof text);
    strcpy(records, make_records(f, "r.jsonl", 'q', 50));
    snprintf(paths, sizeof paths, "%s,%s", folder_file(f, "p.txt", text, sizeof text), records);
    for (uint64_t seed = 1; seed < 30; seed++) {
        struct dataset *d = open_ok(paths, 100, 0.1, seed);
        struct buffer b = buffer_of(d);
        uint64_t plain[2] = {0, 0};
        for (int split = 0; split < SPLITS; split++)
            for (uint64_t i = 0; i < dataset_windows(d, (enum dataset_split)split); i++) {
                dataset_fetch(d, (enum dataset_split)split, i, b.scratch, &b.w, NULL);
                for (int64_t t = 0; t < 100; t++)
                    plain[split] += b.w.targets[t] == 'P';
            }
        assert_int_equal(plain[0] + plain[1], sizeof text);
        assert_in_range(plain[1], 490, 510);
        buffer_free(&b);
        dataset_close(d);
    }
}

static void test_weights(void **state) {
    struct folder *f = *state;
    char paths[600];
    char a[256];
    strcpy(a, make_records(f, "a.jsonl", 'a', 40));
    const char *b_path = make_records(f, "b.jsonl", 'b', 200);
    snprintf(paths, sizeof paths, "%s:3,%s:0.5", a, b_path);
    struct dataset_options o = {.paths = paths, .seed = 7, .seq = 80, .pack = DATA_PACK_NONE};
    struct dataset *d = open_options(&o);
    struct buffer b = buffer_of(d);
    int counts[2] = {0, 0}, seen[2][200] = {{0}};
    assert_true(fabs(dataset_file_share(d, 0) - 6.0 / 7) < 1e-12);
    for (uint64_t i = 0; i < 700; i++) { // a hundred rounds of 6 and 1
        assert_int_equal(dataset_fetch(d, SPLIT_TRAIN, i, b.scratch, &b.w, NULL), 0);
        const int which = b.w.tokens[1] - 'a';
        int number = 0;
        for (int k = 2; k < 6; k++)
            number = 10 * number + b.w.tokens[k] - '0';
        counts[which]++;
        seen[which][number]++;
        if (i % 7 == 6) // exact after every round
            assert_int_equal(counts[0], 6 * counts[1]);
    }
    for (int i = 0; i < 40; i++)
        assert_int_equal(seen[0][i], 15); // 600 samples, 40 windows: each is used equally often
    for (int i = 0; i < 200; i++)
        assert_true(seen[1][i] <= 1); // the first epoch of the other pool is not over
    buffer_free(&b);
    dataset_close(d);
    static const char *const refused[] = {":0", ":-1", ":1e9", ":nan0"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(paths, sizeof paths, "%s%s", a, refused[i]);
        expect_error(paths, 8, 0, ERR_USAGE, "is not accepted; accepted: a number above 0");
    }
    snprintf(paths, sizeof paths, "%s%s", a, refused[3]); // not a number: part of a name
    expect_error(paths, 8, 0, ERR_IO, "there is no such file");
}

static void test_validation_paths(void **state) {
    struct folder *f = *state;
    char train[256];
    strcpy(train, make_records(f, "t.jsonl", 't', 30));
    struct dataset_options o = {.paths = train,
                                .seed = 1,
                                .seq = 64,
                                .validation_fraction = 0.1,
                                .validation_paths = make_records(f, "v.jsonl", 'v', 10)};
    struct dataset *d = open_options(&o);
    struct buffer b = buffer_of(d);
    int seen[2][30] = {{0}};
    for (int split = 0; split < SPLITS; split++)
        for (uint64_t i = 0; i < dataset_windows(d, (enum dataset_split)split); i++) {
            int64_t trained, real;
            dataset_fetch(d, (enum dataset_split)split, i, b.scratch, &b.w, NULL);
            assert_int_equal(b.w.tokens[1], split == SPLIT_TRAIN ? 't' : 'v');
            read_window(&b, seen[split], &trained, &real);
        }
    for (int i = 0; i < 30; i++)
        assert_true(seen[0][i] == 1 && seen[1][i] == (i < 10));
    assert_true(dataset_file_validates(d, 1) && !dataset_file_validates(d, 0));
    buffer_free(&b);
    dataset_close(d);
}

static void test_small_and_foreign(void **state) {
    struct folder *f = *state;
    expect_error(make_records(f, "1.jsonl", 'x', 1), 64, 0.1, ERR_USAGE, "too few to keep one");
    struct dataset *d = open_ok(make_records(f, "2.jsonl", 'x', 2), 64, 0.001, 1);
    assert_int_equal(dataset_windows(d, SPLIT_TRAIN), 1);
    assert_int_equal(dataset_windows(d, SPLIT_VALIDATION), 1);
    dataset_close(d);
    // The prompt fills the window, so no token in it is trained.
    expect_error(make_records(f, "3.jsonl", 'x', 3), 4, 0, ERR_USAGE,
                 "none of its 3 documents has a trained token in its first seq=4");
    static const char *const names[] = {"a.json", "a.parquet", "a.gz", "a.pkl", "a.csv", "a.PT"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        expect_error(folder_file(f, names[i], "xxxx", 4), 2, 0, ERR_USAGE,
                     "files are not accepted as data");
}

static void test_fingerprint(void **state) {
    struct folder *f = *state;
    size_t bytes = (size_t)5 << 20;
    char *text = malloc(bytes);
    assert_non_null(text);
    memset(text, 'a', bytes);
    struct dataset *d = open_ok(folder_file(f, "1.txt", text, bytes), 64, 0, 1);
    struct dataset *copy = open_ok(folder_file(f, "2.txt", text, bytes), 128, 0.1, 2);
    assert_string_equal(dataset_fingerprint(d), dataset_fingerprint(copy));
    dataset_close(copy);
    static const size_t changed[] = {0, (1 << 20) - 1, ((size_t)5 << 20) - 1};
    for (size_t i = 0; i < 3; i++) {
        text[changed[i]] = 'b';
        struct dataset *other = open_ok(folder_file(f, "2.txt", text, bytes), 64, 0, 1);
        assert_string_not_equal(dataset_fingerprint(d), dataset_fingerprint(other));
        dataset_close(other);
        text[changed[i]] = 'a';
    }
    struct dataset *shorter = open_ok(folder_file(f, "2.txt", text, bytes - 1), 64, 0, 1);
    assert_string_not_equal(dataset_fingerprint(d), dataset_fingerprint(shorter));
    dataset_close(shorter);
    dataset_close(d);
    free(text);
}

// The pieces of windows are where documents say they are, and every document is read once, whole
// or up to seq; plain text is read whole. Nothing trains.
static void test_whole(void **state) {
    struct folder *f = *state;
    static const char records[] = "{\"text\": \"a record that is longer than seq, so it is cut\"}\n"
                                  "{\"text\": \"short\"}\n{\"text\": \"also short\"}\n";
    static const char plain[] = "A plain text, which is cut in as many pieces as it takes to read.";
    char paths[600];
    struct dataset *d;
    struct err e = {0};
    enum { T = 24 };
    snprintf(paths, sizeof paths, "%s,%s",
             folder_file(f, "whole.jsonl", records, sizeof records - 1),
             folder_file(f, "whole.txt", plain, sizeof plain - 1));
    const struct dataset_options o = {
        .paths = paths, .seq = T, .whole = true, .pack = DATA_PACK_BEST_FIT};
    if (dataset_open(&d, &o, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(dataset_windows(d, SPLIT_TRAIN), 0);
    struct buffer b = buffer_of(d);
    uint64_t columns[2][3] = {{0}};
    for (uint64_t w = 0; w < dataset_windows(d, SPLIT_VALIDATION); w++) {
        struct dataset_piece p = {0};
        uint32_t end = 0;
        assert_int_equal(dataset_fetch(d, SPLIT_VALIDATION, w, b.scratch, &b.w, &e), 0);
        while (dataset_next_piece(d, SPLIT_VALIDATION, w, &p)) {
            const struct shard *s = dataset_file_shard(d, p.file);
            assert_int_equal(p.column, end);
            for (uint32_t i = 0; i < p.columns; i++) {
                const uint64_t token = s->offsets[p.document] + p.first + i;
                assert_int_equal(b.w.tokens[p.column + i], shard_id(s, token));
                assert_int_equal(b.w.targets[p.column + i], shard_id(s, token + 1));
            }
            columns[p.file][p.document] += p.columns;
            end += p.columns;
        }
        assert_int_equal(dataset_about(d, SPLIT_VALIDATION, w).real, end);
    }
    assert_int_equal(columns[0][0], T);
    assert_int_equal(columns[0][1], 5 + 1); // an end of text comes first and last
    assert_int_equal(columns[0][2], 10 + 1);
    assert_int_equal(columns[1][0], sizeof plain);
    buffer_free(&b);
    dataset_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_corpus_windows),
        cmocka_unit_test(test_corpus_any_order),
        cmocka_unit_test_setup_teardown(test_text_covers_once, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_text_shuffles_by_epoch, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_text_edges, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_data_changes_during_run, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(test_jsonl, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_by_text, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_fingerprint, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_records_split_and_pack, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_text_beside_records, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_weights, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_validation_paths, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_small_and_foreign, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_whole, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

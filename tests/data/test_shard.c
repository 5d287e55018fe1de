// test_shard.c - shards: round trip, reuse, detected damage, any number of threads.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "data/scratch.h"
#include "data/shard.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct tools {
    struct folder *folder;
    struct tokenizer *tokenizer;
    struct renderer *renderer;
    char said[16384];
    int reports;
};

static void hear(void *arg, enum log_level level, const char *text) {
    struct tools *t = arg;
    size_t n = strlen(t->said);
    snprintf(t->said + n, sizeof t->said - n, "%c %s\n", "IWE"[level], text);
}

static int tools_setup(void **state) {
    struct tools *t = calloc(1, sizeof *t);
    void *folder;
    if (t == NULL || folder_setup(&folder) != 0)
        return -1;
    t->folder = folder;
    *state = t;
    if (tokenizer_open_bytes(&t->tokenizer, NULL) != 0)
        return -1;
    struct render_options o = {.tokenizer = t->tokenizer, .begin_with_end = true};
    return renderer_open(&t->renderer, &o, NULL);
}

static int tools_teardown(void **state) {
    struct tools *t = *state;
    void *folder = t->folder;
    renderer_close(t->renderer);
    tokenizer_close(t->tokenizer);
    free(t);
    return folder_teardown(&folder);
}

static struct shard_options options(struct tools *t, const char *cache, int threads) {
    t->said[0] = '\0';
    return (struct shard_options){.tokenizer = t->tokenizer,
                                  .renderer = t->renderer,
                                  .cache = cache,
                                  .threads = threads,
                                  .listener = {.arg = t, .say = hear}};
}

static void obtain(struct shard *s, struct tools *t, const char *path, bool records,
                   const char *cache, int threads) {
    struct err e = {0};
    const struct shard_source source = {.path = path, .records = records};
    const struct shard_options o = options(t, cache, threads);
    if (shard_obtain(s, &source, &o, &e) != 0)
        fail_msg("%s", e.text);
}

static bool same_contents(const struct shard *a, const struct shard *b) {
    return a->bytes == b->bytes && memcmp(a->map, b->map, a->bytes) == 0;
}

static size_t count_files(const char *dir) {
    char command[400];
    snprintf(command, sizeof command, "ls -A %s | wc -l", dir);
    FILE *f = popen(command, "r");
    int n = -1;
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return (size_t)n;
}

// Writes n records of two kinds of length, with blank lines between some.
static const char *write_records(struct tools *t, const char *name, int n) {
    char *text = malloc((size_t)n * 700), *at = text;
    assert_non_null(text);
    for (int i = 0; i < n; i++) {
        int length = (int)rng_below(1, 2, (uint64_t)i, i % 50 == 0 ? 600 : 60);
        at += sprintf(at, "{\"prompt\": \"%d\", \"completion\": \"", i);
        memset(at, 'a' + i % 26, (size_t)length);
        at += length;
        at += sprintf(at, "\"}\n%s", i % 9 == 0 ? "\n" : "");
    }
    const char *path = folder_file(t->folder, name, text, (size_t)(at - text));
    free(text);
    return path;
}

static void test_records(void **state) {
    struct tools *t = *state;
    enum { N = 10000 };
    const char *path = write_records(t, "r.jsonl", N);
    const char *cache = folder_path(t->folder, "cache/deep");
    struct shard a, b, c;
    obtain(&a, t, path, true, cache, 1);
    assert_false(a.reused);
    assert_int_equal(a.shape, RENDER_COMPLETION);
    assert_int_equal(a.counts.documents, N);
    assert_int_equal(a.counts.end_trained, N);
    assert_false(a.wide);
    for (uint64_t i = 0; i < N; i += 7) {
        char number[16];
        uint64_t at = a.offsets[i], end = a.offsets[i + 1];
        int digits = snprintf(number, sizeof number, "%llu", (unsigned long long)i);
        assert_int_equal(shard_id(&a, at), 256);
        assert_int_equal(shard_id(&a, end - 1), 256);
        for (int k = 0; k < digits; k++)
            assert_int_equal(shard_id(&a, at + 1 + (uint64_t)k), number[k]);
        for (uint64_t k = at; k < end; k++)
            assert_int_equal(shard_is_trained(&a, k), k > at + (uint64_t)digits);
        assert_int_equal(shard_count_trained(&a, at, end - at), end - at - 1 - (uint64_t)digits);
    }
    obtain(&b, t, path, true, cache, 1);
    assert_true(b.reused);
    assert_true(same_contents(&a, &b));
    shard_close(&b);
    // With any number of threads, and in memory instead of a file, the bytes are the same.
    obtain(&c, t, path, true, NULL, 3);
    assert_true(same_contents(&a, &c));
    assert_int_equal(shard_check(&c, NULL), 0);
    shard_close(&c);
    // A copy elsewhere has the same key.
    const char *copy = write_records(t, "copy.jsonl", N);
    obtain(&c, t, copy, true, cache, 2);
    assert_true(c.reused);
    shard_close(&c);
    assert_int_equal(count_files(cache), 1);
    shard_close(&a);
}

// A text of several stretches is one document with all its bytes.
static void test_plain_text(void **state) {
    struct tools *t = *state;
    enum { BYTES = 3500000 };
    char *text = malloc(BYTES);
    assert_non_null(text);
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < BYTES; i++)
            text[i] = kind == 0   ? (i % 61 == 60 ? '\n' : (char)('a' + rng_below(1, 2, i, 26)))
                      : kind == 1 ? (char)"\xe2\x82\xac"[i % 3] // no line ends, three bytes each
                                  : (char)rng_u64(4, 5, i);
        const char *path = folder_file(t->folder, "t.txt", text, BYTES);
        struct shard a, b;
        obtain(&a, t, path, false, NULL, 1);
        obtain(&b, t, path, false, NULL, 4);
        assert_true(same_contents(&a, &b));
        assert_int_equal(a.counts.documents, 1);
        assert_int_equal(a.counts.tokens, BYTES + 2);
        assert_int_equal(a.counts.trained, BYTES + 1);
        assert_int_equal(a.shape, RENDER_AUTO);
        for (uint64_t i = 0; i < BYTES; i++)
            if (shard_id(&a, i + 1) != (unsigned char)text[i])
                fail_msg("byte %llu is %d", (unsigned long long)i, shard_id(&a, i + 1));
        shard_close(&a);
        shard_close(&b);
    }
    free(text);
}

static void write_over(const char *path, long at, const void *data, size_t bytes) {
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, data, bytes, at), bytes);
    close(fd);
}

// Flips every bit of the header and some of the rest, and tries every length. A damaged shard is
// never opened, and is made again.
static void test_damage(void **state) {
    struct tools *t = *state;
    const char *path = write_records(t, "r.jsonl", 40);
    const char *cache = folder_path(t->folder, "cache");
    struct shard a, b;
    obtain(&a, t, path, true, cache, 1);
    char file[1024], key[HASH_TEXT_BYTES];
    strcpy(file, a.path);
    strcpy(key, a.key);
    char *whole;
    size_t bytes;
    assert_int_equal(file_read_all(file, 1 << 20, &whole, &bytes, NULL), 0);
    shard_close(&a);
    struct err e = {0};
    for (size_t bit = 0; bit < 8 * bytes; bit += bit < 8 * 256 ? 1 : 61) {
        char changed = (char)(whole[bit / 8] ^ 1 << bit % 8);
        write_over(file, (long)(bit / 8), &changed, 1);
        int rc = shard_open(&b, file, key, &e);
        if (rc == 0)
            fail_msg("a change of bit %zu of byte %zu was missed", bit % 8, bit / 8);
        assert_int_equal(rc, ERR_FORMAT);
        write_over(file, (long)(bit / 8), whole + bit / 8, 1);
    }
    assert_int_equal(shard_open(&b, file, key, &e), 0);
    shard_close(&b);
    for (size_t length = 0; length < bytes; length += length < 300 ? 1 : 37) {
        assert_int_equal(file_write_atomic(file, whole, length, NULL), 0);
        assert_int_equal(shard_open(&b, file, key, &e), ERR_FORMAT);
    }
    assert_int_equal(file_write_atomic(file, "not a shard", 11, NULL), 0);
    obtain(&b, t, path, true, cache, 1);
    assert_false(b.reused);
    assert_non_null(strstr(t->said, "it is made again"));
    assert_int_equal(b.bytes, bytes);
    assert_memory_equal(b.map, whole, bytes);
    // A valid shard under another key is refused.
    assert_int_equal(shard_open(&a, file, "00000000000000000000000000000000", &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "belongs to other data"));
    shard_close(&b);
    free(whole);
}

// Numbers that a correct writer never stores, with matching hashes, are refused before they are
// used.
static void test_forged_header(void **state) {
    struct tools *t = *state;
    const char *path = write_records(t, "r.jsonl", 40);
    struct shard a, b;
    obtain(&a, t, path, true, folder_path(t->folder, "cache"), 1);
    char file[1024], *whole;
    size_t bytes;
    strcpy(file, a.path);
    assert_int_equal(file_read_all(file, 1 << 20, &whole, &bytes, NULL), 0);
    static const struct {
        size_t at;
        uint64_t value;
    } forged[] = {
        {24, UINT64_MAX},
        {24, 0},
        {32, UINT64_MAX},
        {32, UINT64_MAX / 2},
        {32, 1},
        {12, 8},
        {16, 0},
        {20, 99},
        {8, 7},
        {24, UINT64_C(1) << 60},
        {32, UINT64_C(1) << 63},
        {16, 1},
        {48, 41}, // end_trained, of 40 documents
        {56, 41}, // untrained
    };
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
        char *copy = malloc(bytes);
        assert_non_null(copy);
        memcpy(copy, whole, bytes);
        memcpy(copy + forged[i].at, &forged[i].value, forged[i].at < 24 ? 4 : 8);
        uint64_t hash = hash_u64(copy, 160);
        memcpy(copy + 160, &hash, 8);
        assert_int_equal(file_write_atomic(file, copy, bytes, NULL), 0);
        struct err e = {0};
        assert_int_equal(shard_open(&b, file, a.key, &e), ERR_FORMAT);
        assert_null(strstr(e.text, "damaged header")); // the hash was accepted
        free(copy);
    }
    shard_close(&a);
    free(whole);
}

// Contents that a correct writer never stores, with a header that matches them in every hash.
static void test_forged_contents(void **state) {
    struct tools *t = *state;
    static const int32_t ids[] = {1, 2, 3, 70000, 5, 6, 7};
    static const unsigned char trained[] = {0, 1, 1, 0, 1, 1, 1};
    char key[HASH_TEXT_BYTES] = "0123456789abcdef0123456789abcdef", *whole;
    const char *file = folder_path(t->folder, "wide.shard");
    const struct shard_header_info info = {.key = key, .shape = RENDER_TEXT, .vocab = 70001};
    struct shard_writer *w;
    struct shard s;
    struct err e = {0};
    assert_int_equal(shard_writer_open(&w, file, NULL), 0);
    assert_int_equal(shard_writer_put(w, ids, trained, 4, true, NULL), 0);
    assert_int_equal(shard_writer_end_document(w, true, NULL), 0);
    assert_int_equal(shard_writer_put(w, ids + 4, trained + 4, 3, true, NULL), 0);
    assert_int_equal(shard_writer_end_document(w, true, NULL), 0);
    if (shard_writer_end(w, &info, &s, &e) != 0)
        fail_msg("%s", e.text);
    assert_true(s.wide && s.counts.trained == 5 && s.counts.documents == 2);
    for (uint64_t i = 0; i < 7; i++) {
        assert_int_equal(shard_id(&s, i), ids[i]);
        assert_int_equal(shard_is_trained(&s, i), trained[i]);
    }
    shard_close(&s);
    size_t bytes;
    assert_int_equal(file_read_all(file, 1 << 20, &whole, &bytes, NULL), 0);
    assert_int_equal(bytes, 256 + 32 + 8 + 24);
    static const struct {
        size_t at;
        uint64_t value;
        const char *says;
    } forged[] = {
        {296, 1, "its documents do not cover its tokens"},
        {312, 6, "its documents do not cover its tokens"},
        {304, 0, "its documents are not in order"},
        {304, 7, "its documents are not in order"},
        {304, UINT64_MAX, "its documents are not in order"},
        {256, 70001, "it has ids outside its vocabulary"},
        {256, UINT32_MAX, "it has ids outside its vocabulary"},
        {288, 0x77, "its number of trained tokens does not match its header"},
        {288, 0xF4,
         "its number of trained tokens does not match its header"}, // 5, one behind the last
    };
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
        char *copy = malloc(bytes), text[HASH_TEXT_BYTES];
        assert_non_null(copy);
        memcpy(copy, whole, bytes);
        memcpy(copy + forged[i].at, &forged[i].value, 8);
        struct hash *hash = hash_new();
        hash_add(hash, copy + 256, bytes - 256);
        hash_text(hash, text);
        hash_free(hash);
        memcpy(copy + 120, text, 32);
        uint64_t sum = hash_u64(copy, 160);
        memcpy(copy + 160, &sum, 8);
        assert_int_equal(file_write_atomic(file, copy, bytes, NULL), 0);
        assert_int_equal(shard_open(&s, file, key, &e), ERR_FORMAT);
        if (strstr(e.text, forged[i].says) == NULL)
            fail_msg("expected: %s\ngot: %s", forged[i].says, e.text);
        free(copy);
    }
    free(whole);
}

// Places where a shard cannot be written. Nothing is left behind there.
static void test_places(void **state) {
    struct tools *t = *state;
    static const int32_t ids[] = {1, 2};
    char path[1100], key[HASH_TEXT_BYTES] = "0123456789abcdef0123456789abcdef";
    const struct shard_header_info info = {.key = key, .shape = RENDER_TEXT, .vocab = 10};
    struct shard_writer *w;
    struct shard s;
    struct err e = {0};
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    assert_int_equal(shard_open(&s, path, key, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "is longer than 1023 bytes"));
    assert_int_equal(shard_writer_open(&w, path, &e), ERR_USAGE);
    assert_null(w);
    assert_non_null(strstr(e.text, "is longer than 1023 bytes"));
    assert_int_equal(shard_open(&s, folder_path(t->folder, "none.shard"), key, &e), ERR_IO);
    assert_non_null(strstr(e.text, "none.shard: No such file"));
    assert_int_equal(shard_open(&s, t->folder->path, key, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "not a regular file"));
    assert_int_equal(shard_writer_open(&w, folder_path(t->folder, "none/x.shard"), &e), ERR_IO);
    assert_null(w);
    // A folder has the shard's name.
    const char *taken = folder_path(t->folder, "taken");
    assert_int_equal(mkdir(taken, 0777), 0);
    assert_int_equal(shard_writer_open(&w, taken, &e), 0);
    assert_int_equal(shard_writer_put(w, ids, NULL, 2, false, &e), 0);
    assert_int_equal(shard_writer_end_document(w, true, &e), 0);
    assert_int_equal(shard_writer_end(w, &info, &s, &e), ERR_IO);
    assert_non_null(strstr(e.text, "taken"));
    assert_int_equal(s.fd, -1);
    assert_int_equal(count_files(t->folder->path), 1);
    // No descriptor is left for a shard in memory.
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = shard_writer_open(&w, NULL, &e);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rc, ERR_MEMORY);
    assert_null(w);
    assert_non_null(strstr(e.text, "no memory for tokenized data: Too many open files"));
}

static void test_bad_record(void **state) {
    struct tools *t = *state;
    struct shard s;
    struct err e = {0};
    char *text = malloc(1 << 21), *at = text;
    assert_non_null(text);
    for (int i = 1; i <= 20000; i++)
        at += sprintf(at, i == 17001 || i == 15002 ? "{\"text\": 4}\n" : "{\"text\": \"fine\"}\n");
    const char *path = folder_file(t->folder, "bad.jsonl", text, (size_t)(at - text));
    const char *cache = folder_path(t->folder, "cache");
    free(text);
    for (int threads = 1; threads <= 4; threads += 3) {
        const struct shard_options o = options(t, cache, threads);
        const struct shard_source source = {.path = path, .records = true};
        assert_int_equal(shard_obtain(&s, &source, &o, &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "bad.jsonl: line 15002")); // always the first bad line
        assert_int_equal(count_files(cache), 0);                  // nothing is left behind
    }
}

// Called between two waves: changes the file while it is read.
struct meddler {
    const char *path;
    int kind, at, calls;
};
static int meddle(void *arg) {
    struct meddler *m = arg;
    if (m->calls++ != m->at)
        return 0;
    if (m->kind == 0)
        return 1; // requests a stop
    if (m->kind == 1)
        assert_int_equal(truncate(m->path, 1000), 0);
    if (m->kind == 2) {
        FILE *f = fopen(m->path, "a");
        fputs("{\"prompt\": \"a\", \"completion\": \"b\"}\n", f);
        fclose(f);
    }
    if (m->kind == 3)
        unlink(m->path);
    return 0;
}

static void test_source_changes(void **state) {
    struct tools *t = *state;
    char cache[256];
    strcpy(cache, folder_path(t->folder, "cache"));
    assert_int_equal(mkdir(cache, 0777), 0);
    for (int kind = 0; kind < 4; kind++)
        for (int at = 0; at < 3; at++) { // during hashing or during tokenizing
            struct meddler m = {write_records(t, "r.jsonl", 20000), kind, at, 0};
            struct shard s;
            struct err e = {0};
            struct shard_options o = options(t, cache, 1);
            o.listener = (struct shard_listener){.arg = &m, .stop = meddle};
            const struct shard_source source = {.path = m.path, .records = at % 2};
            int rc = shard_obtain(&s, &source, &o, &e);
            assert_true(m.calls > at);
            if (kind == 0)
                assert_int_equal(rc, ERR_STOPPED);
            else
                assert_true(rc == ERR_MISMATCH || rc == ERR_IO || rc == ERR_FORMAT);
            assert_non_null(strstr(e.text, "r.jsonl"));
            if (count_files(cache) != 0)
                fail_msg("something is left after %s", e.text);
        }
}

// A valid shard that was not made here, with ids that the tokenizer does not have.
static void test_foreign_vocabulary(void **state) {
    struct tools *t = *state;
    const char *path = write_records(t, "r.jsonl", 10);
    const char *cache = folder_path(t->folder, "cache");
    struct shard s, forged;
    struct shard_writer *w;
    static const int32_t ids[] = {1, 60000, 2};
    char file[1024], key[HASH_TEXT_BYTES];
    obtain(&s, t, path, true, cache, 1);
    strcpy(file, s.path);
    strcpy(key, s.key);
    shard_close(&s);
    const struct shard_header_info info = {.key = key, .shape = RENDER_COMPLETION, .vocab = 65000};
    assert_int_equal(shard_writer_open(&w, file, NULL), 0);
    assert_int_equal(shard_writer_put(w, ids, NULL, 3, false, NULL), 0);
    assert_int_equal(shard_writer_end_document(w, true, NULL), 0);
    assert_int_equal(shard_writer_end(w, &info, &forged, NULL), 0);
    assert_int_equal(shard_id(&forged, 1), 60000);
    shard_close(&forged);
    obtain(&s, t, path, true, cache, 1);
    assert_false(s.reused);
    assert_non_null(strstr(t->said, "the ids of another tokenizer"));
    assert_int_equal(s.counts.documents, 10);
    shard_close(&s);
}

// When no folder is writable, the shard stays in memory.
static void test_no_cache(void **state) {
    struct tools *t = *state;
    struct shard s;
    const char *path = write_records(t, "r.jsonl", 10);
    const char *cache = folder_path(t->folder, "r.jsonl/under-a-file");
    obtain(&s, t, path, true, cache, 1);
    assert_int_equal(s.counts.documents, 10);
    assert_string_equal(s.path, "");
    assert_non_null(strstr(t->said, "W "));
    assert_non_null(strstr(t->said, "stays in memory and is not reused"));
    shard_close(&s);
}

// Files that a killed process left behind are removed, those of running processes stay.
static void test_left_behind(void **state) {
    struct tools *t = *state;
    struct shard s;
    const char *cache = folder_path(t->folder, "cache");
    const struct timespec old[2] = {{1000000, 0}, {1000000, 0}};
    assert_int_equal(mkdir(cache, 0777), 0);
    static const struct {
        const char *name;
        bool aged, locked, stays;
    } files[] = {
        {"cache/0123.shard.77-abc.tmp", true, false, false},
        {"cache/0123.shard.78-abc.tmp", false, true, true}, // a process is writing it
        {"cache/0123.shard.79-abc.tmp", false, false, false},
        {"cache/0123.shard.80-abc", false, false, false}, // killed between two renames
        {"cache/0123.shard", true, false, true},
        {"cache/notes.tmp", true, false, true},
    };
    int fds[sizeof files / sizeof *files];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *path = folder_file(t->folder, files[i].name, "x", 1);
        if (files[i].aged)
            assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
        fds[i] = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(fds[i] >= 0 && (!files[i].locked || file_lock(fds[i])));
    }
    obtain(&s, t, write_records(t, "r.jsonl", 5), true, cache, 1);
    shard_close(&s);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_int_equal(file_exists(folder_path(t->folder, files[i].name)), files[i].stays);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        close(fds[i]);
}

// Good records with a bad line after every tenth: no JSON, a null, another shape, an empty list.
static const char *write_bad_records(struct tools *t, const char *name, int n) {
    static const char *const bad[] = {"{oops", "{\"text\": null}", "{\"other\": 1}", "[]"};
    char *text = malloc((size_t)n * 64 + 1);
    size_t bytes = 0;
    assert_non_null(text);
    for (int i = 0; i < n; i++)
        bytes += i % 10 == 9 ? (size_t)sprintf(text + bytes, "%s\n", bad[i / 10 % 4])
                             : (size_t)sprintf(text + bytes, "{\"text\": \"record %d\"}\n", i);
    const char *path = folder_file(t->folder, name, text, bytes);
    free(text);
    return path;
}

static size_t count_text(const char *text, const char *part) {
    size_t n = 0;
    for (; (text = strstr(text, part)) != NULL; text++)
        n++;
    return n;
}

static void test_bad_lines(void **state) {
    struct tools *t = *state;
    struct err e = {0};
    struct shard s, good;
    const char *cache = folder_path(t->folder, "cache");
    struct shard_source source = {.path = write_bad_records(t, "bad.jsonl", 400), .records = true};
    struct shard_options o = options(t, cache, 3);
    // All are listed at once, the first twenty of them.
    assert_int_equal(shard_obtain(&s, &source, &o, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "bad.jsonl: line 10"));
    assert_non_null(strstr(e.text, "40 bad lines"));
    assert_non_null(strstr(e.text, "data.bad=skip"));
    assert_int_equal(count_text(t->said, "E "), SHARD_BAD_TOLD);
    assert_non_null(strstr(t->said, "line 20: \"text\" is null; a string is expected"));
    assert_non_null(strstr(t->said, "line 200"));
    assert_int_equal(count_files(cache), 0);
    // Left out: the rest is the same as without them, for any number of threads.
    char *clean = malloc(400 * 32);
    size_t bytes = 0;
    assert_non_null(clean);
    for (int i = 0; i < 400; i++)
        if (i % 10 != 9)
            bytes += (size_t)sprintf(clean + bytes, "{\"text\": \"record %d\"}\n", i);
    obtain(&good, t, folder_file(t->folder, "clean.jsonl", clean, bytes), true, NULL, 1);
    free(clean);
    for (int again = 0; again < 2; again++) {
        o = options(t, cache, 3);
        o.bad = DATA_BAD_SKIP;
        assert_int_equal(shard_obtain(&s, &source, &o, &e), 0);
        assert_int_equal(s.reused, again);
        assert_int_equal(s.counts.bad, 40);
        assert_int_equal(s.counts.documents, 360);
        assert_int_equal(s.counts.tokens, good.counts.tokens);
        for (uint64_t i = 0; i < s.counts.tokens; i++)
            assert_int_equal(shard_id(&s, i), shard_id(&good, i));
        char list[600], *text;
        size_t n;
        snprintf(list, sizeof list, "%s/%s.bad.jsonl", cache, s.key);
        assert_non_null(strstr(t->said, "W "));
        assert_non_null(strstr(t->said, "40 bad lines are left out (data.bad=skip)"));
        assert_non_null(strstr(t->said, list));
        assert_int_equal(file_read_all(list, 1 << 20, &text, &n, &e), 0);
        assert_int_equal(count_text(text, "\n"), 40);
        assert_non_null(strstr(text, "{\"line\":20,"));
        assert_non_null(strstr(text, "\"text\":\"{oops\"}"));
        free(text);
        shard_close(&s);
    }
    // Without a cache they are listed by the listener.
    o = options(t, NULL, 1);
    o.bad = DATA_BAD_SKIP;
    assert_int_equal(shard_obtain(&s, &source, &o, &e), 0);
    assert_int_equal(s.counts.documents, 360);
    assert_int_equal(count_text(t->said, "W "), SHARD_BAD_TOLD + 1);
    shard_close(&s);
    shard_close(&good);
    // A shard that was made without bad lines is not used to accept them, nor the other way round.
    o = options(t, cache, 1);
    assert_int_equal(shard_obtain(&s, &source, &o, &e), ERR_FORMAT);
    // One bad line: one message. A bad first line does not hide the shape of the others.
    static const char first[] = "nothing\n{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
    source.path = folder_file(t->folder, "first.jsonl", first, sizeof first - 1);
    o = options(t, NULL, 1);
    assert_int_equal(shard_obtain(&s, &source, &o, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "first.jsonl: line 1"));
    assert_string_equal(t->said, "");
    o.bad = DATA_BAD_SKIP;
    assert_int_equal(shard_obtain(&s, &source, &o, &e), 0);
    assert_int_equal(s.counts.documents, 2);
    assert_int_equal(s.shape, RENDER_TEXT);
    shard_close(&s);
    // A line with the members of two shapes decides nothing.
    static const char two[] = "{\"text\": \"a\", \"prompt\": \"b\", \"completion\": \"c\"}\n"
                              "{\"prompt\": \"b\", \"completion\": \"c\"}\n";
    source.path = folder_file(t->folder, "two.jsonl", two, sizeof two - 1);
    assert_int_equal(shard_obtain(&s, &source, &o, &e), 0);
    assert_int_equal(s.counts.documents, 1);
    assert_int_equal(s.shape, RENDER_COMPLETION);
    shard_close(&s);
    // Only bad lines.
    source.path = folder_file(t->folder, "all.jsonl", "x\ny\n", 4);
    assert_int_equal(shard_obtain(&s, &source, &o, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "It has no good line"));
}

// Four processes make the same shard at once.
static void test_at_once(void **state) {
    struct tools *t = *state;
    const char *path = write_records(t, "r.jsonl", 3000);
    const char *cache = folder_path(t->folder, "cache");
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            struct shard s;
            const struct shard_options o = options(t, cache, 1);
            const struct shard_source source = {.path = path, .records = true};
            int rc = shard_obtain(&s, &source, &o, NULL);
            _exit(rc == 0 && s.counts.documents == 3000 ? 0 : 1);
        }
    }
    for (int i = 0; i < 4; i++) {
        int status = -1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(count_files(cache), 1);
    struct shard s;
    obtain(&s, t, path, true, cache, 1);
    assert_true(s.reused);
    shard_close(&s);
}

static void test_corpus_shard(void **state) {
    struct tools *t = *state;
    struct shard s;
    struct err e = {0};
    const struct shard_options o = options(t, NULL, 2);
    const struct shard_source source = {.corpus_seed = 3, .corpus_documents = 700};
    if (shard_obtain(&s, &source, &o, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(s.counts.documents, 700);
    assert_int_equal(s.counts.end_trained, 700);
    shard_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_records, tools_setup, tools_teardown),
        cmocka_unit_test_setup_teardown(test_plain_text, tools_setup, tools_teardown),
        cmocka_unit_test_setup_teardown(test_damage, tools_setup, tools_teardown),
        cmocka_unit_test_setup_teardown(test_forged_header, tools_setup, tools_teardown),
        cmocka_unit_test_setup_teardown(test_forged_contents, tools_setup, tools_teardown),
        cmocka_unit_test_setup_teardown(test_places, tools_setup, tools_teardown),
        cmocka_unit_test_setup_teardown(test_bad_record, tools_setup, tools_teardown),
        cmocka_unit_test_setup_teardown(test_source_changes, tools_setup, tools_teardown),
        cmocka_unit_test_setup_teardown(test_foreign_vocabulary, tools_setup, tools_teardown),
        cmocka_unit_test_setup_teardown(test_no_cache, tools_setup, tools_teardown),
        cmocka_unit_test_setup_teardown(test_left_behind, tools_setup, tools_teardown),
        cmocka_unit_test_setup_teardown(test_bad_lines, tools_setup, tools_teardown),
        cmocka_unit_test_setup_teardown(test_at_once, tools_setup, tools_teardown),
        cmocka_unit_test_setup_teardown(test_corpus_shard, tools_setup, tools_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

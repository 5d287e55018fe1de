// test_manifest.c - the manifest as a file that another program may have written: every bit
// flipped, every prefix, and false values in valid JSON.
#include "harness.h"

#include "train/manifest.h"

#include <fcntl.h>

static void fill_manifest(struct manifest *m) {
    struct knobs k;
    struct err e = {0};
    memset(m, 0, sizeof *m);
    knobs_init(&k);
    m->state = (struct train_state){
        .step = 120,
        .position = 960,
        .tokens = 122880,
        .trained_tokens = 122000,
        .skipped_steps = 2,
        .empty_steps = 1,
        .guest_updates = 7,
        .best = {.loss = 1.25, .step = 30, .waited = 2, .kept = true},
        .watch = {.began = 3.5, .low = 0.1, .level = 0.3, .seen = 35, .high = 4, .since = 33}};
    hash_of("second", 6, m->second);
    hash_of("data", 4, m->state.dataset);
    hash_of("model", 5, m->identity);
    snprintf(m->model, sizeof m->model, "llama \"quoted\" \\ \xc3\xa9");
    m->tool = "haggle test";
    for (int i = 0; i < MANIFEST_FILES; i++) {
        m->files[i].bytes = 1000u + (uint64_t)i;
        hash_of(&i, sizeof i, m->files[i].hash);
    }
    assert_worked(manifest_set_knobs(m, &k, &e), &e);
}

static const char *path_in(const struct scratch *s, const char *name) {
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    return path;
}

// Written without fsync, because there are thousands of files.
static void put_file(const char *path, const char *text, size_t bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static void test_round_trip(void **state) {
    struct manifest a, b;
    struct err e = {0};
    const char *path = path_in(*state, "round.json");
    fill_manifest(&a);
    assert_worked(manifest_write(&a, path, &e), &e);
    assert_worked(manifest_read(&b, path, &e), &e);
    assert_int_equal(b.state.step, 120);
    assert_int_equal(b.state.position, 960);
    assert_int_equal(b.state.tokens, 122880);
    assert_int_equal(b.state.trained_tokens, 122000);
    assert_int_equal(b.state.skipped_steps, 2);
    assert_int_equal(b.state.empty_steps, 1);
    assert_int_equal(b.state.guest_updates, 7);
    assert_true(b.state.best.loss == 1.25 && b.state.best.step == 30);
    assert_true(b.state.best.waited == 2 && b.state.best.kept);
    assert_memory_equal(&a.state.watch, &b.state.watch, sizeof a.state.watch); // to the bit
    assert_string_equal(a.second, b.second);
    assert_int_equal(b.seed, 1);
    assert_string_equal(a.state.dataset, b.state.dataset);
    assert_string_equal(a.identity, b.identity);
    assert_string_equal(a.math, b.math);
    assert_string_equal(a.model, b.model);
    assert_string_equal(a.tool, b.tool);
    for (int i = 0; i < MANIFEST_FILES; i++) {
        assert_int_equal(a.files[i].bytes, b.files[i].bytes);
        assert_string_equal(a.files[i].hash, b.files[i].hash);
    }
    for (int i = 0; i < KNOB_COUNT; i++)
        assert_string_equal(a.knobs[i], b.knobs[i]);
    manifest_free(&a);
    manifest_free(&b);
}

// A run without requests and without a second model writes neither member.
static void test_what_may_be_missing(void **state) {
    struct manifest a, b;
    struct err e = {0};
    char *text, hash[HASH_TEXT_BYTES], expected[HASH_TEXT_BYTES];
    size_t bytes;
    const char *path = path_in(*state, "plain.json");
    fill_manifest(&a);
    a.state.guest_updates = 0;
    a.state.best = (struct best_eval){0};
    a.state.watch = (struct loss_watch){0};
    a.second[0] = '\0';
    assert_worked(manifest_write(&a, path, &e), &e);
    assert_worked(file_read_all(path, 1 << 20, &text, &bytes, &e), &e);
    assert_null(strstr(text, "guest_updates"));
    assert_null(strstr(text, "best_"));
    assert_null(strstr(text, "loss_low"));
    assert_null(strstr(text, "second"));
    assert_worked(manifest_read(&b, path, &e), &e);
    assert_int_equal(b.state.guest_updates, 0);
    assert_int_equal(b.state.best.step, 0);
    assert_int_equal(b.state.watch.seen, 0);
    assert_string_equal(b.second, "");
    assert_worked(manifest_hash(path, hash, &e), &e);
    hash_of(text, bytes, expected);
    assert_string_equal(hash, expected);
    assert_int_equal(manifest_hash(path_in(*state, "nowhere.json"), hash, &e), ERR_IO);
    assert_string_equal(manifest_file_name(MANIFEST_CONFIG), "config.json");
    assert_string_equal(manifest_file_name(MANIFEST_FILES), "");
    free(text);
    manifest_free(&a);
    manifest_free(&b);
}

static char *written(const struct scratch *s, size_t *bytes) {
    struct manifest m;
    struct err e = {0};
    char *text;
    const char *path = path_in(s, "written.json");
    fill_manifest(&m);
    assert_worked(manifest_write(&m, path, &e), &e);
    assert_worked(file_read_all(path, 1 << 20, &text, bytes, &e), &e);
    manifest_free(&m);
    return text;
}

static void expect_damaged(const char *path, const char *what) {
    struct manifest m;
    struct err e = {0};
    int rc = manifest_read(&m, path, &e);
    if (rc != ERR_FORMAT || e.text[0] == '\0')
        fail_msg("%s: got %d: %s", what, rc, e.text);
    manifest_free(&m);
}

static void test_every_bit_and_every_cut(void **state) {
    size_t bytes;
    char *text = written(*state, &bytes), what[64];
    const char *path = path_in(*state, "damaged.json");
    put_file(path, text, bytes);
    // Changed in place, because replacing files is slow on journaling filesystems.
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    for (size_t i = 0; i < bytes; i++) {
        unsigned bit = UNDER_SANITIZER ? (unsigned)(i % 8) : 0; // all bits where it is fast
        for (; bit < 8; bit += UNDER_SANITIZER ? 8 : 1) {
            char flipped = (char)(text[i] ^ (char)(1u << bit));
            assert_int_equal(pwrite(fd, &flipped, 1, (off_t)i), 1);
            snprintf(what, sizeof what, "bit %u of byte %zu", bit, i);
            expect_damaged(path, what);
        }
        assert_int_equal(pwrite(fd, &text[i], 1, (off_t)i), 1);
    }
    for (size_t cut = bytes; cut-- > 0;) {
        assert_int_equal(ftruncate(fd, (off_t)cut), 0);
        expect_damaged(path, "cut");
    }
    close(fd);
    free(text);
}

// Replaces `from` by `to` and updates the hash, as an attacker would.
static void put_forged(const char *path, const char *text, const char *from, const char *to) {
    char hash[HASH_TEXT_BYTES];
    const char *at = strstr(text, from);
    size_t most = strlen(text) + strlen(to) + 1;
    assert_non_null(at);
    char *forged = malloc(most);
    assert_non_null(forged);
    snprintf(forged, most, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    const size_t rest = strlen("{\"hash\":\"") + 32 + 2;
    hash_of(forged + rest, strlen(forged) - rest, hash);
    memcpy(forged + strlen("{\"hash\":\""), hash, 32);
    put_file(path, forged, strlen(forged));
    free(forged);
}

static void test_lies(void **state) {
    static const struct {
        const char *from, *to, *says;
    } lies[] = {
        {"\"step\": 120", "\"step\": -1", "-1"},
        {"\"step\": 120", "\"step\": 1000000001", "1000000001"},
        {"\"step\": 120", "\"step\": 1.5", "line"},
        {"\"step\": 120", "\"step\": \"120\"", "line"},
        {"\"step\": 120", "\"step\": 120, \"step\": 120", "twice"},
        {"\"step\": 120,", "", "lacks \"step\""},
        {"\"step\": 120", "\"stop\": 120", "no such member"},
        {"\"position\": 960", "\"position\": 99999999999999999999", "line"},
        {"\"skipped_steps\": 2", "\"skipped_steps\": 120", "more skipped steps than steps"},
        {"\"guest_updates\": 7", "\"guest_updates\": -7", "-7"},
        {"\"best_step\": 30", "\"best_step\": 121", "has not made"},
        {"\"best_step\": 30", "\"best_step\": -30", "-30"},
        {"\"best_loss\": 1.25", "\"best_loss\": 1e999", "line"},
        {"\"best_loss\": 1.25", "\"best_loss\": null", "line"},
        {"\"best_kept\": true", "\"best_kept\": 1", "line"},
        {"\"losses\": 35", "\"losses\": 121", "has not made"},
        {"\"loss_low\": 0.1", "\"loss_low\": \"0.1\"", "line"},
        {"\"second\": \"", "\"second\": \"0", "line"},
        {"\"seed\": 1", "\"seed\": null", "line"},
        {"haggle checkpoint", "other checkpoint", "format"},
        {"model.safetensors", "../../../etc/passwd", "not part of a checkpoint"},
        {"model.safetensors", "config.json", "twice"},
        {"\"bytes\": 1000,", "", "lacks its name, bytes or hash"},
        {"\"bytes\": 1000", "\"bytes\": -1000", "-1000"},
        {"\"bytes\": 1000", "\"bytes\": 1000, \"bytes\": 1000", "each once"},
        {"\"knobs\": {", "\"knobs\": {\"seed\": \"1\", ", "twice"},
        {"\"knobs\": {", "\"knobs\": {\"seed\": 1, ", "line"},
        {"\"files\": [",
         "\"files\": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "line"},
    };
    size_t bytes;
    char *text = written(*state, &bytes);
    const char *path = path_in(*state, "lie.json");
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct manifest m;
        struct err e = {0};
        put_forged(path, text, lies[i].from, lies[i].to);
        int rc = manifest_read(&m, path, &e);
        if (rc != ERR_FORMAT || strstr(e.text, lies[i].says) == NULL)
            fail_msg("lie %zu (%s): got %d: %s", i, lies[i].to, rc, e.text);
        manifest_free(&m);
    }
    // An adapter's file and the base it belongs to come together.
    static const struct {
        const char *from, *to;
    } halves[] = {{"\"name\": \"adapter_model", "\"name\": \"model"},
                  {"\"base\": \"", "\"tool\": \"x\", \"base\": \""},
                  {"\"base_name\": \"a folder\",", ""}};
    struct manifest m, adapter;
    struct err e = {0};
    const char *whole = path_in(*state, "adapter.json");
    char *second;
    fill_manifest(&adapter);
    hash_of("base", 4, adapter.base);
    adapter.base_name = "a folder";
    assert_worked(manifest_write(&adapter, whole, &e), &e);
    assert_worked(manifest_read(&m, whole, &e), &e);
    assert_string_equal(m.base, adapter.base);
    assert_string_equal(m.base_name, "a folder");
    manifest_free(&m);
    manifest_free(&adapter);
    assert_worked(file_read_all(whole, 1 << 20, &second, &bytes, &e), &e);
    for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++) {
        put_forged(path, second, halves[i].from, halves[i].to);
        assert_failed(manifest_read(&m, path, &e), ERR_FORMAT, &e, i == 1 ? "twice" : "together");
        manifest_free(&m);
        err_clear(&e);
    }
    put_forged(path, text, "\"name\": \"model.s", "\"name\": \"adapter_model.s");
    assert_failed(manifest_read(&m, path, &e), ERR_FORMAT, &e, "together");
    manifest_free(&m);
    err_clear(&e);
    free(second);
    // Another format version is not damage. A knob of another version is ignored.
    put_forged(path, text, "\"version\": 2", "\"version\": 3");
    assert_failed(manifest_read(&m, path, &e), ERR_UNSUPPORTED, &e, "version 3|reads version 2");
    manifest_free(&m);
    err_clear(&e);
    put_forged(path, text, "\"knobs\": {", "\"knobs\": {\"warp.drive\": \"9\", ");
    assert_worked(manifest_read(&m, path, &e), &e);
    manifest_free(&m);
    free(text);
}

static void test_garbage(void **state) {
    const struct scratch *s = *state;
    const char *path = path_in(s, "garbage.json");
    static char big[MANIFEST_MAX_BYTES + 2];
    memset(big, ' ', sizeof big);
    put_file(path, big, sizeof big);
    expect_damaged(path, "too large");
    put_file(path, "", 0);
    expect_damaged(path, "empty");
    put_file(path, "{}", 2);
    expect_damaged(path, "no hash");
    struct manifest m;
    struct err e = {0};
    assert_failed(manifest_read(&m, path_in(s, "none.json"), &e), ERR_IO, &e, "none.json");
    manifest_free(&m);
    assert_int_equal(mkdir(path_in(s, "folder.json"), 0777), 0);
    expect_damaged(path_in(s, "folder.json"), "a folder");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_what_may_be_missing),
        cmocka_unit_test(test_every_bit_and_every_cut),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_garbage),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

// fuzz_manifest.c - a checkpoint's manifest.json as an attacker might write it. After most
// mutations the hash at its beginning is corrected. Otherwise nothing behind the hash would ever be
// reached.
#include "fuzz.h"

#include "base/file.h"
#include "base/hash.h"
#include "train/manifest.h"

static const char opening[] = "{\"hash\":\"";
enum { HASH_AT = sizeof opening - 1, HASH_DIGITS = 32, REST_AT = HASH_AT + HASH_DIGITS + 2 };

static void fix_hash(uint8_t *data, size_t bytes) {
    char hash[HASH_TEXT_BYTES];
    memcpy(data, opening, HASH_AT);
    memcpy(data + REST_AT - 2, "\",", 2);
    hash_of(data + REST_AT, bytes - REST_AT, hash);
    memcpy(data + HASH_AT, hash, HASH_DIGITS);
}

// A manifest as the current version of haggle writes it. Seeds may be of older versions.
static struct {
    char text[8192];
    size_t bytes;
} sample;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    struct manifest m = {
        .state = {.step = 9, .skipped_steps = 1, .guest_updates = 2}, .tool = "t", .seed = 1};
    struct err e = {0};
    char dir[256], path[288];
    for (int i = 0; i < MANIFEST_FILES; i++)
        hash_of("", 0, m.files[i].hash);
    hash_of("", 0, m.state.dataset);
    hash_of("", 0, m.identity);
    hash_of("", 0, m.second);
    hash_of("", 0, m.math);
    m.knobs[0] = "x";
    FUZZ_CHECK(file_make_temp_dir(dir, sizeof dir, "fuzz", NULL) == 0);
    snprintf(path, sizeof path, "%s/m.json", dir);
    FUZZ_CHECK(manifest_write(&m, path, &e) == 0);
    FILE *f = fopen(path, "rb");
    FUZZ_CHECK(f != NULL);
    sample.bytes = fread(sample.text, 1, sizeof sample.text, f);
    fclose(f);
    unlink(path);
    rmdir(dir);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t most, unsigned seed) {
    if (seed % 32 == 1 && sample.bytes <= most) {
        memcpy(data, sample.text, sample.bytes);
        bytes = sample.bytes;
    }
    if (seed % 16 == 0 || bytes < REST_AT || most < REST_AT + 1)
        return LLVMFuzzerMutate(data, bytes, most);
    size_t rest = LLVMFuzzerMutate(data + REST_AT, bytes - REST_AT, most - REST_AT);
    fix_hash(data, REST_AT + rest);
    return REST_AT + rest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct fuzz_file file;
    struct manifest m;
    struct err e = {0};
    int rc = manifest_read(&m, fuzz_file_set(&file, data, bytes), &e);
    FUZZ_CHECK_RESULT(rc, &e);
    if (rc == 0) {
        FUZZ_CHECK(m.state.step >= 0 && m.seed >= 0 && m.tool != NULL);
        FUZZ_CHECK(m.state.skipped_steps + m.state.empty_steps <= m.state.step);
        FUZZ_CHECK(strlen(m.math) == HASH_DIGITS && strlen(m.identity) == HASH_DIGITS);
        for (int i = 0; i < MANIFEST_FILES; i++)
            FUZZ_CHECK(strlen(m.files[i].hash) == HASH_DIGITS);
        for (int i = 0; i < KNOB_COUNT; i++)
            FUZZ_CHECK(m.knobs[i] == NULL || strlen(m.knobs[i]) < KNOB_VALUE_BYTES);
    }
    manifest_free(&m);
    return 0;
}

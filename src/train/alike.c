// alike.c - see alike.h.
#include "train/alike.h"

#include "base/build.h"
#include "base/file.h"
#include "base/hash.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_BYTES = 128 };

// Gathers every rank's words. rc: this rank cannot tell.
static int compare_words(struct comm *c, const char *words, const char *what, struct err *e) {
    char mine[WORDS_BYTES] = "";
    char *all = malloc((size_t)c->world * sizeof mine);
    snprintf(mine, sizeof mine, "%s", words);
    int rc = all ? comm_gather(c, mine, sizeof mine, all, e)
                 : err_set(e, ERR_MEMORY, "out of memory for %d ranks", c->world);
    for (int r = 1; rc == 0 && r < c->world; r++) {
        const char *other = all + (size_t)r * sizeof mine;
        if (strcmp(other, all) != 0)
            rc = err_set(e, ERR_MISMATCH,
                         "rank %d has %s %s, and rank 0 has %s; all ranks must be alike", r, what,
                         other[0] ? other : "''", all[0] ? all : "''");
    }
    free(all);
    return rc;
}

// ---------------------------------------------------------------- knobs

static bool may_differ(int id) {
    static const int free_ones[] = {
        KNOB_model,  KNOB_tokenizer, KNOB_data_path, KNOB_data_val_path, KNOB_data_cache,
        KNOB_memory, KNOB_threads,   KNOB_cpu_pin,   KNOB_log_every,     KNOB_log_tensorboard};
    for (size_t i = 0; i < sizeof free_ones / sizeof *free_ones; i++)
        if (free_ones[i] == id)
            return true;
    return false;
}

static int compare_knobs(struct comm *c, const struct knobs *k, struct err *e) {
    uint64_t mine[KNOB_COUNT];
    char value[KNOB_VALUE_BYTES], what[64];
    for (int i = 0; i < KNOB_COUNT; i++) {
        knobs_value(k, i, value);
        mine[i] = may_differ(i) ? 0 : hash_u64(value, strlen(value));
    }
    uint64_t *all = malloc((size_t)c->world * sizeof mine);
    int rc = all ? comm_gather(c, mine, sizeof mine, all, e)
                 : err_set(e, ERR_MEMORY, "out of memory for %d ranks", c->world),
        differs = -1;
    for (int r = 1; rc == 0 && differs < 0 && r < c->world; r++)
        for (int i = 0; i < KNOB_COUNT && differs < 0; i++)
            if (all[(size_t)r * KNOB_COUNT + (size_t)i] != all[i])
                differs = i;
    free(all);
    if (rc != 0 || differs < 0)
        return rc;
    snprintf(what, sizeof what, "%s =", knob_info(differs)->name);
    TRY(compare_words(c, knobs_value(k, differs, value), what, e));
    return err_set(e, ERR_MISMATCH, "ranks have different values of %s; all ranks must be alike",
                   knob_info(differs)->name); // long texts that begin alike
}

// ---------------------------------------------------------------- weights

struct weights_mark {
    const char *folder;
    uint64_t sum; // over files, in any order
};

// Reads the beginning, where a safetensors file describes its tensors, and a few places behind it.
enum { MARK_BYTES = 65536, MARK_PLACES = 16, MARK_PLACE_BYTES = 4096 };

static uint64_t mark_file(const char *path, const char *name) {
    char bytes[MARK_BYTES];
    uint64_t size = 0;
    FILE *f = file_size(path, &size, NULL) == 0 ? fopen(path, "re") : NULL;
    uint64_t mark = hash_u64(name, strlen(name)) + size;
    if (!f)
        return mark;
    mark = 31 * mark + hash_u64(bytes, fread(bytes, 1, sizeof bytes, f));
    for (uint64_t i = 1; i < MARK_PLACES; i++)
        if (fseeko(f, (off_t)(size / MARK_PLACES * i), SEEK_SET) == 0)
            mark = 31 * mark + hash_u64(bytes, fread(bytes, 1, MARK_PLACE_BYTES, f));
    fclose(f);
    return mark;
}

static int mark_entry(void *arg, const char *name) {
    struct weights_mark *m = arg;
    char path[PATH_MAX];
    const char *end = strrchr(name, '.');
    if (end && (strcmp(end, ".safetensors") == 0 || strcmp(name, "config.json") == 0) &&
        file_join(path, sizeof path, m->folder, name, NULL) == 0)
        m->sum += mark_file(path, name);
    return 0;
}

static int compare_models(struct comm *c, const struct knobs *k, struct err *e) {
    struct weights_mark m = {.folder = k->model};
    char words[WORDS_BYTES];
    int rc = 0;
    snprintf(words, sizeof words, "%.127s", k->model);
    if (file_is_dir(k->model)) {
        rc = file_list_dir(k->model, mark_entry, &m, e);
        snprintf(words, sizeof words, "with fingerprint %016llx", (unsigned long long)m.sum);
    }
    TRY(comm_agree(c, rc, NULL, 0, e));
    return compare_words(c, words, "the model", e);
}

// ---------------------------------------------------------------- all of it

int alike_check(struct comm *c, const struct knobs *k, struct err *e) {
    char build[BUILD_ID_BYTES];
    build_id(build);
    TRY(compare_words(c, build, "build", e));
    TRY(compare_knobs(c, k, e));
    return compare_models(c, k, e);
}

int alike_check_data(struct comm *c, const struct dataset *d, struct err *e) {
    return compare_words(c, dataset_fingerprint(d), "data with fingerprint", e);
}

// references.h - runs verify_folder over every reference checkpoint: those of the project, and
// others beside the checkout or in HAGGLE_FIXTURES (a test may run far from the sources).
#ifndef HAGGLE_TESTS_TRAIN_REFERENCES_H
#define HAGGLE_TESTS_TRAIN_REFERENCES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/file.h"
#include "train/verify.h"

#include <stdlib.h>

struct sweep {
    const struct knobs *knobs;
    const char *folder;
    bool reference;
    int checked;
};

static inline int verify_with(struct sweep *sweep, const char *dir, const struct knobs *k) {
    struct err e = {0};
    struct verify_result r;
    int rc = verify_folder(dir, k, sweep->reference, &r, &e);
    if (rc != 0)
        print_message("%s\n", e.text);
    verify_print(&r, stdout, rc != 0);
    fflush(stdout);
    assert_int_equal(rc, 0);
    assert_true(r.n_figures > 10);
    verify_free(&r);
    sweep->checked++;
    return 0;
}

// A folder, and the adapter in it, if it has one.
static inline int verify_one(void *arg, const char *name) {
    struct sweep *sweep = arg;
    char dir[1024], json[1100];
    struct knobs k = *sweep->knobs;
    snprintf(dir, sizeof dir, "%s/%s", sweep->folder, name);
    snprintf(json, sizeof json, "%s/ref.json", dir);
    if (!file_exists(json))
        return 0;
    verify_with(sweep, dir, &k);
    snprintf(json, sizeof json, "%s/adapter/ref.json", dir);
    if (!file_exists(json) || snprintf(k.lora_from, sizeof k.lora_from, "%.1000s/adapter", dir) < 0)
        return 0;
    return verify_with(sweep, dir, &k);
}

// Returns how many folders were compared.
static inline int verify_references(const struct knobs *k, bool reference) {
    const char *chosen = getenv("HAGGLE_FIXTURES");
    const char *const folders[] = {HAGGLE_SOURCE_DIR "/tests/reference",
                                   chosen ? chosen : HAGGLE_SOURCE_DIR "/../shared/fixtures/hf"};
    struct err e = {0};
    int checked = 0;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        struct sweep s = {.knobs = k, .folder = folders[i], .reference = reference};
        if (!file_is_dir(s.folder)) {
            print_message("skipped: no reference checkpoints at %s\n", s.folder);
            continue;
        }
        assert_int_equal(file_list_dir(s.folder, verify_one, &s, &e), 0);
        assert_true(s.checked > 0);
        checked += s.checked;
    }
    return checked;
}

#endif

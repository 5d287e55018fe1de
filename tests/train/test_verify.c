// test_verify.c - the engine against reference checkpoints, with the plain and with the fast
// backend.
#include "train/verify.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

// Folders of reference checkpoints: the project's own, and others beside the checkout where there
// are some.
static const char *const folders[] = {HAGGLE_SOURCE_DIR "/tests/reference",
                                      HAGGLE_SOURCE_DIR "/../shared/fixtures/hf"};

struct sweep {
    const char *folder;
    bool reference;
    int checked;
};

static int verify_one(void *arg, const char *name) {
    struct sweep *sweep = arg;
    char dir[1024], json[1100];
    struct err e = {0};
    struct knobs k;
    struct verify_result r;
    snprintf(dir, sizeof dir, "%s/%s", sweep->folder, name);
    snprintf(json, sizeof json, "%s/ref.json", dir);
    if (!file_exists(json))
        return 0;
    knobs_init(&k);
    k.threads = 2;
    int rc = verify_folder(dir, &k, sweep->reference, &r, &e);
    if (rc != 0)
        print_message("%s\n", e.text);
    verify_print(&r, stdout, rc != 0);
    assert_int_equal(rc, 0);
    assert_true(r.n_figures > 10);
    verify_free(&r);
    sweep->checked++;
    return 0;
}

static void sweep(bool reference) {
    struct err e = {0};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        struct sweep s = {.folder = folders[i], .reference = reference};
        if (!file_is_dir(s.folder)) {
            print_message("skipped: no reference checkpoints at %s\n", s.folder);
            continue;
        }
        assert_int_equal(file_list_dir(s.folder, verify_one, &s, &e), 0);
        assert_true(s.checked > 0);
    }
}

static void test_reference_backend(void **state) {
    (void)state;
    sweep(true);
}

static void test_fast_backend(void **state) {
    (void)state;
    sweep(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_backend),
        cmocka_unit_test(test_fast_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

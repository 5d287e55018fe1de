// test_shape_folder.c - a folder made of a shape is that shape with its initial weights.
#include "model/shape_folder.h"

#include "base/file.h"
#include "model/safetensors.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void assert_worked(int rc, const struct err *e) {
    if (rc != 0)
        fail_msg("unexpected error %d: %s", rc, e->text);
}

static void is_the_shape_with_its_initial_weights(void **state) {
    (void)state;
    char dir[PATH_MAX];
    struct model_shape given, read;
    struct weights *w;
    struct err e = {0};
    bool is_dir;
    assert_worked(model_shape_open(&given, "tiny", &is_dir, &e), &e);
    assert_worked(file_make_temp_dir(dir, sizeof dir, "shape", &e), &e);
    assert_worked(shape_folder_write(&given, 7, dir, &e), &e);
    assert_worked(model_shape_open(&read, dir, &is_dir, &e), &e);
    assert_true(is_dir);
    assert_int_equal(model_total_elements(&read), model_total_elements(&given));
    assert_worked(weights_open(&w, dir, &e), &e);
    struct model_param p;
    size_t n = 0;
    for (int64_t i = 0; model_param_at(&given, i, &p); i++, n++) {
        const struct safetensors_entry *t = weights_find(w, p.name);
        const int64_t count = p.dims[0] * (p.rank > 1 ? p.dims[1] : 1);
        float *wanted = malloc((size_t)count * sizeof *wanted),
              *got = malloc((size_t)count * sizeof *got);
        assert_non_null(t);
        assert_non_null(wanted);
        assert_non_null(got);
        model_param_init(&p, 7, 0, count, wanted);
        assert_worked(weights_read(w, t, 0, count, got, DTYPE_F32, &e), &e);
        assert_memory_equal(got, wanted, (size_t)count * sizeof *got);
        free(wanted);
        free(got);
    }
    assert_int_equal(weights_count(w), n);
    weights_close(w);
    assert_worked(file_remove_tree(dir, &e), &e);
}

static void a_folder_that_is_not_there_is_an_error(void **state) {
    (void)state;
    struct model_shape given;
    struct err e = {0};
    bool is_dir;
    assert_worked(model_shape_open(&given, "tiny", &is_dir, &e), &e);
    assert_int_equal(shape_folder_write(&given, 1, "/nonexistent/folder", &e), ERR_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_the_shape_with_its_initial_weights),
        cmocka_unit_test(a_folder_that_is_not_there_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

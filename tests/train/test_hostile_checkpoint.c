// test_hostile_checkpoint.c - checkpoints that were changed and given matching sizes and hashes, so
// only their content can reveal it. Each one is refused with its file and the reason, or is valid
// as it stands. None is skipped as if it were mere damage.
#include "harness.h"

#include "base/hash.h"

// Writes the present size and hash of a file into the manifest.
static void seal(const char *run, int64_t step, void (*change)(struct manifest *m)) {
    struct manifest m;
    struct err e = {0};
    assert_worked(manifest_read(&m, step_file(run, step, MANIFEST_NAME), &e), &e);
    for (int i = 0; i < MANIFEST_FILES; i++) {
        char *bytes;
        size_t n;
        const char *path = step_file(run, step, manifest_file_name(i));
        assert_worked(file_read_all(path, (size_t)1 << 30, &bytes, &n, &e), &e);
        m.files[i].bytes = n;
        hash_of(bytes, n, m.files[i].hash);
        free(bytes);
    }
    if (change != NULL)
        change(&m);
    assert_worked(manifest_write(&m, step_file(run, step, MANIFEST_NAME), &e), &e);
    manifest_free(&m);
    if (change == NULL)
        assert_worked(checkpoint_verify(step_file(run, step, ""), NULL, &e), &e);
}

// Copies a tensor file with the description of each tensor changed by `edit`.
typedef void edit_fn(size_t i, struct safetensors_entry *t);

static void rename_one(size_t i, struct safetensors_entry *t) {
    t->name = i == 0 ? "renamed" : t->name;
}
static void drop_one(size_t i, struct safetensors_entry *t) {
    t->name = i == 0 ? NULL : t->name;
}
static void add_one(size_t i, struct safetensors_entry *t) {
    (void)i, (void)t; // rewrite adds it
}
static void turn(size_t i, struct safetensors_entry *t) {
    (void)i;
    if (t->rank == 2) {
        int64_t rows = t->dims[0];
        t->dims[0] = t->dims[1];
        t->dims[1] = rows;
    }
}
static void flatten(size_t i, struct safetensors_entry *t) {
    (void)i;
    if (t->rank == 2) {
        t->dims[0] *= t->dims[1];
        t->rank = 1;
    }
}
static void narrow(size_t i, struct safetensors_entry *t) {
    (void)i;
    t->dtype = DTYPE_BF16;
}

static void copy_tensor(struct safetensors *st, const struct safetensors_entry *was,
                        const struct safetensors_entry *t, struct safetensors_writer *w) {
    struct err e = {0};
    float *data = malloc((size_t)t->elements * sizeof *data);
    assert_non_null(data);
    assert_worked(safetensors_read(st, was, 0, was->elements, data, t->dtype, &e), &e);
    assert_worked(safetensors_writer_put(w, data, (size_t)t->elements * dtype_bytes(t->dtype), &e),
                  &e);
    free(data);
}

static void rewrite(const char *path, edit_fn *edit) {
    struct safetensors *st;
    struct safetensors_writer *w;
    struct err e = {0};
    assert_worked(safetensors_open(&st, path, &e), &e);
    assert_worked(safetensors_writer_open(&w, path, &e), &e);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < safetensors_count(st); i++) {
            struct safetensors_entry t = *safetensors_at(st, i);
            edit(i, &t);
            if (t.name == NULL)
                continue;
            if (pass == 1)
                copy_tensor(st, safetensors_at(st, i), &t, w);
            else
                assert_worked(safetensors_writer_declare(w, t.name, t.dtype, t.rank, t.dims, &e),
                              &e);
        }
        if (pass == 0 && edit == add_one)
            assert_worked(safetensors_writer_declare(w, "more", DTYPE_F32, 1, (int64_t[]){0}, &e),
                          &e);
    }
    assert_worked(safetensors_writer_close(w, NULL, NULL, &e), &e);
    safetensors_close(st);
}

static void make_run(const struct scratch *s, struct run *r, const char *name) {
    run_init(r, s, name);
    run_set(r, "steps=4");
    run_set(r, "save.every=2");
    r->stop_at = 2;
    run_go(r);
    assert_int_equal(r->rc, ERR_STOPPED);
    r->stop_at = 0;
}

static void test_tensors(void **state) {
    static const struct {
        edit_fn *edit;
        const char *parts;
    } cases[] = {
        {rename_one, "lacks the tensor"}, {drop_one, "tensors"},         {add_one, "tensors"},
        {turn, "other dimensions"},       {flatten, "other dimensions"}, {narrow, "BF16"},
    };
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int f = 0; f < 2; f++) {
            struct run r;
            char name[32];
            snprintf(name, sizeof name, "tensors-%zu-%d", i, f);
            make_run(*state, &r, name);
            rewrite(step_file(r.dir, 2, files[f]), cases[i].edit);
            seal(r.dir, 2, NULL);
            run_again(&r);
            assert_failed(r.rc, ERR_MISMATCH, &r.e, cases[i].parts);
            assert_failed(r.rc, ERR_MISMATCH, &r.e, files[f]);
            assert_int_equal(r.steps, 0);
        }
}

static void test_files(void **state) {
    struct err e = {0};
    struct run r;
    char other[PATH_MAX];
    // The two tensor files are swapped.
    make_run(*state, &r, "swapped");
    snprintf(other, sizeof other, "%s/other", r.dir);
    assert_int_equal(rename(step_file(r.dir, 2, "model.safetensors"), other), 0);
    assert_int_equal(rename(step_file(r.dir, 2, "optimizer.safetensors"),
                            step_file(r.dir, 2, "model.safetensors")),
                     0);
    assert_int_equal(rename(other, step_file(r.dir, 2, "optimizer.safetensors")), 0);
    seal(r.dir, 2, NULL);
    run_again(&r);
    assert_failed(r.rc, ERR_MISMATCH, &r.e, "model.safetensors|tensor");
    // The file is not a tensor file.
    static const char *const contents[] = {"", "{}", "not a header, surely"};
    for (size_t i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "content-%zu", i);
        make_run(*state, &r, name);
        assert_worked(file_write_atomic(step_file(r.dir, 2, "model.safetensors"), contents[i],
                                        strlen(contents[i]), &e),
                      &e);
        seal(r.dir, 2, NULL);
        run_again(&r);
        assert_failed(r.rc, ERR_FORMAT, &r.e, "model.safetensors|header");
    }
    // A file that is not listed changes nothing.
    make_run(*state, &r, "extra");
    assert_worked(file_write_atomic(step_file(r.dir, 2, "more.safetensors"), "x", 1, &e), &e);
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, 2);
}

static void far_position(struct manifest *m) {
    m->state.position = m->state.tokens = m->state.trained_tokens = UINT64_C(1) << 60;
}
static void too_far(struct manifest *m) {
    m->state.position = (UINT64_C(1) << 60) + 1;
}
static void wrong_size(struct manifest *m) {
    m->files[MANIFEST_MODEL].bytes++;
}
static void vast_size(struct manifest *m) {
    m->files[MANIFEST_MODEL].bytes = UINT64_C(1) << 60;
}
static void other_model(struct manifest *m) {
    hash_of("x", 1, m->identity);
}
static void other_step(struct manifest *m) {
    m->state.step = 3;
}

static void test_counters(void **state) {
    struct run r;
    // The largest position that is accepted: the run continues from there, saves, and its
    // checkpoint can be read.
    make_run(*state, &r, "far");
    seal(r.dir, 2, far_position);
    run_again(&r);
    assert_ran(&r);
    assert_int_equal(r.first, 2);
    assert_int_equal(r.last, 4);
    struct manifest m;
    struct err e = {0};
    int rc = checkpoint_verify(step_file(r.dir, 4, ""), &m, &e);
    manifest_free(&m);
    // A position above 2^60 is refused by the reader with its name. It never becomes a wrapped
    // number.
    if (rc != 0)
        assert_failed(rc, ERR_FORMAT, &e, "manifest.json|is out of range");
    static const struct {
        void (*change)(struct manifest *m);
        int code;
        const char *parts;
    } cases[] = {
        {too_far, ERR_FORMAT, "1152921504606846977"},
        {wrong_size, ERR_FORMAT, "model.safetensors|bytes"},
        {vast_size, ERR_FORMAT, "model.safetensors|1152921504606846976"},
        {other_model, ERR_MISMATCH, "another model"},
        {other_step, ERR_FORMAT, "step 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "counters-%zu", i);
        make_run(*state, &r, name);
        seal(r.dir, 2, cases[i].change);
        run_again(&r);
        assert_failed(r.rc, cases[i].code, &r.e, cases[i].parts);
        assert_int_equal(r.steps, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_counters),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

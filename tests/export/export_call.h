// export_call.h - shared by the tests of src/export: short runs, and exports of them in one call.
#ifndef HAGGLE_TESTS_EXPORT_EXPORT_CALL_H
#define HAGGLE_TESTS_EXPORT_EXPORT_CALL_H

#include "train/harness.h"

#include "export/export.h"

struct export_call {
    struct export_options o;
    struct export_result r;
    struct knobs knobs;
    struct err e;
    char out[512], said[SAID_BYTES];
    int rc;
};

static inline void on_said(void *arg, enum log_level level, const char *text) {
    struct export_call *x = arg;
    size_t n = strlen(x->said);
    snprintf(x->said + n, sizeof x->said - n, "%c %s\n", "IWE"[level], text);
}

// An export of `run` to `name` in the scratch folder, with each tensor in the source's type, in one
// file.
static inline void export_init(struct export_call *x, const struct scratch *s, const char *run,
                               const char *name) {
    memset(x, 0, sizeof *x);
    knobs_init(&x->knobs);
    x->knobs.threads = 1;
    snprintf(x->out, sizeof x->out, "%s/%s", s->dir, name);
    x->o = (struct export_options){.run_dir = run,
                                   .out_dir = x->out,
                                   .as_source = true,
                                   .shard_bytes = UINT64_C(5000000000),
                                   .knobs = &x->knobs,
                                   .listener = {x, on_said}};
}

static inline void export_go(struct export_call *x) {
    export_free(&x->r);
    err_clear(&x->e);
    x->rc = export_run(&x->o, &x->r, &x->e);
}

static inline void export_look(struct export_call *x) { // only the check
    export_free(&x->r);
    err_clear(&x->e);
    x->rc = export_check(&x->o, &x->r, &x->e);
}

static inline double figure(const struct export_call *x, const char *part) {
    for (size_t i = 0; i < x->r.n_figures; i++)
        if (strstr(x->r.figures[i].name, part) != NULL)
            return x->r.figures[i].value;
    fail_msg("no figure is called '%s'", part);
    return NAN;
}

// A short run that saves its last step.
static inline void train(struct run *r, const struct scratch *s, const char *name,
                         const char *model, const char *more) {
    run_init(r, s, name);
    snprintf(r->knobs.model, sizeof r->knobs.model, "%s", model);
    run_set(r, "steps=3");
    if (more != NULL)
        run_set(r, more);
    run_go(r);
    assert_ran(r);
}

static inline const char *in(const char *dir, const char *name) {
    static char paths[4][PATH_MAX];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s/%s", dir, name);
    return path;
}

// Not inline: GCC would then take its result for the address of `text`, and warn.
__attribute__((noinline, unused)) static char *text_of(const char *path) {
    struct err e = {0};
    char *text;
    size_t bytes;
    assert_worked(file_read_all(path, 1 << 24, &text, &bytes, &e), &e);
    return text;
}

static inline void put_text(const char *path, const char *text) {
    struct err e = {0};
    assert_worked(file_write_atomic(path, text, strlen(text), &e), &e);
}

static inline void assert_nothing_left(const struct export_call *x) {
    char tmp[600];
    snprintf(tmp, sizeof tmp, "%s.tmp-export", x->out);
    assert_false(file_exists(x->out));
    assert_false(file_exists(tmp));
}

#endif

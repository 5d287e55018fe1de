// report.c - haggle_report: reads runs back from their folders and writes an HTML page. Prints the
// same figures as text and as JSON.
#include "api/api.h"

#include "base/file.h"
#include "base/text.h"
#include "report/html.h"
#include "report/runs_print.h"
#include "report/tune_report.h"

#include <stdlib.h>
#include <string.h>

struct report_call {
    struct call *call;
    struct run_read *runs;
    size_t n;
    char path[PATH_MAX];
    uint64_t bytes; // size of the page
};

// ---------------------------------------------------------------- the page

// Runs are named by the last part of their path, or by the whole path if two of them are the same.
static void tell_apart(struct report_call *r) {
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(r->runs[i].name, r->runs[k].name) == 0) {
                for (size_t all = 0; all < r->n; all++)
                    run_copy(r->runs[all].name, sizeof r->runs[all].name, r->runs[all].dir);
                return;
            }
}

static int write_page(struct report_call *r, struct err *e) {
    struct html_file h;
    TRY(html_file_open(&h, e));
    html_report(h.f, r->runs, r->n);
    return html_file_save(&h, r->path, 0, &r->bytes, e);
}

// ---------------------------------------------------------------- the figures

static void print(const struct report_call *r, FILE *f) {
    char bytes[TEXT_UNIT_BYTES];
    runs_print(r->runs, r->n, f);
    fprintf(f, "report    %s (%s)\n", r->path, text_bytes(bytes, r->bytes));
}

static void say_problems(const struct report_call *r) {
    for (size_t i = 0; i < r->n; i++)
        for (int k = 0; k < r->runs[i].n_problems; k++)
            log_put(&r->call->log, LOG_INFO, "%s: %s", r->runs[i].dir, r->runs[i].problems[k]);
}

static void put_json(const struct report_call *r) {
    struct json_writer *w = &r->call->json;
    if (!call_json_begin(r->call, "report", NULL))
        return;
    json_member_string(w, "file", r->path);
    json_member_i64(w, "bytes", (int64_t)r->bytes);
    json_put_key(w, "runs");
    runs_put_json(r->runs, r->n, w);
    json_put_object_end(w);
}

// ---------------------------------------------------------------- the verb

static int name_page(struct report_call *r, const char *const *dirs, const char *out,
                     struct err *e) {
    if (!out && r->n == 1)
        return file_join(r->path, sizeof r->path, dirs[0], "report.html", e);
    out = out ? out : "report.html";
    if (!*out || strlen(out) >= sizeof r->path)
        return err_set(e, ERR_USAGE, "a report's path of %zu characters is not accepted",
                       strlen(out));
    if (file_is_dir(out))
        return err_set(e, ERR_USAGE,
                       "'%s' is a folder; the report is a file, such as %s/report.html", out, out);
    run_copy(r->path, sizeof r->path, out);
    return 0;
}

static int make(struct report_call *r, const char *const *dirs, const char *out, struct err *e) {
    if (r->n == 0 || r->n > HTML_RUNS_MOST)
        return err_set(e, ERR_USAGE, "%zu runs cannot be shown on a page; accepted: 1 to %d", r->n,
                       HTML_RUNS_MOST);
    TRY(name_page(r, dirs, out, e));
    r->runs = calloc(r->n, sizeof *r->runs);
    if (!r->runs)
        return err_set(e, ERR_MEMORY, "no memory for %zu runs", r->n);
    for (size_t i = 0; i < r->n; i++)
        TRY(run_read_open(&r->runs[i], dirs[i], e));
    tell_apart(r);
    say_problems(r);
    TRY(write_page(r, e));
    if (r->call->out)
        print(r, r->call->out);
    put_json(r);
    return 0;
}

int haggle_report(const char *const *run_dirs, size_t n, const char *out,
                  const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    struct report_call r = {.call = &c, .n = n};
    int rc = make(&r, run_dirs, out, &c.err);
    for (size_t i = 0; r.runs && i < n; i++)
        run_read_close(&r.runs[i]);
    free(r.runs);
    return call_end(&c, rc, e);
}

static int report_tuning(struct call *c, const struct stored *s, const char *out, struct err *e) {
    char path[64], size[TEXT_UNIT_BYTES];
    uint64_t bytes;
    snprintf(path, sizeof path, "tuning-%lld.html", (long long)s->id);
    out = out ? out : path;
    TRY(tune_report_write_stored(s, out, &bytes, e));
    if (c->out)
        fprintf(c->out, "report    %s (%s)\n", out, text_bytes(size, bytes));
    if (call_json_begin(c, "report", NULL)) {
        json_member_string(&c->json, "file", out);
        json_member_i64(&c->json, "bytes", (int64_t)bytes);
        json_member_i64(&c->json, "tuning", s->id);
        json_member_i64(&c->json, "trials", s->tune.trials);
        json_put_object_end(&c->json);
    }
    return 0;
}

int haggle_report_tuning(const char *tuning, const char *store, const char *out,
                         const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    struct stored s;
    call_begin(&c, sink);
    int rc = stored_open(&s, tuning, store, &c.err);
    if (rc == 0)
        rc = report_tuning(&c, &s, out, &c.err);
    stored_close(&s);
    return call_end(&c, rc, e);
}

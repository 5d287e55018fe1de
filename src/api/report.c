// report.c - haggle_report: runs read back from their folders, one HTML page, the same figures as
// text and as JSON.
#include "api/api.h"

#include "base/file.h"
#include "base/text.h"
#include "report/html.h"
#include "report/html_figures.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct report_call {
    struct call *call;
    struct run_read *runs;
    size_t n;
    char path[PATH_MAX];
    uint64_t bytes; // of the page
};

// ---------------------------------------------------------------- the page

// Two folders may have the same last part: then their paths name them.
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
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return err_set(e, ERR_MEMORY, "no memory for the report");
    html_report(f, r->runs, r->n);
    bool whole = !ferror(f);
    whole = fclose(f) == 0 && whole;
    int rc = whole ? 0 : err_set(e, ERR_MEMORY, "no memory for the report");
    if (rc == 0)
        rc = file_write_atomic(r->path, text, bytes, e);
    r->bytes = bytes;
    free(text);
    return rc;
}

// ---------------------------------------------------------------- for people

enum { LABEL_COLUMNS = 28, VALUE_COLUMNS = 18 };

// One run: a line per figure with what stands beside it.
static void print_one(const struct run_read *r, FILE *f) {
    char text[FIGURE_TEXT_BYTES], note[FIGURE_TEXT_BYTES];
    fprintf(f, "run       %s: %s, %s\n", r->dir, r->log.model[0] ? r->log.model : "model not known",
            figure_time(text, r->log.time_first));
    for (size_t i = 0; i < figure_count(); i++) {
        const struct figure *g = figure_at(i);
        double value = g->value(r);
        if (!g->brief || !isfinite(value))
            continue;
        const char *beside = g->note ? g->note(note, r) : "";
        fprintf(f, "  %-*s %s%s%s%s\n", LABEL_COLUMNS - 10, g->label, figure_text(text, g, value),
                beside[0] ? " (" : "", beside, beside[0] ? ")" : "");
    }
    if (r->result.verdict[0])
        fprintf(f, "verdict   %s\n", r->result.verdict);
}

// Several: a row per run, the figures beside each other.
static void print_row(const struct run_read *r, const struct run_read *first, FILE *f) {
    static const char *const keys[] = {"loss",        "validation_loss", "tokens_per_s",
                                       "step_ms_p50", "step_ms_p99",     "memory_measured_bytes"};
    fprintf(f, "%s\n ", r->dir);
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        for (size_t i = 0; i < figure_count(); i++) {
            const struct figure *g = figure_at(i);
            char text[FIGURE_TEXT_BYTES], ratio[FIGURE_TEXT_BYTES] = "";
            if (strcmp(g->key, keys[k]) != 0)
                continue;
            double value = g->value(r);
            if (r != first)
                figure_ratio(ratio, g, value, g->value(first));
            fprintf(f, "%s %s %s%s%s%s", k ? "," : "", g->label, figure_text(text, g, value),
                    ratio[0] ? " (" : "", ratio, ratio[0] ? ")" : "");
        }
    fprintf(f, "\n");
}

static void print(const struct report_call *r, FILE *f) {
    char bytes[TEXT_UNIT_BYTES], sentence[RUN_SENTENCE_BYTES];
    for (size_t i = 0; i < r->n && r->n > 1; i++)
        print_row(&r->runs[i], &r->runs[0], f);
    for (size_t i = 1; i < r->n; i++)
        fprintf(f, "%s\n", figure_compare(sentence, &r->runs[0], &r->runs[i]));
    if (r->n == 1)
        print_one(&r->runs[0], f);
    fprintf(f, "report    %s (%s)\n", r->path, text_bytes(bytes, r->bytes));
}

static void say_problems(const struct report_call *r) {
    for (size_t i = 0; i < r->n; i++)
        for (int k = 0; k < r->runs[i].n_problems; k++)
            log_put(&r->call->log, LOG_INFO, "%s: %s", r->runs[i].dir, r->runs[i].problems[k]);
}

// ---------------------------------------------------------------- for programs

static void put_log(const struct run_log *g, struct json_writer *w) {
    json_put_key(w, "log");
    json_put_object_begin(w);
    json_member_i64(w, "lines", (int64_t)g->lines);
    json_member_i64(w, "damaged_lines", (int64_t)g->damaged);
    json_member_bool(w, "torn", g->torn);
    json_member_i64(w, "first_step", g->first_step);
    json_member_i64(w, "last_step", g->last_step);
    json_member_i64(w, "steps_planned", g->steps_planned);
    json_member_i64(w, "steps_trained_again", (int64_t)g->again);
    json_member_i64(w, "warmup_steps", (int64_t)g->warmup);
    json_member_i64(w, "processes", (int64_t)g->processes);
    json_member_i64(w, "validations", (int64_t)g->evals);
    json_member_double(w, "time_first", g->time_first);
    json_member_double(w, "time_last", g->time_last);
    json_put_object_end(w);
}

static void put_bounds(const struct run_log *g, struct json_writer *w) {
    json_put_key(w, "step_ms");
    json_put_object_begin(w);
    json_member_i64(w, "n", (int64_t)g->p50.n);
    json_member_double(w, "p50_upper95", 1e-6 * g->p50.upper95);
    json_member_double(w, "p95_upper95", 1e-6 * g->p95.upper95);
    json_member_double(w, "p99_upper95", 1e-6 * g->p99.upper95);
    json_put_object_end(w);
}

// Text of files is checked UTF-8; a path is any bytes, and json.h writes what it is given.
static void put_run(const struct run_read *r, struct json_writer *w) {
    json_put_object_begin(w);
    json_member_string(w, "dir", r->dir);
    json_member_string(w, "model", r->log.model[0] ? r->log.model : NULL);
    json_member_bool(w, "has_result", r->result.is_there);
    json_member_string(w, "end", r->result.end[0] ? r->result.end : NULL);
    json_put_key(w, "figures");
    json_put_object_begin(w);
    for (size_t i = 0; i < figure_count(); i++)
        json_member_double(w, figure_at(i)->key, figure_at(i)->value(r));
    json_put_object_end(w);
    put_bounds(&r->log, w);
    put_log(&r->log, w);
    json_member_string(w, "verdict", r->result.verdict[0] ? r->result.verdict : NULL);
    json_put_key(w, "settings");
    json_put_object_begin(w);
    for (size_t i = 0; i < r->n_settings; i++)
        json_member_string(w, r->settings[i].name, r->settings[i].value);
    json_put_object_end(w);
    json_put_key(w, "problems");
    json_put_array_begin(w);
    for (int i = 0; i < r->n_problems; i++)
        json_put_string(w, r->problems[i]);
    json_put_array_end(w);
    json_put_object_end(w);
}

static void put_json(const struct report_call *r) {
    struct json_writer *w = &r->call->json;
    call_json_begin(r->call, "report", NULL);
    json_member_string(w, "file", r->path);
    json_member_i64(w, "bytes", (int64_t)r->bytes);
    json_put_key(w, "runs");
    json_put_array_begin(w);
    for (size_t i = 0; i < r->n; i++)
        put_run(&r->runs[i], w);
    json_put_array_end(w);
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
    if (r->call->wants_json)
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

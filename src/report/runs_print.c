// runs_print.c - see runs_print.h.
#include "report/runs_print.h"

#include "report/html_figures.h"

#include <math.h>
#include <string.h>

// ---------------------------------------------------------------- for people

enum { LABEL_COLUMNS = 18 };

// One run: a line per figure, with its note.
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
        fprintf(f, "  %-*s %s%s%s%s\n", LABEL_COLUMNS, g->label, figure_text(text, g, value),
                beside[0] ? " (" : "", beside, beside[0] ? ")" : "");
    }
    if (r->result.verdict[0])
        fprintf(f, "verdict   %s\n", r->result.verdict);
}

// Several runs: the main figures of each run on one line.
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

void runs_print(const struct run_read *runs, size_t n, FILE *f) {
    char sentence[RUN_SENTENCE_BYTES];
    for (size_t i = 0; i < n && n > 1; i++)
        print_row(&runs[i], &runs[0], f);
    for (size_t i = 1; i < n; i++)
        fprintf(f, "%s\n", figure_compare(sentence, &runs[0], &runs[i]));
    if (n == 1)
        print_one(&runs[0], f);
}

// ---------------------------------------------------------------- for programs

static void put_log(const struct run_log *g, struct json_writer *w) {
    json_member_object(w, "log");
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
    json_member_object(w, "step_ms");
    json_member_i64(w, "n", (int64_t)g->p50.n);
    json_member_double(w, "p50_upper95", g->p50.upper95 / 1e6);
    json_member_double(w, "p95_upper95", g->p95.upper95 / 1e6);
    json_member_double(w, "p99_upper95", g->p99.upper95 / 1e6);
    json_put_object_end(w);
}

// Texts from files were checked to be UTF-8. A path may hold any bytes, written as they are.
static void put_run(const struct run_read *r, struct json_writer *w) {
    json_put_object_begin(w);
    json_member_string(w, "dir", r->dir);
    json_member_string(w, "model", r->log.model[0] ? r->log.model : NULL);
    json_member_bool(w, "has_result", r->result.is_there);
    json_member_string(w, "end", r->result.end[0] ? r->result.end : NULL);
    json_member_object(w, "figures");
    for (size_t i = 0; i < figure_count(); i++)
        json_member_double(w, figure_at(i)->key, figure_at(i)->value(r));
    json_put_object_end(w);
    put_bounds(&r->log, w);
    put_log(&r->log, w);
    json_member_string(w, "verdict", r->result.verdict[0] ? r->result.verdict : NULL);
    json_member_object(w, "settings");
    for (size_t i = 0; i < r->n_settings; i++)
        json_member_string(w, r->settings[i].name, r->settings[i].value);
    json_put_object_end(w);
    json_member_array(w, "problems");
    for (int i = 0; i < r->n_problems; i++)
        json_put_string(w, r->problems[i]);
    json_put_array_end(w);
    json_put_object_end(w);
}

void runs_put_json(const struct run_read *runs, size_t n, struct json_writer *w) {
    json_put_array_begin(w);
    for (size_t i = 0; i < n; i++)
        put_run(&runs[i], w);
    json_put_array_end(w);
}

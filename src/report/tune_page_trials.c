// tune_page_trials.c - how the choice was found: the steps of the playbook, then every setting with
// its figures and the reason for its outcome; see tune_page.h.
#include "report/html_text.h"
#include "report/tune_page.h"

#include "base/text.h"

#include <math.h>

// More rows would make the page heavy, and would hardly be read.
enum { ROWS_MOST = 600 };

void tune_put_playbook(const struct tune_view *v) {
    fputs("<ol class=\"steps\">\n", v->f);
    for (int i = 0; i < STAGE_COUNT; i++) {
        const struct tune_decision *d = &v->t->stages[i];
        char time[TEXT_UNIT_BYTES];
        fprintf(v->f, "<li%s><b>%s</b> ", d->done ? "" : " class=\"unknown\"",
                tune_stage_name((enum tune_stage)i));
        if (d->done) {
            if (d->trials > 0)
                fprintf(v->f, "<small>%d trial%s, %s</small>", d->trials, d->trials == 1 ? "" : "s",
                        text_duration(time, 1e-9 * (double)d->ns));
            else
                fputs("<small>no trial</small>", v->f);
            html_put_between(v->f, "<div>", d->text, "</div>");
        } else {
            fputs("<small>not reached</small>", v->f);
        }
        fputs("</li>\n", v->f);
    }
    fputs("</ol>\n", v->f);
}

// ---------------------------------------------------------------- tables

static void put_number(FILE *f, const char *format, double x) {
    if (!isfinite(x)) {
        fputs("<td></td>", f);
        return;
    }
    fprintf(f, "<td data-v=\"%.9g\">", x);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    fprintf(f, format, x);
#pragma GCC diagnostic pop
    fputs("</td>", f);
}

static void put_bytes(FILE *f, uint64_t bytes) {
    char text[TEXT_UNIT_BYTES];
    if (bytes > 0)
        fprintf(f, "<td data-v=\"%llu\">%s</td>", (unsigned long long)bytes,
                text_bytes(text, bytes));
    else
        fputs("<td></td>", f);
}

static void put_why(const struct tune_view *v, int i) {
    const struct tune_setting *s = &v->t->settings[i];
    char why[TUNE_WORDS_BYTES];
    fputs("<td class=\"why\">", v->f);
    if (i == v->t->chosen)
        fputs("the choice", v->f);
    else if (tune_reason(why, v->t, i)[0])
        html_put_text(v->f, why);
    else if (s->n > 0)
        fputs(s->frontier ? "on the frontier" : "another is at least as good in every way", v->f);
    else
        fputs("the prediction gave no reason to measure it", v->f);
    if (s->reused > 0)
        fprintf(v->f, " <small>(%d of %d visits from an earlier search)</small>", s->reused,
                s->n_blocks);
    fputs("</td>", v->f);
}

// The setting against as given, by the rounds they ran in turns.
static void put_against(const struct tune_view *v, int i) {
    char text[TUNE_WORDS_BYTES];
    if (tune_against(text, v->t, i)[0])
        fprintf(v->f, "<td data-v=\"%.9g\">%s</td>", v->t->settings[i].turns.ratio, text);
    else
        fprintf(v->f, "<td class=\"unknown\">%s</td>",
                tune_is_glance(v->t, i)             ? "a glance"
                : tune_in_turns(&v->t->settings[i]) ? "1, by definition"
                                                    : "");
}

static void put_row(const struct tune_view *v, int i, bool measured) {
    const struct tune_setting *s = &v->t->settings[i];
    const struct tune_figures *g = &v->figures[i];
    enum tune_mark m = tune_mark_of(v->t, i);
    fprintf(v->f, "<tr%s><td data-v=\"%d\" title=\"%s\">",
            tune_is_glance(v->t, i) ? " class=\"glance\"" : "", (int)m, tune_mark_name(m));
    tune_put_mark(v->f, m);
    html_put_between(v->f, "</td><th scope=\"row\">", s->name, "</th>");
    if (measured) {
        put_number(v->f, "%.0f", g->tokens_per_s);
        put_against(v, i);
        put_number(v->f, "%.2f", 1e-6 * g->q[TUNE_P50].value);
        put_number(v->f, quantile_has_bound(&g->q[TUNE_P99]) ? "%.2f" : "%.2f?",
                   1e-6 * g->q[TUNE_P99].value);
        put_number(v->f, "%.2f", g->ms_per_sample);
    }
    put_number(v->f, "%.2f", 1e3 * s->predicted_s);
    put_bytes(v->f, s->need_bytes);
    if (measured && v->metered)
        put_number(v->f, "%.3g", g->joules_per_token);
    if (measured)
        put_number(v->f, "%.0f", (double)s->n);
    put_why(v, i);
    fputs("</tr>\n", v->f);
}

static void put_heads(const struct tune_view *v, bool measured) {
    static const struct {
        const char *name;
        bool measured, metered; // only if the settings are measured, or have their energy
    } heads[] = {
        {"", false, false},           {"setting", false, false},      {"tokens/s", true, false},
        {"vs as given", true, false}, {"p50 ms", true, false},        {"p99 ms", true, false},
        {"ms/sample", true, false},   {"predicted ms", false, false}, {"memory", false, false},
        {"J/token", true, true},      {"steps", true, false},         {"why", false, false}};
    fputs("<div class=\"scroll\"><table class=\"trials\"><thead><tr>", v->f);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if ((measured || !heads[i].measured) && (v->metered || !heads[i].metered))
            fprintf(v->f, "<th scope=\"col\">%s</th>", heads[i].name);
    fputs("</tr></thead><tbody>\n", v->f);
}

static bool belongs(const struct tune_setting *s, bool measured) {
    return (s->n > 0) == measured;
}

static void put_notes(const struct tune_view *v) {
    bool unbounded = false;
    for (int i = 0; i < v->t->n; i++)
        unbounded |= v->t->settings[i].n > 0 && !quantile_has_bound(&v->figures[i].q[TUNE_P99]);
    fprintf(v->f,
            "<p class=\"small\">vs as given: %s, run in turns, with the 95&thinsp;%% interval. A "
            "glance was measured at another time, so its figures cannot be compared with others. "
            "ms/sample: latency of a sample, which is its micro-batch's time.%s%s</p>\n",
            tune_by_sample(&v->t->request) ? "ms/sample" : "tokens/s", unbounded ? " " : "",
            unbounded ? tune_unbounded_note : "");
}

static void put_table(const struct tune_view *v, bool measured, const char *title) {
    int n = 0, rows = 0;
    for (int i = 0; i < v->t->n; i++)
        n += belongs(&v->t->settings[i], measured);
    if (n == 0)
        return;
    fprintf(v->f, "<details%s><summary>%s <small>%d</small></summary>\n", measured ? " open" : "",
            title, n);
    put_heads(v, measured);
    for (int i = 0; i < v->t->n; i++)
        if (belongs(&v->t->settings[v->places[i].at], measured) && rows++ < ROWS_MOST)
            put_row(v, v->places[i].at, measured);
    fputs("</tbody></table></div>\n", v->f);
    if (measured)
        put_notes(v);
    if (n > ROWS_MOST)
        fprintf(
            v->f,
            "<p class=\"small\">%d more are left out here. haggle tune --output csv lists all of "
            "them.</p>\n",
            n - ROWS_MOST);
    fputs("</details>\n", v->f);
}

void tune_put_settings(const struct tune_view *v) {
    put_table(v, true, "Measured");
    put_table(v, false, "Not measured: refused, failed, or predicted to be worse");
    fputs("<p class=\"small\">If scripts are allowed, click a column's head to sort by it.</p>\n",
          v->f);
}

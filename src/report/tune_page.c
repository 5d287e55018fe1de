// tune_page.c - see tune_page.h.
#include "report/tune_page.h"

#include "base/text.h"
#include "report/html.h"
#include "report/html_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t tune_memory_limit(const struct tune_view *v, bool *whole) {
    const uint64_t have = v->t->n > 0 ? v->t->settings[0].have_bytes : 0;
    *whole = have == 0;
    return have > 0 ? have : v->facts->memory_budget;
}

// ---------------------------------------------------------------- head

static const char *goal_words(const struct tune_request *r) {
    if (r->goal == TUNE_BULK)
        return "most tokens per second";
    if (r->goal == TUNE_HYBRID)
        return "most tokens per second while requests are answered between micro-batches";
    return tune_has_limits(r) ? "most tokens per second within the latency budget"
                              : "least time per sample";
}

static void put_budgets(const struct tune_view *v) {
    const struct tune_request *r = &v->t->request;
    char text[TEXT_UNIT_BYTES];
    int n = 0;
    for (int p = 0; p < TUNE_PERCENTILES; p++)
        if (r->limit_ns[p] > 0)
            fprintf(v->f, "%sp%.0f of a step at most %s", n++ ? ", " : "",
                    100 * tune_percentile_of((enum tune_percentile)p),
                    text_duration(text, 1e-9 * (double)r->limit_ns[p]));
    if (r->respond_ns > 0)
        fprintf(v->f, "%sa request answered within %s", n++ ? ", " : "",
                text_duration(text, 1e-9 * (double)r->respond_ns));
    if (v->facts->memory_budget > 0)
        fprintf(v->f, "%smemory at most %s", n++ ? ", " : "",
                text_bytes(text, v->facts->memory_budget));
    if (r->joules_per_token > 0)
        fprintf(v->f, "%sat most %.3g J per token", n++ ? ", " : "", r->joules_per_token);
    fputs(n ? "" : "none except the machine's memory", v->f);
}

static void put_row(const struct tune_view *v, const char *term, const char *text) {
    fprintf(v->f, "<dt>%s</dt>", term);
    html_put_between(v->f, "<dd>", text, "</dd>");
}

static void put_about(const struct tune_view *v) {
    char text[256], time[TEXT_UNIT_BYTES];
    const struct tune *t = v->t;
    int measured = 0;
    for (int i = 0; i < t->n; i++)
        measured += t->settings[i].n > 0;
    fputs("<dl class=\"about\">", v->f);
    put_row(v, "goal", goal_words(&t->request));
    fputs("<dt>budgets</dt><dd>", v->f);
    put_budgets(v);
    fputs("</dd>", v->f);
    if (v->facts->machine)
        put_row(v, "machine", v->facts->machine);
    snprintf(text, sizeof text, "%d settings considered, %d of them measured in %d trials, in %s",
             t->n, measured, t->trials,
             text_duration(time, 1e-9 * (double)(t->end_ns - t->begin_ns)));
    put_row(v, "search", text);
    if (v->facts->saved_as)
        put_row(v, "recipe of the choice", v->facts->saved_as);
    fputs("</dl>\n", v->f);
}

// The pieces of a text between separators, each with markup before and after.
static void put_sentences(const struct tune_view *v, const char *text, const char *between,
                          const char *before, const char *after) {
    char piece[SENTENCES_BYTES];
    while (text && *text) {
        const char *end = strstr(text, between);
        size_t n = end ? (size_t)(end - text) : strlen(text);
        snprintf(piece, sizeof piece, "%.*s", (int)(n < sizeof piece ? n : sizeof piece - 1), text);
        html_put_between(v->f, before, piece, after);
        text = end ? end + strlen(between) : NULL;
    }
}

// ---------------------------------------------------------------- the choice in a sentence

// An interactive search without a latency budget compares the time per sample, all others tokens/s.
static bool by_sample(const struct tune_request *r) {
    return r->goal == TUNE_INTERACTIVE && !tune_has_limits(r);
}

static void put_gain(const struct tune_view *v) {
    const struct tune_figures *a = &v->figures[0], *b = &v->figures[v->t->chosen];
    bool sample = by_sample(&v->t->request);
    double more =
        sample ? b->ms_per_sample / a->ms_per_sample - 1 : b->tokens_per_s / a->tokens_per_s - 1;
    if (!isfinite(more))
        fputs("<b>so that it can be trained here.</b> As given it could not be measured.", v->f);
    else if (sample ? more > 0.005 : more < -0.005) // as given was measured at another time
        fprintf(v->f,
                "<b>as the best of the finalists, which ran in turns.</b> As given was "
                "%.0f&thinsp;%% %s when it was measured earlier: the machine has become slower "
                "since.",
                100 * (sample ? 1 - 1 / (1 + more) : 1 / (1 + more) - 1),
                sample ? "quicker" : "faster");
    else
        fprintf(v->f, "<b>and %s %.*f&thinsp;%% %s</b> than as given.",
                sample ? "a sample takes" : "train", fabs(more) < 0.1 ? 1 : 0, 100 * fabs(more),
                sample ? "less time" : "faster");
}

static void put_sentence(const struct tune_view *v) {
    const struct tune *t = v->t;
    FILE *f = v->f;
    if (t->chosen < 0) {
        html_put_between(f, "<p class=\"choice none\"><b>Nothing was chosen.</b> ",
                         t->why_none[0] ? t->why_none : "The search did not finish.", "</p>\n");
        return;
    }
    const struct tune_setting *c = &t->settings[t->chosen];
    fputs("<p class=\"choice\">", f);
    if (t->chosen == 0) {
        fputs("<b>Keep the recipe as it is:</b> no setting that was tried is better for the goal.",
              f);
    } else {
        fputs("<b>Set</b> <code>", f);
        put_sentences(v, c->name, " ", "<span>", "</span> ");
        fputs("</code>", f);
        put_gain(v);
    }
    if (t->provisional)
        fputs(" <span class=\"flag\">provisional: a budget is not proven yet</span>", f);
    fputs("</p>\n", f);
}

static void put_tile(const struct tune_view *v, const char *name, const char *value,
                     const char *note) {
    fprintf(v->f, "<div class=\"tile\"><small>%s</small>", name);
    html_put_between(v->f, "<b>", value, "</b>");
    html_put_between(v->f, "<small>", note, "</small></div>\n");
}

static const struct tune_bound *bound_of(const struct tune *t, enum tune_percentile p,
                                         bool respond) {
    for (int i = 0; i < t->n_bounds; i++)
        if (t->bounds[i].p == p && t->bounds[i].respond == respond)
            return &t->bounds[i];
    return NULL;
}

// Compares a figure with its budget.
static void budget_note(char *out, size_t bytes, double value_ns, uint64_t limit_ns, bool proven) {
    char text[TEXT_UNIT_BYTES];
    snprintf(out, bytes, "%s the %s budget%s", value_ns <= (double)limit_ns ? "under" : "over",
             text_duration(text, 1e-9 * (double)limit_ns), proven ? ", 95 % sure" : ", not proven");
}

static void put_latency_tile(const struct tune_view *v, int at) {
    const struct tune_request *r = &v->t->request;
    char name[32], value[TEXT_UNIT_BYTES], note[128], a[TEXT_UNIT_BYTES];
    int p = tune_shown_percentile(r);
    const struct quantile *q = &v->figures[at].q[p];
    snprintf(name, sizeof name, "p%.0f of a step",
             100 * tune_percentile_of((enum tune_percentile)p));
    const struct tune_bound *b = bound_of(v->t, (enum tune_percentile)p, false);
    if (r->limit_ns[p] > 0)
        budget_note(note, sizeof note, q->value, r->limit_ns[p], b && b->proven);
    else if (quantile_has_bound(q))
        snprintf(note, sizeof note, "at most %s, 95 %% sure", text_duration(a, 1e-9 * q->upper95));
    else
        snprintf(note, sizeof note, "%zu steps; a bound needs %zu", q->n, q->n_needed);
    put_tile(v, name, text_duration(value, 1e-9 * q->value), note);
}

// The budget for answers is on the p95 of the time that a request waits.
static void put_wait_tile(const struct tune_view *v) {
    const struct tune_bound *b = bound_of(v->t, TUNE_P95, true);
    char value[TEXT_UNIT_BYTES], note[128];
    if (!b)
        return;
    budget_note(note, sizeof note, b->q.value, b->limit_ns, b->proven);
    put_tile(v, "a request waits, p95", text_duration(value, 1e-9 * b->q.value), note);
}

static void put_memory_tile(const struct tune_view *v) {
    char value[TEXT_UNIT_BYTES], note[96] = "", a[TEXT_UNIT_BYTES];
    bool whole;
    const uint64_t limit = tune_memory_limit(v, &whole);
    if (limit > 0)
        snprintf(note, sizeof note, whole ? "the budget is %s" : "the limit is %s",
                 text_bytes(a, limit));
    put_tile(v, "memory", text_bytes(value, v->t->settings[v->t->chosen].need_bytes), note);
}

static void put_tiles(const struct tune_view *v) {
    const struct tune *t = v->t;
    char value[64], note[96];
    if (t->chosen < 0)
        return;
    const struct tune_figures *g = &v->figures[t->chosen];
    fputs("<div class=\"tiles\">\n", v->f);
    snprintf(value, sizeof value, isfinite(g->tokens_per_s) ? "%.0f" : "not known",
             g->tokens_per_s);
    snprintf(note, sizeof note, "as given");
    if (t->chosen > 0 && isfinite(v->figures[0].tokens_per_s))
        snprintf(note, sizeof note, "as given %.0f", v->figures[0].tokens_per_s);
    put_tile(v, "tokens per second", value, t->chosen == 0 || t->settings[0].n > 0 ? note : "");
    put_wait_tile(v);
    put_latency_tile(v, t->chosen);
    snprintf(value, sizeof value, "%.3g ms", g->ms_per_sample);
    put_tile(v, "time per sample", value, "half of the samples took less");
    put_memory_tile(v);
    fputs("</div>\n", v->f);
}

// ---------------------------------------------------------------- as given against chosen

struct compared { // a row
    const char *label;
    double value[2]; // as given, chosen; NaN: not known
    char text[2][64], note[2][QUANTILE_TEXT_BYTES];
};

static void put_ratio(const struct tune_view *v, const struct compared *c) {
    double ratio = c->value[1] / c->value[0];
    if (!isfinite(ratio) || c->value[0] <= 0)
        fputs("<td></td>", v->f);
    else if (fabs(ratio - 1) < 0.0005)
        fputs("<td class=\"unknown\">same</td>", v->f);
    else if (ratio >= 3)
        fprintf(v->f, "<td>%.1f times</td>", ratio);
    else
        fprintf(v->f, "<td>%+.1f&thinsp;%%</td>", 100 * (ratio - 1));
}

static void put_compared(const struct tune_view *v, const struct compared *c, int columns) {
    fprintf(v->f, "<tr><th scope=\"row\">%s</th>", c->label);
    for (int k = 0; k < columns; k++) {
        bool known = isfinite(c->value[k]);
        fputs(known ? "<td>" : "<td class=\"unknown\">", v->f);
        html_put_text(v->f, known || c->text[k][0] ? c->text[k] : "not measured");
        if (c->note[k][0])
            html_put_between(v->f, "<small>", c->note[k], "</small>");
        fputs("</td>", v->f);
    }
    if (columns > 1)
        put_ratio(v, c);
    fputs("</tr>\n", v->f);
}

static void quantile_row(const struct tune_view *v, const char *label, const struct quantile q[2],
                         int columns) {
    char a[TEXT_UNIT_BYTES];
    struct compared c = {.label = label, .value = {NAN, NAN}};
    for (int k = 0; k < columns; k++) {
        c.value[k] = q[k].value;
        if (q[k].n == 0)
            continue;
        snprintf(c.text[k], sizeof c.text[k], "%s", text_duration(a, 1e-9 * q[k].value));
        if (quantile_has_bound(&q[k]))
            snprintf(c.note[k], sizeof c.note[k], "n=%zu, at most %s (95 %%)", q[k].n,
                     text_duration(a, 1e-9 * q[k].upper95));
        else
            snprintf(c.note[k], sizeof c.note[k], "n=%zu, unbounded: needs %zu", q[k].n,
                     q[k].n_needed);
    }
    put_compared(v, &c, columns);
}

static void percentile_row(const struct tune_view *v, const int at[2], int columns, int p) {
    char label[32];
    struct quantile q[2];
    snprintf(label, sizeof label, "step time p%.0f",
             100 * tune_percentile_of((enum tune_percentile)p));
    for (int k = 0; k < columns; k++)
        q[k] = v->figures[at[k]].q[p];
    quantile_row(v, label, q, columns);
}

// The wait as the budget for answers counts it (from the p95 step), also when there is no budget.
static void wait_row(const struct tune_view *v, const int at[2], int columns) {
    const struct tune_request *r = &v->t->request;
    struct quantile q[2];
    for (int k = 0; k < columns; k++) {
        const struct knobs *knobs = &v->t->settings[at[k]].knobs;
        q[k] = v->figures[at[k]].q[TUNE_P95];
        q[k].value = 1e9 * tune_wait_of(r, knobs, 1e-9 * q[k].value);
        q[k].upper95 = 1e9 * tune_wait_of(r, knobs, 1e-9 * q[k].upper95);
    }
    quantile_row(v, "a request waits, p95", q, columns);
}

// The rows with one value per setting.
enum compared_row { ROW_SPEED, ROW_SAMPLE, ROW_JOULES, ROW_MEMORY, ROW_PEAK, ROW_COUNT };

static double figure_of(const struct tune_view *v, int at, enum compared_row row) {
    const struct tune_figures *g = &v->figures[at];
    return row == ROW_SPEED    ? g->tokens_per_s
           : row == ROW_SAMPLE ? g->ms_per_sample
                               : g->joules_per_token;
}

static void plain_row(const struct tune_view *v, const int at[2], int columns,
                      enum compared_row row) {
    static const char *const labels[ROW_COUNT] = {"tokens per second", "time per sample",
                                                  "energy per token", "memory planned",
                                                  "memory measured"};
    char a[TEXT_UNIT_BYTES];
    struct compared c = {.label = labels[row], .value = {NAN, NAN}};
    for (int k = 0; k < columns; k++) {
        const struct tune_setting *s = &v->t->settings[at[k]];
        uint64_t bytes = row == ROW_MEMORY ? s->need_bytes : s->memory_bytes;
        if (row < ROW_MEMORY) {
            c.value[k] = figure_of(v, at[k], row);
            snprintf(c.text[k], sizeof c.text[k],
                     row == ROW_SPEED    ? "%.0f"
                     : row == ROW_JOULES ? "%.3g J"
                                         : "%.4g ms",
                     c.value[k]);
            if (!isfinite(c.value[k]))
                snprintf(c.text[k], sizeof c.text[k], "%s",
                         row != ROW_JOULES || s->n == 0 ? ""
                         : v->metered                   ? "not metered for long enough"
                                                        : "no meter");
        } else if (bytes > 0) {
            c.value[k] = (double)bytes;
            snprintf(c.text[k], sizeof c.text[k], "%s", text_bytes(a, bytes));
        }
    }
    put_compared(v, &c, columns);
}

static void put_figures(const struct tune_view *v) {
    const int at[2] = {0, v->t->chosen};
    int columns = v->t->chosen > 0 ? 2 : 1;
    if (v->t->n == 0)
        return;
    fputs("<div class=\"scroll\"><table class=\"figures against\"><thead><tr><th></th><th "
          "scope=\"col\">as given",
          v->f);
    fputs(v->t->chosen == 0 ? " = chosen</th>" : "</th>", v->f);
    fputs(columns > 1 ? "<th scope=\"col\">chosen</th><th scope=\"col\">change</th>" : "", v->f);
    fputs("</tr></thead><tbody>\n", v->f);
    plain_row(v, at, columns, ROW_SPEED);
    plain_row(v, at, columns, ROW_SAMPLE);
    for (int p = 0; p < TUNE_PERCENTILES; p++)
        percentile_row(v, at, columns, p);
    if (v->t->request.goal == TUNE_HYBRID)
        wait_row(v, at, columns);
    plain_row(v, at, columns, ROW_MEMORY);
    plain_row(v, at, columns, ROW_PEAK);
    plain_row(v, at, columns, ROW_JOULES);
    fputs("</tbody></table></div>\n", v->f);
}

static void put_changes(const struct tune_view *v) {
    const struct tune *t = v->t;
    char value[KNOB_VALUE_BYTES];
    if (t->chosen <= 0)
        return;
    fputs(
        "<div class=\"scroll\"><table class=\"changes\"><thead><tr><th scope=\"col\">knob</th><th "
        "scope=\"col\">as given</th><th scope=\"col\">chosen</th><th scope=\"col\">what it "
        "is</th></tr></thead><tbody>\n",
        v->f);
    for (int id = 0; id < KNOB_COUNT; id++) {
        const struct knobs *a = &t->settings[0].knobs, *b = &t->settings[t->chosen].knobs;
        if (knobs_same(a, b, id))
            continue;
        html_put_between(v->f, "<tr><th scope=\"row\">", knob_info(id)->name, "</th>");
        html_put_between(v->f, "<td>", knobs_value(a, id, value), "</td>");
        html_put_between(v->f, "<td><b>", knobs_value(b, id, value), "</b></td>");
        html_put_between(v->f, "<td><small>", knob_info(id)->help, "</small></td></tr>\n");
    }
    fputs("</tbody></table></div>\n", v->f);
}

// ---------------------------------------------------------------- the page

static void put_recipe(const struct tune_view *v) {
    if (!v->facts->recipe)
        return;
    fputs("<details><summary>The complete recipe of the choice</summary><pre>", v->f);
    put_sentences(v, v->facts->recipe, "\n", "", "\n"); // line by line: escaping drops newlines
    fputs("</pre></details>\n", v->f);
}

static void part(const struct tune_view *v, const char *title,
                 void (*put)(const struct tune_view *)) {
    fprintf(v->f, "<section class=\"part\"><h2>%s</h2>\n", title);
    put(v);
    fputs("</section>\n", v->f);
}

static void put_verdict(const struct tune_view *v) {
    if (!v->facts->verdict || !v->facts->verdict[0])
        return;
    fputs("<ul class=\"verdict\">", v->f);
    put_sentences(v, v->facts->verdict, "\n", "<li>", "</li>\n");
    fputs("</ul>\n", v->f);
}

static void put_choice(const struct tune_view *v) {
    put_figures(v);
    put_changes(v);
    put_recipe(v);
}

static void put_step_time(const struct tune_view *v) {
    tune_put_steps(v);
    tune_put_split(v);
}

static void put_page(const struct tune_view *v) {
    const char *model = v->facts->model && v->facts->model[0] ? v->facts->model : "a model";
    html_put_head(v->f);
    html_put_between(v->f, "", model, " - haggle tune</title>\n<style>\n");
    html_put_pieces(v->f, html_style);
    html_put_pieces(v->f, tune_style);
    html_put_between(v->f, "</style>\n</head>\n<body>\n<main>\n<h1>", model, "");
    fprintf(v->f, " <small>tuned: goal %s", tune_goal_name(v->t->request.goal));
    if (v->facts->tuning > 0)
        fprintf(v->f, ", tuning %lld", (long long)v->facts->tuning);
    fputs("</small></h1>\n", v->f);
    put_sentence(v);
    put_tiles(v);
    put_about(v);
    put_verdict(v);
    put_sentences(v, v->facts->missing, "\n", "<p class=\"problem\">", "</p>\n");
    part(v, "The frontier", tune_put_frontier);
    part(v, "The trade: as given against chosen", put_choice);
    part(v, "Memory", tune_put_memory);
    part(v, "Step time", put_step_time);
    part(v, "Predicted against measured", tune_put_predicted);
    part(v, "How it was found", tune_put_playbook);
    part(v, "Every setting, and why", tune_put_settings);
    fputs(
        "<footer>Written by haggle " HAGGLE_VERSION
        ". A percentile is the time of a step that was measured. Its bound holds for any "
        "distribution. Planned memory is computed before anything is allocated, exact to the byte "
        "for the arena.</footer>\n"
        "</main>\n<div id=\"tip\" class=\"tip\" role=\"status\"></div>\n<script>\n",
        v->f);
    html_put_pieces(v->f, tune_script);
    fputs("</script>\n</body>\n</html>\n", v->f);
}

int tune_page(FILE *f, const struct tune *t, const struct tune_facts *facts, struct err *e) {
    struct tune_view v = {.f = f, .t = t, .facts = facts};
    v.figures = calloc((size_t)t->n + 1, sizeof *v.figures);
    if (!v.figures)
        return err_set(e, ERR_MEMORY, "no memory for the figures of %d settings", t->n);
    for (int i = 0; i < t->n; i++) {
        const struct tune_setting *s = &t->settings[i];
        struct tune_figures *g = &v.figures[i];
        for (int p = 0; p < TUNE_PERCENTILES; p++)
            g->q[p] = tune_quantile(s, tune_percentile_of((enum tune_percentile)p));
        g->tokens_per_s = tune_tokens_per_s(s);
        g->ms_per_sample = s->n > 0 ? tune_ms_per_sample(s) : NAN;
        g->joules_per_token = tune_joules_per_token(s);
        v.metered |= isfinite(g->joules_per_token);
    }
    put_page(&v);
    free(v.figures);
    return 0;
}

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
                              : "least latency of a sample: its micro-batch's time";
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

// How busy other programs were.
static const char *busy_words(char *out, size_t bytes, const struct tune *t) {
    size_t used = (size_t)snprintf(out, bytes, "busy in %d of %d trials", t->busy, t->trials);
    if (t->busy_most > 0)
        used += (size_t)snprintf(out + used, bytes - used,
                                 ", with up to %.0f %% of the machine's time", 100 * t->busy_most);
    if (t->moved > 0)
        snprintf(out + used, bytes - used, "; the CPUs moved during %d", t->moved);
    return out;
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
    if (t->busy > 0 || t->moved > 0)
        put_row(v, "other programs", busy_words(text, sizeof text, t));
    if (isfinite(apart_least_ns(&t->cpus))) {
        snprintf(text, sizeof text,
                 "a cache line goes to another thread and back in %.0f to %.0f ns",
                 apart_least_ns(&t->cpus), apart_most_ns(&t->cpus));
        put_row(v, "threads apart", text);
    }
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

static void put_name(const struct tune_view *v, int i) {
    fputs("<code>", v->f); // the space before each piece joins the one before the code
    put_sentences(v, v->t->settings[i].name, " ", " <span>", "</span>");
    fputs("</code>", v->f);
}

// The choice against as given: "train 10 % faster", and how sure that is.
static void put_gain(const struct tune_view *v) {
    const struct tune *t = v->t;
    char text[TUNE_WORDS_BYTES];
    fprintf(v->f, "<b>%s %s</b> than as given: ",
            tune_by_sample(&t->request) ? "a sample takes" : "train",
            tune_gain(text, t, t->chosen));
    fprintf(v->f, "%s.", tune_gain_interval(text, t, t->chosen));
}

// What stands against the recipe as given, and what its speed was.
static void put_needed(const struct tune_view *v) {
    const struct tune *t = v->t;
    const struct tune_setting *s = &t->settings[0], *c = &t->settings[t->chosen];
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES], text[TUNE_WORDS_BYTES];
    fputs(s->outcome == TUNE_REFUSED  ? "<b>because as given does not run here:</b> "
          : s->outcome == TUNE_FAILED ? "<b>because as given failed:</b> "
          : s->outcome == TUNE_OVER   ? "<b>because as given breaks a budget:</b> "
                                    : "<b>because as given is not proven to keep the budgets.</b>",
          v->f);
    if (s->outcome == TUNE_REFUSED || s->outcome == TUNE_FAILED || s->outcome == TUNE_OVER)
        html_put_between(v->f, "", s->reason[0] ? s->reason : "no reason is known", ".");
    if (tune_is_compared(t, t->chosen)) {
        fprintf(v->f, " %s %s", tune_by_sample(&t->request) ? "A sample takes" : "It trains",
                tune_gain(text, t, t->chosen));
        fprintf(v->f, " than as given: %s.", tune_gain_interval(text, t, t->chosen));
    } else
        fputs(" How its speed compares with as given was not measured.", v->f);
    if (s->need_bytes > 0 && c->need_bytes > 0 && s->need_bytes != c->need_bytes)
        fprintf(v->f, " It needs %s instead of %s.", text_bytes(a, c->need_bytes),
                text_bytes(b, s->need_bytes));
}

// The setting that came closest to being chosen, with its interval.
static void put_rival(const struct tune_view *v, const char *words) {
    const struct tune *t = v->t;
    char text[TUNE_WORDS_BYTES];
    if (t->rival <= 0)
        return;
    fprintf(v->f, " %s ", words);
    put_name(v, t->rival);
    if (tune_is_compared(t, t->rival)) {
        fprintf(v->f, ": %s", tune_gain(text, t, t->rival));
        fprintf(v->f, " (%s).", tune_gain_interval(text, t, t->rival));
    } else
        fputs(": none of its rounds counts.", v->f);
}

static void put_kept(const struct tune_view *v) {
    const struct tune *t = v->t;
    char text[128];
    if (t->why == TUNE_WHY_TOO_BUSY) {
        fprintf(v->f,
                "<b>Too busy to tell: nothing was changed.</b> Other programs were %s, so too few "
                "rounds count.",
                busy_words(text, sizeof text, t));
        put_rival(v, "The best other setting is");
        fputs(" Try again when the machine is quiet, or give more <code>--time</code>.", v->f);
        return;
    }
    // Without an interval nothing is known about the others.
    const bool unsure = t->rival > 0 && !(tune_is_compared(t, t->rival) &&
                                          isfinite(t->settings[t->rival].turns.low));
    fputs("<b>Keep what you have:</b> ", v->f);
    fputs(t->why == TUNE_WHY_BEST ? "every other setting is slower."
          : t->why == TUNE_WHY_ALONE
              ? "every other setting is slower by far, breaks a budget or does not run."
          : unsure ? "too few rounds count to show that another setting is better."
          : t->why == TUNE_WHY_EQUAL ? "no other setting is better beyond the 95&thinsp;% interval."
                                     : "no setting that was tried is better for the goal.",
          v->f);
    put_rival(v, "The best of them is");
    if (unsure)
        fputs(" Give more <code>--time</code>.", v->f);
}

static void put_sentence(const struct tune_view *v) {
    const struct tune *t = v->t;
    FILE *f = v->f;
    if (t->chosen < 0) {
        html_put_between(f, "<p class=\"choice none\"><b>Nothing was chosen.</b> ",
                         t->why_none[0] ? t->why_none : "The search did not finish.", "</p>\n");
        return;
    }
    fprintf(f, "<p class=\"choice%s\">", t->why == TUNE_WHY_TOO_BUSY ? " none" : "");
    if (t->chosen == 0) {
        put_kept(v);
    } else {
        fputs("<b>Set</b> ", f);
        put_name(v, t->chosen);
        fputc(' ', f);
        if (t->why == TUNE_WHY_NEEDED)
            put_needed(v);
        else if (tune_is_compared(t, t->chosen)) {
            fputs("<b>and</b> ", f);
            put_gain(v);
        } else // an older search, of which only the trials are kept
            fputs("(what it gained in turns with as given is not known).", f);
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
    char value[TEXT_UNIT_BYTES], note[128] = "", a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    bool whole;
    const struct tune *t = v->t;
    const uint64_t limit = tune_memory_limit(v, &whole);
    size_t used = 0;
    if (t->chosen > 0 && t->settings[0].need_bytes > 0)
        used = (size_t)snprintf(note, sizeof note, "as given %s%s",
                                text_bytes(b, t->settings[0].need_bytes), limit > 0 ? "; " : "");
    if (limit > 0)
        snprintf(note + used, sizeof note - used, whole ? "the budget is %s" : "the limit is %s",
                 text_bytes(a, limit));
    put_tile(v, "memory", text_bytes(value, t->settings[t->chosen].need_bytes), note);
}

static void put_speed_tile(const struct tune_view *v) {
    const struct tune *t = v->t;
    const double mine = v->figures[t->chosen].tokens_per_s, given = v->figures[0].tokens_per_s;
    char value[64], note[TUNE_WORDS_BYTES + 64], text[TUNE_WORDS_BYTES];
    snprintf(value, sizeof value, isfinite(mine) ? "%.0f" : "not known", mine);
    if (t->chosen == 0)
        snprintf(note, sizeof note, "as given");
    else if (!isfinite(given))
        snprintf(note, sizeof note, "as given was not measured");
    else if (tune_is_compared(t, t->chosen) && !tune_by_sample(&t->request))
        snprintf(note, sizeof note, "as given %.0f: %s", given, tune_against(text, t, t->chosen));
    else
        snprintf(note, sizeof note, "as given %.0f", given);
    put_tile(v, "tokens per second", value, note);
}

// A larger micro-batch makes a sample wait longer, which is the price of more tokens per second.
static void put_sample_tile(const struct tune_view *v) {
    const struct tune *t = v->t;
    const double mine = v->figures[t->chosen].ms_per_sample, given = v->figures[0].ms_per_sample,
                 more = mine / given - 1;
    char value[64], note[160];
    size_t used = (size_t)snprintf(note, sizeof note, "its micro-batch's time");
    snprintf(value, sizeof value, "%.3g ms", mine);
    if (t->chosen > 0 && isfinite(more)) {
        used += (size_t)snprintf(note + used, sizeof note - used, "; as given %.3g ms", given);
        const bool fair = tune_is_compared(t, t->chosen); // else they are of different times
        if (fair && fabs(more) < 0.005)
            snprintf(note + used, sizeof note - used, ": the same");
        else if (fair && more >= 2)
            snprintf(note + used, sizeof note - used, ": worse, %.1f times as long", 1 + more);
        else if (fair)
            snprintf(note + used, sizeof note - used, ": %s, %.0f %% %s",
                     more > 0 ? "worse" : "better", 100 * fabs(more),
                     more > 0 ? "longer" : "shorter");
    }
    put_tile(v, "latency of a sample", value, note);
}

static void put_tiles(const struct tune_view *v) {
    if (v->t->chosen < 0)
        return;
    fputs("<div class=\"tiles\">\n", v->f);
    put_speed_tile(v);
    put_wait_tile(v);
    put_latency_tile(v, v->t->chosen);
    put_sample_tile(v);
    put_memory_tile(v);
    fputs("</div>\n", v->f);
}

// ---------------------------------------------------------------- as given against chosen

static void put_cell(const struct tune_view *v, const struct tune_trade *r, int side) {
    fputs(isfinite(r->value[side]) ? "<td>" : "<td class=\"unknown\">", v->f);
    html_put_text(v->f, r->text[side][0] ? r->text[side] : "not measured");
    if (r->note[side][0])
        html_put_between(v->f, "<small>", r->note[side], "</small>");
    fputs("</td>", v->f);
}

// An interval goes on a line of its own.
static void put_change(const struct tune_view *v, const char *change) {
    const size_t n = strcspn(change, "(");
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)n, change);
    html_put_between(v->f, "<td>", text, "");
    if (change[n])
        html_put_between(v->f, "<small>", change + n, "</small>");
    fputs("</td>", v->f);
}

static void put_figures(const struct tune_view *v) {
    const struct tune *t = v->t;
    struct tune_trade rows[TUNE_TRADE_MOST];
    const int n = tune_trade_rows(t, v->facts->memory_budget, rows);
    bool budgets = false;
    for (int i = 0; i < n; i++)
        budgets |= rows[i].budget[0] != '\0';
    if (n == 0)
        return;
    fprintf(v->f,
            "<div class=\"scroll\"><table class=\"figures against%s\"><thead><tr><th></th><th "
            "scope=\"col\">as given",
            budgets && t->chosen > 0 ? " wide" : "");
    fputs(t->chosen == 0 ? " = chosen</th>" : "</th>", v->f);
    fputs(t->chosen > 0 ? "<th scope=\"col\">chosen</th><th scope=\"col\">change</th>" : "", v->f);
    fputs(budgets ? "<th scope=\"col\">budget</th>" : "", v->f);
    fputs("</tr></thead><tbody>\n", v->f);
    for (int i = 0; i < n; i++) {
        fprintf(v->f, "<tr><th scope=\"row\">%s", rows[i].label);
        if (rows[i].hint)
            html_put_between(v->f, "<small>", rows[i].hint, "</small>");
        fputs("</th>", v->f);
        put_cell(v, &rows[i], 0);
        if (t->chosen > 0) {
            put_cell(v, &rows[i], 1);
            put_change(v, rows[i].change);
        }
        if (budgets) {
            html_put_between(v->f, "<td>", rows[i].budget, "");
            html_put_between(v->f, "<small>", rows[i].kept, "</small></td>");
        }
        fputs("</tr>\n", v->f);
    }
    fputs("</tbody></table></div>\n", v->f);
    if (t->busy > 0)
        fputs("<p class=\"small\">Step times are of all steps, also of those while other programs "
              "were busy.</p>\n",
              v->f);
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
    part(v, "Every setting by speed, latency and memory", tune_put_frontier);
    part(v, v->t->chosen > 0 ? "What changes, and what it costs" : "As given", put_choice);
    part(v, "Where the memory goes", tune_put_memory);
    part(v, "How long steps take", put_step_time);
    part(v, "How good the predictions were", tune_put_predicted);
    part(v, "How it was found", tune_put_playbook);
    part(v, "Every setting, and why it was not chosen", tune_put_settings);
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
    v.places = tune_places(t);
    if (!v.figures || !v.places) {
        free(v.figures);
        free(v.places);
        return err_set(e, ERR_MEMORY, "no memory for the figures of %d settings", t->n);
    }
    for (int i = 0; i < t->n; i++) {
        const struct tune_setting *s = &t->settings[i];
        struct tune_figures *g = &v.figures[i];
        for (int p = 0; p < TUNE_PERCENTILES; p++)
            g->q[p] = tune_quantile(s, tune_percentile_of((enum tune_percentile)p));
        g->tokens_per_s = tune_speed(t, i);
        g->ms_per_sample = tune_sample_ms(t, i);
        tune_range_of(t, i, &g->range);
        g->joules_per_token = tune_joules_per_token(s);
        v.metered |= isfinite(g->joules_per_token);
    }
    put_page(&v);
    free(v.figures);
    free(v.places);
    return 0;
}

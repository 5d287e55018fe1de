// gen_page.c - a search for generation as one HTML page that loads nothing: the answer, budgets,
// tokens/s against the time between tokens with the frontier, formats with size and divergence, and
// every setting with its reason.
#include "report/gen_print.h"

#include "base/text.h"
#include "report/html.h"
#include "report/html_text.h"
#include "report/svg.h"

#include <math.h>
#include <string.h>

static const char *const STYLE[] = {
    ".answer{font-size:1.1rem;margin:.6em 0 1em;padding:.6em .8em;background:var(--soft);"
    "border-left:4px solid var(--c0)}.answer.none{border-color:var(--bad)}"
    "dl.about{display:grid;grid-template-columns:max-content 1fr;gap:.15em 1em;margin:.6em 0}"
    "dl.about dt{color:var(--dim)}dl.about dd{margin:0}pre{background:var(--soft);padding:.6em;"
    "overflow-x:auto}tr.chosen td,tr.chosen th{font-weight:600}tr.glance{color:var(--dim)}"
    "td,th{white-space:nowrap}td.text{text-align:left;white-space:normal;min-width:9em}",
    NULL};

static void put_row(FILE *f, const char *term, const char *text) {
    fprintf(f, "<dt>%s</dt>", term);
    html_put_between(f, "<dd>", text, "</dd>");
}

static void put_about(FILE *f, const struct gen *g, const struct gen_facts *facts) {
    char text[GEN_SENTENCE_BYTES], time[TEXT_UNIT_BYTES];
    size_t n = 0;
    fputs("<dl class=\"about\">", f);
    put_row(f, "goal", gen_goal(text, g));
    text[0] = '\0';
    for (int l = 0; l < GEN_LIMITS; l++)
        if (g->request.limit_ns[l] > 0)
            n += (size_t)snprintf(text + n, sizeof text - n, "%sp%g of the %s at most %.6g ms",
                                  n ? ", " : "", 100 * g->request.p,
                                  gen_limit_name((enum gen_limit)l),
                                  1e-6 * (double)g->request.limit_ns[l]);
    if (facts->memory_budget > 0)
        snprintf(text + n, sizeof text - n, "%smemory at most %s", n ? ", " : "",
                 text_bytes(time, facts->memory_budget));
    put_row(f, "budgets", text[0] ? text : "none except the machine's memory");
    if (gen_budgets(text, g)[0])
        put_row(f, "of the choice", text);
    if (facts->machine)
        put_row(f, "machine", facts->machine);
    if (facts->likeness)
        put_row(f, "formats", facts->likeness);
    int measured = 0;
    for (int i = 0; i < g->n; i++)
        measured += g->settings[i].visits > 0;
    snprintf(text, sizeof text, "%d settings, %d of them measured in %d trials (%d busy), in %s",
             g->n, measured, g->trials, g->busy,
             text_duration(time, 1e-9 * (double)(g->end_ns - g->begin_ns)));
    put_row(f, "search", text);
    fputs("</dl>\n", f);
}

// ---------------------------------------------------------------- the frontier

struct bounds {
    double x[2], y[2];
};

static struct svg_point point_of(const struct gen *g, int i) {
    return (struct svg_point){1e-6 * g->settings[i].percentile[GEN_BETWEEN],
                              gen_speed(&g->settings[i])};
}

static void put_dots(FILE *f, const struct gen *g, const struct svg_plot *p, const char *css,
                     bool frontier) {
    for (int i = 0; i < g->n; i++) {
        const struct svg_point v = point_of(g, i);
        if (g->settings[i].visits > 0 && g->settings[i].frontier == frontier)
            svg_dots(f, p, css, &v, 1);
    }
}

// The frontier from left to right. Settings are few, so each next one is looked for.
static void put_line(FILE *f, const struct gen *g, const struct svg_plot *p) {
    struct svg_point from = {-INFINITY, NAN};
    for (;;) {
        struct svg_point next = {INFINITY, NAN};
        for (int i = 0; i < g->n; i++) {
            const struct svg_point v = point_of(g, i);
            if (g->settings[i].visits > 0 && g->settings[i].frontier && v.x > from.x &&
                v.x < next.x)
                next = v;
        }
        if (isnan(next.y))
            return;
        if (!isnan(from.y)) {
            const struct svg_point both[2] = {from, next};
            svg_line(f, p, "c0", both, 2);
        }
        from = next;
    }
}

static void put_frontier(FILE *f, const struct gen *g) {
    struct bounds b = {{INFINITY, 0}, {INFINITY, 0}};
    for (int i = 0; i < g->n; i++) {
        const struct svg_point v = point_of(g, i);
        if (g->settings[i].visits == 0)
            continue;
        b.x[0] = fmin(b.x[0], v.x), b.x[1] = fmax(b.x[1], v.x);
        b.y[0] = fmin(b.y[0], v.y), b.y[1] = fmax(b.y[1], v.y);
    }
    if (!(b.y[1] > 0)) {
        fputs("<p class=\"small\">Nothing was measured.</p>\n", f);
        return;
    }
    const double limit = 1e-6 * (double)g->request.limit_ns[GEN_BETWEEN];
    if (limit > 0)
        b.x[0] = fmin(b.x[0], limit), b.x[1] = fmax(b.x[1], limit);
    char unit[64];
    snprintf(unit, sizeof unit, "p%g of the time between tokens, ms", 100 * g->request.p);
    const struct svg_plot p = {.id = "frontier",
                               .title = "Speed against latency",
                               .unit = "generated tokens/s",
                               .x_unit = unit,
                               .describe = "Every setting that was measured: generated tokens per "
                                           "second over the time between tokens. The table below "
                                           "has the same figures.",
                               .x = svg_scale_log(b.x[0], b.x[1]),
                               .y = svg_scale_round(0, b.y[1], 5)};
    svg_caption(f, &p, "");
    svg_begin(f, &p);
    if (limit > 0)
        svg_vertical(f, &p, "c1", limit, 0, 1);
    put_line(f, g, &p);
    put_dots(f, g, &p, "c3", false);
    put_dots(f, g, &p, "c0", true);
    svg_labels(f);
    const struct svg_point given = point_of(g, 0);
    if (g->settings[0].visits > 0)
        svg_note(f, &p, given.x, given.y, g->chosen == 0 ? "as given (chosen)" : "as given");
    if (g->chosen > 0) {
        const struct svg_point v = point_of(g, g->chosen);
        svg_note(f, &p, v.x, v.y, "chosen");
    }
    if (limit > 0)
        svg_note(f, &p, limit, p.y.hi, "budget");
    svg_end(f, &p);
    fputs("</figure>\n<p class=\"small\">The line joins the frontier: no other setting has more "
          "tokens/s and less time between tokens. Settings that did not run in turns were measured "
          "at other times and cannot be compared closely.</p>\n",
          f);
}

// ---------------------------------------------------------------- tables

static void put_number(FILE *f, double x, int decimals) {
    if (isfinite(x))
        fprintf(f, "<td>%.*f</td>", decimals, x);
    else
        fputs("<td class=\"unknown\">-</td>", f);
}

static void put_kl(FILE *f, double kl) {
    if (isfinite(kl))
        fprintf(f, "<td>%.3g</td>", kl);
    else
        fputs("<td class=\"unknown\">-</td>", f);
}

static void put_size(FILE *f, uint64_t bytes) {
    char text[TEXT_UNIT_BYTES];
    fprintf(f, bytes ? "<td>%s</td>" : "<td class=\"unknown\">-</td>", text_bytes(text, bytes));
}

static void put_formats(FILE *f, const struct gen *g) {
    fputs("<div class=\"scroll\"><table><thead><tr><th>format</th><th>weights</th><th>KL, nats per "
          "token</th><th>95&thinsp;% interval</th><th>limit</th><th></th></tr></thead><tbody>\n",
          f);
    for (int i = 0; i < g->request.space.n[GEN_FORMAT]; i++) {
        const struct gen_format *x = &g->request.formats[i];
        html_put_between(f, "<tr><th scope=\"row\">", x->name, "</th>");
        put_size(f, x->bytes);
        if (isfinite(x->kl))
            fprintf(f, "<td>%.3g</td><td>", x->kl);
        if (isfinite(x->low))
            fprintf(f, "%.3g to %.3g", x->low, x->high);
        if (isfinite(x->kl))
            fprintf(f, "</td><td>%g</td>", x->limit);
        else
            fprintf(f, "<td class=\"unknown\">%s</td><td></td><td></td>",
                    i == 0 ? "0" : "not measured");
        html_put_between(f, "<td class=\"text\">", x->refused[0] ? x->refused : "admitted",
                         "</td></tr>\n");
    }
    fputs("</tbody></table></div>\n", f);
}

static void put_turns(FILE *f, const struct tune_turns *t) {
    if (t->rounds == 0)
        fputs("<td></td>", f);
    else if (isfinite(t->low))
        fprintf(f, "<td>%+.1f&thinsp;%% (%+.1f to %+.1f)</td>", 100 * (t->ratio - 1),
                100 * (t->low - 1), 100 * (t->high - 1));
    else
        fprintf(f, "<td>%+.1f&thinsp;%%</td>", 100 * (t->ratio - 1));
}

static void put_settings(FILE *f, const struct gen *g) {
    int i;
    fprintf(f,
            "<div class=\"scroll\"><table><thead><tr><th>setting</th><th></th><th>tokens/s</th>"
            "<th>vs as given</th><th>first token, p%g ms</th><th>between tokens, p%g ms</th>"
            "<th>memory</th><th>KL</th><th>why not</th></tr></thead><tbody>\n",
            100 * g->request.p, 100 * g->request.p);
    for (int k = 0; (i = gen_place(g, k)) >= 0; k++) {
        const struct gen_setting *s = &g->settings[i];
        const bool seen = s->visits > 0;
        const char *mark = gen_mark(g, i);
        fprintf(f, "<tr class=\"%s\">", i == g->chosen ? "chosen" : seen ? "" : "glance");
        html_put_between(f, "<th scope=\"row\">", s->name, "</th>");
        html_put_between(f, "<td>", mark, "</td>");
        put_number(f, gen_speed(&g->settings[i]), 1);
        put_turns(f, &s->turns);
        put_number(f, seen ? 1e-6 * s->percentile[GEN_FIRST] : NAN, 2);
        put_number(f, seen ? 1e-6 * s->percentile[GEN_BETWEEN] : NAN, 2);
        put_size(f, s->memory_bytes ? s->memory_bytes : s->need_bytes);
        put_kl(f, s->point.format == 0 ? 0 : g->request.formats[s->point.format].kl);
        html_put_between(f, "<td class=\"text\">", i == g->chosen ? "" : s->reason, "</td></tr>\n");
    }
    fputs("</tbody></table></div>\n", f);
}

static void put_page(FILE *f, const struct gen *g, const struct gen_facts *facts) {
    char text[GEN_SENTENCE_BYTES];
    html_put_head(f);
    html_put_between(f, "", facts->model, " - haggle tune</title>\n<style>\n");
    html_put_pieces(f, html_style);
    html_put_pieces(f, STYLE);
    html_put_between(f, "</style>\n</head>\n<body>\n<main>\n<h1>", facts->model,
                     " <small>tuned: goal generate</small></h1>\n");
    fprintf(f, "<p class=\"answer%s\">", g->chosen < 0 ? " none" : "");
    html_put_text(f, gen_answer(text, g));
    fputs(g->provisional ? ". <b>Provisional: a budget is not proven yet.</b></p>\n" : ".</p>\n",
          f);
    put_about(f, g, facts);
    fputs("<section class=\"part\"><h2>Every setting by speed and latency</h2>\n", f);
    put_frontier(f, g);
    fputs("</section>\n<section class=\"part\"><h2>Formats of the weights</h2>\n", f);
    put_formats(f, g);
    if (facts->commands) {
        fputs("</section>\n<section class=\"part\"><h2>To use the choice</h2>\n", f);
        html_put_between(f, "<pre>", facts->commands, "</pre>\n");
    }
    fputs("</section>\n<section class=\"part\"><h2>Every setting, and why it was not chosen</h2>\n",
          f);
    put_settings(f, g);
    fputs("</section>\n<footer>Written by haggle " HAGGLE_VERSION
          ". A percentile is a time that was measured, of texts that generate while prompts come "
          "in.</footer>\n</main>\n</body>\n</html>\n",
          f);
}

int gen_page_write(const struct gen *g, const struct gen_facts *facts, const char *path,
                   struct err *e) {
    struct html_file h;
    uint64_t bytes;
    TRY(html_file_open(&h, e));
    put_page(h.f, g, facts);
    return html_file_save(&h, path, 0, &bytes, e);
}

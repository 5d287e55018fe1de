// html_table.c - the words, tables and bars of a report; see html.h.
#include "report/html.h"
#include "report/html_figures.h"
#include "report/html_text.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

// The head of a run's column. The page's title names a single run, so its column is headed by what
// the column shows.
static void put_name(struct html_page *p, size_t i, const char *column) {
    char css[HTML_COLOUR_BYTES];
    if (p->n > 1)
        fprintf(p->f, "<i class=\"%s\"></i>", html_colour(css, i));
    html_put_text(p->f, p->n > 1 ? p->runs[i].name : column);
}

// The first row of a table with a column per run.
static void put_columns(struct html_page *p, const char *css, const char *first,
                        const char *column) {
    fprintf(p->f, "<div class=\"scroll\"><table class=\"%s\"><thead><tr><th scope=\"col\">%s</th>",
            css, first);
    for (size_t i = 0; i < p->n; i++) {
        fputs("<th scope=\"col\">", p->f);
        put_name(p, i, column);
        fputs("</th>", p->f);
    }
}

// ---------------------------------------------------------------- heads

static void put_fact(struct html_page *p, const char *label, const char *value) {
    if (!value[0])
        return;
    fprintf(p->f, "<dt>%s</dt>", label);
    html_put_between(p->f, "<dd>", value, "</dd>\n");
}

static void put_model(struct html_page *p, const struct run_log *g) {
    char text[RUN_SENTENCE_BYTES + 64], count[TEXT_UNIT_BYTES];
    snprintf(text, sizeof text, "%s%s%s%s", g->model, g->parameters > 0 ? ", " : "",
             g->parameters > 0 ? text_count(count, (double)g->parameters) : "",
             g->parameters > 0 ? " parameters" : "");
    put_fact(p, "model", text);
    put_fact(p, "data", g->data);
}

static void put_machine(struct html_page *p, const struct run_read *r) {
    const struct run_log *g = &r->log;
    char text[2 * RUN_TEXT_BYTES + 128];
    snprintf(text, sizeof text, "%s%s%s%s%s", g->device, g->isa[0] ? ", " : "", g->isa,
             g->blas[0] ? ", matrix products: " : "", g->blas);
    put_fact(p, "computed on", text);
    if (r->result.cpu[0]) {
        snprintf(text, sizeof text, "%s, %lld CPUs%s%s", r->result.cpu,
                 (long long)r->result.usable_cpus, r->result.kernel[0] ? ", Linux " : "",
                 r->result.kernel);
        put_fact(p, "machine", text);
    }
}

static void put_when(struct html_page *p, const struct run_read *r) {
    const struct run_log *g = &r->log;
    char text[2 * FIGURE_TEXT_BYTES + 64], when[FIGURE_TEXT_BYTES], took[TEXT_UNIT_BYTES];
    double seconds = g->time_last - g->time_first;
    const char *end = r->result.end;
    if (isnan(g->time_first))
        return;
    snprintf(text, sizeof text, "%s%s%s", figure_time(when, g->time_first),
             seconds >= 0 ? ", over " : "", seconds >= 0 ? text_duration(took, seconds) : "");
    put_fact(p, "when", text);
    snprintf(text, sizeof text, "step %lld of %lld%s", (long long)g->last_step,
             (long long)g->steps_planned,
             !r->result.is_there           ? "; how it ended is not known"
             : strcmp(end, "done") == 0    ? "; done"
             : strcmp(end, "time") == 0    ? "; the time limit was reached"
             : strcmp(end, "stopped") == 0 ? "; stopped on request"
             : strcmp(end, "patience") == 0
                 ? "; ended because validations had no better loss (stop.patience)"
             : strcmp(end, "diverged") == 0 ? "; diverged"
                                            : "; failed");
    put_fact(p, "reached", text);
    put_fact(p, "best checkpoint", r->result.best);
    put_fact(p, "error", r->result.error);
}

static void put_head(struct html_page *p, size_t i) {
    struct run_read *r = &p->runs[i];
    fputs("<section class=\"run\">", p->f);
    if (p->n > 1) {
        fputs("<h2>", p->f);
        put_name(p, i, "");
        fputs("</h2>\n", p->f);
    }
    if (r->result.verdict[0])
        html_put_between(p->f, "<p class=\"verdict\">", r->result.verdict, "</p>\n");
    fputs("<dl>", p->f);
    put_model(p, &r->log);
    put_when(p, r);
    put_machine(p, r);
    put_fact(p, "folder", r->dir);
    put_fact(p, "haggle", r->log.haggle);
    fputs("</dl>\n", p->f);
    for (int k = 0; k < r->n_problems; k++)
        html_put_between(p->f, "<p class=\"problem\">", r->problems[k], "</p>\n");
    fputs("</section>\n", p->f);
}

void html_put_heads(struct html_page *p) {
    fputs("<div class=\"heads\">", p->f);
    for (size_t i = 0; i < p->n; i++)
        put_head(p, i);
    fputs("</div>\n", p->f);
}

// ---------------------------------------------------------------- figures

static void put_figure(struct html_page *p, const struct figure *g, size_t i) {
    char text[FIGURE_TEXT_BYTES], note[FIGURE_TEXT_BYTES], ratio[FIGURE_TEXT_BYTES];
    double value = g->value(&p->runs[i]);
    fputs(isfinite(value) ? "<td>" : "<td class=\"unknown\">", p->f);
    html_put_text(p->f, figure_text(text, g, value));
    if (i > 0 && figure_ratio(ratio, g, value, g->value(&p->runs[0]))[0])
        fprintf(p->f, " <span class=\"ratio\">%s</span>", ratio);
    const char *beside = g->note ? g->note(note, &p->runs[i]) : "";
    if (beside[0])
        html_put_between(p->f, " <small>", beside, "</small>");
    fputs("</td>", p->f);
}

// The figure of that name, when all runs show the same text for both.
static const struct figure *same_twin(const struct html_page *p, const struct figure *g) {
    char own[FIGURE_TEXT_BYTES], other[FIGURE_TEXT_BYTES];
    for (size_t k = 0; g->twin && k < figure_count(); k++) {
        const struct figure *twin = figure_at(k);
        bool same = strcmp(twin->key, g->twin) == 0;
        for (size_t i = 0; i < p->n; i++)
            same = same && strcmp(figure_text(own, g, g->value(&p->runs[i])),
                                  figure_text(other, twin, twin->value(&p->runs[i]))) == 0;
        if (same)
            return twin;
    }
    return NULL;
}

static const char *row_name(const struct html_page *p, const struct figure *g) {
    for (size_t k = 0; k < figure_count(); k++)
        if (same_twin(p, figure_at(k)) == g)
            return figure_at(k)->both;
    return g->plain;
}

void html_put_figures(struct html_page *p) {
    put_columns(p, p->n == 1 ? "figures one" : "figures", "figure", "value");
    fputs("</tr></thead><tbody>\n", p->f);
    for (size_t k = 0; k < figure_count(); k++) {
        const struct figure *g = figure_at(k);
        if (same_twin(p, g))
            continue;
        fprintf(p->f, "<tr><th scope=\"row\">%s</th>", row_name(p, g));
        for (size_t i = 0; i < p->n; i++)
            put_figure(p, g, i);
        fputs("</tr>\n", p->f);
    }
    fputs("</tbody></table></div>\n", p->f);
    if (p->n > 1)
        fputs("<p class=\"small\">Percentages beside a value compare it with the first run.</p>\n",
              p->f);
}

// ---------------------------------------------------------------- bars

static const char *part_name(const char *name) {
    return strcmp(name, "data_wait") == 0 ? "waiting for data"
           : strcmp(name, "other") == 0   ? "other operations"
                                          : name;
}

// What a part is, where its name does not say it; as `haggle train` prints it.
static const char *part_note(const char *name) {
    static const char *const notes[][2] = {
        {"workspace", "scratch memory of operations"},
        {"slack", "alignment and holes"},
        {"loader", "batches made ahead"},
        {"saving", "a checkpoint's buffer"},
        {"process", "the program itself and its libraries"},
        {"matmul", "matrix products"},
        {"host", "the program between operations"},
    };
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (strcmp(notes[i][0], name) == 0)
            return notes[i][1];
    return "";
}

static void begin_bar(struct html_page *p, const char *label) {
    html_put_between(p->f, "<div class=\"row\"><span class=\"what\">", label,
                     "</span><span class=\"bar\">");
}

// One bar: the parts in their order, each as long as its share of `whole`.
static void put_bar(struct html_page *p, const char *label, const struct run_part *parts, int n,
                    double whole, bool bytes) {
    begin_bar(p, label);
    for (int i = 0; i < n; i++) {
        char amount[TEXT_UNIT_BYTES];
        double share = whole > 0 ? fmin(parts[i].amount / whole, 1) : 0;
        fprintf(p->f, "<i class=\"f%d\" style=\"width:%.3f%%\" title=\"", i % HTML_COLOURS,
                100 * share);
        html_put_text(p->f, part_name(parts[i].name));
        if (bytes)
            fprintf(p->f, ": %s\"></i>", text_bytes(amount, (uint64_t)parts[i].amount));
        else
            fprintf(p->f, ": %.1f %%\"></i>", 100 * parts[i].amount);
    }
    fputs("</span></div>\n", p->f);
}

// The names of the parts of all runs, so that a colour means the same in all bars.
struct names {
    char name[RUN_PARTS_MOST][48];
    int n;
};

static int find_name(struct names *s, const char *name) {
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->name[i], name) == 0)
            return i;
    if (s->n == RUN_PARTS_MOST)
        return -1;
    run_copy(s->name[s->n], sizeof s->name[0], name);
    return s->n++;
}

static void arrange(struct names *s, const struct run_part *parts, int n,
                    struct run_part out[RUN_PARTS_MOST]) {
    memset(out, 0, RUN_PARTS_MOST * sizeof *out);
    for (int i = 0; i < n; i++) {
        int at = find_name(s, parts[i].name);
        if (at >= 0) {
            memcpy(out[at].name, s->name[at], sizeof out[at].name);
            out[at].amount = parts[i].amount;
        }
    }
}

// The table below the bars: it names the colours and gives every amount as a number.
static void put_parts_table(struct html_page *p, struct names *s, bool memory) {
    put_columns(p, "parts", memory ? "class" : "part", memory ? "bytes" : "share");
    fputs("</tr></thead><tbody>\n", p->f);
    for (int k = 0; k < s->n; k++) {
        fprintf(p->f, "<tr><th scope=\"row\"><i class=\"f%d\"></i>", k % HTML_COLOURS);
        html_put_between(p->f, "", part_name(s->name[k]), "");
        if (part_note(s->name[k])[0])
            html_put_between(p->f, " <small>", part_note(s->name[k]), "</small>");
        fputs("</th>", p->f);
        for (size_t i = 0; i < p->n; i++) {
            const struct run_result *o = &p->runs[i].result;
            struct run_part parts[RUN_PARTS_MOST];
            char text[TEXT_UNIT_BYTES];
            arrange(s, memory ? o->memory : o->split, memory ? o->n_memory : o->n_split, parts);
            if (!o->is_there || (memory && parts[k].amount == 0))
                fputs("<td></td>", p->f);
            else if (memory)
                fprintf(p->f, "<td>%s</td>", text_bytes(text, (uint64_t)parts[k].amount));
            else
                fprintf(p->f, "<td>%.1f %%</td>", 100 * parts[k].amount);
        }
        fputs("</tr>\n", p->f);
    }
    fputs("</tbody></table></div>\n", p->f);
}

// False, and the page says so: no run has these parts.
static bool any_parts(const struct html_page *p, bool memory) {
    for (size_t i = 0; i < p->n; i++)
        if ((memory ? p->runs[i].result.n_memory : p->runs[i].result.n_split) > 0)
            return true;
    fprintf(p->f, "<p class=\"small\">%s not known: there is no result.json that says it.</p>\n",
            memory ? "Memory by class is" : "Where the time went is");
    return false;
}

void html_put_split(struct html_page *p) {
    struct names names = {.n = 0};
    struct run_part parts[RUN_PARTS_MOST];
    if (!any_parts(p, false))
        return;
    fputs("<figure id=\"split\"><figcaption>Where the time went <small>share of the steps' wall "
          "time</small></figcaption>\n",
          p->f);
    for (size_t i = 0; i < p->n; i++) {
        const struct run_result *o = &p->runs[i].result;
        arrange(&names, o->split, o->n_split, parts);
        if (o->n_split > 0)
            put_bar(p, p->n > 1 ? p->runs[i].name : "", parts, names.n, 1, false);
    }
    put_parts_table(p, &names, false);
    fputs("</figure>\n", p->f);
}

static void put_memory_bars(struct html_page *p, struct names *names, size_t i, double whole) {
    const struct run_result *o = &p->runs[i].result;
    struct run_part parts[RUN_PARTS_MOST];
    char label[RUN_TEXT_BYTES + 96], bytes[TEXT_UNIT_BYTES];
    const char *name = p->n > 1 ? p->runs[i].name : "", *gap = p->n > 1 ? ": " : "";
    arrange(names, o->memory, o->n_memory, parts);
    if (o->memory_predicted > 0) {
        snprintf(label, sizeof label, "%s%spredicted %s", name, gap,
                 text_bytes(bytes, (uint64_t)o->memory_predicted));
        put_bar(p, label, parts, names->n, whole, true);
    }
    if (o->memory_measured > 0) {
        snprintf(label, sizeof label, "%s%smeasured %s%s", name, gap,
                 text_bytes(bytes, (uint64_t)o->memory_measured),
                 o->on_device ? " on the device" : "");
        begin_bar(p, label);
        fprintf(p->f, "<i class=\"measured\" style=\"width:%.3f%%\"></i></span></div>\n",
                100 * fmin(o->memory_measured / whole, 1));
    }
}

void html_put_memory(struct html_page *p) {
    struct names names = {.n = 0};
    double whole = 0;
    if (!any_parts(p, true))
        return;
    for (size_t i = 0; i < p->n; i++) {
        const struct run_result *o = &p->runs[i].result;
        double sum = 0;
        for (int k = 0; k < o->n_memory; k++)
            sum += o->memory[k].amount;
        whole = fmax(whole, fmax(sum, fmax(o->memory_predicted, o->memory_measured))); // skips NaN
    }
    fputs("<figure id=\"memory\"><figcaption>Memory <small>at its peak: predicted by class, and "
          "measured</small></figcaption>\n",
          p->f);
    for (size_t i = 0; i < p->n; i++)
        put_memory_bars(p, &names, i, whole);
    put_parts_table(p, &names, true);
    fputs("</figure>\n", p->f);
}

// ---------------------------------------------------------------- settings

static const struct run_setting *find_setting(const struct run_read *r, const char *name) {
    for (size_t i = 0; i < r->n_settings; i++)
        if (strcmp(r->settings[i].name, name) == 0)
            return &r->settings[i];
    return NULL;
}

static void put_setting(struct html_page *p, const struct run_setting *s) {
    html_put_between(p->f, "<tr><th scope=\"row\">", s->name, "</th>");
    for (size_t i = 0; i < p->n; i++) {
        const struct run_setting *own = find_setting(&p->runs[i], s->name);
        const char *absent = p->runs[i].has_settings ? "default" : "not known";
        html_put_between(p->f, own ? "<td>" : "<td class=\"unknown\">",
                         !own            ? absent
                         : own->value[0] ? own->value
                                         : "(empty)",
                         "");
        if (own && own->by[0])
            html_put_between(p->f, " <small>", own->by, "</small>");
        fputs("</td>", p->f);
    }
    html_put_between(p->f, "<td class=\"unknown\">", s->initial[0] ? s->initial : "(empty)",
                     "</td></tr>\n");
}

void html_put_settings(struct html_page *p) {
    size_t all = 0;
    bool known = true;
    for (size_t i = 0; i < p->n; i++) {
        all += p->runs[i].n_settings;
        known = known && p->runs[i].has_settings;
    }
    if (all == 0) {
        fputs(known ? "<p class=\"small\">None.</p>\n" : "<p class=\"small\">Not known.</p>\n",
              p->f);
        return;
    }
    put_columns(p, "settings", "setting", "value");
    fputs("<th scope=\"col\">default</th></tr></thead><tbody>\n", p->f);
    for (size_t i = 0; i < p->n; i++)
        for (size_t k = 0; k < p->runs[i].n_settings; k++) {
            const struct run_setting *s = &p->runs[i].settings[k];
            bool seen = false; // in a run before this one
            for (size_t before = 0; before < i; before++)
                seen = seen || find_setting(&p->runs[before], s->name);
            if (!seen)
                put_setting(p, s);
        }
    fputs("</tbody></table></div>\n", p->f);
}

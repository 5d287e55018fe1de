// tune_page_parts.c - where memory and time go, for the recipe as given and for the choice: bars on
// one scale, with the numbers in a table below; see tune_page.h.
#include "report/html.h"
#include "report/html_text.h"
#include "report/tune_page.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

enum { PART_SECOND = CLASS_COUNT, PART_REST, PARTS_MOST, SIDES = 2 };
_Static_assert((int)TIME_COUNT <= (int)PARTS_MOST, "a split has a place for every part");

struct parts {
    int n;
    const char *name[PARTS_MOST];
    double amount[SIDES][PARTS_MOST]; // side 0: the recipe as given, side 1: the choice
    bool known[SIDES];
    double limit; // drawn as a line; 0: none
    bool bytes;   // else milliseconds
};

static double sum(const struct parts *p, int side) {
    double all = 0;
    for (int i = 0; i < p->n; i++)
        all += p->amount[side][i];
    return all;
}

// There are eight colours, one for each class of the arena. Outside the arena, a second model is
// hatched and the rest is grey.
_Static_assert((int)CLASS_COUNT <= (int)HTML_COLOURS, "a class has a colour of its own");
static void put_css(FILE *f, int i) {
    if (i < CLASS_COUNT)
        fprintf(f, "f%d", i);
    else
        fputs(i == PART_SECOND ? "hatched" : "measured", f);
}

static const char *amount_text(char out[TEXT_UNIT_BYTES], const struct parts *p, double x) {
    return p->bytes ? text_bytes(out, (uint64_t)x) : text_duration(out, 1e-3 * x);
}

static void put_bar(FILE *f, const struct parts *p, int side, const char *label, double whole) {
    char text[TEXT_UNIT_BYTES];
    fprintf(f, "<div class=\"row\"><span class=\"what\">%s %s</span><span class=\"bar\">", label,
            amount_text(text, p, sum(p, side)));
    for (int i = 0; i < p->n; i++) {
        if (p->amount[side][i] <= 0)
            continue;
        fputs("<i class=\"", f);
        put_css(f, i);
        fprintf(f, "\" style=\"width:%.3f%%\" title=\"%s: %s\"></i>",
                100 * p->amount[side][i] / whole, p->name[i],
                amount_text(text, p, p->amount[side][i]));
    }
    if (p->limit > 0 && p->limit < 0.998 * whole)
        fprintf(f, "<u style=\"left:%.3f%%\"></u>", 100 * p->limit / whole);
    fputs("</span></div>\n", f);
}

static void put_table(FILE *f, const struct parts *p, const char *of,
                      const char *const label[SIDES]) {
    char text[TEXT_UNIT_BYTES];
    fprintf(f, "<div class=\"scroll\"><table class=\"parts\"><thead><tr><th scope=\"col\">%s</th>",
            of);
    for (int side = 0; side < SIDES; side++)
        if (p->known[side])
            fprintf(f, "<th scope=\"col\">%s</th>", label[side]);
    fputs("</tr></thead><tbody>\n", f);
    for (int i = 0; i < p->n; i++) {
        if (p->amount[0][i] <= 0 && p->amount[1][i] <= 0)
            continue;
        fputs("<tr><th scope=\"row\"><i class=\"", f);
        put_css(f, i);
        fprintf(f, "\"></i>%s</th>", p->name[i]);
        for (int side = 0; side < SIDES; side++) {
            double x = p->amount[side][i], all = sum(p, side);
            if (!p->known[side])
                continue;
            fprintf(f, "<td>%s <small>%.0f&thinsp;%%</small></td>",
                    x > 0 ? amount_text(text, p, x) : "0", all > 0 ? 100 * x / all : 0);
        }
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table></div>\n", f);
}

static void put_parts(const struct tune_view *v, const struct parts *p, const char *of) {
    const char *const label[SIDES] = {v->t->chosen == 0 ? "as given = chosen" : "as given",
                                      "chosen"};
    double whole = fmax(p->known[0] ? sum(p, 0) : 0, p->known[1] ? sum(p, 1) : 0);
    // A budget far above the bars would squeeze them. It is named below the table instead.
    if (p->limit > 0 && p->limit < 4 * whole)
        whole = fmax(whole, 1.02 * p->limit);
    if (!(whole > 0))
        return;
    for (int side = 0; side < SIDES; side++)
        if (p->known[side])
            put_bar(v->f, p, side, label[side], whole);
    put_table(v->f, p, of, label);
}

// ---------------------------------------------------------------- memory

static void fill_memory(struct parts *p, int side, const struct stored_memory *m,
                        const struct tune_setting *s) {
    uint64_t arena = 0;
    for (int c = 0; c < CLASS_COUNT; c++) {
        p->name[c] = tensor_class_name((enum tensor_class)c);
        p->amount[side][c] = (double)m->by_class[c];
        arena += m->by_class[c];
    }
    p->name[PART_SECOND] = "second model";
    p->amount[side][PART_SECOND] = (double)m->second_bytes;
    arena += m->second_bytes;
    p->name[PART_REST] = "program, loader, gaps";
    p->amount[side][PART_REST] = s->need_bytes > arena ? (double)(s->need_bytes - arena) : 0;
    p->n = PARTS_MOST;
    p->known[side] = true;
}

void tune_put_memory(const struct tune_view *v) {
    const struct tune *t = v->t;
    struct parts p = {.bytes = true};
    bool whole;
    char text[TEXT_UNIT_BYTES];
    if (t->n > 0 && v->facts->given.known)
        fill_memory(&p, 0, &v->facts->given, &t->settings[0]);
    if (t->chosen > 0 && v->facts->chosen.known)
        fill_memory(&p, 1, &v->facts->chosen, &t->settings[t->chosen]);
    if (!p.known[0] && !p.known[1]) {
        fputs("<p class=\"small\">Memory by class is not known.</p>\n", v->f);
        return;
    }
    const uint64_t limit = tune_memory_limit(v, &whole);
    p.limit = (double)limit;
    fputs("<figure id=\"memory\"><figcaption>Memory a setting needs <small>at its peak, planned "
          "before anything is allocated</small></figcaption>\n",
          v->f);
    put_parts(v, &p, "class");
    if (p.limit > 0)
        fprintf(v->f, "<p class=\"small\">The line is %s, %s%s.</p>",
                whole ? "the budget" : "what a setting may need", text_bytes(text, limit),
                whole ? "" : ": the budget or what the machine has, minus head-room");
    fputs("</figure>\n", v->f);
}

// ---------------------------------------------------------------- time

static void fill_split(struct parts *p, int side, const struct tune_setting *s) {
    double steps = (double)s->split.steps > 0 ? (double)s->split.steps : (double)s->n;
    for (int i = 0; i < TIME_COUNT; i++) {
        p->name[i] = i == TIME_DATA_WAIT ? "data wait" : time_part_name((enum time_part)i);
        p->amount[side][i] = 1e-6 * (double)s->split.ns[i] / steps;
    }
    p->n = TIME_COUNT;
    p->known[side] = true;
}

void tune_put_split(const struct tune_view *v) {
    const struct tune *t = v->t;
    struct parts p = {.bytes = false};
    if (t->n > 0 && t->settings[0].n > 0)
        fill_split(&p, 0, &t->settings[0]);
    if (t->chosen > 0)
        fill_split(&p, 1, &t->settings[t->chosen]);
    if (!p.known[0] && !p.known[1])
        return;
    fputs("<figure id=\"split\"><figcaption>Where a step's time goes <small>mean of the measured "
          "steps</small></figcaption>\n",
          v->f);
    put_parts(v, &p, "part");
    fputs("</figure>\n", v->f);
}

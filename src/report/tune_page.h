// tune_page.h - a search of tune/ as one HTML page: the choice against the recipe as given, the
// frontier, memory, step times, predictions, the playbook, and every setting with its reason.
//
// Place: tune_report.c gets the facts from a search that has just ended or from the store, calls
// tune_page and writes the file.
//
//     tune_page.c         the page from top to bottom, the choice
//     tune_page_plots.c   the frontier in its planes, predicted against measured
//     tune_page_steps.c   the distribution of step times
//     tune_page_parts.c   memory by class, where the time went
//     tune_page_trials.c  the playbook, and tables of all settings
//     tune_page_style.c   additions to the style of html_page.c, and the script
//
// Invariants: those of html.h. What is not known is shown as not known. Marks in a plot differ in
// shape, not only in colour.
#ifndef HAGGLE_REPORT_TUNE_PAGE_H
#define HAGGLE_REPORT_TUNE_PAGE_H

#include "report/svg.h"
#include "report/tune_words.h"
#include "tune/stored.h"
#include "tune/tune.h"

#include <stdio.h>

struct tune_facts {       // facts that struct tune does not hold; a NULL pointer: not known
    const char *model;    // as the user named it
    const char *machine;  // one line
    const char *verdict;  // about the choice, one sentence per line
    const char *recipe;   // YAML of the choice
    const char *saved_as; // the file that the recipe was written to
    const char *missing;  // what is not known and why, one sentence per line
    int64_t tuning;       // number of the search in the store; 0: none
    uint64_t memory_budget;
    struct stored_memory given, chosen;
};

// The caller checks f for write errors. ERR_MEMORY.
int tune_page(FILE *f, const struct tune *t, const struct tune_facts *facts, struct err *e);

// ---------------------------------------------------------------- the parts

struct tune_figures { // the figures of a setting; NaN: not measured
    struct quantile q[TUNE_PERCENTILES];
    double tokens_per_s, ms_per_sample, joules_per_token; // as in tune_words.h
    struct tune_range range;
    struct svg_point at; // its place in the plot being drawn; x is NaN: it has none
};

struct tune_view {
    FILE *f;
    const struct tune *t;
    const struct tune_facts *facts;
    struct tune_figures *figures; // by setting
    struct tune_place *places;    // the order of the tables
    bool metered;                 // the energy of a setting is known
};

enum tune_mark { // how a plot or a table marks a setting
    MARK_CHOSEN,
    MARK_GIVEN,
    MARK_FRONTIER,
    MARK_MEASURED, // a glance is small and pale, whatever its mark
    MARK_OVER,
    MARK_REFUSED, // does not fit, or failed
    MARK_PLANNED,
    MARK_COUNT
};
enum tune_mark tune_mark_of(const struct tune *t, int i);
const char *tune_mark_name(enum tune_mark m); // for the legend
// The mark as a picture of a fixed size.
void tune_put_mark(FILE *f, enum tune_mark m);

// The percentile shown on axes and tiles: p99, unless there are budgets only for others.
int tune_shown_percentile(const struct tune_request *r);
// A text in a plot at x, on the side of x that has more room. height: 0 is the bottom, 1 the top.
void tune_put_note(const struct tune_view *v, const struct svg_plot *p, double x, double height,
                   const char *text);

// The memory a setting may need: what the machine has or the budget, minus head-room. For a search
// from the store only the budget may be known. Then *whole is true: no head-room is subtracted.
// 0: neither is known.
uint64_t tune_memory_limit(const struct tune_view *v, bool *whole);

void tune_put_frontier(const struct tune_view *v);
void tune_put_predicted(const struct tune_view *v);
void tune_put_steps(const struct tune_view *v);
void tune_put_memory(const struct tune_view *v);
void tune_put_split(const struct tune_view *v);
void tune_put_playbook(const struct tune_view *v);
void tune_put_settings(const struct tune_view *v);
extern const char *const tune_style[], *const tune_script[]; // pieces; NULL ends them

#endif

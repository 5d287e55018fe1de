// tune_page.h - a search of tune/ as one HTML page: the choice against the recipe as given, the frontier,
// memory, step times, predictions, the playbook, every setting with its reason.
//
// Place: api/tune_report.c fills the facts from a search that has just ended or from the store, calls
// tune_page and writes the file.
//
//     tune_page.c         the page from top to bottom, the choice
//     tune_page_plots.c   the frontier in its planes, predicted against measured
//     tune_page_steps.c   how step times are distributed
//     tune_page_parts.c   memory by class, where the time went
//     tune_page_trials.c  the playbook, and tables of all settings
//     tune_page_style.c   what is added to the style of html_page.c, and the script
//
// Invariants: as of html.h: one file that loads nothing, all text escaped, whole without a script. What
// is not known is said to be so. A mark in a plot is told by its shape, not by its colour alone.
#ifndef HAGGLE_REPORT_TUNE_PAGE_H
#define HAGGLE_REPORT_TUNE_PAGE_H

#include "tune/tune.h"

#include <stdio.h>

struct tune_memory { // of one setting
    bool known;
    uint64_t by_class[CLASS_COUNT]; // of the arena at its fullest
    uint64_t second_bytes;          // of a second model, which is beside the arena
};

struct tune_facts {       // beside the search; a pointer may be NULL: not known
    const char *model;    // as it was named
    const char *machine;  // one line
    const char *verdict;  // of the choice, a sentence a line
    const char *recipe;   // YAML of the choice
    const char *saved_as; // where that was written
    const char *missing;  // what could not be told, a sentence a line
    int64_t tuning;       // its number in the store; 0: none
    uint64_t memory_budget;
    struct tune_memory given, chosen;
};

// Whether f took it all is the caller's to ask. ERR_MEMORY.
int tune_page(FILE *f, const struct tune *t, const struct tune_facts *facts, struct err *e);

// ---------------------------------------------------------------- the parts

struct tune_figures { // of a setting; NaN: not measured
    struct quantile q[TUNE_PERCENTILES];
    double tokens_per_s, ms_per_sample, joules_per_token;
};

struct tune_view {
    FILE *f;
    const struct tune *t;
    const struct tune_facts *facts;
    struct tune_figures *figures; // by setting
    bool metered;                 // any of them has its energy
};

enum tune_mark { // what a setting is in a plot or a table
    MARK_CHOSEN,
    MARK_GIVEN,
    MARK_FRONTIER,
    MARK_MEASURED,
    MARK_OVER,
    MARK_REFUSED, // does not fit, or failed
    MARK_PLANNED,
    MARK_COUNT
};
enum tune_mark tune_mark_of(const struct tune *t, int i);
const char *tune_mark_name(enum tune_mark m); // for people
// The mark as a picture of a fixed size.
void tune_put_mark(FILE *f, enum tune_mark m);

// A label in a plot at x, `height` of the way up; on the side of x where there is more room.
struct svg_plot;
void tune_put_note(const struct tune_view *v, const struct svg_plot *p, double x, double height,
                   const char *text);

// What a setting may need: what there is or the budget, less head-room. From a store only the budget may be
// known: *whole, no head-room is off. 0: neither is known.
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

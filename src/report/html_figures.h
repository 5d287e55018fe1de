// html_figures.h - the figures of a run, once: the page's table, the terminal and the JSON show the
// same rows.
//
// Place: html_table.c and api/report.c walk the table; values come from run_read.h.
//
// Invariant: a figure that is not known is NaN, its text "not known" or why; never 0.
#ifndef HAGGLE_REPORT_HTML_FIGURES_H
#define HAGGLE_REPORT_HTML_FIGURES_H

#include "report/run_read.h"

enum { FIGURE_TEXT_BYTES = 128 };

enum figure_kind {
    FIGURE_COUNT,   // a whole number
    FIGURE_LOSS,    // four digits after the point
    FIGURE_RATE,    // per second, whole
    FIGURE_MS,      // milliseconds
    FIGURE_PERCENT, // of a fraction
    FIGURE_BYTES,
    FIGURE_SECONDS,
};

struct figure {
    const char *key;   // of the JSON: append only
    const char *label; // for people
    enum figure_kind kind;
    double (*value)(const struct run_read *r);
    // What stands beside the value in small print; may be NULL. Returns out.
    const char *(*note)(char out[FIGURE_TEXT_BYTES], const struct run_read *r);
    bool brief;    // also on the terminal
    bool relative; // comparable as a ratio
};

size_t figure_count(void);
const struct figure *figure_at(size_t i);
const char *figure_text(char out[FIGURE_TEXT_BYTES], const struct figure *g, double value);
// "+12 %" of a value against the first run's; "" when that says nothing. Returns out.
const char *figure_ratio(char out[FIGURE_TEXT_BYTES], const struct figure *g, double value,
                         double first);
// "median step: B is 12 % slower than A" or that they cannot be told apart, from the confidence
// intervals of the medians. Returns out.
const char *figure_compare(char out[RUN_SENTENCE_BYTES], const struct run_read *a,
                           const struct run_read *b);
const char *figure_time(char out[FIGURE_TEXT_BYTES], double seconds); // "2026-08-03 14:02 UTC"

#endif

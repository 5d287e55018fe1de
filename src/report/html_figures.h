// html_figures.h - the figures of a run, defined once: the page's table, the terminal and the JSON
// show the same rows.
//
// Place: html_table.c and api/report.c walk the table. Values come from run_read.h.
//
// Invariant: a figure that is not known is NaN, never 0. Its text is "not known".
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
    const char *key;   // in the JSON; append only
    const char *label; // on the terminal
    enum figure_kind kind;
    double (*value)(const struct run_read *r);
    // The small print beside the value. NULL: there is none. Returns out or "".
    const char *(*note)(char out[FIGURE_TEXT_BYTES], const struct run_read *r);
    bool brief;        // also on the terminal
    bool relative;     // comparable as a ratio
    const char *plain; // on the page: in plain words
    // The page has one row for this figure and its twin where their texts are the same in all runs,
    // and it is called `both`. NULL: always a row of its own.
    const char *twin, *both;
};

size_t figure_count(void);
const struct figure *figure_at(size_t i);
const char *figure_text(char out[FIGURE_TEXT_BYTES], const struct figure *g, double value);
// "+12 %": the value against that of the first run. "" when a ratio has no meaning. Returns out.
const char *figure_ratio(char out[FIGURE_TEXT_BYTES], const struct figure *g, double value,
                         double first);
// A sentence: how much slower or faster the median step of b is, or that the two cannot be told
// apart. Decided by the confidence intervals of the medians. Returns out.
const char *figure_compare(char out[RUN_SENTENCE_BYTES], const struct run_read *a,
                           const struct run_read *b);
// "over steps 4 to 40": those that percentiles are about. Returns out.
const char *figure_steps(char out[FIGURE_TEXT_BYTES], const struct run_log *g);
const char *figure_time(char out[FIGURE_TEXT_BYTES], double seconds); // "2026-08-03 14:02 UTC"

#endif

// html.h - the report of one run, or of several side by side, as one HTML page.
//
// Place: api/report.c reads the runs (run_read.h), calls html_report, writes the file.
//
//     html.c          the page from top to bottom
//     html_table.c    heads, figures, settings, bars of time and memory
//     html_plots.c    curves over steps
//     html_spread.c   the distribution of step times
//     html_data.c     the numbers behind the curves, which the script shows under the cursor
//     html_page.c     style sheet and script
//
// Invariants:
//   1. The page is one file that loads nothing. Its content security policy tells the browser so.
//   2. Every string that is not a literal goes through html_text.h.
//   3. Without a script only the values under the cursor are missing.
#ifndef HAGGLE_REPORT_HTML_H
#define HAGGLE_REPORT_HTML_H

#include "report/run_read.h"
#include "report/svg.h"

#include <stdio.h>

// More than HTML_RUNS_MOST curves cannot be told apart.
enum { HTML_RUNS_MOST = 16, HTML_COLOURS = 8, HTML_COLOUR_BYTES = 32 };

struct html_page {
    FILE *f;
    struct run_read
        *runs; // not const: quantiles are computed in the scratch space of a run's samples
    size_t n;
};

// The runs are only read, except for the scratch space of their samples. The caller checks f for
// write errors.
void html_report(FILE *f, struct run_read *runs, size_t n);

// html_table.c
void html_put_heads(struct html_page *p);
void html_put_figures(struct html_page *p);
void html_put_split(struct html_page *p);
void html_put_memory(struct html_page *p);
void html_put_settings(struct html_page *p);
bool html_has_ranks(const struct html_page *p);
void html_put_ranks(struct html_page *p); // html_ranks.c

// html_plots.c, html_spread.c
void html_put_curves(struct html_page *p);       // loss, learning rate, gradient norm
void html_put_times(struct html_page *p);        // step time over steps
void html_put_distribution(struct html_page *p); // histogram and CDF
// False: there are too many runs to draw more than the smoothed curves.
bool html_draws_raw(const struct html_page *p);
// The CSS classes of a run's colour. Returns out.
const char *html_colour(char out[HTML_COLOUR_BYTES], size_t run);
void html_put_legend(struct html_page *p); // names of the runs; nothing for a single run
struct svg_scale html_step_scale(const struct html_page *p); // over all runs
struct svg_scale html_duration_scale(const struct html_page *p);

enum { HTML_BINS = 40, HTML_CDF_POINTS = 201 };
struct html_bins { // a histogram of the steps after warm-up
    double share[HTML_BINS];
    double edge[HTML_BINS + 1]; // ms
    uint64_t beyond;            // steps past the last edge
    double most;                // time of the slowest step, ms
};
void html_bins_fill(struct html_bins *b, const struct run_read *r, const struct svg_scale *x);
void html_cdf_fill(struct svg_point out[HTML_CDF_POINTS], struct run_read *r);

// html_data.c
void html_put_data(struct html_page *p);

// html.c, also used by tune_page.c. Writes everything before the text of <title>, including the
// policy that lets the page load nothing.
void html_put_head(FILE *f);
void html_put_pieces(FILE *f, const char *const *pieces);

// A page is written to memory first, so that the file is whole or not there at all.
struct html_file {
    FILE *f;
    char *text;
    size_t bytes;
};
int html_file_open(struct html_file *h, struct err *e);
// Ends the page and writes it to the path, unless rc (of writing the page) is an error, which is
// returned. *bytes becomes its size.
int html_file_save(struct html_file *h, const char *path, int rc, uint64_t *bytes, struct err *e);

// html_page.c
extern const char *const html_style[], *const html_script[]; // pieces; NULL ends them

#endif

// svg.h - a plot as a piece of HTML: an SVG that stretches, with labels beside it that do not.
//
// Place: html_plots.c puts the report's plots together from these calls.
//
// The drawing has coordinates from 0 to 1000 both ways and is stretched to whatever the page gives
// it, with strokes that keep their width; tick labels are text of the page at percentages. So one
// plot is readable on a wide screen, at 320 pixels and on paper, without a script.
//
// Between svg_begin and svg_end come lines, bands and marks, then svg_labels and the texts that stand
// in the plot. Colours are CSS classes: c0 to c7 say which, others how (html_page.c).
#ifndef HAGGLE_REPORT_SVG_H
#define HAGGLE_REPORT_SVG_H

#include "report/svg_scale.h"

#include <stddef.h>
#include <stdio.h>

struct svg_point {
    double x, y; // y NaN: a gap
};

struct svg_plot {
    const char *id;       // also the key of its data, for the script
    const char *title;    // a literal
    const char *unit;     // of y, after the title; a literal
    const char *x_unit;   // under the axis; a literal
    const char *describe; // for those who cannot see it; escaped here
    struct svg_scale x, y;
    bool percent; // y is a share: labels in percent
    bool low;     // about half as high
};

void svg_begin(FILE *f, const struct svg_plot *p); // the frame up to the drawing, with its grid
void svg_line(FILE *f, const struct svg_plot *p, const char *css, const struct svg_point *v,
              size_t n);
// Between lo and hi (same x); for a single point a vertical line.
void svg_band(FILE *f, const struct svg_plot *p, const char *css, const struct svg_point *lo,
              const struct svg_point *hi, size_t n);
void svg_dots(FILE *f, const struct svg_plot *p, const char *css, const struct svg_point *v,
              size_t n);
// A bar from the bottom up to y, from x to x_end.
void svg_bar(FILE *f, const struct svg_plot *p, const char *css, double x, double x_end, double y);
void svg_vertical(FILE *f, const struct svg_plot *p, const char *css, double x, double from,
                  double to); // from, to: 0 the bottom, 1 the top
void svg_labels(FILE *f);     // ends the drawing
void svg_note(FILE *f, const struct svg_plot *p, double x, double y, const char *text); // escaped
void svg_end(FILE *f, const struct svg_plot *p); // axis labels, end of the frame

#endif

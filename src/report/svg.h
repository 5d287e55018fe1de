// svg.h - a plot as a piece of HTML: an SVG that stretches, with labels beside it that do not.
//
// Place: the pages of runs (html.h) and of searches (tune_page.h) draw their plots with it.
//
// The drawing has coordinates from 0 to 1000 in both directions. The page stretches it to the space
// there is, and strokes keep their width. Tick labels are text of the page, placed at percentages.
// So a plot is readable on a wide screen, at 320 pixels and on paper, without a script.
//
// Order of calls: svg_begin, then lines, bands and marks, then svg_labels, then texts inside the
// plot, then svg_end. Colours are CSS classes (html_page.c): c0 to c7 choose the colour, the others
// the manner of drawing.
#ifndef HAGGLE_REPORT_SVG_H
#define HAGGLE_REPORT_SVG_H

#include "report/svg_scale.h"

#include <stddef.h>
#include <stdio.h>

struct svg_point {
    double x, y; // y is NaN: a gap in the line
};

struct svg_plot {
    const char *id;       // also the key of the plot's data, for the script
    const char *title;    // a literal
    const char *unit;     // of y, after the title; a literal
    const char *x_unit;   // under the axis; a literal
    const char *describe; // for screen readers; escaped here
    struct svg_scale x, y;
    bool percent; // y is a share: labels in percent
    bool low;     // about half as high
};

// Opens the <figure>: title, then unit and `more` in small print. The caller closes it.
void svg_caption(FILE *f, const struct svg_plot *p, const char *more);
void svg_begin(FILE *f, const struct svg_plot *p); // the frame up to the drawing, with its grid
void svg_line(FILE *f, const struct svg_plot *p, const char *css, const struct svg_point *v,
              size_t n);
// The area between lo and hi, which have the same x. A single point gives a vertical line.
void svg_band(FILE *f, const struct svg_plot *p, const char *css, const struct svg_point *lo,
              const struct svg_point *hi, size_t n);
void svg_dots(FILE *f, const struct svg_plot *p, const char *css, const struct svg_point *v,
              size_t n);
// A bar from the bottom up to y, from x to x_end.
void svg_bar(FILE *f, const struct svg_plot *p, const char *css, double x, double x_end, double y);
void svg_vertical(FILE *f, const struct svg_plot *p, const char *css, double x, double from,
                  double to); // from, to: 0 is the bottom, 1 the top
// The outline of a histogram with n bars (at most SVG_BARS_MOST) over the whole x axis.
enum { SVG_BARS_MOST = 64 };
void svg_outline(FILE *f, const struct svg_plot *p, const char *css, const double *height, int n);
void svg_labels(FILE *f); // ends the drawing
// A text beside x: to the right, or to the left where x lies past SVG_NOTE_BEFORE of the width.
#define SVG_NOTE_BEFORE 0.75
void svg_note(FILE *f, const struct svg_plot *p, double x, double y, const char *text); // escaped
void svg_end(FILE *f, const struct svg_plot *p); // axis labels, end of the frame

#endif

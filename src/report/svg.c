// svg.c - see svg.h.
#include "report/svg.h"

#include "report/html_text.h"

#include <math.h>
#include <string.h>

// Two more than the ticks asked of svg_scale_round, so that both choose the same distance of ticks.
enum { X_TICKS = 8, Y_TICKS = 7 };

// Rounded to tenths of a unit: at most a tenth of a pixel, in a third of the bytes of %f.
static void put_coordinate(FILE *f, double place) {
    long tenths = lround(10000 * place);
    if (tenths % 10 == 0)
        fprintf(f, "%ld", tenths / 10);
    else
        fprintf(f, "%ld.%ld", tenths / 10, tenths % 10);
}

static void put_point(FILE *f, const struct svg_plot *p, double x, double y) {
    put_coordinate(f, svg_place(&p->x, x));
    fputc(' ', f);
    put_coordinate(f, 1 - svg_place(&p->y, y));
}

static void put_grid(FILE *f, const struct svg_plot *p) {
    double at[SVG_TICKS_MOST];
    int n = svg_ticks(&p->y, Y_TICKS, at);
    fputs("<path class=\"grid\" d=\"", f);
    for (int i = 0; i < n; i++) {
        fputs("M0 ", f);
        put_coordinate(f, 1 - svg_place(&p->y, at[i]));
        fputs("H1000", f);
    }
    fputs("\"/>", f);
}

static void put_y_labels(FILE *f, const struct svg_plot *p) {
    double at[SVG_TICKS_MOST];
    int n = svg_ticks(&p->y, Y_TICKS, at);
    for (int i = 0; i < n; i++) {
        char text[SVG_NUMBER_BYTES];
        double step = p->y.log || n < 2 ? 0 : at[1] - at[0];
        svg_number(text, p->percent ? 100 * at[i] : at[i], p->percent ? 100 * step : step);
        fprintf(f, "<span style=\"top:%.2f%%\">%s%s</span>", 100 * (1 - svg_place(&p->y, at[i])),
                text, p->percent ? "\u2009%" : "");
    }
}

void svg_caption(FILE *f, const struct svg_plot *p, const char *more) {
    fprintf(f, "<figure id=\"%s\"><figcaption>%s <small>%s%s</small></figcaption>", p->id, p->title,
            p->unit, more);
}

void svg_begin(FILE *f, const struct svg_plot *p) {
    fprintf(f, "<div class=\"frame%s\"><div class=\"y\" aria-hidden=\"true\">",
            p->low ? " low" : "");
    put_y_labels(f, p);
    fprintf(f,
            "</div><div class=\"area\" data-plot=\"%s\" tabindex=\"0\" role=\"img\" aria-label=\"",
            p->id);
    html_put_text(f, p->describe);
    fputs("\"><svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
          f);
    put_grid(f, p);
    fputc('\n', f);
}

void svg_line(FILE *f, const struct svg_plot *p, const char *css, const struct svg_point *v,
              size_t n) {
    bool down = false;
    fprintf(f, "<path class=\"line %s\" d=\"", css);
    for (size_t i = 0; i < n; i++) {
        if (isnan(v[i].y)) {
            down = false;
            continue;
        }
        fputc(down ? 'L' : 'M', f);
        put_point(f, p, v[i].x, v[i].y);
        // A point between two gaps becomes a dot: a line of no length with round ends.
        if (!down && (i + 1 == n || isnan(v[i + 1].y)))
            fputs("h0", f);
        down = true;
    }
    fputs("\"/>\n", f);
}

void svg_band(FILE *f, const struct svg_plot *p, const char *css, const struct svg_point *lo,
              const struct svg_point *hi, size_t n) {
    fprintf(f, "<path class=\"band %s\" d=\"", css);
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && !isnan(lo[end].y) && !isnan(hi[end].y))
            end++;
        for (size_t k = i; k < end; k++) {
            fputc(k == i ? 'M' : 'L', f);
            put_point(f, p, hi[k].x, hi[k].y);
        }
        for (size_t k = end; k-- > i;) {
            fputc('L', f);
            put_point(f, p, lo[k].x, lo[k].y);
        }
        if (end > i)
            fputc('Z', f);
        i = end + 1;
    }
    fputs("\"/>\n", f);
}

void svg_dots(FILE *f, const struct svg_plot *p, const char *css, const struct svg_point *v,
              size_t n) {
    fprintf(f, "<path class=\"dots %s\" d=\"", css);
    for (size_t i = 0; i < n; i++) {
        if (isnan(v[i].y))
            continue;
        fputc('M', f);
        put_point(f, p, v[i].x, v[i].y);
        fputs("h0", f);
    }
    fputs("\"/>\n", f);
}

void svg_bar(FILE *f, const struct svg_plot *p, const char *css, double x, double x_end, double y) {
    double left = svg_place(&p->x, x), right = svg_place(&p->x, x_end), top = svg_place(&p->y, y);
    fprintf(f, "<rect class=\"%s\" x=\"", css);
    put_coordinate(f, left);
    fputs("\" y=\"", f);
    put_coordinate(f, 1 - top);
    fputs("\" width=\"", f);
    put_coordinate(f, fmax(right - left, 0));
    fputs("\" height=\"", f);
    put_coordinate(f, top);
    fputs("\"/>\n", f);
}

void svg_vertical(FILE *f, const struct svg_plot *p, const char *css, double x, double from,
                  double to) {
    fprintf(f, "<path class=\"line %s\" d=\"M", css);
    put_coordinate(f, svg_place(&p->x, x));
    fputc(' ', f);
    put_coordinate(f, 1 - from);
    fputc('V', f);
    put_coordinate(f, 1 - to);
    fputs("\"/>\n", f);
}

void svg_outline(FILE *f, const struct svg_plot *p, const char *css, const double *height, int n) {
    struct svg_point v[2 * SVG_BARS_MOST + 2] = {{p->x.lo, 0}};
    double width = (p->x.hi - p->x.lo) / n;
    for (int i = 0; i < n; i++) {
        v[2 * i + 1] = (struct svg_point){p->x.lo + i * width, height[i]};
        v[2 * i + 2] = (struct svg_point){p->x.lo + (i + 1) * width, height[i]};
    }
    v[2 * n + 1] = (struct svg_point){p->x.hi, 0};
    svg_line(f, p, css, v, (size_t)(2 * n + 2));
}

void svg_labels(FILE *f) {
    fputs("</svg>", f);
}

void svg_note(FILE *f, const struct svg_plot *p, double x, double y, const char *text) {
    double left = svg_place(&p->x, x);
    fprintf(f, "<span class=\"note%s\" style=\"left:%.2f%%;top:%.2f%%\">",
            left > SVG_NOTE_BEFORE ? " before" : "", 100 * left, 100 * (1 - svg_place(&p->y, y)));
    html_put_text(f, text);
    fputs("</span>", f);
}

void svg_end(FILE *f, const struct svg_plot *p) {
    double at[SVG_TICKS_MOST];
    int n = svg_ticks(&p->x, X_TICKS, at);
    // On narrow screens the style hides every other label of a "many" axis.
    fprintf(f, "</div><div class=\"x%s\" aria-hidden=\"true\">", n > 5 ? " many" : "");
    for (int i = 0; i < n; i++) {
        char text[SVG_NUMBER_BYTES];
        svg_number(text, at[i], p->x.log || n < 2 ? 0 : at[1] - at[0]);
        fprintf(f, "<span style=\"left:%.2f%%\">%s</span>", 100 * svg_place(&p->x, at[i]), text);
    }
    fprintf(f, "</div><div class=\"axis\">%s</div></div>\n", p->x_unit);
}

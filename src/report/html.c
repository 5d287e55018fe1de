// html.c - the page from top to bottom; see html.h.
#include "report/html.h"
#include "report/html_text.h"

void html_put_pieces(FILE *f, const char *const *pieces) {
    for (; *pieces; pieces++)
        fputs(*pieces, f);
}

// "a", "a and b", "a, b and c", "a, b and 3 more".
static void put_title(struct html_page *p) {
    size_t named = p->n <= 3 ? p->n : 2;
    for (size_t i = 0; i < named; i++) {
        if (i > 0)
            fputs(i + 1 == p->n ? " and " : ", ", p->f);
        html_put_text(p->f, p->runs[i].name);
    }
    if (named < p->n)
        fprintf(p->f, " and %zu more", p->n - named);
}

// The policy is for what we may have overlooked: the page may load nothing and send nothing.
void html_put_head(FILE *f) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
          "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
          "<meta name=\"generator\" content=\"haggle " HAGGLE_VERSION "\">\n<title>",
          f);
}

static void put_begin(struct html_page *p) {
    html_put_head(p->f);
    put_title(p);
    fputs(" - haggle report</title>\n<style>\n", p->f);
    html_put_pieces(p->f, html_style);
    fputs("</style>\n</head>\n<body>\n<main>\n<h1>", p->f);
    put_title(p);
    fputs(p->n > 1 ? " <small>training runs compared</small></h1>\n"
                   : " <small>a training run</small></h1>\n",
          p->f);
}

static void begin_part(struct html_page *p, const char *title) {
    fprintf(p->f, "<section class=\"part\"><h2>%s</h2>\n", title);
}

static void end_part(struct html_page *p) {
    fputs("</section>\n", p->f);
}

void html_report(FILE *f, struct run_read *runs, size_t n) {
    struct html_page page = {.f = f, .runs = runs, .n = n}, *p = &page;
    put_begin(p);
    html_put_heads(p);
    begin_part(p, "Figures");
    html_put_figures(p);
    end_part(p);
    begin_part(p, "Learning");
    html_put_curves(p);
    end_part(p);
    begin_part(p, "Step time");
    html_put_distribution(p);
    html_put_times(p);
    html_put_split(p);
    end_part(p);
    begin_part(p, "Memory");
    html_put_memory(p);
    end_part(p);
    begin_part(p, "Settings that are not at their defaults");
    html_put_settings(p);
    end_part(p);
    fputs("<footer>Written by haggle " HAGGLE_VERSION
          " report. MFU: FLOPs of forward and backward, without recomputation (HFU: with it), per "
          "wall time, as a share of this machine's peak. A percentile is a step that was measured; "
          "its "
          "bound holds for any distribution.</footer>\n</main>\n<div id=\"tip\" class=\"tip\" "
          "role=\"status\"></div>\n",
          f);
    html_put_data(p);
    fputs("<script>\n", f);
    html_put_pieces(f, html_script);
    fputs("</script>\n</body>\n</html>\n", f);
}

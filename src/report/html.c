// html.c - the page from top to bottom; see html.h.
#include "report/html.h"
#include "report/html_text.h"

#include "base/file.h"

#include <stdlib.h>

int html_file_open(struct html_file *h, struct err *e) {
    *h = (struct html_file){0};
    h->f = open_memstream(&h->text, &h->bytes);
    return h->f ? 0 : err_set(e, ERR_MEMORY, "no memory for the report");
}

int html_file_save(struct html_file *h, const char *path, int rc, uint64_t *bytes, struct err *e) {
    bool whole = !ferror(h->f);
    whole = fclose(h->f) == 0 && whole;
    if (rc == 0 && !whole)
        rc = err_set(e, ERR_MEMORY, "no memory for the report");
    if (rc == 0)
        rc = file_write_atomic(path, h->text, h->bytes, e);
    *bytes = h->bytes;
    free(h->text);
    return rc;
}

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

// The policy is a second line of defence: the browser lets the page load and send nothing.
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

static void put_part(struct html_page *p, const char *title, void (*put)(struct html_page *)) {
    fprintf(p->f, "<section class=\"part\"><h2>%s</h2>\n", title);
    put(p);
    fputs("</section>\n", p->f);
}

static void put_step_time(struct html_page *p) {
    html_put_distribution(p);
    html_put_times(p);
    html_put_split(p);
}

void html_report(FILE *f, struct run_read *runs, size_t n) {
    struct html_page page = {.f = f, .runs = runs, .n = n}, *p = &page;
    put_begin(p);
    html_put_heads(p);
    put_part(p, n == 1 ? "The run in numbers" : "The runs in numbers", html_put_figures);
    put_part(p, "How it learned", html_put_curves);
    put_part(p, "How long steps took", put_step_time);
    if (html_has_ranks(p))
        put_part(p, "What each rank did", html_put_ranks);
    put_part(p, "What memory was used for", html_put_memory);
    put_part(p, "Settings that differ from their defaults", html_put_settings);
    fputs("<footer>Written by haggle " HAGGLE_VERSION
          " report. MFU: the FLOPs per second of the forward and backward passes, without "
          "recomputation, as a share of this machine's peak. HFU: the same with recomputation. A "
          "percentile is the time of a step that was measured. Its bound holds for any "
          "distribution.</footer>\n</main>\n"
          "<div id=\"tip\" class=\"tip\" role=\"status\"></div>\n",
          f);
    html_put_data(p);
    fputs("<script>\n", f);
    html_put_pieces(f, html_script);
    fputs("</script>\n</body>\n</html>\n", f);
}

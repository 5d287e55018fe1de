// cmd_report.c - haggle report: runs are words, the page is a file.
#include "cli.h"

const struct flag report_flags[] = {
    {"out", 'o', "FILE.html",
     "the page; one run: report.html in its folder, several: ./report.html"},
    {0},
};

const char report_help[] =
    "Reads training runs back from their folders (log.jsonl, recipe.yaml, result.json) and writes\n"
    "one HTML page that needs nothing else: the figures with their bounds, loss, learning rate "
    "and\n"
    "gradient norm, how step times are distributed and where they stalled, where the time and the\n"
    "memory went, the settings that are not at their defaults. Several runs, up to 16, are\n"
    "compared: curves in one plot, figures side by side, against the first.\n"
    "\n"
    "A run that was killed, or is still going on, is shown as far as its log goes. Damaged lines\n"
    "are left out and counted.\n"
    "\n"
    "Examples\n"
    "  haggle report runs/tiny\n"
    "  haggle report runs/a runs/b runs/c --out compare.html\n"
    "  haggle report runs/tiny --json -\n";

int cmd_report(struct cli *c) {
    struct haggle_error e = {0};
    int rc = 0;
    if (c->args.n_words == 0)
        rc = cli_usage(&e, "which run? accepted: haggle report RUN_DIR ...");
    else if (c->args.n_knobs > 0)
        rc = cli_usage(&e, "%s=%s has no meaning here; accepted: folders of runs, --out FILE.html",
                       c->args.knobs[0].name, c->args.knobs[0].value);
    if (rc == 0)
        rc = haggle_report(c->args.words, c->args.n_words, args_get(&c->args, "out"), &c->sink, &e);
    return rc == 0 ? EXIT_OK : cli_fail(c, &e);
}

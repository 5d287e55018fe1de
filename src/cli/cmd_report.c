// cmd_report.c - haggle report: runs are words, the page is a file.
#include "cli.h"

const struct flag report_flags[] = {
    {"out", 'o', "FILE.html",
     "the page; one run: report.html in its folder, several: ./report.html"},
    {"tuning", 't', "N",
     "a search of haggle tune, from the store, instead of runs; last: the newest"},
    {"store", 0, "FILE", "with --tuning: where its trials are kept (the user's store)"},
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
    "haggle tune writes its own page; --tuning makes it again from the store, as far as trials "
    "tell.\n"
    "\n"
    "Examples\n"
    "  haggle report runs/tiny\n"
    "  haggle report runs/a runs/b runs/c --out compare.html\n"
    "  haggle report runs/tiny --json -\n"
    "  haggle report --tuning last --out tuned.html\n";

int cmd_report(struct cli *c) {
    struct haggle_error e = {0};
    int rc = 0;
    const char *tuning = args_get(&c->args, "tuning"), *store = args_get(&c->args, "store");
    if (tuning && c->args.n_words > 0)
        rc = cli_usage(&e, "--tuning and '%s': a page shows a search or runs, not both",
                       c->args.words[0]);
    else if (!tuning && store)
        rc = cli_usage(&e, "--store %s has no meaning without --tuning N", store);
    else if (!tuning && c->args.n_words == 0)
        rc = cli_usage(&e, "which run? accepted: haggle report RUN_DIR ...");
    else if (c->args.n_knobs > 0)
        rc = cli_usage(&e, "%s=%s has no meaning here; accepted: folders of runs, --out FILE.html",
                       c->args.knobs[0].name, c->args.knobs[0].value);
    if (rc == 0 && tuning)
        rc = haggle_report_tuning(tuning, store, args_get(&c->args, "out"), &c->sink, &e);
    else if (rc == 0)
        rc = haggle_report(c->args.words, c->args.n_words, args_get(&c->args, "out"), &c->sink, &e);
    return rc == 0 ? EXIT_OK : cli_fail(c, &e);
}
